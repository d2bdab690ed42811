"""The rows of half and of the schedule that hold the messages of facts, the first ones first.

Only narrow columns are read, some files at a time. Of many rows those that may come first are read
first, until there are enough.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.failures import problem_of, read_again
from txmq.delta.file_rows import PIECE_ROWS
from txmq.delta.files import DataFile, FilePart, UnreadableFile
from txmq.delta.schemas import TableSchema
from txmq.delta.table import Table
from txmq.errors import StorageError
from txmq.ground.columns import (
    Flags,
    Groups,
    Integers,
    first_of_each,
    integers,
    only,
)

FILE_AND_ROW = (pa.field("file", pa.int32()), pa.field("row", pa.int64()))
FIRST, LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Place(NamedTuple):
    """A place in the order of messages: the number of the fact, and the sequence in it."""

    fact: int
    sequence: int = FIRST

    def next(self) -> Place:
        """Return the place behind this one."""
        if self.sequence == LAST:
            return Place(self.fact + 1)
        return Place(self.fact, self.sequence + 1)


# --- which messages ----------------------------------------------------------------------------


class Selection:
    """The messages between two places; when there are enough, the end comes nearer."""

    def __init__(self, begin: Place, stop: Place, rows: int | None, schema: pa.Schema) -> None:
        """Select nothing yet; keep `rows`, up to half as many more, or all, of this schema."""
        self.begin, self._stop, self._rows, self._schema = begin, stop, rows, schema
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what was selected."""
        self._end, self._has_more, self._count = self._stop, False, 0
        self._tables = [self._schema.empty_table()]
        self._facts = [np.arange(0, dtype=np.int64)]

    @property
    def end(self) -> Place:
        """The place before which all is selected."""
        return self._end if self._has_more else self._stop

    @property
    def rows_at_once(self) -> int:
        """How many rows are read before it is seen whether they are enough."""
        return PIECE_ROWS if self._rows is None else self._rows

    def may_take(self, span: Span) -> bool:
        """Tell whether a span may hold messages between the places."""
        if span.low >= self._end:
            self._has_more |= span.low < self._stop
            return False
        return span.high >= self.begin

    def are_near(self, facts: Integers) -> Flags:
        """Tell of each fact whether messages of it may be between the places."""
        is_near: Flags = (facts >= self.begin.fact) & (facts <= self._end.fact)
        self._has_more |= bool(((facts > self._end.fact) & (facts <= self._stop.fact)).any())
        return is_near

    def add(self, rows: pa.Table, row: Integers, fact: Integers) -> None:
        """Select of these rows, each shown by a fact, those that are between the places."""
        sequence = integers(rows["sequence"], -1)[row]
        is_before_end = _is_before(fact, sequence, self._end)
        is_between = is_before_end & ~_is_before(fact, sequence, self.begin)
        self._has_more |= bool((_is_before(fact, sequence, self._stop) & ~is_before_end).any())
        if not is_between.all():
            row, fact = row[is_between], fact[is_between]
        if not np.array_equal(row, np.arange(rows.num_rows)):
            rows = rows.take(pa.array(row))
        self._tables.append(rows)
        self._facts.append(fact)
        self._count += len(fact)
        if self._rows is not None and self._count >= self._rows:
            self._cut(self._rows)

    def selected(self) -> tuple[pa.Table, Integers]:
        """Return the messages, once for each fact that shows them, and these facts."""
        rows, fact = pa.concat_tables(self._tables), np.concatenate(self._facts)
        is_first = first_of_each(fact, integers(rows["sequence"], -1))
        return only(rows, is_first), fact[is_first]

    def _cut(self, count: int) -> None:
        """End behind the messages that there are, or behind the first ones of far too many."""
        rows, fact = self.selected()
        sequence = integers(rows["sequence"], -1)
        order = np.lexsort((sequence, fact))
        last = Place(int(fact[order[-1]]), int(sequence[order[-1]]))
        self._end = min(self._end, last.next())
        if 2 * len(fact) > 3 * count:
            self._end = Place(int(fact[order[count]]), int(sequence[order[count]]))
            self._has_more = True
            is_before = _is_before(fact, sequence, self._end)
            rows, fact = rows.filter(pa.array(is_before)), fact[is_before]
        self._tables, self._facts, self._count = [rows.combine_chunks()], [fact], len(fact)


def _is_before(fact: Integers, sequence: Integers, place: Place) -> Flags:
    is_before: Flags = (fact < place.fact) | ((fact == place.fact) & (sequence < place.sequence))
    return is_before


class Reach(NamedTuple):
    """The first and the last place of a message in a file; without one the last is the first."""

    low: Place
    high: Place


_NOWHERE = Reach(Place(LAST), Place(-1))
_NO_REACHES: Mapping[str, Reach] = MappingProxyType({})


