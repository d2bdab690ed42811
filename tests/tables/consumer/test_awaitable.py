"""The pull consumer for asyncio: what is cancelled loses nothing, and no loop waits."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit.consumer_world import BILLING, ConsumerWorld, bodies, offsets_of
from tests.kit.delay_world import TOPIC
from txmq import AsyncPullConsumer, ConsumeStatus, Message, Operation, OperationName
from txmq.consumer.group import group_in
from txmq.consumer.push import ConsumeResult
from txmq.errors import ClosedError, ConcurrentUseError, ConfigError, InvalidNameError
from txmq.message.received import ReceivedMessage


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path, queues=1)
    yield made
    made.close()


def opened(world: ConsumerWorld, topics: Any = TOPIC, **options: Any) -> AsyncPullConsumer:
    return AsyncPullConsumer(
        world.store, consumer_group=BILLING, topics=topics, clock=world.clock,
        sends_back=world.sent_back, **options,
    )  # fmt: skip


def committed(world: ConsumerWorld) -> list[int]:
    return [offset for queue, offset in sorted(offsets_of(world).items()) if queue.topic == TOPIC]


def members(world: ConsumerWorld) -> list[str]:
    return list(group_in(world.store, BILLING).read().members)


def test_polled_and_committed_as_by_a_pull_consumer(world: ConsumerWorld) -> None:
    world.send_to(0, "a", "b", "c")

    async def story() -> None:
        async with opened(world) as consumer:
            assert bodies(await consumer.poll(2)) == ["a", "b"]
            await consumer.commit()
            (message,) = await consumer.poll()
            await consumer.send_back(message, reason="later")
            assert [lag.lag for lag in await consumer.lag() if lag.topic == TOPIC] == [1]
            await consumer.commit()
            await consumer.seek(TOPIC, 0, 1)
            assert bodies(await consumer.poll()) == ["b", "c"]
            assert {queue.topic for queue in consumer.assignment} >= {TOPIC}

    asyncio.run(story())
    assert world.sent_back.messages == [(b"c", "'later'", 0)]
    assert committed(world) == [1]
    assert members(world) == []


def test_cancelled_poll_loses_nothing_and_is_not_committed(world: ConsumerWorld) -> None:
    async def story() -> None:
        async with opened(world) as consumer:
            waiting = asyncio.create_task(consumer.poll(timeout_s=600))
            await asyncio.sleep(0)
            waiting.cancel()
            # The thread may find the message before it hears of the end.
            await asyncio.to_thread(world.send_to, 0, "a", "b")
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert (await consumer.commit()).offsets == {}
            assert bodies(await consumer.poll(timeout_s=60)) == ["a", "b"]
            await consumer.commit()

    asyncio.run(story())
    assert committed(world) == [2]


def test_poll_that_is_cancelled_after_its_messages_came_loses_nothing(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.send_to(0, "a", "b", "c")

    async def story() -> None:
        async with opened(world) as consumer:
            assert bodies(await consumer.poll(1)) == ["a"]
            is_taken, poll = threading.Event(), consumer.consumer.poll

            def told(*arguments: Any) -> list[ReceivedMessage]:
                try:
                    return poll(*arguments)
                finally:
                    is_taken.set()

            monkeypatch.setattr(consumer.consumer, "poll", told)
            waiting = asyncio.create_task(consumer.poll())
            await asyncio.sleep(0)
            # The loop stands, so the task cannot have heard of it.
            assert is_taken.wait(60)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await consumer.commit()
            assert committed(world) == [1]
            assert bodies(await consumer.poll()) == ["b", "c"]

    asyncio.run(story())


def test_loop_commits_what_it_has_handled_and_no_more(world: ConsumerWorld) -> None:
    world.send_to(0, *"abcdef")

    async def first(count: int) -> list[str]:
        seen: list[str] = []
        async with opened(world) as consumer:
            async for message in consumer:
                seen.append(message.body.decode())
                if len(seen) == count:
                    break
        return seen

    assert asyncio.run(first(3)) == ["a", "b", "c"]
    assert committed(world) == [2]
    assert asyncio.run(first(4)) == ["c", "d", "e", "f"]
    assert committed(world) == [5]


def test_cancelled_loop_gives_its_message_to_the_next_member(world: ConsumerWorld) -> None:
    world.send_to(0, "a", "b")

    async def story() -> None:
        is_at_b, seen = asyncio.Event(), []

        async def work() -> None:
            async with opened(world) as consumer:
                async for message in consumer:
                    seen.append(message.body)
                    if message.body == b"b":
                        is_at_b.set()
                        await asyncio.sleep(600)

        task = asyncio.create_task(work())
        await is_at_b.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert committed(world) == [1]
        async with opened(world) as consumer:
            assert bodies(await consumer.poll()) == ["b"]

    asyncio.run(story())


def test_call_that_is_cancelled_while_it_gives_messages_back_loses_none(
    world: ConsumerWorld,
) -> None:
    world.send_to(0, "a", "b", "c")

    async def story() -> None:
        async with opened(world) as consumer:
            async for message in consumer:
                assert message.body == b"a"
                break
            pausing = asyncio.create_task(consumer.pause(TOPIC))
            await asyncio.sleep(0)
            pausing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await pausing
            await consumer.commit()
            assert committed(world) == [1]
            await consumer.resume(TOPIC)
            assert bodies(await consumer.poll()) == ["b", "c"]

    asyncio.run(story())


def test_loop_ends_where_another_task_closes(world: ConsumerWorld) -> None:
    world.send_to(0, "a")

    async def story() -> list[bytes]:
        seen: list[bytes] = []
        async with opened(world) as consumer:
            is_seen = asyncio.Event()

            async def work() -> None:
                async for message in consumer:
                    seen.append(message.body)
                    is_seen.set()

            task = asyncio.create_task(work())
            await is_seen.wait()
            # It asks for the next one, so the first one is handled.
            await asyncio.sleep(0)
            await consumer.close()
            await task
        return seen

    assert asyncio.run(story()) == [b"a"]
    assert members(world) == []


def test_handlers_by_topic_are_awaited_with_their_models(world: ConsumerWorld) -> None:
    @dataclass
    class Order:
        order: int

    world.producer.send(Message.json(TOPIC, {"order": 7}))
    world.producer.send(Message("notes", b"hello"))
    world.publisher.run_once()
    seen: list[Any] = []

    async def story() -> ConsumeResult:
        consumer = opened(world, [TOPIC, "notes"])

        @consumer.on(TOPIC, model=Order)
        async def bill(order: Order, message: ReceivedMessage) -> None:
            await asyncio.sleep(0)
            seen.append((order, message.topic))

        @consumer.on("notes")
        def note(message: ReceivedMessage) -> None:
            seen.append(message.body)

        with pytest.raises(ConfigError, match="is not among those"):
            consumer.on("other")
        async with consumer:
            return await consumer.run_once()

    assert asyncio.run(story()).consumed == 2
    assert sorted(seen, key=str) == [(Order(7), TOPIC), b"hello"]


@pytest.mark.parametrize("how", ["raises", "later", "cancels itself", "takes too long"])
def test_handler_that_fails_has_its_message_sent_back(world: ConsumerWorld, how: str) -> None:
    world.send_to(0, "a", "b")
    errors: list[type[BaseException]] = []

    async def handle(message: ReceivedMessage) -> ConsumeStatus | None:
        if message.body == b"b":
            return None
        if how == "raises":
            raise ValueError
        if how == "cancels itself":
            raise asyncio.CancelledError
        if how == "takes too long":
            await asyncio.sleep(600)
        return ConsumeStatus.RECONSUME_LATER

    async def story() -> ConsumeResult:
        options = {"consume_timeout_s": 0.05} if how == "takes too long" else {}
        hook = lambda _, error: errors.append(type(error))  # noqa: E731 - one of the options
        async with opened(world, on_error=hook, **options) as consumer:
            return await consumer.run_once(handle)

    assert asyncio.run(story()) == ConsumeResult(consumed=2, sent_back=1)
    assert [body for body, _, _ in world.sent_back.messages] == [b"a"]
    expected = {"raises": "ValueError", "cancels itself": "CancelledError"}
    expected["takes too long"] = "ConsumeTimeoutError"
    assert [error.__name__ for error in errors] == ([expected[how]] if how in expected else [])
    assert committed(world) == [2]


@pytest.mark.parametrize("method", ["run", "run_once"])
def test_cancelled_run_cancels_its_handler_and_the_message_has_not_failed(
    world: ConsumerWorld, method: str
) -> None:
    world.send_to(0, "a", "b")

    async def story() -> list[str]:
        ended: list[str] = []
        is_at_b = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            if message.body == b"b":
                is_at_b.set()
                try:
                    await asyncio.sleep(600)
                finally:
                    ended.append("b")

        async with opened(world) as consumer:
            task = asyncio.create_task(getattr(consumer, method)(handle))
            await is_at_b.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert ended == ["b"]
            assert committed(world) == [1]
            assert bodies(await consumer.poll()) == ["b"]
        return ended

    asyncio.run(story())
    assert world.sent_back.messages == []


def test_closing_lets_the_handler_end(world: ConsumerWorld) -> None:
    world.send_to(0, "a", "b")

    async def story() -> ConsumeResult:
        is_at_a, may_end = asyncio.Event(), asyncio.Event()

        async def handle(_: ReceivedMessage) -> None:
            is_at_a.set()
            await may_end.wait()

        async with opened(world) as consumer:
            running = asyncio.create_task(consumer.run(handle))
            await is_at_a.wait()
            closing = asyncio.create_task(consumer.close())
            await asyncio.sleep(0)
            may_end.set()
            await closing
            return await running

    assert asyncio.run(story()).consumed == 1
    assert (committed(world), members(world)) == ([1], [])


def test_handler_that_calls_its_consumer_is_refused_and_may_close_it(world: ConsumerWorld) -> None:
    world.send_to(0, "a", "b")
    refused: list[type[Exception]] = []

    async def story() -> ConsumeResult:
        async with opened(world) as consumer:

            async def handle(_: ReceivedMessage) -> None:
                calls = (consumer.poll(), consumer.commit(), consumer.run_once(lambda _: None))
                for call in calls:
                    try:
                        await call
                    except ConcurrentUseError as error:
                        refused.append(type(error))
                await consumer.close()

            return await consumer.run(handle)

    assert asyncio.run(story()).consumed == 1
    assert len(refused) == 3
    assert (committed(world), members(world)) == ([1], [])


def test_end_of_the_event_loop_is_no_failure_of_the_message(world: ConsumerWorld) -> None:
    world.send_to(0, "a")

    async def story() -> None:
        is_at_a = asyncio.Event()

        async def handle(_: ReceivedMessage) -> None:
            is_at_a.set()
            await asyncio.sleep(600)

        async def serve() -> None:
            async with opened(world) as consumer:
                await consumer.run(handle)

        task = asyncio.create_task(serve())
        await is_at_a.wait()
        assert not task.done()

    asyncio.run(story())
    assert (world.sent_back.messages, committed(world), members(world)) == ([], [0], [])


def test_lifespan_of_a_service_starts_and_ends_with_its_consumer(world: ConsumerWorld) -> None:
    """As FastAPI and Starlette do it; the recipe runs the real one."""
    world.send_to(0, "a")

    async def story() -> list[bytes]:
        seen: list[bytes] = []
        is_seen = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            seen.append(message.body)
            is_seen.set()

        @asynccontextmanager
        async def lifespan() -> AsyncIterator[None]:
            async with opened(world) as consumer, asyncio.TaskGroup() as tasks:
                running = tasks.create_task(consumer.run(handle))
                yield
                await consumer.close()
                assert (await running).consumed == 1

        async with lifespan():
            await is_seen.wait()
        return seen

    assert asyncio.run(story()) == [b"a"]
    assert (committed(world), members(world)) == ([1], [])


def test_handler_sees_the_context_of_its_message(world: ConsumerWorld) -> None:
    world.send_to(0, "a")
    current: contextvars.ContextVar[str] = contextvars.ContextVar("current", default="none")

    class Hook:
        def begin_operation(self, operation: Operation) -> None:
            current.set(operation.name.value)

    seen: list[str] = []

    async def handle(_: ReceivedMessage) -> None:
        seen.append(current.get())

    async def story() -> None:
        async with opened(world, hooks=[Hook()]) as consumer:
            await consumer.run_once(handle)

    asyncio.run(story())
    assert seen == [OperationName.PROCESS.value]


def test_used_outside_of_its_block_or_twice_it_is_refused(world: ConsumerWorld) -> None:
    async def story() -> None:
        consumer = opened(world)
        with pytest.raises(ClosedError, match="async with"):
            await consumer.poll()
        async with consumer:
            pass
        await consumer.close()
        with pytest.raises(ClosedError):
            await consumer.commit()
        with pytest.raises(ClosedError, match="another"):
            async with consumer:
                pass

    asyncio.run(story())


def test_wrong_arguments_are_refused_before_anything_is_read(world: ConsumerWorld) -> None:
    def generator(_: object) -> Iterator[None]:
        yield

    with pytest.raises(InvalidNameError):
        opened(world, "no topic")
    with pytest.raises(ConfigError, match="consume_timeout_s"):
        opened(world, consume_timeout_s=0)

    async def story() -> None:
        async with opened(world) as consumer:
            with pytest.raises(ConfigError, match="generator"):
                await consumer.run_once(generator)  # type: ignore[arg-type]
            with pytest.raises(ConfigError, match="no handler for order-paid"):
                await consumer.run()
            with pytest.raises(ConfigError, match="max_messages"):
                await consumer.poll(0)

    asyncio.run(story())


def test_unknown_option_does_not_leave_a_member_behind(world: ConsumerWorld) -> None:
    async def story() -> None:
        with pytest.raises(TypeError, match="topicks"):
            async with opened(world, topicks="x"):
                pass

    asyncio.run(story())
