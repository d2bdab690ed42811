"""Finds rows in one of txmq's own Delta tables, also where some files cannot be read."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from txmq.delta.actions import EMPTY_COMMIT, CommitActions, commit_path, path_of
from txmq.delta.failures import Result, problem_of, read_again
from txmq.delta.file_rows import FileTable, in_windows_of_batches, record_batches
from txmq.delta.files import LARGE_FILE_ROWS, DataFile, FilePart, UnreadableFile, with_partition
from txmq.delta.folder import in_windows
from txmq.delta.parquet import FooterSizes, footer_sizes, row_group_ranges
from txmq.delta.replay import parsed_commit
from txmq.delta.schemas import TableSchema
from txmq.delta.snapshot import LiveFile
from txmq.errors import StorageError

# --- reading:

# Above this size a file is filtered batch by batch and never held whole.
WHOLE_FILE_BYTES = 64 * 1024 * 1024
# A file that could not be read is not tried again sooner.
UNREADABLE_PAUSE_S = 10.0
MOVED_ATTEMPTS = 3
# Rows that are decoded at once.
STEP_ROWS = 4096
# What is kept of rows while others are read; it is given one batch after the other.
Reduce = Callable[[pa.Table], pa.Table]


class ReadTable(FileTable):
    """A Delta table of txmq at one location, read through the version that is pinned.

    Not safe for several threads: each service and each committing thread holds its own.
    """

    def __init__(
        self, location: str, schema: TableSchema, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Open nothing yet; the first use does."""
        super().__init__(location, schema, storage_options)
        # When each file was found unreadable, by this process, and why.
        self._unreadable: dict[str, tuple[float, str]] = {}

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
                for rows, is_last in in_windows_of_batches(batches, size_bytes):
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
        return read_again(self.name, lambda: self._footer_sizes(file, columns), path=file.path)

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

    def added_rows(self, actions: CommitActions, columns: Sequence[str]) -> pa.Table:
        """The rows that a commit added; only columns that are no partition. Raises: StorageError.

        They are read by the commit file alone, so the pinned version may be older.
        """
        schema = self._columns_of(columns)
        files = [DataFile(path_of(action), 0, action["size"], {}) for action in actions.added]
        parts = [self._stored_again(file, list(columns)).cast(schema) for file in files]
        return pa.concat_tables([schema.empty_table(), *parts])

    def rows_of(
        self, column: str, values: pa.Array, columns: Sequence[str], reduce: Reduce | None = None
    ) -> pa.Table:
        """All rows whose `column` is one of `values`; reads only the files that may hold them.

        With `reduce` what it makes of them, which keeps `column`; memory holds one batch and that.
        """
        read_columns, keep = _read_and_kept(column, columns, reduce)
        files = [f for f in self.files_holding(column, values) if self._holds(f, column, values)]
        if reduce or any(file.size_bytes > WHOLE_FILE_BYTES for file in files):
            reads = [
                partial(self._matching, file, column, values, read_columns, keep) for file in files
            ]
            parts = [
                read_again(self.name, read, path=file.path)
                for file, read in zip(files, reads, strict=True)
            ]
            return pa.concat_tables([keep(self.read([], read_columns)), *parts])
        rows = self.read(files, read_columns)
        if not rows.num_rows:
            # Else all values would be hashed for nothing.
            return keep(rows)
        is_match = pc.is_in(rows[column], value_set=values)
        # A large transaction fills whole files, and a filter would copy them.
        if not pc.all(is_match, min_count=0).as_py():
            rows = rows.filter(is_match)
        return keep(rows)

    def _matching(
        self,
        file: DataFile,
        column: str,
        values: pa.Array,
        columns: Sequence[str],
        keep: Reduce,
    ) -> pa.Table:
        """The rows of one file whose `column` is one of `values`; holds one batch and them."""
        schema = self._columns_of(columns)
        parts = [keep(schema.empty_table())]
        for batch in self.batches(file, columns, LARGE_FILE_ROWS):
            rows = with_partition(pa.table(batch), file, schema)
            parts.append(keep(rows.filter(pc.is_in(rows[column], value_set=values))))
        return pa.concat_tables(parts)

    # --- files that cannot be read -----------------------------------------------------------

    def readable_rows_of(
        self, column: str, values: pa.Array, columns: Sequence[str], reduce: Reduce | None = None
    ) -> tuple[pa.Table, tuple[UnreadableFile, ...]]:
        """As `rows_of`, but files that cannot be read are set aside, and returned.

        A file that another process has replaced is none of them: the newest version is read then.
        Where a value has no row, commits that lost their content are: its rows may be in one.
        """
        for _ in range(MOVED_ATTEMPTS):
            before = self.snapshot
            rows, unreadable = self._readable_rows_of(column, values, columns, reduce)
            lost = self._lost(column, values, rows)
            is_back = not lost and self.snapshot is not before
            if not is_back and (not unreadable or not self.has_replaced(unreadable)):
                break
        return rows, (*unreadable, *lost)

    def _lost(self, column: str, values: pa.Array, rows: pa.Table) -> tuple[UnreadableFile, ...]:
        """Commits that lost their content, if a value has no row: their files are not known."""
        if column in rows.column_names and len(pc.unique(rows[column])) >= len(values):
            return ()
        return tuple(
            UnreadableFile(DataFile(path, 0, 0, {}), None, None, f"{path} is empty")
            for path in self.lost_commits()
        )

    def _readable_rows_of(
        self, column: str, values: pa.Array, columns: Sequence[str], reduce: Reduce | None
    ) -> tuple[pa.Table, tuple[UnreadableFile, ...]]:
        if not self._unreadable:
            try:
                return self.rows_of(column, values, columns, reduce), ()
            except Exception:  # noqa: BLE001, S110 - read again, file by file
                pass
        read_columns, keep = _read_and_kept(column, columns, reduce)
        parts, unreadable = [keep(self.read([], read_columns))], []
        for span in self.ranges_holding(column, values):
            read = partial(self._matching, span.file, column, values, read_columns, keep)
            rows, problem = self.readable(span.file, read)
            if rows is None:
                unreadable.append(UnreadableFile(span.file, span.low, span.high, problem))
            else:
                parts.append(rows)
        return pa.concat_tables(parts), tuple(unreadable)

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

    @property
    def has_unreadable(self) -> bool:
        """Whether there are files that `readable` could not read the last time."""
        return bool(self._unreadable)

    def forget_unreadable(self) -> None:
        """Try each file again at its next use."""
        self._unreadable.clear()

    def has_replaced(self, unreadable: Sequence[UnreadableFile]) -> bool:
        """Whether another process has replaced one of the files; pins the newest version."""
        live = {file.path for file in self.reopen().files()}
        return any(one.file.path not in live for one in unreadable)

    def _holds(self, file: DataFile, column: str, values: pa.Array) -> bool:
        """Statistics are only a range, so this column of a large file is read before the others."""
        if file.num_records < LARGE_FILE_ROWS or len(values) > file.num_records // 100:
            # With many values, hashing all of them for each file costs more than it saves.
            return True
        return bool(pc.any(pc.is_in(self.read([file], [column])[column], value_set=values)).as_py())


