"""A folder on a file system that can neither link nor rename, as the mounts of object stores.

The calls of the system library are replaced in a process of its own; what runs there is unchanged.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = """
#include <errno.h>
int link(const char *a, const char *b) { errno = ENOSYS; return -1; }
int linkat(int a, const char *b, int c, const char *d, int e) { errno = ENOSYS; return -1; }
int rename(const char *a, const char *b) { errno = ENOSYS; return -1; }
int renameat(int a, const char *b, int c, const char *d) { errno = ENOSYS; return -1; }
int renameat2(int a, const char *b, int c, const char *d, unsigned e) { errno = ENOSYS; return -1; }
"""
COMPILER = shutil.which("gcc") or shutil.which("cc")
CREATE = """
import sys
from txmq import Store, TxmqError
try:
    Store.create(sys.argv[1])
except TxmqError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(COMPILER is None or sys.platform != "linux", reason="needs Linux and gcc")
def test_store_in_a_folder_without_links_is_refused_and_the_error_says_why(tmp_path: Path) -> None:
    told = python_without_links(CREATE, str(tmp_path / "store"), folder=tmp_path)

    assert told.startswith("UnsupportedPlaceError ")
    assert "no hard links" in told
    assert "s3://" in told
    assert not list((tmp_path / "store").rglob("*.json"))


def python_without_links(code: str, *arguments: str, folder: Path) -> str:
    """Run this code in a Python where no file can be linked or renamed; return what it prints."""
    assert COMPILER is not None
    library = folder / "without_links.so"
    command = [COMPILER, "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=SOURCE, text=True, check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    return ended.stdout.strip()
