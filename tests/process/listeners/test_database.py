"""One suite over every database that a local transaction may be in: real servers, real drivers."""

from __future__ import annotations

import dataclasses
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from tests.kit import databases
from tests.kit.asked import answers, asked_about, prepared, states
from tests.kit.check_world import CheckWorld
from tests.kit.databases import Database
from tests.kit.reading import bodies, publish
from txmq.check.recheck import RecheckJob
from txmq.errors import (
    EnvironmentProblemError,
    InvalidNameError,
    ListenerError,
    LocalTransactionError,
    LocalTransactionFencedError,
    LocalTransactionMissingError,
    NotPreparedError,
)
from txmq.listeners.database import DatabaseListener
from txmq.message.ids import new_transaction_id
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.testing import ManualClock
from txmq.user_data.database_marker import MarkerTable, marker_table_ddl

GROUP = "orders"


@dataclass(frozen=True)
class Shop(Database):
    """Where orders and markers are."""

    def pay(self, connection: Any, order: str) -> None:
        self.run(connection, "INSERT INTO orders (id) VALUES (?)", order)

    def paid(self) -> list[str]:
        connection = self.connect()
        try:
            return [str(row[0]) for row in self.run(connection, "SELECT id FROM orders")]
        finally:
            connection.close()


@pytest.fixture(params=databases.KINDS)
def database(
    request: pytest.FixtureRequest, servers: Callable[[str], databases.Server], tmp_path: Path
) -> Iterator[Shop]:
    with databases.database(request.param, servers, tmp_path / "orders.sqlite") as made:
        shop = Shop(made.connect, made.parameter, made.by_sqlalchemy)
        connection = shop.connect()
        shop.run(connection, "DROP TABLE IF EXISTS orders")
        shop.run(connection, "DROP TABLE IF EXISTS txmq_marker")
        shop.run(connection, "CREATE TABLE orders (id VARCHAR(64) PRIMARY KEY)")
        connection.commit()
        connection.close()
        DatabaseListener(shop.connect).create_marker_table()
        yield shop


@pytest.fixture
def listener(database: Shop) -> DatabaseListener:
    return DatabaseListener(database.connect)


@pytest.fixture
def producer(store: Any, listener: DatabaseListener) -> Iterator[TransactionProducer]:
    with TransactionProducer(store, producer_group=GROUP, listener=listener) as producer:
        yield producer


def paid_without_commit(database: Shop, transaction: Transaction) -> Any:
    """The connection of a local transaction that is not committed yet."""
    connection = database.connect()
    with transaction.database(connection):
        database.pay(connection, transaction.id)
    return connection


def pay(database: Shop, transaction: Transaction) -> None:
    """The local transaction as a user would write it."""
    connection = database.connect()
    try:
        with transaction.database(connection):
            database.pay(connection, transaction.id)
        connection.commit()
    finally:
        connection.close()


# --- who is first ---------------------------------------------------------------------------------


def test_marked_local_transaction_is_committed(
    database: Shop, listener: DatabaseListener, producer: TransactionProducer
) -> None:
    transaction = prepared(producer)
    pay(database, transaction)

    assert states(listener, transaction.id) == ["COMMIT"]
    transaction.commit()
    publish(producer.store)
    assert bodies(producer.store) == [transaction.id.encode()]


def test_local_transaction_that_was_rolled_back_is_rolled_back(
    database: Shop, listener: DatabaseListener, producer: TransactionProducer
) -> None:
    transaction = prepared(producer)
    connection = paid_without_commit(database, transaction)
    connection.rollback()
    connection.close()

    assert states(listener, transaction.id) == ["ROLLBACK"]
    assert database.paid() == []


def test_late_local_transaction_meets_the_fence(
    database: Shop, listener: DatabaseListener, producer: TransactionProducer
) -> None:
    transaction = prepared(producer)
    assert states(listener, transaction.id) == ["ROLLBACK"]

    with pytest.raises(LocalTransactionFencedError, match="begin a new one"):
        pay(database, transaction)

    assert database.paid() == []
    assert states(listener, transaction.id) == ["ROLLBACK"]


def test_running_local_transaction_stays_unknown_and_holds_up_nobody(
    database: Shop, listener: DatabaseListener, producer: TransactionProducer
) -> None:
    running, done, never = (prepared(producer) for _ in range(3))
    pay(database, done)
    connection = database.connect()
    with running.database(connection):
        database.pay(connection, running.id)
        found = answers(listener, [running.id, done.id, never.id])
    connection.commit()
    connection.close()

    assert found[running.id] == ("UNKNOWN", "its local transaction is still running")
    assert found[done.id][0] == "COMMIT"
    # SQLite has one lock for all: while somebody writes, nobody can fence.
    assert found[never.id][0] == ("UNKNOWN" if database.is_sqlite else "ROLLBACK")
    assert states(listener, running.id, never.id) == ["COMMIT", "ROLLBACK"]


