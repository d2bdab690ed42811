"""Columns as numpy arrays: rows by key, distinct rows, pairs of values.

Texts are hashed once into whole numbers, since `group_by` on strings is much slower.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_NO_LIMITS: Mapping[str, int] = MappingProxyType({})
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_FIRST_TIME = datetime.min.replace(tzinfo=UTC)
_LAST_TIME = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Groups:
    """The rows of a column by their value.

    Attributes:
        keys: each value once.
        place: for each row the number of its value in `keys`.
    """

    keys: pa.Array
    place: Integers

    @classmethod
    def of(cls, column: Any) -> Groups:
        """Return the groups of a column without nulls."""
        encoded = whole(pc.dictionary_encode(column))
        return cls(encoded.dictionary, encoded.indices.to_numpy().astype(np.int64))

    def count(self, chosen: Flags | None = None) -> Integers:
        """Count the rows of each group, or those of them that are chosen."""
        place = self.place if chosen is None else self.place[chosen]
        return np.bincount(place, minlength=len(self.keys)).astype(np.int64)

    def total(self, values: Integers) -> Integers:
        """Add up the values of each group."""
        return np.bincount(self.place, values, len(self.keys)).astype(np.int64)

    def largest(self, values: Integers, start: int) -> Integers:
        """Return the largest value of each group, at least `start`."""
        largest = np.full(len(self.keys), start, dtype=np.int64)
        np.maximum.at(largest, self.place, values)
        return largest

    def smallest(self, values: Integers, start: int) -> Integers:
        """Return the smallest value of each group, at most `start`."""
        smallest = np.full(len(self.keys), start, dtype=np.int64)
        np.minimum.at(smallest, self.place, values)
        return smallest


@dataclass(frozen=True, slots=True)
class DistinctRows:
    """The distinct rows of a table, so that a rule is called once for each of them.

    Attributes:
        rows: each distinct row once.
        place: for each row of the table the number of its distinct row in `rows`.
    """

    rows: pa.Table
    place: Integers

    @classmethod
    def of(cls, table: pa.Table) -> DistinctRows:
        """Find the distinct rows of a table that has few; null equals null."""
        code = np.zeros(table.num_rows, dtype=np.int64)
        for name in table.column_names:
            code = _joined(code, table[name])
        _, first, place = np.unique(code, return_index=True, return_inverse=True)
        return cls(table.take(pa.array(first)), place.astype(np.int64))

    def values(self, of_rows: Iterable[Any], kind: pa.DataType) -> pa.Array:
        """Return the value of each row of the table, from one value for each of `rows`."""
        return pa.array(of_rows, kind).take(pa.array(self.place))


def _joined(code: Integers, column: Any) -> Integers:
    """Return small numbers that differ where `code` or the column differs."""
    encoded = whole(pc.dictionary_encode(column, null_encoding="encode"))
    if len(encoded.dictionary) <= 1:
        return code
    both = code * len(encoded.dictionary) + encoded.indices.to_numpy().astype(np.int64)
    return np.unique(both, return_inverse=True)[1].astype(np.int64)


def first_of_each(place: Integers, sequence: Integers) -> Flags:
    """Tell for each row whether it is the first one with its pair of values."""
    order = np.lexsort((sequence, place))
    ordered_place, ordered_sequence = place[order], sequence[order]
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (ordered_place[1:] != ordered_place[:-1]) | (
        ordered_sequence[1:] != ordered_sequence[:-1]
    )
    flags_of_rows = np.empty(len(order), dtype=bool)
    flags_of_rows[order] = is_first
    return flags_of_rows


def in_order(rows: pa.Table, first: str, second: str) -> pa.Table:
    """Order rows by two columns of whole numbers; most are in order, and a sort would copy them."""
    major, minor = integers(rows[first], 0), integers(rows[second], 0)
    if are_in_order(major, minor):
        return rows
    return rows.take(pa.array(np.lexsort((minor, major))))


def are_in_order(major: Integers, minor: Integers) -> bool:
    """Tell whether pairs of whole numbers ascend."""
    is_up, is_same = major[1:] > major[:-1], major[1:] == major[:-1]
    return bool(np.all(is_up | (is_same & (minor[1:] >= minor[:-1]))))


def find_pairs(pairs: tuple[Integers, Integers], table: tuple[Integers, Integers]) -> Integers:
    """Find the row number in `table` of each of `pairs`, both two columns; -1 for none."""
    count = len(table[0])
    if not count:
        return np.full(len(pairs[0]), -1, dtype=np.int64)
    values, code = np.unique(np.concatenate([table[1], pairs[1]]), return_inverse=True)
    table_keys = table[0] * len(values) + code[:count]
    keys = pairs[0] * len(values) + code[count:]
    order = np.argsort(table_keys, kind="stable")
    at = np.minimum(np.searchsorted(table_keys[order], keys), count - 1)
    return np.where(table_keys[order][at] == keys, order[at], -1)


def equal_pairs(left: Integers, right: Integers, groups: int) -> tuple[Integers, Integers]:
    """Find the row numbers in both columns of all equal values, which are numbers of groups."""
    row_of = np.full(groups, -1, dtype=np.int64)
    row_of[right] = np.arange(len(right))
    if np.array_equal(row_of[right], np.arange(len(right))):
        # No value is twice in `right`, which is the common case.
        matches = row_of[left]
        rows = np.flatnonzero(matches >= 0)
        return rows, matches if len(rows) == len(matches) else matches[rows]
    order = np.argsort(right, kind="stable")
    counts = np.bincount(right, minlength=groups)
    begin = np.cumsum(counts) - counts
    times = counts[left]
    nth = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    return np.repeat(np.arange(len(left)), times), order[np.repeat(begin[left], times) + nth]


def list_items(column: Any) -> tuple[Integers, Integers]:
    """Return the row number and the value of each item of a column of lists of whole numbers."""
    lists = whole(column)
    rows = pc.list_parent_indices(lists).to_numpy().astype(np.int64)
    return rows, integers(pc.list_flatten(lists), -1)


def integers(column: Any, null: int) -> Integers:
    """Return a column of whole numbers as numpy, with `null` for nulls."""
    filled = pc.fill_null(column, null) if column.null_count else column
    return np.asarray(filled.to_numpy(), dtype=np.int64)


def times_ms(column: Any) -> Integers:
    """Return times in milliseconds since 1970-01-01 UTC; 0 for null."""
    return integers(pc.cast(column, pa.int64()), 0) // 1000


def flags(column: Any) -> Flags:
    """Return a column of booleans without nulls as numpy."""
    return np.asarray(whole(column).to_numpy(zero_copy_only=False), dtype=bool)


def whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one array."""
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def only(rows: pa.Table, chosen: Flags) -> pa.Table:
    """Return the chosen rows; a filter would copy them if all are chosen."""
    return rows if chosen.all() else rows.filter(pa.array(chosen))


