"""Reads the rows of data files: of one, of many small ones, or one batch after the other."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from txmq.delta.failures import read_again
from txmq.delta.files import LARGE_FILE_BYTES, DataFile, as_type, with_partition
from txmq.delta.folder import NOTHING, Contents, in_windows
from txmq.delta.followed import FollowedTable
from txmq.delta.schemas import TableSchema

# --- small_files:

# By its size and by its rows, for compression hides how large a few values are.
SMALL_BYTES, SMALL_ROWS = 64 * 1024, 64
# What one table keeps in memory. Arrow's own objects are ten times as large as one row is.
KEPT_BYTES, KEPT_FILES = 256 * 1024, 16


def is_small(size_bytes: int, rows: int) -> bool:
    """Whether reading all columns of a file costs as little as reading some of them."""
    return size_bytes <= SMALL_BYTES and rows <= SMALL_ROWS


class SmallFiles:
    """The rows of small files that were read or written last: few, and up to KEPT_BYTES of them.

    Attributes:
        is_on: whether anything is kept; a process may have a thousand tables open.
    """

    def __init__(self) -> None:
        """Keep nothing yet."""
        self.is_on = False
        self._rows: OrderedDict[str, tuple[pa.Table, int]] = OrderedDict()
        self._kept_bytes = 0

    def rows(self, path: str) -> pa.Table | None:
        """All stored columns of a file; None where it is not kept."""
        kept = self._rows.get(path)
        return kept and kept[0]

    def keep(self, path: str, rows: pa.Table, size_bytes: int) -> None:
        """Keep the rows of a file in the place of older ones; `size_bytes` is what they hold."""
        if not (self.is_on and is_small(size_bytes, rows.num_rows)) or path in self._rows:
            return
        self._rows[path] = (rows, size_bytes)
        self._kept_bytes += size_bytes
        while self._kept_bytes > KEPT_BYTES or len(self._rows) > KEPT_FILES:
            self._kept_bytes -= self._rows.popitem(last=False)[1][1]


def some_columns(rows: pa.Table, names: list[str]) -> pa.Table:
    """These columns, as far as the file has them."""
    stored = set(rows.column_names)
    return rows.select([name for name in names if name in stored])


# --- batches:

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


def in_windows_of_batches(
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


# --- file_rows:

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