def test_young_transaction_is_not_fenced(database: Shop, producer: TransactionProducer) -> None:
    clock = ManualClock(1_800_000_000_000)
    patient = DatabaseListener(database.connect, rollback_after_s=60.0, clock=clock)
    transaction = prepared(producer)
    heads = asked_about([transaction.id], born_ms=clock.now_ms())

    assert patient.check_local_transactions_arrow(heads)["state"].to_pylist() == ["UNKNOWN"]
    clock.advance(61)
    assert patient.check_local_transactions_arrow(heads)["state"].to_pylist() == ["ROLLBACK"]


def test_many_are_asked_at_once(database: Shop, listener: DatabaseListener) -> None:
    ids = [new_transaction_id(1_800_000_000_000 + number) for number in range(30_000)]
    connection = database.connect()
    for each in ids[:30]:
        MarkerTable(connection).mark(each)
    connection.commit()
    connection.close()

    found = answers(listener, ids)

    assert [found[each][0] for each in ids] == ["COMMIT"] * 30 + ["ROLLBACK"] * 29_970


# --- what the producer hears ----------------------------------------------------------------------


def test_commit_before_the_databases_commit_is_refused(
    database: Shop, producer: TransactionProducer
) -> None:
    transaction = prepared(producer)
    connection = paid_without_commit(database, transaction)

    with pytest.raises(LocalTransactionError, match="not committed"):
        transaction.commit()

    connection.commit()
    transaction.commit()
    connection.close()
    publish(producer.store)
    assert bodies(producer.store) == [transaction.id.encode()]


def test_commit_after_the_databases_rollback_is_refused(
    database: Shop, producer: TransactionProducer
) -> None:
    transaction = prepared(producer)
    connection = paid_without_commit(database, transaction)
    connection.rollback()
    connection.close()

    with pytest.raises(LocalTransactionMissingError, match="committed"):
        transaction.commit()

    publish(producer.store)
    assert producer.store.topics() == []


def test_commit_without_a_local_transaction_is_refused(
    database: Shop, producer: TransactionProducer
) -> None:
    transaction = prepared(producer)

    with pytest.raises(LocalTransactionMissingError):
        transaction.commit()

    pay(database, transaction)
    transaction.commit()


def test_commit_after_a_fence_is_refused(
    listener: DatabaseListener, producer: TransactionProducer
) -> None:
    transaction = prepared(producer)
    assert states(listener, transaction.id) == ["ROLLBACK"]

    with pytest.raises(LocalTransactionFencedError):
        transaction.commit()


@pytest.mark.parametrize("is_committed", [False, True])
def test_without_a_listener_the_connection_itself_is_asked(
    database: Shop, store: Any, *, is_committed: bool
) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = prepared(producer)
        connection = database.connect()
        with transaction.database(connection):
            database.pay(connection, transaction.id)
        if is_committed:
            connection.commit()
            transaction.commit()
        else:
            connection.rollback()
            with pytest.raises(LocalTransactionMissingError):
                transaction.commit()
        assert not MarkerTable(connection).is_open
        connection.close()
    publish(store)
    assert store.topics() == (["order-paid"] if is_committed else [])


def test_connection_that_is_closed_and_no_listener_cannot_be_believed(
    database: Shop, store: Any
) -> None:
    if database.by_sqlalchemy:
        pytest.skip("its engine opens another connection")
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = prepared(producer)
        pay(database, transaction)

        with pytest.raises(LocalTransactionError, match="before you close the connection"):
            transaction.commit()


def test_second_try_hears_that_it_is_done(database: Shop, producer: TransactionProducer) -> None:
    transaction = prepared(producer)
    pay(database, transaction)

    with pytest.raises(LocalTransactionError, match="earlier try"):
        pay(database, transaction)

    assert database.paid() == [transaction.id]


def test_marker_before_prepare_is_refused(database: Shop, producer: TransactionProducer) -> None:
    connection = database.connect()
    with pytest.raises(NotPreparedError), producer.begin_transaction().database(connection):
        database.pay(connection, "1")
    connection.close()


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize("hostile", ["'); DROP TABLE orders; --", '"]', "%s", "?", "\\", "é" * 9])
def test_hostile_id_is_only_an_id(listener: DatabaseListener, hostile: str) -> None:
    found = answers(listener, [hostile])

    assert found[hostile][0] in ("ROLLBACK", "UNKNOWN")
    assert states(listener, "another") == ["ROLLBACK"]


