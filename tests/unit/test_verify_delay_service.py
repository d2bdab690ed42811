"""What producer, publisher, delay service and retention really write is clean."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.delayed import RealWorld
from txmq.message import Message
from txmq.verify import VerifyReport, verify


@pytest.fixture
def world(tmp_path: Path) -> RealWorld:
    return RealWorld(str(tmp_path / "store"), time.time_ns() // 1_000_000)


def assert_clean(world: RealWorld, *, drained: bool = True) -> VerifyReport:
    report = verify(world.store.location, drained=drained)
    assert [one for one in report.results if one.violation_count] == []
    return report


def test_all_kinds_of_messages_are_clean_before_and_after_their_time(world: RealWorld) -> None:
    world.send_all_kinds()
    assert_clean(world, drained=False)

    world.publish()
    counts = assert_clean(world).counts
    assert (counts["scheduled"], counts["delivered"], counts["recalled"]) == (5, 0, 1)

    world.later(3_600)
    report = assert_clean(world)
    assert (report.counts["scheduled"], report.counts["delivered"]) == (1, 4)
    assert report.lateness.delivered == 4


def test_a_pause_that_is_longer_than_retention_keeps_its_message(world: RealWorld) -> None:
    in_30_days = datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC) + timedelta(days=30)
    world.producer.send(Message("orders", b"far", deliver_timestamp=in_30_days))
    world.producer.send(Message("orders", b"now"))
    world.publish()
    world.later(6 * 86_400)
    world.retain()
    counts = assert_clean(world).counts
    assert (counts["known_by_schedule_alone"], counts["scheduled"]) == (1, 1)

    world.later(25 * 86_400)

    assert assert_clean(world).counts["delivered"] == 1
