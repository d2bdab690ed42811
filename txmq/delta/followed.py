"""Follows the log of one of txmq's own tables: the version that is pinned, its files and marks."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from itertools import compress, takewhile
from typing import Self

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from txmq.delta.actions import Seen, commit_path, stamp_of
from txmq.delta.failures import MISSING, begin_use, failed_read, read_again, refuse_panic
from txmq.delta.files import Bounds, DataFile, FilePart, FileRange, covering
from txmq.delta.folder import NOT_FOUND, REQUESTS_AT_ONCE, TableFolder
from txmq.delta.replay import KeptLog, follow, kept_log, parsed_commit, replayed
from txmq.delta.schemas import SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY, TableSchema
from txmq.delta.snapshot import Definition, LiveFile, Snapshot
from txmq.errors import IncompatibleVersionError, StoreFormatError, UnsupportedTableError

# A follower looks for the next commit by its name, so it would wait for one that is lost. It lists
# the log from time to time.
LIST_EVERY_S = 60.0
# Clean-up keeps each commit for longer (`log_reserved_time_s`).
FRESH_S = 5.0
# Who is further behind begins at a checkpoint.
FOLLOWED_MAX = 5_000


class FollowedTable(TableFolder):
    """A Delta table of txmq at one location, and the version of it that this object is pinned to.

    Not safe for several threads: each service and each committing thread holds its own.
    """

    def __init__(
        self, location: str, schema: TableSchema, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Open nothing yet; the first use does."""
        super().__init__(schema.name_in_errors(location), location, storage_options)
        self.schema = schema
        self._snapshot: Snapshot | None = None
        self._listed_s = self._missed_s = -math.inf
        self._looked_s = self._compared_s = -math.inf

    def exists(self) -> bool:
        """Whether there is a Delta table at the location. Raises: StorageError.

        A table that was not there begins with commit 0. So a look at that name takes the place of a
        listing, which costs twelve times as much on an object store; but not for long, because log
        clean-up removes it some minutes later.
        """
        begin_use()
        if time.monotonic() - self._missed_s < LIST_EVERY_S:
            return self.has_commit(0)
        is_there = self._is_listed()
        self._missed_s = -math.inf if is_there else time.monotonic()
        return is_there

    def doubt_absence(self) -> None:
        """Let the next `exists` list the log, also soon after one that found nothing."""
        self._missed_s = -math.inf

    def _is_listed(self) -> bool:
        try:
            return DeltaTable.is_deltatable(self.location, self._options or None)
        except (DeltaError, OSError) as error:
            raise failed_read(self.name, error) from error
        except BaseException as error:
            refuse_panic(error)
            raise

    @property
    def snapshot(self) -> Snapshot:
        """The version that this object is pinned to."""
        begin_use()
        if self._snapshot is None:
            self._snapshot = self._opened()
        return self._snapshot

    def refresh(self) -> Self:
        """Pin the newest version; returns the object itself. Raises: StorageError."""
        self._pin(None)
        return self

    def _pin(self, through: int | None) -> None:
        """Follow the log up to a version, or to its end."""
        begin_use()
        snapshot = self._snapshot
        if snapshot is None or not read_again(self.name, lambda: self._follow(snapshot, through)):
            self._snapshot = self._opened()

    def reopen(self) -> Self:
        """As `refresh`, by the whole log. Raises: StorageError."""
        self._snapshot = self._opened()
        return self

    def _opened(self) -> Snapshot:
        begin_use()
        snapshot = read_again(self.name, lambda: replayed(self, MISSING))
        self._check(snapshot.definition)
        self._listed_s = time.monotonic()
        return snapshot

    def kept_log(self) -> KeptLog:
        """The newest version with all files that the kept log names; it is not pinned.

        Raises: StoreNotFoundError, StorageError.
        """
        begin_use()
        log = kept_log(self)
        self._check(log.snapshot.definition)
        return log

    def _follow(self, snapshot: Snapshot, through: int | None = None) -> bool:
        """Follow the commits one by one; false where the log has to be read as a whole."""
        last, at_once = snapshot.seen.version + FOLLOWED_MAX, 1
        while (seen := snapshot.seen).version < last:
            if seen.version == through:
                return True
            until = min(last if through is None else through, seen.version + at_once)
            following, pinned = self._looked_up(seen.version, until)
            if pinned.type is NOT_FOUND or stamp_of(pinned) != seen.stamp:
                # The log was cleaned up to here, or replaced.
                return False
            if not following:
                return not self._is_broken_off(seen.version)
            self._take(snapshot, following)
            # Who is far behind looks for several commits together.
            at_once = min(2 * at_once, REQUESTS_AT_ONCE)
        return False

    def _looked_up(self, version: int, until: int) -> tuple[list[Seen], pa_fs.FileInfo]:
        """The commits after a version, up to the first that is not there; and its own file."""
        later = range(version + 1, until + 1)
        # In this order: a clean-up deletes the oldest first, so a pinned commit that is there after
        # the look for later ones says that nothing was deleted between the two.
        if len(later) == 1:
            *infos, pinned = self._commit_files(*later, version)
        else:
            infos = self._commit_files(*later)
            (pinned,) = self._commit_files(version)
        pairs = zip(later, infos, strict=True)
        there = takewhile(lambda pair: pair[1].type is not NOT_FOUND, pairs)
        return [Seen(number, stamp_of(info)) for number, info in there], pinned

    def _take(self, snapshot: Snapshot, following: Sequence[Seen]) -> None:
        contents = self.fetched([commit_path(seen.version) for seen in following])
        for seen in following:
            content = self.commit_among(contents, seen.version)
            if content is None:
                raise FileNotFoundError(seen.version)
            actions = parsed_commit(self.name, seen.version, content)
            definition = snapshot.definition.after(actions)
            if definition is not snapshot.definition:
                self._check(definition)
            follow(self.name, snapshot, seen, actions)

    def _is_broken_off(self, version: int) -> bool:
        """Whether a commit is missing before later ones; looks from time to time only."""
        if time.monotonic() - self._listed_s < LIST_EVERY_S:
            return False
        self._listed_s = time.monotonic()
        return self._lacks_next(version)

    def _lacks_next(self, version: int) -> bool:
        # One that came after the look for it is there by its name.
        return self.newest_commit() > version and not self.has_commit(version + 1)

    def lost_commits(self) -> list[str]:
        """Commit files without content, which readers pass over; rows that lack may be theirs.

        Raises: StorageError where a commit is missing before later ones.
        """
        version = self.version
        if self.snapshot.empty or self._lacks_next(version):
            # They may be back, or the gap be filled.
            self.reopen()
        return [commit_path(version) for version in self.snapshot.empty]

    @property
    def emptied_commit(self) -> str | None:
        """The commit file of the pinned version, if it has lost its content; None else."""
        empty = self.snapshot.empty
        return commit_path(self.version) if empty and empty[-1] == self.version else None

    def has_news(self) -> bool:
        """Whether there is a newer version; one lookup of two file names, or of one.

        Log clean-up keeps the newest commit, so a pinned commit that is gone is an old one. On an
        object store each name is a request; there the pinned one is left out where the last look is
        so fresh that no clean-up can have passed both. Whoever follows looks at it in any case.
        """
        newest, now_s = self._newest_known().version, time.monotonic()
        is_fresh = now_s - self._looked_s < FRESH_S and now_s - self._compared_s < LIST_EVERY_S
        self._looked_s = now_s
        if is_fresh and self.objects.is_remote:
            return self.has_commit(newest + 1)
        pinned, following = self.commit_infos(newest, newest + 1)
        self._compared_s = now_s
        return pinned.type is NOT_FOUND or following.type is not NOT_FOUND

    def _newest_known(self) -> Seen:
        """The newest commit that this object has seen; only later ones are news."""
        return self.snapshot.seen

    def _check(self, definition: Definition) -> None:
        """Raise StorageError for a table that must not be used."""
        written = definition.properties.get(SCHEMA_VERSION_PROPERTY)
        if written is None or not written.isdecimal():
            raise StoreFormatError(
                self.name, "is a Delta table but not one of txmq; check the location"
            )
        if int(written) > SCHEMA_VERSION:
            problem = f"has schema version {written}, this txmq reads {SCHEMA_VERSION}; upgrade it"
            raise IncompatibleVersionError(self.name, problem)
        if definition.unsupported:
            raise UnsupportedTableError(self.name, definition.unsupported)

    @property
    def version(self) -> int:
        """The version this object is pinned to."""
        return self.snapshot.version

    @property
    def table_id(self) -> str:
        """The id of the table; a table that was created again has another."""
        return self.snapshot.definition.table_id

    @property
    def column_names(self) -> Sequence[str]:
        """The columns of the stored table; an earlier txmq may have made fewer."""
        return list(self.snapshot.definition.columns.names)

    def properties(self) -> dict[str, str]:
        """The properties of the table."""
        return dict(self.snapshot.definition.properties)

    def mark(self, app_id: str) -> int | None:
        """The newest number committed under `app_id` in the pinned version; None without one."""
        return self.snapshot.marks.number(app_id)

    def marks(self, prefix: str) -> dict[str, int]:
        """All marks whose names begin so."""
        return self.snapshot.marks.with_prefix(prefix)

    @property
    def columns(self) -> pa.Schema:
        """The columns of the stored table; a typed topic has more than `schema` names."""
        named = self.schema.columns
        stored = self.snapshot.definition.columns
        return pa.schema([*named, *(column for column in stored if column.name not in named.names)])

    def _columns_of(self, names: Sequence[str]) -> pa.Schema:
        named = self.schema.columns
        columns = named if set(names) <= set(named.names) else self.columns
        return pa.schema([columns.field(name) for name in names])

    # --- its files ------------------------------------------------------------------------------

    def files(self) -> list[DataFile]:
        """All live files."""
        return self.as_files(self.snapshot.files)

    def files_holding(self, column: str, values: pa.Array) -> list[DataFile]:
        """Live files whose range of `column` covers at least one of `values`, in any order.

        Each value is compared by itself, so that one old id does not select all files.
        """
        return [span.file for span in self.ranges_holding(column, values)]

    def files_beyond(self, column: str, value: int | str) -> list[DataFile]:
        """Live files that may hold rows with `column` above `value`."""
        files, bounds = self.snapshot.files, self.snapshot.bounds(column)
        pairs = zip(files, bounds, strict=True)
        return self.as_files([file for file, (_, high) in pairs if high is None or high > value])

    def files_up_to(self, column: str, value: int) -> list[DataFile]:
        """Live files that may hold rows with `column` at `value` or below."""
        files, bounds = self.snapshot.files, self.snapshot.bounds(column)
        pairs = zip(files, bounds, strict=True)
        return self.as_files([file for file, (low, _) in pairs if low is None or low <= value])

    def ranges(self, column: str) -> list[FileRange]:
        """All live files, each with its smallest and largest value of `column`."""
        files = self.snapshot.files
        return self._as_ranges(files, self.snapshot.bounds(column))

    def ranges_holding(self, column: str, values: pa.Array) -> list[FileRange]:
        """As `files_holding`, each file with its smallest and largest value of `column`."""
        if len(values) == 0:
            return []
        files = self.snapshot.files
        bounds = self.snapshot.bounds(column)
        is_kept = covering(bounds, values)
        return self._as_ranges(list(compress(files, is_kept)), list(compress(bounds, is_kept)))

    def parts(self, columns: Sequence[str]) -> list[FilePart]:
        """All live files, each with its ranges of `columns`."""
        files = self.snapshot.files
        bounds = {name: self.snapshot.bounds(name) for name in columns}
        return [
            FilePart(
                file,
                {name: pairs[number][0] for name, pairs in bounds.items()},
                {name: pairs[number][1] for name, pairs in bounds.items()},
            )
            for number, file in enumerate(self.as_files(files))
        ]

    def _as_ranges(self, files: Sequence[LiveFile], bounds: Sequence[Bounds]) -> list[FileRange]:
        pairs = zip(self.as_files(files), bounds, strict=True)
        return [FileRange(file, low, high) for file, (low, high) in pairs]

    def as_files(self, files: Sequence[LiveFile]) -> list[DataFile]:
        """Files of the log as data files, with typed partition values."""
        columns = self.schema.columns
        kinds = {name: columns.field(name).type for name in self.schema.partition_by}
        return [file.data_file(kinds) for file in files]
