"""Finds rows in one of txmq's own Delta tables: by the values of a column, or commit by commit.

A search passes over files that cannot be read and says which; a change feed names its commit file.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.actions import EMPTY_COMMIT, CommitActions, commit_path, path_of
from txmq.delta.failures import problem_of, read_again
from txmq.delta.file_rows import PIECE_ROWS, FileRows, in_pieces
from txmq.delta.files import LARGE_FILE_ROWS, DataFile, UnreadableFile, with_partition
from txmq.delta.folder import TableFolder, in_windows
from txmq.delta.replay import parsed_commit
from txmq.delta.schemas import TableSchema
from txmq.delta.snapshot import LiveFile
from txmq.delta.table_log import LiveFiles, TableLog
from txmq.errors import StorageError

# Above this size files are filtered piece by piece and never held whole.
WHOLE_FILES_BYTES = 64 * 1024 * 1024
# A file that could not be read is not tried again sooner.
UNREADABLE_PAUSE_S = 10.0
MOVED_ATTEMPTS = 3
# The files of so many commits are read together.
COMMITS_AT_ONCE = 64
COMMIT_VERSION = "_commit_version"
_CHANGE_TYPE = "_change_type"

# What is kept of rows while others are read; it is given one batch after the other.
Reduce = Callable[[pa.Table], pa.Table]


class Shrink(NamedTuple):
    """A Reduce that never keeps more than it was given: so it is given whole pieces."""

    keep: Reduce


# --- rows by the values of a column -------------------------------------------------------------


class RowSearch:
    """Finds the rows of one table by the values of a column. Not safe for several threads."""

    def __init__(self, name: str, log: TableLog, files: LiveFiles, rows: FileRows) -> None:
        """Open nothing yet; the first use does. Error texts use `name`."""
        self._name, self._log, self._files, self._rows = name, log, files, rows
        # When each file was found unreadable, by this process, and why.
        self._unreadable: dict[str, tuple[float, str]] = {}

    def rows_of(
        self,
        column: str,
        values: pa.Array,
        columns: Sequence[str],
        reduce: Reduce | Shrink | None = None,
    ) -> pa.Table:
        """Return all rows whose `column` is one of `values`; read only files that may hold them.

        With `reduce` return what it makes of them, which keeps `column`. Of many files memory holds
        one piece and the matches.
        """
        scan = _scan_of(column, columns, reduce)
        files = [f for f in self._files.holding(column, values) if self._holds(f, column, values)]
        if scan.is_greedy or sum(file.size_bytes for file in files) > WHOLE_FILES_BYTES:
            parts = [scan.keep(self._rows.read([], scan.columns))]
            # What is made of rows may be larger than they are, and bodies larger than their files.
            for together in [[file] for file in files] if scan.is_greedy else in_pieces(files):
                read = partial(self._matching, together, column, values, scan)
                parts.append(read_again(self._name, read, path=together[0].path))
            return pa.concat_tables(parts)
        rows = self._rows.read(files, scan.columns)
        if not rows.num_rows:
            # Else all values would be hashed for nothing.
            return scan.keep(rows)
        is_match = pc.is_in(rows[column], value_set=values)
        # A large transaction fills whole files, and a filter would copy them.
        if not pc.all(is_match, min_count=0).as_py():
            rows = rows.filter(is_match)
        return scan.keep(rows)

    def _holds(self, file: DataFile, column: str, values: pa.Array) -> bool:
        """Tell whether a file holds one of the values; of a large one read this column first.

        Statistics are only a range.
        """
        if file.num_records < LARGE_FILE_ROWS or len(values) > file.num_records // 100:
            # With many values, hashing all of them for each file costs more than it saves.
            return True
        stored = self._rows.read([file], [column])[column]
        return bool(pc.any(pc.is_in(stored, value_set=values)).as_py())

    def _matching(
        self, files: Sequence[DataFile], column: str, values: pa.Array, scan: _Scan
    ) -> pa.Table:
        """Read the rows of files whose `column` is one of `values`; hold one piece and them."""
        pieces = self._rows.pieces_of(files, scan.columns, scan.rows)
        matches = (rows.filter(pc.is_in(rows[column], value_set=values)) for rows, _ in pieces)
        empty = self._log.columns_of(scan.columns).empty_table()
        return pa.concat_tables([scan.keep(empty), *map(scan.keep, matches)])

    # Files that cannot be read.

    def readable_rows_of(
        self,
        column: str,
        values: pa.Array,
        columns: Sequence[str],
        reduce: Reduce | Shrink | None = None,
    ) -> tuple[pa.Table, tuple[UnreadableFile, ...]]:
        """Do as `rows_of`, but set files aside that cannot be read, and return them.

        A file that another process has replaced is none of them: the newest version is read then.
        Where a value has no row, commits that lost their content are: its rows may be in one.
        """
        for _ in range(MOVED_ATTEMPTS):
            before = self._log.snapshot
            rows, unreadable = self._readable_rows_of(column, values, columns, reduce)
            lost = self._lost(column, values, rows)
            is_back = not lost and self._log.snapshot is not before
            if not is_back and (not unreadable or not self.has_replaced(unreadable)):
                break
        return rows, (*unreadable, *lost)

    def _readable_rows_of(
        self, column: str, values: pa.Array, columns: Sequence[str], reduce: Reduce | Shrink | None
    ) -> tuple[pa.Table, tuple[UnreadableFile, ...]]:
        if not self._unreadable:
            try:
                return self.rows_of(column, values, columns, reduce), ()
            except Exception:  # noqa: BLE001, S110 - read again, file by file
                pass
        scan = _scan_of(column, columns, reduce)
        parts, unreadable = [scan.keep(self._rows.read([], scan.columns))], []
        for span in self._files.ranges_holding(column, values):
            read = partial(self._matching, [span.file], column, values, scan)
            rows, problem = self.readable(span.file, read)
            if rows is None:
                unreadable.append(UnreadableFile(span.file, span.low, span.high, problem))
            else:
                parts.append(rows)
        return pa.concat_tables(parts), tuple(unreadable)

    def _lost(self, column: str, values: pa.Array, rows: pa.Table) -> tuple[UnreadableFile, ...]:
        """Return the commits that lost their content, if a value has no row.

        Their files are not known.
        """
        if column in rows.column_names and len(pc.unique(rows[column])) >= len(values):
            return ()
        return tuple(
            UnreadableFile(DataFile(path, 0, 0, {}), None, None, f"{path} is empty")
            for path in self._log.lost_commits()
        )

    def readable(self, file: DataFile, read: Callable[[], pa.Table]) -> tuple[pa.Table | None, str]:
        """Return what `read` gives, or why the file cannot be read; do not try again at once."""
        tried_s, problem = self._unreadable.get(file.path, (-math.inf, ""))
        if time.monotonic() - tried_s < UNREADABLE_PAUSE_S:
            return None, problem
        try:
            rows = read_again(self._name, read)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a damaged file leads to
            problem = f"{file.path}: {problem_of(error.__cause__ or error)}"
            self._unreadable[file.path] = (time.monotonic(), problem)
            return None, problem
        self._unreadable.pop(file.path, None)
        return rows, ""

    @property
    def has_unreadable(self) -> bool:
        """Whether there are files that `readable` could not read the last time."""
        return bool(self._unreadable)

    def forget_unreadable(self) -> None:
        """Try each file again at its next use."""
        self._unreadable.clear()

    def has_replaced(self, unreadable: Sequence[UnreadableFile]) -> bool:
        """Tell whether another process replaced one of the files; pin the newest version."""
        self._log.reopen()
        live = {file.path for file in self._files.all()}
        return any(damaged.file.path not in live for damaged in unreadable)


class _Scan(NamedTuple):
    """What a search reads, what it keeps of each piece, and how many rows a piece has at most.

    Attributes:
        is_greedy: whether what it keeps may be larger than the rows.
    """

    columns: Sequence[str]
    keep: Reduce
    rows: int
    is_greedy: bool = False


def _scan_of(column: str, columns: Sequence[str], reduce: Reduce | Shrink | None) -> _Scan:
    """Return how to search by `column`."""
    read_columns = columns if column in columns else [column, *columns]
    if isinstance(reduce, Shrink):
        return _Scan(read_columns, reduce.keep, PIECE_ROWS)
    if reduce:
        return _Scan(read_columns, reduce, LARGE_FILE_ROWS, is_greedy=True)
    return _Scan(read_columns, lambda rows: rows.select(list(columns)), PIECE_ROWS)


# --- rows commit by commit ----------------------------------------------------------------------


class Inserted(NamedTuple):
    """What a commit inserted: whole files, or files of changes where it rewrote rows as well."""

    version: int
    added: Sequence[DataFile]
    changed: Sequence[DataFile]

    @property
    def num_records(self) -> int:
        """The rows of its files, by the log; 0 where it does not say so."""
        return sum(file.num_records for file in (*self.added, *self.changed))

    @property
    def is_unknown(self) -> bool:
        """Whether there are files without a number of rows."""
        return not all(file.num_records for file in (*self.added, *self.changed))


class TableChanges:
    """Reads the new rows of one table commit by commit. Not safe for several threads."""

    def __init__(
        self,
        folder: TableFolder,
        log: TableLog,
        files: LiveFiles,
        rows: FileRows,
        schema: TableSchema,
    ) -> None:
        """Open nothing yet; the first use does."""
        self._folder, self._log, self._files = folder, log, files
        self._file_rows, self._schema = rows, schema

    def read(self, start: int, end: int, columns: Sequence[str]) -> pa.Table:
        """Read the rows appended by the versions `start` to `end`, with `_commit_version`.

        `end` may be newer than the pinned version, which is then refreshed.

        Raises: StorageError where there is no version `end`; delta-rs would clamp it in silence.
        """
        return self.read_first(start, end, columns)[0]

    def read_first(  # noqa: PLR0913 - as `read`, and where to end
        self,
        start: int,
        end: int,
        columns: Sequence[str],
        enough_rows: int | None = None,
        cure: str | None = None,
        *,
        refuses_removals: bool = False,
    ) -> tuple[pa.Table, int]:
        """Do as `read`, up to the version with which there are enough rows; return it, too.

        With a `cure`, for the error text, a commit that lost its content is an error, too; where it
        `refuses_removals`, one by which another program removed rows.
        """
        schema = pa.schema([self._schema.columns.field(name) for name in columns])
        full = schema.append(pa.field(COMMIT_VERSION, pa.int64()))
        parts, version = [full.empty_table()], end
        if start <= end:
            self._reach(end)
        commits = self._inserted_by(start, end, cure, refuses_removals=refuses_removals)
        for window in read_together(commits, enough_rows):
            parts.append(self._rows(window, columns))
            version = window[-1].version
            if enough_rows is not None and sum(part.num_rows for part in parts) >= enough_rows:
                break
        return pa.concat_tables(parts).cast(full), version

    def pieces(self, start: int, end: int, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows appended by the versions `start` to `end`, with `_commit_version`.

        They come as `pieces` of their files: memory holds one.

        Raises: StorageError where a commit is not there any more or lost its content, or another
            program removed rows.
        """
        commits = self._inserted_by(start, end, "search anew", refuses_removals=True)
        for window in read_together(commits, PIECE_ROWS):
            if any(commit.changed for commit in window):
                yield self._rows(window, columns)
                continue
            files = [file for commit in window for file in commit.added]
            versions = {file.path: commit.version for commit in window for file in commit.added}
            for together in in_pieces(files):
                numbers = np.array([versions[file.path] for file in together], np.int64)
                for rows, counts in self._file_rows.pieces_of(together, columns):
                    yield _with_version(rows, np.repeat(numbers, counts))

    def removed_by(self, version: int) -> list[DataFile]:
        """Return the data files that a commit removed and that are not live now.

        Raises: StorageError where the commit is gone.
        """
        actions = self._actions(version, self._folder.commit_bytes(version), None)
        files = [_removed_file(action) for action in actions.removed]
        holds = self._log.snapshot.holds
        return self._files.as_files([file for file in files if not holds(file.path)])

    def _reach(self, version: int) -> None:
        if version > self._log.version and version > self._log.refresh().version:
            problem = f"has no version {version}, only {self._log.version}; was it restored?"
            raise StorageError(self._folder.name, problem)

    def _inserted_by(
        self, start: int, end: int, cure: str | None, *, refuses_removals: bool = False
    ) -> Iterator[Inserted]:
        for versions in in_windows(range(start, end + 1)):
            contents = self._folder.fetched([commit_path(version) for version in versions])
            for version in versions:
                content = self._folder.commit_among(contents, version)
                actions = self._actions(version, content, cure)
                if refuses_removals and actions.takes_rows:
                    problem = f"another program removed rows in {commit_path(version)}"
                    raise StorageError(self._folder.name, problem)
                yield self._inserted(version, actions)

    def _actions(self, version: int, content: bytes | None, cure: str | None) -> CommitActions:
        name = self._folder.name
        if content is None and cure is None:
            problem = f"has no commit {version} any more; did another program clean the log?"
            raise StorageError(name, problem)
        actions = EMPTY_COMMIT if content is None else parsed_commit(name, version, content)
        if actions is EMPTY_COMMIT and cure is not None:
            problem = "is not there" if content is None else "is empty"
            raise StorageError(name, f"{commit_path(version)} {problem}: {cure}")
        return actions

    def _inserted(self, version: int, actions: CommitActions) -> Inserted:
        """Return the files that a commit inserted; rows that were rewritten are none of them."""
        changed = [LiveFile.of(action) for action in actions.changed]
        added = [LiveFile.of(action) for action in actions.added if action["dataChange"]]
        # Where there are files of changes, rows of added files are in them, too.
        as_files = self._files.as_files
        return Inserted(version, as_files([] if changed else added), as_files(changed))

    def _rows(self, commits: Sequence[Inserted], columns: Sequence[str]) -> pa.Table:
        """Read the rows of some commits, each with its version."""
        if any(commit.changed for commit in commits):
            return pa.concat_tables([self._rows_of_one(commit, columns) for commit in commits])
        files = [file for commit in commits for file in commit.added]
        versions = [commit.version for commit in commits for _ in commit.added]
        rows, counts = self._file_rows.read_counted(files, columns)
        return _with_version(rows, np.repeat(np.array(versions, np.int64), counts))

    def _rows_of_one(self, commit: Inserted, columns: Sequence[str]) -> pa.Table:
        parts = [self._insertions(file, columns) for file in commit.changed]
        rows = pa.concat_tables([self._file_rows.read(commit.added, columns), *parts])
        return _with_version(rows, np.full(rows.num_rows, commit.version, np.int64))

    def _insertions(self, changes: DataFile, columns: Sequence[str]) -> pa.Table:
        schema = self._log.columns_of(columns)
        stored = [name for name in columns if name not in self._schema.partition_by]
        rows = self._file_rows.read_stored(changes, [*stored, _CHANGE_TYPE])
        is_insert = pc.equal(rows[_CHANGE_TYPE], "insert")
        return with_partition(rows, changes, schema).filter(is_insert)


def _removed_file(action: Mapping[str, Any]) -> LiveFile:
    """Make the file of an action that removed it; Delta demands the path alone."""
    segments = path_of(action).split("/")[:-1]
    by_path = dict(segment.split("=", 1) for segment in segments if "=" in segment)
    partition = action.get("partitionValues") or by_path
    return LiveFile(action["path"], action.get("size") or 0, 0, partition, None)


def read_together(
    commits: Iterator[Inserted], enough_rows: int | None
) -> Iterator[Sequence[Inserted]]:
    """Yield the commits in their order, some together; a window ends when rows are enough."""
    window: list[Inserted] = []
    rows = 0
    for commit in commits:
        window.append(commit)
        rows += commit.num_records
        is_enough = enough_rows is not None and rows >= enough_rows
        if is_enough or commit.is_unknown or len(window) >= COMMITS_AT_ONCE:
            yield window
            window = []
    if window:
        yield window


def _with_version(rows: pa.Table, versions: np.ndarray[tuple[int], np.dtype[np.int64]]) -> pa.Table:
    return rows.append_column(COMMIT_VERSION, pa.array(versions))
