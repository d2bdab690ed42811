"""The service of a catalog whose Java process has ended: it ends too, for no later turn helps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.kit.reading import wait_until
from tests.kit.stores import fresh_store
from txmq.errors import EnvironmentProblemError
from txmq.spark.catalogs import CatalogTables

if TYPE_CHECKING:
    from pathlib import Path


class RefusedCatalog:
    """The catalog of a session to which no call comes through."""

    def databaseExists(self, name: str) -> bool:  # noqa: N802 - Spark's name
        raise ConnectionRefusedError(name)


class Session:
    """A session whose Java was killed."""

    catalog = RefusedCatalog()


class ConnectSession(Session):
    """A session of Spark Connect, whose server cannot be reached for a moment."""


ConnectSession.__module__ = "pyspark.sql.connect.session"


def catalog_tables(folder: Path, session: Any) -> CatalogTables:
    return CatalogTables(fresh_store(folder / "store"), spark=session, catalog="messages")


def test_service_of_a_catalog_ends_where_java_has_ended(tmp_path: Path) -> None:
    handle = catalog_tables(tmp_path, Session()).start()
    try:
        wait_until(lambda: not handle.is_alive)
    finally:
        handle.stop()

    assert isinstance(handle.exception, EnvironmentProblemError)


def test_server_of_spark_connect_that_is_away_is_tried_again(tmp_path: Path) -> None:
    handle = catalog_tables(tmp_path, ConnectSession()).start()
    try:
        wait_until(lambda: handle.last_error is not None)
        is_alive = handle.is_alive
    finally:
        handle.stop()

    assert is_alive
    assert isinstance(handle.last_error, OSError)
    assert handle.exception is None
