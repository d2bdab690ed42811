"""Retention of topics: whole files go when their newest message is old, and it is said before."""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.kit.builders import table_versions
from tests.kit.reading import bodies, topic_rows
from tests.kit.stores import fresh_store
from txmq.errors import CommitRefusedError, StorageError
from txmq.maintenance.retention import (
    TopicRetention,
    published_up_to,
    tell_topic_begin,
    topic_begins,
)
from txmq.maintenance.service import Maintenance
from txmq.message.message import Message
from txmq.ops.admin.topics import Topics
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.schemas import TOPIC as TOPIC_TABLE
from txmq.store.store import Store
from txmq.testing import ManualClock, failing_commits
from txmq.verify import InvariantResult, verify

GROUP, TOPIC = "orders", "order-paid"


class World:
    """A topic of an hour, a publisher and a clock that moves when told."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
        self.topics = Topics(store, clock=self.clock)
        self.topics.create(TOPIC, queue_nums=1, reserved_time_h=1)
        self.publisher = Publisher(store, clock=self.clock)
        self.producer = TransactionProducer(store, producer_group=GROUP)
        self.retention = TopicRetention(store, self.clock)

    def send(self, body: bytes, topic: str = TOPIC) -> None:
        """One message, one file."""
        transaction = self.producer.begin_transaction()
        transaction.send(Message(topic, body))
        transaction.prepare()
        transaction.commit()
        self.publisher.run_once()

    def hours_later(self, hours: float) -> int:
        self.clock.advance(hours * 3600)
        return self.retention.run()

    def begin(self) -> int | None:
        return topic_begins(self.store).get(TOPIC)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(fresh_store(tmp_path / "store", Config(file_reserved_time_h=10_000)))


def test_old_messages_go_and_young_ones_stay(world: World) -> None:
    world.send(b"old")
    world.send(b"old too")
    world.clock.advance(3000)
    world.send(b"young")
    world.send(b"youngest")

    assert world.hours_later(0.5) == 2
    assert bodies(world.store, TOPIC) == [b"young", b"youngest"]


def test_nothing_goes_before_its_time(world: World) -> None:
    world.send(b"young")
    world.send(b"young too")
    before = table_versions(world.store)

    assert world.hours_later(0.99) == 0
    assert table_versions(world.store) == before


def test_topic_without_a_time_is_kept_for_ever(world: World) -> None:
    world.topics.alter(TOPIC, reserved_time_h=None)
    world.send(b"old")
    world.send(b"old too")

    assert world.hours_later(100_000) == 0


def test_newest_messages_stay_until_later_ones_are_published(world: World) -> None:
    world.send(b"first")
    world.send(b"last")

    assert world.hours_later(10) == 1
    assert bodies(world.store, TOPIC) == [b"last"]

    world.send(b"elsewhere", topic="stock")
    assert world.hours_later(10) == 1
    assert bodies(world.store, TOPIC) == []


def test_what_may_be_gone_is_said_in_op_versions(world: World) -> None:
    world.send(b"first")
    world.send(b"second")
    gone = min(row["op_version"] for row in topic_rows(world.store, TOPIC))
    world.send(b"third")
    world.clock.advance(-60)

    world.hours_later(2)

    assert world.begin() == max(gone, world.begin() or 0)
    assert all(row["op_version"] > (world.begin() or 0) for row in topic_rows(world.store, TOPIC))


def test_it_is_said_before_it_is_done(world: World) -> None:
    world.send(b"old")
    world.send(b"last")
    with failing_commits(1, table=TOPIC, error=OSError("killed")), pytest.raises(StorageError):
        world.hours_later(10)

    assert world.begin() is not None
    assert len(topic_rows(world.store, TOPIC)) == 2


def test_what_is_said_never_goes_back(world: World) -> None:
    tell_topic_begin(world.store, {TOPIC: 7, "stock": 3}, 0)
    tell_topic_begin(world.store, {TOPIC: 5}, 0)

    assert topic_begins(world.store) == {TOPIC: 7, "stock": 3}


def test_nothing_goes_at_or_above_what_a_parked_topic_waits_for(world: World) -> None:
    world.send(b"first")
    parked_from = published_up_to(world.store)
    with failing_commits(1, table="stock", error=OSError("gone")):
        world.send(b"", topic="stock")
    world.send(b"second")
    world.send(b"third")

    world.hours_later(0.001)
    assert published_up_to(world.store) == parked_from
    world.hours_later(10)

    assert bodies(world.store, TOPIC) == [b"first", b"second", b"third"]


def test_one_commit_for_each_topic_and_round(world: World) -> None:
    for number in range(5):
        world.send(b"%d" % number)
    before = table_versions(world.store)

    assert world.hours_later(10) == 4

    after = table_versions(world.store)
    changed = {path: after[path] - before[path] for path in after if after[path] != before[path]}
    assert changed == {f"topics/{TOPIC}": 1, "state/maintenance": 1}


def test_offsets_go_on_where_they_were(world: World) -> None:
    world.send(b"first")
    world.send(b"second")
    world.hours_later(10)
    world.send(b"third")

    assert [row["queue_offset"] for row in topic_rows(world.store, TOPIC)] == [1, 2]


def test_another_maintenance_that_is_faster_is_no_failure(world: World) -> None:
    world.send(b"first")
    world.send(b"second")
    refused = CommitRefusedError(TOPIC, "another was first")
    with failing_commits(1, table=TOPIC, error=refused):
        assert world.hours_later(10) == 0
    assert world.retention.run() == 1


def test_maintenance_does_it(world: World) -> None:
    world.send(b"first")
    world.send(b"second")
    world.clock.advance(36_000)

    result = Maintenance(world.store, clock=world.clock).run_once()

    assert (result.topic_files_removed, dict(result.failed)) == (1, {})
    assert result.to_dict()["topic_files_removed"] == 1
    assert bodies(world.store, TOPIC) == [b"second"]


def test_description_tells_what_may_be_gone(world: World) -> None:
    world.send(b"first")
    world.send(b"second")
    world.hours_later(10)

    assert world.topics.describe(TOPIC).begin == world.begin()


def test_verify_misses_nothing_that_went(world: World) -> None:
    for number in range(4):
        world.send(b"%d" % number)
    world.hours_later(10)
    world.send(b"after it")

    assert len(topic_rows(world.store, TOPIC)) == 2
    assert faults(world.store) == []


def faults(store: Store) -> list[InvariantResult]:
    return [one for one in verify(store.location).results if one.violation_count]


def test_file_that_cannot_be_read_keeps_no_other_topic_from_its_retention(tmp_path: Path) -> None:
    clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
    store = Store.create(tmp_path / "store")
    publisher = Publisher(store, clock=clock)
    for name in ("a", "b"):
        Topics(store, clock=clock).create(name, reserved_time_h=1)
    for _ in range(2):
        with TransactionProducer(store, producer_group="orders", clock=clock) as producer:
            for name in ("a", "b"):
                producer.send(Message(name, b"x"))
        publisher.run_once()
        for file in Path(store.location, "topics", "a").glob("part-*.parquet"):
            file.write_bytes(b"")
        clock.advance(86_400)

    result = Maintenance(store, clock=clock).run_once()

    assert result.topic_files_removed >= 1


@pytest.mark.parametrize("time_us", [-(2**63), 2**63 - 1])
def test_row_with_a_time_that_python_has_not_stops_no_retention(world: World, time_us: int) -> None:
    world.send(b"old")
    (row,) = topic_rows(world.store, TOPIC)
    times = pa.array([time_us], pa.int64()).cast(TOPIC_TABLE.columns.field("store_timestamp").type)
    rows = pa.Table.from_pylist([row], TOPIC_TABLE.columns)
    place = TOPIC_TABLE.columns.get_field_index("store_timestamp")
    odd = rows.set_column(place, TOPIC_TABLE.columns.field(place), times)
    write_deltalake(f"{world.store.location}/topics/{TOPIC}", odd, mode="append")
    world.send(b"young")

    assert world.hours_later(2) >= 1
    assert world.topics.describe(TOPIC).newest is not None
