"""Stores that earlier versions of txmq made, each with the truth about it."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent


def unpacked(version: str, target: Path) -> tuple[Path, dict[str, Any]]:
    """A new copy of a store, and what its maker was told. Its files are as old as the test."""
    with tarfile.open(FOLDER / f"{version}.tar.gz") as archive:
        archive.extractall(target, filter="data")
    for path in target.rglob("*"):
        os.utime(path)
    return target / "store", json.loads((target / "truth.json").read_text())
