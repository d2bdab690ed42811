"""Reads a table's log: its newest checkpoint and the commits after it, into a snapshot.

A backup reads more of it: the oldest checkpoint, and all files that the kept commits name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from txmq.delta.actions import (
    COMMIT_NAME,
    DAMAGES,
    EMPTY_COMMIT,
    LOG_FOLDER,
    CommitActions,
    Seen,
    commit_actions,
    commit_path,
    path_of,
    stamp_of,
)
from txmq.delta.failures import MISSING, in_one_line, read_again
from txmq.delta.folder import NOT_FOUND, REQUESTS_AT_ONCE, TableFolder, in_windows, inside
from txmq.delta.snapshot import Definition, LiveFile, Marks, Snapshot
from txmq.errors import StorageError, StoreNotFoundError

# Single-file or multi-part checkpoint: version, part, parts.
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet", re.ASCII)
_COLUMNS = (
    "add.path", "add.size", "add.modificationTime", "add.partitionValues", "add.stats",
    "txn.appId", "txn.version", "metaData", "protocol",
)  # fmt: skip
# A log that lacks more of its commits is broken.
OVERLOOKED_MAX = 10_000
# So many commit files are in memory at once.
COMMITS_AT_ONCE = 256


class BrokenLogError(OSError):
    """A log that cannot be read as it is now; a writer may be cleaning it."""


@dataclass(slots=True)
class LogNames:
    """The names in a log folder: the versions of its commits, and the files of its checkpoints."""

    commits: set[int] = field(default_factory=set)
    checkpoints: dict[int, list[list[str]]] = field(default_factory=dict)

    @classmethod
    def of(cls, names: Sequence[str]) -> LogNames:
        """Sort the names of a folder."""
        log = cls()
        parts: dict[tuple[int, int], list[str]] = {}
        for name in sorted(names):
            if commit := COMMIT_NAME.fullmatch(name):
                log.commits.add(int(commit[1]))
            elif part := _CHECKPOINT.fullmatch(name):
                parts.setdefault((int(part[1]), int(part[3] or 0)), []).append(name)
        for (version, count), files in parts.items():
            if len(files) == max(count, 1):
                log.checkpoints.setdefault(version, []).append(files)
        return log

    @property
    def newest(self) -> int:
        """The newest version; -1 without any."""
        return max(chain(self.commits, self.checkpoints), default=-1)

    def bases(self) -> list[int]:
        """Return the checkpoints to begin at, the newest first; -1 is the begin of the log."""
        return [*sorted(self.checkpoints, reverse=True), -1]

    def missing_after(self, base: int) -> int | None:
        """Find the first commit after a checkpoint that is missing, although later ones exist."""
        versions = range(base + 1, self.newest + 1)
        return next((version for version in versions if version not in self.commits), None)


def replayed(folder: TableFolder, missing: str) -> Snapshot:
    """Read the newest version of a table, by one listing of its log.

    Raises: StoreNotFoundError with the problem `missing` where there is no log; OSError, which may
        pass while a writer cleans the log; StorageError.
    """
    log = LogNames.of(folder.log_names())
    if log.newest < 0:
        raise StoreNotFoundError(folder.name, missing)
    log.commits.update(overlooked(folder, log, max(log.checkpoints, default=-1)))
    base, snapshot = begin(folder, log, log.bases())
    for content, seen in _commits(folder, range(base + 1, log.newest + 1)):
        actions = parsed_commit(folder.name, seen.version, content)
        snapshot = first(actions) if snapshot is None else snapshot
        follow(folder.name, snapshot, seen, actions)
    assert snapshot is not None  # noqa: S101 - there is a checkpoint, or commit 0
    return snapshot


def overlooked(folder: TableFolder, log: LogNames, after: int) -> dict[int, pa_fs.FileInfo]:
    """Look up by name the commits after a version that a listing left out, though they are there.

    A folder on a disk is not listed at one moment: of two commits that land meanwhile, the listing
    may show the later one alone.
    """
    missing = [v for v in range(after + 1, log.newest + 1) if v not in log.commits]
    if not missing or len(missing) > OVERLOOKED_MAX:
        return {}
    infos = zip(missing, folder.commit_infos(*missing), strict=True)
    return {version: info for version, info in infos if info.type is not NOT_FOUND}


def begin(folder: TableFolder, log: LogNames, bases: Sequence[int]) -> tuple[int, Snapshot | None]:
    """Read the first of these checkpoints that is whole and after which no commit is missing.

    Raises: BrokenLogError where there is none.
    """
    problem = ""
    for base in bases:
        missing = log.missing_after(base)
        if missing is not None:
            problem = problem or f"{commit_path(missing)} is not there, but later commits are"
            continue
        if base < 0:
            return base, None
        for names in log.checkpoints[base]:
            try:
                return base, _of_checkpoint(folder, base, names)
            except (OSError, pa.ArrowException, *DAMAGES) as error:
                problem = problem or f"checkpoint {base}: {in_one_line(error)}"
    raise BrokenLogError(problem)


def first(actions: CommitActions) -> Snapshot:
    """Make the snapshot before the first commit, which defines it. Raises: BrokenLogError."""
    if actions.metadata is None or actions.protocol is None:
        raise BrokenLogError(f"{commit_path(0)} has no metaData or no protocol")
    return Snapshot(Seen(-1), Definition(actions.metadata, actions.protocol), (), Marks())


def _commits(folder: TableFolder, versions: range) -> Iterator[tuple[bytes, Seen]]:
    """Read these commits in order; from an object store some at the same time."""
    for window in in_windows(versions):
        infos = folder.commit_infos(*window)
        contents = folder.fetched([commit_path(version) for version in window])
        for version, info in zip(window, infos, strict=True):
            content = folder.commit_among(contents, version)
            if content is None or info.type is NOT_FOUND:
                raise FileNotFoundError(commit_path(version))
            yield content, Seen(version, stamp_of(info))


def parsed_commit(table: str, version: int, content: bytes) -> CommitActions:
    """Read what a commit file says; nothing if it lost its content, as for other readers.

    Raises: StorageError, which names the file.
    """
    if not content.strip():
        return EMPTY_COMMIT
    try:
        return commit_actions(content)
    except DAMAGES as error:
        raise _damaged(table, version) from error


def follow(table: str, snapshot: Snapshot, seen: Seen, actions: CommitActions) -> None:
    """Carry a snapshot over a commit. Raises: StorageError, which names the file."""
    try:
        snapshot.follow(seen, actions)
    except DAMAGES as error:
        raise _damaged(table, seen.version) from error


def _damaged(table: str, version: int) -> StorageError:
    problem = f"{commit_path(version)} is damaged; restore this file"
    return StorageError(table, f"cannot be read ({problem})")


# --- a checkpoint -------------------------------------------------------------------------------


def _of_checkpoint(folder: TableFolder, version: int, names: Sequence[str]) -> Snapshot:
    (info,) = folder.commit_infos(version)
    seen = Seen(version, None if info.type is NOT_FOUND else stamp_of(info))
    parts = [_rows(folder, f"{LOG_FOLDER}/{name}") for name in names]
    definition = Definition(_only(parts, "metaData"), _only(parts, "protocol"))
    marks = [_structs(rows, "txn") for rows in parts]
    files = chain.from_iterable(_files(rows) for rows in parts)
    return Snapshot(seen, definition, files, _marks(marks))


def _marks(parts: Sequence[pa.StructArray]) -> Marks:
    def column(name: str, kind: pa.DataType) -> pa.Array:
        arrays = [pc.struct_field(part, name).cast(kind) for part in parts if len(part)]
        return pa.concat_arrays([pa.array([], kind), *arrays])

    return Marks(column("appId", pa.string()), column("version", pa.int64()))


def _rows(folder: TableFolder, path: str) -> pa.Table:
    with folder.filesystem.open_input_file(path) as source:
        return pq.ParquetFile(source).read(list(_COLUMNS), use_threads=False)


def _structs(rows: pa.Table, kind: str) -> pa.StructArray:
    """Return the actions of a kind; a checkpoint may have no column for one."""
    if kind not in rows.column_names:
        return pa.array([], pa.struct([]))
    values = rows[kind].combine_chunks()
    return values.filter(values.is_valid())


def _only(parts: Sequence[pa.Table], kind: str) -> Mapping[str, Any]:
    """Return the one action of a kind; its maps are pairs in Arrow."""
    (action,) = chain.from_iterable(_structs(rows, kind).to_pylist() for rows in parts)
    return {**action, "configuration": dict(action.get("configuration") or ())}


def _files(rows: pa.Table) -> Iterator[LiveFile]:
    files = _structs(rows, "add")
    stored = {part.name for part in files.type}
    if "path" not in stored:
        return
    columns = ("path", "size", "modificationTime", "partitionValues", "stats")
    values = [
        pc.struct_field(files, name).to_pylist() if name in stored else [None] * len(files)
        for name in columns
    ]
    for path, size, modified_ms, partition, stats in zip(*values, strict=True):
        action = {
            "path": path, "size": size, "modificationTime": modified_ms,
            "partitionValues": dict(partition or ()), "stats": stats,
        }  # fmt: skip
        yield LiveFile.of(action)


# --- the kept log -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeptLog:
    """One version of a table, and the files that its kept log needs; paths are relative to it.

    Attributes:
        snapshot: the version.
        log_bytes: commits and checkpoints up to this version, each with its size.
        live_bytes: the live data files of this version.
        earlier_bytes: data files that only earlier kept versions have; some may be deleted already.
    """

    snapshot: Snapshot
    log_bytes: Mapping[str, int]
    live_bytes: Mapping[str, int]
    earlier_bytes: Mapping[str, int]

    @property
    def version(self) -> int:
        """The version."""
        return self.snapshot.version


def kept_log(folder: TableFolder) -> KeptLog:
    """Read the newest version of a table with all that its kept log names; 0 commits.

    Reads: one listing of the log, its oldest whole checkpoint and all commits after it; no rows.

    Raises: StoreNotFoundError; StorageError, StoreFormatError for a file of another place.
    """
    return read_again(folder.name, lambda: _kept_log(folder))


def _kept_log(folder: TableFolder) -> KeptLog:
    sizes = {info.base_name: int(info.size or 0) for info in folder.log_folder()}
    log = LogNames.of(list(sizes))
    if log.newest < 0:
        raise StoreNotFoundError(folder.name, MISSING)
    oldest = min(log.commits | log.checkpoints.keys()) if log.checkpoints else -1
    more = overlooked(folder, log, oldest)
    log.commits.update(more)
    sizes |= {info.base_name: int(info.size or 0) for info in more.values()}
    # The oldest first: as much of the history as there is.
    base, snapshot = begin(folder, log, sorted(log.bases()))
    named_bytes = {} if snapshot is None else _live_bytes(snapshot)
    for version, content in _commits_of_kept_log(folder, range(base + 1, log.newest + 1)):
        actions = parsed_commit(folder.name, version, content)
        snapshot = first(actions) if snapshot is None else snapshot
        follow(folder.name, snapshot, Seen(version), actions)
        named_bytes |= _named_bytes(actions)
    assert snapshot is not None  # noqa: S101 - there is a checkpoint, or commit 0
    live_bytes = _live_bytes(snapshot)
    for path in named_bytes:
        inside(path)
    earlier_bytes = {path: size for path, size in named_bytes.items() if path not in live_bytes}
    log_bytes = _log_bytes(sizes, base, log.newest)
    return KeptLog(snapshot, log_bytes, live_bytes, earlier_bytes)


def _log_bytes(sizes: Mapping[str, int], base: int, newest: int) -> dict[str, int]:
    """Return commits and checkpoints from the base on, which has both if its commit is there."""
    return {
        f"{LOG_FOLDER}/{name}": size
        for name, size in sizes.items()
        if (COMMIT_NAME.fullmatch(name) or _CHECKPOINT.fullmatch(name))
        and base <= int(name[:20]) <= newest
    }


def _live_bytes(snapshot: Snapshot) -> dict[str, int]:
    return {file.path: file.size_bytes for file in snapshot.files}


def _named_bytes(actions: CommitActions) -> dict[str, int]:
    """Return the data files that a commit names, each with its size, or 0."""
    kinds: Sequence[Sequence[Mapping[str, Any]]] = (
        actions.added, actions.removed, actions.changed
    )  # fmt: skip
    return {path_of(action): int(action.get("size") or 0) for kind in kinds for action in kind}


def _commits_of_kept_log(folder: TableFolder, versions: range) -> Iterator[tuple[int, bytes]]:
    """Read the commit files in order.

    Raises: FileNotFoundError for one that clean-up has taken.
    """
    # Made once, before several threads use it.
    folder.filesystem  # noqa: B018
    with ThreadPoolExecutor(REQUESTS_AT_ONCE if folder.objects.is_remote else 1) as pool:
        for begin_at in range(0, len(versions), COMMITS_AT_ONCE):
            window = versions[begin_at : begin_at + COMMITS_AT_ONCE]
            contents = pool.map(folder.commit_bytes, window)
            for version, content in zip(window, contents, strict=True):
                if content is None:
                    raise FileNotFoundError(version)
                yield version, content
