"""Calls an async handler from the thread of a consumer."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from txmq.consumer.handler import ConsumeStatus, RunEndedError, check_callable
from txmq.errors import ConfigError, ConsumeTimeoutError
from txmq.message.received import ReceivedMessage

AsyncHandler = Callable[[ReceivedMessage], "Awaitable[ConsumeStatus | None] | ConsumeStatus | None"]


def check_async_function(name: str, function: object) -> None:
    """Refuse what cannot be called, or is a generator. Raises: ConfigError."""
    check_callable(name, function)
    called = (function, type(function).__call__)
    if any(
        inspect.isasyncgenfunction(part) or inspect.isgeneratorfunction(part) for part in called
    ):
        problem = "is a generator, so a call of it does nothing; pass a function"
        raise ConfigError([f"{name} {problem}, plain or async"])


class AwaitedHandler:
    """A handler for the thread of a consumer, whose work is done in an event loop.

    A call that takes too long is cancelled, so the thread is soon free. All but `__call__` is for
    the thread of the loop.
    """

    def __init__(
        self, handler: Callable[[ReceivedMessage], Any], timeout_s: float, stop: Callable[[], None]
    ) -> None:
        """`handler` is checked already; `stop` asks the consumer to take no further message."""
        self._handler, self._timeout_s, self._stop = handler, timeout_s, stop
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self.is_ending = False

    def __call__(self, message: ReceivedMessage) -> ConsumeStatus | None:
        """Wait for the handler. Raises: RunEndedError where nothing is to be handled any more."""
        if self.is_ending or self._loop.is_closed():
            raise RunEndedError
        # The task gets the context of this thread, so the handler has the span of the message.
        call = asyncio.run_coroutine_threadsafe(self._awaited(message), self._loop)
        status: ConsumeStatus | None = call.result()
        return status

    async def _awaited(self, message: ReceivedMessage) -> Any:
        task = self._task = asyncio.current_task()
        try:
            if self.is_ending:
                raise RunEndedError
            async with asyncio.timeout(self._timeout_s) as limit:
                answer = self._handler(message)
                return await answer if inspect.isawaitable(answer) else answer
        except TimeoutError:
            if limit.expired():
                raise ConsumeTimeoutError(self._timeout_s) from None
            raise
        except asyncio.CancelledError:
            # A handler that cancels itself has failed; else somebody ends this work.
            if task is not None and task.cancelling():
                raise RunEndedError from None
            raise
        finally:
            self._task = None

    @property
    def is_of_this_task(self) -> bool:
        """Whether the call of the handler on its way is what asks."""
        return self._task is not None and self._task is asyncio.current_task()

    def finish(self) -> None:
        """Let the call on its way end, and begin no other one."""
        self.is_ending = True
        self._stop()

    def cancel(self) -> None:
        """As `finish`, and cancel the call on its way: its message comes again."""
        self.finish()
        if self._task is not None:
            self._task.cancel()
