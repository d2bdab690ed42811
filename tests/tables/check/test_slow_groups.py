"""A listener that is slow or hangs makes nobody wait but its own group, also across services."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.check_world import COMMIT, CheckWorld
from txmq.check.claims import RoundResult
from txmq.check.recheck import RecheckJob
from txmq.check.round import CheckLease, CheckRound
from txmq.check.standing import DueRow, due_table
from txmq.listeners.protocol import CheckListener
from txmq.message.lifecycle import ClaimKind, ClaimSource

FAST, SLOW = "fast", "slow"


class World(CheckWorld):
    """A store, and a listener that answers only when it is released."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, listener_timeout_s=20.0, check_lease_s=60.0)
        self.released = threading.Event()
        self.fast = self.listener(COMMIT)
        self.slow = self.listener(lambda _: self.released.wait(30.0) and COMMIT)
        self.rounds: list[CheckRound] = []

    def service(self, **listeners: CheckListener) -> CheckRound:
        self.rounds.append(CheckRound(self.store, listeners=listeners, clock=self.clock))
        return self.rounds[-1]

    def round(self, service: CheckRound, **ids: list[str]) -> RoundResult:
        rows = [DueRow(key, group, self.clock.now_ms()) for group, of in ids.items() for key in of]
        result = service.run(
            due_table(rows), clock_ms=self.clock.now_ms(), source=ClaimSource.CHECK, patience_s=0.0
        )
        assert result is not None
        return result

    def committed(self) -> set[str]:
        return {row["transaction_id"] for row in self.claims(ClaimKind.COMMIT)}

    def wait_for_fast(self, service: CheckRound, slow: list[str], fast: list[str]) -> None:
        """One round with both; the fast answers may need some later looks."""
        self.round(service, slow=slow, fast=fast)
        while not set(fast) <= self.committed():
            self.round(service)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.released.set()
    for service in made.rounds:
        service.close()


def test_other_groups_have_their_ends_while_one_listener_hangs(world: World) -> None:
    service = world.service(fast=world.fast, slow=world.slow)
    slow, fast = world.prepare(2, group=SLOW), world.prepare(3, group=FAST)
    later = world.prepare(1, group=FAST)

    world.wait_for_fast(service, slow, fast)
    world.wait_for_fast(service, slow, later)

    assert world.committed() == {*fast, *later}
    assert service.is_asking


def test_slow_answers_count_once_they_are_there(world: World) -> None:
    service = world.service(fast=world.fast, slow=world.slow)
    slow, fast = world.prepare(2, group=SLOW), world.prepare(1, group=FAST)
    world.wait_for_fast(service, slow, fast)

    world.released.set()
    result = service.finish()

    assert result == RoundResult(committed=2)
    assert world.committed() == {*slow, *fast}
    assert not service.is_asking


def test_group_that_is_asked_is_asked_by_nobody_else(world: World) -> None:
    first = world.service(fast=world.fast, slow=world.slow)
    other_slow = world.listener(COMMIT)
    second = world.service(fast=world.fast, slow=other_slow)
    slow, fast = world.prepare(1, group=SLOW), world.prepare(1, group=FAST)
    world.wait_for_fast(first, slow, fast)

    again = world.round(first, slow=slow)
    of_other = world.round(second, slow=slow, fast=world.prepare(1, group=FAST))

    assert again == RoundResult(dropped=1)
    assert of_other.dropped == 1
    assert other_slow.asked() == []
    assert len(world.slow.asked()) == 1


def test_group_is_free_for_others_when_its_answers_are_durable(world: World) -> None:
    first = world.service(fast=world.fast, slow=world.slow)
    second = world.service(slow=world.listener(COMMIT))
    slow, fast = world.prepare(1, group=SLOW), world.prepare(1, group=FAST)
    world.wait_for_fast(first, slow, fast)

    world.released.set()
    first.finish()
    (late,) = world.prepare(1, group=SLOW)
    while late not in world.committed():
        world.round(second, slow=[late])

    assert world.committed() == {*slow, *fast, late}


NAMED_MS = 1_000_000
A_LEASE_MS = 30_000