@pytest.mark.parametrize("name", ["", "a b", "x;y", "a.b.c", "1st", "t" * 64, 'a"b'])
def test_hostile_table_is_refused(name: str) -> None:
    with pytest.raises(InvalidNameError):
        DatabaseListener(lambda: None, table=name)
    with pytest.raises(InvalidNameError):
        marker_table_ddl("sqlite", name)


def test_unknown_dialect_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(InvalidNameError, match="postgresql, mysql, sqlite"):
        marker_table_ddl("oracle")


def test_connection_of_an_unknown_driver_is_refused() -> None:
    with pytest.raises(EnvironmentProblemError, match="psycopg"):
        MarkerTable(object())


def test_missing_marker_table_is_the_drivers_error(database: Shop) -> None:
    listener = DatabaseListener(database.connect, table="nowhere")
    with pytest.raises(Exception, match="nowhere"):
        states(listener, "1")


def test_orm_session_carries_the_marker(
    database: Shop, listener: DatabaseListener, producer: TransactionProducer
) -> None:
    if not database.by_sqlalchemy:
        pytest.skip("a session is SQLAlchemy's")
    transaction = prepared(producer)
    connection = database.connect()
    with Session(connection) as session, transaction.database(session):
        database.pay(session.connection(), transaction.id)
        session.commit()
    connection.commit()
    connection.close()

    assert states(listener, transaction.id) == ["COMMIT"]


# --- through the check ----------------------------------------------------------------------------


def checked(listener: DatabaseListener, tmp_path: Path) -> list[tuple[str, str]]:
    """What the check writes about one transaction."""
    world = CheckWorld(tmp_path / "world")
    world.prepare()
    world.clock.advance(60)
    RecheckJob(world.store, listeners={GROUP: listener}, clock=world.clock).run_once()
    return [(claim["kind"], claim["reason"]) for claim in world.claims()]


@pytest.mark.parametrize("dialect", ["postgresql", "mysql"])
def test_wrong_password_is_unknown_and_tells_no_secret(
    dialect: str,
    servers: Callable[[str], databases.Server],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, secret = servers(dialect), "not the password"
    listener = DatabaseListener(lambda: server.connect(secret))

    ((kind, reason),) = checked(listener, tmp_path)

    assert kind == "UNKNOWN"
    assert reason == "the listener raised OperationalError"
    assert secret not in caplog.text


@pytest.mark.parametrize("dialect", ["postgresql", "mysql"])
def test_server_that_is_not_there_is_unknown(
    dialect: str, servers: Callable[[str], databases.Server], tmp_path: Path
) -> None:
    server = dataclasses.replace(servers(dialect), port=9)

    ((kind, reason),) = checked(DatabaseListener(server.connect), tmp_path)

    assert (kind, reason) == ("UNKNOWN", "the listener raised OperationalError")


def test_url_comes_from_the_environment(
    servers: Callable[[str], databases.Server], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ORDERS_URL", servers("postgresql").url())
    listener = DatabaseListener(url_variable="ORDERS_URL", table="from_environment")
    listener.create_marker_table()

    ((kind, reason),) = checked(listener, tmp_path)

    assert (kind, "fenced" in reason) == ("ROLLBACK", True)


@pytest.mark.parametrize("url", [None, "", "no url", "oracle://user:secret@host/x", "postgresql"])
def test_url_that_cannot_be_used_is_refused_without_being_told(
    url: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ORDERS_URL", raising=False)
    if url is not None:
        monkeypatch.setenv("ORDERS_URL", url)

    with pytest.raises(EnvironmentProblemError, match="ORDERS_URL") as told:
        DatabaseListener(url_variable="ORDERS_URL")
    assert "secret" not in str(told.value)


def test_connection_and_url_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_URL", "sqlite://")
    with pytest.raises(ListenerError, match="either connect or url_variable"):
        DatabaseListener(sqlite3.connect, url_variable="ORDERS_URL")
    with pytest.raises(ListenerError, match="either connect or url_variable"):
        DatabaseListener()


def test_autocommit_is_refused(database: Shop, producer: TransactionProducer) -> None:
    transaction, connection = prepared(producer), database.connect()
    if database.by_sqlalchemy:
        connection = connection.execution_options(isolation_level="AUTOCOMMIT")
    elif database.is_sqlite:
        connection.isolation_level = None
    else:
        by_driver = getattr(connection, "set_autocommit", None) or connection.autocommit
        by_driver(True)  # noqa: FBT003 - the drivers' own call

    with (
        pytest.raises(LocalTransactionError, match="autocommit"),
        transaction.database(connection),
    ):
        database.pay(connection, transaction.id)

    connection.close()
    assert database.paid() == []
