"""A topic from which another program removed messages is parked, and says why."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.kit.reading import are_gap_free, bodies, topic_rows
from tests.kit.sending import send_each
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.consumer.pull import PullConsumer
from txmq.errors import MessagesExpiredError
from txmq.maintenance.compaction import compact
from txmq.maintenance.retention import TopicRetention, tell_topic_begin
from txmq.maintenance.service import Maintenance
from txmq.message.message import Message
from txmq.message.names import SCHEDULE_TOPIC
from txmq.ops.admin.doctor import Doctor, Finding
from txmq.ops.admin.topics import Topics
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.testing import ManualClock
from txmq.verify import verify

TOPIC = "order-paid"
RETRY_S = 30.0
REMOVALS: dict[str, Callable[[DeltaTable], object]] = {
    "delete": lambda table: table.delete("body = '2'"),
    "restore": lambda table: table.restore(table.version() - 1),
    "overwrite": lambda table: table.update(updates={"tags": "'x'"}) and table.delete(),
}


class World:
    def __init__(self, tmp_path: Path) -> None:
        self.store = Store.create(
            tmp_path / "store", Config(park_retry_interval_s=RETRY_S, checkpoint_interval=5)
        )
        self.clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
        self.topics = Topics(self.store, clock=self.clock)
        self.publisher = Publisher(self.store, clock=self.clock)

    def send(self, *contents: bytes) -> None:
        for content in contents:
            send_each(self.store, content)
            self.publisher.run_once()

    def reason(self, topic: str = TOPIC) -> str | None:
        parked = self.store.tables.register("publisher").read().value.get("parked", {})
        return parked[topic]["reason"] if topic in parked else None

    def delta_rs(self, topic: str = TOPIC) -> DeltaTable:
        return DeltaTable(self.store.topic_location(topic))

    def later(self) -> None:
        self.clock.advance(40 * RETRY_S)
        self.publisher.run_once()


def found_by_doctor(world: World) -> Sequence[Finding]:
    return Doctor(world.store, clock=world.clock).examine().findings


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("is_new_publisher", [False, True])
@pytest.mark.parametrize("removal", REMOVALS)
def test_topic_is_parked_with_the_reason_and_healed_by_a_rebuild(
    world: World, removal: str, *, is_new_publisher: bool
) -> None:
    world.send(b"1", b"2")
    REMOVALS[removal](world.delta_rs())
    if is_new_publisher:
        # The commit is behind a checkpoint, and no one followed it.
        world.store.tables.table_at(f"topics/{TOPIC}").refresh().writer.checkpoint()
        world.publisher = Publisher(world.store, clock=world.clock)
    world.send(b"3")

    reason = world.reason()
    assert reason is not None
    assert "DELETE, RESTORE" in reason
    assert "rebuild-topic" in reason
    assert any(one.where == f"topics/{TOPIC}" for one in found_by_doctor(world))

    world.topics.rebuild(TOPIC, apply=True)
    world.later()
    assert world.reason() is None
    world.send(b"4")
    assert bodies(world.store) == [b"1", b"2", b"3", b"4"]
    assert are_gap_free(topic_rows(world.store))
    assert verify(world.store.location).is_clean
    assert world.reason() is None


def test_consumer_that_comes_to_the_gap_is_told_who_made_it(world: World) -> None:
    world.topics.create(TOPIC, queue_nums=1)
    world.send(b"1", b"2", b"3")
    world.delta_rs().delete("body = '2'")

    with PullConsumer(world.store, consumer_group="billing", topics=[TOPIC]) as consumer:
        assert consumer.poll(1, timeout_s=30.0)
        with pytest.raises(MessagesExpiredError, match="another program removed 1 messages"):
            consumer.poll(1, timeout_s=30.0)


@pytest.mark.parametrize("where", [ConsumeFromWhere.FIRST_OFFSET, ConsumeFromWhere.TIMESTAMP])
def test_new_group_does_not_begin_behind_what_another_program_removed(
    world: World, where: ConsumeFromWhere
) -> None:
    world.topics.create(TOPIC, queue_nums=1)
    world.send(b"1", b"2")
    world.delta_rs().delete("body = '1'")
    moment = datetime(2020, 1, 1, tzinfo=UTC) if where is ConsumeFromWhere.TIMESTAMP else None

    with (
        PullConsumer(
            world.store, consumer_group="a", topics=[TOPIC], from_where=where, from_timestamp=moment
        ) as consumer,
        pytest.raises(MessagesExpiredError, match="another program removed 1 messages"),
    ):
        consumer.poll(1, timeout_s=0.1)
    world.topics.rebuild(TOPIC, apply=True)

    with PullConsumer(
        world.store, consumer_group="a", topics=[TOPIC], from_where=where, from_timestamp=moment
    ) as consumer:
        messages = consumer.poll(1, timeout_s=30.0)
    assert [message.body for message in messages] == [b"1"]


def test_new_group_begins_where_it_is_told_to_beside_a_loss(world: World) -> None:
    world.topics.create(TOPIC, queue_nums=1)
    world.send(b"1", b"2")
    world.delta_rs().delete("body = '1'")
    begin = {TOPIC: {0: 1}}

    with PullConsumer(
        world.store, consumer_group="b", topics=[TOPIC], from_where=begin
    ) as consumer:
        assert [message.body for message in consumer.poll(1, timeout_s=30.0)] == [b"2"]


def test_restore_of_what_was_removed_lets_the_topic_go_on(world: World) -> None:
    world.send(b"1", b"2")
    version = world.delta_rs().version()
    world.delta_rs().delete("body = '2'")
    world.send(b"3")
    assert world.reason() is not None

    world.delta_rs().restore(version)
    world.later()

    assert world.reason() is None
    assert bodies(world.store) == [b"1", b"2", b"3"]


def test_what_txmq_removed_is_not_missed(world: World) -> None:
    world.topics.create(TOPIC, queue_nums=1, reserved_time_h=1)
    world.send(*(b"%d" % number for number in range(10)))
    world.clock.advance(2 * 3_600)
    assert TopicRetention(world.store, world.clock).run()
    compact(world.store.tables.table_at(f"topics/{TOPIC}"), 1 << 26)
    world.send(b"10")

    assert world.reason() is None
    world.delta_rs().delete("body = '10'")
    world.send(b"11")
    assert "lacks 1 messages" in str(world.reason())
    world.topics.rebuild(TOPIC, apply=True)
    world.later()
    assert world.reason() is None


def test_topic_that_forgets_its_marks_names_the_property(world: World) -> None:
    world.send(b"1", b"2")
    name = "delta.setTransactionRetentionDuration"
    world.delta_rs().alter.set_table_properties({name: "interval 0 seconds"})
    assert any(name in one.problem for one in found_by_doctor(world))
    forget_marks(world)
    world.publisher = Publisher(world.store, clock=world.clock)
    world.send(b"3")

    reason = world.reason()
    assert reason is not None
    assert name in reason
    assert "UNSET TBLPROPERTIES" in reason
    world.store.tables.table_at(f"topics/{TOPIC}").refresh().writer.set_properties(
        {name: "interval 1000 weeks"}
    )
    world.topics.rebuild(TOPIC, apply=True)
    world.later()
    assert world.reason() is None
    assert bodies(world.store) == [b"1", b"2", b"3"]


def forget_marks(world: World) -> None:
    """Make a checkpoint as Delta does it, and leave no commit before it."""
    table = world.delta_rs()
    table.create_checkpoint()
    log = Path(table.table_uri.removeprefix("file://"), "_delta_log")
    for file in log.glob("*.json"):
        if file.stem.isdecimal() and int(file.stem) < table.version():
            file.unlink()


def test_deleted_topic_misses_nothing(world: World) -> None:
    world.send(b"1", b"2")
    world.delta_rs().delete("body = '2'")
    world.topics.delete(TOPIC, apply=True)
    world.send(b"3")

    assert world.reason() is None
    assert bodies(world.store) == [b"3"]


def test_retention_of_an_earlier_version_is_not_taken_for_another_program(world: World) -> None:
    world.topics.create(TOPIC, queue_nums=1, reserved_time_h=1)
    world.send(b"1", b"2", b"3")
    table = world.store.tables.table_at(f"topics/{TOPIC}")
    (low, *_) = sorted(table.files.ranges("op_version"), key=lambda span: span.low)
    tell_topic_begin(world.store, {TOPIC: low.high}, 0)
    table.writer.remove([low.file])
    world.send(b"4")
    assert world.reason() is None

    world.clock.advance(2 * 3_600)
    assert TopicRetention(world.store, world.clock).run()
    world.send(b"5")
    assert world.reason() is None
    world.delta_rs().delete("body = '5'")
    world.send(b"6")
    assert "lacks 1 messages" in str(world.reason())


def test_schedule_that_lost_delayed_messages_is_parked_and_rebuilt(world: World) -> None:
    with TransactionProducer(world.store, producer_group="shop", clock=world.clock) as producer:
        for body in (b"1", b"2"):
            producer.send(Message(TOPIC, body, delay_s=3_600))
            world.publisher.run_once()
        world.delta_rs(SCHEDULE_TOPIC).delete("body = '2'")
        producer.send(Message(TOPIC, b"3", delay_s=3_600))
        world.publisher.run_once()

    assert "DELETE, RESTORE" in str(world.reason(SCHEDULE_TOPIC))
    world.topics.rebuild(SCHEDULE_TOPIC, apply=True)
    world.later()
    assert world.reason(SCHEDULE_TOPIC) is None
    assert not Maintenance(world.store, clock=world.clock).run_once().failed
    assert len(topic_rows(world.store, SCHEDULE_TOPIC)) == 3
