"""The limit of this form: Parquet by Arrow, then the next commit file by put-if-absent.

A group commit of the plainest kind, without any of txmq's rules: nothing is checked, confirmed,
kept apart or made up for. It says what the storage, Arrow and Python's threads leave room for.
"""

from __future__ import annotations

import json
import queue
import threading
import time
import uuid
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
from obstore.exceptions import AlreadyExistsError
from obstore.store import LocalStore

from txmq.delta.schemas import TableSchema
from txmq.store.schemas import HALF, OP


class RawLog:
    """One log, and the thread that commits the rows of all callers together."""

    def __init__(self, location: Path, schema: TableSchema) -> None:
        """Begin at version 0."""
        location.mkdir(parents=True, exist_ok=True)
        self._store, self._version = LocalStore(str(location)), -1
        kept = [field for field in schema.columns if field.name not in schema.partition_by]
        self._schema, self._statistics = pa.schema(kept), list(schema.statistics_columns)
        self._waiting: queue.SimpleQueue[tuple[dict[str, Any], Future[None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def append(self, row: dict[str, Any]) -> None:
        """Return when the row is durable."""
        future: Future[None] = Future()
        self._waiting.put((row, future))
        future.result()

    def close(self) -> None:
        """End the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (entry := self._waiting.get()) is not None:
            group = [entry]
            while not self._waiting.empty():
                following = self._waiting.get()
                if following is None:
                    self._waiting.put(None)
                    break
                group.append(following)
            self._commit([row for row, _ in group])
            for _, future in group:
                future.set_result(None)

    def _commit(self, rows: list[dict[str, Any]]) -> None:
        columns = [[row.get(field.name) for row in rows] for field in self._schema]
        arrays = [pa.array(c, f.type) for c, f in zip(columns, self._schema, strict=True)]
        sink = pa.BufferOutputStream()
        table = pa.table(arrays, schema=self._schema)
        pq.write_table(
            table, sink, compression="snappy", use_dictionary=False,
            write_statistics=self._statistics,
        )  # fmt: skip
        content = sink.getvalue().to_pybytes()
        path = f"part-{uuid.uuid4()}.parquet"
        obstore.put(self._store, path, content, use_multipart=False)
        add = {
            "path": path, "size": len(content), "partitionValues": {}, "dataChange": True,
            "modificationTime": int(time.time() * 1000),
        }  # fmt: skip
        self._put((json.dumps({"add": add}) + "\n").encode())

    def _put(self, content: bytes) -> None:
        while True:
            self._version += 1
            path = f"_delta_log/{self._version:020d}.json"
            try:
                obstore.put(self._store, path, content, mode="create", use_multipart=False)
            except AlreadyExistsError:
                obstore.get(self._store, path).bytes()
            else:
                return


class RawTransactions:
    """Half and end of a transaction, as txmq's producers write them."""

    def __init__(self, location: Path) -> None:
        """Begin with empty logs, or go on with those of another process."""
        self._half, self._op = RawLog(location / "half", HALF), RawLog(location / "op", OP)

    def run(self, body: bytes) -> float:
        """Prepare and commit one transaction; the seconds of its commit."""
        transaction_id = str(uuid.uuid4())
        self._half.append(
            {
                "transaction_id": transaction_id, "sequence": 0, "producer_group": "orders",
                "message_id": f"{transaction_id}:0", "real_topic": "order-paid", "body": body,
                "real_queue_id": 0, "properties": [], "message_count": 1,
            }
        )  # fmt: skip
        begun_s = time.perf_counter()
        self._op.append({"transaction_id": transaction_id, "kind": "COMMIT", "ordinal": 0})
        return time.perf_counter() - begun_s

    def close(self) -> None:
        """End the threads."""
        self._half.close()
        self._op.close()
