"""Delayed messages and clocks that are wrong: none comes early, and all come."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.delay_world import GROUP, TOPIC, DelayWorld
from tests.kit.stores import fresh_store
from txmq.delta.actions import commit_path
from txmq.errors import StorageError
from txmq.ground.clock import milliseconds, timestamp
from txmq.message.message import Message
from txmq.message.names import SCHEDULE_TOPIC
from txmq.producer.producer import TransactionProducer
from txmq.publish.delay_service import DelayService
from txmq.publish.publisher import Publisher
from txmq.store.store_clock import StoreClock
from txmq.testing import WrongClock, failing_commits
from txmq.verify import verify

HOUR_S = 3600.0


@pytest.fixture
def world(tmp_path: Path) -> DelayWorld:
    return DelayWorld(tmp_path)


def violations(world: DelayWorld) -> list[str]:
    return [one.invariant for one in verify(world.store.location).results if one.violation_count]


# --- a clock that was ahead -----------------------------------------------------------------------


def ahead_for_a_while(world: DelayWorld) -> None:
    """The store's own time is an hour ahead for one look; then two messages are sent."""
    world.send("first", delay_s=1)
    world.after(HOUR_S)
    world.clock.advance(-HOUR_S)
    world.send("later", delay_s=1800)
    world.send("soon", delay_s=1)
    assert world.after(1) == ["first", "soon"]
    world.service._keep_progress()


def test_message_waits_on_after_a_clock_that_was_ahead_and_a_restart(world: DelayWorld) -> None:
    ahead_for_a_while(world)
    world.restart()
    world.deliver()

    assert world.after(1798) == ["first", "soon"]
    assert world.after(1) == ["first", "soon", "later"]
    assert violations(world) == []


def test_message_waits_on_after_a_clock_that_was_ahead_and_a_failed_commit(
    world: DelayWorld,
) -> None:
    ahead_for_a_while(world)
    world.send("between", delay_s=10)
    world.clock.advance(10)
    with (
        failing_commits(1, table="op", error=OSError(28, "disk full")),
        pytest.raises(StorageError),
    ):
        world.deliver()

    assert world.after(0) == ["first", "soon", "between"]
    assert world.after(1789) == ["first", "soon", "between", "later"]


@pytest.mark.parametrize("hours_later", [0, 2])
def test_progress_that_an_older_version_kept_is_not_believed(
    world: DelayWorld, hours_later: float
) -> None:
    world.send("later", delay_s=1800)
    op = world.store.tables.op_log().table
    due_ms = world.clock.now_ms() + 3_600_000
    value = {"op_table_id": op.log.table_id, "op_version": op.version, "due_ms": due_ms}
    register = world.store.tables.register("delay", create=True)
    register.swap(register.read(), value, world.clock.now_ms())
    world.clock.advance(hours_later * HOUR_S)
    world.restart()
    world.deliver()

    assert world.after(1800) == ["later"]


def test_progress_of_the_future_is_not_believed(world: DelayWorld) -> None:
    world.send("first", delay_s=1)
    world.after(HOUR_S)
    world.service._keep_progress()
    world.clock.advance(-HOUR_S)
    world.send("later", delay_s=60)
    world.restart()

    assert world.after(60) == ["first", "later"]


# --- a service whose clock is wrong ---------------------------------------------------------------


@pytest.mark.parametrize("ahead_s", [-86_400, -HOUR_S, HOUR_S, 86_400])
def test_service_with_a_wrong_clock_delivers_at_the_stores_time(
    world: DelayWorld, ahead_s: float
) -> None:
    world.service = DelayService(world.store, clock=WrongClock(ahead_s, of_store=world.clock))
    world.send("later", delay_s=60)

    assert world.after(59.999) == []
    assert world.after(0.001) == ["later"]
    assert violations(world) == []


def test_service_with_a_wrong_clock_leaves_a_true_progress(world: DelayWorld) -> None:
    world.service = DelayService(world.store, clock=WrongClock(HOUR_S, of_store=world.clock))
    world.send("later", delay_s=60)
    world.send("first", delay_s=1)
    world.after(1)
    world.service._keep_progress()
    world.restart()
    world.deliver()

    assert world.after(59) == ["first", "later"]


def test_publisher_with_a_wrong_clock_stamps_the_stores_time(world: DelayWorld) -> None:
    world.publisher = Publisher(world.store, clock=WrongClock(-HOUR_S, of_store=world.clock))
    world.send("later", delay_s=60)
    world.after(60)

    (row,) = world.rows()
    assert row["store_timestamp"] == world.now
    assert violations(world) == []


def test_message_is_not_stamped_before_its_delivery_by_a_clock_that_is_a_little_late(
    tmp_path: Path,
) -> None:
    store, late_ms = fresh_store(tmp_path / "store"), 1500
    right = StoreClock(store)
    late = StoreClock(store, storage_ms=lambda: right.now_ms() - late_ms)
    with TransactionProducer(store, producer_group=GROUP) as producer:
        producer.send(Message(TOPIC, b"at once", deliver_timestamp=timestamp(right.now_ms())))
    publisher = Publisher(store, clock=late)
    publisher.run_once()
    assert DelayService(store, clock=right).run_once().delivered == 1
    publisher.run_once()

    topic = store.tables.table_at(f"topics/{TOPIC}")
    (shown,) = topic.rows.read(topic.files.all(), ("store_timestamp",))["store_timestamp"]
    schedule = store.tables.table_at(f"topics/{SCHEDULE_TOPIC}")
    (due,) = schedule.rows.read(schedule.files.all(), ("deliver_timestamp",))["deliver_timestamp"]
    assert shown.as_py() >= due.as_py()


# --- from where a pause counts --------------------------------------------------------------------


def test_pause_counts_from_the_commit_not_from_the_settling(world: DelayWorld) -> None:
    world.producer.send(Message(TOPIC, b"later", delay_s=90))
    world.clock.advance(600)
    world.publisher.run_once()

    assert world.after(0) == ["later"]
    assert violations(world) == []


def test_pause_that_began_before_a_broker_came_back_has_its_rest_left(world: DelayWorld) -> None:
    world.producer.send(Message(TOPIC, b"later", delay_s=90))
    world.clock.advance(60)
    world.publisher.run_once()

    assert world.after(29.999) == []
    assert world.after(0.001) == ["later"]


@pytest.mark.parametrize("ahead_s", [-HOUR_S, 0.0, HOUR_S])
def test_pause_counts_from_the_time_at_which_the_store_received_the_commit(
    tmp_path: Path, ahead_s: float
) -> None:
    store = fresh_store(tmp_path / "store")
    clock = WrongClock(ahead_s)
    with TransactionProducer(store, producer_group=GROUP, clock=clock) as producer:
        producer.send(Message(TOPIC, b"later", delay_s=60))
    op = store.tables.op_log().table
    path = commit_path(op.version)
    Publisher(store).run_once()

    schedule = store.tables.table_at(f"topics/{SCHEDULE_TOPIC}")
    (due,) = schedule.rows.read(schedule.files.all(), ("deliver_timestamp",))["deliver_timestamp"]
    assert milliseconds(due.as_py()) == op.folder.written_ms([path])[path] + 60_000
    assert [one.invariant for one in verify(store.location).results if one.violation_count] == []
