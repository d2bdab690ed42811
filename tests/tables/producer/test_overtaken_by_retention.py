"""Processes that slept, or whose clock is behind, and come back after retention."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.kit.reading import bodies
from txmq.errors import InvalidMessageError, TransactionForgottenError
from txmq.ground.fail_points import FailPoint, arm
from txmq.maintenance.service import Maintenance
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.testing import ManualClock, WrongClock

GROUP, TOPIC = "orders", "order-paid"
HOUR_S, DAYS_S = 3_600.0, 8 * 86_400.0


class World:
    """A store whose retention has come and gone while a process slept."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
        self.store = Store.create(folder / "store", Config(file_reserved_time_h=72.0))
        self.when = datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC)

    def keyed(self, clock: ManualClock | WrongClock) -> None:
        with TransactionProducer(self.store, producer_group=GROUP, clock=clock) as producer:
            call = producer.begin_transaction(idempotency_key="k", key_timestamp=self.when)
            call.send(Message(TOPIC, b"once"))
            call.prepare()
            call.commit()

    def retention_passes(self) -> None:
        Publisher(self.store, clock=self.clock).run_once()
        self.clock.advance(DAYS_S)
        assert Maintenance(self.store, clock=self.clock).run_once().retained.half_days

    def shown(self) -> list[bytes]:
        Publisher(self.store, clock=self.clock).run_once()
        return bodies(self.store, TOPIC)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@contextmanager
def asleep_at(point: FailPoint, meanwhile: Callable[[], object]) -> Iterator[None]:
    """Do something else once, while the process under test stands at this point."""
    waiting = [meanwhile]

    def reached(passed: FailPoint) -> None:
        if passed is point and waiting:
            waiting.pop()()

    disarm = arm(reached)
    try:
        yield
    finally:
        disarm()
    assert not waiting


def test_key_of_a_process_whose_clock_is_behind_shows_nothing_twice(world: World) -> None:
    world.keyed(world.clock)
    world.retention_passes()

    with pytest.raises(InvalidMessageError, match="day that retention has taken"):
        world.keyed(WrongClock(-DAYS_S, of_store=world.clock))

    assert world.shown() == [b"once"]


def test_key_of_a_process_that_slept_before_its_append_shows_nothing_twice(world: World) -> None:
    def work_of_another() -> None:
        world.keyed(world.clock)
        world.retention_passes()

    with (
        asleep_at(FailPoint.HALF_READY, work_of_another),
        pytest.raises(InvalidMessageError, match="day that retention has taken"),
    ):
        world.keyed(world.clock)

    assert world.shown() == [b"once"]


def test_commit_of_a_process_that_slept_before_it_learns_that_another_end_is_forgotten(
    world: World,
) -> None:
    with TransactionProducer(world.store, producer_group=GROUP, clock=world.clock) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message(TOPIC, b"rolled back"))
        transaction.prepare()

        def end_elsewhere() -> None:
            rolled_back(world, transaction)
            world.retention_passes()

        with (
            asleep_at(FailPoint.END_READY, end_elsewhere),
            pytest.raises(TransactionForgottenError),
        ):
            transaction.commit()

    Publisher(world.store, clock=world.clock).run_once()
    assert world.store.topics() == []


def rolled_back(world: World, transaction: Transaction) -> None:
    with TransactionProducer(world.store, producer_group=GROUP, clock=world.clock) as other:
        other.end_transaction(transaction.id, LocalTransactionState.ROLLBACK)
