"""Folders for tables, each gone when the next of its name is made."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

REMOVALS_MAX, PAUSE_S = 100, 0.1


def fresh_folder(parent: Path, name: str) -> Path:
    """An empty folder; what an earlier round left there is removed."""
    folder = parent / name
    for _ in range(REMOVALS_MAX):
        # A checkpoint may be written beside it still.
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            break
        time.sleep(PAUSE_S)
    folder.mkdir(parents=True)
    return folder


def linked_copy(source: Path, target: Path) -> None:
    """A copy that shares the Parquet files, which never change."""
    shutil.copytree(source, target, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> None:
    if source.endswith(".parquet") and "_delta_log" not in source:
        os.link(source, target)
    else:
        shutil.copy2(source, target)
