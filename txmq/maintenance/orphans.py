"""Removes what killed processes left: files that no commit names, checkpoints without a query."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import pyarrow.fs as pa_fs

from txmq.delta.log import LOG_FOLDER, delete_files, log_files, named_by
from txmq.delta.rooted import rooted_filesystem
from txmq.delta.storage import Table
from txmq.store.store import SERVICE_CHECKPOINTS, Store

logger = logging.getLogger(__name__)

# Files of the log; any other file in its folder is an unfinished write.
_LOG_FILE = re.compile(r"(\d{20}\..*(json|parquet|crc)|_last_checkpoint|_sidecars.*)", re.ASCII)
IsOld = Callable[[int], bool]


def sweep(table: Table, is_old: IsOld) -> int:
    """Delete old files that neither the newest version nor a kept commit names; 0 commits.

    Args:
        table: the table whose folder is swept.
        is_old: gets the modification time of a file in milliseconds. It must be false for files
            younger than the longest `send_dataframe`, whose files wait for their commit.

    Returns:
        How many files were deleted.
    """
    listed = table.filesystem.get_file_info(pa_fs.FileSelector("", recursive=True))
    old = [info.path for info in listed if _is_file(info) and is_old(_written_ms(info))]
    # Listed before the log is read, so that a file that is committed meanwhile is kept.
    kept = {file.path for file in table.refresh().files()}
    kept |= named_by(table, log_files(table).commits_ms)
    orphans = [path for path in old if path not in kept and not _is_of_log(path)]
    return delete_files(table, orphans)


def remove_checkpoints(store: Store, is_old: IsOld) -> int:
    """Delete streaming checkpoints of services that were not written to for long; 0 commits.

    A running query writes to its checkpoint all the time. Checkpoints of consumers are kept.
    Returns how many were deleted.
    """
    filesystem = rooted_filesystem(store.location, store.storage_options)
    folder = f"checkpoints/{SERVICE_CHECKPOINTS}"
    selector = pa_fs.FileSelector(folder, recursive=True, allow_not_found=True)
    newest: dict[str, int] = {}
    for info in filesystem.get_file_info(selector):
        name = info.path.removeprefix(f"{folder}/").partition("/")[0]
        newest[name] = max(newest.get(name, 0), _written_ms(info))
    old = [name for name, written_ms in newest.items() if is_old(written_ms)]
    for name in old:
        filesystem.delete_dir(f"{folder}/{name}")
    return len(old)


def _is_file(info: pa_fs.FileInfo) -> bool:
    return bool(info.type is pa_fs.FileType.File)


def _written_ms(info: pa_fs.FileInfo) -> int:
    return int(info.mtime_ns or 0) // 1_000_000


def _is_of_log(path: str) -> bool:
    folder, _, name = path.partition("/")
    return folder == LOG_FOLDER and _LOG_FILE.fullmatch(name) is not None
