"""The consumer that acknowledges each message, for asyncio: what was awaited is durable."""

from __future__ import annotations

import asyncio
import threading
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
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.errors import (
    ClosedError,
    ConfigError,
    InvalidNameError,
    InvalidReceiptError,
    StorageUnavailableError,
)
from txmq.message.received import ReceivedMessage
from txmq.ops.admin.groups import ConsumerGroups

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
            # The loop never got the second one before.
            assert given == [(b"0-0", 0), (b"0-0", 1), (b"0-1", 0)]

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
                patch.setattr(SimpleConsumer, "_commit", fails)
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


def test_receive_that_is_cancelled_on_its_way_does_not_count(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill(1, queues=1)
    may_commit, commit = threading.Event(), SimpleConsumer._commit

    def waits(consumer: SimpleConsumer) -> None:
        may_commit.wait(60)
        commit(consumer)

    async def story() -> None:
        async with opened(world) as consumer:
            with monkeypatch.context() as patch:
                patch.setattr(SimpleConsumer, "_commit", waits)
                receiving = asyncio.create_task(consumer.receive())
                while not receiving.done():
                    await asyncio.sleep(0.01)
                    receiving.cancel()
                    may_commit.set()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            (message,) = await consumer.receive()
            assert message.reconsume_times == 0

    asyncio.run(story())


def test_what_the_loop_never_got_does_not_count(world: ConsumerWorld) -> None:
    world.fill(5, queues=1)

    async def first(count: int) -> list[int]:
        times: list[int] = []
        async with opened(world) as consumer:
            async for message in consumer:
                times.append(message.reconsume_times)
                await message.ack()
                if len(times) == count:
                    break
        return times

    assert [asyncio.run(first(1)) for _ in range(5)] == [[0]] * 5


def test_slow_loop_holds_what_it_has_taken_ahead(world: ConsumerWorld) -> None:
    world.fill(8, queues=1)

    async def story() -> list[int]:
        times: list[int] = []
        async with opened(world) as consumer:
            async for message in consumer:
                times.append(message.reconsume_times)
                world.clock.advance(5)
                await message.ack()
                if len(times) == 8:
                    break
        return times

    assert asyncio.run(story()) == [0] * 8


def test_tasks_that_wait_for_messages_hold_up_no_acknowledgement(world: ConsumerWorld) -> None:
    world.fill(3, queues=1)

    async def story() -> None:
        async with opened(world) as consumer:
            messages = await consumer.receive()
            waiting = [asyncio.create_task(consumer.receive(1, 60, 600)) for _ in range(5)]
            for message in messages:
                await message.ack()
            assert offset(world) == 3
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)

    asyncio.run(story())


def test_wrong_argument_fails_no_acknowledgement_of_others(world: ConsumerWorld) -> None:
    world.fill(2, queues=1)

    async def story() -> list[Any]:
        async with opened(world) as consumer:
            first, second = await consumer.receive()
            calls = [first.ack(), consumer.ack("x"), first.ack(), second.ack()]  # type: ignore[arg-type] - of callers without types
            return await asyncio.gather(*calls, return_exceptions=True)

    outcomes = [type(outcome) for outcome in asyncio.run(story())]
    assert outcomes == [type(None), ConfigError, InvalidReceiptError, type(None)]
    assert offset(world) == 2


def test_close_makes_the_acknowledgements_that_wait(world: ConsumerWorld) -> None:
    world.fill(50, queues=1)

    async def story() -> list[Any]:
        async with opened(world) as consumer:
            messages = await consumer.receive(50)
            acks = [asyncio.create_task(message.ack()) for message in messages]
            await asyncio.sleep(0)
            await consumer.close()
            return await asyncio.gather(*acks, return_exceptions=True)

    outcomes = asyncio.run(story())
    assert outcomes == [None] * 50
    assert offset(world) == 50


def test_acknowledgement_that_came_too_late_is_told_though_a_receive_came_between(
    world: ConsumerWorld,
) -> None:
    world.fill(1, queues=1)

    async def story() -> None:
        async with opened(world) as consumer:
            (message,) = await consumer.receive(1, 100)
            ConsumerGroups(world.store, clock=world.clock).reset_offsets(
                BILLING, TOPIC, ConsumeFromWhere.FIRST_OFFSET, apply=True, force=True
            )
            with pytest.raises(InvalidReceiptError):
                await message.ack()
            assert offset(world) == 0

    asyncio.run(story())


@pytest.mark.parametrize("is_orderly", [True, False])
def test_message_that_a_cancelled_loop_was_about_to_get_stays_the_first(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_orderly: bool,  # noqa: FBT001 - a parameter
) -> None:
    own = {BILLING: {"consume_message_orderly": is_orderly}}
    world = ConsumerWorld(tmp_path, queues=1, consumer_groups=own)
    world.fill(3, queues=1)
    loop = asyncio.new_event_loop()
    loop.close()
    may_begin, begin, begins = threading.Event(), SimpleConsumer._begin, asyncio.Event()

    def waits(consumer: SimpleConsumer, *arguments: Any) -> bool:
        loop.call_soon_threadsafe(begins.set)
        may_begin.wait(60)
        return begin(consumer, *arguments)

    async def story() -> list[tuple[bytes, int]]:
        nonlocal loop
        loop, given = asyncio.get_running_loop(), list[tuple[bytes, int]]()
        async with opened(world) as consumer:
            with monkeypatch.context() as patch:
                patch.setattr(SimpleConsumer, "_begin", waits)
                asking = asyncio.create_task(anext(consumer))
                await begins.wait()
                asking.cancel()
                may_begin.set()
                with pytest.raises(asyncio.CancelledError):
                    await asking
            async for message in consumer:
                given.append((message.body, message.reconsume_times))
                await message.ack()
                if len(given) == 3:
                    break
        return given

    assert asyncio.run(story()) == [(b"0-0", 0), (b"0-1", 0), (b"0-2", 0)]
    world.close()
