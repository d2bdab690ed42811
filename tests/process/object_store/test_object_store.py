"""A store in a bucket: what a store on a disk does, and what it costs."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.kit import s3
from tests.kit.check_world import wait_until, wall_ms
from txmq.consumer.pull import PullConsumer
from txmq.errors import LocalTransactionFencedError, TxmqError
from txmq.listeners.delta import DeltaListener
from txmq.maintenance.service import Maintenance
from txmq.message.message import Message
from txmq.message.received import ReceivedMessage
from txmq.ops.admin.status import Admin
from txmq.ops.admin.topics import Topics
from txmq.ops.broker import Broker, BrokerHandle
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.testing import ManualClock
from txmq.verify import verify

TOPIC, GROUP = "order-paid", "orders"
# Requests of an idle broker without Spark, maintenance included; looks at a disk are many more.
IDLE_A_SECOND_MAX = 20
# A transaction of one message alone: two files, two commits, and looks for the commits of others.
A_TRANSACTION_MAX = 11
# A broker that is started where nothing is due, and ends: 300, and one for each commit of a log or
# register since its checkpoint.
ONCE_MAX = 1000
# 1,000 messages in ten sends.
A_THOUSAND_MAX = 10 * A_TRANSACTION_MAX


def send(store: Store, *texts: str, **values: Any) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        for text in texts:
            tell(producer, text, **values)


def tell(producer: TransactionProducer, text: str, **values: Any) -> None:
    with producer.begin_transaction() as transaction:
        transaction.send(Message(TOPIC, text.encode(), **values))
        transaction.prepare()
        transaction.commit()


@contextmanager
def running(store: Store) -> Iterator[BrokerHandle]:
    broker = Broker(store).start()
    try:
        yield broker
    finally:
        broker.stop()


def bodies(store: Store) -> list[str]:
    table = store.tables.table_at(f"topics/{TOPIC}")
    return sorted(
        body.decode() for body in table.rows.read(table.files.all(), ("body",))["body"].to_pylist()
    )


def consumed(store: Store, count: int) -> list[str]:
    handled: list[str] = []

    def handle(message: ReceivedMessage) -> None:
        handled.append(message.body.decode())

    with PullConsumer(store, consumer_group="billing", topics=TOPIC) as consumer:
        handling = consumer.start(handle)
        wait_until(lambda: len(handled) >= count, f"{count} messages")
        handling.stop()
    return sorted(handled)


# --- what a store does ----------------------------------------------------------------------------


def test_messages_go_from_a_producer_to_a_consumer(lake: str) -> None:
    store = Store.create(f"{lake}/store")
    with running(store) as broker:
        send(store, "1", "2")
        send(store, "later", delay_s=1)

        assert consumed(store, 3) == ["1", "2", "later"]
        assert broker.is_alive

    assert Admin(store).status().committed == 3
    assert verify(store.location).is_clean


def test_messages_that_nobody_ended_are_checked(lake: str) -> None:
    store = Store.create(
        f"{lake}/store", Config(transaction_timeout_s=0.001, transaction_renewal_max_s=0.0)
    )
    orders = f"{lake}/orders"
    write_deltalake(orders, pa.table({"id": ["0"]}))
    listener = DeltaListener(orders)
    producer = TransactionProducer(store, producer_group=GROUP, listener=listener)
    paid, late = (producer.begin_transaction() for _ in range(2))
    for transaction in (paid, late):
        transaction.send(Message(TOPIC, transaction.id.encode()))
        transaction.prepare()
    with paid.delta_rs(orders) as (table, properties):
        write_deltalake(table, pa.table({"id": ["1"]}), mode="append", commit_properties=properties)

    broker = Broker(store, listeners={GROUP: listener})
    while broker.run_once().checked.open_transactions:
        pass

    assert bodies(store) == [paid.id]
    with pytest.raises(LocalTransactionFencedError), late.delta_rs(orders) as (table, properties):
        write_deltalake(table, pa.table({"id": ["2"]}), mode="append", commit_properties=properties)
    assert DeltaTable(orders).version() == 2


def test_two_brokers_and_many_callers_publish_each_message_once(lake: str) -> None:
    store = Store.create(f"{lake}/store")
    names = [[f"{caller}-{number}" for number in range(5)] for caller in range(6)]
    with running(store), running(Store.open(store.location)):
        with ThreadPoolExecutor(len(names)) as pool:
            list(pool.map(lambda texts: send(Store.open(store.location), *texts), names))
        expected = sorted(name for of_caller in names for name in of_caller)
        assert consumed(store, len(expected)) == expected

    assert bodies(store) == expected
    assert verify(store.location).is_clean


def test_files_are_merged_logs_cleaned_topics_rebuilt_and_days_forgotten(lake: str) -> None:
    settings = Config(checkpoint_interval=10, log_reserved_time_s=1.0, half_queues=1)
    store, clock = Store.create(f"{lake}/store", settings), ManualClock(wall_ms())
    for number in range(12):
        send(store, str(number))
        Publisher(store).run_once()
    expected = sorted(str(number) for number in range(12))

    clock.advance(86_400)
    merged = Maintenance(store, clock=clock).run_once()
    assert not merged.failed
    assert bodies(store) == expected
    Topics(store, clock=clock).rebuild(TOPIC, apply=True)
    assert bodies(store) == expected
    assert verify(store.location).is_clean
    clock.advance(10 * 86_400)
    for _ in range(2):
        forgotten = Broker(store, clock=clock).run_once().maintained

    assert not forgotten.failed
    assert not store.tables.table_at("half").files.all()
    assert bodies(store) == expected
    assert verify(store.location).is_clean


# --- faults of the storage ------------------------------------------------------------------------


def test_lost_answers_and_throttling_lose_and_double_nothing(
    lake: str, server: s3.S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.create(f"{lake}/store")
    acknowledged: list[str] = []

    def call(caller: int) -> None:
        for number in range(6):
            name = f"{caller}-{number}"
            try:
                send(Store.open(store.location), name)
            except TxmqError:
                continue
            acknowledged.append(name)

    with s3.proxy(server, tmp_path / "requests", throttled=0.05, lost=0.1) as faulty:
        monkeypatch.setenv(server.address_variable, faulty.endpoint)
        with running(Store.open(store.location)), ThreadPoolExecutor(4) as pool:
            list(pool.map(call, range(4)))
        fates = faulty.fates()
    monkeypatch.setenv(server.address_variable, server.endpoint)
    store = Store.open(store.location)
    Broker(store).run_once()

    shown = bodies(store)
    assert fates["lost"] >= 10
    assert fates["throttled"] >= 10
    assert len(acknowledged) > 12
    assert len(set(shown)) == len(shown)
    assert set(acknowledged) <= set(shown)
    assert verify(store.location).is_clean


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("no such bucket", "the bucket does not exist"),
        ("nobody listens", "cannot be reached"),
    ],
)
def test_command_says_in_time_why_a_bucket_cannot_be_used(
    lake: str, server: s3.S3, monkeypatch: pytest.MonkeyPatch, change: str, problem: str
) -> None:
    location = f"{lake}/store"
    if change == "no such bucket":
        location = server.location("no-such-bucket", "store")
    else:
        monkeypatch.setenv(server.address_variable, "http://127.0.0.1:1")

    finished = txmq("status", location)

    assert finished.returncode == 2
    assert problem in finished.stderr
    assert server.secret not in finished.stderr


def test_commands_find_their_credentials_in_the_environment(lake: str) -> None:
    location = f"{lake}/store"

    assert txmq("init", location).returncode == 0
    assert txmq("produce", location, TOPIC, "--body", "body").returncode == 0
    assert txmq("serve", location, "--once").returncode == 0

    status = json.loads(txmq("status", location, "--json").stdout)
    assert status["messages"] == {TOPIC: 1}


def txmq(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "txmq", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


# --- what it costs --------------------------------------------------------------------------------


def test_requests_are_few(
    lake: str, server: s3.S3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3.proxy(server, tmp_path / "requests") as counting:
        monkeypatch.setenv(server.address_variable, counting.endpoint)
        # On a slow machine more looks by time would be among those of the sends.
        store = Store.create(f"{lake}/store", Config(topic_refresh_s=3600.0))
        with TransactionProducer(store, producer_group=GROUP) as producer:
            tell(producer, "first")
            before = len(counting.requests())
            for number in range(10):
                tell(producer, str(number))
            a_transaction = (len(counting.requests()) - before) / 10
            before = len(counting.requests())
            for _ in range(10):
                producer.send([Message(TOPIC, b"x") for _ in range(100)])
            a_thousand = len(counting.requests()) - before
        with running(store):
            consumed(store, 1011)
            before, begun_s = len(counting.requests()), time.monotonic()
            time.sleep(5)
            idle = (len(counting.requests()) - before) / (time.monotonic() - begun_s)

        Broker(store).run_once()
        before = len(counting.requests())
        Broker(Store.open(store.location)).run_once()
        once = len(counting.requests()) - before

    assert once <= ONCE_MAX
    assert a_transaction <= A_TRANSACTION_MAX
    assert a_thousand <= A_THOUSAND_MAX
    assert idle <= IDLE_A_SECOND_MAX
