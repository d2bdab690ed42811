"""Writes one of txmq's own Delta tables: create, append once, compare-and-swap, rewrite, remove.

delta-rs makes all commits of a store on a path, because it creates a log file only if the file
does not exist yet. Spark's default log store on a local disk ends in a plain rename, which can
overwrite the commit of another process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema, WriterProperties
from deltalake.transaction import AddAction, RemoveAction

from txmq.delta.files import DataFile, partition_columns, partition_texts
from txmq.delta.parquet import NewFile, write_file
from txmq.delta.pinned import pause, translated
from txmq.delta.reading import ReadTable
from txmq.delta.schemas import TableSchema
from txmq.errors import (
    CommitConflictError,
    CommitRefusedError,
    StorageError,
    UnknownCommitError,
)
from txmq.fail_points import FailPoint, reached

REWRITE_MARK = "txmq-rewrite"
_WRITER = WriterProperties(compression="SNAPPY", statistics_truncate_length=64)


class Table(ReadTable):
    """A Delta table of txmq at one location, read and committed to through the pinned version.

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
        super().__init__(location, schema, storage_options)
        self._attempts = commit_attempts

    # --- making ---------------------------------------------------------------------------

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
