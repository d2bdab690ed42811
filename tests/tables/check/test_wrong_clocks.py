"""A transaction is asked about, discarded or rolled back by the store's time alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.check_world import GROUP, ROLLBACK, CheckWorld
from txmq.check.recheck import RecheckJob
from txmq.check.service import CheckService
from txmq.message.lifecycle import ClaimKind
from txmq.ops.broker import Broker
from txmq.store.store_clock import StoreClock
from txmq.testing import WrongClock

DAY_S = 86_400.0


@pytest.fixture
def world(tmp_path: Path) -> CheckWorld:
    return CheckWorld(tmp_path)


@pytest.mark.parametrize("service", [RecheckJob, CheckService])
def test_service_whose_clock_is_ahead_asks_nobody_before_the_time(
    world: CheckWorld, service: type[RecheckJob | CheckService]
) -> None:
    listener = world.listener(ROLLBACK)
    world.prepare(immunity_s=3600.0)
    clock = WrongClock(DAY_S, of_store=world.clock)
    running = service(world.store, listeners={GROUP: listener}, clock=clock)
    running.run_once()
    assert listener.asked() == []

    world.clock.advance(3700)
    running.run_once()
    assert len(listener.asked()) == 1


def test_service_whose_clock_is_behind_asks_in_time(world: CheckWorld) -> None:
    listener = world.listener(ROLLBACK)
    world.prepare(immunity_s=60.0)
    world.clock.advance(70)
    clock = WrongClock(-DAY_S, of_store=world.clock)
    RecheckJob(world.store, listeners={GROUP: listener}, clock=clock).run_once()

    assert len(listener.asked()) == 1


def test_time_of_the_machine_counts_no_further_than_the_stores(world: CheckWorld) -> None:
    """The join hands over what its own machine's clock shows."""
    clock = WrongClock(DAY_S, of_store=world.clock)

    assert StoreClock(world.store, clock).not_beyond(clock.now_ms()) == world.clock.now_ms()


def test_broker_whose_clock_is_ahead_takes_no_decision_for_good(world: CheckWorld) -> None:
    listener = world.listener(ROLLBACK)
    world.prepare(immunity_s=3600.0)
    clock = WrongClock(30 * DAY_S, of_store=world.clock)
    result = Broker(world.store, listeners={GROUP: listener}, clock=clock).run_once()

    assert listener.asked() == []
    assert result.maintained.retained.expired == 0
    assert world.claims(ClaimKind.EXPIRE) == []
