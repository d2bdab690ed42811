"""Reads one of txmq's own Delta tables: files, statistics, rows and changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from txmq.delta.files import (
    LARGE_FILE_BYTES,
    LARGE_FILE_ROWS,
    DataFile,
    FilePart,
    FileRange,
    above,
    covering,
    not_above,
    value_bounds,
    with_partition,
)
from txmq.delta.parquet import FooterSizes, footer_sizes, row_group_ranges
from txmq.delta.pinned import PinnedTable, Result, read_again, translated
from txmq.delta.schemas import SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY, TableSchema
from txmq.errors import IncompatibleVersionError, StorageError, StoreFormatError

READ_BUFFER_BYTES = 1 << 20
_INSERT = "insert"


class ReadTable(PinnedTable):
    """A Delta table of txmq at one location, read through the version that is pinned.

    Not safe for several threads: each service and each committing thread holds its own.
    """

    def __init__(
        self, location: str, schema: TableSchema, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Open nothing yet; the first use does."""
        super().__init__(schema.name, location, storage_options)
        self.schema = schema

    def exists(self) -> bool:
        """Whether there is a Delta table at the location. Raises: StorageError."""
        try:
            return DeltaTable.is_deltatable(self.location, self._options or None)
        except (DeltaError, OSError) as error:
            problem = f"cannot be looked up at {self.location} ({type(error).__name__})"
            raise StorageError(self.name, problem) from error

    def _check(self, handle: DeltaTable) -> None:
        written = handle.metadata().configuration.get(SCHEMA_VERSION_PROPERTY)
        if written is None or not str(written).isdecimal():
            raise StoreFormatError(
                self.name, "is a Delta table but not one of txmq; check the location"
            )
        if int(str(written)) > SCHEMA_VERSION:
            problem = f"has schema version {written}, this txmq reads {SCHEMA_VERSION}; upgrade it"
            raise IncompatibleVersionError(self.name, problem)

    @property
    def columns(self) -> pa.Schema:
        """The columns of the stored table; a typed topic has more than `schema` names."""
        named = self.schema.columns
        stored = pa.schema(self.handle.schema().to_arrow())
        return pa.schema([*named, *(column for column in stored if column.name not in named.names)])

    def _columns_of(self, names: Sequence[str]) -> pa.Schema:
        named = self.schema.columns
        columns = named if set(names) <= set(named.names) else self.columns
        return pa.schema([columns.field(name) for name in names])

    def files(self) -> list[DataFile]:
        """All live files."""
        return self._chosen(lambda actions: np.ones(actions.num_rows, dtype=bool))

    def files_holding(self, column: str, values: pa.Array) -> list[DataFile]:
        """Live files whose range of `column` covers at least one of `values`, in any order.

        Each value is compared by itself, so that one old id does not select all files.
        """
        if len(values) == 0:
            return []
        return self._chosen(lambda actions: covering(actions, column, values))

    def files_beyond(self, column: str, value: int | str) -> list[DataFile]:
        """Live files that may hold rows with `column` above `value`."""
        return self._chosen(lambda actions: above(actions, column, value))

    def files_up_to(self, column: str, value: int) -> list[DataFile]:
        """Live files that may hold rows with `column` at `value` or below."""
        return self._chosen(lambda actions: not_above(actions, column, value))

    def ranges(self, column: str) -> list[FileRange]:
        """All live files, each with its smallest and largest value of `column`."""
        actions = self._actions()
        bounds = zip(*value_bounds(actions, column), strict=True)
        files = self._as_files(actions)
        return [FileRange(file, *pair) for file, pair in zip(files, bounds, strict=True)]

    def parts(self, columns: Sequence[str]) -> list[FilePart]:
        """All live files, each with its ranges of `columns`."""
        actions = self._actions()
        bounds = {name: value_bounds(actions, name) for name in columns}
        return [
            FilePart(
                file,
                {name: low[number] for name, (low, _) in bounds.items()},
                {name: high[number] for name, (_, high) in bounds.items()},
            )
            for number, file in enumerate(self._as_files(actions))
        ]

    def row_groups(self, part: FilePart, columns: Sequence[str]) -> list[FilePart] | None:
        """The row groups of a file with their ranges of `columns`; None where the file is gone."""
        return self._unless_gone(lambda: self._row_groups(part, columns))

    def _row_groups(self, part: FilePart, columns: Sequence[str]) -> list[FilePart]:
        with self.filesystem.open_input_file(part.file.path) as source:
            metadata = pq.ParquetFile(source).metadata
        groups = []
        for number in range(metadata.num_row_groups):
            low, high = row_group_ranges(metadata, number, columns)
            groups.append(FilePart(part.file, {**part.low, **low}, {**part.high, **high}, number))
        return groups

    def read_part(self, part: FilePart, columns: Sequence[str]) -> pa.Table | None:
        """The rows of a file or of one of its row groups; None where the file is gone."""
        schema = self._columns_of(columns)
        stored = [name for name in columns if name not in self.schema.partition_by]
        rows = self._unless_gone(lambda: self._stored(part.file, stored, part.row_group))
        return None if rows is None else with_partition(rows, part.file, schema)

    def footer_sizes(self, file: DataFile, columns: Sequence[str]) -> FooterSizes:
        """Rows, and bytes of some columns without compression, by the footer of a file.

        Raises: StorageError.
        """
        return read_again(self.name, lambda: self._footer_sizes(file, columns))

    def _footer_sizes(self, file: DataFile, columns: Sequence[str]) -> FooterSizes:
        with self.filesystem.open_input_file(file.path) as source:
            return footer_sizes(pq.ParquetFile(source).metadata, columns)

    def _unless_gone(self, read: Callable[[], Result]) -> Result | None:
        def attempt() -> Result | None:
            try:
                return read()
            except FileNotFoundError:
                return None

        return read_again(self.name, attempt)

    def _chosen(self, keep: Callable[[pa.Table], np.ndarray[Any, Any]]) -> list[DataFile]:
        actions = self._actions()
        return self._as_files(actions.filter(pa.array(keep(actions))))

    def _actions(self) -> pa.Table:
        with translated(self.name):
            return pa.table(self.handle.get_add_actions(flatten=True))

    def _as_files(self, actions: pa.Table) -> list[DataFile]:
        partitions = [actions[f"partition.{key}"].to_pylist() for key in self.schema.partition_by]
        return [
            DataFile(
                path,
                records or 0,
                size,
                dict(zip(self.schema.partition_by, keys, strict=True)),
                modified_ms,
            )
            for path, records, size, modified_ms, *keys in zip(
                actions["path"].to_pylist(),
                actions["num_records"].to_pylist(),
                actions["size_bytes"].to_pylist(),
                actions["modification_time"].cast(pa.int64()).to_pylist(),
                *partitions,
                strict=True,
            )
        ]

    def read(self, files: Sequence[DataFile], columns: Sequence[str]) -> pa.Table:
        """The rows of `files`, in the order of the files. Raises: StorageError."""
        schema = self._columns_of(columns)
        if not files:
            return schema.empty_table()
        stored = [name for name in columns if name not in self.schema.partition_by]
        return pa.concat_tables(
            [with_partition(self._stored_again(file, stored), file, schema) for file in files]
        )

    def rows_of(self, column: str, values: pa.Array, columns: Sequence[str]) -> pa.Table:
        """All rows whose `column` is one of `values`; reads only the files that may hold them."""
        read_columns = columns if column in columns else [column, *columns]
        files = [f for f in self.files_holding(column, values) if self._holds(f, column, values)]
        rows = self.read(files, read_columns)
        is_match = pc.is_in(rows[column], value_set=values)
        # A large transaction fills whole files, and a filter would copy them.
        if not pc.all(is_match, min_count=0).as_py():
            rows = rows.filter(is_match)
        return rows.select(list(columns))

    def _holds(self, file: DataFile, column: str, values: pa.Array) -> bool:
        """Statistics are only a range, so this column of a large file is read before the others."""
        if file.num_records < LARGE_FILE_ROWS or len(values) > file.num_records // 100:
            # With many values, hashing all of them for each file costs more than it saves.
            return True
        return bool(pc.any(pc.is_in(self.read([file], [column])[column], value_set=values)).as_py())

    def changes(self, start: int, end: int, columns: Sequence[str]) -> pa.Table:
        """Rows appended by the versions `start` to `end`, with `_commit_version`.

        `end` may be newer than the pinned version, which is then refreshed.

        Raises: StorageError where there is no version `end`; delta-rs would clamp it in silence.
        """
        schema = pa.schema([self.schema.columns.field(name) for name in columns])
        full = schema.append(pa.field("_commit_version", pa.int64()))
        if start > end:
            return full.empty_table()
        self._reach(end)
        feed = full.append(pa.field("_change_type", pa.string()))
        changes = read_again(
            self.name,
            lambda: pa.table(self.handle.load_cdf(start, end, columns=feed.names)),
        )
        rows = changes.select(feed.names).cast(feed)
        return rows.filter(pc.equal(rows["_change_type"], _INSERT)).select(full.names)

    def _reach(self, version: int) -> None:
        if version > self.version and version > self.refresh().version:
            problem = f"has no version {version}, only {self.version}; was it restored?"
            raise StorageError(self.name, problem)

    def _stored_again(self, file: DataFile, stored: list[str]) -> pa.Table:
        return read_again(self.name, lambda: self._stored(file, stored))

    def _stored(self, file: DataFile, stored: list[str], row_group: int | None = None) -> pa.Table:
        use_threads = file.size_bytes > LARGE_FILE_BYTES
        with self.filesystem.open_input_file(file.path) as source:
            parquet = pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
            if row_group is None:
                return parquet.read(stored, use_threads=use_threads)
            return parquet.read_row_group(row_group, stored, use_threads=use_threads)

    def batches(
        self, file: DataFile, columns: Sequence[str], rows: int
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one file in their order, `rows` at a time, with bounded memory."""
        stored = [name for name in columns if name not in self.schema.partition_by]
        with self.filesystem.open_input_file(file.path) as source:
            # Without a buffer size, memory holds a whole column of a row group.
            reader = pq.ParquetFile(
                source,
                pre_buffer=False,
                buffer_size=READ_BUFFER_BYTES,
                coerce_int96_timestamp_unit="us",
            )
            yield from reader.iter_batches(rows, columns=stored, use_threads=False)