def _read_and_kept(
    column: str, columns: Sequence[str], reduce: Reduce | None
) -> tuple[Sequence[str], Reduce]:
    """The columns to read for a search by `column`, and what is kept of the rows."""
    read_columns = columns if column in columns else [column, *columns]
    return read_columns, reduce or (lambda rows: rows.select(list(columns)))


# --- changes:

# The files of so many commits are read together.
COMMITS_AT_ONCE = 64
COMMIT_VERSION = "_commit_version"
_CHANGE_TYPE = "_change_type"


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


class ChangesTable(ReadTable):
    """A table of which new rows are read commit by commit. Not safe for several threads."""

    def changes(self, start: int, end: int, columns: Sequence[str]) -> pa.Table:
        """Rows appended by the versions `start` to `end`, with `_commit_version`.

        `end` may be newer than the pinned version, which is then refreshed.

        Raises: StorageError where there is no version `end`; delta-rs would clamp it in silence.
        """
        return self.first_changes(start, end, columns)[0]

    def first_changes(
        self,
        start: int,
        end: int,
        columns: Sequence[str],
        enough_rows: int | None = None,
        cure: str | None = None,
    ) -> tuple[pa.Table, int]:
        """As `changes`, up to the version with which there are enough rows, and that version.

        With a `cure`, for the error text, a commit that lost its content is an error, too.
        """
        schema = pa.schema([self.schema.columns.field(name) for name in columns])
        full = schema.append(pa.field(COMMIT_VERSION, pa.int64()))
        parts, version = [full.empty_table()], end
        if start <= end:
            self._reach(end)
        commits = self._inserted_by(start, end, cure)
        for window in read_together(commits, enough_rows):
            parts.append(self._rows(window, columns))
            version = window[-1].version
            if enough_rows is not None and sum(part.num_rows for part in parts) >= enough_rows:
                break
        return pa.concat_tables(parts).cast(full), version

    def _inserted_by(self, start: int, end: int, cure: str | None) -> Iterator[Inserted]:
        for versions in in_windows(range(start, end + 1)):
            contents = self.fetched([commit_path(version) for version in versions])
            for version in versions:
                content = self.commit_among(contents, version)
                yield self._inserted(version, self._actions(version, content, cure))

    def _actions(self, version: int, content: bytes | None, cure: str | None) -> CommitActions:
        if content is None and cure is None:
            problem = f"has no commit {version} any more; did another program clean the log?"
            raise StorageError(self.name, problem)
        actions = EMPTY_COMMIT if content is None else parsed_commit(self.name, version, content)
        if actions is EMPTY_COMMIT and cure is not None:
            problem = "is not there" if content is None else "is empty"
            raise StorageError(self.name, f"{commit_path(version)} {problem}: {cure}")
        return actions

    def _inserted(self, version: int, actions: CommitActions) -> Inserted:
        """The files that a commit inserted; rows that were rewritten are none of them."""
        changed = [LiveFile.of(action) for action in actions.changed]
        added = [LiveFile.of(action) for action in actions.added if action["dataChange"]]
        # Where there are files of changes, rows of added files are in them, too.
        return Inserted(version, self.as_files([] if changed else added), self.as_files(changed))

    def _rows(self, commits: Sequence[Inserted], columns: Sequence[str]) -> pa.Table:
        """The rows of some commits, each with its version."""
        if any(commit.changed for commit in commits):
            return pa.concat_tables([self._rows_of_one(commit, columns) for commit in commits])
        files = [file for commit in commits for file in commit.added]
        versions = [commit.version for commit in commits for _ in commit.added]
        rows, counts = self.read_counted(files, columns)
        return _with_version(rows, np.repeat(np.array(versions, np.int64), counts))

    def _rows_of_one(self, commit: Inserted, columns: Sequence[str]) -> pa.Table:
        parts = [self._insertions(file, columns) for file in commit.changed]
        rows = pa.concat_tables([self.read(commit.added, columns), *parts])
        return _with_version(rows, np.full(rows.num_rows, commit.version, np.int64))

    def _insertions(self, changes: DataFile, columns: Sequence[str]) -> pa.Table:
        schema = self._columns_of(columns)
        stored = [name for name in columns if name not in self.schema.partition_by]
        rows = self._stored_again(changes, [*stored, _CHANGE_TYPE])
        is_insert = pc.equal(rows[_CHANGE_TYPE], "insert")
        return with_partition(rows, changes, schema).filter(is_insert)

    def _reach(self, version: int) -> None:
        if version > self.version and version > self.refresh().version:
            problem = f"has no version {version}, only {self.version}; was it restored?"
            raise StorageError(self.name, problem)


def read_together(
    commits: Iterator[Inserted], enough_rows: int | None
) -> Iterator[Sequence[Inserted]]:
    """The commits in their order, some together; a window ends where there are enough rows."""
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
