"""Messages with random bodies, as rows of the logs and as a DataFrame's file."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from txmq.message.ids import new_transaction_id
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import Message
from txmq.store.half import HalfOrigin, HalfTransaction, half_table
from txmq.store.op import OpRow, op_table
from txmq.store.schemas import HALF

GROUP = "bench"
TOPIC = "bench-topic"
FILE_ROWS = 125_000
ROW_GROUP_ROWS = 16_384
IMMUNITY_S = 3600.0
QUEUES = 8


def random_body(size_bytes: int) -> bytes:
    """Bytes that no codec makes smaller."""
    return os.urandom(size_bytes)


def one_message_transactions(count: int, body_bytes: int) -> tuple[pa.Table, pa.Table]:
    """Rows of one half commit and of the op commit that ends them all."""
    return transactions(count, body_bytes, 1)


def transactions(
    count: int, body_bytes: int, batch: int, *, rollback_every: int = 0
) -> tuple[pa.Table, pa.Table]:
    """As `one_message_transactions`, for transactions of at most `batch` messages each.

    One in `rollback_every` of them is rolled back.
    """
    now_ms = time.time_ns() // 1_000_000
    halves, ends = [], []
    for number, first in enumerate(range(0, count, batch)):
        origin = HalfOrigin(new_transaction_id(now_ms), GROUP, 0, IMMUNITY_S, now_ms)
        size = min(batch, count - first)
        messages = [Message(TOPIC, random_body(body_bytes)) for _ in range(size)]
        queues = [(first + place) % QUEUES for place in range(size)]
        halves.append(HalfTransaction(origin, messages, queues, size))
        is_rolled_back = rollback_every and number % rollback_every == rollback_every - 1
        kind = ClaimKind.ROLLBACK if is_rolled_back else ClaimKind.COMMIT
        ends.append(OpRow(origin.transaction_id, kind, GROUP, ClaimSource.PRODUCER, now_ms))
    return half_table(halves), op_table(ends, 0)


def plain_rows(halves: pa.Table) -> pa.Table:
    """The same messages for a table without partitions."""
    return halves.drop_columns(list(HALF.partition_by))


def write_dataframe_files(folder: Path, rows: int, body_bytes: int) -> None:
    """Parquet files of `rows` bodies, so that no side has to make them."""
    folder.mkdir(parents=True)
    schema = pa.schema([("body", pa.binary())])
    for first in range(0, rows, FILE_ROWS):
        count = min(FILE_ROWS, rows - first)
        path = folder / f"{first:09d}.parquet"
        with pq.ParquetWriter(path, schema, use_dictionary=False, write_statistics=False) as writer:
            for done in range(0, count, ROW_GROUP_ROWS):
                bodies = [random_body(body_bytes) for _ in range(min(ROW_GROUP_ROWS, count - done))]
                writer.write_table(pa.table({"body": bodies}, schema=schema))
