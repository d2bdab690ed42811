"""Reads what the commits of one of txmq's own Delta tables have inserted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.actions import EMPTY_COMMIT, CommitActions, commit_path
from txmq.delta.files import DataFile, with_partition
from txmq.delta.folder import in_windows
from txmq.delta.reading import ReadTable
from txmq.delta.replay import parsed_commit
from txmq.delta.snapshot import LiveFile
from txmq.errors import StorageError

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
