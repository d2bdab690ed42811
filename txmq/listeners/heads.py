"""Reads the first message of each transaction as its listener sees it. Read-only.

What a round reads is bounded in bytes: two thousand bodies may be eight gigabytes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.files import DataFile
from txmq.delta.table import Table
from txmq.errors import StorageError
from txmq.ground.columns import Integers, integers, python_values, with_python_values
from txmq.listeners.protocol import HEAD_COLUMNS, HalfMessage
from txmq.message.ids import HEAD_SEQUENCE
from txmq.message.names import unwrapped
from txmq.store.half import HalfLog
from txmq.store.schemas import HALF

logger = logging.getLogger(__name__)

BATCH_ROWS = 8_192
# Of the heads of one round, and of the rows that are read at a time to find them.
ROUND_BYTES = 64 * 1024 * 1024
BATCH_BYTES = 16 * 1024 * 1024
UNREADABLE_ERRORS = (OSError, pa.ArrowException, StorageError)
_STORED_AS = {"topic": "real_topic"}
_ADDRESS = ("transaction_id", "sequence")
# A listener sees names as its own code wrote them, without namespaces (R94).
_NAMES = frozenset({"topic", "producer_group"})
_NOWHERE = -1
_NO_SEQUENCE = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads that were read, and the ids that found no room in the round any more."""

    rows: pa.Table
    left: pa.Array


def heads_of(
    half: HalfLog,
    questions: pa.Table,
    columns: Sequence[str] = HEAD_COLUMNS,
    max_bytes: int = ROUND_BYTES,
) -> Heads:
    """Read the heads of the transactions, in the order of `questions`, as many as fit.

    If a head is missing, the message with the lowest sequence stands for it. A transaction that
    cannot be read is logged and left out; the others are returned.

    Args:
        half: holds the heads; its handle must be fresh.
        questions: transaction_id, each once, the most urgent first, and check_times.
        columns: fields of HalfMessage, `transaction_id` first; no other column is read.
        max_bytes: of all heads together, about; one head is always read.

    Reads: half, the files that may hold these ids. Commits: 0.
    """
    ids = questions["transaction_id"].combine_chunks()
    places = _Places(half.table, ids, _stored(columns))
    places.look(_head_files(half.table, ids))
    if len(headless := ids.filter(pa.array(places.file == _NOWHERE))):
        places.look(half.table.files.holding("transaction_id", headless))
    fits = places.fits(max_bytes)
    rows = _rows(half.table, places, fits, columns)
    return Heads(_as_heads(rows, questions, columns), ids.filter(pa.array(~fits)))


def half_messages(heads: pa.Table) -> list[HalfMessage]:
    """Return heads as objects; log a head that cannot be parsed, and leave it out.

    A time of another writer that Python has not becomes the first or the last one that it has.
    """
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
    """Return one head as an object."""
    properties = MappingProxyType(dict(row["properties"] or ()))
    return HalfMessage(**{**row, "body": row["body"] or b"", "properties": properties})


# --- where the heads are --------------------------------------------------------------------------


class _Places:
    """The file and the sequence of the head of each transaction, by narrow columns alone."""

    def __init__(self, table: Table, ids: pa.Array, columns: Sequence[str]) -> None:
        self.ids = ids
        self.files: list[DataFile] = []
        self.row_bytes: list[float] = []
        self.file = np.full(len(ids), _NOWHERE, dtype=np.int64)
        self.sequence = np.full(len(ids), _NO_SEQUENCE, dtype=np.int64)
        self._table, self._columns = table, columns

    def look(self, files: Sequence[DataFile]) -> None:
        """Look for lower sequences in these files; one that cannot be read is logged."""
        for file in files:
            try:
                self._look(file)
            except UNREADABLE_ERRORS as error:
                _log_unreadable(file, error)

    def _look(self, file: DataFile) -> None:
        rows = self._table.rows.read([file], _ADDRESS)
        place = pc.index_in(rows["transaction_id"], value_set=self.ids)
        rows = rows.append_column("place", place).filter(pc.is_valid(place))
        if not rows.num_rows:
            return
        size = self._table.rows.footer_sizes(file, self._columns)
        lowest = np.full(len(self.ids), _NO_SEQUENCE, dtype=np.int64)
        np.minimum.at(lowest, integers(rows["place"], 0), integers(rows["sequence"], 0))
        is_lower = lowest < self.sequence
        self.file[is_lower] = len(self.files)
        self.sequence[is_lower] = lowest[is_lower]
        self.files.append(file)
        self.row_bytes.append(size.bytes / max(size.rows, 1))

    def fits(self, max_bytes: int) -> Any:
        """Tell which transactions have room, by the mean size of a row in their files."""
        row_bytes = np.array([*self.row_bytes, 0.0])[self.file]
        is_first = np.arange(len(row_bytes)) == 0
        return is_first | (np.cumsum(row_bytes) <= max_bytes)