def reaches_of(
    rows: FoundRows, files: Sequence[DataFile], by_id: Groups, numbers: Integers
) -> dict[str, Reach]:
    """Tell of the whole files that were read which facts they hold halves of."""
    reaches = {files[number].path: _NOWHERE for number in rows.files}
    firsts, lasts = by_id.smallest(numbers, LAST), by_id.largest(numbers, -1)
    by_file = Groups.of(rows.rows["file"])
    low = by_file.smallest(firsts[rows.place], LAST).tolist()
    high = by_file.largest(lasts[rows.place], -1).tolist()
    for place, number in enumerate(by_file.keys.to_pylist()):
        if number in rows.files:
            reaches[files[number].path] = Reach(Place(low[place]), Place(high[place], LAST))
    return reaches


# --- rows of files --------------------------------------------------------------------------------


class Span(NamedTuple):
    """A file, or a row group of a large one, and what it may hold.

    Attributes:
        number: of the file among those of the plan.
        rows: how many it has, about; 0 if nobody knows.
        whole: its file.
        low, high: the first and the last place of a message in it.
    """

    number: int
    part: FilePart
    rows: int
    whole: FilePart
    low: Place = Place(0)
    high: Place = Place(LAST)

    @property
    def is_large(self) -> bool:
        """Whether it is read by itself: a row group, or a file of many or of unknown rows."""
        return self.part.row_group is not None or not 0 < self.rows <= PIECE_ROWS

    def unreadable(self, problem: str) -> UnreadableFile:
        """Return its file as one that cannot be read: nobody knows which row groups can be."""
        low, high = (each.get("transaction_id") for each in (self.whole.low, self.whole.high))
        return UnreadableFile(self.part.file, low, high, problem)


class FoundRows(NamedTuple):
    """Rows of some transactions, with the numbers of their files and in them; without their id.

    Attributes:
        place: of each row the number of its transaction.
        files: the numbers of the files that were read as a whole.
    """

    rows: pa.Table
    place: Integers
    files: Sequence[int] = ()


def row_schema(schema: TableSchema, columns: Sequence[str]) -> pa.Schema:
    """Return the columns of rows that are read: with file and row, without the transaction."""
    fields = [schema.columns.field(name) for name in columns if name != "transaction_id"]
    return pa.schema([*fields, *FILE_AND_ROW])


def spans_of(
    table: Table, by_id: Groups, numbers: Integers, reaches: Mapping[str, Reach] = _NO_REACHES
) -> tuple[Sequence[DataFile], Sequence[Span]]:
    """Find the files that may hold these transactions.

    Many rows come in the order of the places that they may have, and of large files by row group.

    Args:
        table: half or the schedule.
        by_id: the transactions of facts.
        numbers: of these facts.
        reaches: what is known of files by their rows.
    """
    columns = ("transaction_id", "sequence")
    parts = table.files.parts_holding("transaction_id", by_id.keys, columns)
    files = [part.file for part in parts]
    spans = [Span(number, part, part.file.num_records, part) for number, part in enumerate(parts)]
    if not are_many(files):
        return files, spans
    spans = [small for span in spans for small in _row_groups(table, span, columns)]
    return files, _in_order_of_places(spans, by_id, numbers, reaches)


def are_many(files: Sequence[DataFile]) -> bool:
    """Tell whether files have so many rows that it pays to read some of them in order."""
    return sum(file.num_records for file in files) > PIECE_ROWS


def _row_groups(table: Table, span: Span, columns: Sequence[str]) -> Sequence[Span]:
    """Split a large file into its row groups; one that cannot be read stays whole."""
    if span.rows <= PIECE_ROWS:
        return [span]
    try:
        groups = table.rows.row_groups(span.part, columns)
    except StorageError:
        return [span]
    return [Span(span.number, group, len(group.rows), span.part) for group in groups or ()] or [
        span
    ]


def _in_order_of_places(
    spans: Sequence[Span], by_id: Groups, numbers: Integers, reaches: Mapping[str, Reach]
) -> Sequence[Span]:
    """Order spans by the first place that each may hold; leave out those that hold none."""
    order = pc.array_sort_indices(by_id.keys).to_numpy()
    names = by_id.keys.take(pa.array(order)).to_pylist()
    firsts, lasts = by_id.smallest(numbers, LAST)[order], by_id.largest(numbers, -1)[order]
    placed: list[Span] = []
    for span in spans:
        low, high = span.part.low, span.part.high
        first = bisect_left(names, low["transaction_id"]) if _is_text(low) else 0
        last = bisect_right(names, high["transaction_id"]) if _is_text(high) else len(names)
        if first < last:
            has_nulls = "sequence" not in span.part.without_nulls
            begin = Place(int(firsts[first:last].min()), _sequence(low, FIRST))
            end = Place(int(lasts[first:last].max()), _sequence(high, LAST))
            # A null stands before all numbers, and ranges do not tell of it.
            begin = Place(begin.fact) if has_nulls else begin
            reach = reaches.get(span.part.file.path, Reach(begin, end))
            begin, end = max(begin, reach.low), min(end, reach.high)
            placed.append(span._replace(low=begin, high=end))
    return sorted(placed, key=lambda span: span.low)


