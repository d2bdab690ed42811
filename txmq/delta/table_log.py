"""The log of one of txmq's own tables: the version that is pinned, its marks and its live files.

A follower looks for the next commit by its name and reads that file alone. It lists the log when
it opens it, and from time to time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import compress, takewhile
from typing import Self

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from txmq.delta.actions import DAMAGES, Seen, commit_actions, commit_path, stamp_of
from txmq.delta.credentials import with_options
from txmq.delta.failures import MISSING, begin_use, failed_read, read_again, refuse_panic
from txmq.delta.files import Bounds, CommitLimits, DataFile, FilePart, FileRange, covering
from txmq.delta.folder import NOT_FOUND, REQUESTS_AT_ONCE, TableFolder, in_windows
from txmq.delta.replay import KeptLog, follow, kept_log, parsed_commit, replayed
from txmq.delta.schemas import SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY, TableSchema
from txmq.delta.snapshot import Definition, LiveFile, Snapshot
from txmq.errors import IncompatibleVersionError, StoreFormatError, UnsupportedTableError

# Of a number of the schema; Python reads no more than 4,300.
_DIGITS_MAX = 9

# A follower looks for the next commit by its name, so it would wait for one that is lost. It lists
# the log from time to time.
LIST_EVERY_S = 60.0
# Clean-up keeps each commit for longer (`log_reserved_time_s`).
FRESH_S = 5.0
# Who is further behind begins at a checkpoint.
FOLLOWED_MAX = 5_000


class TableLog:
    """The log of one table, and the version of it that this object is pinned to.

    Own commits are seen at once, those of others after `refresh`. Not safe for several threads.
    """

    def __init__(self, folder: TableFolder, schema: TableSchema) -> None:
        """Open nothing yet; the first use does."""
        self._folder, self._schema = folder, schema
        self._name = folder.name
        self._snapshot: Snapshot | None = None
        # The newest own commit since the log was opened, and whether the snapshot is older.
        self._own: Seen | None = None
        self._is_behind, self._openings = False, 0
        # A commit that changes them is refused, and the log opened anew.
        self._limits: CommitLimits | None = None
        self._listed_s = self._missed_s = -math.inf
        self._looked_s = self._compared_s = self._committed_s = -math.inf

    # Pin a version.

    @property
    def snapshot(self) -> Snapshot:
        """The version that this object is pinned to; it shows the own commits."""
        if self._is_behind and self._own is not None:
            # Not further: nobody has looked at what others committed after it.
            self._pin(self._own.version)
        begin_use()
        if self._snapshot is None:
            self._snapshot = self._opened()
        return self._snapshot

    def open(self) -> None:
        """Pin the newest version unless one is pinned. Raises: StorageError."""
        if self._snapshot is None:
            self._snapshot = self._opened()

    def refresh(self) -> Self:
        """Pin the newest version; returns the object itself. Raises: StorageError."""
        self._pin(None)
        return self

    def reopen(self) -> Self:
        """Do as `refresh`, by the whole log. Raises: StorageError."""
        self._snapshot = self._opened()
        return self

    def forget(self) -> None:
        """Pin no version; the next use opens the log."""
        self._snapshot = None

    def _pin(self, through: int | None) -> None:
        """Follow the log up to a version, or to its end."""
        was_behind, self._is_behind, self._limits = self._is_behind, False, None
        try:
            begin_use()
            snapshot = self._snapshot
            if snapshot is None or not read_again(
                self._name, lambda: self._follow(snapshot, through)
            ):
                self._snapshot = self._opened()
        except BaseException:
            self._is_behind = was_behind
            raise

    def _opened(self) -> Snapshot:
        begin_use()
        snapshot = read_again(self._name, lambda: replayed(self._folder, MISSING))
        self._check(snapshot.definition)
        self._listed_s, self._openings = time.monotonic(), self._openings + 1
        self._own, self._is_behind, self._limits = None, False, None
        return snapshot

    def _follow(self, snapshot: Snapshot, through: int | None = None) -> bool:
        """Follow the commits one by one; return False if the log has to be read as a whole."""
        last, at_once = snapshot.seen.version + FOLLOWED_MAX, 1
        while (seen := snapshot.seen).version < last:
            if seen.version == through:
                return True
            until = min(last if through is None else through, seen.version + at_once)
            following, pinned = self._look_up(seen.version, until)
            if pinned.type is NOT_FOUND or stamp_of(pinned) != seen.stamp:
                # The log was cleaned up to here, or replaced.
                return False
            if not following:
                return not self._is_broken_off(seen.version)
            self._take(snapshot, following)
            # Who is far behind looks for several commits together.
            at_once = min(2 * at_once, REQUESTS_AT_ONCE)
        return False

    def _look_up(self, version: int, until: int) -> tuple[list[Seen], pa_fs.FileInfo]:
        """Look for the commits after a version, up to the first that is missing, and for its own.

        In this order: a clean-up deletes the oldest first, so a pinned commit that is there after
        the look for later ones says that nothing was deleted between the two.
        """
        later = range(version + 1, until + 1)
        if len(later) == 1:
            *infos, pinned = self._folder.look_up_commits(*later, version)
        else:
            infos = self._folder.look_up_commits(*later)
            (pinned,) = self._folder.look_up_commits(version)
        pairs = zip(later, infos, strict=True)
        there = takewhile(lambda pair: pair[1].type is not NOT_FOUND, pairs)
        return [Seen(number, stamp_of(info)) for number, info in there], pinned

    def _take(self, snapshot: Snapshot, following: Sequence[Seen]) -> None:
        contents = self._folder.fetched([commit_path(seen.version) for seen in following])
        for seen in following:
            content = self._folder.commit_among(contents, seen.version)
            if content is None:
                raise FileNotFoundError(seen.version)
            actions = parsed_commit(self._name, seen.version, content)
            definition = snapshot.definition.after(actions)
            if definition is not snapshot.definition:
                self._check(definition)
            follow(self._name, snapshot, seen, actions)

    def _is_broken_off(self, version: int) -> bool:
        """Tell whether a commit is missing before later ones; look from time to time only."""
        if time.monotonic() - self._listed_s < LIST_EVERY_S:
            return False
        self._listed_s = time.monotonic()
        return self._lacks_next(version)

    def _lacks_next(self, version: int) -> bool:
        # One that came after the look for it is there by its name.
        return self._folder.newest_commit() > version and not self._folder.has_commit(version + 1)

    def _check(self, definition: Definition) -> None:
        """Raise StorageError for a table that must not be used."""
        written = definition.properties.get(SCHEMA_VERSION_PROPERTY)
        if written is None or not written.isdecimal():
            raise StoreFormatError(
                self._name, "is a Delta table but not one of txmq; check the location"
            )
        if len(written) > _DIGITS_MAX or int(written) > SCHEMA_VERSION:
            problem = f"has schema version {written}, this txmq reads {SCHEMA_VERSION}; upgrade it"
            raise IncompatibleVersionError(self._name, problem)
        if definition.unsupported:
            raise UnsupportedTableError(self._name, definition.unsupported)

    # Own commits.

    @property
    def newest_seen(self) -> Seen:
        """The newest commit that this object has seen; only later ones are news, or compared.

        After an own commit it is that one, and not a newer one whose marks nobody has read.
        """
        if self._is_behind and self._own is not None:
            return self._own
        return self.snapshot.seen

    @property
    def has_committed(self) -> bool:
        """Whether this object has committed since it opened the log."""
        return self._own is not None

    def keeps_own_commits(self) -> bool | None:
        """Tell whether the log still has what this object committed; one look at a file name.

        On an object store the name is not looked at right after the commit. None where it is not
        known, as after the log was opened anew. Safe for other threads than the one that commits.

        Raises: StorageError.
        """
        own, openings = self._own, self._openings
        if own is None or own.stamp is None or openings != 1:
            return None
        if self._folder.objects.is_remote and time.monotonic() - self._committed_s < FRESH_S:
            return True
        (info,) = self._folder.commit_infos(own.version)
        return stamp_of(info) == own.stamp

    def note_commit(self, seen: Seen) -> None:
        """Take note of an own commit; the next look at the snapshot follows the log up to it."""
        self._own, self._is_behind, self._committed_s = seen, True, time.monotonic()

    @property
    def limits(self) -> CommitLimits:
        """What the properties of the table ask of commits."""
        if self._limits is None:
            definition = self.snapshot.definition
            self._limits = CommitLimits.of(definition.properties, definition.row_rules)
        return self._limits

    # Is there a table, or news?

    def exists(self) -> bool:
        """Tell whether there is a Delta table at the location. Raises: StorageError.

        A table that was not there begins with commit 0. So a look at that name takes the place of a
        listing, which costs twelve times as much on an object store; but not for long, because log
        clean-up removes it some minutes later.
        """
        begin_use()
        if time.monotonic() - self._missed_s < LIST_EVERY_S:
            return self._folder.has_commit(0)
        is_there = self._is_listed()
        self._missed_s = -math.inf if is_there else time.monotonic()
        return is_there

    def doubt_absence(self) -> None:
        """Let the next `exists` list the log, also soon after one that found nothing."""
        self._missed_s = -math.inf

    def _is_listed(self) -> bool:
        try:
            return with_options(
                self._folder.options,
                lambda options: DeltaTable.is_deltatable(self._folder.location, options),
            )
        except (DeltaError, OSError) as error:
            raise failed_read(self._name, error) from error
        except BaseException as error:
            refuse_panic(error)
            raise

    def has_news(self) -> bool:
        """Tell whether there is a newer version; one lookup of two file names, or of one.

        Log clean-up keeps the newest commit, so a pinned commit that is gone is an old one. On an
        object store each name is a request; there the pinned one is left out where the last look is
        so fresh that no clean-up can have passed both. Whoever follows looks at it in any case.
        """
        newest, now_s = self.newest_seen.version, time.monotonic()
        is_fresh = now_s - self._looked_s < FRESH_S and now_s - self._compared_s < LIST_EVERY_S
        self._looked_s = now_s
        if is_fresh and self._folder.objects.is_remote:
            return self._folder.has_commit(newest + 1)
        pinned, following = self._folder.commit_infos(newest, newest + 1)
        self._compared_s = now_s
        return pinned.type is NOT_FOUND or following.type is not NOT_FOUND

    # What the pinned version says.

    @property
    def version(self) -> int:
        """The version this object is pinned to."""
        return self.snapshot.version

    @property
    def table_id(self) -> str:
        """The id of the table; a table that was created again has another."""
        return self.snapshot.definition.table_id

    def properties(self) -> dict[str, str]:
        """Return the properties of the table."""
        return dict(self.snapshot.definition.properties)

    @property
    def column_names(self) -> Sequence[str]:
        """The columns of the stored table; an earlier txmq may have made fewer."""
        return list(self.snapshot.definition.columns.names)

    @property
    def columns(self) -> pa.Schema:
        """The columns of the stored table; a typed topic has more than its schema names."""
        named = self._schema.columns
        stored = self.snapshot.definition.columns
        return pa.schema([*named, *(column for column in stored if column.name not in named.names)])

    def columns_of(self, names: Sequence[str]) -> pa.Schema:
        """Return the columns of these names, by the schema if it names them all."""
        named = self._schema.columns
        columns = named if set(names) <= set(named.names) else self.columns
        return pa.schema([columns.field(name) for name in names])

    def mark(self, app_id: str) -> int | None:
        """Return the newest number committed under `app_id`, or None."""
        return self.snapshot.marks.number(app_id)

    def marks(self, prefix: str) -> dict[str, int]:
        """Return all marks whose names begin so."""
        return self.snapshot.marks.with_prefix(prefix)

    def removals_after(self, version: int) -> list[int]:
        """List the commits after a version by which another program removed rows.

        What was followed is known. Commits before, up to the checkpoint that the log was opened by,
        are read; one that was cleaned away or is damaged tells nothing.

        Raises: StorageError.
        """
        snapshot = self.snapshot
        for versions in in_windows(range(version + 1, snapshot.begin + 1)):
            contents = self._folder.fetched([commit_path(number) for number in versions])
            for number in versions:
                content = self._folder.commit_among(contents, number) or b""
                with suppress(*DAMAGES):
                    if commit_actions(content).takes_rows:
                        snapshot.removals.append(number)
        snapshot.begin = min(snapshot.begin, version)
        return sorted(number for number in snapshot.removals if number > version)

    def version_of(self, app_id: str, number: int) -> int:
        """Find the version with this mark in its commit; the pinned one if its commit is gone."""
        for version in range(self.version, -1, -1):
            marks = self._folder.marks_of(version)
            if marks is None or marks.get(app_id) == number:
                return self.version if marks is None else version
        return self.version

    # Commits that are damaged, and the whole log.

    def lost_commits(self) -> list[str]:
        """List commit files without content, which readers pass over; lost rows may be theirs.

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

    def kept_log(self) -> KeptLog:
        """Read the newest version with all files that the kept log names; it is not pinned.

        Raises: StoreNotFoundError, StorageError.
        """
        begin_use()
        log = kept_log(self._folder)
        self._check(log.snapshot.definition)
        return log


