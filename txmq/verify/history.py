"""The checker's own reading of a table's log: each commit that is still there, and its files."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pa_fs

_COMMIT_FILE = re.compile(r"_delta_log/([0-9]{20})\.json")
_LOG = "_delta_log/"
FINGERPRINT_DIGITS = 15


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A data file as its commit describes it.

    Attributes:
        is_change: false for a file that only holds older rows again.
        largest_id: the largest transaction_id in it, None where the statistics do not say.
        day: its store_date, where the table has one.
    """

    path: str
    size_bytes: int
    is_change: bool
    largest_id: str | None
    day: str | None


@dataclass(slots=True)
class Commit:
    """One version of a table.

    Attributes:
        moment_ms: when it was made: the earlier of its file's time and its writer's clock, for a
            copied store has younger files.
        removed: paths whose rows are gone with this commit.
        change_files: what a writer that altered rows left for the change feed.
        marks: what it counted up.
        fingerprint: the begin of the hash of its file, as a number.
    """

    version: int
    operation: str | None = None
    moment_ms: int = 0
    added: list[AddedFile] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    change_files: list[str] = field(default_factory=list)
    marks: dict[str, int] = field(default_factory=dict)
    fingerprint: int = 0

    @property
    def appended_files(self) -> list[str]:
        """Paths of the files whose rows are new in this version."""
        return [file.path for file in self.added if file.is_change]


@dataclass(frozen=True, slots=True)
class History:
    """The commits of one table up to the pinned version, and the files that are there.

    Attributes:
        commits: by version, sorted; those that were cleaned away are not in it.
        sizes: bytes of each file under the table, the log left out.
    """

    commits: Mapping[int, Commit]
    sizes: Mapping[str, int]

    def readable_from(self, version: int) -> int:
        """Return the first version from which every commit and its rows can still be read."""
        first = version + 1
        while first - 1 in self.commits:
            first -= 1
        gone = [commit.version + 1 for commit in self.commits.values() if self._lacks_rows(commit)]
        return max([first, *gone])

    def _lacks_rows(self, commit: Commit) -> bool:
        changes = (file for file in commit.added if file.is_change)
        return not all(self.is_whole(file.path, file.size_bytes) for file in changes)

    def is_whole(self, path: str, size_bytes: int) -> bool:
        """Tell whether a file is there and has the size that its commit says."""
        return self.sizes.get(path) == size_bytes

    def added(self) -> dict[str, AddedFile]:
        """Return each file whose commit is still there, by its path."""
        return {file.path: file for commit in self.commits.values() for file in commit.added}


def read_history(filesystem: pa_fs.FileSystem, version: int) -> History:
    """List a table once and read its commits up to `version`."""
    infos = filesystem.get_file_info(pa_fs.FileSelector("", recursive=True))
    files = [info for info in infos if info.type is pa_fs.FileType.File]
    sizes = {info.path: int(info.size) for info in files if not info.path.startswith(_LOG)}
    return History(dict(_commits(filesystem, files, version)), sizes)


def _commits(
    filesystem: pa_fs.FileSystem, files: Sequence[Any], version: int
) -> Iterator[tuple[int, Commit]]:
    for info in sorted(files, key=lambda info: str(info.path)):
        match = _COMMIT_FILE.fullmatch(info.path)
        if match and int(match[1]) <= version:
            with filesystem.open_input_file(info.path) as file:
                commit = _commit(int(match[1]), file.read(), int(info.mtime_ns) // 1_000_000)
            yield commit.version, commit


def _commit(version: int, content: bytes, file_ms: int) -> Commit:
    digits = hashlib.sha256(content).hexdigest()[:FINGERPRINT_DIGITS]
    commit = Commit(version, moment_ms=file_ms, fingerprint=int(digits, 16))
    for line in content.splitlines():
        if line.strip():
            action = json.loads(line).items()
            _take(commit, {kind: values for kind, values in action if values is not None})
    return commit


def _take(commit: Commit, action: Mapping[str, Any]) -> None:
    """Put one line of the log in its place."""
    match action:
        case {"commitInfo": info}:
            commit.operation = info.get("operation")
            commit.moment_ms = min(commit.moment_ms, info.get("timestamp", commit.moment_ms))
        case {"add": add}:
            commit.added.append(_added(add))
        case {"remove": {"dataChange": True, "path": path}}:
            commit.removed.append(unquote(path))
        case {"cdc": change}:
            commit.change_files.append(unquote(change["path"]))
        case {"txn": txn}:
            commit.marks[txn["appId"]] = int(txn["version"])


def _added(add: Mapping[str, Any]) -> AddedFile:
    largest = _largest(add.get("stats"))
    day = (add.get("partitionValues") or {}).get("store_date")
    return AddedFile(
        unquote(add["path"]), int(add["size"]), add["dataChange"],
        largest.get("transaction_id"), day,
    )  # fmt: skip


def _largest(text: str | None) -> Mapping[str, Any]:
    """Return the largest values in the statistics of a file; empty where they say none."""
    try:
        stats = json.loads(text or "{}")
    except ValueError:
        return {}
    largest = stats.get("maxValues") if isinstance(stats, dict) else None
    return largest if isinstance(largest, dict) else {}
