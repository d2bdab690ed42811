"""The commit files of a table: list them, read what they name, clean those that all have read.

A reader of a change feed or of a stream opens only the data files that the kept commits added or
removed. So a commit file is deleted together with the data files that it removed from the table,
and not before every reader has passed it. A log that cannot be read is begun anew.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from txmq.delta.actions import COMMIT_NAME, LOG_FOLDER, NewCommit, commit_path, path_of
from txmq.delta.checkpoints import LAST_CHECKPOINT, checkpoint_path, write_first_checkpoint
from txmq.delta.commit_writer import new_token
from txmq.delta.failures import in_one_line, translated
from txmq.delta.files import FilePart, added_file
from txmq.delta.folder import REQUESTS_AT_ONCE, TableFolder, in_windows
from txmq.delta.replay import LogNames, parsed_commit
from txmq.delta.snapshot import LiveFile
from txmq.delta.table import Table
from txmq.ground.fail_points import FailPoint, reached
from txmq.ground.results import Sum

if TYPE_CHECKING:
    from txmq.delta.schemas import TableSchema

logger = logging.getLogger(__name__)

# Only checkpoints of one file: such a file is complete or absent.
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint\.parquet", re.ASCII)
_OF_A_VERSION = re.compile(r"(\d{20})\..*", re.ASCII)
# A longer log is cleaned in steps, so that who is killed keeps what is done so far.
COMMITS_AT_ONCE = 10_000


_FINGERPRINT_HEX_DIGITS = 15


# --- listing and reading ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogFiles:
    """The content of a log folder: the modification time of each commit, and the checkpoints."""

    commits_ms: Mapping[int, int]
    checkpoints: tuple[int, ...]

    def since_checkpoint(self, version: int) -> int:
        """Return how many commits a reader of `version` reads one by one."""
        return version - max((at for at in self.checkpoints if at <= version), default=-1)

    def newest_of(self, is_old: Callable[[int], bool]) -> int:
        """Return the newest commit whose modification time is old; -1 if there is none."""
        return max((at for at, ms in self.commits_ms.items() if is_old(ms)), default=-1)

    def base(self, keep_from: int) -> int:
        """Return the oldest version to keep so that `keep_from` can be read: a checkpoint, or 0."""
        return max((at for at in self.checkpoints if at <= keep_from), default=0)

    def bases(self, base: int) -> list[int]:
        """Return up to where COMMITS_AT_ONCE or more are cleaned: checkpoints in order, `base`."""
        first = min(self.commits_ms, default=base)
        return [*(at for at in self.checkpoints if first + COMMITS_AT_ONCE <= at < base), base]


def log_files(folder: TableFolder) -> LogFiles:
    """List the files of the log folder once."""
    commits: dict[int, int] = {}
    checkpoints = []
    for info in folder.log_folder():
        if (name := COMMIT_NAME.fullmatch(info.base_name)) and info.mtime_ns is not None:
            commits[int(name[1])] = int(info.mtime_ns) // 1_000_000
        elif name := _CHECKPOINT.fullmatch(info.base_name):
            checkpoints.append(int(name[1]))
    return LogFiles(commits, tuple(sorted(checkpoints)))


@dataclass(frozen=True, slots=True)
class CommitNews:
    """A commit as a follower of the table sees it.

    Attributes:
        added: files with new rows; a compaction adds none.
        has_removed: whether rows were removed.
        marks: the marks of the commit.
        sha256: the hash of its file, in hex digits.
    """

    added: tuple[FilePart, ...]
    has_removed: bool
    marks: Mapping[str, int]
    sha256: str


def commit_news(folder: TableFolder, version: int) -> CommitNews | None:
    """Read the news of one commit from its file alone; None if log clean-up has removed it."""
    content = folder.commit_bytes(version)
    if content is None:
        return None
    actions = parsed_commit(folder.name, version, content)
    added = tuple(_added_part(action) for action in actions.added if action["dataChange"])
    has_removed = any(action["dataChange"] for action in actions.removed)
    return CommitNews(added, has_removed, actions.marks, hashlib.sha256(content).hexdigest())


def commit_fingerprint(log: Table, version: int) -> int | None:
    """Return the first digits of a commit's hash as a number; None if the commit is gone."""
    sha256 = commit_sha256(log, version)
    return None if sha256 is None else fingerprint_of(sha256)


