"""Streams over a topic that loses old messages, is rebuilt, or deleted and made anew."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.planted import Vandal
from tests.kit.reading import bodies, topic_rows, wait_until
from tests.oracle.agreement import both_reports, differences
from txmq.errors import CheckpointMismatchError, TopicKindError
from txmq.maintenance.retention import TopicRetention
from txmq.message.message import Message
from txmq.ops.admin.topics import Topics
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.spark.streams import Consumer
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.store.topic_settings import TopicKind
from txmq.testing import ManualClock
from txmq.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP, TOPIC = "orders", "order-paid"


class World:
    """A topic whose messages are numbers, and a stream that keeps what it saw."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
        self.topics = Topics(store, clock=self.clock)
        self.topics.create(TOPIC, queue_nums=2, reserved_time_h=1)
        self.publisher = Publisher(store, clock=self.clock)
        self.seen: list[int] = []

    def send(self, *numbers: int, topic: str = TOPIC) -> None:
        with TransactionProducer(self.store, producer_group=GROUP) as producer:
            for number in numbers:
                transaction = producer.begin_transaction()
                transaction.send(Message(topic, b"%d" % number))
                transaction.prepare()
                transaction.commit()
                self.publisher.run_once()

    def keep(self, batch: DataFrame, _: int) -> None:
        self.seen.extend(int(bytes(row["body"])) for row in batch.select("body").collect())

    def wait_for(self, *numbers: int) -> None:
        wait_until(lambda: len(self.seen) >= len(numbers))
        assert sorted(self.seen) == sorted(numbers)

    def damage(self, topic: str) -> None:
        own_id = topic_rows(self.store, topic)[0]["transaction_id"]
        Vandal(self.store.location).change(own_id, topic, body=b"99")


@pytest.fixture
def quiet(tmp_path: Path) -> World:
    """Without a stream."""
    return World(Store.create(tmp_path / "store", Config(file_reserved_time_h=10_000)))


@pytest.fixture
def world(quiet: World, tmp_path: Path, spark: SparkSession) -> Iterator[World]:
    made = quiet
    query = (
        Consumer(made.store, consumer_group="billing")
        .read_stream(TOPIC, spark=spark)
        .writeStream.foreachBatch(made.keep)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    yield made
    assert query.exception() is None
    query.stop()


def test_stream_is_not_disturbed_by_retention(world: World) -> None:
    world.send(1, 2, 3)
    world.wait_for(1, 2, 3)
    world.clock.advance(7200)

    assert TopicRetention(world.store, world.clock).run() == 2
    world.send(4)

    world.wait_for(1, 2, 3, 4)
    assert bodies(world.store, TOPIC) == [b"3", b"4"]
    assert verify(world.store.location).is_clean


def test_stream_does_not_see_a_rebuilt_message_twice(world: World) -> None:
    world.send(1, 2, 3)
    world.wait_for(1, 2, 3)
    world.damage(TOPIC)

    assert world.topics.rebuild(TOPIC, apply=True).is_written
    world.send(4)

    world.wait_for(1, 2, 3, 4)
    assert bodies(world.store, TOPIC) == [b"1", b"2", b"3", b"4"]
    assert verify(world.store.location).is_clean


def test_stream_goes_on_with_a_topic_that_was_deleted_and_made_anew(world: World) -> None:
    world.send(1, 2)
    world.wait_for(1, 2)

    assert world.topics.delete(TOPIC, apply=True).is_written
    world.topics.create(TOPIC)
    world.send(3)

    world.wait_for(1, 2, 3)
    assert bodies(world.store, TOPIC) == [b"3"]
    assert verify(world.store.location).is_clean


def test_stream_is_told_that_its_topic_went_back_before_and_after_the_rebuild(
    quiet: World, tmp_path: Path, spark: SparkSession
) -> None:
    consumer = Consumer(quiet.store, consumer_group="billing")
    topic = Path(quiet.store.topic_location(TOPIC))

    def run() -> None:
        with consumer.stream_errors():
            query = (
                consumer.read_stream(TOPIC, spark=spark)
                .writeStream.foreachBatch(quiet.keep)
                .option("checkpointLocation", str(tmp_path / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

    quiet.send(1)
    copy = shutil.copytree(topic, tmp_path / "copy")
    quiet.send(2, 3)
    run()
    shutil.rmtree(topic)
    shutil.copytree(copy, topic)
    with pytest.raises(CheckpointMismatchError, match="older copy"):
        run()

    quiet.send(4)
    assert quiet.topics.rebuild(TOPIC, apply=True).is_written
    quiet.clock.advance(7200)
    # The versions of these are those that the checkpoint has passed, and one more.
    quiet.send(5, 6, 7)

    with pytest.raises(CheckpointMismatchError, match="older copy"):
        run()
    assert quiet.seen == [1, 2, 3]


def test_both_engines_miss_nothing_after_retention_rebuild_and_deletion(
    quiet: World, quick: SparkSession
) -> None:
    topics = (TOPIC, "rebuilt", "deleted")
    for topic in topics[1:]:
        quiet.topics.create(topic, queue_nums=2)
    for topic in topics:
        quiet.send(1, 2, 3, topic=topic)
    quiet.damage("rebuilt")
    assert quiet.topics.rebuild("rebuilt", apply=True).is_written
    assert quiet.topics.delete("deleted", apply=True).is_written
    quiet.topics.create("deleted")
    quiet.clock.advance(7200)
    assert TopicRetention(quiet.store, quiet.clock).run() == 3
    for topic in topics:
        quiet.send(4, topic=topic)

    verified, by_oracle = both_reports(quiet.store.location, quick)

    assert [bodies(quiet.store, topic) for topic in topics] == [
        [b"4"], [b"1", b"2", b"3", b"4"], [b"4"],
    ]  # fmt: skip
    assert differences(verified, by_oracle) == ()
    assert verified.is_clean
    assert by_oracle.is_clean


def test_dataframe_goes_to_the_queues_of_its_topic_and_fits_its_kind(
    store: Store, spark: SparkSession
) -> None:
    topics = Topics(store)
    topics.create(TOPIC, kind=TopicKind.TRANSACTION, queue_nums=3)
    topics.create("fifo", kind=TopicKind.FIFO)
    rows = spark.range(60).selectExpr("cast(id as string) body", "cast(id as string) sharding_key")
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = producer.begin_transaction()
        with pytest.raises(TopicKindError):
            transaction.send_dataframe(rows, topic="fifo")
        transaction.send_dataframe(rows, topic=TOPIC)
        transaction.prepare()
        transaction.commit()
    Publisher(store).run_once()

    assert {row["queue_id"] for row in topic_rows(store, TOPIC)} == {0, 1, 2}
