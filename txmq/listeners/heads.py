"""The first message of each transaction, as its listener will see it. Reads only."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.columns import Groups, integers
from txmq.delta.files import DataFile
from txmq.delta.schemas import HALF, HEAD_SEQUENCE
from txmq.delta.storage import Table
from txmq.errors import StorageError
from txmq.listeners.protocol import HEAD_COLUMNS, HalfMessage
from txmq.message.names import unwrapped
from txmq.store.half import HalfLog

logger = logging.getLogger(__name__)

BATCH_ROWS = 8_192
UNREADABLE_ERRORS = (OSError, pa.ArrowException, StorageError)
_STORED_AS = {"topic": "real_topic"}
_PLACE = ("transaction_id", "sequence")
# A listener sees names as its own code wrote them (R94).
_NAMES = frozenset({"topic", "producer_group"})


def heads_of(half: HalfLog, asks: pa.Table, columns: Sequence[str] = HEAD_COLUMNS) -> pa.Table:
    """The heads of these transactions, or the lowest message left where the head is missing.

    What cannot be read is left out, and logged; it does not stop the others. The handle of
    `half` must be fresh.

    Args:
        half: where the heads are.
        asks: transaction_id, each once, and check_times.
        columns: fields of HalfMessage, `transaction_id` first; nothing else is read.

    Reads: half, the files that may hold these ids. Commits: 0.
    """
    wanted = asks["transaction_id"].combine_chunks()
    rows = _first_rows(half.table, _head_files(half.table, wanted), wanted, columns)
    headless = wanted.filter(pc.invert(pc.is_in(wanted, value_set=rows["transaction_id"])))
    if len(headless):
        files = half.table.files_holding("transaction_id", headless)
        rows = pa.concat_tables([rows, _first_rows(half.table, files, headless, columns)])
    return _as_heads(rows, asks, columns)


def half_messages(heads: pa.Table) -> list[HalfMessage]:
    """Heads with all columns as objects; what cannot be parsed is left out, and logged."""
    messages = []
    for row in heads.to_pylist():
        try:
            messages.append(half_message(row))
        except (TypeError, ValueError, KeyError) as error:
            own_id, problem = row["transaction_id"], type(error).__name__
            logger.warning("transaction %s: its half cannot be parsed (%s)", own_id, problem)
    return messages


def half_message(row: dict[str, Any]) -> HalfMessage:
    """One head as an object."""
    properties = MappingProxyType(dict(row["properties"] or ()))
    return HalfMessage(**{**row, "body": row["body"] or b"", "properties": properties})


def _as_heads(rows: pa.Table, asks: pa.Table, columns: Sequence[str]) -> pa.Table:
    """The columns by their names, and how often each was asked, in the order of `asks`."""
    asked = pc.index_in(rows["transaction_id"], value_set=asks["transaction_id"].combine_chunks())
    order = pc.sort_indices(asked)
    rows, asked = rows.take(order), asked.take(order)
    found = {
        "check_times": asks["check_times"].take(asked),
        **{name: rows[_STORED_AS.get(name, name)] for name in columns if name != "check_times"},
    }
    for name in _NAMES.intersection(found):
        found[name] = _unwrapped(found[name])
    if "message_count" in found:
        found["message_count"] = pc.fill_null(found["message_count"], 0)
    return pa.table({name: found[name] for name in columns})


def _unwrapped(names: pa.ChunkedArray) -> pa.ChunkedArray:
    """Names without their namespaces; there are few different ones."""
    stored = pc.unique(names).drop_null()
    own = pa.array([unwrapped(name) for name in stored.to_pylist()], pa.string())
    return own.take(pc.index_in(names, value_set=stored))


def _head_files(table: Table, transaction_ids: pa.Array) -> list[DataFile]:
    """Files with heads only: the millions of other messages of a transaction are not read."""
    with_heads = {file.path for file in table.files_up_to("sequence", HEAD_SEQUENCE)}
    holding = table.files_holding("transaction_id", transaction_ids)
    return [file for file in holding if file.path in with_heads]


def _first_rows(
    table: Table, files: Sequence[DataFile], wanted: pa.Array, columns: Sequence[str]
) -> pa.Table:
    """The row with the lowest sequence of each transaction."""
    own = [_STORED_AS.get(name, name) for name in columns if name != "check_times"]
    stored = list(dict.fromkeys([*_PLACE, *own]))
    empty = pa.schema([HALF.columns.field(name) for name in stored]).empty_table()
    rows = [_lowest(part.cast(empty.schema)) for part in _parts(table, files, wanted, stored)]
    return _lowest(pa.concat_tables([empty, *rows]))


def _parts(
    table: Table, files: Sequence[DataFile], wanted: pa.Array, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Rows about `wanted`, a few thousand at a time: a file may hold much else."""
    for file in files:
        try:
            if _holds(table, file, wanted):
                for batch in table.batches(file, columns, BATCH_ROWS):
                    part = pa.table(batch).select(list(columns))
                    yield part.filter(pc.is_in(part["transaction_id"], value_set=wanted))
        except UNREADABLE_ERRORS as error:
            logger.warning("half file %s cannot be read (%s)", file.path, type(error).__name__)


def _holds(table: Table, file: DataFile, wanted: pa.Array) -> bool:
    ids = table.read([file], ["transaction_id"])["transaction_id"]
    return bool(pc.any(pc.is_in(ids, value_set=wanted)).as_py())


def _lowest(rows: pa.Table) -> pa.Table:
    """One row of each transaction, the one with the lowest sequence."""
    if rows.num_rows == 0:
        return rows
    places = Groups.of(rows["transaction_id"]).place
    order = np.lexsort((integers(rows["sequence"], 0), places))
    ordered = places[order]
    is_first = np.append(True, ordered[1:] != ordered[:-1])
    return rows.take(pa.array(order[is_first]))