class LiveFiles:
    """The live data files of the pinned version, chosen by their statistics."""

    def __init__(self, log: TableLog, schema: TableSchema) -> None:
        """Open nothing yet."""
        self._log, self._schema = log, schema

    def all(self) -> list[DataFile]:
        """Return all live files."""
        return self.as_files(self._log.snapshot.files)

    def holding(self, column: str, values: pa.Array) -> list[DataFile]:
        """Return the files whose range of `column` covers at least one of `values`, in any order.

        Each value is compared by itself, so that one old id does not select all files.
        """
        return [span.file for span in self.ranges_holding(column, values)]

    def beyond(self, column: str, value: int | str) -> list[DataFile]:
        """Return the files that may hold rows with `column` above `value`."""
        files, bounds = self._with_bounds(column)
        pairs = zip(files, bounds, strict=True)
        return self.as_files([file for file, (_, high) in pairs if high is None or high > value])

    def ranges_between(self, column: str, after: int, through: int) -> list[FileRange]:
        """Return the files that may hold rows with `column` above `after` and up to `through`.

        Each comes with its smallest and largest value of `column`.
        """
        meant = [
            (file, (low, high))
            for file, (low, high) in zip(*self._with_bounds(column), strict=True)
            if (high is None or high > after) and (low is None or low <= through)
        ]
        return self._as_ranges([file for file, _ in meant], [bounds for _, bounds in meant])

    def up_to(self, column: str, value: int) -> list[DataFile]:
        """Return the files that may hold rows with `column` at `value` or below."""
        files, bounds = self._with_bounds(column)
        pairs = zip(files, bounds, strict=True)
        return self.as_files([file for file, (low, _) in pairs if low is None or low <= value])

    def ranges(self, column: str) -> list[FileRange]:
        """Return all live files, each with its smallest and largest value of `column`."""
        return self._as_ranges(*self._with_bounds(column))

    def ranges_holding(self, column: str, values: pa.Array) -> list[FileRange]:
        """Do as `holding`, each file with its smallest and largest value of `column`."""
        if len(values) == 0:
            return []
        files, bounds = self._with_bounds(column)
        is_meant = covering(bounds, values)
        return self._as_ranges(list(compress(files, is_meant)), list(compress(bounds, is_meant)))

    def parts(self, columns: Sequence[str]) -> list[FilePart]:
        """Return all live files, each with its ranges of `columns`."""
        snapshot = self._log.snapshot
        return self._as_parts(snapshot, range(len(snapshot.files)), columns)

    def parts_holding(
        self, column: str, values: pa.Array, columns: Sequence[str]
    ) -> list[FilePart]:
        """Do as `holding`, each file with its ranges of `columns`."""
        if len(values) == 0:
            return []
        snapshot = self._log.snapshot
        is_meant = covering(snapshot.bounds(column), values)
        return self._as_parts(snapshot, [n for n, is_one in enumerate(is_meant) if is_one], columns)

    def _as_parts(
        self, snapshot: Snapshot, numbers: Sequence[int], columns: Sequence[str]
    ) -> list[FilePart]:
        """Return some of the live files, each with its ranges of `columns`."""
        bounds = {name: snapshot.bounds(name) for name in columns}
        files = [snapshot.files[number] for number in numbers]
        return [
            FilePart(
                data_file,
                {name: pairs[number][0] for name, pairs in bounds.items()},
                {name: pairs[number][1] for name, pairs in bounds.items()},
                without_nulls=frozenset(name for name in columns if file.has_no_null(name)),
            )
            for number, file, data_file in zip(numbers, files, self.as_files(files), strict=True)
        ]

    def as_files(self, files: Sequence[LiveFile]) -> list[DataFile]:
        """Return files of the log as data files, with typed partition values."""
        columns = self._schema.columns
        kinds = {name: columns.field(name).type for name in self._schema.partition_by}
        return [file.data_file(kinds) for file in files]

    def _with_bounds(self, column: str) -> tuple[Sequence[LiveFile], Sequence[Bounds]]:
        snapshot = self._log.snapshot
        return snapshot.files, snapshot.bounds(column)

    def _as_ranges(self, files: Sequence[LiveFile], bounds: Sequence[Bounds]) -> list[FileRange]:
        pairs = zip(self.as_files(files), bounds, strict=True)
        return [FileRange(file, low, high) for file, (low, high) in pairs]
