"""Lying listeners and hasty producers, found by `verify` beside real tables and databases."""

from __future__ import annotations

import json
import sqlite3
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake import Transaction as DeltaTransaction
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool
from typer.testing import CliRunner, Result

from tests.kit import databases
from tests.kit.asked import prepared, states
from tests.kit.reading import bodies, publish
from tests.kit.s3 import free_port
from txmq.check.recheck import RecheckJob
from txmq.check.service import CheckService
from txmq.errors import StorageError
from txmq.listeners.database import DatabaseListener
from txmq.listeners.delta import DeltaListener
from txmq.message.ids import new_transaction_id
from txmq.message.message import LocalTransactionState
from txmq.ops.admin.operator import Operator
from txmq.ops.cli.app import app
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.store.store import Store
from txmq.testing import ManualClock
from txmq.verify import (
    BusinessResult,
    DatabaseMarkers,
    DeltaMarkers,
    Fault,
    MarkerPlace,
    Problem,
    VerifyReport,
    verify,
)
from txmq.verify import markers as database

GROUP, VARIABLE = "orders", "TXMQ_TEST_ORDERS_DB"
COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
DONE, FENCED = 1, 2
SERVERS = ("postgresql", "mysql")
KINDS = ("delta", "sqlite", *SERVERS)
ASKERS = {"check": CheckService, "recheck": RecheckJob}


@dataclass(frozen=True)
class Liar:
    """Says the same of whatever it is asked."""

    says: LocalTransactionState

    def execute_local_transaction(self, message: object, argument: object) -> Any:
        raise NotImplementedError

    def check_local_transaction(self, message: object) -> LocalTransactionState:  # noqa: ARG002
        return self.says


@dataclass(frozen=True)
class DeltaOrders:
    """Local transactions that are commits to a Delta table."""

    location: str

    @property
    def place(self) -> MarkerPlace:
        return DeltaMarkers(self.location)

    @property
    def option(self) -> str:
        return f"{GROUP}=delta:{self.location}"

    @property
    def listener(self) -> DeltaListener:
        return DeltaListener(self.location)

    def pay(self, transaction: Transaction) -> None:
        rows = pa.table({"id": [transaction.id]})
        with transaction.delta_rs(self.location) as (handle, properties):
            write_deltalake(handle, rows, mode="append", commit_properties=properties)

    def foreign(self, *names: str) -> None:
        marks = CommitProperties(app_transactions=[DeltaTransaction(n, DONE, 1) for n in names])
        rows = pa.table({"id": ["foreign"]})
        write_deltalake(self.location, rows, mode="append", commit_properties=marks)


@dataclass(frozen=True)
class DatabaseOrders:
    """Local transactions of a database whose URL VARIABLE holds."""

    url: str

    @property
    def place(self) -> MarkerPlace:
        return DatabaseMarkers(VARIABLE)

    @property
    def option(self) -> str:
        return f"{GROUP}=database:{VARIABLE}"

    @property
    def listener(self) -> DatabaseListener:
        return DatabaseListener(self.engine)

    def pay(self, transaction: Transaction) -> None:
        with self.connected() as connection, transaction.database(connection):
            connection.exec_driver_sql("INSERT INTO orders (id) VALUES ('paid')")
            connection.commit()

    def foreign(self, *names: str) -> None:
        with self.connected() as connection:
            for name in names:
                connection.exec_driver_sql(
                    f"INSERT INTO txmq_marker (transaction_id, outcome) VALUES ('{name}', 'DONE')"
                )
            connection.commit()

    def connected(self) -> Any:
        return self.engine.connect()

    @property
    def engine(self) -> Any:
        # A pool would leave open connections behind.
        return create_engine(self.url, poolclass=NullPool)


Orders = DeltaOrders | DatabaseOrders


def database_orders(url: str, monkeypatch: pytest.MonkeyPatch) -> DatabaseOrders:
    monkeypatch.setenv(VARIABLE, url)
    made = DatabaseOrders(url)
    with made.connected() as connection:
        for table in ("orders", "txmq_marker"):
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {table}")
        connection.exec_driver_sql("CREATE TABLE orders (id VARCHAR(64))")
        connection.commit()
    made.listener.create_marker_table()
    return made


