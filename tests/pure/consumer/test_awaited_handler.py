"""Calls of an async handler: whose call is cancelled, and what a closed loop leaves behind."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from txmq.consumer.awaitable import AwaitedHandler, LoopEvent
from txmq.consumer.handlers import RunEndedError


def test_call_that_was_given_up_does_not_hide_the_next_one_from_a_cancel() -> None:
    async def story() -> None:
        begun = {"first": asyncio.Event(), "second": asyncio.Event()}
        first_may_end, second_is_cancelled = asyncio.Event(), asyncio.Event()

        async def handle(message: Any) -> None:
            begun[message].set()
            if message == "first":
                await first_may_end.wait()
                return
            try:
                await asyncio.wait_for(asyncio.Event().wait(), 30)
            except asyncio.CancelledError:
                second_is_cancelled.set()
                raise

        awaited = AwaitedHandler(handle, 600, stop=lambda: None)
        call: Any = awaited
        first = asyncio.create_task(asyncio.to_thread(call, "first"))
        await begun["first"].wait()
        second = asyncio.create_task(asyncio.to_thread(call, "second"))
        await begun["second"].wait()
        first_may_end.set()
        await first
        awaited.cancel()
        with pytest.raises(RunEndedError):
            await second
        assert second_is_cancelled.is_set()

    asyncio.run(story())


def test_closed_loop_ends_what_waits_for_it() -> None:
    loop, ended = asyncio.new_event_loop(), []
    tasks: list[Any] = []

    async def handle(_: Any) -> None:
        tasks.append(asyncio.current_task())
        loop.call_soon(loop.stop)
        await asyncio.Event().wait()

    def work(call: Any) -> None:
        with pytest.raises(RunEndedError):
            call(None)
        with pytest.raises(RunEndedError):
            call(None)
        ended.append(True)

    async def begin() -> threading.Thread:
        awaited = AwaitedHandler(handle, 600, stop=lambda: None)
        thread = threading.Thread(target=work, args=(awaited,), daemon=True)
        thread.start()
        return thread

    thread = loop.run_until_complete(begin())
    event = LoopEvent(loop)
    assert not event.is_set()
    assert not event.wait(0)
    loop.run_forever()
    loop.close()

    thread.join(30)
    assert ended
    assert event.is_set()
    assert event.wait(0)


def test_loop_that_is_closed_while_a_call_begins_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.new_event_loop()

    async def made() -> Any:
        return AwaitedHandler(lambda _: None, 600, stop=lambda: None)

    call = loop.run_until_complete(made())
    is_closed, answers = loop.is_closed, [False]
    loop.close()
    monkeypatch.setattr(loop, "is_closed", lambda: answers.pop() if answers else is_closed())

    with pytest.raises(RunEndedError):
        call(None)
