"""Members of a group whose clocks differ: queues go to those that live, and only to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.consumer_world import (
    BILLING,
    QUEUES,
    ConsumerWorld,
    are_in_order,
    drained,
    make_old,
    offsets_of,
    wake,
)
from tests.kit.delay_world import TOPIC
from txmq.consumer.group import group_in, state_of, value_of
from txmq.consumer.pull import PullConsumer
from txmq.delta.folder import TableFolder
from txmq.errors import ConsumerGroupConflictError
from txmq.message.received import ReceivedMessage
from txmq.testing import ManualClock

HOUR_S = 3600


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path)
    yield made
    made.close()


def clock_that_is(world: ConsumerWorld, ahead_s: float) -> ManualClock:
    return ManualClock(world.clock.now_ms() + round(ahead_s * 1000))


def lease_s(world: ConsumerWorld) -> float:
    return world.store.config.consumer_lease_s


def polled(consumer: PullConsumer) -> list[ReceivedMessage]:
    wake(consumer)
    return drained(consumer)


def test_queues_of_a_member_that_died_with_its_clock_ahead_are_free_after_a_lease(
    world: ConsumerWorld,
) -> None:
    world.fill(2)
    dead = world.consumer(clock=clock_that_is(world, HOUR_S))
    handed = dead.poll(3, 0)
    other = world.consumer()
    assert drained(other) == []

    world.clock.advance(lease_s(world) + 0.1)

    assert len(handed) == 3
    assert len(polled(other)) == 2 * QUEUES
    other.commit()
    assert dead.commit().offsets == {}


@pytest.mark.parametrize("ahead_s", [-HOUR_S, HOUR_S])
def test_members_whose_clocks_differ_by_an_hour_lose_and_double_nothing(
    world: ConsumerWorld, ahead_s: float
) -> None:
    other_clock = clock_that_is(world, ahead_s)
    members = [world.consumer(), world.consumer(clock=other_clock)]
    handed: list[ReceivedMessage] = []
    for number in range(12):
        world.send_to(number % QUEUES, f"m{number}")
        for clock in (world.clock, other_clock):
            clock.advance(lease_s(world) / 4)
        member = members[number % 2]
        of_member = polled(member)
        result = member.commit()
        assert not result.refused
        handed += of_member
    for member in (*members, *members):
        handed += polled(member)
        assert not member.commit().refused

    assert len(handed) == 12
    assert len({message.message_id for message in handed}) == len(handed)
    assert sum(offsets_of(world).values()) == 12
    assert are_in_order(sorted(handed, key=lambda one: one.queue_offset))
    assert all(member.assignment for member in members)


def test_process_that_lives_for_less_than_a_lease_takes_over_from_a_member_that_died(
    world: ConsumerWorld,
) -> None:
    """As `txmq consume --group`, or a job that a scheduler starts again and again."""
    world.fill(2)
    world.consumer(clock=clock_that_is(world, HOUR_S)).poll(3, 0)
    make_old(world, HOUR_S)

    messages = drained(world.consumer())

    assert len(messages) == 2 * QUEUES


def test_short_lives_one_after_the_other_do_not_hide_how_long_a_member_is_silent(
    world: ConsumerWorld,
) -> None:
    world.fill(2)
    dead = world.consumer(member_id="dead").member_id
    make_old(world, lease_s(world) / 2)
    world.consumer().close()
    assert dead in group_in(world.store, BILLING).read().members
    make_old(world, lease_s(world) / 2 + 1)

    assert len(drained(world.consumer())) == 2 * QUEUES


def test_member_of_the_same_name_goes_on_after_a_crash_of_long_ago(world: ConsumerWorld) -> None:
    world.fill(1)
    world.consumer(member_id="blue", clock=clock_that_is(world, HOUR_S))
    make_old(world, HOUR_S)

    assert len(drained(world.consumer(member_id="blue"))) == QUEUES


def test_other_filter_is_taken_once_the_members_before_are_silent_for_a_lease(
    world: ConsumerWorld,
) -> None:
    world.fill(1)
    world.consumer(clock=clock_that_is(world, HOUR_S))
    with pytest.raises(ConsumerGroupConflictError):
        world.consumer({TOPIC: "eu"})
    make_old(world, lease_s(world))

    assert drained(world.consumer({TOPIC: "eu"})) == []
    assert list(group_in(world.store, BILLING).read().settings.subscription.values()) == ["eu"]


def test_member_that_renews_is_not_taken_for_silent_by_one_that_joins(
    world: ConsumerWorld,
) -> None:
    world.fill(1)
    first = world.consumer()
    assert len(drained(first)) == QUEUES
    make_old(world, HOUR_S)
    first.commit()

    second = world.consumer()

    assert first.assignment
    assert drained(second) == []


def test_member_of_a_storage_that_keeps_whole_seconds_is_silent_for_as_long_as_is_certain(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill(1)
    world.consumer(member_id="lives")
    make_old(world, lease_s(world) + 0.5)
    with monkeypatch.context() as whole_seconds:
        whole_seconds.setattr(TableFolder, "rounding_ms", 999)
        world.consumer(member_id="first").close()
    assert "lives" in group_in(world.store, BILLING).read().members

    world.consumer(member_id="second").close()
    assert "lives" not in group_in(world.store, BILLING).read().members


def test_value_of_a_group_is_read_by_earlier_versions_and_theirs_is_read_too(
    world: ConsumerWorld,
) -> None:
    """An earlier version reads two numbers for each member, and drops what it does not know."""
    world.consumer(member_id="new")
    value = value_of(group_in(world.store, BILLING).read())
    ((epoch, lease_end_ms),) = value["members"].values()
    assert (epoch, lease_end_ms > world.clock.now_ms()) == (1, True)

    of_before = {key: part for key, part in value.items() if key not in ("leases", "seen")}

    assert state_of(of_before).members["new"].lease_end_ms == lease_end_ms
