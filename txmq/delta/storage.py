"""Writes one of txmq's own Delta tables: create, append once, compare-and-swap, rewrite, remove.

delta-rs makes all commits of a store on a path, because it creates a log file only if the file
does not exist yet. Spark's default log store on a local disk ends in a plain rename, which can
overwrite the commit of another process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema, WriterProperties
from deltalake.transaction import AddAction, RemoveAction

from txmq.clock import elapsed_ms
from txmq.delta.failures import translated
from txmq.delta.files import DataFile, partition_columns, partition_texts
from txmq.delta.forks import begin_use
from txmq.delta.parquet import NewFile, write_file
from txmq.delta.reading import ReadTable
from txmq.delta.retries import pause
from txmq.delta.schemas import SWEPT_PROPERTY, TableSchema
from txmq.errors import (
    CommitConflictError,
    CommitRefusedError,
    FilesSweptError,
    StorageError,
    UnknownCommitError,
)
from txmq.fail_points import FailPoint, reached

REWRITE_MARK = "txmq-rewrite"
# Files that waited longer for their commit are looked up right before it.
LOOK_AFTER_MS = 60_000
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
        """Create the table unless it exists (one commit); two processes may do it at once."""
        try:
            self._create(checkpoint_interval, extra or {})
        except CommitRefusedError:
            # Another process was first and created the same table.
            if not self.exists():
                raise
        self._handle = None

    def _create(self, checkpoint_interval: int, extra: Mapping[str, str]) -> None:
        begin_use()
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
        """Set properties of the table: one commit. Raises: CommitRefusedError, StorageError."""
        with translated(self.name):
            self.handle.alter.set_table_properties(dict(values), raise_if_not_exists=False)
        self.refresh()

    def check_columns(self, columns: Sequence[pa.Field]) -> list[Field]:
        """The columns that the table lacks.

        Raises: StorageError where the table has a column of the same name and another type.
        """
        fields = Schema.from_arrow(pa.schema(columns)).fields
        # Spark cannot tell names apart that differ only in case.
        stored = {field.name.lower(): (field.name, field.type) for field in self._fields()}
        pairs = [(field, stored.get(field.name.lower())) for field in fields]
        clashes = [f.name for f, other in pairs if other not in (None, (f.name, f.type))]
        if clashes:
            problem = f"has other columns of the names {', '.join(clashes)}; choose others"
            raise StorageError(self.name, problem)
        return [field for field, other in pairs if other is None]

    def add_columns(self, columns: Sequence[pa.Field]) -> None:
        """Add the missing columns as the last ones, null in all rows: one commit, or none.

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
        """Append `rows` in one commit, exactly once.

        After a commit without an answer the mark `app_id` is looked up before the next try, so
        that a commit whose answer was lost is not made twice.

        Args:
            rows: the rows to append.
            app_id: a name that only this writer uses.
            number: a number that this writer has not used; numbers must increase.

        Returns:
            The version of the table that holds the rows; the newest one if log clean-up has taken
            the commit meanwhile.

        Raises: CommitConflictError, UnknownCommitError, StoreFullError, ReadOnlyStoreError,
            StorageError.
        """
        try:
            return self._append_new(rows, app_id, number)
        except FilesSweptError:
            # The process slept longer than files without a commit are kept.
            return self._append_new(rows, app_id, number)

    def _append_new(self, rows: pa.Table, app_id: str, number: int) -> int:
        files = self.new_files(rows)
        reached(FailPoint.FILES_WRITTEN)
        return self.append_files(files, app_id=app_id, number=number)

    def append_files(self, files: Sequence[NewFile], *, app_id: str, number: int) -> int:
        """As `append`, for Parquet files that are already written.

        Raises: as `append`; FilesSweptError if they waited too long.
        """
        return self._once(app_id, number, lambda marks: self.swap_files(files, marks))

    def _once(self, app_id: str, number: int, write: Callable[[Mapping[str, int]], None]) -> int:
        if self._handle is None:
            # Opened first: if that fails, nothing was committed.
            self.reopen()
        problem = ""
        for attempt in range(self._attempts):
            pinned = self.version
            try:
                write({app_id: number})
            except StorageError as error:
                if self._has_landed(app_id, number):
                    return self.version_of(app_id, number)
                if isinstance(error, FilesSweptError) or not isinstance(error, CommitRefusedError):
                    raise
                problem = str(error)
                pause(attempt)
            else:
                return self._version_after(pinned, app_id, number)
        raise CommitConflictError(
            self.name, f"no try of {self._attempts} succeeded, the last one because {problem}"
        )

    def _version_after(self, pinned: int, app_id: str, number: int) -> int:
        """The version of a commit that succeeded through a handle at `pinned`."""
        # A look that fails must not hide that the commit succeeded.
        with suppress(StorageError):
            is_alone = self.refresh().version == pinned + 1
            return self.version if is_alone else self.version_of(app_id, number)
        self._handle = None
        return pinned + 1

    def version_of(self, app_id: str, number: int) -> int:
        """The version with this mark in its commit; the pinned one if its commit is gone."""
        for version in range(self.version, -1, -1):
            marks = self.marks_of(version)
            if marks is None or marks.get(app_id) == number:
                return self.version if marks is None else version
        return self.version

    def _has_landed(self, app_id: str, number: int) -> bool:
        try:
            return (self.reopen().mark(app_id) or 0) >= number
        except StorageError as error:
            problem = (
                "gave no answer to a commit and cannot be read; look whether the commit is there"
            )
            raise UnknownCommitError(self.name, problem) from error

    def swap(self, rows: pa.Table, marks: Mapping[str, int]) -> None:
        """Append `rows` and `marks` in one commit, only if nobody moved these marks meanwhile.

        The marks of the pinned version are the ones that are compared. Afterwards the table is
        pinned to a version with this commit.

        Raises: CommitRefusedError where another writer was first; StorageError.
        """
        files = self.new_files(rows)
        reached(FailPoint.FILES_WRITTEN)
        self.swap_files(files, marks)
        self.refresh()

    def new_files(self, rows: pa.Table) -> list[NewFile]:
        """Write `rows` into files beside the log, one for each partition; 0 commits.

        delta-rs's own writer costs more with each live file (docs/decisions/0009).
        """
        statistics = self.schema.statistics_columns or self.schema.columns.names
        with translated(self.name):
            return [
                write_file([part], part.schema, self.filesystem, statistics, values)
                for values, part in partition_columns(rows, self.schema.partition_by)
            ]

    def swap_files(self, files: Sequence[NewFile], marks: Mapping[str, int]) -> None:
        """As `swap`, for Parquet files that are already written. Does not refresh.

        Raises: as `swap`; FilesSweptError if they waited too long.
        """
        self._check_kept(files)
        self._write_transaction([_add_action(file) for file in files], marks)

    def rewrite(self, old: Sequence[DataFile], new: Sequence[NewFile]) -> None:
        """Replace files by files with the same rows: one commit, which no reader sees as news.

        delta-rs lets two writers remove the same file, which would double its rows. A mark
        refuses two calls of this method at once; `compaction` detects other programs
        (docs/decisions/0011).

        Raises: CommitRefusedError where another call was first, or somebody deleted rows.
        """
        self._check_kept(new)
        modified_ms = max((file.modified_ms for file in old), default=None)
        removed = [_remove_action(file, is_news=False) for file in old]
        added = [_add_action(file, modified_ms) for file in new]
        self._commit_actions([*removed, *added])

    def remove(self, files: Sequence[DataFile], marks: Mapping[str, int] | None = None) -> None:
        """Remove whole files and so their rows, and set marks: one commit.

        Raises: CommitRefusedError where another writer moved these marks or rewrote files.
        """
        self._commit_actions([_remove_action(file, is_news=True) for file in files], marks)

    def replace_files(self, files: Sequence[NewFile], marks: Mapping[str, int]) -> None:
        """As `swap_files`, but `files` replace all files of the table; readers see the change.

        Raises: CommitRefusedError where another writer moved these marks or rewrote files.
        """
        self._check_kept(files)
        removed = [_remove_action(file, is_news=True) for file in self.files()]
        self._commit_actions([*removed, *map(_add_action, files)], marks)

    def _commit_actions(
        self, actions: list[Any], more_marks: Mapping[str, int] | None = None
    ) -> None:
        marks = {REWRITE_MARK: (self.mark(REWRITE_MARK) or 0) + 1, **(more_marks or {})}
        self._write_transaction(actions, marks)
        self.refresh()

    def fence_files(self, written_ms: int) -> None:
        """Refuse files that were written up to a time and that no commit names yet: one commit.

        Delta refuses a commit through a handle from before this one, because the properties have
        changed since; `_check_kept` refuses the files of every later handle (decision 0029).

        Raises: CommitRefusedError, StorageError.
        """
        fenced_ms = max(written_ms, self._fenced_ms())
        self.set_properties({SWEPT_PROPERTY: str(fenced_ms)})

    def _fenced_ms(self) -> int:
        return int(self.properties().get(SWEPT_PROPERTY, -1))

    def _check_kept(self, files: Sequence[NewFile]) -> None:
        """Raise FilesSweptError if maintenance may have removed a file that is not committed."""
        fenced_ms, now_ms = self._fenced_ms(), elapsed_ms()
        if fenced_ms < 0 and all(now_ms - file.made_ms < LOOK_AFTER_MS for file in files):
            return
        written_ms = self.written_ms([file.path for file in files])
        swept = [f for f in files if written_ms.get(f.path, fenced_ms) <= fenced_ms]
        if swept:
            problem = f"maintenance may have removed {len(swept)} files that waited for this commit"
            next_step = "nothing was committed; write the rows again"
            raise FilesSweptError(self.name, f"{problem}; {next_step}")

    def checkpoint(self) -> None:
        """Write a checkpoint of this version, so that readers need no older commit; 0 commits."""
        with translated(self.name):
            self.handle.create_checkpoint()

    def replace(self, rows: pa.Table, marks: Mapping[str, int]) -> None:
        """As `swap`, but `rows` replace all rows of the table."""
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
