"""Folders for tables, each gone when the next of its name is made."""

from __future__ import annotations

import os
import shutil
from pathlib import Path


def fresh_folder(parent: Path, name: str) -> Path:
    """An empty folder; what an earlier round left there is removed."""
    folder = parent / name
    shutil.rmtree(folder, ignore_errors=True)
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
