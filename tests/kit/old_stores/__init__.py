"""Stores that earlier versions of txmq made, each with the truth about it."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
# Python 3.11.2, which Debian 12 has, knows no filters; later ones warn where there is none.
_SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}


def unpack(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract an archive of our own, by each Python that txmq runs on."""
    archive.extractall(folder, **_SAFELY)  # noqa: S202 - it is our own


def unpacked(version: str, target: Path) -> tuple[Path, dict[str, Any]]:
    """A new copy of a store, and what its maker was told. Its files are as old as the test."""
    with tarfile.open(FOLDER / f"{version}.tar.gz") as archive:
        unpack(archive, target)
    for path in target.rglob("*"):
        os.utime(path)
    return target / "store", json.loads((target / "truth.json").read_text())
