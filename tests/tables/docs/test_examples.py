"""The examples of pages that need no Spark do what the pages say."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sqlite3
import textwrap
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from typer.testing import CliRunner

import txmq
from tests.kit.pages import block
from tests.kit.reading import publish, topic_rows
from txmq import (
    Broker,
    Config,
    DatabaseListener,
    LocalTransactionState,
    Message,
    Operator,
    Store,
    TransactionProducer,
)
from txmq.ops.cli.app import app

TOPIC = "order-paid"


def ran(page: str, begins_with: str, **names: Any) -> dict[str, Any]:
    """Run a block with all public names, and these."""
    known = {name: getattr(txmq, name) for name in txmq.__all__}
    given = {**known, **names}
    exec(block(f"docs/{page}", begins_with), given)  # noqa: S102 - our own page
    return given


def bodies(store: Store, topic: str = TOPIC) -> list[bytes]:
    publish(store)
    return [row["body"] for row in topic_rows(store, topic)]


@pytest.mark.parametrize(
    ("begins_with", "is_saved", "is_sent"),
    [("save_order(order)", True, False), ("send(", False, True)],
)
def test_without_txmq_one_of_the_two_is_lost(
    begins_with: str, *, is_saved: bool, is_sent: bool
) -> None:
    done: list[str] = []

    def step(name: str) -> Any:
        def act(*_arguments: object) -> None:
            if done:
                raise KeyboardInterrupt  # it dies between the two lines
            done.append(name)

        return act

    with pytest.raises(KeyboardInterrupt):
        ran("why.md", begins_with, save_order=step("save"), send=step("send"), order={})

    assert (("save" in done), ("send" in done)) == (is_saved, is_sent)


@pytest.mark.parametrize("is_saved", [True, False])
def test_listener_of_the_page_answers_by_the_order(tmp_path: Path, *, is_saved: bool) -> None:
    # Asked about at once, and not after six seconds.
    store = Store.create(
        tmp_path / "store", Config(transaction_timeout_s=0.001, transaction_renewal_max_s=0.0)
    )
    saved: set[str] = set()

    def save_order(_order: object, transaction_id: str) -> None:
        if is_saved:
            saved.add(transaction_id)
        raise ConnectionError("the answer of the database is lost")

    for order, save in ((42, save_order), (43, lambda *_: None)):
        names = ran(
            "why.md", "class OrderListener", store=store, order={"order": order}, save_order=save,
            order_exists=saved.__contains__,
        )  # fmt: skip
        names["producer"].close()
    Broker(store, listeners={"order-service": names["OrderListener"]()}).run_once()

    found = sorted(json.loads(body)["order"] for body in bodies(store))
    assert found == ([42, 43] if is_saved else [43])
    assert Operator(store).open_transactions() == ()


def test_service_on_asyncio_pays_and_tells(store: Store) -> None:
    paid: list[str] = []

    async def pay(order: str, _transaction_id: str) -> None:
        paid.append(order)

    code = textwrap.indent(block("docs/messages.md", "async with"), "    ")
    names = {"Message": Message, "AsyncTransactionProducer": txmq.AsyncTransactionProducer}
    names |= {"store": store, "pay": pay, "order": "order-42"}  # type: ignore[dict-item]
    exec(f"async def example():\n{code}", names)  # noqa: S102 - our own page
    asyncio.run(names["example"]())

    assert (paid, bodies(store)) == (["order-42"], [b"42"])


def test_job_that_is_run_again_writes_and_tells_once(store: Store, tmp_path: Path) -> None:
    table = str(tmp_path / "orders")
    write_deltalake(table, pa.table({"order": pa.array([], pa.string())}))
    writes = []

    def write(orders: list[bytes], options: dict[str, str]) -> None:
        writes.append(orders)
        marker = Transaction(options["txnAppId"], int(options["txnVersion"]))
        rows = pa.table({"order": [order.decode() for order in orders]})
        properties = CommitProperties(app_transactions=[marker])
        write_deltalake(table, rows, mode="append", commit_properties=properties)

    run_time = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    listener = txmq.DeltaListener(table)
    with TransactionProducer(store, producer_group="jobs", listener=listener) as producer:
        for _ in range(2):
            ran(
                "messages.md", "transaction = producer.begin", producer=producer, table=table,
                orders=[b"1", b"2"], write=write, run_time=run_time,
            )  # fmt: skip

    assert len(writes) == 1
    assert DeltaTable(table).to_pyarrow_dataset().count_rows() == 2
    assert bodies(store) == [b"1", b"2"]


def test_delayed_messages_wait_and_one_is_recalled(store: Store) -> None:
    with TransactionProducer(store, producer_group="shop") as producer:
        ran("messages.md", 'producer.send(Message("reminder", body, delay_level',
            producer=producer, body=b"!", datetime=datetime, UTC=UTC)  # fmt: skip
        publish(store)

    assert len(topic_rows(store, "SCHEDULE_TOPIC_XXXX")) == 3


def test_database_listener_lets_commit_see_the_marker(store: Store, tmp_path: Path) -> None:
    class Psycopg:
        @staticmethod
        def connect(*_arguments: object) -> sqlite3.Connection:
            return sqlite3.connect(tmp_path / "orders.db")

    with closing(Psycopg.connect()) as connection:
        connection.execute("CREATE TABLE orders (id INTEGER, paid BOOLEAN)")
        connection.execute("INSERT INTO orders VALUES (42, false)")
        connection.commit()
    listener = DatabaseListener(Psycopg.connect)
    with TransactionProducer(store, producer_group="orders", listener=listener) as producer:
        ran("listeners.md", "listener = DatabaseListener", psycopg=Psycopg, producer=producer)

    with closing(Psycopg.connect()) as connection:
        assert connection.execute("SELECT paid FROM orders").fetchall() == [(1,)]
    assert bodies(store) == [b"42"]


def test_live_producer_answers(store: Store) -> None:
    class OrderListener:
        def execute_local_transaction(self, message: object, argument: object) -> Any:  # noqa: ARG002
            return LocalTransactionState.UNKNOWN

        def check_local_transaction(self, message: object) -> Any:  # noqa: ARG002
            return LocalTransactionState.COMMIT

    names = ran(
        "listeners.md", "producer = TransactionProducer", store=store, OrderListener=OrderListener
    )

    assert os.path.exists(f"{store.location}/state/remote_orders")  # noqa: PTH110 - a location is text
    names["producer"].close()


def test_listener_of_a_query_and_listeners_in_settings_can_be_made() -> None:
    assert ran("listeners.md", "QueryListener(")

    settings = yaml.safe_load(block("docs/listeners.md", "listeners:"))

    assert set(Config.from_dict(settings).listeners) == set(settings["listeners"])


def test_own_listener_of_a_scheduled_recheck_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Asked about at once, and not after six seconds.
    store = Store.create(
        tmp_path / "store", Config(transaction_timeout_s=0.001, transaction_renewal_max_s=0.0)
    )
    exported, package = tmp_path / "exported", tmp_path / "acme"
    for folder in (exported, package):
        folder.mkdir()
    code = block("docs/listeners.md", "from pathlib").replace("/srv/exported", str(exported))
    (package / "reports.py").write_text(code)
    line = block("docs/listeners.md", "*/5").replace("/srv", str(tmp_path))
    _, _, _, _, _, path, listeners, *command = shlex.split(line)
    monkeypatch.syspath_prepend(path.removeprefix("PYTHONPATH="))
    with TransactionProducer(store, producer_group="reports") as producer:
        for name in ("there.csv", "missing.csv"):
            transaction = producer.begin_transaction()
            transaction.send(Message(TOPIC, name.encode(), keys=name))
            transaction.prepare()
    (exported / "there.csv").touch()

    variable, value = listeners.split("=", 1)
    answer = CliRunner().invoke(app, [command[1], store.location], env={variable: value})

    assert (command, answer.exit_code) == (["txmq", "recheck", "/data/txmq"], 0)
    assert bodies(store) == [b"there.csv"]


def test_keys_of_claims_are_settings() -> None:
    settings = yaml.safe_load(block("docs/security.md", "# in the settings"))

    assert Config.from_dict(settings).claim_keys == {"orders": "ORDERS_CLAIM_KEY"}


@pytest.mark.parametrize("begins_with", ["class Journal", "with TraceHook", "hook = OpenTel"])
def test_hooks_are_called_or_rest(store: Store, begins_with: str) -> None:
    names = ran("hooks_and_trace.md", begins_with, store=store, spark=None)

    with names["producer"] as producer:
        producer.send(Message(TOPIC, b"42"))
    names["broker"].run_once()
    if "consumer" in names:
        names["consumer"].close()
    assert bodies(store) == [b"42"]


def test_namespace_is_before_the_names(store: Store) -> None:
    class Listener:
        def execute_local_transaction(self, message: object, argument: object) -> Any:  # noqa: ARG002
            return LocalTransactionState.COMMIT

        def check_local_transaction(self, message: object) -> Any:  # noqa: ARG002
            return LocalTransactionState.COMMIT

    names = ran(
        "hooks_and_trace.md", 'producer = TransactionProducer(store, producer_group="orders", name',
        store=store, spark=None, listener=Listener(),
    )  # fmt: skip
    with names["producer"] as producer:
        producer.send(Message(TOPIC, b"42"))

    assert bodies(store, f"tenant.{TOPIC}") == [b"42"]


def test_figures_are_offered_to_opentelemetry(store: Store) -> None:
    from opentelemetry.sdk.metrics import MeterProvider

    ran("monitoring.md", "Broker(", store=store, provider=MeterProvider())


def test_cloud_event_is_sent_and_read(store: Store) -> None:
    code = block("docs/typed_topics.md", "event = cloud_event").splitlines()
    with TransactionProducer(store, producer_group="shop") as producer:
        names: dict[str, Any] = {name: getattr(txmq, name) for name in txmq.__all__}
        names |= {"producer": producer, "body": b"{}"}
        exec("\n".join(code[:2]), names)  # noqa: S102 - our own page
    publish(store)
    (row,) = topic_rows(store, TOPIC)

    attributes = eval(code[2], {**names, "row": row})  # noqa: S307 - our own page
    assert attributes["specversion"] == "1.0"
    assert attributes["id"] == "7"
