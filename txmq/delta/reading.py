"""Reads one of txmq's own Delta tables: files, statistics, rows and changes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from txmq.delta.actions import CommitActions, path_of
from txmq.delta.batches import BATCH_BYTES, in_windows, record_batches
from txmq.delta.failures import failed_read, problem_of, read_errors
from txmq.delta.features import features_beside_files
from txmq.delta.files import (
    LARGE_FILE_BYTES,
    LARGE_FILE_ROWS,
    DataFile,
    FilePart,
    FileRange,
    UnreadableFile,
    above,
    covering,
    not_above,
    value_bounds,
    with_partition,
)
from txmq.delta.forks import begin_use, refuse_panic
from txmq.delta.parquet import FooterSizes, footer_sizes, row_group_ranges
from txmq.delta.pinned import PinnedTable
from txmq.delta.retries import Result, read_again
from txmq.delta.schemas import SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY, TableSchema
from txmq.errors import (
    IncompatibleVersionError,
    StorageError,
    StoreFormatError,
    UnsupportedTableError,
)

# Above this size a file is filtered batch by batch and never held whole.
WHOLE_FILE_BYTES = 64 * 1024 * 1024
# A file that could not be read is not tried again sooner.
UNREADABLE_PAUSE_S = 10.0
MOVED_ATTEMPTS = 3
# Rows that are decoded at once.
STEP_ROWS = 4096
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
        # When each file was found unreadable, by this process, and why.
        self._unreadable: dict[str, tuple[float, str]] = {}

    def exists(self) -> bool:
        """Whether there is a Delta table at the location. Raises: StorageError."""
        begin_use()
        try:
            return DeltaTable.is_deltatable(self.location, self._options or None)
        except (DeltaError, OSError) as error:
            raise failed_read(self.name, error) from error
        except BaseException as error:
            refuse_panic(error)
            raise

    def _check(self, handle: DeltaTable) -> None:
        written = handle.metadata().configuration.get(SCHEMA_VERSION_PROPERTY)
        if written is None or not str(written).isdecimal():
            raise StoreFormatError(
                self.name, "is a Delta table but not one of txmq; check the location"
            )
        if int(str(written)) > SCHEMA_VERSION:
            problem = f"has schema version {written}, this txmq reads {SCHEMA_VERSION}; upgrade it"
            raise IncompatibleVersionError(self.name, problem)
        features = features_beside_files(handle)
        if features:
            raise UnsupportedTableError(self.name, features)

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

    def windows(
        self, part: FilePart, columns: Sequence[str], size_bytes: int
    ) -> Iterator[tuple[pa.Table, bool]]:
        """The rows of a file or row group in their order, in tables of about `size_bytes`.

        Each table comes with whether it is the last one; memory holds two of them.

        Raises: FileNotFoundError where the file is gone; StorageError.
        """
        schema = self._columns_of(columns)
        stored = [name for name in columns if name not in self.schema.partition_by]
        try:
            with self.filesystem.open_input_file(part.file.path) as source:
                row_groups = None if part.row_group is None else [part.row_group]
                batches = record_batches(source, stored, STEP_ROWS, size_bytes, row_groups)
                for rows, is_last in in_windows(batches, size_bytes):
                    yield with_partition(rows, part.file, schema), is_last
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException) as error:
            problem = f"{part.file.path} cannot be read ({type(error).__name__})"
            raise StorageError(self.name, problem) from error

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
        with read_errors(self.name):
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

    def added_rows(self, actions: CommitActions, columns: Sequence[str]) -> pa.Table:
        """The rows that a commit added; only columns that are no partition. Raises: StorageError.

        They are read by the commit file alone, so the pinned version may be older.
        """
        schema = self._columns_of(columns)
        files = [DataFile(path_of(action), 0, action["size"], {}) for action in actions.added]
        parts = [self._stored_again(file, list(columns)).cast(schema) for file in files]
        return pa.concat_tables([schema.empty_table(), *parts])

    def rows_of(self, column: str, values: pa.Array, columns: Sequence[str]) -> pa.Table:
        """All rows whose `column` is one of `values`; reads only the files that may hold them."""
        read_columns = columns if column in columns else [column, *columns]
        files = [f for f in self.files_holding(column, values) if self._holds(f, column, values)]
        if any(file.size_bytes > WHOLE_FILE_BYTES for file in files):
            parts = [self._matching(file, column, values, read_columns) for file in files]
            rows = pa.concat_tables([self.read([], read_columns), *parts])
        else:
            rows = self.read(files, read_columns)
        is_match = pc.is_in(rows[column], value_set=values)
        # A large transaction fills whole files, and a filter would copy them.
        if not pc.all(is_match, min_count=0).as_py():
            rows = rows.filter(is_match)
        return rows.select(list(columns))

    def _matching(
        self, file: DataFile, column: str, values: pa.Array, columns: Sequence[str]
    ) -> pa.Table:
        """The rows of one file whose `column` is one of `values`; holds one batch and them."""
        schema = self._columns_of(columns)
        parts = [schema.empty_table()]
        for batch in self.batches(file, columns, LARGE_FILE_ROWS):
            rows = with_partition(pa.table(batch), file, schema)
            parts.append(rows.filter(pc.is_in(rows[column], value_set=values)))
        return pa.concat_tables(parts)

    # --- files that cannot be read -----------------------------------------------------------

    def readable_rows_of(
        self, column: str, values: pa.Array, columns: Sequence[str]
    ) -> tuple[pa.Table, tuple[UnreadableFile, ...]]:
        """As `rows_of`, but files that cannot be read are set aside, and returned.

        A file that another process has replaced is none of them: the newest version is read then.
        """
        for _ in range(MOVED_ATTEMPTS):
            rows, unreadable = self._readable_rows_of(column, values, columns)
            if not unreadable or not self.has_replaced(unreadable):
                break
        return rows, unreadable

    def _readable_rows_of(
        self, column: str, values: pa.Array, columns: Sequence[str]
    ) -> tuple[pa.Table, tuple[UnreadableFile, ...]]:
        if not self._unreadable:
            try:
                return self.rows_of(column, values, columns), ()
            except Exception:  # noqa: BLE001, S110 - read again, file by file
                pass
        read_columns = columns if column in columns else [column, *columns]
        parts, unreadable = [self.read([], read_columns)], []
        for span in self.ranges_holding(column, values):
            read = partial(self._matching, span.file, column, values, read_columns)
            rows, problem = self.readable(span.file, read)
            if rows is None:
                unreadable.append(UnreadableFile(span.file, span.low, span.high, problem))
            else:
                parts.append(rows)
        return pa.concat_tables(parts).select(list(columns)), tuple(unreadable)

    def readable(self, file: DataFile, read: Callable[[], pa.Table]) -> tuple[pa.Table | None, str]:
        """What `read` gives, or why the file cannot be read; it is not tried again at once."""
        tried_s, problem = self._unreadable.get(file.path, (-math.inf, ""))
        if time.monotonic() - tried_s < UNREADABLE_PAUSE_S:
            return None, problem
        try:
            rows = read_again(self.name, read)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a damaged file leads to
            problem = f"{file.path}: {problem_of(error.__cause__ or error)}"
            self._unreadable[file.path] = (time.monotonic(), problem)
            return None, problem
        self._unreadable.pop(file.path, None)
        return rows, ""

    def forget_unreadable(self) -> None:
        """Try each file again at its next use."""
        self._unreadable.clear()

    def has_replaced(self, unreadable: Sequence[UnreadableFile]) -> bool:
        """Whether another process has replaced one of the files; pins the newest version."""
        live = {file.path for file in self.reopen().files()}
        return any(one.file.path not in live for one in unreadable)

    def ranges_holding(self, column: str, values: pa.Array) -> list[FileRange]:
        """As `files_holding`, each file with its smallest and largest value of `column`."""
        if len(values) == 0:
            return []
        actions = self._actions()
        chosen = actions.filter(pa.array(covering(actions, column, values)))
        bounds = zip(*value_bounds(chosen, column), strict=True)
        files = self._as_files(chosen)
        return [FileRange(file, *pair) for file, pair in zip(files, bounds, strict=True)]

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
        self,
        file: DataFile,
        columns: Sequence[str],
        rows: int,
        batch_bytes: int = BATCH_BYTES,
    ) -> Iterator[pa.RecordBatch]:
        """The rows of one file in their order, with bounded memory.

        A batch has up to `rows` rows, and fewer where they would be more than `batch_bytes`.
        """
        stored = [name for name in columns if name not in self.schema.partition_by]
        with self.filesystem.open_input_file(file.path) as source:
            yield from record_batches(source, stored, rows, batch_bytes)
