"""The pull consumer for asyncio that ends before its time: no thread waits, no member stays."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.consumer_world import BILLING, ConsumerWorld, offsets_of
from tests.kit.delay_world import TOPIC
from txmq import AsyncPullConsumer
from txmq.consumer.group import group_in
from txmq.errors import ClosedError
from txmq.message.received import ReceivedMessage


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path, queues=1)
    yield made
    made.close()


def opened(world: ConsumerWorld) -> AsyncPullConsumer:
    return AsyncPullConsumer(
        world.store, consumer_group=BILLING, topics=TOPIC, clock=world.clock,
        sends_back=world.sent_back,
    )  # fmt: skip


def members(world: ConsumerWorld) -> list[str]:
    return list(group_in(world.store, BILLING).read().members)


@pytest.mark.parametrize(
    ("method", "is_in_handler"), [("run", False), ("run", True), ("run_once", True)]
)
def test_loop_that_is_closed_without_a_cancel_ends_the_work_and_the_member_leaves(
    world: ConsumerWorld, method: str, *, is_in_handler: bool
) -> None:
    loop, tasks = asyncio.new_event_loop(), []
    if is_in_handler:
        world.send_to(0, "a")

    async def handle(_: ReceivedMessage) -> None:
        tasks.append(asyncio.current_task())
        loop.call_soon(loop.stop)
        await asyncio.Event().wait()

    async def begin() -> AsyncPullConsumer:
        consumer = await opened(world).__aenter__()
        tasks.append(asyncio.create_task(getattr(consumer, method)(handle)))
        await asyncio.sleep(0)
        return consumer

    consumer = loop.run_until_complete(begin())
    if is_in_handler:
        loop.run_forever()
    loop.close()

    # Python waits for this thread before a process ends.
    consumer._executor.submit(lambda: None).result(60)
    committed = {offset for queue, offset in offsets_of(world).items() if queue.topic == TOPIC}
    assert (world.sent_back.messages, members(world), committed) == ([], [], {0})


def test_loop_that_is_closed_ends_a_poll(world: ConsumerWorld) -> None:
    loop, tasks = asyncio.new_event_loop(), []

    async def begin() -> AsyncPullConsumer:
        consumer = await opened(world).__aenter__()
        tasks.append(asyncio.create_task(consumer.poll(timeout_s=6000)))
        await asyncio.sleep(0)
        return consumer

    consumer = loop.run_until_complete(begin())
    loop.close()

    consumer._executor.submit(consumer.consumer.close).result(60)
    assert members(world) == []


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_consumer_that_is_closed_while_it_joins_is_in_no_group(
    world: ConsumerWorld, how: str
) -> None:
    async def story() -> None:
        consumer, entered = opened(world), []

        async def use() -> None:
            async with consumer:
                entered.append(True)

        using: Any = asyncio.create_task(use())
        await asyncio.sleep(0)
        with pytest.raises(ClosedError, match="another"):
            await consumer.__aenter__()
        if how == "cancel":
            using.cancel()
            await asyncio.sleep(0)
        await consumer.close()
        assert members(world) == []
        with pytest.raises(ClosedError if how == "close" else asyncio.CancelledError):
            await using
        assert not entered
        assert members(world) == []

    asyncio.run(story())