@pytest.fixture(params=KINDS)
def orders(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    servers: Callable[[str], databases.Server],
) -> Orders:
    if request.param == "delta":
        location = str(tmp_path / "orders")
        write_deltalake(location, pa.table({"id": ["none"]}))
        return DeltaOrders(location)
    is_file = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'orders.sqlite'}" if is_file else servers(request.param).url()
    return database_orders(url, monkeypatch)


@pytest.fixture
def sqlite_orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DatabaseOrders:
    return database_orders(f"sqlite:///{tmp_path / 'orders.sqlite'}", monkeypatch)


@pytest.fixture
def producer(store: Store) -> Iterator[TransactionProducer]:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        yield producer


def ask(producer: TransactionProducer, listener: Any, by: str = "recheck") -> None:
    """The real check, a minute later."""
    clock = ManualClock(producer.clock.now_ms() + 60_000)
    ASKERS[by](producer.store, listeners={GROUP: listener}, clock=clock).run_once()
    publish(producer.store)


def compared(store: Store, orders: Orders) -> VerifyReport:
    report = verify(store.location, business={GROUP: orders.place})
    assert report.is_txmq_clean, report.to_dict()
    return report


def result_of(report: VerifyReport) -> BusinessResult:
    assert report.business is not None
    return report.business.results[0]


def told(report: VerifyReport) -> list[tuple[str, Problem, Fault]]:
    found = result_of(report).violations
    return [(one.transaction_id, one.problem, one.fault) for one in found]


# --- who lied -------------------------------------------------------------------------------------


def test_honest_store_is_clean(orders: Orders, producer: TransactionProducer) -> None:
    ended, left, never = (prepared(producer) for _ in range(3))
    orders.pay(ended)
    ended.commit()
    orders.pay(left)
    orders.foreign("query-17", new_transaction_id(producer.clock.now_ms()))
    ask(producer, orders.listener)
    waiting, unsure = prepared(producer), prepared(producer)
    orders.pay(waiting)

    report = compared(producer.store, orders)

    assert report.is_clean, report.to_dict()
    counts = result_of(report).counts
    assert (counts["transactions"], counts["done"], counts["fenced"]) == (5, 3, 1)
    assert (counts["done_and_open"], counts["unmarked"]) == (1, 1)
    assert bodies(producer.store) == sorted([ended.id.encode(), left.id.encode()])
    assert {never.id, unsure.id}.isdisjoint(one[0] for one in told(report))


@pytest.mark.parametrize("by", ASKERS)
def test_listener_that_lies_is_found_and_named(
    orders: Orders, producer: TransactionProducer, by: str
) -> None:
    done, lied_about = prepared(producer), prepared(producer)
    orders.pay(done)
    ask(producer, Liar(COMMIT), by)

    report = compared(producer.store, orders)

    assert bodies(producer.store) == sorted([done.id.encode(), lied_about.id.encode()])
    assert told(report) == [(lied_about.id, Problem.PUBLISHED_WITHOUT_MARKER, Fault.LISTENER)]
    assert "the listener's fault" in result_of(report).violations[0].detail
    assert not report.is_clean


def test_listener_that_denies_what_was_done_is_found_and_named(
    orders: Orders, producer: TransactionProducer
) -> None:
    done, never = prepared(producer), prepared(producer)
    orders.pay(done)
    ask(producer, Liar(ROLLBACK))

    report = compared(producer.store, orders)

    assert never.id != done.id
    assert told(report) == [(done.id, Problem.ROLLED_BACK_THOUGH_DONE, Fault.LISTENER)]


def test_producer_that_commits_without_its_marked_write_is_named(
    orders: Orders, producer: TransactionProducer
) -> None:
    hasty, honest = prepared(producer), prepared(producer)
    hasty.commit()
    orders.pay(honest)
    honest.commit()
    publish(producer.store)

    report = compared(producer.store, orders)

    assert told(report) == [(hasty.id, Problem.PUBLISHED_WITHOUT_MARKER, Fault.PRODUCER)]


