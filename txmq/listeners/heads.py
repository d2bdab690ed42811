"""Reads the first message of each transaction as its listener sees it. Read-only."""

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
_ADDRESS = ("transaction_id", "sequence")
# A listener sees names as its own code wrote them, without namespaces (R94).
_NAMES = frozenset({"topic", "producer_group"})


def heads_of(half: HalfLog, questions: pa.Table, columns: Sequence[str] = HEAD_COLUMNS) -> pa.Table:
    """The heads of the transactions, in the order of `questions`.

    If a head is missing, the message with the lowest sequence stands for it. A transaction that
    cannot be read is logged and left out; the others are returned.

    Args:
        half: holds the heads; its handle must be fresh.
        questions: transaction_id, each once, and check_times.
        columns: fields of HalfMessage, `transaction_id` first; no other column is read.

    Reads: half, the files that may hold these ids. Commits: 0.
    """
    ids = questions["transaction_id"].combine_chunks()
    rows = _first_rows(half.table, _head_files(half.table, ids), ids, columns)
    headless = ids.filter(pc.invert(pc.is_in(ids, value_set=rows["transaction_id"])))
    if len(headless):
        files = half.table.files_holding("transaction_id", headless)
        rows = pa.concat_tables([rows, _first_rows(half.table, files, headless, columns)])
    return _as_heads(rows, questions, columns)


def half_messages(heads: pa.Table) -> list[HalfMessage]:
    """Heads with all columns as objects; a head that cannot be parsed is logged and left out."""
    messages = []
    for row in heads.to_pylist():
        try:
            messages.append(half_message(row))
        except (TypeError, ValueError, KeyError) as error:
            transaction_id, problem = row["transaction_id"], type(error).__name__
            logger.warning(
                "transaction %s: its half cannot be parsed (%s)", transaction_id, problem
            )
    return messages


def half_message(row: dict[str, Any]) -> HalfMessage:
    """One head as an object."""
    properties = MappingProxyType(dict(row["properties"] or ()))
    return HalfMessage(**{**row, "body": row["body"] or b"", "properties": properties})


def _as_heads(rows: pa.Table, questions: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Stored rows under the names of HalfMessage, with check_times, in the order of `questions`."""
    ids = questions["transaction_id"].combine_chunks()
    question = pc.index_in(rows["transaction_id"], value_set=ids)
    order = pc.sort_indices(question)
    rows, question = rows.take(order), question.take(order)
    heads = {
        "check_times": questions["check_times"].take(question),
        **{name: rows[_STORED_AS.get(name, name)] for name in columns if name != "check_times"},
    }
    for name in _NAMES.intersection(heads):
        heads[name] = _unwrapped(heads[name])
    if "message_count" in heads:
        heads["message_count"] = pc.fill_null(heads["message_count"], 0)
    return pa.table({name: heads[name] for name in columns})


def _unwrapped(names: pa.ChunkedArray) -> pa.ChunkedArray:
    """Names without their namespaces; each distinct name is unwrapped once."""
    stored = pc.unique(names).drop_null()
    unwrapped_names = pa.array([unwrapped(name) for name in stored.to_pylist()], pa.string())
    return unwrapped_names.take(pc.index_in(names, value_set=stored))


def _head_files(table: Table, transaction_ids: pa.Array) -> list[DataFile]:
    """Files that hold heads; files with only later messages of the transactions are left out."""
    with_heads = {file.path for file in table.files_up_to("sequence", HEAD_SEQUENCE)}
    holding = table.files_holding("transaction_id", transaction_ids)
    return [file for file in holding if file.path in with_heads]


def _first_rows(
    table: Table, files: Sequence[DataFile], ids: pa.Array, columns: Sequence[str]
) -> pa.Table:
    """The row with the lowest sequence of each transaction."""
    stored = [_STORED_AS.get(name, name) for name in columns if name != "check_times"]
    names = list(dict.fromkeys([*_ADDRESS, *stored]))
    empty = pa.schema([HALF.columns.field(name) for name in names]).empty_table()
    batches = _batches(table, files, ids, names)
    rows = [_lowest(batch.cast(empty.schema)) for batch in batches]
    return _lowest(pa.concat_tables([empty, *rows]))


def _batches(
    table: Table, files: Sequence[DataFile], ids: pa.Array, columns: Sequence[str]
) -> Iterator[pa.Table]:
    """Rows of the transactions, BATCH_ROWS of a file at a time: most rows may be of others."""
    for file in files:
        try:
            if _holds(table, file, ids):
                for batch in table.batches(file, columns, BATCH_ROWS):
                    rows = pa.table(batch).select(list(columns))
                    yield rows.filter(pc.is_in(rows["transaction_id"], value_set=ids))
        except UNREADABLE_ERRORS as error:
            logger.warning("half file %s cannot be read (%s)", file.path, type(error).__name__)


def _holds(table: Table, file: DataFile, ids: pa.Array) -> bool:
    stored = table.read([file], ["transaction_id"])["transaction_id"]
    return bool(pc.any(pc.is_in(stored, value_set=ids)).as_py())


def _lowest(rows: pa.Table) -> pa.Table:
    """One row of each transaction, the row with the lowest sequence."""
    if rows.num_rows == 0:
        return rows
    groups = Groups.of(rows["transaction_id"]).place
    order = np.lexsort((integers(rows["sequence"], 0), groups))
    ordered = groups[order]
    is_first = np.append(True, ordered[1:] != ordered[:-1])
    return rows.take(pa.array(order[is_first]))
