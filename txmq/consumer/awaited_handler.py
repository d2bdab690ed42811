"""Calls an async handler from the thread of a consumer."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from typing import Any

from txmq.consumer.handler import ConsumeStatus, RunEndedError, check_callable
from txmq.errors import ConfigError, ConsumeTimeoutError
from txmq.message.received import ReceivedMessage

AsyncHandler = Callable[[ReceivedMessage], "Awaitable[ConsumeStatus | None] | ConsumeStatus | None"]

# A call waits so long before it looks whether its loop is still there.
LOOP_LOOK_S = 0.2


class LoopEvent(threading.Event):
    """Set by `set`, and once its event loop is closed: from there nobody can set it any more."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Not set, where the loop is there."""
        super().__init__()
        self._loop = loop

    def is_set(self) -> bool:
        """Whether it is set, or the loop is closed."""
        return super().is_set() or self._loop.is_closed()

    def wait(self, timeout: float | None = None) -> bool:
        """As `threading.Event.wait`; a close of the loop is seen after the wait."""
        return super().wait(timeout) or self._loop.is_closed()


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
        call = self._begun(message)
        while not wait([call], LOOP_LOOK_S).done:
            self._check_loop()
        status: ConsumeStatus | None = call.result()
        return status

    def _begun(self, message: ReceivedMessage) -> Future[Any]:
        """A call in the loop; it has the context of this thread, so the span of the message."""
        work = self._awaited(message)
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            self._check_loop()
            raise

    def _check_loop(self) -> None:
        """What a closed loop has begun does not end. Raises: RunEndedError."""
        if self._loop.is_closed():
            raise RunEndedError

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
            # A call that was given up may end while the next one is on its way.
            if self._task is task:
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
