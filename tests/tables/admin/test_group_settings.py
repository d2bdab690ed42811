"""Settings that a group keeps: checked, obeyed by members that join, told where they are not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kit.consumer_world import BILLING, ConsumerWorld, bodies, fail
from tests.kit.delay_world import TOPIC
from txmq import AsyncPullConsumer, Broker, SimpleConsumer, Store
from txmq.consumer import pull
from txmq.consumer.group import group_in, settings_in
from txmq.consumer.handlers import ConsumeStatus
from txmq.consumer.send_back import SendBack
from txmq.errors import ConfigError, ConsumerGroupConflictError, ConsumerGroupInUseError
from txmq.ops.admin.dead_letters import DeadLetters
from txmq.ops.admin.groups import ConsumerGroups, GroupAlteration
from txmq.store.config import ConsumeSettings

SHOWN = {"max_reconsume_times": 3, "consume_message_orderly": True, "invisible_duration_s": 2.5}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path, queues=1, consumer_groups={BILLING: {"pull_batch_size": 7}})
    yield made
    made.close()


def alter(world: ConsumerWorld, changes: Mapping[str, object], **more: Any) -> GroupAlteration:
    groups = ConsumerGroups(world.store, clock=world.clock)
    return groups.alter(BILLING, changes, **{"apply": True, **more})


def settings(world: ConsumerWorld) -> ConsumeSettings:
    return settings_in(world.store, BILLING)


def test_settings_are_kept_and_come_before_those_of_files(world: ConsumerWorld) -> None:
    result = alter(world, {**SHOWN, "pull_batch_size": 9})

    assert (result.before, result.is_written) == ({}, True)
    assert result.after == {**SHOWN, "pull_batch_size": 9}
    now = settings(world)
    assert (now.max_reconsume_times, now.consume_message_orderly) == (3, True)
    assert (now.invisible_duration_s, now.pull_batch_size) == (2.5, 9)
    # What nobody set is as the store says.
    assert now.consume_timeout_s == world.store.config.consume_timeout_s


def test_dry_run_writes_nothing_and_checks_all(world: ConsumerWorld) -> None:
    result = alter(world, SHOWN, apply=False)

    assert (result.after, result.is_written) == (SHOWN, False)
    assert not group_in(world.store, BILLING).exists
    with pytest.raises(ConfigError):
        alter(world, {"max_reconsume_times": -1}, apply=False)


def test_setting_that_is_taken_away_is_the_stores_again(world: ConsumerWorld) -> None:
    alter(world, SHOWN)
    result = alter(world, {"max_reconsume_times": None, "consume_message_orderly": None})

    assert result.after == {"invisible_duration_s": 2.5}
    assert settings(world).max_reconsume_times == world.store.config.max_reconsume_times


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_reconsume_time": 3}, {"transaction_check_max": 3}, {"consume_threads": 0},
        {"pull_batch_size": "many"}, {"consume_timeout_s": float("nan")}, {"nothing": None},
        {"consume_message_orderly": 1}, {5: 5},
    ],
)  # fmt: skip
def test_wrong_settings_are_refused_before_anything_is_written(
    world: ConsumerWorld, wrong: dict[str, object]
) -> None:
    with pytest.raises(ConfigError):
        alter(world, wrong)
    assert not group_in(world.store, BILLING).exists


def test_member_that_joins_follows_them(world: ConsumerWorld) -> None:
    world.send_to(0, "bad", "good")
    alter(world, {"max_reconsume_times": 0})
    consumer = world.consumer(sends_back=SendBack(world.store, BILLING, world.clock))
    consumer.run_once(fail)
    world.publisher.run_once()

    assert len(DeadLetters(world.store, BILLING, clock=world.clock).all()) == 2


def test_group_is_told_to_keep_order(world: ConsumerWorld) -> None:
    world.send_to(0, "bad", "good")
    alter(world, {"consume_message_orderly": True})
    given: list[bytes] = []

    def handle(message: Any) -> ConsumeStatus:
        given.append(message.body)
        return ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    world.consumer().run_once(handle)

    assert given == [b"bad"]


def test_simple_consumer_follows_them(world: ConsumerWorld) -> None:
    world.send_to(0, "a")
    alter(world, {"invisible_duration_s": 0.5})
    with SimpleConsumer(
        world.store, consumer_group=BILLING, topics=TOPIC, clock=world.clock
    ) as consumer:
        assert bodies(consumer.receive(timeout_s=0)) == ["a"]
        world.clock.advance(0.6)
        assert bodies(consumer.receive(timeout_s=0)) == ["a"]


def test_handler_on_asyncio_follows_them(world: ConsumerWorld) -> None:
    world.send_to(0, "slow")
    alter(world, {"consume_timeout_s": 0.05})

    async def story() -> None:
        async with AsyncPullConsumer(
            world.store, consumer_group=BILLING, topics=TOPIC, sends_back=world.sent_back
        ) as consumer:
            result = await consumer.run_once(lambda _: asyncio.sleep(60))
            assert result.sent_back == 1

    asyncio.run(story())


def test_order_is_not_changed_under_members_that_live(world: ConsumerWorld) -> None:
    consumer = world.consumer()
    alter(world, {"max_reconsume_times": 5})
    with pytest.raises(ConsumerGroupInUseError):
        alter(world, {"consume_message_orderly": True})
    consumer.close()
    alter(world, {"consume_message_orderly": True})

    assert settings(world).max_reconsume_times == 5
    assert settings(world).consume_message_orderly


def test_members_and_offsets_are_as_before(world: ConsumerWorld) -> None:
    world.send_to(0, "a", "b")
    consumer = world.consumer()
    consumer.poll(1, 0)
    consumer.commit()
    before = group_in(world.store, BILLING).read()
    alter(world, {"max_reconsume_times": 5})

    assert replace(group_in(world.store, BILLING).read(), own={}) == before
    assert bodies(consumer.poll(8, 0)) == ["b"]


def test_list_shows_them_and_deletion_forgets_them(world: ConsumerWorld) -> None:
    world.consumer().close()
    alter(world, SHOWN)
    groups = ConsumerGroups(world.store, clock=world.clock)
    (summary,) = groups.list()
    assert summary.own == SHOWN

    groups.delete(BILLING, apply=True)

    assert settings(world) == world.store.config.of_consumer_group(BILLING)


@pytest.mark.parametrize(
    "foreign",
    [
        {"pull_batch_size": -3}, {"consume_timeout_s": "soon"}, {"from_the_future": {"a": [1]}},
        {"consume_threads": 5_000}, {"max_reconsume_times": 3.5},
    ],
)  # fmt: skip
def test_what_this_version_cannot_use_is_left_out_and_kept(
    world: ConsumerWorld, foreign: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    world.consumer().close()
    group = group_in(world.store, BILLING)
    own = {**foreign, "suspend_current_queue_time_s": 7.0}
    group.change(lambda state: replace(state, own=own), 0)

    expected = replace(
        world.store.config.of_consumer_group(BILLING), suspend_current_queue_time_s=7.0
    )
    assert settings(world) == expected
    assert caplog.records
    world.consumer().close()
    assert group_in(world.store, BILLING).read().own == own
    (name,) = foreign
    alter(world, {"invisible_duration_s": 9})
    assert group_in(world.store, BILLING).read().own[name] == foreign[name]


def test_broker_starts_though_a_group_of_its_settings_cannot_be_read(world: ConsumerWorld) -> None:
    world.consumer().close()
    log = Path(world.store.location, "state", f"group_{BILLING}", "_delta_log")
    max(log.glob("*.json")).write_bytes(b"")
    own = {BILLING: {"max_reconsume_times": 2}}
    store = world.store.with_settings(world.store.config.replace(consumer_groups=own))

    with Broker(store).start() as running:
        assert running.is_alive


def test_order_is_not_changed_under_members_whatever_the_operator_has_in_a_file(
    world: ConsumerWorld,
) -> None:
    world.consumer()
    own = {BILLING: {"consume_message_orderly": True}}
    store = world.store.with_settings(world.store.config.replace(consumer_groups=own))
    groups = ConsumerGroups(store, clock=world.clock)
    for apply in (False, True):
        with pytest.raises(ConsumerGroupInUseError):
            groups.alter(BILLING, {"consume_message_orderly": True}, apply=apply)


def test_member_that_knows_an_older_order_does_not_join(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = settings(world)
    alter(world, {"consume_message_orderly": True})
    with monkeypatch.context() as patch:
        patch.setattr(pull, "settings_in", lambda *_: old)
        with pytest.raises(ConsumerGroupConflictError, match="in order"):
            world.consumer()
    world.consumer()


def test_group_that_nobody_has_joined_is_listed_and_deleted(world: ConsumerWorld) -> None:
    alter(world, SHOWN)
    groups = ConsumerGroups(world.store, clock=world.clock)
    (summary,) = groups.list()
    assert (summary.group, summary.own, summary.lag) == (BILLING, SHOWN, 0)

    deletion = groups.delete(BILLING, apply=True)

    assert deletion.own == SHOWN
    assert groups.list() == []


@pytest.mark.parametrize("wrong", [None, ["max_reconsume_times"], "max_reconsume_times=3"])
def test_changes_that_are_no_mapping_are_refused(world: ConsumerWorld, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="changes"):
        alter(world, wrong)


def test_broker_tells_of_settings_that_members_do_not_read(
    world: ConsumerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    own = {BILLING: {"pull_batch_size": 7, "max_reconsume_times": 2}}
    store = world.store.with_settings(world.store.config.replace(consumer_groups=own))
    with caplog.at_level(logging.WARNING, logger="txmq.ops.broker"):
        Broker(store).start().stop()
    (record,) = caplog.records
    assert f"txmq groups alter LOCATION {BILLING} --set max_reconsume_times=2 --apply" in (
        record.getMessage()
    )

    caplog.clear()
    alter(world, {"max_reconsume_times": 2})
    with caplog.at_level(logging.WARNING, logger="txmq.ops.broker"):
        Broker(store).start().stop()
        Broker(Store.open(world.store.location)).start().stop()
    assert caplog.records == []
