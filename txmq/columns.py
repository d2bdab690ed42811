"""Grouping rows by a text key with one hash of it, for a group_by of strings is much slower."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Groups:
    """`place` has the number of each row's key in `keys`."""

    keys: pa.Array
    place: Integers

    @classmethod
    def of(cls, column: Any) -> Groups:
        """The groups of a column without nulls."""
        encoded = pc.dictionary_encode(column)
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.combine_chunks()
        return cls(encoded.dictionary, encoded.indices.to_numpy().astype(np.int64))

    def count(self, chosen: npt.NDArray[np.bool_] | None = None) -> Integers:
        """How many rows each group has, or how many of the chosen ones."""
        place = self.place if chosen is None else self.place[chosen]
        return np.bincount(place, minlength=len(self.keys)).astype(np.int64)

    def largest(self, values: Integers, start: int) -> Integers:
        """The largest value of each group, at least `start`."""
        found = np.full(len(self.keys), start, dtype=np.int64)
        np.maximum.at(found, self.place, values)
        return found

    def smallest(self, values: Integers, start: int) -> Integers:
        """The smallest value of each group, at most `start`."""
        found = np.full(len(self.keys), start, dtype=np.int64)
        np.minimum.at(found, self.place, values)
        return found


@dataclass(frozen=True, slots=True)
class Cases:
    """The rows of a table that differ: a rule is asked once a case, not once a row.

    `rows` holds each case once, `place` the number of each row's case in it.
    """

    rows: pa.Table
    place: Integers

    @classmethod
    def of(cls, table: pa.Table) -> Cases:
        """The cases of a table of few different rows; nulls are values of their own."""
        code = np.zeros(table.num_rows, dtype=np.int64)
        for name in table.column_names:
            code = _joined(code, table[name])
        _, first, place = np.unique(code, return_index=True, return_inverse=True)
        return cls(table.take(pa.array(first)), place.astype(np.int64))

    def values(self, found: Iterable[Any], kind: pa.DataType) -> pa.Array:
        """What was found of each case, for each row."""
        return pa.array(found, kind).take(pa.array(self.place))


def _joined(code: Integers, column: Any) -> Integers:
    """Numbers that differ where `code` or the column differs, and stay small."""
    encoded = pc.dictionary_encode(column, null_encoding="encode")
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    if len(encoded.dictionary) <= 1:
        return code
    both = code * len(encoded.dictionary) + encoded.indices.to_numpy().astype(np.int64)
    return np.unique(both, return_inverse=True)[1].astype(np.int64)


def first_of_each(place: Integers, sequence: Integers) -> npt.NDArray[np.bool_]:
    """Whether a row is the first one with its pair of values."""
    order = np.lexsort((sequence, place))
    ordered_place, ordered_sequence = place[order], sequence[order]
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = (ordered_place[1:] != ordered_place[:-1]) | (
        ordered_sequence[1:] != ordered_sequence[:-1]
    )
    answer = np.empty(len(order), dtype=bool)
    answer[order] = is_first
    return answer


def find_pairs(wanted: tuple[Integers, Integers], known: tuple[Integers, Integers]) -> Integers:
    """Row numbers in `known` of the pairs `wanted`, both as two columns; -1 where there is none."""
    count = len(known[0])
    if not count:
        return np.full(len(wanted[0]), -1, dtype=np.int64)
    values, code = np.unique(np.concatenate([known[1], wanted[1]]), return_inverse=True)
    keys = known[0] * len(values) + code[:count]
    wanted_keys = wanted[0] * len(values) + code[count:]
    order = np.argsort(keys, kind="stable")
    at = np.minimum(np.searchsorted(keys[order], wanted_keys), count - 1)
    return np.where(keys[order][at] == wanted_keys, order[at], -1)


def equal_pairs(left: Integers, right: Integers, groups: int) -> tuple[Integers, Integers]:
    """Row numbers of all pairs of equal values, both of them numbers of `groups` groups."""
    order = np.argsort(right, kind="stable")
    counts = np.bincount(right, minlength=groups)
    begin = np.cumsum(counts) - counts
    times = counts[left]
    nth = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    return np.repeat(np.arange(len(left)), times), order[np.repeat(begin[left], times) + nth]


def list_items(column: Any) -> tuple[Integers, Integers]:
    """The row number and the value of each item of a column of lists of whole numbers."""
    lists = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    rows = pc.list_parent_indices(lists).to_numpy().astype(np.int64)
    return rows, integers(pc.list_flatten(lists), -1)


def integers(column: Any, null: int) -> Integers:
    """A column of whole numbers as numpy, with `null` for nulls."""
    filled = pc.fill_null(column, null).to_numpy()
    return np.asarray(filled, dtype=np.int64)


def flags(column: Any) -> npt.NDArray[np.bool_]:
    """A column of booleans without nulls as numpy."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=bool)


def place_in_group(groups: Any) -> Integers:
    """How many rows of the same group stand before each row."""
    own = Groups.of(groups).place
    order = np.argsort(own, kind="stable")
    begins = np.searchsorted(own[order], own[order])
    places = np.empty(len(own), dtype=np.int64)
    places[order] = np.arange(len(own)) - begins
    return places
