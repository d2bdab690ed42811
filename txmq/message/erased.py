"""Erased messages: rows that keep their place, and nothing of what was sent (decision 0060).

Consumers pass them over. Users cannot set the property that marks them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.columns import Flags

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column

ERASED = "__txmq_erased"
# The same in every table, so that a copy is equal to its half.
_LEFT: Mapping[str, Any] = {"body": b"", "properties": [(ERASED, "true")]}
CONTENT = ("tags", "keys", "body", "properties", "sharding_key")


def erased(rows: pa.Table, chosen: Flags, columns: Sequence[str] = CONTENT) -> pa.Table:
    """The rows, of which the chosen ones keep nothing in `columns`, which may have any type."""
    count = rows.num_rows
    sources = pa.array(np.where(chosen, count, np.arange(count)))
    for name in columns:
        place, field = rows.schema.get_field_index(name), rows.schema.field(name)
        left = pa.array([_LEFT.get(name)], field.type)
        values = pa.concat_arrays([_whole(rows[name]), left]).take(sources)
        rows = rows.set_column(place, field, values)
    return rows


def are_erased(properties: pa.ChunkedArray | pa.Array) -> Flags | None:
    """Which rows are erased, by their column `properties`; None where none is."""
    column = _whole(properties)
    # Of a slice these are the names of all rows; most rows have few properties.
    if not len(column) or pc.index(column.keys, ERASED).as_py() < 0:
        return None
    marks = pc.map_lookup(column, pa.scalar(ERASED), "first")
    flags: Flags = pc.is_valid(marks).to_numpy(zero_copy_only=False)
    return flags if flags.any() else None


def without_erased(rows: pa.Table) -> pa.Table:
    """The rows that are not erased; they have a column `properties`."""
    flags = are_erased(rows["properties"])
    return rows if flags is None else rows.filter(pa.array(~flags))


def is_erased(properties: Any) -> bool:
    """Whether a row is erased, by its properties as a mapping or as pairs."""
    return ERASED in dict(properties or ())


def _whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def is_not_erased() -> Column:
    """Spark's condition for rows that are not erased."""
    from pyspark.sql import functions as sql

    return sql.try_element_at(sql.col("properties"), sql.lit(ERASED)).isNull()
