"""Reads the rows of data files: of one, of many small ones, or one batch after the other."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from txmq.delta.actions import CommitActions, path_of
from txmq.delta.failures import STORAGE_ERRORS, Result, failed_read, read_again
from txmq.delta.files import LARGE_FILE_BYTES, DataFile, FilePart, as_type, with_partition
from txmq.delta.folder import NOTHING, Contents, TableFolder, in_windows
from txmq.delta.parquet import FooterSizes, footer_sizes, row_group_ranges
from txmq.delta.schemas import TableSchema
from txmq.delta.table_log import TableLog
from txmq.errors import StorageError

# A small file, by its size and by its rows, for compression hides how large a few values are.
SMALL_BYTES, SMALL_ROWS = 64 * 1024, 64
# What one table keeps in memory. Arrow's own objects are ten times as large as one row is.
KEPT_BYTES, KEPT_FILES = 256 * 1024, 16
# Of many small files each is a chunk, and Arrow pays for each chunk with each call.
CHUNKS_MAX = 16
READ_BUFFER_BYTES = 1 << 20
# A batch of rows that is in memory at once, where its caller names no other limit.
BATCH_BYTES = 16 * 1024 * 1024
# Rows that are decoded at once.
STEP_ROWS = 4096
# Within a row group that is larger than a batch the large rows may stand together.
UNEVEN_ROWS = 64
UNEVEN_PARTS = 8
# A table of one row is a hundred times as large as its row: so many are put together at once.
TABLES_HELD = 256
# A piece of narrow columns: at most so many rows.
PIECE_ROWS = 200_000

_VIEWS = {
    pa.string_view().id: pa.string(),
    pa.binary_view().id: pa.binary(),
}

Part = TypeVar("Part")
Rows = TypeVar("Rows", pa.Table, pa.RecordBatch)


# --- the files of a table -----------------------------------------------------------------------


class CountedRows(NamedTuple):
    """The rows of some files in their order, and how many are of each."""

    rows: pa.Table
    counts: list[int]


class FileRows:
    """Reads the data files of one table by their names. Not safe for several threads."""

    def __init__(self, folder: TableFolder, log: TableLog, schema: TableSchema) -> None:
        """Open nothing yet; the first use does. The log says which columns the table has."""
        self._folder, self._log, self._schema = folder, log, schema
        self.small_files = SmallFiles()

    def keep_small_files(self) -> None:
        """From now on keep the rows of the small files that were read or written last."""
        self.small_files.is_on = True

    # Whole files.

    def read(self, files: Sequence[DataFile], columns: Sequence[str]) -> pa.Table:
        """Read the rows of `files`, in the order of the files. Raises: StorageError."""
        return self.read_counted(files, columns).rows

    def read_counted(self, files: Sequence[DataFile], columns: Sequence[str]) -> CountedRows:
        """Do as `read`, with the number of rows of each file. Raises: StorageError."""
        schema = self._log.columns_of(columns)
        if not files:
            return CountedRows(schema.empty_table(), [])
        # Of many files none would still be kept when it is read again.
        keeps = len(files) <= KEPT_FILES
        parts = list(self._read_each(files, self._stored_names(columns), keeps=keeps))
        rows = _with_partitions(files, parts, schema)
        if len(parts) > CHUNKS_MAX and rows.nbytes <= BATCH_BYTES:
            rows = rows.combine_chunks()
        return CountedRows(rows, [part.num_rows for part in parts])

    def each(self, files: Sequence[DataFile], columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of one file after the other, as `read`; memory holds one of them."""
        schema = self._log.columns_of(columns)
        parts = self._read_each(files, self._stored_names(columns), keeps=False)
        for file, part in zip(files, parts, strict=True):
            yield with_partition(part, file, schema)

    def pieces(self, files: Sequence[DataFile], columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of files in pieces: some small files, or a part of a large one.

        Memory holds one piece, of PIECE_ROWS or BATCH_BYTES; `columns` are narrow ones, which
        hardly compress. Raises: StorageError.
        """
        for together in in_pieces(files):
            yield from (piece.rows for piece in self.pieces_of(together, columns))

    def pieces_of(
        self, together: Sequence[DataFile], columns: Sequence[str], rows: int = PIECE_ROWS
    ) -> Iterator[CountedRows]:
        """Yield as `pieces`, for files that `in_pieces` put together, with the rows of each."""
        if len(together) > 1:
            yield self.read_counted(together, columns)
            return
        (file,), schema = together, self._log.columns_of(columns)
        try:
            for batch in self.batches(file, columns, rows):
                part = with_partition(pa.table(batch), file, schema)
                yield CountedRows(part, [part.num_rows])
        except (*STORAGE_ERRORS, pa.ArrowException) as error:
            raise failed_read(self._folder.name, error, file.path) from error

    def pieces_of_parts(
        self, parts: Sequence[FilePart], columns: Sequence[str]
    ) -> Iterator[pa.Table]:
        """Yield the rows of a file, or of some of its row groups, in pieces of PIECE_ROWS.

        Row groups that are not larger than that come together; `columns` are narrow ones.

        Raises: OSError, ArrowException and whatever else a damaged file leads to.
        """
        file, schema = parts[0].file, self._log.columns_of(columns)
        stored = self._stored_names(columns)
        numbers = [part.row_group for part in parts if part.row_group is not None]
        with self._source(file, NOTHING) as source:
            if numbers and sum(len(part.rows) for part in parts) <= PIECE_ROWS:
                rows = without_views(_parquet(source).read_row_groups(numbers, stored))
                yield with_partition(rows, file, schema)
                return
            for batch in record_batches(source, stored, PIECE_ROWS, BATCH_BYTES, numbers or None):
                yield with_partition(pa.table(batch), file, schema)

    def read_stored(
        self,
        file: DataFile,
        stored: list[str],
        contents: Contents = NOTHING,
        *,
        keeps: bool = True,
    ) -> pa.Table:
        """Read columns that the file itself has; no partition columns. Raises: StorageError."""
        if (rows := self.small_files.rows(file.path)) is not None:
            return some_columns(rows, stored)

        def read() -> pa.Table:
            if keeps and self.small_files.is_on:
                return self._read_and_keep(file, stored, contents)
            return self._read_once(file, stored, None, contents)

        return read_again(self._folder.name, read, path=file.path)

    def added_rows(self, actions: CommitActions, columns: Sequence[str]) -> pa.Table:
        """Read the rows that a commit added; only columns that are no partition.

        They are read by the commit file alone, so the pinned version may be older.

        Raises: StorageError.
        """
        schema = self._log.columns_of(columns)
        files = [DataFile(path_of(action), 0, action["size"], {}) for action in actions.added]
        parts = [self.read_stored(file, list(columns)).cast(schema) for file in files]
        return pa.concat_tables([schema.empty_table(), *parts])

    def _read_each(
        self, files: Sequence[DataFile], stored: list[str], *, keeps: bool
    ) -> Iterator[pa.Table]:
        for window in in_windows(files):
            contents = self.fetched_files(window)
            for file in window:
                yield self.read_stored(file, stored, contents, keeps=keeps)

    def fetched_files(self, files: Sequence[DataFile]) -> Contents:
        """Fetch the small ones of a few files, as `fetched` of the folder."""
        if len(files) <= 1 or not self._folder.objects.is_remote:
            return NOTHING
        small = [
            file.path
            for file in files
            if file.size_bytes <= SMALL_BYTES and self.small_files.rows(file.path) is None
        ]
        return self._folder.fetched(small)

    def _read_once(
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
                return without_views(parquet.read(stored, use_threads=use_threads))
            return without_views(parquet.read_row_group(row_group, stored, use_threads=use_threads))

    def _read_and_keep(self, file: DataFile, stored: list[str], contents: Contents) -> pa.Table:
        """Read a file; a small one as a whole, which is kept for the next reads."""
        with self._source(file, contents) as source:
            parquet = _parquet(source)
            if not is_small(file.size_bytes, parquet.metadata.num_rows):
                use_threads = file.size_bytes > LARGE_FILE_BYTES
                return without_views(parquet.read(stored, use_threads=use_threads))
            rows = without_views(parquet.read(use_threads=False))
        self.small_files.keep(file.path, rows, rows.nbytes)
        return some_columns(rows, stored)

    def _source(self, file: DataFile, contents: Contents) -> pa.NativeFile:
        """Open a file. Read a small one whole: that costs half of reading some columns."""
        if (content := contents.get(file.path)) is not None:
            return pa.BufferReader(content)
        source = self._folder.filesystem.open_input_file(file.path)
        # By its own size: a commit by others may name another one.
        if source.size() > SMALL_BYTES:
            return source
        with source:
            return pa.BufferReader(source.read_buffer())

    def _stored_names(self, columns: Sequence[str]) -> list[str]:
        return [name for name in columns if name not in self._schema.partition_by]

    # Parts of files.

    def batches(
        self,
        file: DataFile,
        columns: Sequence[str],
        rows: int,
        batch_bytes: int = BATCH_BYTES,
        contents: Contents = NOTHING,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one file in their order, with bounded memory.

        A batch has up to `rows` rows, and fewer where they would be more than `batch_bytes`.
        `contents` are of `fetched_files`.
        """
        numbered = self.batches_from(file, columns, 0, rows, batch_bytes, contents)
        yield from (batch for _, batch in numbered)

    def batches_from(  # noqa: PLR0913, PLR0917 - as `batches`
        self,
        file: DataFile,
        columns: Sequence[str],
        first: int,
        rows: int,
        batch_bytes: int = BATCH_BYTES,
        contents: Contents = NOTHING,
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yield as `batches`, from the row group with the row `first` on.

        Each batch comes with the number of its first row in the file.
        """
        stored = self._stored_names(columns)
        if (small := self.small_files.rows(file.path)) is not None:
            batches = some_columns(small, stored).combine_chunks().to_batches(rows)
            firsts = range(0, small.num_rows, rows)
            yield from zip(firsts, batches, strict=True)
            return
        with self._source(file, contents) as source:
            yield from numbered_batches(source, stored, rows, batch_bytes, from_row=first)

    def windows(
        self, part: FilePart, columns: Sequence[str], size_bytes: int
    ) -> Iterator[tuple[pa.Table, bool]]:
        """Yield the rows of a file or row group in their order, in tables of about `size_bytes`.

        Each table comes with whether it is the last one; memory holds two of them.

        Raises: FileNotFoundError where the file is gone; StorageError.
        """
        schema, stored = self._log.columns_of(columns), self._stored_names(columns)
        try:
            with self._folder.filesystem.open_input_file(part.file.path) as source:
                row_groups = None if part.row_group is None else [part.row_group]
                batches = record_batches(source, stored, STEP_ROWS, size_bytes, row_groups)
                for rows, is_last in in_windows_of_batches(batches, size_bytes):
                    yield with_partition(rows, part.file, schema), is_last
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            problem = f"{part.file.path} cannot be read ({type(error).__name__})"
            raise StorageError(self._folder.name, problem) from error

    def row_groups(self, part: FilePart, columns: Sequence[str]) -> list[FilePart] | None:
        """Return the row groups of a file with their ranges of `columns`; None if it is gone."""

        def read() -> list[FilePart]:
            with self._folder.filesystem.open_input_file(part.file.path) as source:
                metadata = pq.ParquetFile(source).metadata
            groups, first = [], 0
            for number in range(metadata.num_row_groups):
                low, high, without_nulls = row_group_ranges(metadata, number, columns)
                bounds = ({**part.low, **low}, {**part.high, **high})
                rows = range(first, first + metadata.row_group(number).num_rows)
                without_nulls |= part.without_nulls
                groups.append(FilePart(part.file, *bounds, number, rows, without_nulls))
                first = rows.stop
            return groups

        return self._unless_gone(read)

    def read_part(self, part: FilePart, columns: Sequence[str]) -> pa.Table | None:
        """Read the rows of a file or of one of its row groups; None if the file is gone."""
        schema, stored = self._log.columns_of(columns), self._stored_names(columns)
        rows = self._unless_gone(lambda: self._read_once(part.file, stored, part.row_group))
        return None if rows is None else with_partition(rows, part.file, schema)

    def _unless_gone(self, read: Callable[[], Result]) -> Result | None:
        def attempt() -> Result | None:
            try:
                return read()
            except FileNotFoundError:
                return None

        return read_again(self._folder.name, attempt)

    def footer_sizes(self, file: DataFile, columns: Sequence[str]) -> FooterSizes:
        """Read the rows, and the bytes of some columns without compression, from a file's footer.

        Raises: StorageError.
        """
        return read_again(
            self._folder.name, lambda: self._footer_sizes(file, columns), path=file.path
        )

    def _footer_sizes(self, file: DataFile, columns: Sequence[str]) -> FooterSizes:
        with self._folder.filesystem.open_input_file(file.path) as source:
            return footer_sizes(pq.ParquetFile(source).metadata, columns)


def in_pieces(files: Sequence[DataFile]) -> Iterator[Sequence[DataFile]]:
    """Put small files together, up to PIECE_ROWS and BATCH_BYTES; a large file stands alone."""
    together, count, size_bytes = list[DataFile](), 0, 0
    for file in files:
        count, size_bytes = count + file.num_records, size_bytes + file.size_bytes
        if together and (count > PIECE_ROWS or size_bytes > BATCH_BYTES):
            yield together
            together, count, size_bytes = [], file.num_records, file.size_bytes
        together.append(file)
    if together:
        yield together


def _parquet(source: pa.NativeFile) -> pq.ParquetFile:
    return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")


def _with_partitions(
    files: Sequence[DataFile], parts: Sequence[pa.Table], schema: pa.Schema
) -> pa.Table:
    """Return the columns of `schema` of the rows of all files."""
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


# --- small files, which are kept ----------------------------------------------------------------


def is_small(size_bytes: int, rows: int) -> bool:
    """Tell whether reading all columns of a file costs as little as reading some of them."""
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
        """Return all stored columns of a file; None where it is not kept."""
        entry = self._rows.get(path)
        return entry and entry[0]

    def keep(self, path: str, rows: pa.Table, size_bytes: int) -> None:
        """Keep the rows of a file in the place of older ones; `size_bytes` is what they hold."""
        if not (self.is_on and is_small(size_bytes, rows.num_rows)) or path in self._rows:
            return
        self._rows[path] = (rows, size_bytes)
        self._kept_bytes += size_bytes
        while self._kept_bytes > KEPT_BYTES or len(self._rows) > KEPT_FILES:
            self._kept_bytes -= self._rows.popitem(last=False)[1][1]


def some_columns(rows: pa.Table, names: list[str]) -> pa.Table:
    """Return these columns, as far as the file has them."""
    stored = set(rows.column_names)
    return rows.select([name for name in names if name in stored])


# --- batches ------------------------------------------------------------------------------------


def record_batches(
    source: pa.NativeFile,
    columns: Sequence[str],
    rows: int,
    batch_bytes: int,
    row_groups: Sequence[int] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in their order: up to `rows` at once, fewer if they exceed `batch_bytes`.

    With `row_groups` only those.
    """
    numbered = numbered_batches(source, columns, rows, batch_bytes, row_groups)
    yield from (batch for _, batch in numbered)


def numbered_batches(  # noqa: PLR0913, PLR0917 - as `record_batches`
    source: pa.NativeFile,
    columns: Sequence[str],
    rows: int,
    batch_bytes: int,
    row_groups: Sequence[int] | None = None,
    from_row: int = 0,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield as `record_batches`, each batch with the number of its first row in the file.

    Row groups that end before `from_row` are passed over.
    """
    # Without a buffer size, memory holds a whole column of a row group.
    reader = pq.ParquetFile(
        source, pre_buffer=False, buffer_size=READ_BUFFER_BYTES, coerce_int96_timestamp_unit="us"
    )
    first = 0
    for group in range(reader.metadata.num_row_groups):
        metadata = reader.metadata.row_group(group)
        end = first + metadata.num_rows
        if end > from_row and (row_groups is None or group in row_groups):
            size = _batch_rows(metadata, columns, rows, batch_bytes)
            for batch in reader.iter_batches(
                size, row_groups=[group], columns=columns, use_threads=False
            ):
                yield first, without_views(batch)
                first += batch.num_rows
        first = end


def without_views(rows: Rows) -> Rows:
    """Give columns of views, which delta-rs writes and Arrow cannot take from, plain types."""
    plain = [_plain(column.type) for column in rows.schema]
    if all(kind is None for kind in plain):
        return rows
    pairs = zip(rows.schema, plain, strict=True)
    return rows.cast(pa.schema([column.with_type(kind or column.type) for column, kind in pairs]))


def _plain(kind: pa.DataType) -> pa.DataType | None:
    """Return the plain type for one of views; None for any other."""
    if kind.id in _VIEWS:
        return _VIEWS[kind.id]
    if pa.types.is_map(kind) and (_plain(kind.key_type) or _plain(kind.item_type)):
        return pa.map_(
            _plain(kind.key_type) or kind.key_type, _plain(kind.item_type) or kind.item_type
        )
    return None


def _batch_rows(
    group: pq.RowGroupMetaData, columns: Sequence[str], rows: int, batch_bytes: int
) -> int:
    """Return how many rows of a row group to hold at once."""
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
    """Put batches together up to a size; yield each table with whether it is the last one."""
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
    """Put parts, most of few rows, together in tables that each become a row group of a new file.

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