def commit_sha256(log: Table, version: int) -> str | None:
    """Return the hash of a commit of a log; None if log clean-up has removed the commit."""
    content = log.folder.commit_bytes(version) if version >= 0 else None
    return None if content is None else hashlib.sha256(content).hexdigest()


def fingerprint_of(sha256: str) -> int:
    """Return the fingerprint of a commit by its hash in hex digits: a number that a mark holds."""
    return int(sha256[:_FINGERPRINT_HEX_DIGITS], 16)


def _added_part(action: Mapping[str, Any]) -> FilePart:
    file = LiveFile.of(action)
    return FilePart(file.data_file({}), file.low, file.high)


def named_by(folder: TableFolder, versions: Iterable[int]) -> set[str]:
    """Return the data files that these commits added or removed."""
    return {path for _, path in _file_actions(folder, versions)}


def removed_by(folder: TableFolder, versions: Iterable[int]) -> list[str]:
    """Return the data files that these commits removed, each as often as it was removed."""
    return [path for kind, path in _file_actions(folder, versions) if kind == "remove"]


def _file_actions(folder: TableFolder, versions: Iterable[int]) -> Iterator[tuple[str, str]]:
    """Yield the kind and the path of each action of these commits that names a data file."""
    for window in in_windows(list(versions)):
        contents = folder.fetched([commit_path(version) for version in window])
        for version in window:
            content = folder.commit_among(contents, version) or b""
            actions = parsed_commit(folder.name, version, content)
            kinds = (("add", actions.added), ("remove", actions.removed), ("cdc", actions.changed))
            for kind, of_kind in kinds:
                yield from ((kind, path_of(action)) for action in of_kind)


# --- cleaning -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogCleaned(Sum):
    """How many commit files were deleted, and how many data files that only they named."""

    commits: int = 0
    data_files: int = 0


def clean_log(table: Table, keep_from: int) -> LogCleaned:
    """Delete the commit files that no reader from `keep_from` on needs; 0 commits.

    The kept log begins at a checkpoint, which is read first as a whole. Commit files
    are deleted first, oldest first, and data files after them, so that no commit ever names a
    deleted file. A process that is killed in between leaves files that no commit names, which
    `maintenance.orphans` removes. A long log is cleaned in steps, each of which is final.

    Raises: StorageError.
    """
    folder = table.refresh().folder
    files = log_files(folder)
    end = min(files.base(keep_from), _last_checkpoint(folder, files))
    cleaned = LogCleaned()
    while any(version < end for version in files.commits_ms):
        # One that cannot be read is passed over.
        base = next((at for at in files.bases(end) if _is_whole(folder, at)), None)
        if base is None:
            break
        cleaned += _clean_up_to(table, files, base)
        files = log_files(folder)
    return cleaned


def _clean_up_to(table: Table, files: LogFiles, base: int) -> LogCleaned:
    folder = table.folder
    doomed = [version for version in files.commits_ms if version < base]
    removed = set(removed_by(folder, doomed))
    if removed:
        removed -= named_by(folder, [at for at in files.commits_ms if at >= base])
    delete_files(folder, _log_paths(folder, base))
    reached(FailPoint.LOG_CLEANED)
    gone = delete_files(folder, removed - {file.path for file in table.files.all()})
    return LogCleaned(len(doomed), gone)


def _last_checkpoint(folder: TableFolder, files: LogFiles) -> int:
    """Return the version where readers begin; a slow writer may have set an older checkpoint."""
    try:
        with folder.filesystem.open_input_file(LAST_CHECKPOINT) as file:
            return int(json.loads(bytes(file.read()))["version"])
    except FileNotFoundError:
        return max(files.checkpoints, default=0)
    except (ValueError, KeyError, TypeError):
        # A crash may leave an empty file; the next checkpoint names itself in a new one.
        return 0


