"""The commit files of a table: which there are, what they name, and removing those read by all.

What may be needed is what the kept commits name: a reader of a change feed or of a stream opens
the files that they added or removed, and nothing else. So a commit file goes together with the
data files that it took out of the table, and not before every reader is beyond it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from txmq.delta.files import DataFile, FilePart
from txmq.delta.pinned import PinnedTable
from txmq.delta.reading import ReadTable
from txmq.delta.storage import Table
from txmq.fail_points import FailPoint, reached

LOG_FOLDER = "_delta_log"
LAST_CHECKPOINT = "_last_checkpoint"
_COMMIT = re.compile(r"(\d{20})\.json", re.ASCII)
# Only the form in one file: it is there whole or not at all.
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet", re.ASCII)
_OF_A_VERSION = re.compile(r"(\d{20})\..*", re.ASCII)


@dataclass(frozen=True, slots=True)
class LogFiles:
    """What a log folder holds: when the store received each commit, and the checkpoints."""

    commits_ms: Mapping[int, int]
    checkpoints: tuple[int, ...]

    def since_checkpoint(self, version: int) -> int:
        """How many commits a reader of `version` has to read one by one."""
        return version - max((at for at in self.checkpoints if at <= version), default=-1)

    def newest_of(self, is_old: Callable[[int], bool]) -> int:
        """The newest commit whose time of arrival is old; -1 if there is none."""
        return max((at for at, ms in self.commits_ms.items() if is_old(ms)), default=-1)

    def base(self, keep_from: int) -> int:
        """The version from which on everything is kept so that `keep_from` can be read."""
        return max((at for at in self.checkpoints if at <= keep_from), default=0)


@dataclass(frozen=True, slots=True)
class LogCleaned:
    """How many commit files went, and how many data files that only they named."""

    commits: int = 0
    data_files: int = 0


@dataclass(frozen=True, slots=True)
class CommitNews:
    """What a commit says to those who follow a table.

    Attributes:
        added: files with new rows; compaction adds none.
        has_removed: whether rows were taken away.
        marks: what it was committed under.
    """

    added: tuple[FilePart, ...]
    has_removed: bool
    marks: Mapping[str, int]


def commit_news(table: PinnedTable, version: int) -> CommitNews | None:
    """What one commit brought, read from its file alone; None where that was cleaned away."""
    content = table.commit_bytes(version)
    if content is None:
        return None
    actions = [json.loads(line) for line in content.splitlines()]
    added = [_added(own) for own in _each(actions, "add") if own["dataChange"]]
    has_removed = any(own["dataChange"] for own in _each(actions, "remove"))
    marks = {own["appId"]: int(own["version"]) for own in _each(actions, "txn")}
    return CommitNews(tuple(added), has_removed, marks)


def _each(actions: Iterable[Mapping[str, Any]], kind: str) -> Iterator[dict[str, Any]]:
    return (action[kind] for action in actions if kind in action)


def _added(action: Mapping[str, Any]) -> FilePart:
    told: dict[str, Any] = json.loads(action.get("stats") or "{}")
    file = DataFile(
        unquote(action["path"]),
        told.get("numRecords", 0),
        action["size"],
        action["partitionValues"],
        action["modificationTime"],
    )
    return FilePart(file, told.get("minValues", {}), told.get("maxValues", {}))


def log_files(table: PinnedTable) -> LogFiles:
    """One listing of the log folder."""
    commits: dict[int, int] = {}
    checkpoints = []
    for found in table.log_folder():
        if (name := _COMMIT.fullmatch(found.base_name)) and found.mtime_ns is not None:
            commits[int(name[1])] = int(found.mtime_ns) // 1_000_000
        elif name := _CHECKPOINT.fullmatch(found.base_name):
            checkpoints.append(int(name[1]))
    return LogFiles(commits, tuple(sorted(checkpoints)))


def clean_log(table: Table, keep_from: int) -> LogCleaned:
    """Remove the commits that nobody needs who has read all before `keep_from`; 0 commits.

    What is kept begins at a checkpoint. The commits go first, oldest first: no commit ever names a
    file that is gone, and what a killed process leaves is a file that no commit names.
    """
    files = log_files(table.refresh())
    base = min(files.base(keep_from), _last_checkpoint(table, files))
    doomed = [version for version in files.commits_ms if version < base]
    if not doomed:
        return LogCleaned()
    removed = set(removed_by(table, doomed)) - named_by(table, _from(files, base))
    delete_files(table, _log_paths(table, base))
    reached(FailPoint.LOG_CLEANED)
    gone = delete_files(table, removed - {file.path for file in table.files()})
    return LogCleaned(len(doomed), gone)


def named_by(table: ReadTable, versions: Iterable[int]) -> set[str]:
    """The data files that these commits added or removed."""
    return {path for _, path in _actions_of(table, versions)}


def removed_by(table: ReadTable, versions: Iterable[int]) -> list[str]:
    """The data files that these commits took out, each as often as they did."""
    return [path for kind, path in _actions_of(table, versions) if kind == "remove"]


def _actions_of(table: ReadTable, versions: Iterable[int]) -> Iterator[tuple[str, str]]:
    for version in versions:
        yield from _file_actions(table.commit_bytes(version))


def _from(files: LogFiles, version: int) -> list[int]:
    return [at for at in files.commits_ms if at >= version]


def _file_actions(content: bytes | None) -> Iterator[tuple[str, str]]:
    for line in (content or b"").splitlines():
        action: dict[str, Any] = json.loads(line)
        for kind in ("add", "remove", "cdc"):
            if kind in action:
                yield kind, unquote(action[kind]["path"])


def _last_checkpoint(table: ReadTable, files: LogFiles) -> int:
    """Where readers begin: a late writer may have put an older version there than the newest."""
    newest = max(files.checkpoints, default=0)
    try:
        with table.filesystem.open_input_file(f"{LOG_FOLDER}/{LAST_CHECKPOINT}") as file:
            return int(json.loads(bytes(file.read()))["version"])
    except FileNotFoundError:
        return newest


def _log_paths(table: ReadTable, base: int) -> list[str]:
    """Commits, checkpoints and checksums of the versions before `base`, oldest first."""
    found = (_OF_A_VERSION.fullmatch(info.base_name) for info in table.log_folder())
    names = sorted(name[0] for name in found if name and int(name[1]) < base)
    return [f"{LOG_FOLDER}/{name}" for name in names]


def delete_files(table: Table, paths: Iterable[str]) -> int:
    """Remove files, and say how many; one that somebody else removed first is no fault."""
    count = 0
    for path in paths:
        try:
            table.filesystem.delete_file(path)
        except FileNotFoundError:
            continue
        count += 1
    return count
