"""Maintenance in a hurry, while Spark streams read what it compacts and cleans."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.reading import topic_rows, wait_until
from txmq.delta.log_files import log_files
from txmq.listeners.protocol import HalfMessage
from txmq.maintenance import service
from txmq.maintenance.service import Maintenance
from txmq.message.message import LocalTransactionState, Message
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.spark.streams import Consumer
from txmq.store.config import Config
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP, TOPIC = "orders", "order-paid"
SETTINGS = {
    "transaction_timeout_s": 1.0,
    "transaction_check_interval_s": 1.0,
    "check_trigger_interval_s": 0.2,
    "maintenance_interval_s": 0.2,
    "log_reserved_time_s": 2.0,
    "topic_log_reserved_time_h": 0.01,
    "checkpoint_interval": 5,
    "half_queues": 1,
}


@dataclass(frozen=True)
class ClockAhead:
    """Topics keep their log for 36 seconds at least; by this clock twelve are left."""

    ahead_ms: int = 24_000

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms


class Answering:
    """Everything that was left open took place."""

    def execute_local_transaction(
        self, message: HalfMessage, argument: object
    ) -> LocalTransactionState:
        raise NotImplementedError

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:  # noqa: ARG002
        return LocalTransactionState.COMMIT


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store", Config(**SETTINGS))


def send(producer: TransactionProducer, number: int, *, end: bool = True) -> None:
    transaction = producer.begin_transaction()
    transaction.send(Message(TOPIC, b"%d" % number))
    transaction.prepare()
    if end:
        transaction.commit()


def is_cleaned(store: Store, table: str) -> bool:
    return min(log_files(store.tables.table_at(table).folder).commits_ms) > 0


def visible(store: Store) -> int:
    if TOPIC not in store.topics():
        return 0
    return sum(file.num_records for file in store.tables.table_at(f"topics/{TOPIC}").files.all())


@pytest.fixture
def follow(
    store: Store, spark: SparkSession, tmp_path: Path
) -> Iterator[Callable[[], list[bytes]]]:
    """A stream over the topic, and what it has seen so far."""
    seen: list[bytes] = []

    def keep(batch: DataFrame, _: int) -> None:
        seen.extend(bytes(row["body"]) for row in batch.select("body").collect())

    with TransactionProducer(store, producer_group=GROUP) as producer:
        send(producer, 0)
    Publisher(store).run_once()
    query = (
        Consumer(store, consumer_group="billing")
        .read_stream(TOPIC, spark=spark)
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    yield lambda: seen
    assert query.exception() is None
    query.stop()


def test_stream_sees_every_message_once_while_its_topic_is_compacted_and_cleaned(
    store: Store, follow: Callable[[], list[bytes]]
) -> None:
    wait_until(lambda: len(follow()) >= 1)
    publisher, maintenance = Publisher(store), Maintenance(store, clock=ClockAhead())
    handle = maintenance.start()
    topic = store.tables.table_at(f"topics/{TOPIC}")
    numbers = count(1)

    def first_half_is_cleaned_away() -> bool:
        # Maintenance comes to a topic without news only once a minute.
        send(producer, next(numbers))
        publisher.run_once()
        return min(log_files(topic.folder).commits_ms) > 40

    with TransactionProducer(store, producer_group=GROUP) as producer:
        for number in islice(numbers, 79):
            send(producer, number)
            publisher.run_once()
        wait_until(first_half_is_cleaned_away)
    sent = next(numbers)
    wait_until(lambda: len(follow()) >= sent)
    handle.stop()

    assert sorted(map(int, follow())) == list(range(sent))
    assert handle.total.compacted.files_before > 80
    assert handle.total.data_files_removed > 40
    assert not handle.total.failed


def test_broker_asks_and_publishes_everything_while_its_logs_are_cleaned(
    store: Store, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else a log whose commits are too young in a round is looked at a minute later.
    monkeypatch.setattr(service, "QUIET_MS", 0)
    handle = Broker(store, spark=spark, listeners={GROUP: Answering()}).start()
    try:
        with TransactionProducer(store, producer_group=GROUP) as producer:
            for number in range(150):
                send(producer, number, end=number % 5 > 0)
        wait_until(lambda: visible(store) == 150)
        # A quick machine is done with all of it before a commit is old enough.
        wait_until(lambda: is_cleaned(store, "op") and is_cleaned(store, "half"))
        assert handle.exception is None
    finally:
        handle.stop()

    rows = topic_rows(store, TOPIC)
    assert sorted(int(row["body"]) for row in rows) == list(range(150))


def test_spark_reads_a_table_whose_log_was_cleaned(store: Store, spark: SparkSession) -> None:
    publisher = Publisher(store)
    with TransactionProducer(store, producer_group=GROUP) as producer:
        for number in range(40):
            send(producer, number)
            publisher.run_once()
    Maintenance(store, clock=ClockAhead(ahead_ms=3_600_000)).run_once()
    send_one_more(store)
    frame = spark.read.format("delta").load(store.topic_location(TOPIC))

    assert min(log_files(store.tables.table_at(f"topics/{TOPIC}").folder).commits_ms) > 0
    assert frame.count() == 41
    assert frame.select("message_id").distinct().count() == 41


def send_one_more(store: Store) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        send(producer, 40)
    Publisher(store).run_once()