def _is_whole(folder: TableFolder, version: int) -> bool:
    """Tell whether a checkpoint can be read; without it the commits before it are the only ones."""
    path = checkpoint_path(version)
    try:
        with folder.filesystem.open_input_file(path) as source:
            checkpoint = pq.ParquetFile(source)
            for group in range(checkpoint.num_row_groups):
                checkpoint.read_row_group(group)
    except (OSError, pa.ArrowException) as error:
        logger.warning("%s: %s cannot be read, and is passed over: %s",
                       folder.name, path, in_one_line(error))  # fmt: skip
        return False
    return True


def _log_paths(folder: TableFolder, base: int) -> list[str]:
    """List commits, checkpoints and checksums of the versions before `base`, oldest first."""
    matches = (_OF_A_VERSION.fullmatch(info.base_name) for info in folder.log_folder())
    names = sorted(name[0] for name in matches if name and int(name[1]) < base)
    return [f"{LOG_FOLDER}/{name}" for name in names]


def delete_files(folder: TableFolder, paths: Iterable[str]) -> int:
    """Delete files in their order, of an object store some at once; return how many.

    A file that is already deleted is no error. Where one cannot be deleted, none after the next
    few is.

    Raises: STORAGE_ERRORS.
    """
    delete, doomed = partial(_is_deleted, folder.filesystem), list(paths)
    if len(doomed) <= 1 or not folder.objects.is_remote:
        return sum(map(delete, doomed))
    with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
        return sum(sum(pool.map(delete, window)) for window in in_windows(doomed))


def _is_deleted(filesystem: pa_fs.FileSystem, path: str) -> bool:
    """Delete a file; tell whether it was there, if the storage knows."""
    try:
        filesystem.delete_file(path)
    except FileNotFoundError:
        return False
    return True


# --- a new beginning ----------------------------------------------------------------------------


def newest_version(folder: TableFolder) -> int:
    """Return the newest version that the log names, whether or not it can be read."""
    with translated(folder.name):
        return LogNames.of(folder.log_names()).newest


def begin_anew(
    table: Table, rows: pa.Table, marks: Mapping[str, int], after: int, checkpoint_interval: int
) -> bool:
    """Let the table hold these rows alone; return False if another writer was faster.

    A call that was killed leaves a log that this call can begin anew again, or that can be read.

    Args:
        table: the table that cannot be read.
        rows, marks: what it holds from then on; marks must be above those that it had.
        after: the newest version when it could not be read.
        checkpoint_interval: as for a new table.

    Commits: 1. Raises: StorageError.
    """
    folder = table.folder
    definition = _definition(table.schema, checkpoint_interval)
    files = [added_file(file) for file in table.writer.new_files(rows)]
    commit = NewCommit(files, (), marks, new_token()).content(time.time_ns() // 1_000_000)
    # The line about the commit is the first one.
    info, _, actions = commit.partition(b"\n")
    content = b"\n".join([info, definition, actions])
    with translated(table.name):
        if not folder.objects.put_new(commit_path(after + 1), content):
            return False
        write_first_checkpoint(folder, after + 1, content)
        _forget(folder, after)
    table.log.reopen()
    return True


def _definition(schema: TableSchema, checkpoint_interval: int) -> bytes:
    """Return the actions that define a table, as a new one has them."""
    with TemporaryDirectory(prefix="txmq-") as place:
        model = Table(str(Path(place) / "table"), schema)
        model.writer.create(checkpoint_interval)
        lines = (model.folder.commit_bytes(0) or b"").splitlines()
    return b"\n".join(line for line in lines if {"protocol", "metaData"} & json.loads(line).keys())


def _forget(folder: TableFolder, through: int) -> None:
    """Remove what readers need no more: a copy of the log would have it in it."""
    for name in folder.log_names():
        if name[:20].isdecimal() and int(name[:20]) <= through:
            folder.objects.delete(f"{LOG_FOLDER}/{name}")
