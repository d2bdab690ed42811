"""What somebody gets wrong on the first day: each mistake has an error with the next step."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import txmq
from txmq.delta.failures import failed_write
from txmq.errors import (
    ClosedError,
    ConfigError,
    InvalidMessageError,
    ListenerError,
    ReadOnlyStoreError,
    StoreNotFoundError,
)
from txmq.listeners.database import DatabaseListener
from txmq.listeners.delta import DeltaListener
from txmq.message.message import Message
from txmq.ops.admin.doctor import Doctor
from txmq.producer.producer import TransactionProducer
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.store.tables import StoreTables
from txmq.user_data.delta_inbox import InboxTable

# What else they need; nothing of it is looked at before the store.
OTHERS: dict[str, dict[str, Any]] = {
    "AsyncPullConsumer": {"consumer_group": "g", "topics": "t"},
    "AsyncSimpleConsumer": {"consumer_group": "g", "topics": "t"},
    "SimpleConsumer": {"consumer_group": "g", "topics": "t"},
    "AsyncTransactionProducer": {"producer_group": "g"}, "Erasure": {"key": "k"},
    "CatalogTables": {"catalog": "c", "spark": None},
    "Consumer": {"consumer_group": "g"}, "DeadLetters": {"consumer_group": "g"},
    "PullConsumer": {"consumer_group": "g", "topics": "t"}, "SendBack": {"consumer_group": "g"},
    "TransactionProducer": {"producer_group": "g"},
}  # fmt: skip
TAKE_A_STORE = [
    "Admin", "AsyncPullConsumer", "AsyncSimpleConsumer", "AsyncTransactionProducer", "Broker",
    "CatalogTables",
    "CheckService", "Consumer", "ConsumerGroups", "ConsumerLag", "DeadLetters", "DelayService",
    "Erasure", "Maintenance", "MessageQuery", "MetricsService",
    "Operator", "Publisher", "PullConsumer", "RecheckJob", "SendBack", "SimpleConsumer", "Topics",
    "TraceHook", "TransactionProducer",
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


def test_the_list_has_all_that_take_a_store() -> None:
    api = Path(__file__).parents[1] / "pure" / "public_api.txt"
    takers = [
        line.partition(".")[0]
        for line in api.read_text().splitlines()
        if ".__init__(self, store: 'Store'" in line
    ]

    assert takers == TAKE_A_STORE


@pytest.mark.parametrize("name", [*TAKE_A_STORE, "Doctor"])
def test_location_in_place_of_a_store_is_told_how_to_open_it(name: str) -> None:
    kind: Callable[..., object] = Doctor if name == "Doctor" else getattr(txmq, name)

    with pytest.raises(ConfigError, match=r"must be a Store, not '/data/txmq'; open it first"):
        kind("/data/txmq", **OTHERS.get(name, {}))


@pytest.mark.parametrize("call", [txmq.upgrade, lambda store: txmq.back_up(store, "/backups/txmq")])
def test_location_in_place_of_a_store_of_a_call_is_told_alike(call: Callable[..., object]) -> None:
    with pytest.raises(ConfigError, match=r"must be a Store, not '/data/txmq'; open it first"):
        call("/data/txmq")


def test_setting_that_is_none_is_refused_with_the_nearest_name() -> None:
    nearest = "'transaction_timeout' is not a setting; did you mean transaction_timeout_s"

    with pytest.raises(ConfigError, match=nearest):
        Config(transaction_timeout=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match=nearest):
        Config().replace(transaction_timeout=3)


def test_class_of_a_listener_is_to_be_an_instance(store: Store) -> None:
    with pytest.raises(ListenerError, match=r"this is a class: pass DeltaListener\(…\)"):
        TransactionProducer(store, producer_group="g", listener=DeltaListener)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("delay", "rule"),
    [
        ({"delay_level": -1}, "number of a level from 1 on, not -1"),
        ({"delay_s": -1}, "from 0 to the store's timer_max_delay_s, not -1"),
        ({"delay_s": 0.5}, "an int of whole seconds, .* not float"),
        ({"delay_s": timedelta(seconds=5)}, "an int of whole seconds, .* not timedelta"),
    ],
)
def test_delay_says_what_it_must_be(delay: dict[str, Any], rule: str) -> None:
    with pytest.raises(InvalidMessageError, match=rule):
        Message("t", b"", **delay)


def test_table_that_is_none_is_named(tmp_path: Path) -> None:
    nowhere = str(tmp_path / "nowhere")
    for call in (
        DeltaListener(nowhere).is_marked,
        lambda _: InboxTable("inbox", nowhere).refresh(),
    ):
        with pytest.raises(StoreNotFoundError, match="nowhere is no Delta table"):
            call("id")
    with pytest.raises(StoreNotFoundError, match="make it first"):
        DeltaListener(nowhere).is_marked("id")


def test_closed_producer_is_told_by_its_group(store: Store) -> None:
    producer = TransactionProducer(store, producer_group="shop")
    producer.close()

    with pytest.raises(ClosedError, match=r"^the producer of group shop is closed; make a new one"):
        producer.send(Message("t", b"1"))


def test_missing_marker_table_has_the_two_ways_to_make_it(store: Store, tmp_path: Path) -> None:
    listener = DatabaseListener(lambda: sqlite3.connect(tmp_path / "orders.db"))
    with TransactionProducer(store, producer_group="shop", listener=listener) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("t", b"1"))
        transaction.prepare()
        with (
            pytest.raises(sqlite3.OperationalError) as caught,
            sqlite3.connect(tmp_path / "orders.db") as connection,
            transaction.database(connection),
        ):
            raise AssertionError

        (note,) = caught.value.__notes__
        assert note.startswith(
            "if the table txmq_marker is not there, make it: create_marker_table"
        )
        assert "`txmq marker-table sqlite`" in note
        transaction.rollback()


def test_place_that_refuses_writes_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise failed_write("half", OSError("Permission denied (os error 13)"))

    monkeypatch.setattr(StoreTables, "_create", refused)

    with pytest.raises(ReadOnlyStoreError, match=r"/store: its table half: cannot be written"):
        Store.create(tmp_path / "store")
