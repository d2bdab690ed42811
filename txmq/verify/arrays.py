"""Columns as arrays of numbers, what the checks ask of them, and digests of contents."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
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
CONTENT = ("body", "tags", "keys", "sharding_key", "properties")
DIGEST = ("digest_high", "digest_low")
_ABSENT = "-"
# Of what an operator erased; no text has this one.
ERASED, ERASED_DIGEST = "__txmq_erased", 0
Digests = npt.NDArray[np.int64]


def integers(column: pa.Array | pa.ChunkedArray) -> Integers:
    """Return a column as numbers; null is ABSENT."""
    result: Integers = pc.fill_null(column, ABSENT).to_numpy(zero_copy_only=False)
    return result


def microseconds(column: pa.ChunkedArray) -> Any:
    """Return a time column as numbers; null is UNSAID."""
    return pc.fill_null(column.cast(pa.int64()), UNSAID).to_numpy()


def are_texts(column: pa.ChunkedArray) -> pa.Array:
    """Flag the texts that are UTF-8, and nulls; another program may write any bytes."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return pa.array([_is_text(value) for value in column.cast(pa.binary()).to_pylist()])
    return pa.repeat(pa.scalar(value=True), len(column))


def as_texts(column: pa.ChunkedArray | pa.Array) -> list[str]:
    """Return values to be shown; what is not UTF-8 in a text is U+FFFD."""
    is_text = pa.types.is_string(column.type)
    values = (column.cast(pa.binary()) if is_text else column).to_pylist()
    return [
        each.decode(errors="replace") if isinstance(each, bytes) else str(each) for each in values
    ]


def _is_text(value: bytes | None) -> bool:
    try:
        return (value or b"").decode() is not None
    except UnicodeDecodeError:
        return False


def taken(rows: pa.Table, places: Integers) -> pa.Table:
    """Take the rows in these places; no copy if they are all rows in their order."""
    is_all = len(places) == rows.num_rows and (np.diff(places, prepend=-1) == 1).all()
    return rows if is_all else rows.take(pa.array(places))


def positions(values: pa.ChunkedArray, known: pa.Array) -> Integers:
    """Find the place of each value in `known`; ABSENT if it is not there."""
    place = pc.fill_null(pc.index_in(values, value_set=known), ABSENT)
    result: Integers = place.to_numpy().astype(np.int64)
    return result


def ranks(values: pa.ChunkedArray) -> Integers:
    """Return numbers in the order of the values; ABSENT for null."""
    known = pc.unique(values.drop_null())
    return positions(values, known.take(pc.array_sort_indices(known)))


def changes(values: Integers) -> Flags:
    """Flag values that differ from the one before; the first one does."""
    flags = np.ones(len(values), dtype=bool)
    flags[1:] = values[1:] != values[:-1]
    return flags


def repeats(*keys: Integers) -> Flags:
    """Flag every occurrence of a key of several columns but the first."""
    order = np.lexsort(keys)
    flags = np.ones(len(order), dtype=bool)
    is_first = np.zeros(len(order), dtype=bool)
    for key in keys:
        is_first |= changes(key[order])
    flags[order[is_first]] = False
    return flags


# --- digests -----------------------------------------------------------------------------------


def content_digests(batch: pa.RecordBatch) -> Digests:
    """Return 128 bits of SHA-256 over what was sent; null, empty and absent differ."""
    texts = [_marked(batch.column(name)) for name in ("tags", "keys", "sharding_key")]
    properties = _marked(_properties_text(batch.column("properties")))
    front = pc.binary_join_element_wise(*texts, properties, "").cast(pa.large_binary())
    body = batch.column("body").cast(pa.large_binary())
    marker = pc.if_else(pc.is_null(body), b"n", b"b").cast(pa.large_binary())
    joined = pc.binary_join_element_wise(
        front, marker, pc.fill_null(body, b""), pa.scalar(b"", pa.large_binary())
    )
    digests = b"".join(hashlib.sha256(row).digest()[:16] for row in _slices(joined))
    numbers = np.frombuffer(digests, dtype=np.int64).reshape(-1, 2)
    return np.where(_are_erased(batch)[:, None], ERASED_DIGEST, numbers)


def _marked(text: pa.Array) -> pa.Array:
    """Put its length in front of each value, so that two neighbours cannot run into each other."""
    if text.null_count == len(text):
        return pa.repeat(pa.scalar(_ABSENT, pa.string()), len(text))
    size = pc.binary_length(text).cast(pa.string())
    whole = pc.binary_join_element_wise(size, pc.fill_null(text, ""), ":")
    return pc.if_else(pc.is_null(text), _ABSENT, whole)


def _properties_text(properties: pa.MapArray) -> pa.Array:
    """Write each map as text, its pairs in the order of their names; null stays null."""
    offsets = properties.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    names = properties.keys.slice(first, last - first)
    values = properties.items.slice(first, last - first)
    pairs = pc.binary_join_element_wise(_marked(names), _marked(values), "")
    sizes = np.diff(offsets)
    if sizes.max(initial=0) > 1:
        owners = pa.array(np.repeat(np.arange(len(sizes)), sizes))
        by_name = [("owner", "ascending"), ("pair", "ascending")]
        pairs = pairs.take(
            pc.sort_indices(pa.table([owners, pairs], ["owner", "pair"]), sort_keys=by_name)
        )
    texts = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets - first), pairs), "")
    return pc.if_else(properties.is_null(), pa.scalar(None, pa.string()), texts)


def _slices(rows: pa.Array) -> Iterator[memoryview]:
    _, offsets, data = rows.buffers()
    begin = rows.offset
    ends = np.frombuffer(offsets, dtype=np.int64)[begin : begin + len(rows) + 1].tolist()
    view = memoryview(data) if data is not None else memoryview(b"")
    for start, end in itertools.pairwise(ends):
        yield view[start:end]


def _are_erased(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Flag rows that say that they were erased and hold nothing of what was sent."""
    says_so = pc.is_valid(pc.map_lookup(batch.column("properties"), pa.scalar(ERASED), "first"))
    has_no_body = pc.equal(pc.binary_length(pc.fill_null(batch.column("body"), b"")), 0)
    texts = [pc.is_null(batch.column(name)) for name in ("tags", "keys", "sharding_key")]
    flags: npt.NDArray[np.bool_] = np.logical_and.reduce(
        [column.to_numpy(zero_copy_only=False) for column in (says_so, has_no_body, *texts)]
    )
    return flags
