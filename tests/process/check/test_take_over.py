"""A check that dies with the lease in its hand: another takes over, and little is asked twice."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.kit.check_world import GROUP, UNKNOWN, CheckWorld, JournalListener, wait_until
from tests.kit.forked import forked
from tests.process.check.check_process import main
from txmq.check.recheck import RecheckJob
from txmq.ground.fail_points import FailPoint
from txmq.message.lifecycle import ClaimKind

CHECK_MAX = 3
ASKED_AND_NOT_WRITTEN = FailPoint.CHECKS_ANSWERED


@pytest.fixture
def world(tmp_path: Path) -> CheckWorld:
    return CheckWorld(
        tmp_path,
        transaction_check_max=CHECK_MAX,
        transaction_check_interval_s=0.01,
        listener_timeout_s=0.9,
        check_lease_s=1.0,
    )


def killed_check(world: CheckWorld, journal: Path, point: FailPoint) -> int:
    """A recheck of a process that gets SIGKILL at a point of its first round."""
    return forked(main, world.store.location, str(journal), faults=f"{point}=kill@1").wait(120)


def check_until_discarded(world: CheckWorld, journal: Path, ids: list[str]) -> None:
    """Two rechecks beside each other, until nobody is asked any more."""
    listener = JournalListener(journal, lambda _: UNKNOWN)

    def discarded() -> int:
        return len({row["transaction_id"] for row in world.claims(ClaimKind.DISCARD)})

    def recheck() -> bool:
        RecheckJob(world.store, listeners={GROUP: listener}).run_once()
        return discarded() == len(ids)

    rival = threading.Thread(target=lambda: wait_until(recheck, "discards"))
    rival.start()
    wait_until(recheck, "discards")
    rival.join()


def test_each_take_over_asks_at_most_once_more_than_the_maximum(
    world: CheckWorld, tmp_path: Path
) -> None:
    kills = 2
    ids, journal = world.prepare(20, immunity_s=0.001), tmp_path / "asked"
    lease = world.store.tables.register("check_lease")
    for _ in range(kills):
        assert killed_check(world, journal, ASKED_AND_NOT_WRITTEN) == -signal.SIGKILL
        assert lease.read().value["holder"] is not None

    check_until_discarded(world, journal, ids)

    asked = Counter(JournalListener(journal, lambda _: UNKNOWN).asked())
    assert asked == dict.fromkeys(ids, CHECK_MAX + kills)
    counted = [row["check_times"] for row in world.claims(ClaimKind.UNKNOWN)]
    assert Counter(counted) == dict.fromkeys(range(1, CHECK_MAX + 1), len(ids))


def test_lease_that_died_before_anybody_was_asked_costs_no_question(
    world: CheckWorld, tmp_path: Path
) -> None:
    ids, journal = world.prepare(5, immunity_s=0.001), tmp_path / "asked"
    assert killed_check(world, journal, FailPoint.LEASE_TAKEN) == -signal.SIGKILL

    check_until_discarded(world, journal, ids)

    asked = Counter(JournalListener(journal, lambda _: UNKNOWN).asked())
    assert asked == dict.fromkeys(ids, CHECK_MAX)
