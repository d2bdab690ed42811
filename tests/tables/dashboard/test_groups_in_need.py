"""A group that cannot be read, and one whose handler hangs, are what the page begins with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.consumer_world import BILLING
from tests.kit.dashboard_world import DashboardWorld
from tests.kit.delay_world import TOPIC
from txmq.consumer.send_back import SendBack
from txmq.message.received import ReceivedMessage


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DashboardWorld]:
    made = DashboardWorld(tmp_path, queues=2, consumer_lease_s=600.0)
    yield made
    made.close()


def test_a_group_that_cannot_be_read_is_named_with_its_problem(world: DashboardWorld) -> None:
    world.send_to(0, "a")
    with world.consumer() as member:
        member.poll(1, 0)
    log = Path(world.store.location, "state", f"group_{BILLING}", "_delta_log")
    max(log.glob("*.json")).write_bytes(b"")
    world.count()

    assert f"txmq groups delete {world.store.location} {BILLING}" in world.page("/").text
    for address in ("/groups", f"/groups/{BILLING}"):
        page = world.page(address)
        assert page.status == 200
        assert f"Group {BILLING} cannot be read" in page.words
        assert "is empty" in page.words


def test_a_queue_that_a_member_holds_and_does_not_read_stands_still(world: DashboardWorld) -> None:
    world.send_to(0, "a", "b")
    world.consumer().poll(1, 0)
    world.count()
    assert "still" not in world.page("/").words
    world.clock.advance(301)
    world.count()

    page = world.page("/")
    assert f"1 queue of {BILLING} stands still" in page.words
    assert "TxmqGroupFallsBehind" in page.words


def test_what_failed_and_waits_for_its_next_try_is_counted(world: DashboardWorld) -> None:
    def fail(_: ReceivedMessage) -> None:
        raise ValueError

    world.send_to(1, "a", "b")
    with world.consumer(sends_back=SendBack(world.store, BILLING, world.clock)) as member:
        member.run_once(fail)
    world.publisher.run_once()
    world.count()

    assert "Failed, wait for the next try 2 messages" in world.page(f"/groups/{BILLING}").words
    assert TOPIC in world.page(f"/groups/{BILLING}").words
