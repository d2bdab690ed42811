"""A commit is refused where the marked write of its local transaction is not there."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.kit.asked import prepared
from tests.kit.reading import log_rows
from txmq.errors import (
    EnvironmentProblemError,
    LocalTransactionError,
    LocalTransactionFencedError,
    LocalTransactionMissingError,
)
from txmq.listeners.database import DatabaseListener
from txmq.listeners.delta import DeltaListener
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.spark.listeners import JdbcListener
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.user_data.delta_marker import MarkedTable

GROUP = "orders"
ROWS = pa.table({"id": ["1"]})


@pytest.fixture
def table(tmp_path: Path) -> str:
    location = str(tmp_path / "orders")
    write_deltalake(location, ROWS.slice(0, 0))
    return location


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Any]:
    """A function that connects to a database with a marker table."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "shop.sqlite")

    DatabaseListener(connect).create_marker_table()
    return connect


def producer_with(store: Store, listener: object) -> TransactionProducer:
    return TransactionProducer(store, producer_group=GROUP, listener=listener)  # type: ignore[arg-type]


def test_delta_write_that_was_left_out_is_no_local_transaction(store: Store, table: str) -> None:
    with producer_with(store, DeltaListener(table)) as producer:
        transaction = prepared(producer)

        with pytest.raises(LocalTransactionMissingError):
            transaction.commit()
        with transaction.delta_rs() as (handle, properties):
            write_deltalake(handle, ROWS, mode="append", commit_properties=properties)
        transaction.commit()

    assert [row["kind"] for row in log_rows(store, "op")] == ["COMMIT"]


def test_delta_write_without_the_marker_stays_and_its_message_is_rolled_back(
    tmp_path: Path, table: str
) -> None:
    # Asked about at once, and not after six seconds.
    store = Store.create(
        tmp_path / "asked", Config(transaction_timeout_s=0.001, transaction_renewal_max_s=0.0)
    )
    listener = DeltaListener(table)
    with producer_with(store, listener) as producer:
        transaction = prepared(producer)
        write_deltalake(table, ROWS, mode="append")

        with pytest.raises(LocalTransactionMissingError, match=r"delta_sql\(\), .* stays"):
            transaction.commit()
    Broker(store, listeners={GROUP: listener}).run_once()

    assert [row["kind"] for row in log_rows(store, "op")] == ["ROLLBACK"]
    assert DeltaTable(table).to_pyarrow_dataset().count_rows() == ROWS.num_rows


def test_marker_that_another_program_wrote_is_believed(store: Store, table: str) -> None:
    listener = DeltaListener(table)
    with producer_with(store, None) as other, producer_with(store, listener) as producer:
        transaction = prepared(producer)
        by_hand = prepared(other)
        by_hand.id = by_hand._local._id = transaction.id
        with by_hand.delta_rs(table) as (handle, properties):
            write_deltalake(handle, ROWS, mode="append", commit_properties=properties)

        transaction.commit()


def test_fence_that_the_producer_did_not_meet_refuses_its_commit(store: Store, table: str) -> None:
    listener = DeltaListener(table)
    with producer_with(store, listener) as producer:
        transaction = prepared(producer)
        MarkedTable("orders", table).fence([transaction.id])

        with pytest.raises(LocalTransactionFencedError):
            transaction.commit()


@pytest.mark.parametrize("enters", [False, True])
def test_database_transaction_that_was_rolled_back_or_left_out_is_refused(
    store: Store, shop: Any, *, enters: bool
) -> None:
    with producer_with(store, DatabaseListener(shop)) as producer:
        transaction, connection = prepared(producer), shop()
        if enters:
            with transaction.database(connection):
                pass
            connection.rollback()

        with pytest.raises(LocalTransactionMissingError):
            transaction.commit()

        with transaction.database(connection):
            pass
        connection.commit()
        transaction.commit()
    assert [row["kind"] for row in log_rows(store, "op")] == ["COMMIT"]


def test_connection_of_the_caller_is_left_as_it_was(store: Store, shop: Any) -> None:
    with producer_with(store, None) as producer:
        transaction, connection = prepared(producer), shop()
        with transaction.database(connection):
            pass
        connection.commit()

        transaction.commit()

        assert not connection.in_transaction
        connection.execute("SELECT 1")


def test_closed_connection_without_a_listener_is_refused(store: Store, shop: Any) -> None:
    with producer_with(store, None) as producer:
        transaction, connection = prepared(producer), shop()
        with transaction.database(connection):
            pass
        connection.commit()
        connection.close()

        with pytest.raises(LocalTransactionError, match="give the producer a DatabaseListener"):
            transaction.commit()
    assert log_rows(store, "op") == []


def test_jdbc_listener_needs_a_session_to_look(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyspark")
    monkeypatch.setenv("LEDGER_URL", "jdbc:postgresql://nowhere/ledger")
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    with producer_with(store, JdbcListener(url_variable="LEDGER_URL")) as producer:
        transaction = prepared(producer)

        with pytest.raises(EnvironmentProblemError, match="no session is active"):
            transaction.commit()
    assert log_rows(store, "op") == []


def test_transaction_without_listener_and_marker_has_nothing_to_look_for(store: Store) -> None:
    with producer_with(store, None) as producer:
        prepared(producer).commit()

    assert [row["kind"] for row in log_rows(store, "op")] == ["COMMIT"]
