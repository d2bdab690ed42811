"""The statistics that a commit file says of a new file, from rows that are in memory."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# Arrow compares quicker, but releases the interpreter's lock: beside busy threads a commit then
# waits up to 5 ms for it, for each column.
FEW_ROWS = 4096
# As Arrow's footers: of longer texts nothing is said.
LONGEST_BOUND_BYTES = 4096


def stats_of_rows(rows: pa.Table, columns: Sequence[str]) -> str | None:
    """What a footer would say of integers and texts; None where it takes a footer to say it.

    A footer has to be made, read and taken apart: a tenth of a commit of one row.
    """
    chosen = [field for field in rows.schema if field.name in columns]
    if not all(_is_plain(field.type) for field in chosen):
        return None
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for field in chosen:
        column = rows[field.name]
        nulls[field.name] = column.null_count
        smallest, largest = _bounds(column)
        if _is_said(smallest) and _is_said(largest):
            low[field.name], high[field.name] = smallest, largest
    return stats_json(rows.num_rows, low, high, nulls)


def stats_json(
    rows: int, low: Mapping[str, Any], high: Mapping[str, Any], nulls: Mapping[str, int]
) -> str:
    """Statistics as Delta spells them."""
    return json.dumps({"numRecords": rows, "minValues": low, "maxValues": high, "nullCount": nulls})


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind))


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    if len(column) > FEW_ROWS:
        found = pc.min_max(column).as_py()
        return found["min"], found["max"]
    # Code points and bytes of UTF-8 sort alike.
    values = [value for value in column.to_pylist() if value is not None]
    return (min(values), max(values)) if values else (None, None)


def _is_said(bound: Any) -> bool:
    if isinstance(bound, str):
        return len(bound.encode()) <= LONGEST_BOUND_BYTES
    return bound is not None
