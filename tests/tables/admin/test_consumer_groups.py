"""What operators see of consumer groups, and how they let them go on elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.builders import table_versions
from tests.kit.consumer_world import BILLING, QUEUES, ConsumerWorld, bodies, drained, offsets_of
from tests.kit.delay_world import TOPIC
from txmq.consumer.group_rules import ConsumeMode, TopicQueue
from txmq.consumer.lag import ConsumerLag, lag_of_group
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.errors import (
    ConfigError,
    ConsumerGroupInUseError,
    ConsumerGroupNotFoundError,
    InvalidNameError,
    OffsetOutOfRangeError,
    TxmqError,
)
from txmq.maintenance.service import Maintenance
from txmq.ops.admin.groups import ConsumerGroups

FIRST, LAST = ConsumeFromWhere.FIRST_OFFSET, ConsumeFromWhere.LAST_OFFSET


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def groups(world: ConsumerWorld) -> ConsumerGroups:
    return ConsumerGroups(world.store, clock=world.clock)


def consumed(world: ConsumerWorld, count: int = 3) -> None:
    """A group that has read everything, and has no member any more."""
    world.fill(count)
    with world.consumer() as consumer:
        drained(consumer)
        consumer.commit()


def test_store_without_consumers_has_no_groups(
    world: ConsumerWorld, groups: ConsumerGroups
) -> None:
    assert groups.list() == []
    assert ConsumerLag(world.store).of_all() == []
    assert lag_of_group(world.store, "nobody") == []


def test_groups_are_listed_with_members_and_lag(
    world: ConsumerWorld, groups: ConsumerGroups
) -> None:
    consumed(world)
    world.send_to(0, "one more")
    living = world.consumer({TOPIC: "eu"}, group="shipping")

    billing, shipping = groups.list()

    assert (billing.group, billing.members, billing.lag) == (BILLING, (), 1)
    assert (shipping.subscription, shipping.lag) == ({TOPIC: "eu"}, 3 * QUEUES + 1)
    assert shipping.members == (living.member_id,)
    assert shipping.to_dict()["mode"] == "CLUSTERING"


def test_lag_of_all_groups_is_what_the_tables_say(world: ConsumerWorld) -> None:
    consumed(world)
    world.send_to(1, "a", "b")
    world.consumer(group="shipping")

    lags = ConsumerLag(world.store, world.clock).of_all()

    by_queue = {(lag.group, lag.topic, lag.queue_id): lag for lag in lags}
    billing = by_queue[BILLING, TOPIC, 1]
    assert (billing.next_offset, billing.end_offset, billing.lag, billing.owner) == (3, 5, 2, None)
    assert by_queue["shipping", TOPIC, 1].lag == 5
    assert by_queue["shipping", TOPIC, 1].owner is not None
    assert sum(lag.lag for lag in lags if lag.group == BILLING) == 2
    assert billing.to_dict()["lag"] == 2


def test_lag_of_a_broadcast_is_that_of_each_member(world: ConsumerWorld) -> None:
    world.fill(1)
    blue = world.consumer(mode=ConsumeMode.BROADCASTING, member_id="blue")
    world.consumer(mode=ConsumeMode.BROADCASTING, member_id="red")
    drained(blue)
    blue.commit()

    lags = blue.lag()

    by_reader = {name: sum(x.lag for x in lags if x.reader == name) for name in ("blue", "red")}
    assert by_reader == {"blue": 0, "red": QUEUES}


@pytest.mark.parametrize(
    ("to", "queue_id", "after"),
    [
        (FIRST, None, {0: 0, 1: 0, 2: 0, 3: 0}),
        (LAST, None, {0: 3, 1: 3, 2: 3, 3: 3}),
        (FIRST, 2, {2: 0}),
        ({0: 1, 3: 2}, None, {0: 1, 3: 2}),
    ],
)
def test_reset_is_shown_first_and_written_when_it_is_asked_for(
    world: ConsumerWorld, groups: ConsumerGroups, to: Any, queue_id: int | None, after: Any
) -> None:
    consumed(world)
    before = table_versions(world.store)

    shown = groups.reset_offsets(BILLING, TOPIC, to, queue_id=queue_id)
    assert table_versions(world.store) == before
    written = groups.reset_offsets(BILLING, TOPIC, to, queue_id=queue_id, apply=True)

    assert shown.after == written.after == after
    assert shown.before == dict.fromkeys(after, 3)
    assert (shown.is_written, written.is_written) == (False, True)
    offsets = offsets_of(world)
    assert {queue: offsets[TopicQueue(TOPIC, queue)] for queue in after} == after
    assert len(drained(world.consumer())) == sum(3 - offset for offset in after.values())


def test_reset_to_a_moment(world: ConsumerWorld, groups: ConsumerGroups) -> None:
    world.send_to(0, "old")
    world.clock.advance(60)
    world.send_to(0, "new")
    with world.consumer() as consumer:
        drained(consumer)
        consumer.commit()

    groups.reset_offsets(
        BILLING, TOPIC, ConsumeFromWhere.TIMESTAMP,
        moment=world.now - timedelta(seconds=30), apply=True,
    )  # fmt: skip

    assert bodies(drained(world.consumer())) == ["new"]


def test_reset_of_a_group_that_lives_is_refused_unless_it_is_forced(
    world: ConsumerWorld, groups: ConsumerGroups
) -> None:
    world.fill(2)
    consumer = world.consumer()
    drained(consumer)
    consumer.commit()

    with pytest.raises(ConsumerGroupInUseError) as refused:
        groups.reset_offsets(BILLING, TOPIC, FIRST, apply=True)
    assert refused.value.members == (consumer.member_id,)
    groups.reset_offsets(BILLING, TOPIC, FIRST, apply=True, force=True)

    assert len(drained(consumer)) == 2 * QUEUES


def test_commit_of_who_did_not_see_a_forced_reset_is_refused(
    world: ConsumerWorld, groups: ConsumerGroups
) -> None:
    world.fill(2)
    consumer = world.consumer()
    drained(consumer)
    groups.reset_offsets(BILLING, TOPIC, FIRST, apply=True, force=True)

    assert len(consumer.commit().refused) == QUEUES
    assert set(offsets_of(world).values()) == {0}


@pytest.mark.parametrize(
    ("group", "topic", "to", "options", "error"),
    [
        ("nobody", TOPIC, FIRST, {}, ConsumerGroupNotFoundError),
        ("../x", TOPIC, FIRST, {}, InvalidNameError),
        (BILLING, "../x", FIRST, {}, InvalidNameError),
        (5, TOPIC, FIRST, {}, InvalidNameError),
        (BILLING, None, FIRST, {}, InvalidNameError),
        (BILLING, "stock", FIRST, {}, ConfigError),
        (BILLING, TOPIC, FIRST, {"queue_id": 99}, ConfigError),
        (BILLING, TOPIC, {9: 0}, {}, ConfigError),
        (BILLING, TOPIC, {0: 99}, {}, OffsetOutOfRangeError),
        (BILLING, TOPIC, "first", {}, ConfigError),
        (BILLING, TOPIC, ConsumeFromWhere.TIMESTAMP, {}, ConfigError),
    ],
)
def test_reset_that_cannot_be_is_refused(  # noqa: PLR0913, PLR0917
    world: ConsumerWorld, groups: ConsumerGroups, group: Any, topic: Any, to: Any,
    options: dict[str, Any], error: type[TxmqError],
) -> None:  # fmt: skip
    consumed(world)
    before = table_versions(world.store)

    with pytest.raises(error):
        groups.reset_offsets(group, topic, to, apply=True, **options)

    assert table_versions(world.store) == before


def test_maintenance_looks_after_the_value_of_a_group(world: ConsumerWorld) -> None:
    consumer = world.consumer()
    for number in range(40):
        world.send_to(0, f"m{number}")
        drained(consumer)
        consumer.commit()
    path = f"state/group_{BILLING}"
    assert path in world.store.tables.table_paths()
    world.clock.advance(24 * 3600)

    result = Maintenance(world.store, clock=world.clock).run_once()

    assert result.failed == {}
    log = Path(world.store.location) / path / "_delta_log"
    assert len(list(log.glob("*.json"))) < 40
    assert offsets_of(world)[TopicQueue(TOPIC, 0)] == 40
