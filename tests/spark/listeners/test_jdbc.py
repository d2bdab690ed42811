"""The marker table by Spark's JDBC source: a real Postgres and its Java driver."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit import databases
from tests.kit.asked import asked_about
from txmq.errors import EnvironmentProblemError, ListenerError
from txmq.listeners.database import DatabaseListener
from txmq.message.ids import new_transaction_id
from txmq.spark.listeners import JdbcListener
from txmq.user_data.database_marker import MarkerTable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER = Path("/usr/share/java/postgresql.jar")
VARIABLES = {"url_variable": "JDBC_URL", "user_variable": "JDBC_USER",
             "password_variable": "JDBC_PASSWORD"}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[databases.Server]:
    if reason := databases.missing("postgresql"):
        pytest.skip(reason)
    if not DRIVER.exists():
        pytest.skip("no Java driver here: install Debian's package libpostgresql-jdbc-java")
    with databases.running_postgres() as server:
        DatabaseListener(server.connect).create_marker_table()
        yield server


@pytest.fixture
def listener(
    server: databases.Server, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> JdbcListener:
    spark.sql(f"ADD JAR '{DRIVER}'")
    monkeypatch.setenv("JDBC_URL", f"jdbc:postgresql://{databases.HOST}:{server.port}/postgres")
    monkeypatch.setenv("JDBC_USER", server.user)
    monkeypatch.setenv("JDBC_PASSWORD", databases.PASSWORD)
    return JdbcListener(**VARIABLES, options={"driver": "org.postgresql.Driver"})


def told(spark: SparkSession, listener: JdbcListener, ids: list[str]) -> dict[str, str]:
    heads = spark.createDataFrame(asked_about(ids))
    rows = listener.check_local_transactions(heads).toArrow().to_pylist()
    return {row["transaction_id"]: row["state"] for row in rows}


def new_ids(count: int) -> list[str]:
    return [new_transaction_id(1_800_000_000_000 + number) for number in range(count)]


def test_markers_and_fences_are_those_of_the_database(
    server: databases.Server, listener: JdbcListener, spark: SparkSession
) -> None:
    ids = new_ids(3_000)
    with server.connect() as connection:
        for each in ids[:20]:
            assert MarkerTable(connection).mark(each)

    found = told(spark, listener, ids)

    assert [found[each] for each in ids] == ["COMMIT"] * 20 + ["ROLLBACK"] * 2_980
    with server.connect() as connection:
        assert not MarkerTable(connection).mark(ids[50]), "the fence stands"
    assert told(spark, listener, ids) == found


def test_id_that_no_txmq_makes_is_never_in_a_statement(
    listener: JdbcListener, spark: SparkSession
) -> None:
    (own,) = new_ids(1)

    assert told(spark, listener, ["'); DROP TABLE txmq_marker; --", own]) == {own: "ROLLBACK"}


def test_password_is_in_no_representation(listener: JdbcListener) -> None:
    assert databases.PASSWORD not in repr(listener)


def test_missing_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JDBC_URL", raising=False)
    with pytest.raises(EnvironmentProblemError, match="JDBC_URL is not set"):
        JdbcListener(url_variable="JDBC_URL")


@pytest.mark.parametrize("url", ["jdbc:oracle:thin:@x", "postgresql://x", "jdbc:mariadb://x"])
def test_other_databases_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JDBC_URL", url)
    with pytest.raises(ListenerError, match="jdbc:postgresql: or jdbc:mysql:"):
        JdbcListener(url_variable="JDBC_URL")
