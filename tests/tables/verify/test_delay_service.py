"""What producer, publisher, delay service and retention really write is clean."""

from __future__ import annotations

import pytest

from tests.kit.delay_world import DelayWorld
from tests.kit.delayed import send_all_kinds
from txmq.maintenance.retention import Retention
from txmq.verify import VerifyReport, verify

DAY_S = 86_400


@pytest.fixture
def world(delay_world: DelayWorld) -> DelayWorld:
    return delay_world


def assert_clean(world: DelayWorld, *, drained: bool = True) -> VerifyReport:
    report = verify(world.store.location, drained=drained)
    assert [one for one in report.results if one.violation_count] == []
    return report


def retain(world: DelayWorld) -> None:
    """Day after day is taken, each log after the one before it."""
    for _ in range(3):
        Retention(world.store, world.clock).run()


def test_all_kinds_of_messages_are_clean_before_and_after_their_time(world: DelayWorld) -> None:
    send_all_kinds(world)
    assert_clean(world, drained=False)

    world.publisher.run_once()
    counts = assert_clean(world).counts
    assert (counts["scheduled"], counts["delivered"], counts["recalled"]) == (5, 0, 1)

    world.after(3_600)
    report = assert_clean(world)
    assert (report.counts["scheduled"], report.counts["delivered"]) == (1, 4)
    assert (report.counts["overdue"], report.lateness.delivered) == (0, 4)


def test_a_pause_that_is_longer_than_retention_keeps_its_message(world: DelayWorld) -> None:
    world.send("far", deliver_timestamp=world.in_s(30 * DAY_S))
    world.send("now")
    world.after(6 * DAY_S)
    retain(world)
    counts = assert_clean(world).counts
    assert (counts["known_by_schedule_alone"], counts["scheduled"]) == (1, 1)

    assert world.after(25 * DAY_S) == ["now", "far"]

    assert assert_clean(world).counts["delivered"] == 1


def test_all_that_retention_takes_after_a_month_is_history(world: DelayWorld) -> None:
    send_all_kinds(world)
    world.publisher.run_once()
    for _ in range(4):
        world.after(10 * DAY_S)
        retain(world)
        assert_clean(world)

    counts = assert_clean(world).counts
    assert (counts["transactions"], counts["forgotten_messages"]) == (0, 12)
