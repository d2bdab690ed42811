"""Any Delta table, txmq's own or a user's: open it, read its marks, commit under a mark.

With `storage` the one door to Delta; nothing above knows delta-rs. A *mark* is Delta's own
transaction identifier: a name and a number that a commit carries, compared by every later commit.
"""

from __future__ import annotations

import enum
import errno
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Self, TypeVar

import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake import (
    CommitProperties,
    DeltaTable,
    PostCommitHookProperties,
    Transaction,
    write_deltalake,
)
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler

from txmq.errors import (
    CommitRefusedError,
    ReadOnlyStoreError,
    StorageError,
    StoreFullError,
    StoreNotFoundError,
)

READ_ATTEMPTS = 8
RETRY_PAUSE_S = 0.01
# Beyond that, asking delta-rs for a mark costs less than reading the commits.
CARRIED_COMMITS = 16
SHOWN_CHARACTERS_OF_A_CAUSE = 200
MISSING = "is not there; run txmq init"
NO_CLEANUP = PostCommitHookProperties(cleanup_expired_logs=False)
Result = TypeVar("Result")
_COMMIT_FILE = re.compile(r"[0-9]{20}\.json")
_NO_SPACE = ("No space left", "os error 28", "StorageFull")
# A handle that is older than the log's first commit has nothing to compare with.
_CLEANED_BEHIND = re.compile(
    r"Invalid table version|not found: \S*_delta_log/|_delta_log/\S* not found"
)
_READ_ONLY = ("Read-only file system", "os error 30", "Permission denied", "os error 13")


class _Freshness(enum.Enum):
    """How the pinned version relates to the table, by the names of two commit files."""

    NEWEST = enum.auto()
    OF_ANOTHER_TABLE = enum.auto()
    UNKNOWN = enum.auto()


