"""What killed processes left behind: files that no commit names, checkpoints that none writes."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import pyarrow.fs as pa_fs

from txmq.delta.log import LOG_FOLDER, delete_files, log_files, named_by
from txmq.delta.pinned import rooted_filesystem
from txmq.delta.storage import Table
from txmq.store.store import SERVICE_CHECKPOINTS, Store

logger = logging.getLogger(__name__)

# What belongs to the log; all else in its folder is a write that was cut short.
_LOG_FILE = re.compile(r"(\d{20}\..*(json|parquet|crc)|_last_checkpoint|_sidecars.*)", re.ASCII)
IsOld = Callable[[int], bool]


def sweep(table: Table, is_old: IsOld) -> int:
    """Remove old files that the newest version does not hold and no kept commit names; 0 commits.

    `is_old` gets the time when the store wrote a file, in milliseconds. It must not say so of a
    file younger than the longest `send_dataframe`: its files wait long for their commit.
    """
    listed = table.filesystem.get_file_info(pa_fs.FileSelector("", recursive=True))
    old = [info.path for info in listed if _is_file(info) and is_old(_written_ms(info))]
    # Listed first, looked up afterwards: what is committed meanwhile is then seen as committed.
    kept = {file.path for file in table.refresh().files()}
    kept |= named_by(table, log_files(table).commits_ms)
    doomed = [path for path in old if path not in kept and not _is_of_log(path)]
    return delete_files(table, doomed)


def remove_checkpoints(store: Store, is_old: IsOld) -> int:
    """Remove streaming checkpoints of services that nothing was written to for long; 0 commits.

    A running query writes to its own all the time; the checkpoints of consumers are not touched.
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
