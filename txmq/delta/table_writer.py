"""Writes one of txmq's own tables: create, append once, compare-and-swap, rewrite, remove.

txmq puts these commits itself (decision 0045); delta-rs makes the first one of a table, and changes
its properties and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema

from txmq.delta.actions import (
    REWRITE_MARK,
    AddedFile,
    NewCommit,
    RemovedFile,
    Seen,
    commit_path,
)
from txmq.delta.checkpoints import checkpoint_now, checkpoint_soon
from txmq.delta.commit_writer import CommitWriter, Passed, new_token
from txmq.delta.credentials import with_options
from txmq.delta.failures import begin_use, pause, translated
from txmq.delta.file_rows import SmallFiles
from txmq.delta.files import CommitLimits, DataFile, added_file, partition_columns, removed_file
from txmq.delta.folder import TableFolder
from txmq.delta.parquet import NewFile, small_file, write_file
from txmq.delta.schemas import SWEPT_PROPERTY, TableSchema
from txmq.delta.table_log import LiveFiles, TableLog
from txmq.delta.until_committed import COMMIT_ATTEMPTS
from txmq.errors import (
    CommitConflictError,
    CommitRefusedError,
    FilesSweptError,
    StorageError,
    UnknownCommitError,
)
from txmq.ground.clock import elapsed_ms
from txmq.ground.fail_points import FailPoint, reached
from txmq.ground.random_names import new_uuid

if TYPE_CHECKING:
    from deltalake.table import TableAlterer

# A file up to this size is made in memory and put by one request.
SMALL_FILE_BYTES = 4 * 1024 * 1024
# delta-rs tries no version but the one after the pinned one.
DIRECTLY = CommitProperties(max_commit_retries=0)
# Files that waited longer for their commit are looked up right before it.
LOOK_AFTER_MS = 60_000
# The version that was seen before (None where the log was opened anew since the last own commit,
# and may be another one), the commits of others since (None where they were too many to keep), the
# version of the own commit.
Watch = Callable[[int | None, Sequence[Passed] | None, int], None]


class Base(NamedTuple):
    """A version of a table without its rows: it stays the same while others append alone.

    Attributes:
        rewrites: how often txmq replaced or removed files.
    """

    table_id: str
    properties: Mapping[str, str]
    columns: pa.Schema
    rewrites: int


class TableWriter:
    """Writes one table, on top of what its log has seen. Not safe for several threads.

    Attributes:
        watch: is told of each own commit, and of the commits of others before it.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - the other parts of a table
        self,
        folder: TableFolder,
        schema: TableSchema,
        log: TableLog,
        files: LiveFiles,
        small_files: SmallFiles,
        commit_attempts: int = COMMIT_ATTEMPTS,
    ) -> None:
        """Open nothing yet; the first use does. New small files go into `small_files`, too."""
        self._folder, self._schema, self._log, self._files = folder, schema, log, files
        self._small_files = small_files
        self._name = folder.name
        self._attempts = commit_attempts
        self._commits = CommitWriter(folder)
        self.watch: Watch | None = None

    # Append once.

    def append(self, rows: pa.Table, *, app_id: str, number: int, note: str = "") -> int:
        """Append `rows` in one commit, exactly once.

        The next read through this object sees them; appends alone read nothing.

        After a commit without an answer the mark `app_id` is looked up before the next try, so
        that a commit whose answer was lost is not made twice.

        Args:
            rows: the rows to append.
            app_id: a name that only this writer uses.
            number: a number that this writer has not used; numbers must increase.
            note: what the writer says of these rows to writers that see the commit pass by.

        Returns:
            The version of the table that holds the rows; the newest one if log clean-up has taken
            the commit meanwhile.

        Raises: CommitConflictError, UnknownCommitError, StoreFullError, ReadOnlyStoreError,
            StorageError.
        """
        try:
            return self._append_new(rows, app_id, number, note)
        except FilesSweptError:
            # The process slept longer than files without a commit are kept.
            return self._append_new(rows, app_id, number, note)

    def _append_new(self, rows: pa.Table, app_id: str, number: int, note: str) -> int:
        files = self.new_files(rows)
        reached(FailPoint.FILES_WRITTEN)
        return self.append_files(files, app_id=app_id, number=number, note=note)

    def append_files(
        self, files: Sequence[NewFile], *, app_id: str, number: int, note: str = ""
    ) -> int:
        """Do as `append`, for Parquet files that are already written.

        Raises: as `append`; FilesSweptError if they waited too long.
        """
        # If that fails, nothing was committed.
        self._log.open()
        problem = ""
        for attempt in range(self._attempts):
            try:
                self._check_kept(files)
                added = [added_file(file) for file in files]
                return self._commit(added, (), {app_id: number}, self._log.newest_seen, note)
            except StorageError as error:
                if self._has_landed(app_id, number):
                    return self._log.version_of(app_id, number)
                if isinstance(error, FilesSweptError) or not isinstance(error, CommitRefusedError):
                    raise
                problem = str(error)
                pause(attempt)
        raise CommitConflictError(
            self._name, f"no try of {self._attempts} succeeded, the last one because {problem}"
        )

    def _has_landed(self, app_id: str, number: int) -> bool:
        try:
            return (self._log.reopen().mark(app_id) or 0) >= number
        except StorageError as error:
            problem = (
                "gave no answer to a commit and cannot be read; look whether the commit is there"
            )
            raise UnknownCommitError(self._name, problem) from error

    # Compare and swap.

    def swap(self, rows: pa.Table, marks: Mapping[str, int]) -> None:
        """Append `rows` and `marks` in one commit, only if nobody moved these marks meanwhile.

        The marks of the pinned version are the ones that are compared, or of a later commit of
        this object. The next read through this object sees the commit.

        Raises: CommitRefusedError where another writer was first; StorageError.
        """
        files = self.new_files(rows)
        reached(FailPoint.FILES_WRITTEN)
        self.swap_files(files, marks)

    def swap_files(self, files: Sequence[NewFile], marks: Mapping[str, int]) -> None:
        """Do as `swap`, for Parquet files that are already written.

        Raises: as `swap`; FilesSweptError if they waited too long.
        """
        self._check_kept(files)
        self._commit([added_file(file) for file in files], (), marks, self._log.newest_seen)

    def commit_marks(self, marks: Mapping[str, int]) -> None:
        """Do as `swap` without rows."""
        self._commit((), (), marks, self._log.newest_seen)

    # Replace and remove.

    def replace(self, rows: pa.Table, marks: Mapping[str, int]) -> None:
        """Do as `replace_files`, for rows."""
        self.replace_files(self.new_files(rows), marks)

    def replace_files(
        self, files: Sequence[NewFile], marks: Mapping[str, int], *, is_another_table: bool = False
    ) -> None:
        """Do as `swap_files`, but replace all files of the table; readers see the change.

        With `is_another_table` the table gets another id: its versions are no longer those that a
        stream of Spark has in its checkpoint, and the stream is told so.

        Raises: CommitRefusedError where another writer moved these marks or rewrote files.
        """
        self._check_kept(files)
        removed = [removed_file(file, is_news=True) for file in self._files.all()]
        metadata = self._log.snapshot.definition.metadata_action
        other = {**metadata, "id": str(new_uuid())} if is_another_table else None
        self._replace([added_file(file) for file in files], removed, marks, other)

    def rewrite(self, old: Sequence[DataFile], new: Sequence[NewFile]) -> int:
        """Replace files by files with the same rows; return the version, no news to readers.

        delta-rs lets two writers remove the same file, which would double its rows. This commit is
        refused after another one that removed a file of it; one of delta-rs that comes after it is
        refused by its metadata, an older txmq by a mark (docs/decisions/0011, 0045).

        Raises: CommitRefusedError where another call was first, or somebody deleted rows.
        """
        self._check_kept(new)
        modified_ms = max((file.modified_ms for file in old), default=None)
        removed = [removed_file(file, is_news=False) for file in old]
        return self._replace([added_file(file, modified_ms) for file in new], removed, {})

    def remove(self, files: Sequence[DataFile], marks: Mapping[str, int] | None = None) -> None:
        """Remove whole files and so their rows, and set marks: one commit.

        Raises: CommitRefusedError where another writer moved these marks or rewrote files.
        """
        self._replace((), [removed_file(file, is_news=True) for file in files], marks or {})

    def _replace(
        self,
        added: Sequence[AddedFile],
        removed: Sequence[RemovedFile],
        marks: Mapping[str, int],
        metadata: Mapping[str, Any] | None = None,
    ) -> int:
        since = self._log.newest_seen
        rewrites = {REWRITE_MARK: (self._log.mark(REWRITE_MARK) or 0) + 1}
        if removed and metadata is None:
            metadata = self._log.snapshot.definition.metadata_action
        return self._commit(added, removed, {**rewrites, **marks}, since, metadata=metadata)

    @property
    def base(self) -> Base:
        """What work on the whole pinned version was computed from, but for what others append.

        Who lets others append meanwhile, and so refreshes before the commit, compares it first.
        """
        log = self._log
        return Base(log.table_id, log.properties(), log.columns, log.mark(REWRITE_MARK) or 0)

    # Any commit.

    def _commit(  # noqa: PLR0913, PLR0917 - all that a commit has
        self,
        added: Sequence[AddedFile],
        removed: Sequence[RemovedFile],
        marks: Mapping[str, int],
        since: Seen,
        note: str = "",
        metadata: Mapping[str, Any] | None = None,
    ) -> int:
        """Commit after what this object has seen; return the version of the commit."""
        log, limits = self._log, self._log.limits
        limits.check(self._name, added, removed)
        commit = NewCommit(added, removed, marks, new_token(), note, metadata=metadata)
        with translated(self._name):
            seen, passed = self._commits.commit(since, commit)
        is_same_log = log.has_committed
        log.note_commit(seen)
        if self.watch is not None:
            self.watch(since.version if is_same_log else None, passed, seen.version)
        if limits.is_checkpoint_due(since.version, seen.version):
            checkpoint_soon(self._folder, seen.version, limits.checkpoint_interval)
        return seen.version

    def in_turn(self) -> AbstractContextManager[None]:
        """Let other writers wait while the block computes a commit, but not for ever."""
        return self._commits.in_turn()

    def checkpoint(self) -> None:
        """Write a checkpoint of this version, so that readers need no older commit; 0 commits."""
        checkpoint_now(self._folder, self._log.version)

    # Files that no commit names yet.

    def new_files(self, rows: pa.Table) -> list[NewFile]:
        """Write `rows` into files beside the log, one for each partition; 0 commits.

        delta-rs's own writer costs more with each live file (docs/decisions/0009).
        """
        statistics = self._schema.statistics_columns or self._schema.columns.names
        with translated(self._name):
            return [
                self._new_file(part, values, statistics)
                for values, part in partition_columns(rows, self._schema.partition_by)
            ]

    def _new_file(
        self, rows: pa.Table, partition: Mapping[str, str | None], statistics: Sequence[str]
    ) -> NewFile:
        size_bytes = rows.get_total_buffer_size()
        if size_bytes > SMALL_FILE_BYTES:
            return write_file([rows], rows.schema, self._folder.filesystem, statistics, partition)
        file, content = small_file(rows, statistics, partition)
        self._folder.write_unnamed(file.path, content)
        self._small_files.keep(file.path, rows, size_bytes)
        return file

    def fence_files(self, written_ms: int) -> None:
        """Refuse files that were written up to a time and that no commit names yet: one commit.

        Delta refuses a commit through a handle from before this one, because the properties have
        changed since; `_check_kept` refuses the files of every later handle (decision 0029).

        Raises: CommitRefusedError, StorageError.
        """
        limits = CommitLimits.of(self._log.properties()).at(self._newest_commit_ms())
        fenced_ms = max(written_ms, limits.fenced_ms)
        self.set_properties({SWEPT_PROPERTY: str(fenced_ms)})

    def _check_kept(self, files: Sequence[NewFile]) -> None:
        """Raise FilesSweptError if maintenance may have removed a file that is not committed."""
        limits, now_ms = self._log.limits, elapsed_ms()
        if limits.fenced_ms < 0 and all(now_ms - file.made_ms < LOOK_AFTER_MS for file in files):
            return
        paths = [file.path for file in files]
        written_ms = self._folder.written_ms(paths)
        if limits.swept(written_ms, paths):
            limits = limits.at(self._newest_commit_ms())
        if swept := limits.swept(written_ms, paths):
            problem = f"maintenance may have removed {len(swept)} files that waited for this commit"
            next_step = "nothing was committed; write the rows again"
            raise FilesSweptError(self._name, f"{problem}; {next_step}")

    def _newest_commit_ms(self) -> int | None:
        """Return the store's time of the pinned commit; None if the commit is gone."""
        path = commit_path(self._log.version)
        return self._folder.written_ms([path]).get(path)

    # The definition of the table, by delta-rs.

    def create(self, checkpoint_interval: int, extra: Mapping[str, str] | None = None) -> None:
        """Create the table unless it exists (one commit); two processes may do it at once."""
        try:
            self._create(checkpoint_interval, extra or {})
        except CommitRefusedError:
            # Another process was first and created the same table.
            if not self._log.exists():
                raise
        self._log.forget()

    def _create(self, checkpoint_interval: int, extra: Mapping[str, str]) -> None:
        begin_use()

        def create(options: dict[str, str] | None) -> None:
            DeltaTable.create(
                self._folder.location,
                schema=self._schema.columns,
                mode="ignore",
                partition_by=list(self._schema.partition_by) or None,
                configuration={**self._schema.properties(checkpoint_interval), **extra},
                storage_options=options,
                raise_if_key_not_exists=False,
            )

        with translated(self._name):
            with_options(self._folder.options, create)

    def set_properties(self, values: Mapping[str, str], *, directly: bool = False) -> None:
        """Set properties of the table: one commit.

        What others appended since the pinned version stays before it. With `directly` the commit is
        refused then, because somebody may have to look at it first.

        Raises: CommitRefusedError, StorageError.
        """
        with translated(self._name):
            self._altered().set_table_properties(
                dict(values),
                raise_if_not_exists=False,
                commit_properties=DIRECTLY if directly else None,
            )
        self._log.refresh()

    def check_columns(self, columns: Sequence[pa.Field]) -> list[Field]:
        """Return the columns that the table lacks.

        Raises: StorageError where the table has a column of the same name and another type.
        """
        fields = Schema.from_arrow(pa.schema(columns)).fields
        # Spark cannot tell names apart that differ only in case.
        stored_fields = self._log.snapshot.definition.schema.fields
        stored = {field.name.lower(): (field.name, field.type) for field in stored_fields}
        pairs = [(field, stored.get(field.name.lower())) for field in fields]
        clashes = [f.name for f, other in pairs if other not in (None, (f.name, f.type))]
        if clashes:
            problem = f"has other columns of the names {', '.join(clashes)}; choose others"
            raise StorageError(self._name, problem)
        return [field for field, other in pairs if other is None]

    def add_columns(self, columns: Sequence[pa.Field], *, directly: bool = False) -> None:
        """Add the missing columns as the last ones, null in all rows: one commit, or none.

        `directly` as in `set_properties`.

        Raises: as `check_columns`; CommitRefusedError.
        """
        missing = self.check_columns(columns)
        if missing:
            with translated(self._name):
                self._altered().add_columns(
                    missing, commit_properties=DIRECTLY if directly else None
                )
            self._log.refresh()

    def _altered(self) -> TableAlterer:
        """Return what changes the definition of the pinned version.

        delta-rs refuses where another writer changed it, and goes on behind one who appended.
        """
        location, version = self._folder.location, self._log.version
        handle = with_options(
            self._folder.options,
            lambda options: DeltaTable(location, version=version, storage_options=options),
        )
        return handle.alter
