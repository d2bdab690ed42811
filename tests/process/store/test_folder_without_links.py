"""A folder on a file system without hard links and renames."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.kit.without_links import COMPILER, python_without_links

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
