"""Rows of Parquet files in batches, and these in row groups, that are bounded in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

Part = TypeVar("Part")

READ_BUFFER_BYTES = 1 << 20
# A batch of rows that is in memory at once, where its caller names no other limit.
BATCH_BYTES = 16 * 1024 * 1024
# Within a row group that is larger than a batch the large rows may stand together.
UNEVEN_ROWS = 64
UNEVEN_PARTS = 8
# A table of one row is a hundred times as large as its row: so many are put together at once.
TABLES_HELD = 256


def record_batches(
    source: pa.NativeFile,
    columns: Sequence[str],
    rows: int,
    batch_bytes: int,
    row_groups: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows in their order: up to `rows` at once, fewer where they are more than `batch_bytes`.

    With `row_groups` only those.
    """
    # Without a buffer size, memory holds a whole column of a row group.
    reader = pq.ParquetFile(
        source, pre_buffer=False, buffer_size=READ_BUFFER_BYTES, coerce_int96_timestamp_unit="us"
    )
    for group in range(reader.metadata.num_row_groups) if row_groups is None else row_groups:
        size = _batch_rows(reader.metadata.row_group(group), columns, rows, batch_bytes)
        yield from reader.iter_batches(size, row_groups=[group], columns=columns, use_threads=False)


def _batch_rows(
    group: pq.RowGroupMetaData, columns: Sequence[str], rows: int, batch_bytes: int
) -> int:
    """How many rows of a row group to hold at once."""
    names = set(columns)
    chunks = (group.column(index) for index in range(group.num_columns))
    size_bytes = sum(
        chunk.total_uncompressed_size
        for chunk in chunks
        if chunk.path_in_schema.partition(".")[0] in names
    )
    if size_bytes <= batch_bytes or not group.num_rows:
        return rows
    even = max(1, int(batch_bytes * group.num_rows // size_bytes))
    return min(rows, even, max(UNEVEN_ROWS, even // UNEVEN_PARTS))


def in_windows(
    batches: Iterator[pa.RecordBatch], size_bytes: int
) -> Iterator[tuple[pa.Table, bool]]:
    """Batches that are put together up to a size, each with whether it is the last one."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for batch in batches:
        if waiting and waiting_bytes + batch.nbytes > size_bytes:
            yield pa.Table.from_batches(waiting), False
            waiting, waiting_bytes = [], 0
        waiting.append(batch)
        waiting_bytes += batch.nbytes
    if waiting:
        yield pa.Table.from_batches(waiting), True


def in_row_groups(
    parts: Iterable[Part],
    joined: Callable[[Sequence[Part]], pa.Table],
    size: Callable[[Part], tuple[int, int]],
    limits: tuple[int, int],
) -> Iterator[pa.Table]:
    """Parts, most of few rows, in tables that each become a row group of a new file.

    Args:
        parts: what is put together, in this order.
        joined: makes a table of up to TABLES_HELD parts.
        size: the rows and the bytes of a part; it is asked once for each.
        limits: a table ends with the part with which it has so many rows or bytes.
    """
    tables: list[pa.Table] = []
    waiting: list[Part] = []
    rows = size_bytes = 0
    for part in parts:
        part_rows, part_bytes = size(part)
        rows, size_bytes = rows + part_rows, size_bytes + part_bytes
        waiting.append(part)
        is_full = rows >= limits[0] or size_bytes >= limits[1]
        if is_full or len(waiting) == TABLES_HELD:
            tables.append(joined(waiting))
            waiting = []
        if is_full:
            yield pa.concat_tables(tables)
            tables, rows, size_bytes = [], 0, 0
    if waiting:
        tables.append(joined(waiting))
    if tables:
        yield pa.concat_tables(tables)