# --- the heads ------------------------------------------------------------------------------------


def _rows(table: Table, places: _Places, fits: Any, columns: Sequence[str]) -> pa.Table:
    """Read the stored rows of the heads that fit, each once."""
    names = list(dict.fromkeys([*_ADDRESS, *_stored(columns)]))
    schema = pa.schema([HALF.columns.field(name) for name in names])
    tables = [schema.empty_table()]
    for number, file in enumerate(places.files):
        of_file = np.flatnonzero(fits & (places.file == number))
        if len(of_file):
            heads = _of_file(table, file, names, places, of_file)
            tables += [rows.cast(schema) for rows in heads]
    rows = pa.concat_tables(tables)
    return rows.take(pa.array(_first_places(rows["transaction_id"])))


def _of_file(
    table: Table, file: DataFile, names: list[str], places: _Places, of_file: Integers
) -> Iterator[pa.Table]:
    """Read the heads in one file, which are those at `of_file` of the questions."""
    ids, sequences = places.ids.take(pa.array(of_file)), pa.array(places.sequence[of_file])
    batch_rows = _batch_rows(places.row_bytes[places.files.index(file)])
    try:
        for batch in table.rows.batches(file, names, batch_rows):
            rows = pa.table(batch).select(names)
            place = pc.index_in(rows["transaction_id"], value_set=ids).combine_chunks()
            is_head = pc.equal(rows["sequence"].cast(pa.int64()), sequences.take(place))
            yield rows.filter(pc.fill_null(is_head, False))  # noqa: FBT003
    except UNREADABLE_ERRORS as error:
        _log_unreadable(file, error)


def _batch_rows(row_bytes: float) -> int:
    return int(max(1, min(BATCH_ROWS, BATCH_BYTES // max(row_bytes, 1.0))))


def _first_places(ids: pa.ChunkedArray) -> Integers:
    """Find the first row of each transaction; a half that was written twice is one head."""
    numbers = pc.index_in(ids, value_set=pc.unique(ids))
    _, first = np.unique(integers(numbers, 0), return_index=True)
    return np.asarray(first, dtype=np.int64)


def _stored(columns: Sequence[str]) -> list[str]:
    return [_STORED_AS.get(name, name) for name in columns if name != "check_times"]


def _head_files(table: Table, transaction_ids: pa.Array) -> list[DataFile]:
    """Find the files that hold heads, not those with only later messages of the transactions."""
    with_heads = {file.path for file in table.files.up_to("sequence", HEAD_SEQUENCE)}
    holding = table.files.holding("transaction_id", transaction_ids)
    return [file for file in holding if file.path in with_heads]


def _log_unreadable(file: DataFile, error: Exception) -> None:
    logger.warning("half file %s cannot be read (%s)", file.path, type(error).__name__)


# --- as a listener sees them ----------------------------------------------------------------------


def _as_heads(rows: pa.Table, questions: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Name stored rows as HalfMessage, with check_times, in the order of `questions`.

    Listeners take the values out themselves, so Python has each of them.
    """
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
    return with_python_values(pa.table({name: heads[name] for name in columns}))


def _unwrapped(names: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return names without their namespaces; unwrap each distinct name once."""
    stored = pc.unique(names).drop_null()
    unwrapped_names = pa.array(map(unwrapped, python_values(stored)), pa.string())
    return unwrapped_names.take(pc.index_in(names, value_set=stored))