def name_and_die(world: World, now_ms: int) -> None:
    """As a service that is killed while a slow listener has time left."""
    dead = CheckLease(world.store.tables.register("check_lease"), "dead", 30.0)
    assert dead.take(now_ms)
    dead.give_back(now_ms, [SLOW])


def observer_of(world: World, name: str) -> CheckLease:
    return CheckLease(world.store.tables.register("check_lease"), name, 30.0)


def busy(observer: CheckLease, now_ms: int) -> Any:
    assert observer.take(now_ms)
    groups = observer.busy_groups(now_ms)
    observer.give_back(now_ms)
    return groups


def test_group_of_a_service_that_died_is_free_after_a_lease(world: World) -> None:
    name_and_die(world, NAMED_MS)
    observer = observer_of(world, "observer")

    assert busy(observer, NAMED_MS) == {SLOW}
    assert busy(observer, NAMED_MS + A_LEASE_MS - 1) == {SLOW}
    assert busy(observer, NAMED_MS + A_LEASE_MS) == frozenset()
    assert "asking" not in world.store.tables.register("check_lease").read().value


def test_who_looks_once_knows_how_long_a_group_is_asked(world: World) -> None:
    """A scheduled recheck is a new observer each time, and it must not begin to wait anew."""
    name_and_die(world, NAMED_MS)

    assert busy(observer_of(world, "first"), NAMED_MS + 1) == {SLOW}
    assert busy(observer_of(world, "second"), NAMED_MS + A_LEASE_MS - 1) == {SLOW}
    assert busy(observer_of(world, "third"), NAMED_MS + A_LEASE_MS) == frozenset()


def test_group_of_a_service_whose_clock_was_ahead_is_free_by_the_observers_clock(
    world: World,
) -> None:
    name_and_die(world, NAMED_MS + 3_600_000)
    observer = observer_of(world, "observer")

    assert busy(observer, NAMED_MS) == {SLOW}
    assert busy(observer, NAMED_MS + A_LEASE_MS - 1) == {SLOW}
    assert busy(observer, NAMED_MS + A_LEASE_MS) == frozenset()


@pytest.mark.parametrize("token", ["dead/1", "dead/1/", "dead/1/x", "dead", f"dead/1/{10**30}"])
def test_group_that_was_named_without_a_time_counts_from_the_last_change(
    world: World, token: str
) -> None:
    register = world.store.tables.register("check_lease")
    value = {"holder": None, "renewed_ms": NAMED_MS, "asking": {SLOW: token}}
    register.swap(register.read(), value, NAMED_MS)

    assert busy(observer_of(world, "first"), NAMED_MS + A_LEASE_MS) == frozenset()


def test_scheduled_recheck_asks_about_a_group_whose_service_died(world: World) -> None:
    slow = world.prepare(2, group=SLOW)
    world.clock.advance(60)
    dead = CheckLease(world.store.tables.register("check_lease"), "dead", 60.0)
    assert dead.take(world.clock.now_ms())
    dead.give_back(world.clock.now_ms(), [SLOW])
    world.released.set()
    results = []

    for _ in range(4):
        job = RecheckJob(world.store, listeners={SLOW: world.slow}, clock=world.clock)
        results.append(job.run_once().checks.committed)
        world.clock.advance(30)

    assert results == [0, 0, 2, 0]
    assert world.committed() == {*slow}


def test_recheck_for_schedulers_waits_for_slow_groups_too(world: World) -> None:
    slow, fast = world.prepare(1, group=SLOW), world.prepare(1, group=FAST)
    world.clock.advance(60)
    slow_listener = world.listener(lambda _: COMMIT if fast[0] in world.committed() else wait())

    def wait() -> Any:
        """Not before the other group has its end, which is there while this one is asked."""
        while fast[0] not in world.committed():
            world.released.wait(0.01)
        return COMMIT

    listeners = {FAST: world.fast, SLOW: slow_listener}
    result = RecheckJob(world.store, listeners=listeners, clock=world.clock).run_once()

    assert result.checks.committed == 2
    assert world.committed() == {*slow, *fast}
    assert result.open_transactions == 0
