"""Reads the rows of data files: of one, of many small ones, or one batch after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from txmq.delta.batches import BATCH_BYTES, record_batches
from txmq.delta.files import LARGE_FILE_BYTES, DataFile, as_type, with_partition
from txmq.delta.folder import NOTHING, Contents, in_windows
from txmq.delta.followed import FollowedTable
from txmq.delta.retries import read_again
from txmq.delta.schemas import TableSchema
from txmq.delta.small_files import KEPT_FILES, SMALL_BYTES, SmallFiles, is_small, some_columns

# Of many small files each is a chunk, and Arrow pays for each chunk with each call.
CHUNKS_MAX = 16


class CountedRows(NamedTuple):
    """The rows of some files in their order, and how many are of each."""

    rows: pa.Table
    counts: list[int]


class FileTable(FollowedTable):
    """A table of which data files are read. Not safe for several threads."""

    def __init__(
        self, location: str, schema: TableSchema, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Open nothing yet; the first use does."""
        super().__init__(location, schema, storage_options)
        self._small = SmallFiles()

    def keep_small_files(self) -> None:
        """From now on keep the rows of the small files that were read or written last."""
        self._small.is_on = True

    def read(self, files: Sequence[DataFile], columns: Sequence[str]) -> pa.Table:
        """The rows of `files`, in the order of the files. Raises: StorageError."""
        return self.read_counted(files, columns).rows

    def read_counted(self, files: Sequence[DataFile], columns: Sequence[str]) -> CountedRows:
        """As `read`, with the number of rows of each file. Raises: StorageError."""
        schema = self._columns_of(columns)
        if not files:
            return CountedRows(schema.empty_table(), [])
        stored = [name for name in columns if name not in self.schema.partition_by]
        # Of many files none would still be kept when it is read again.
        keeps = len(files) <= KEPT_FILES
        parts = list(self._each_stored(files, stored, keeps=keeps))
        rows = _with_partitions(files, parts, schema)
        if len(parts) > CHUNKS_MAX and rows.nbytes <= BATCH_BYTES:
            rows = rows.combine_chunks()
        return CountedRows(rows, [part.num_rows for part in parts])

    def each(self, files: Sequence[DataFile], columns: Sequence[str]) -> Iterator[pa.Table]:
        """The rows of one file after the other, as `read`; memory holds one of them."""
        schema = self._columns_of(columns)
        stored = [name for name in columns if name not in self.schema.partition_by]
        parts = self._each_stored(files, stored, keeps=False)
        for file, part in zip(files, parts, strict=True):
            yield with_partition(part, file, schema)

    def _each_stored(
        self, files: Sequence[DataFile], stored: list[str], *, keeps: bool
    ) -> Iterator[pa.Table]:
        for window in in_windows(files):
            contents = self.fetched_files(window)
            for file in window:
                yield self._stored_again(file, stored, contents, keeps=keeps)

    def fetched_files(self, files: Sequence[DataFile]) -> Contents:
        """The small ones of a few files, as `fetched`."""
        if len(files) <= 1 or not self.objects.is_remote:
            return NOTHING
        return self.fetched([file.path for file in files if self._is_fetched(file)])

    def _is_fetched(self, file: DataFile) -> bool:
        return file.size_bytes <= SMALL_BYTES and self._small.rows(file.path) is None

    def batches(
        self,
        file: DataFile,
        columns: Sequence[str],
        rows: int,
        batch_bytes: int = BATCH_BYTES,
        contents: Contents = NOTHING,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one file in their order, with bounded memory.

        A batch has up to `rows` rows, and fewer where they would be more than `batch_bytes`.
        `contents` are of `fetched_files`.
        """
        stored = [name for name in columns if name not in self.schema.partition_by]
        if (kept := self._small.rows(file.path)) is not None:
            yield from some_columns(kept, stored).combine_chunks().to_batches(rows)
            return
        with self._source(file, contents) as source:
            yield from record_batches(source, stored, rows, batch_bytes)

    def _stored_again(
        self,
        file: DataFile,
        stored: list[str],
        contents: Contents = NOTHING,
        *,
        keeps: bool = True,
    ) -> pa.Table:
        if (kept := self._small.rows(file.path)) is not None:
            return some_columns(kept, stored)
        if keeps and self._small.is_on:
            return self._read_again(file, lambda: self._kept(file, stored, contents))
        return self._read_again(file, lambda: self._stored(file, stored, None, contents))

    def _read_again(self, file: DataFile, read: Callable[[], pa.Table]) -> pa.Table:
        return read_again(self.name, read, path=file.path)

    def _stored(
        self,
        file: DataFile,
        stored: list[str],
        row_group: int | None = None,
        contents: Contents = NOTHING,
    ) -> pa.Table:
        use_threads = file.size_bytes > LARGE_FILE_BYTES
        with self._source(file, contents) as source:
            parquet = _parquet(source)
            if row_group is None:
                return parquet.read(stored, use_threads=use_threads)
            return parquet.read_row_group(row_group, stored, use_threads=use_threads)

    def _kept(self, file: DataFile, stored: list[str], contents: Contents) -> pa.Table:
        """As `_stored`; a small file is read as a whole and kept for the next reads."""
        with self._source(file, contents) as source:
            parquet = _parquet(source)
            if not is_small(file.size_bytes, parquet.metadata.num_rows):
                return parquet.read(stored, use_threads=file.size_bytes > LARGE_FILE_BYTES)
            rows = parquet.read(use_threads=False)
        self._small.keep(file.path, rows, rows.nbytes)
        return some_columns(rows, stored)

    def _source(self, file: DataFile, contents: Contents) -> pa.NativeFile:
        """The file to read. A small one is read whole: that costs half of reading some columns."""
        if (content := contents.get(file.path)) is not None:
            return pa.BufferReader(content)
        source = self.filesystem.open_input_file(file.path)
        # By its own size: a commit by others may name another one.
        if source.size() > SMALL_BYTES:
            return source
        with source:
            return pa.BufferReader(source.read_buffer())


def _parquet(source: pa.NativeFile) -> pq.ParquetFile:
    return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")


def _with_partitions(
    files: Sequence[DataFile], parts: Sequence[pa.Table], schema: pa.Schema
) -> pa.Table:
    """The columns of `schema` of the rows of all files."""
    if len(parts) == 1 or any(part.schema != parts[0].schema for part in parts):
        # An earlier txmq may have written files with fewer columns.
        tables = zip(files, parts, strict=True)
        return pa.concat_tables([with_partition(part, file, schema) for file, part in tables])
    rows = pa.concat_tables(parts)
    stored = set(rows.column_names)
    file_of_row = pa.array(np.repeat(np.arange(len(parts)), [part.num_rows for part in parts]))
    columns = [
        as_type(rows[field.name], field.type)
        if field.name in stored
        else _partition_values(files, field).take(file_of_row)
        for field in schema
    ]
    return pa.table(columns, schema=schema)


def _partition_values(files: Sequence[DataFile], field: pa.Field) -> pa.Array:
    return pa.array([file.partition.get(field.name) for file in files], field.type)
