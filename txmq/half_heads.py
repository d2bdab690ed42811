"""The first message of a transaction, as its listener will see it. Reads only."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import StorageError
from txmq.half_log import HalfLog
from txmq.listeners import HalfMessage
from txmq.schemas import HEAD_SEQUENCE
from txmq.storage import DataFile, Table

logger = logging.getLogger(__name__)

HEAD_COLUMNS = (
    "transaction_id", "sequence", "message_id", "producer_group", "real_topic", "tags", "keys",
    "body", "properties", "sharding_key", "born_timestamp", "message_count",
)  # fmt: skip
BATCH_ROWS = 8_192
UNREADABLE_ERRORS = (OSError, pa.ArrowException, StorageError)


def half_messages(half: HalfLog, check_times: dict[str, int]) -> dict[str, HalfMessage]:
    """The heads of these transactions, or the lowest message left where the head is missing.

    What cannot be read is left out, and logged; it does not stop the others. The handle of
    `half` must be fresh. Reads: half, the files that may hold these ids. Commits: 0.
    """
    rows = _first_rows(half.table, _head_files(half.table, check_times), check_times)
    headless = [key for key in check_times if key not in rows]
    if headless:
        files = half.table.files_holding("transaction_id", _sorted(headless))
        rows.update(_first_rows(half.table, files, headless))
    messages = {}
    for key, row in rows.items():
        try:
            messages[key] = half_message(row, check_times[key])
        except (TypeError, ValueError, KeyError) as error:
            logger.warning(
                "transaction %s: its half cannot be parsed (%s)", key, type(error).__name__
            )
    return messages


def half_message(row: dict[str, Any], check_times: int) -> HalfMessage:
    """A row of the half log as a listener sees it."""
    return HalfMessage(
        transaction_id=str(row["transaction_id"]),
        message_id=str(row["message_id"]),
        producer_group=str(row["producer_group"]),
        topic=row["real_topic"],
        body=row["body"] or b"",
        tags=row["tags"],
        keys=row["keys"],
        properties=MappingProxyType(dict(row["properties"] or ())),
        sharding_key=row["sharding_key"],
        born_timestamp=row["born_timestamp"],
        message_count=row["message_count"] or 0,
        check_times=check_times,
    )


def _head_files(table: Table, transaction_ids: Iterable[str]) -> list[DataFile]:
    """Files with heads only: the millions of other messages of a transaction are not read."""
    with_heads = {file.path for file in table.files_up_to("sequence", HEAD_SEQUENCE)}
    holding = table.files_holding("transaction_id", _sorted(transaction_ids))
    return [file for file in holding if file.path in with_heads]


def _first_rows(
    table: Table, files: Sequence[DataFile], transaction_ids: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """The row with the lowest sequence of each transaction."""
    first: dict[str, dict[str, Any]] = {}
    for row in _lowest_of_each_batch(table, files, _sorted(transaction_ids)):
        known = first.setdefault(str(row["transaction_id"]), row)
        if row["sequence"] < known["sequence"]:
            first[str(row["transaction_id"])] = row
    return first


def _lowest_of_each_batch(
    table: Table, files: Sequence[DataFile], wanted: pa.Array
) -> Iterator[dict[str, Any]]:
    for file in files:
        try:
            if _holds(table, file, wanted):
                for batch in table.batches(file, HEAD_COLUMNS, BATCH_ROWS):
                    yield from _lowest(pa.table(batch), wanted).to_pylist()
        except UNREADABLE_ERRORS as error:
            logger.warning("half file %s cannot be read (%s)", file.path, type(error).__name__)


def _holds(table: Table, file: DataFile, wanted: pa.Array) -> bool:
    ids = table.read([file], ["transaction_id"])["transaction_id"]
    return bool(pc.any(pc.is_in(ids, value_set=wanted)).as_py())


def _lowest(batch: pa.Table, wanted: pa.Array) -> pa.Table:
    kept = batch.filter(pc.is_in(batch["transaction_id"], value_set=wanted))
    ordered = kept.sort_by("sequence")
    numbered = ordered.select(["transaction_id"]).append_column(
        "row", pa.array(range(ordered.num_rows), pa.int64())
    )
    first = numbered.group_by("transaction_id").aggregate([("row", "min")])
    return ordered.take(first["row_min"])


def _sorted(transaction_ids: Iterable[str]) -> pa.Array:
    return pa.array(sorted(transaction_ids), pa.string())
