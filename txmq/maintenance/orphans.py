"""Removes what killed processes left: files that no commit names, checkpoints without a query."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import chain

import pyarrow.fs as pa_fs

from txmq.delta.actions import LOG_FOLDER
from txmq.delta.folder import rooted_filesystem
from txmq.delta.log_files import delete_files, log_files, named_by
from txmq.delta.table import Table
from txmq.errors import StorageError
from txmq.store.renewals import RENEWAL_FOLDER
from txmq.store.store import SERVICE_CHECKPOINTS, Store
from txmq.store.store_clock import CLOCK_FOLDER

logger = logging.getLogger(__name__)

# Files of the log; any other file in its folder is an unfinished write.
_LOG_FILE = re.compile(r"(\d{20}\..*(json|parquet|crc)|_last_checkpoint|_sidecars.*)", re.ASCII)
# 9999-12-31.
_NEVER_OLD_MS = 253_402_214_400_000
IsOld = Callable[[int], bool]


def sweep(table: Table, is_old: IsOld) -> int:
    """Delete old files that neither the newest version nor a kept commit names.

    A writer that slept may commit such a file at this moment. So they are fenced first: from that
    commit on no writer can commit them (decision 0029). The log is then read once more, and what
    was committed before the fence stays.

    Commits: one if there are such files, else none. Retry: call it again.

    Args:
        table: the table whose folder is swept.
        is_old: gets the modification time of a file in milliseconds. It must be false for files
            younger than the longest `send_dataframe`, whose files wait for their commit.

    Returns:
        How many files were deleted.

    Raises:
        CommitRefusedError: another writer was first; nothing was deleted.
        StorageError: the folder cannot be listed or the log cannot be read.
    """
    listed = table.folder.filesystem.get_file_info(pa_fs.FileSelector("", recursive=True))
    written_ms = {info.path: _written_ms(info) for info in listed if _is_file(info)}
    old_ms = {path: ms for path, ms in written_ms.items() if is_old(ms) and not _is_of_log(path)}
    # Listed before the log is read, so that a file that is committed meanwhile is kept.
    orphans_ms = _unnamed(table, old_ms)
    if not orphans_ms:
        return 0
    table.writer.fence_files(max(orphans_ms.values()))
    return delete_files(table.folder, _unnamed(table, orphans_ms))


def _unnamed(table: Table, written_ms: Mapping[str, int]) -> dict[str, int]:
    """Leave out the files that the newest version or a kept commit names."""
    if not written_ms:
        return {}
    named = {file.path for file in table.refresh().files.all()}
    if lost := table.log.lost_commits():
        problem = f"{lost[0]} lost its content, and may have named files that look like leftovers"
        raise StorageError(table.name, f"{problem}; nothing was removed; restore this file")
    named |= named_by(table.folder, log_files(table.folder).commits_ms)
    return {path: ms for path, ms in written_ms.items() if path not in named}


def remove_checkpoints(store: Store, is_old: IsOld) -> int:
    """Delete streaming checkpoints of services that were not written to for long; 0 commits.

    A running query writes to its checkpoint all the time. Checkpoints of consumers are kept.

    Returns: how many were deleted.
    """
    filesystem = rooted_filesystem(store.location, store.storage_options)
    folder = f"checkpoints/{SERVICE_CHECKPOINTS}"
    selector = pa_fs.FileSelector(folder, recursive=True, allow_not_found=True)
    newest: dict[str, int] = {}
    for info in filesystem.get_file_info(selector):
        if info.mtime_ns is None and not _is_file(info):
            # A folder of an object store is a name and has no time.
            continue
        name = info.path.removeprefix(f"{folder}/").partition("/")[0]
        newest[name] = max(newest.get(name, 0), _written_ms(info))
    old = [name for name, written_ms in newest.items() if is_old(written_ms)]
    for name in old:
        filesystem.delete_dir(f"{folder}/{name}")
    return len(old)


def remove_clock_files(store: Store, is_old: IsOld) -> int:
    """Delete old files of killed processes: their looks at the store's time, their renewals.

    Commits: 0.
    """
    filesystem = rooted_filesystem(store.location, store.storage_options)
    selectors = [
        pa_fs.FileSelector(folder, allow_not_found=True)
        for folder in (CLOCK_FOLDER, RENEWAL_FOLDER)
    ]
    infos = chain.from_iterable(map(filesystem.get_file_info, selectors))
    old = [info.path for info in filter(_is_file, infos) if is_old(_written_ms(info))]
    for path in old:
        with suppress(FileNotFoundError):
            filesystem.delete_file(path)
    return len(old)


def _is_file(info: pa_fs.FileInfo) -> bool:
    return bool(info.type is pa_fs.FileType.File)


def _written_ms(info: pa_fs.FileInfo) -> int:
    """Return when it was written; a file without a time is taken for new, and stays."""
    return _NEVER_OLD_MS if info.mtime_ns is None else int(info.mtime_ns) // 1_000_000


def _is_of_log(path: str) -> bool:
    folder, _, name = path.partition("/")
    return folder == LOG_FOLDER and _LOG_FILE.fullmatch(name) is not None
