"""The one door to Delta: open, read, append, compare-and-swap. Nothing above it knows delta-rs.

All commits of a path store are made by delta-rs, which creates a log file only if it does not
exist yet; Spark's default on local disk ends in a plain rename and can overwrite (DESIGN 9).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, Field, Schema, WriterProperties
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction

from txmq.delta.files import (
    LARGE_FILE_BYTES,
    LARGE_FILE_ROWS,
    DataFile,
    FilePart,
    FileRange,
    above,
    covering,
    not_above,
    partition_columns,
    partition_texts,
    value_bounds,
    with_partition,
)
from txmq.delta.parquet import NewFile, row_group_ranges, write_file
from txmq.delta.pinned import PinnedTable, Result, pause, read_again, translated
from txmq.delta.schemas import SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY, TableSchema
from txmq.errors import (
    CommitConflictError,
    CommitRefusedError,
    IncompatibleVersionError,
    StorageError,
    StoreFormatError,
    UnknownCommitError,
)
from txmq.fail_points import FailPoint, reached

READ_BUFFER_BYTES = 1 << 20
REWRITE_MARK = "txmq-rewrite"
_INSERT = "insert"
_WRITER = WriterProperties(compression="SNAPPY", statistics_truncate_length=64)


class Table(PinnedTable):
    """A Delta table at one location and the handle this object reads through.

    Not safe for several threads: each service and each committing thread holds its own.
    """

    def __init__(
        self,
        location: str,
        schema: TableSchema,
        storage_options: Mapping[str, str] | None = None,
        *,
        commit_attempts: int = 20,
    ) -> None:
        """Open nothing yet; the first use does."""
        super().__init__(schema.name, location, storage_options)
        self.schema = schema
        self._attempts = commit_attempts

    # --- making ---------------------------------------------------------------------------

    def exists(self) -> bool:
        """Whether a Delta table is there."""
        try:
            return DeltaTable.is_deltatable(self.location, self._options or None)
        except (DeltaError, OSError) as error:
            problem = f"cannot be looked up at {self.location} ({type(error).__name__})"
            raise StorageError(self.name, problem) from error

    def create(self, checkpoint_interval: int, extra: Mapping[str, str] | None = None) -> None:
        """Make the table if it is not there (one commit); two makers at once are fine."""
        try:
            self._create(checkpoint_interval, extra or {})
        except CommitRefusedError:
            # The other maker was first, and made the same table.
            if not self.exists():
                raise
        self._handle = None

    def _create(self, checkpoint_interval: int, extra: Mapping[str, str]) -> None:
        with translated(self.name):
            DeltaTable.create(
                self.location,
                schema=self.schema.columns,
                mode="ignore",
                partition_by=list(self.schema.partition_by) or None,
                configuration={**self.schema.properties(checkpoint_interval), **extra},
                storage_options=self._options or None,
                raise_if_key_not_exists=False,
            )

    def set_properties(self, values: Mapping[str, str]) -> None:
        """Set properties of the table: one commit."""
        with translated(self.name):
            self.handle.alter.set_table_properties(dict(values), raise_if_not_exists=False)
        self.refresh()

    def check_columns(self, columns: Sequence[pa.Field]) -> list[Field]:
        """Those of the columns that are missing.

        Raises: StorageError where a column of the name is there and is another one.
        """
        wanted = Schema.from_arrow(pa.schema(columns)).fields
        # Spark tells no names apart that differ in case alone.
        there = {field.name.lower(): (field.name, field.type) for field in self._fields()}
        found = [(field, there.get(field.name.lower())) for field in wanted]
        clashes = [f.name for f, other in found if other not in (None, (f.name, f.type))]
        if clashes:
            problem = f"has other columns of the names {', '.join(clashes)}; choose others"
            raise StorageError(self.name, problem)
        return [field for field, other in found if other is None]

    def add_columns(self, columns: Sequence[pa.Field]) -> None:
        """Add what is missing behind the other columns, null in all rows: one commit, or none.

        Raises: as `check_columns`.
        """
        missing = self.check_columns(columns)
        if missing:
            with translated(self.name):
                self.handle.alter.add_columns(missing)
            self.reopen()

    def _fields(self) -> list[Field]:
        return list(self.handle.schema().fields)

    def _check(self, handle: DeltaTable) -> None:
        written = handle.metadata().configuration.get(SCHEMA_VERSION_PROPERTY)
        if written is None or not str(written).isdecimal():
            raise StoreFormatError(
                self.name, "is a Delta table but not one of txmq; check the location"
            )
        if int(str(written)) > SCHEMA_VERSION:
            problem = f"has schema version {written}, this txmq reads {SCHEMA_VERSION}; upgrade it"
            raise IncompatibleVersionError(self.name, problem)

    # --- reading ---------------------------------------------------------------------------

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table as it is: a typed topic has more than its `schema` names."""
        known = self.schema.columns
        found = pa.schema(self.handle.schema().to_arrow())
        return pa.schema([*known, *(column for column in found if column.name not in known.names)])

    def _columns_of(self, names: Sequence[str]) -> pa.Schema:
        known = self.schema.columns
        columns = known if set(names) <= set(known.names) else self.columns
        return pa.schema([columns.field(name) for name in names])

    def files(self) -> list[DataFile]:
        """All live files."""
        return self._chosen(lambda actions: np.ones(actions.num_rows, dtype=bool))

    def files_holding(self, column: str, values: pa.Array) -> list[DataFile]:
        """Live files whose range of `column` covers at least one of `values`, in any order.

        Each value is looked up by itself, so one old id does not widen the range to all files.
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
        found = []
        for number in range(metadata.num_row_groups):
            low, high = row_group_ranges(metadata, number, columns)
            found.append(FilePart(part.file, {**part.low, **low}, {**part.high, **high}, number))
        return found

    def read_part(self, part: FilePart, columns: Sequence[str]) -> pa.Table | None:
        """The rows of a file or of one of its row groups; None where the file is gone."""
        schema = self._columns_of(columns)
        stored = [name for name in columns if name not in self.schema.partition_by]
        found = self._unless_gone(lambda: self._stored(part.file, stored, part.row_group))
        return None if found is None else with_partition(found, part.file, schema)

    def _unless_gone(self, read: Callable[[], Result]) -> Result | None:
        def looked() -> Result | None:
            try:
                return read()
            except FileNotFoundError:
                return None

        return read_again(self.name, looked)

    def _chosen(self, keep: Callable[[pa.Table], np.ndarray[Any, Any]]) -> list[DataFile]:
        actions = self._actions()
        return self._as_files(actions.filter(pa.array(keep(actions))))

    def _actions(self) -> pa.Table:
        with translated(self.name):
            return pa.table(self.handle.get_add_actions(flatten=True))

    def _as_files(self, kept: pa.Table) -> list[DataFile]:
        partitions = [kept[f"partition.{key}"].to_pylist() for key in self.schema.partition_by]
        return [
            DataFile(
                path,
                records or 0,
                size,
                dict(zip(self.schema.partition_by, keys, strict=True)),
                modified_ms,
            )
            for path, records, size, modified_ms, *keys in zip(
                kept["path"].to_pylist(),
                kept["num_records"].to_pylist(),
                kept["size_bytes"].to_pylist(),
                kept["modification_time"].cast(pa.int64()).to_pylist(),
                *partitions,
                strict=True,
            )
        ]

    def read(self, files: Sequence[DataFile], columns: Sequence[str]) -> pa.Table:
        """The rows of `files`, in the order of the files."""
        schema = self._columns_of(columns)
        if not files:
            return schema.empty_table()
        stored = [name for name in columns if name not in self.schema.partition_by]
        return pa.concat_tables(
            [with_partition(self._stored_again(file, stored), file, schema) for file in files]
        )

    def rows_of(self, column: str, values: pa.Array, columns: Sequence[str]) -> pa.Table:
        """All rows whose `column` is one of `values`, reading only the files that may hold them."""
        wanted_columns = columns if column in columns else [column, *columns]
        files = [f for f in self.files_holding(column, values) if self._holds(f, column, values)]
        found = self.read(files, wanted_columns)
        is_wanted = pc.is_in(found[column], value_set=values)
        # A large transaction fills its files alone; a filter would copy them.
        if not pc.all(is_wanted, min_count=0).as_py():
            found = found.filter(is_wanted)
        return found.select(list(columns))

    def _holds(self, file: DataFile, column: str, wanted: pa.Array) -> bool:
        """Statistics are a range; of a large file one column is read before all the others are."""
        if file.num_records < LARGE_FILE_ROWS or len(wanted) > file.num_records // 100:
            # Many ids: a hash of all of them for each file would cost more than it spares.
            return True
        return bool(pc.any(pc.is_in(self.read([file], [column])[column], value_set=wanted)).as_py())

    def changes(self, start: int, end: int, columns: Sequence[str]) -> pa.Table:
        """Rows appended by the versions `start` to `end`, with `_commit_version`.

        It goes by `end` and not by the handle, as delta-rs's change feed does.

        Raises: StorageError where `end` is not there; delta-rs would clamp it in silence.
        """
        schema = pa.schema([self.schema.columns.field(name) for name in columns])
        full = schema.append(pa.field("_commit_version", pa.int64()))
        if start > end:
            return full.empty_table()
        self._reach(end)
        wanted = full.append(pa.field("_change_type", pa.string()))
        found = read_again(
            self.name,
            lambda: pa.table(self.handle.load_cdf(start, end, columns=wanted.names)),
        )
        rows = found.select(wanted.names).cast(wanted)
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
        """The rows of one file in its own order, `rows` at a time, with bounded memory."""
        stored = [name for name in columns if name not in self.schema.partition_by]
        with self.filesystem.open_input_file(file.path) as source:
            # Without a buffer size a whole column of a row group is held.
            reader = pq.ParquetFile(
                source,
                pre_buffer=False,
                buffer_size=READ_BUFFER_BYTES,
                coerce_int96_timestamp_unit="us",
            )
            yield from reader.iter_batches(rows, columns=stored, use_threads=False)

    # --- writing ---------------------------------------------------------------------------

    def append(self, rows: pa.Table, *, app_id: str, number: int) -> int:
        """Append `rows` in one commit, once, under a number that only this writer counts up.

        After an unknown answer the number is looked up before the next try, so that a commit
        whose answer was lost is not made twice. Returns the version that holds it.

        Raises: CommitConflictError, UnknownCommitError, StoreFullError, ReadOnlyStoreError,
            StorageError.
        """
        files = self.new_files(rows)
        reached(FailPoint.FILES_WRITTEN)
        return self.append_files(files, app_id=app_id, number=number)

    def append_files(self, files: Sequence[NewFile], *, app_id: str, number: int) -> int:
        """As `append`, for Parquet files that are written already."""
        return self._once(app_id, number, lambda marks: self.swap_files(files, marks))

    def _once(self, app_id: str, number: int, write: Callable[[Mapping[str, int]], None]) -> int:
        if self._handle is None:
            # A table that cannot be opened got no commit.
            self.reopen()
        for attempt in range(self._attempts):
            try:
                write({app_id: number})
            except StorageError as error:
                if self._has_landed(app_id, number):
                    return self.version
                if not isinstance(error, CommitRefusedError):
                    raise
                pause(attempt)
            else:
                return self.refresh().version
        raise CommitConflictError(
            self.name, f"other writers won {self._attempts} times; write less often"
        )

    def _has_landed(self, app_id: str, number: int) -> bool:
        try:
            self.reopen()
        except StorageError as error:
            problem = "gave no answer to a commit and cannot be read; it may or may not be there"
            raise UnknownCommitError(self.name, problem) from error
        return (self.mark(app_id) or 0) >= number

    def swap(self, rows: pa.Table, marks: Mapping[str, int]) -> None:
        """Append `rows` and `marks` in one commit, only if nobody moved these marks meanwhile.

        It goes through the pinned handle, so the marks that were read from it are the ones that
        are compared; afterwards it shows this commit. Raises CommitRefusedError where another
        writer was first.
        """
        files = self.new_files(rows)
        reached(FailPoint.FILES_WRITTEN)
        self.swap_files(files, marks)
        self.refresh()

    def new_files(self, rows: pa.Table) -> list[NewFile]:
        """Write `rows` into files beside the log, one for each partition; 0 commits.

        At 400 live files delta-rs's own writer takes 38 ms for one row, this and a commit 7.
        """
        statistics = self.schema.statistics_columns or self.schema.columns.names
        with translated(self.name):
            return [
                write_file([part], part.schema, self.filesystem, statistics, values)
                for values, part in partition_columns(rows, self.schema.partition_by)
            ]

    def swap_files(self, files: Sequence[NewFile], marks: Mapping[str, int]) -> None:
        """As `swap`, for Parquet files that are written already."""
        self._write_transaction([_add_action(file) for file in files], marks)

    def rewrite(self, old: Sequence[DataFile], new: Sequence[NewFile]) -> None:
        """Put files with the same rows in the place of others: one commit, no news to any reader.

        delta-rs lets two writers put the same file away, which would double its rows; the mark
        keeps off other calls of this method, `compaction` looks for other programs.

        Raises: CommitRefusedError where another call was first, or somebody deleted rows.
        """
        modified_ms = max((file.modified_ms for file in old), default=None)
        removed = [_remove_action(file, is_news=False) for file in old]
        added = [_add_action(file, modified_ms) for file in new]
        self._commit_actions([*removed, *added])

    def remove(self, files: Sequence[DataFile]) -> None:
        """Take the rows of whole files out of the table: one commit. Raises: CommitRefusedError."""
        self._commit_actions([_remove_action(file, is_news=True) for file in files])

    def replace_files(self, files: Sequence[NewFile], marks: Mapping[str, int]) -> None:
        """As `swap_files`, but `files` become all that the table holds, which is news to readers.

        Raises: CommitRefusedError where another writer moved these marks or rewrote files.
        """
        removed = [_remove_action(file, is_news=True) for file in self.files()]
        self._commit_actions([*removed, *map(_add_action, files)], marks)

    def _commit_actions(
        self, actions: list[Any], more_marks: Mapping[str, int] | None = None
    ) -> None:
        marks = {REWRITE_MARK: (self.mark(REWRITE_MARK) or 0) + 1, **(more_marks or {})}
        self._write_transaction(actions, marks)
        self.refresh()

    def checkpoint(self) -> None:
        """Write the state of this version beside the log, so that readers need no older commit."""
        with translated(self.name):
            self.handle.create_checkpoint()

    def replace(self, rows: pa.Table, marks: Mapping[str, int]) -> None:
        """As `swap`, but `rows` become all that the table holds."""
        self._write_rows(rows, marks, mode="overwrite", writer_properties=_WRITER)


# --- helpers ------------------------------------------------------------------------------------


def _add_action(file: NewFile, compacted_of_ms: int | None = None) -> AddAction:
    now_ms = time.time_ns() // 1_000_000
    return AddAction(
        path=file.path,
        size=file.size_bytes,
        partition_values=dict(file.partition),
        modification_time=now_ms if compacted_of_ms is None else compacted_of_ms,
        data_change=compacted_of_ms is None,
        stats=file.stats_json,
    )


def _remove_action(file: DataFile, *, is_news: bool) -> RemoveAction:
    return RemoveAction(
        file.path,
        data_change=is_news,
        deletion_timestamp=time.time_ns() // 1_000_000,
        size=file.size_bytes,
        partition_values=partition_texts(file.partition),
    )