def place_in_group(groups: Any) -> Integers:
    """Count for each row the rows of its group that stand before it."""
    group = Groups.of(groups).place
    order = np.argsort(group, kind="stable")
    begins = np.searchsorted(group[order], group[order])
    places = np.empty(len(group), dtype=np.int64)
    places[order] = np.arange(len(group)) - begins
    return places


# --- rows that other programs may have written ----------------------------------------------------


def sound_rows(
    rows: pa.Table, required: Collection[str], limits: Mapping[str, int] = _NO_LIMITS
) -> pa.Table:
    """Return the rows that txmq may have written; other programs append any.

    Of the others a required value is null, a number is below 0 or at its limit, a text is not
    UTF-8, Python has no such time, or a list has a null in it. Behind this door values can be taken
    out of the columns, and added up.

    Args:
        rows: any columns; those that are missing are not asked for.
        required: the columns that have no null.
        limits: what whole numbers are below, by column.
    """
    is_sound = np.ones(rows.num_rows, dtype=bool)
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        if name in required and column.null_count:
            is_sound &= flags(pc.is_valid(column))
        if name in limits:
            numbers = integers(column, 0)
            is_sound &= (numbers >= 0) & (numbers < limits[name])
        elif not _are_python_values(column) or _has_lists(column):
            is_sound &= _are_sound(column)
    return only(rows, is_sound)


def _has_lists(column: pa.ChunkedArray) -> bool:
    return bool(pa.types.is_list(column.type)) and column.null_count < len(column)


def _are_sound(column: pa.ChunkedArray) -> Flags:
    """Tell of each value whether Python has it; slowly, but hardly ever are there such columns."""
    if pa.types.is_list(column.type):
        lists = whole(column)
        gaps = pc.list_parent_indices(lists).filter(pc.is_null(pc.list_flatten(lists)))
        without_gaps = np.ones(len(lists), dtype=bool)
        without_gaps[gaps.to_numpy()] = False
        return without_gaps
    return np.fromiter(map(_is_python_value, column), dtype=bool, count=len(column))


def _is_python_value(scalar: Any) -> bool:
    try:
        scalar.as_py()
    except (ValueError, OverflowError):
        return False
    return True


def python_values(column: Any) -> list[Any]:
    """Return the values of a column, also if one of them is no Python value.

    Text that is not UTF-8 has U+FFFD in the place of what cannot be read; a time that Python does
    not know is the first or the last one that it knows. Else one row would hide all others.
    """
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        return [_python_value(scalar) for scalar in column]
    return values


def python_rows(rows: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a table as dicts; values as `python_values`."""
    columns = [python_values(column) for column in rows.columns]
    return [dict(zip(rows.column_names, row, strict=True)) for row in zip(*columns, strict=True)]


def with_python_values(rows: pa.Table) -> pa.Table:
    """Return the rows with values as `python_values`, for those who take them out themselves."""
    columns = [
        column if _are_python_values(column) else pa.array(python_values(column), column.type)
        for column in rows.columns
    ]
    return pa.table(columns, schema=rows.schema)


def _are_python_values(column: pa.ChunkedArray) -> bool:
    """Tell whether `to_pylist` can read all values of a column; bodies are not copied for it."""
    try:
        column.validate(full=True)
        if pa.types.is_temporal(column.type):
            pc.min_max(column).as_py()
    except (ValueError, OverflowError):
        return False
    return True


def _python_value(scalar: Any) -> Any:
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.MapScalar):
        return list(zip(*map(python_values, scalar.values.flatten()), strict=True))
    if isinstance(scalar, pa.StringScalar):
        return scalar.as_buffer().to_pybytes().decode(errors="replace")
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        bounds = (
            (date.min, date.max) if pa.types.is_date(scalar.type) else (_FIRST_TIME, _LAST_TIME)
        )
        return bounds[scalar.value > 0]
