"""A plugin of pytest: tables are reached over an S3 server, which keeps them as files.

`VERSITYGW=PROGRAM pytest -p tests.kit.over_s3 tests/tables/delta` runs tests that know nothing of
object stores. txmq reads and writes through the server; tests look at the same files on the disk,
and damage them there. `disk_only.txt` names the tests that cannot run so, and says why.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
from deltalake.fs import DeltaStorageHandler

from tests.kit import s3
from txmq.delta import checkpoints, pinned, table_log, table_writer
from txmq.delta import folder as object_store
from txmq.delta import folder as objects
from txmq.delta import folder as rooted
from txmq.store import store as store_module

if TYPE_CHECKING:
    import pytest

_RUNNING = ExitStack()
_ROOT = Path(tempfile.mkdtemp(prefix="txmq-over-s3-"))
_FOLDER = _ROOT / s3.BUCKET


def pytest_configure(config: pytest.Config) -> None:
    """Start the server, and let temporary folders of tests be in its bucket."""
    log = _ROOT / "server.log"
    server = _RUNNING.enter_context(s3.versitygw(os.environ["VERSITYGW"], _ROOT, log))
    os.environ.update(server.environment)
    config.option.basetemp = str(_FOLDER / "tests")
    for module in (object_store, objects, pinned, rooted, store_module):
        module.is_remote = _is_remote
    object_store.from_url = _at_address(object_store.from_url)
    rooted.DeltaStorageHandler = _at_address(DeltaStorageHandler)
    for module in (table_writer, table_log, checkpoints, pinned):
        module.DeltaTable = _DeltaTable


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that are about a disk."""
    lines = Path(__file__).with_name("disk_only.txt").read_text(encoding="utf-8").splitlines()
    names = tuple(line for line in lines if not line.startswith("#"))
    out = [item for item in items if item.nodeid.startswith(names)]
    items[:] = [item for item in items if item not in out]
    config.hook.pytest_deselected(items=out)


def pytest_unconfigure() -> None:
    """End the server."""
    _RUNNING.close()


def address(location: Any) -> Any:
    """The URI of a folder of the bucket; other locations stay."""
    text = str(location)
    return f"s3://{s3.BUCKET}/{Path(text).relative_to(_FOLDER)}" if _is_below(text) else location


def _is_below(location: str) -> bool:
    return location.startswith(f"{_FOLDER}/")


def _is_remote(location: str) -> bool:
    return "://" in location or _is_below(location)


def _at_address(call: Callable[..., Any]) -> Callable[..., Any]:
    def called(location: Any, *arguments: Any, **options: Any) -> Any:
        return call(address(location), *arguments, **options)

    return called


_OF_DELTA_RS, _WRITE = deltalake.DeltaTable, deltalake.write_deltalake


class _DeltaTable(_OF_DELTA_RS):
    def __init__(self, table_uri: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(address(table_uri), *arguments, **options)

    @classmethod
    def create(cls, table_uri: Any, *arguments: Any, **options: Any) -> Any:
        return super().create(address(table_uri), *arguments, **options)

    @staticmethod
    def is_deltatable(table_uri: Any, *arguments: Any, **options: Any) -> bool:
        return _OF_DELTA_RS.is_deltatable(address(table_uri), *arguments, **options)


# Tests import them later.
deltalake.DeltaTable, deltalake.write_deltalake = _DeltaTable, _at_address(_WRITE)
