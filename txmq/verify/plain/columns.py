"""Columns of data files in few types: batches of bounded size, bodies as digests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from txmq.verify.plain.digests import DIGEST, content_digests

_TEXTS = (pa.types.is_string_view, pa.types.is_large_string, pa.types.is_date)
_BINARIES = (pa.types.is_binary_view, pa.types.is_large_binary)
# Of numbers: no table of txmq has others.
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_list_view)
_BATCH_BYTES = 32 * 1024 * 1024
_MAX_BATCH_ROWS = 65_536
# Without a buffer Parquet reads all bodies of a row group at once.
_BUFFER_BYTES = 4 * 1024 * 1024


def open_parquet(source: Any) -> pq.ParquetFile:
    """An open data file; it reads a column in pieces."""
    return pq.ParquetFile(
        source, coerce_int96_timestamp_unit="us", pre_buffer=False, buffer_size=_BUFFER_BYTES
    )


def batch_rows(parquet: pq.ParquetFile) -> int:
    """Rows of about _BATCH_BYTES, for one body may be as large as a million others."""
    metadata = parquet.metadata
    sizes = [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
    row_bytes = max(1, sum(sizes) // max(1, metadata.num_rows))
    return int(max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // row_bytes)))


def with_digests(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """`columns` of a batch, and the DIGEST of its content."""
    digests = content_digests(batch)
    arrays = [batch.column(name) for name in columns]
    arrays += [pa.array(digests[:, 0]), pa.array(digests[:, 1])]
    return pa.record_batch(arrays, names=[*columns, *DIGEST])


def plain_types(rows: Any) -> Any:
    """Rows whose columns have the few types for which Arrow has all functions."""
    # Files that delta-rs rewrote hold views, for which it has few.
    return rows.cast(pa.schema([(field.name, _plain_type(field.type)) for field in rows.schema]))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if any(test(kind) for test in _TEXTS):
        return pa.string()
    if any(test(kind) for test in _BINARIES):
        return pa.binary()
    if any(test(kind) for test in _LISTS):
        return pa.list_(pa.int64())
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), pa.string())
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    return pa.int64() if pa.types.is_integer(kind) else kind