class PinnedTable:
    """A Delta table at one location, and the version of it that this object is pinned to.

    Not safe for several threads: each service and each committing thread holds its own.
    """

    # What to do where there is no table.
    missing = MISSING

    def __init__(
        self, name: str, location: str, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Open nothing yet; the first use does. Errors call the table by `name`."""
        self.name = name
        self.location = location
        self._options = dict(storage_options or {})
        self._handle: DeltaTable | None = None
        self._filesystem: pa_fs.FileSystem | None = None
        # Reading a mark costs half a millisecond, and a version's marks never change.
        self._marks: dict[str, int | None] = {}
        self._marks_of: int | None = None
        # What the commit file of the pinned version looked like when it was pinned.
        self._newest_seen: tuple[int, object] | None = None

    @property
    def handle(self) -> DeltaTable:
        """The delta-rs table this object is pinned to."""
        if self._handle is None:
            self._handle = self._opened()
        return self._handle

    def refresh(self) -> Self:
        """Move to the newest version; the object itself is returned."""
        if self._handle is None:
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
        try:
            self.handle.update_incremental()
        except (DeltaError, OSError):
            # Fast writers can make delta-rs see a gap; a fresh open succeeds.
            self._handle = self._opened()

    def _freshness(self) -> _Freshness:
        """Two lookups of file names save the millisecond in which delta-rs finds nothing new.

        delta-rs also misses a table that was deleted and made again with as many commits.
        """
        if self._newest_seen is None or self._newest_seen[0] != self.version:
            return _Freshness.UNKNOWN
        try:
            pinned, following = self._commit_files(self.version, self.version + 1)
        except OSError:
            return _Freshness.UNKNOWN
        if following.type is not pa_fs.FileType.NotFound or pinned.type is pa_fs.FileType.NotFound:
            return _Freshness.UNKNOWN
        is_same = self._newest_seen[1] == (pinned.size, pinned.mtime_ns)
        return _Freshness.NEWEST if is_same else _Freshness.OF_ANOTHER_TABLE

    def _note_newest(self) -> None:
        self._newest_seen = None
        # On an object store two looks cost more than the one of delta-rs.
        if "://" in self.location:
            return
        # The commit that was just made has landed, whatever becomes of a look at it.
        with suppress(OSError):
            (own,) = self._commit_files(self.version)
            is_there = own.type is not pa_fs.FileType.NotFound
            self._newest_seen = (self.version, (own.size, own.mtime_ns)) if is_there else None

    def _commit_files(self, *versions: int) -> list[pa_fs.FileInfo]:
        paths = [commit_path(version) for version in versions]
        return list(self.filesystem.get_file_info(paths))

    def reopen(self) -> Self:
        """A fresh handle at the newest version."""
        self._handle = self._opened()
        return self

    def _opened(self) -> DeltaTable:
        options = self._options or None
        handle = read_again(
            self.name, lambda: DeltaTable(self.location, storage_options=options), self.missing
        )
        self._check(handle)
        self._marks_of = None
        return handle

    def _check(self, handle: DeltaTable) -> None:
        """Raise StorageError for a table that must not be used."""

    @property
    def version(self) -> int:
        """The version this object is pinned to."""
        return int(self.handle.version())

    @property
    def table_id(self) -> str:
        """The id of the table; a table made anew has another."""
        return str(self.handle.metadata().id)

    def properties(self) -> dict[str, str]:
        """The table's own property values."""
        return {key: str(value) for key, value in self.handle.metadata().configuration.items()}

    def mark(self, app_id: str) -> int | None:
        """The newest number committed under `app_id` in this version of the table."""
        self._carry_marks()
        if app_id not in self._marks:
            # It may read the log again, which may have been cleaned behind an old handle.
            with translated(self.name):
                found = self.handle.transaction_version(app_id)
            self._marks[app_id] = None if found is None else int(found)
        return self._marks[app_id]

    def _carry_marks(self) -> None:
        """Bring the known marks to the pinned version by the few commits since, if they are few."""
        known, self._marks_of = self._marks_of, self.version
        if known == self._marks_of:
            return
        passed = 0 if known is None else self._marks_of - known
        commits = range(self._marks_of - passed + 1, self._marks_of + 1)
        are_few = bool(self._marks) and 0 < passed <= CARRIED_COMMITS
        if not are_few or not all(self._carry_marks_of(version) for version in commits):
            self._marks = {}

    def _carry_marks_of(self, version: int) -> bool:
        """Whether the commit could be read; what it does not mark stays as it was."""
        marks = self.marks_of(version)
        if marks is None:
            return False
        self._marks.update({name: marks[name] for name in marks.keys() & self._marks.keys()})
        return True

    def marks_of(self, version: int) -> dict[str, int] | None:
        """The marks that the commit of one version carries; None where it was cleaned away."""
        commit = self.commit_bytes(version)
        if commit is None:
            return None
        actions = [json.loads(line) for line in commit.splitlines() if b'"txn"' in line]
        marks = [action["txn"] for action in actions if "txn" in action]
        return {mark["appId"]: int(mark["version"]) for mark in marks}

    def has_news(self) -> bool:
        """Whether a version after this one exists; one look at one file name."""
        return self.has_commit(self.version + 1)

    def has_commit(self, version: int) -> bool:
        """Whether the commit file of a version is there; one look at one file name."""
        (found,) = self._commit_files(version)
        return found.type is not pa_fs.FileType.NotFound

    @property
    def filesystem(self) -> pa_fs.FileSystem:
        """A file system rooted at the table."""
        if self._filesystem is None:
            self._filesystem = rooted_filesystem(self.location, self._options)
        return self._filesystem

    def commit_bytes(self, version: int) -> bytes | None:
        """The commit file of one version, or None where it was cleaned away."""
        path = commit_path(version)
        try:
            with self.filesystem.open_input_file(path) as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def commit_times_ms(self) -> dict[int, int]:
        """When the store received each commit that it still keeps: its file's modification time.

        It is the store's clock, unlike what delta-rs's change feed shows: that is the writer's.
        """
        return {
            int(found.base_name[:20]): int(found.mtime_ns) // 1_000_000
            for found in self.log_folder()
            if _COMMIT_FILE.fullmatch(found.base_name) and found.mtime_ns is not None
        }

    def log_folder(self) -> list[pa_fs.FileInfo]:
        """One listing of the folder of commits and checkpoints."""
        selector = pa_fs.FileSelector("_delta_log", allow_not_found=True)
        return list(self.filesystem.get_file_info(selector))

    # --- committing ------------------------------------------------------------------------

    def commit_marks(self, marks: Mapping[str, int]) -> None:
        """One commit of marks and nothing else, only if nobody moved these marks meanwhile.

        Raises: CommitRefusedError where another writer was first; StorageError.
        """
        self._write_transaction([], marks)

    def append_rows(self, rows: pa.Table, marks: Mapping[str, int]) -> None:
        """Rows for a table of the user's and marks, only if nobody moved these marks meanwhile.

        Raises: CommitRefusedError where another writer was first; StorageError.
        """
        if rows.num_rows:
            self._write_rows(rows, marks, mode="append")
        else:
            self.commit_marks(marks)

    def _write_rows(self, rows: pa.Table, marks: Mapping[str, int], **options: Any) -> None:
        """As `_write_transaction`, but delta-rs makes the files."""
        with translated(self.name):
            write_deltalake(
                self.handle, rows, commit_properties=commit_properties(marks), **options
            )

    def _write_transaction(self, actions: list[Any], marks: Mapping[str, int]) -> None:
        """Through the pinned handle, so the marks read from it are the ones that are compared."""
        handle = self.handle
        with translated(self.name):
            handle.create_write_transaction(
                actions, "append", handle.schema(),
                partition_by=handle.metadata().partition_columns or None,
                commit_properties=commit_properties(marks),
                post_commithook_properties=NO_CLEANUP,
            )  # fmt: skip
        self._note_newest()


# --- helpers ------------------------------------------------------------------------------------


def commit_path(version: int) -> str:
    """Where a table's commit is, from its root."""
    return f"_delta_log/{version:020d}.json"


def rooted_filesystem(location: str, options: Mapping[str, str]) -> pa_fs.FileSystem:
    """A file system whose root is `location`."""
    if "://" not in location:
        return pa_fs.SubTreeFileSystem(location, pa_fs.LocalFileSystem())
    return pa_fs.PyFileSystem(DeltaStorageHandler(location, dict(options) or None))


def commit_properties(marks: Mapping[str, int]) -> CommitProperties:
    """What a commit carries beside its actions."""
    # Spark ignores a transaction without last_updated once a retention is set.
    now_ms = time.time_ns() // 1_000_000
    transactions = [Transaction(app_id, number, now_ms) for app_id, number in marks.items()]
    return CommitProperties(app_transactions=transactions or None)


def pause(attempt: int) -> None:
    """Wait before the next try, longer each time."""
    # Losers that wait at random do not meet again.
    time.sleep(RETRY_PAUSE_S * random.random() * min(2**attempt, 32))  # noqa: S311


def read_again(table: str, read: Callable[[], Result], missing: str = MISSING) -> Result:
    """A read that is tried again where fast writers disturb it. Raises: StorageError."""
    for attempt in range(READ_ATTEMPTS):
        try:
            return read()
        except TableNotFoundError as error:
            raise StoreNotFoundError(table, missing) from error
        except (DeltaError, OSError, pa.ArrowException) as error:
            failure = error
            pause(attempt)
    raise StorageError(table, f"cannot be read ({_in_one_line(failure)})") from failure


@contextmanager
def translated(table: str) -> Iterator[None]:
    """Delta's and the system's errors as ours; CommitFailedError has four causes and one class."""
    try:
        yield
    except CommitFailedError as error:
        raise CommitRefusedError(table, "another writer was first; computing again") from error
    except (DeltaError, OSError) as error:
        raise _storage_error(table, error) from error


def _storage_error(table: str, error: Exception) -> StorageError:
    if _CLEANED_BEHIND.search(str(error)):
        return CommitRefusedError(table, "the log was cleaned since it was opened; opening again")
    problem = f"cannot be written ({_in_one_line(error)})"
    return disk_error(table, error) or StorageError(table, problem)


def disk_error(table: str, error: Exception) -> StorageError | None:
    """A full or read-only disk as our error; None for everything else."""
    text, number = str(error), error.errno if isinstance(error, OSError) else None
    if number in (errno.ENOSPC, errno.EDQUOT) or any(sign in text for sign in _NO_SPACE):
        return StoreFullError(table, "no space left; free some, then call again")
    if number in (errno.EROFS, errno.EACCES) or any(sign in text for sign in _READ_ONLY):
        return ReadOnlyStoreError(table, "cannot be written; check its rights")
    return None


def _in_one_line(error: Exception) -> str:
    """Without the Rust backtrace and the colours that may follow."""
    first = (str(error).splitlines() or [""])[0]
    return f"{type(error).__name__}: {first[:SHOWN_CHARACTERS_OF_A_CAUSE]}"
