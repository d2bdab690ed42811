"""All that the kept log of a table names: its own files, and the data files of all its versions.

Readers of changes and of streams need more than the live files: a commit that was compacted since
still names the files that it added.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from txmq.delta.actions import COMMIT_NAME, LOG_FOLDER, CommitActions, Seen, path_of
from txmq.delta.folder import TableFolder
from txmq.delta.replay import LogNames, begin, first, follow, overlooked, parsed_commit
from txmq.delta.retries import MISSING, read_again
from txmq.delta.rooted import REQUESTS_AT_ONCE, inside
from txmq.delta.snapshot import Snapshot
from txmq.errors import StoreNotFoundError

_CHECKPOINT_NAME = re.compile(r"\d{20}\.checkpoint(\.\d{10}\.\d{10})?\.parquet", re.ASCII)
# So many commit files are in memory at once.
COMMITS_AT_ONCE = 256


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
    """The newest version of a table with all that its kept log names; 0 commits.

    Reads: one listing of the log, its oldest whole checkpoint and all commits after it; no rows.

    Raises: StoreNotFoundError; StorageError, StoreFormatError for a file of another place.
    """
    return read_again(folder.name, lambda: _kept_log(folder))


def _kept_log(folder: TableFolder) -> KeptLog:
    sizes = {info.base_name: int(info.size or 0) for info in folder.log_folder()}
    log = LogNames.of(list(sizes))
    if log.newest < 0:
        raise StoreNotFoundError(folder.name, MISSING)
    kept = min(log.commits | log.checkpoints.keys()) if log.checkpoints else -1
    more = overlooked(folder, log, kept)
    log.commits.update(more)
    sizes |= {info.base_name: int(info.size or 0) for info in more.values()}
    # The oldest first: as much of the history as there is.
    base, snapshot = begin(folder, log, sorted(log.bases()))
    named = {} if snapshot is None else _live(snapshot)
    for version, content in _commits(folder, range(base + 1, log.newest + 1)):
        actions = parsed_commit(folder.name, version, content)
        snapshot = first(actions) if snapshot is None else snapshot
        follow(folder.name, snapshot, Seen(version), actions)
        named |= _named(actions)
    assert snapshot is not None  # noqa: S101 - there is a checkpoint, or commit 0
    return _with_files(snapshot, named, _log_files(sizes, base, log.newest))


def _with_files(
    snapshot: Snapshot, named: Mapping[str, int], log_bytes: Mapping[str, int]
) -> KeptLog:
    live = _live(snapshot)
    for path in named:
        inside(path)
    earlier = {path: size for path, size in named.items() if path not in live}
    return KeptLog(snapshot, log_bytes, live, earlier)


def _log_files(sizes: Mapping[str, int], base: int, newest: int) -> dict[str, int]:
    """Commits and checkpoints from the base on; the base has both, if its commit is still there."""
    return {
        f"{LOG_FOLDER}/{name}": size
        for name, size in sizes.items()
        if (COMMIT_NAME.fullmatch(name) or _CHECKPOINT_NAME.fullmatch(name))
        and base <= int(name[:20]) <= newest
    }


def _live(snapshot: Snapshot) -> dict[str, int]:
    return {file.path: file.size_bytes for file in snapshot.files}


def _named(actions: CommitActions) -> dict[str, int]:
    """The data files that a commit names, each with its size, where it says so."""
    kinds: Sequence[Sequence[Mapping[str, Any]]] = (
        actions.added, actions.removed, actions.changed
    )  # fmt: skip
    return {path_of(action): int(action.get("size") or 0) for kind in kinds for action in kind}


def _commits(folder: TableFolder, versions: range) -> Iterator[tuple[int, bytes]]:
    """The commit files in order. Raises: FileNotFoundError for one that clean-up has taken."""
    # Made once, before several threads use it.
    folder.filesystem  # noqa: B018
    with ThreadPoolExecutor(REQUESTS_AT_ONCE if folder.objects.is_remote else 1) as pool:
        for begin_at in range(0, len(versions), COMMITS_AT_ONCE):
            some = versions[begin_at : begin_at + COMMITS_AT_ONCE]
            for version, content in zip(some, pool.map(folder.commit_bytes, some), strict=True):
                if content is None:
                    raise FileNotFoundError(version)
                yield version, content