def test_producer_that_rolls_back_what_it_did_is_named(
    orders: Orders, producer: TransactionProducer
) -> None:
    transaction = prepared(producer)
    orders.pay(transaction)
    transaction.rollback()
    publish(producer.store)

    report = compared(producer.store, orders)

    assert told(report) == [(transaction.id, Problem.ROLLED_BACK_THOUGH_DONE, Fault.PRODUCER)]


def test_fenced_one_committed_by_hand_is_the_operator_s(
    orders: Orders, producer: TransactionProducer
) -> None:
    transaction = prepared(producer)
    assert states(orders.listener, transaction.id) == ["ROLLBACK"]
    operator = Operator(producer.store)
    operator.resolve(transaction.id, COMMIT, reason="looked at the wrong order", apply=True)
    publish(producer.store)

    report = compared(producer.store, orders)

    assert told(report) == [(transaction.id, Problem.PUBLISHED_THOUGH_FENCED, Fault.OPERATOR)]


def test_many_ids_are_read_in_several_statements(
    orders: Orders, producer: TransactionProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "STATEMENT_IDS", 2)
    for number in range(5):
        transaction = prepared(producer)
        if number:
            orders.pay(transaction)
        transaction.commit()
    publish(producer.store)

    result = result_of(compared(producer.store, orders))

    assert (result.counts["done"], result.violation_count) == (4, 1)


def test_two_groups_have_two_places(
    store: Store, tmp_path: Path, sqlite_orders: DatabaseOrders
) -> None:
    location = str(tmp_path / "stock")
    write_deltalake(location, pa.table({"id": ["none"]}))
    stock = DeltaOrders(location)
    places: Mapping[str, Orders] = {GROUP: sqlite_orders, "stock": stock}
    for group, orders in places.items():
        with TransactionProducer(store, producer_group=group) as producer:
            transaction = prepared(producer)
            orders.pay(transaction)
            transaction.commit()
            prepared(producer).commit() if group == "stock" else None
    publish(store)

    report = verify(store.location, business={g: orders.place for g, orders in places.items()})

    assert report.business is not None
    found = {one.producer_group: one.violation_count for one in report.business.results}
    assert found == {GROUP: 0, "stock": 1}


# --- the command ----------------------------------------------------------------------------------


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["verify", *arguments], env={"COLUMNS": "240"})


def test_command_ends_with_0_where_all_agree(orders: Orders, producer: TransactionProducer) -> None:
    transaction = prepared(producer)
    orders.pay(transaction)
    transaction.commit()
    publish(producer.store)

    result = run(producer.store.location, "--business", orders.option)

    assert result.exit_code == 0, result.output
    last = result.stdout.strip().splitlines()[-1]
    assert last == "0 violations; 0 between messages and local transactions"
    assert "I12 is not checked" not in result.stdout


def test_command_ends_with_3_where_a_listener_lied(
    orders: Orders, producer: TransactionProducer
) -> None:
    transaction = prepared(producer)
    ask(producer, Liar(COMMIT))

    result = run(producer.store.location, "--business", orders.option)

    assert result.exit_code == 3, result.output
    assert f"{transaction.id} is published, but no local transaction" in result.stdout
    last = result.stdout.strip().splitlines()[-1]
    assert last == "0 violations; 1 between messages and local transactions (listener 1)"
    values = json.loads(run(producer.store.location, "--business", orders.option, "--json").stdout)
    assert (values["violation_count"], values["business"]["violation_count"]) == (0, 1)


def test_command_ends_with_1_where_txmq_is_wrong_too(
    sqlite_orders: DatabaseOrders, producer: TransactionProducer
) -> None:
    prepared(producer)
    ask(producer, Liar(COMMIT))
    DeltaTable(f"{producer.store.location}/topics/order-paid").delete()

    result = run(producer.store.location, "--business", sqlite_orders.option)

    assert result.exit_code == 1