def _is_text(bound: Mapping[str, Any]) -> bool:
    return isinstance(bound.get("transaction_id"), str)


def _sequence(bound: Mapping[str, Any], unknown: int) -> int:
    value = bound.get("sequence")
    return value if isinstance(value, int) else unknown


def rows_of(
    table: Table,
    spans: Sequence[Span],
    ids: pa.Array,
    columns: Sequence[str],
    selection: Selection | None = None,
) -> Iterator[FoundRows | UnreadableFile]:
    """Yield the rows of these transactions, some files at a time, and the unreadable files.

    What is read together fits into memory, and is enough for one hash of `ids`. With a `selection`
    a span is left out that may hold nothing for it when its turn comes.
    """
    together, count = list[Span](), 0
    enough = PIECE_ROWS if selection is None else selection.rows_at_once
    for span in spans:
        if selection is not None and not selection.may_take(span):
            continue
        together.append(span)
        count += span.rows
        if count >= max(enough, len(ids)) or not span.rows:
            yield from _read(table, together, ids, columns)
            together, count = [], 0
    if together:
        yield from _read(table, together, ids, columns)


def _read(
    table: Table, spans: Sequence[Span], ids: pa.Array, columns: Sequence[str]
) -> Iterator[FoundRows | UnreadableFile]:
    """Read small files at once, and large ones each by itself."""
    small = [span for span in spans if not span.is_large]
    if small:
        yield from _together(table, small, ids, columns)
    large = [span for span in spans if span.is_large]
    for _, parts in groupby(large, lambda span: span.number):
        yield from _pieces_of(table, list(parts), ids, columns)


def _together(
    table: Table, spans: Sequence[Span], ids: pa.Array, columns: Sequence[str]
) -> Iterator[FoundRows | UnreadableFile]:
    """Read some files at once, or one by one where one of them cannot be read."""
    if not table.search.has_unreadable:
        try:
            rows, counts = table.rows.read_counted([span.part.file for span in spans], columns)
            numbers = [span.number for span in spans]
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001, S110 - read again, file by file
            pass
        else:
            yield _found_in_files(rows, numbers, counts, ids)
            return
    for span in spans:
        file = span.part.file
        rows, problem = table.search.readable(file, partial(table.rows.read, [file], columns))
        if rows is None:
            yield span.unreadable(problem)
        else:
            yield _found_in_files(rows, [span.number], [rows.num_rows], ids)


def _pieces_of(
    table: Table, spans: Sequence[Span], ids: pa.Array, columns: Sequence[str]
) -> Iterator[FoundRows | UnreadableFile]:
    """Read a large file, or some of its row groups, piece by piece."""
    number, parts = spans[0].number, sorted((span.part for span in spans), key=_row_group)
    # A file without row groups here has as many rows as it has.
    numbers = np.concatenate([np.arange(part.rows.start, part.rows.stop) for part in parts])
    first = 0
    try:
        for rows in _read_again(table, parts, columns):
            places = np.arange(first, first + rows.num_rows)
            first += rows.num_rows
            row_numbers = numbers[places] if len(numbers) else places
            yield _found(rows, np.full(rows.num_rows, number, np.int32), row_numbers, ids)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever a damaged file leads to
        problem = f"{parts[0].file.path}: {problem_of(error.__cause__ or error)}"
        yield spans[0].unreadable(problem)


def _read_again(
    table: Table, parts: Sequence[FilePart], columns: Sequence[str]
) -> Iterable[pa.Table]:
    """Read parts of a file; few rows once more after an error that may pass."""
    if 0 < sum(len(part.rows) for part in parts) <= PIECE_ROWS:
        name = table.schema.name
        return read_again(name, lambda: list(table.rows.pieces_of_parts(parts, columns)))
    return table.rows.pieces_of_parts(parts, columns)


def _row_group(part: FilePart) -> int:
    return part.row_group or 0


def _found_in_files(
    rows: pa.Table, files: Sequence[int], counts: Sequence[int], ids: pa.Array
) -> FoundRows:
    numbers = np.repeat(np.array(files, dtype=np.int32), counts)
    firsts = np.repeat(np.cumsum([0, *counts[:-1]]), counts)
    return _found(rows, numbers, np.arange(rows.num_rows) - firsts, ids)._replace(files=files)


def _found(
    rows: pa.Table, numbers: np.ndarray[Any, Any], row_numbers: Integers, ids: pa.Array
) -> FoundRows:
    """Pick the rows of these transactions, and number them: their files, and themselves in them."""
    place = integers(pc.index_in(rows["transaction_id"], value_set=ids), -1)
    rows = rows.drop_columns(["transaction_id"])
    rows = rows.append_column("file", pa.array(numbers)).append_column("row", pa.array(row_numbers))
    is_needed = place >= 0
    return FoundRows(only(rows, is_needed), place[is_needed])
