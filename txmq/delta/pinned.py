"""A Delta table of a user: open it by delta-rs, read its marks, commit under a mark.

Only this package uses delta-rs. A *mark* is Delta's transaction identifier: a name and a number
that a commit carries. Delta refuses a commit if another one moved its mark since the handle was
opened.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import DeltaError

from txmq.delta.actions import (
    DAMAGES,
    NOTE,
    USER_METADATA,
    NewCommit,
    Seen,
    commit_actions,
    stamp_of,
)
from txmq.delta.commit_writer import CommitWriter, new_token
from txmq.delta.credentials import options_now, with_options
from txmq.delta.failures import MISSING, begin_use, read_again, read_errors, translated
from txmq.delta.folder import NOT_FOUND, TableFolder, is_remote
from txmq.delta.snapshot import (
    ROWS_STAY,
    TIMES_IN_COMMITS,
    unmarkable_features,
    unwritable_features,
)
from txmq.errors import (
    CommitRefusedError,
    StorageError,
    UnsupportedTableError,
)

if TYPE_CHECKING:
    import pyarrow as pa

# After more commits, asking delta-rs for a mark costs less than reading the commits.
CARRIED_COMMITS = 16
# A handle grows with each update.
REOPEN_AFTER_UPDATES = 100
WRITE_BY_SPARK = (
    "Write it by Spark, or use a table that was made without them (ALTER TABLE ... DROP FEATURE)"
)
ASK_ANOTHER = (
    "Let Spark put the fence (DeltaListener(..., spark=spark)) or another listener answer "
    "(QueryListener, HttpListener, DatabaseListener)"
)
NO_CLEANUP = PostCommitHookProperties(cleanup_expired_logs=False)


class PinnedTable:
    """A Delta table at one location, and the version of it that this object is pinned to.

    Not safe for several threads: each service and each committing thread holds its own.

    Attributes:
        folder: the files of the table, by their names.
    """

    # The problem and the next step where there is no table.
    missing = MISSING

    def __init__(
        self, name: str, location: str, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Open nothing yet; the first use does. Error texts use `name`."""
        self.name, self.location = name, location
        self.folder = TableFolder(name, location, storage_options)
        self._handle: DeltaTable | None = None
        # Those that the handle keeps.
        self._options: dict[str, str] | None = None
        # Reading a mark costs half a millisecond, and the marks of a version never change.
        self._marks: dict[str, int | None] = {}
        self._marks_of: int | None = None
        self._updates = 0
        # The pinned version, and its commit file when it was pinned.
        self._newest_seen: Seen | None = None

    @property
    def handle(self) -> DeltaTable:
        """The delta-rs table this object is pinned to."""
        begin_use()
        if self._handle is None:
            self._handle = self._opened()
        return self._handle

    def refresh(self) -> Self:
        """Pin the newest version; returns the object itself. Raises: StorageError."""
        begin_use()
        if self._handle is None or options_now(self.folder.options) != self._options:
            self._handle = self._opened()
            return self
        match self._freshness():
            case _Freshness.NEWEST:
                return self
            case _Freshness.OF_ANOTHER_TABLE:
                self._handle = self._opened()
            case _Freshness.UNKNOWN:
                self._update()
        self._note_newest()
        return self

    def _update(self) -> None:
        handle = self.handle
        self._updates += 1
        if self._updates > REOPEN_AFTER_UPDATES:
            self._handle = self._opened()
            return
        try:
            handle.update_incremental()
        except (DeltaError, OSError):
            # With fast writers delta-rs can see a gap in the log; opening again succeeds.
            self._handle = self._opened()

    def _freshness(self) -> _Freshness:
        """Look up two file names, to save the millisecond in which delta-rs finds nothing new.

        delta-rs also misses a table that was deleted and made again with as many commits.
        """
        if self._newest_seen is None or self._newest_seen.version != self.version:
            return _Freshness.UNKNOWN
        try:
            pinned, following = self.folder.look_up_commits(self.version, self.version + 1)
        except OSError:
            return _Freshness.UNKNOWN
        if following.type is not NOT_FOUND or pinned.type is NOT_FOUND:
            return _Freshness.UNKNOWN
        is_same = self._newest_seen.stamp == stamp_of(pinned)
        return _Freshness.NEWEST if is_same else _Freshness.OF_ANOTHER_TABLE

    def _note_newest(self) -> None:
        self._newest_seen = None
        # On an object store two lookups cost more than the one of delta-rs.
        if is_remote(self.location):
            return
        # A failed lookup must not hide that the commit before it succeeded.
        with suppress(OSError):
            (info,) = self.folder.look_up_commits(self.version)
            is_there = info.type is not NOT_FOUND
            self._newest_seen = Seen(self.version, stamp_of(info)) if is_there else None

    def reopen(self) -> Self:
        """Pin the newest version by a new handle. Raises: StorageError."""
        self._handle = self._opened()
        return self

    def _opened(self) -> DeltaTable:
        begin_use()
        missing = self.missing.format(self.location)
        handle = read_again(
            self.name, lambda: with_options(self.folder.options, self._opened_with), missing
        )
        self._marks_of, self._updates = None, 0
        # What was seen before may be of another log.
        self._newest_seen = None
        return handle

    def _opened_with(self, options: dict[str, str] | None) -> DeltaTable:
        self._options = options
        return DeltaTable(self.location, storage_options=options)

    @property
    def version(self) -> int:
        """The version this object is pinned to."""
        return int(self.handle.version())

    @property
    def table_id(self) -> str:
        """The id of the table; a table that was created again has another."""
        return str(self.handle.metadata().id)

    def properties(self) -> dict[str, str]:
        """Return the properties of the table."""
        return {key: str(value) for key, value in self.handle.metadata().configuration.items()}

    def mark(self, app_id: str) -> int | None:
        """Return the newest number committed under `app_id` in the pinned version, or None."""
        self._carry_marks()
        if app_id not in self._marks:
            # delta-rs may read the log again, which may have been cleaned since.
            with read_errors(self.name):
                number = self.handle.transaction_version(app_id)
            self._marks[app_id] = None if number is None else int(number)
        return self._marks[app_id]

    def marks_in(self, version: int, app_ids: Iterable[str]) -> dict[str, int | None]:
        """Return the numbers that these marks had in an earlier version, None for those not there.

        Raises: StorageError, also where the log does not have that version any more.
        """
        with read_errors(self.name):
            handle = with_options(
                self.folder.options,
                lambda options: DeltaTable(self.location, version=version, storage_options=options),
            )
            return {app_id: handle.transaction_version(app_id) for app_id in app_ids}

    def _carry_marks(self) -> None:
        """Update known marks from the commits since they were read, if those are few."""
        marks_of, self._marks_of = self._marks_of, self.version
        if marks_of == self._marks_of:
            return
        passed = 0 if marks_of is None else self._marks_of - marks_of
        commits = range(self._marks_of - passed + 1, self._marks_of + 1)
        are_few = bool(self._marks) and 0 < passed <= CARRIED_COMMITS
        if not are_few or not all(self._carry_marks_of(version) for version in commits):
            self._marks = {}

    def _carry_marks_of(self, version: int) -> bool:
        """Update known marks from one commit; return False if it cannot be read."""
        marks = self.folder.marks_of(version)
        if marks is None:
            return False
        self._marks.update({name: marks[name] for name in marks.keys() & self._marks.keys()})
        return True

    def check_writable(self) -> None:
        """Raise UnsupportedTableError for features that delta-rs cannot write; 0 commits."""
        features = unwritable_features(self.handle)
        if features:
            raise UnsupportedTableError(self.name, features, WRITE_BY_SPARK)

    def check_markable(self) -> None:
        """Raise UnsupportedTableError for features that allow no `commit_marks`; 0 commits."""
        features = unmarkable_features(self.handle)
        if features:
            raise UnsupportedTableError(self.name, features, ASK_ANOTHER)

    # Commit.

    def commit_marks(self, marks: Mapping[str, int], note: str = "", said: str = "") -> None:
        """Commit marks and a note only, if nobody moved these marks meanwhile: one commit.

        Spark shows `said` in DESCRIBE HISTORY, as `userMetadata`.

        Where delta-rs does not write the table, txmq puts the commit itself (decision 0057).

        Raises: CommitRefusedError where another writer was first; StorageError.
        """
        self.check_markable()
        if unwritable_features(self.handle):
            self._put_marks(marks, note, said)
        else:
            self._commit_by_delta_rs(marks, note, said)
        self._note_newest()

    def _put_marks(self, marks: Mapping[str, int], note: str, said: str) -> None:
        commit = NewCommit((), (), marks, new_token(), note, ROWS_STAY, said=said)
        with translated(self.name):
            CommitWriter(self.folder).commit(Seen(self.version, None, self._in_commit_ms()), commit)

    def _in_commit_ms(self) -> int | None:
        """Return the time that the pinned commit names; None in tables whose commits name none."""
        if self.properties().get(TIMES_IN_COMMITS, "").lower() != "true":
            return None
        content = self.folder.commit_bytes(self.version)
        if content is None:
            problem = "the log was cleaned since it was opened; opening again"
            raise CommitRefusedError(self.name, problem)
        with suppress(*DAMAGES):
            named_ms = commit_actions(content).in_commit_ms
            if named_ms is not None:
                return int(named_ms)
        problem = f"commit {self.version} names no time, although {TIMES_IN_COMMITS} is set"
        raise StorageError(self.name, problem)

    def _commit_by_delta_rs(self, marks: Mapping[str, int], note: str, said: str) -> None:
        handle, pinned = self.handle, self.version
        with translated(self.name):
            handle.create_write_transaction(
                [], "append", handle.schema(),
                partition_by=handle.metadata().partition_columns or None,
                commit_properties=commit_properties(marks, note, said),
                post_commithook_properties=NO_CLEANUP,
            )  # fmt: skip
        self._check_not_overtaken(pinned)

    def append_rows(self, rows: pa.Table, marks: Mapping[str, int], note: str = "") -> None:
        """Append rows and marks in one commit, only if nobody moved these marks meanwhile.

        For tables of users: delta-rs writes the files. A reader of the commit finds the note.

        Raises: CommitRefusedError where another writer was first; StorageError.
        """
        if not rows.num_rows:
            self.commit_marks(marks, note)
            return
        self.check_writable()
        pinned = self.version
        with translated(self.name):
            properties = commit_properties(marks, note)
            write_deltalake(self.handle, rows, mode="append", commit_properties=properties)
        self._check_not_overtaken(pinned)

    def _check_not_overtaken(self, pinned: int) -> None:
        """Raise CommitRefusedError where log clean-up passed the pinned version meanwhile.

        A writer that slept between the last look at the log and its commit may then have written a
        version that no reader looks at. Who asks again finds by the marks whether it counts.
        """
        try:
            is_kept = self.folder.has_commit(pinned)
        except StorageError:
            # A failed lookup must not hide that the commit before it succeeded.
            return
        if not is_kept:
            problem = "the log was cleaned while it was committed to; looking again"
            raise CommitRefusedError(self.name, problem)


class _Freshness(enum.Enum):
    """How the pinned version relates to the table, by the names of two commit files."""

    NEWEST = enum.auto()
    OF_ANOTHER_TABLE = enum.auto()
    UNKNOWN = enum.auto()


def commit_properties(marks: Mapping[str, int], note: str = "", said: str = "") -> CommitProperties:
    """Make the properties of a commit: its marks, and what its writer says, to txmq and Spark."""
    # Where a retention of marks is set, Spark ignores marks without last_updated.
    now_ms = time.time_ns() // 1_000_000
    transactions = [Transaction(app_id, number, now_ms) for app_id, number in marks.items()]
    notes = {name: text for name, text in ((NOTE, note), (USER_METADATA, said)) if text}
    return CommitProperties(app_transactions=transactions or None, custom_metadata=notes or None)