# --- bad places -----------------------------------------------------------------------------------


def assert_refused(
    store: Store, place: str, words: str, *, secret: str = databases.PASSWORD
) -> None:
    """By one line with exit code 2; the secret is neither there nor in the traceback."""
    result = run(store.location, "--business", place)
    assert (result.exit_code, words in result.stderr) == (2, True), result.output
    assert secret not in result.output
    shown = CliRunner().invoke(app, ["--debug", "verify", store.location, "--business", place])
    assert isinstance(shown.exception, StorageError)
    assert secret not in "".join(traceback.format_exception(shown.exception))


def test_missing_marker_table_is_refused(orders: Orders, producer: TransactionProducer) -> None:
    if isinstance(orders, DeltaOrders):
        assert_refused(producer.store, f"{orders.option}-not", "is not there")
    else:
        assert_refused(producer.store, f"{orders.option}:nowhere", "is the table there")


def test_marker_table_with_other_columns_is_refused(
    sqlite_orders: DatabaseOrders, producer: TransactionProducer
) -> None:
    assert_refused(producer.store, f"{sqlite_orders.option}:orders", "cannot be read")


def test_file_that_is_no_database_is_refused(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "text.sqlite"
    file.write_text("no database at all, " * 100, encoding="utf-8")
    monkeypatch.setenv(VARIABLE, f"sqlite:///{file}")

    assert_refused(store, f"{GROUP}=database:{VARIABLE}", "cannot be read (DatabaseError)")


def test_missing_database_file_is_refused_and_not_made(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "nowhere.sqlite"
    monkeypatch.setenv(VARIABLE, f"sqlite:///{file}")

    assert_refused(store, f"{GROUP}=database:{VARIABLE}", "is not there")
    assert not file.exists()


@pytest.mark.parametrize("dialect", SERVERS)
def test_wrong_password_is_refused_and_not_shown(
    store: Store,
    servers: Callable[[str], databases.Server],
    monkeypatch: pytest.MonkeyPatch,
    dialect: str,
) -> None:
    monkeypatch.setenv(VARIABLE, servers(dialect).url("wrong-horse"))

    place = f"{GROUP}=database:{VARIABLE}"
    assert_refused(store, place, "the password in TXMQ_TEST_ORDERS_DB", secret="wrong-horse")  # noqa: S106


def test_server_that_is_not_there_is_refused(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    password = databases.PASSWORD.replace(" ", "%20")
    monkeypatch.setenv(VARIABLE, f"postgresql+psycopg://me:{password}@127.0.0.1:{port}/db")

    place = f"{GROUP}=database:{VARIABLE}"
    assert_refused(store, place, "cannot be reached (OperationalError)", secret=password)


def test_table_of_another_schema_is_found(
    producer: TransactionProducer,
    servers: Callable[[str], databases.Server],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = servers("postgresql")
    monkeypatch.setenv(VARIABLE, server.url())
    transaction = prepared(producer)
    transaction.commit()
    publish(producer.store)
    with closing(server.connect()) as connection:
        connection.execute("CREATE SCHEMA IF NOT EXISTS billing")
        connection.execute("CREATE TABLE billing.Marks (transaction_id text, outcome text)")
        connection.execute("INSERT INTO billing.Marks VALUES (%s, 'DONE')", [transaction.id])
        connection.commit()

    place = DatabaseMarkers(VARIABLE, "billing.Marks")

    assert verify(producer.store.location, business={GROUP: place}).is_clean


def test_a_reader_of_sqlite_waits_for_no_writer_for_ever(
    sqlite_orders: DatabaseOrders, producer: TransactionProducer, tmp_path: Path
) -> None:
    prepared(producer).commit()
    publish(producer.store)
    with closing(sqlite3.connect(tmp_path / "orders.sqlite")) as writer:
        writer.execute("INSERT INTO txmq_marker (transaction_id, outcome) VALUES ('x', 'DONE')")
        report = compared(producer.store, sqlite_orders)

    assert result_of(report).violation_count == 1
