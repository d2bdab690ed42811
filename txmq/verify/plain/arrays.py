"""Columns as arrays of numbers, and what the checks ask of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
# A number that is not there; the place of what is nowhere.
ABSENT = -1
# A time that nobody told.
UNSAID = int(np.iinfo(np.int64).min)


def integers(column: pa.Array | pa.ChunkedArray) -> Integers:
    """A column as numbers; null is ABSENT."""
    result: Integers = pc.fill_null(column, ABSENT).to_numpy(zero_copy_only=False)
    return result


def microseconds(column: pa.ChunkedArray) -> Any:
    """A time column as numbers; null is UNSAID."""
    return pc.fill_null(column.cast(pa.int64()), UNSAID).to_numpy()


def taken(rows: pa.Table, places: Integers) -> pa.Table:
    """The rows in these places; no copy where they are all rows in their order."""
    is_all = len(places) == rows.num_rows and (np.diff(places, prepend=-1) == 1).all()
    return rows if is_all else rows.take(pa.array(places))


def positions(values: pa.ChunkedArray, known: pa.Array) -> Integers:
    """Where each value stands in `known`, ABSENT where it does not."""
    place = pc.fill_null(pc.index_in(values, value_set=known), ABSENT)
    result: Integers = place.to_numpy().astype(np.int64)
    return result


def ranks(values: pa.ChunkedArray) -> Integers:
    """Numbers in the order of the values, ABSENT for null."""
    known = pc.unique(values.drop_null())
    return positions(values, known.take(pc.array_sort_indices(known)))


def changes(values: Integers) -> Flags:
    """Whether a value differs from the one before it; the first one does."""
    flags = np.ones(len(values), dtype=bool)
    flags[1:] = values[1:] != values[:-1]
    return flags


def repeats(*keys: Integers) -> Flags:
    """Every occurrence of a key of several columns but the first."""
    order = np.lexsort(keys)
    flags = np.ones(len(order), dtype=bool)
    is_first = np.zeros(len(order), dtype=bool)
    for key in keys:
        is_first |= changes(key[order])
    flags[order[is_first]] = False
    return flags
