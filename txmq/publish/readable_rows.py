"""Finds the rows of transactions in the half log or the schedule, without their bodies.

A file that cannot be read is named and left out; it may hold rows of some of the transactions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.columns import Integers, first_of_each, integers
from txmq.delta.files import DataFile, FileRange, UnreadableFile
from txmq.delta.reading import MOVED_ATTEMPTS
from txmq.delta.storage import Table

# The narrow columns of about this many halves are in memory before the needed rows are picked.
ROWS_READ_AT_ONCE = 200_000
FILE_AND_ROW = (pa.field("file", pa.int32()), pa.field("row", pa.int64()))


@dataclass(frozen=True, slots=True)
class ReadableRows:
    """Messages of some transactions, once each.

    Attributes:
        files: all files that may hold them.
        rows: the messages, each with the number of its file and of its row in it.
        place: for each message the number of its transaction.
        unreadable: the files that could not be read.
    """

    files: Sequence[DataFile]
    rows: pa.Table
    place: Integers
    unreadable: Sequence[UnreadableFile]


def readable_rows(table: Table, ids: pa.Array, columns: Sequence[str]) -> ReadableRows:
    """The messages of these transactions that can be read."""
    for _ in range(MOVED_ATTEMPTS):
        messages = _rows_now(table, table.ranges_holding("transaction_id", ids), ids, columns)
        if not messages.unreadable or not table.has_replaced(messages.unreadable):
            break
    return messages


def _rows_now(
    table: Table, spans: Sequence[FileRange], ids: pa.Array, columns: Sequence[str]
) -> ReadableRows:
    fields = [table.schema.columns.field(name) for name in columns if name != "transaction_id"]
    parts = [pa.schema([*fields, *FILE_AND_ROW]).empty_table()]
    places, unreadable = [np.arange(0, dtype=np.int64)], []
    for group in _file_groups(spans, len(ids)):
        numbered, problems = _numbered_rows(table, spans, group, columns)
        unreadable += problems
        if numbered:
            rows, place = _needed(pa.concat_tables(numbered), ids)
            parts.append(rows)
            places.append(place)
    rows, place = pa.concat_tables(parts), np.concatenate(places)
    first = first_of_each(place, integers(rows["sequence"], -1))
    if not first.all():
        rows, place = rows.filter(pa.array(first)), place[first]
    return ReadableRows([span.file for span in spans], rows, place, unreadable)


def _file_groups(spans: Sequence[FileRange], ids: int) -> Iterator[range]:
    """The numbers of the files to read together: few rows, but one hash of `ids` for many rows."""
    start, rows = 0, 0
    for number, span in enumerate(spans):
        rows += span.file.num_records
        if rows >= max(ROWS_READ_AT_ONCE, ids) or number == len(spans) - 1:
            yield range(start, number + 1)
            start, rows = number + 1, 0


def _numbered_rows(
    table: Table, spans: Sequence[FileRange], group: range, columns: Sequence[str]
) -> tuple[list[pa.Table], list[UnreadableFile]]:
    """The rows of some files with their numbers, and the files that cannot be read."""
    if not table.has_unreadable:
        try:
            rows, counts = table.read_counted([spans[number].file for number in group], columns)
            return [_numbered(rows, group, counts)], []
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001, S110 - read again, file by file
            pass
    numbered, unreadable = [], []
    for number in group:
        span = spans[number]
        rows, problem = table.readable(span.file, partial(table.read, [span.file], columns))
        if rows is None:
            unreadable.append(UnreadableFile(span.file, span.low, span.high, problem))
        else:
            numbered.append(_numbered(rows, [number], [rows.num_rows]))
    return numbered, unreadable


def _numbered(rows: pa.Table, files: Sequence[int], counts: Sequence[int]) -> pa.Table:
    """The rows of some files, each with the number of its file and its own in it."""
    numbers = pa.array(np.repeat(np.array(files, dtype=np.int32), counts))
    firsts = np.cumsum([0, *counts[:-1]])
    row_numbers = pa.array(np.arange(rows.num_rows) - np.repeat(firsts, counts))
    return rows.append_column("file", numbers).append_column("row", row_numbers)


def _needed(rows: pa.Table, ids: pa.Array) -> tuple[pa.Table, Integers]:
    """The rows of these transactions, without the id, and the place of each in `ids`."""
    place = integers(pc.index_in(rows["transaction_id"], value_set=ids), -1)
    rows, is_needed = rows.drop_columns(["transaction_id"]), place >= 0
    if is_needed.all():
        return rows, place
    return rows.filter(pa.array(is_needed)), place[is_needed]
