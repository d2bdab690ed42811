"""The consumer that acknowledges each message, for asyncio: what was awaited is durable."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.consumer_world import BILLING, ConsumerWorld, bodies, offsets_of
from tests.kit.delay_world import TOPIC
from tests.kit.reading import commits
from txmq import AsyncSimpleConsumer, SimpleConsumer
from txmq.consumer.group import group_in
from txmq.consumer.group_rules import TopicQueue
from txmq.errors import (
    ClosedError,
    ConfigError,
    InvalidNameError,
    InvalidReceiptError,
    StorageUnavailableError,
)
from txmq.message.received import ReceivedMessage

QUEUE = TopicQueue(TOPIC, 0)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path, queues=1)
    yield made
    made.close()


def opened(world: ConsumerWorld, topics: Any = TOPIC, **options: Any) -> AsyncSimpleConsumer:
    return AsyncSimpleConsumer(
        world.store, consumer_group=BILLING, topics=topics, clock=world.clock,
        sends_back=world.sent_back, **options,
    )  # fmt: skip


def offset(world: ConsumerWorld) -> int:
    return offsets_of(world, BILLING)[QUEUE]


def test_acknowledgement_that_was_awaited_is_durable(world: ConsumerWorld) -> None:
    world.fill(3, queues=1)

    async def story() -> None:
        async with opened(world) as consumer:
            first, second, third = await consumer.receive()
            await first.ack()
            assert offset(world) == 1
            await consumer.ack(second)
            assert offset(world) == 2
            await third.change_invisible_duration(0)
            (again,) = await consumer.receive()
            assert (again.body, again.reconsume_times) == (b"0-2", 1)
            with pytest.raises(InvalidReceiptError):
                await third.ack()

    asyncio.run(story())


def test_acknowledgements_that_wait_together_share_a_commit(world: ConsumerWorld) -> None:
    world.fill(200, queues=1)

    async def story() -> None:
        async with opened(world) as consumer:
            messages = await consumer.receive(200)
            before = commits(world.store, f"state/group_{BILLING}")
            await asyncio.gather(*(message.ack() for message in messages))
            assert commits(world.store, f"state/group_{BILLING}") <= before + 2
            assert offset(world) == 200

    asyncio.run(story())


def test_loop_hands_out_each_message_until_the_consumer_is_closed(world: ConsumerWorld) -> None:
    world.fill(5, queues=1)
    handled: list[str] = []

    async def story() -> None:
        async with opened(world) as consumer:
            async for message in consumer:
                handled.append(message.body.decode())
                await message.ack()
                if len(handled) == 5:
                    await consumer.close()
            with pytest.raises(ClosedError):
                await consumer.receive()
            with pytest.raises(ClosedError):
                await message.ack()

    asyncio.run(story())
    assert handled == [f"0-{n}" for n in range(5)]
    assert offset(world) == 5


def test_loop_leaves_out_what_waited_in_it_past_its_time(world: ConsumerWorld) -> None:
    world.fill(2, queues=1)

    async def story() -> None:
        async with opened(world) as consumer:
            given: list[tuple[bytes, int]] = []
            async for message in consumer:
                given.append((message.body, message.reconsume_times))
                if len(given) == 1:
                    world.clock.advance(61)
                if len(given) == 3:
                    break
            assert given == [(b"0-0", 0), (b"0-0", 1), (b"0-1", 1)]

    asyncio.run(story())


def test_receive_that_is_cancelled_has_its_messages_come_again(world: ConsumerWorld) -> None:
    async def story() -> None:
        async with opened(world) as consumer:
            receiving = asyncio.create_task(consumer.receive(8, 60, 60))
            await asyncio.sleep(0)
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            world.fill(2, queues=1)
            messages: list[ReceivedMessage] = []
            while len(messages) < 2:
                messages += await consumer.receive()
            assert sorted(bodies(messages)) == ["0-0", "0-1"]

    asyncio.run(story())


def test_many_tasks_handle_while_another_one_waits(world: ConsumerWorld) -> None:
    world.fill(40, queues=1)

    async def story() -> None:
        async with opened(world) as consumer:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(4):
                    for message in await consumer.receive(10):
                        tasks.create_task(message.ack())
                waiting = tasks.create_task(consumer.receive(1, 60, 0.2))
            assert waiting.result() == []
            assert offset(world) == 40

    asyncio.run(story())


def test_commit_that_fails_is_told_to_all_that_wait_for_it(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill(2, queues=1)

    def fails(_: object) -> None:
        raise StorageUnavailableError("state", OSError("the storage is away"))

    async def story() -> None:
        async with opened(world) as consumer:
            messages = await consumer.receive()
            with monkeypatch.context() as patch:
                patch.setattr(SimpleConsumer, "commit", fails)
                outcomes = await asyncio.gather(
                    *(message.ack() for message in messages), return_exceptions=True
                )
            assert [type(outcome) for outcome in outcomes] == [StorageUnavailableError] * 2

    asyncio.run(story())
    # They are noted all the same, and committed at the end.
    assert offset(world) == 2


def test_group_is_left_whatever_ends_the_block(world: ConsumerWorld) -> None:
    async def story() -> None:
        async with opened(world):
            assert len(group_in(world.store, BILLING).read().members) == 1
            raise KeyError

    with pytest.raises(KeyError):
        asyncio.run(story())
    assert group_in(world.store, BILLING).read().members == {}


def test_consumer_is_opened_once(world: ConsumerWorld) -> None:
    async def story() -> None:
        consumer = opened(world)
        with pytest.raises(ClosedError):
            await consumer.receive()
        async with consumer:
            pass
        with pytest.raises(ClosedError):
            await consumer.__aenter__()
        await consumer.close()

    asyncio.run(story())


def test_wrong_names_are_refused_before_anything_is_opened(world: ConsumerWorld) -> None:
    with pytest.raises(InvalidNameError):
        opened(world, member_id="a b")
    with pytest.raises(ConfigError):
        opened(world, topics=[])
