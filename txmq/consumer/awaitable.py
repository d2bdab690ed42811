"""The pull consumer for asyncio: the same member of a group, with `await` where others wait."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import datetime
from typing import Any, Generic, Self, TypeVar

from txmq.consumer.arguments import Subscription, Topics, check_poll, checked_timeout
from txmq.consumer.group import settings_in
from txmq.consumer.group_reader import CommitResult
from txmq.consumer.group_rules import ConsumeMode, TopicQueue
from txmq.consumer.handlers import (
    ConsumeStatus,
    Function,
    HandlersByTopic,
    RunEndedError,
    check_async_function,
)
from txmq.consumer.lag import QueueLag
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.consumer.pull import POLL_MESSAGES, MovableMember, PullConsumer
from txmq.consumer.push import ConsumeResult, ConsumerHandle
from txmq.delta.failures import process_id
from txmq.errors import ClosedError, ConcurrentUseError, ConfigError, ConsumeTimeoutError
from txmq.ground.handles import OfOneProcess
from txmq.message.received import ReceivedMessage
from txmq.store.store import Store, check_store

Result = TypeVar("Result")
Member = TypeVar("Member", bound=MovableMember)
AsyncHandler = Callable[[ReceivedMessage], "Awaitable[ConsumeStatus | None] | ConsumeStatus | None"]

# A call that does not end when it is cancelled is given up so much later.
CANCEL_GRACE_S = 5.0
# A call waits so long before it looks whether its loop is still there.
LOOP_LOOK_S = 0.2


class AwaitedConsumer(OfOneProcess, Generic[Member]):
    """A consumer for coroutines, which joins its group, works and leaves in a thread of its own.

    `async with` joins the group, and leaves it.

    Args:
        make: joins the group; called in the thread.
        thread_name: the name of the thread.
    """

    def __init__(self, make: Callable[[], Member], thread_name: str) -> None:
        """Start nothing yet."""
        self._make = make
        self._consumer: Member | None = None
        self._joining: Future[Member] | None = None
        self._is_closed, self._pid = False, process_id()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=thread_name)
        self._left: Future[None] | None = None

    @property
    def consumer(self) -> Member:
        """The consumer that does the work; its calls wait.

        Raises: ClosedError outside of `async with`, and in a process that was forked from it.
        """
        if self._consumer is None or self._is_closed or self._pid != process_id():
            raise ClosedError("the consumer is not open; use it in `async with`")
        return self._consumer

    def _free(self) -> ThreadPoolExecutor:
        """Return the thread, which works through its calls in order."""
        return self._executor

    async def _call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        return await asyncio.wrap_future(self._free().submit(function, *arguments))

    async def __aenter__(self) -> Self:
        """Join the group.

        Raises: as the consumer; ClosedError if it was used before, or is closed meanwhile.
        """
        if self._joining is not None or self._is_closed:
            raise ClosedError("the consumer was used already; make another one")
        self._joining = self._executor.submit(self._make)
        try:
            consumer = await asyncio.shield(asyncio.wrap_future(self._joining))
        except BaseException:
            self._end()
            raise
        if self._is_closed:
            raise ClosedError("the consumer was closed while it joined its group")
        self._consumer = consumer
        return self

    async def close(self) -> None:
        """Leave the group."""
        raise NotImplementedError

    def _end(self) -> None:
        """Ask all to end, and leave the group after it; a second call does nothing."""
        raise NotImplementedError

    async def __aexit__(self, *_: object) -> None:
        """Close the consumer, also after an exception."""
        await self.close()


class AsyncPullConsumer(AwaitedConsumer[PullConsumer]):
    """A PullConsumer for coroutines: it works in a thread of its own, never in the event loop.

    `async with` joins the group, and leaves it. For one task at a time; several consumers of a
    group share its queues, also in one process.

    A call that is cancelled loses nothing: what a cancelled `poll` had taken comes with the next
    one, and is not committed before.

    Args:
        store: the store of the topics.
        consumer_group: the name of the group.
        topics: as those of PullConsumer.
        consume_timeout_s: a handler that takes longer is cancelled, and has failed; by default the
            setting of the group, else of the store.
        options: as those of PullConsumer.

    Raises: InvalidNameError, InvalidFilterError, ConfigError. What PullConsumer raises beyond them
        comes at `async with`.

    Example:
        >>> async with AsyncPullConsumer(
        ...     store, consumer_group="billing", topics="order-paid"
        ... ) as consumer:
        ...     async for message in consumer:
        ...         await bill(message.keys)
    """

    def __init__(
        self,
        store: Store,
        *,
        consumer_group: str,
        topics: Topics,
        consume_timeout_s: float | None = None,
        **options: Any,
    ) -> None:
        """Check the names, and read and write nothing."""
        check_store(store)
        if "consume_threads" in options:
            problem = "consume_threads is not for asyncio: handlers run in the event loop"
            raise ConfigError([f"{problem}; make another consumer for more at a time"])
        namespace = options.get("namespace")
        subscription = Subscription.of(
            consumer_group=consumer_group, topics=topics, namespace=namespace,
            from_where=options.get("from_where", ConsumeFromWhere.FIRST_OFFSET),
            from_timestamp=options.get("from_timestamp"),
            mode=options.get("mode", ConsumeMode.CLUSTERING), member_id=options.get("member_id"),
        )  # fmt: skip
        # Of the group or the store, once the group is read.
        self._timeout_s = checked_timeout(consume_timeout_s, 0.0)
        self._namespace, self._topics = namespace, subscription.filters
        self._by_topic = HandlersByTopic(subscription.filters, namespace, check_async_function)

        def make() -> PullConsumer:
            settings = settings_in(store, subscription.consumer_group)
            self._timeout_s = self._timeout_s or settings.consume_timeout_s
            return PullConsumer(
                store, consumer_group=consumer_group, topics=topics, consume_threads=1,
                consume_timeout_s=self._timeout_s + CANCEL_GRACE_S, **options,
            )  # fmt: skip

        super().__init__(make, "txmq-async-consumer")
        # Taken, and not handed out yet; then what the loop of `async for` has in hand.
        self._waiting: deque[ReceivedMessage] = deque()
        self._in_hand: ReceivedMessage | None = None
        self._polls: set[threading.Event] = set()
        self._runs: set[AwaitedHandler] = set()

    # --- pulling ----------------------------------------------------------------------------

    async def poll(
        self, max_messages: int = POLL_MESSAGES, timeout_s: float = 1.0
    ) -> list[ReceivedMessage]:
        """Take messages, as `PullConsumer.poll`."""
        check_poll(max_messages, timeout_s)
        self._in_hand = None
        if not self._waiting:
            return await self._polled(max_messages, timeout_s)
        return [self._waiting.popleft() for _ in range(min(max_messages, len(self._waiting)))]

    async def _polled(self, max_messages: int, timeout_s: float) -> list[ReceivedMessage]:
        stopping = LoopEvent(asyncio.get_running_loop())
        polling = self._free().submit(self.consumer.poll, max_messages, timeout_s, stopping)
        self._polls.add(stopping)
        try:
            return await asyncio.wrap_future(polling)
        except asyncio.CancelledError:
            # Nobody gets them; the calls after this one find them in their place again.
            stopping.set()
            if not self._is_closed:
                self._executor.submit(self._give_again, polling)
            raise
        finally:
            self._polls.discard(stopping)

    def _give_again(self, polling: Future[list[ReceivedMessage]]) -> None:
        if not polling.cancelled() and polling.exception() is None:
            self.consumer.give_again(polling.result())

    async def commit(self) -> CommitResult:
        """Commit, as `PullConsumer.commit`: all that was handed out is handled.

        A task that is cancelled meanwhile may have committed all the same.
        """
        self._in_hand = None
        return await self._call(self.consumer.commit, tuple(self._waiting))

    async def send_back(
        self, message: ReceivedMessage, *, reason: str | BaseException, delay_level: int = 0
    ) -> None:
        """Send a message back, as `PullConsumer.send_back`."""
        consumer = self.consumer
        await self._call(
            lambda: consumer.send_back(message, reason=reason, delay_level=delay_level)
        )

    def __aiter__(self) -> Self:
        """Hand out message after message, for ever, and commit on the way.

        A message is handled when the loop asks for the next one. What the loop has in hand when it
        ends comes again, unless `commit` is called. The loop ends if another task calls `close`.
        """
        return self

    async def __anext__(self) -> ReceivedMessage:
        """Return the next message. Raises: as `poll` and `commit`."""
        if self._is_closed:
            raise StopAsyncIteration
        if self._in_hand is not None and (not self._waiting or self.consumer.is_commit_due):
            await self.commit()
        while not self._waiting:
            self._in_hand = None
            try:
                self._waiting.extend(await self._polled(POLL_MESSAGES, 1.0))
            except ClosedError:
                raise StopAsyncIteration from None
        self._in_hand = self._waiting.popleft()
        return self._in_hand

    # --- pushing ----------------------------------------------------------------------------

    def on(self, topic: str, *, model: type[Any] | None = None) -> Callable[[Function], Function]:
        """Add a handler, as `PullConsumer.on`, for functions that are async or plain.

        A plain function holds up the event loop while it runs. Raises: as `PullConsumer.on`.
        """
        return self._by_topic.on(topic, model)

    async def run_once(self, handler: AsyncHandler | None = None) -> ConsumeResult:
        """Handle messages, as `PullConsumer.run_once`, with a handler that is async or plain.

        A handler that takes too long is cancelled, and has failed. If this call is cancelled, so
        is the handler; its message has not failed, and comes again.

        Raises: as `PullConsumer.run_once`; ClosedError if another task closes the consumer.
        """
        chosen = self._chosen(handler)
        awaited = AwaitedHandler(chosen, self._timeout_s, stop=lambda: None)
        consumer = self.consumer
        return await self._run(awaited, lambda: consumer.run_once(awaited))

    async def run(self, handler: AsyncHandler | None = None) -> ConsumeResult:
        """Handle messages as `run_once` does, until the task is cancelled or the consumer closed.

        Errors of the store are logged, and it goes on. `close` lets the call of the handler on its
        way end; cancelling the task cancels the call, and its message comes again.

        Returns:
            How many messages the handler was given, if another task called `close`.

        Raises: ConfigError, ConcurrentUseError, ConsumerGroupConflictError.
        """
        stopping = LoopEvent(asyncio.get_running_loop())
        awaited = AwaitedHandler(self._chosen(handler), self._timeout_s, stop=stopping.set)
        consumer = self.consumer
        return await self._run(awaited, lambda: _pushed(consumer, awaited, stopping))

    def _chosen(self, handler: AsyncHandler | None) -> Callable[[ReceivedMessage], Any]:
        if handler is None:
            return self._by_topic.handler()
        check_async_function("handler", handler)
        return handler

    async def _run(
        self, awaited: AwaitedHandler, work: Callable[[], ConsumeResult]
    ) -> ConsumeResult:
        await self._drop_waiting()
        loop, consumer = asyncio.get_running_loop(), self.consumer
        working = asyncio.wrap_future(self._free().submit(_worked, loop, consumer, work))
        self._runs.add(awaited)
        try:
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            awaited.cancel()
            await asyncio.wait([working])
            # Seen, so that asyncio does not tell of it.
            working.exception()
            raise
        except RunEndedError:
            if awaited.is_ending:
                raise ClosedError("the consumer was closed while it handled messages") from None
            raise asyncio.CancelledError from None
        finally:
            self._runs.discard(awaited)

    # --- moving -----------------------------------------------------------------------------

    @property
    def assignment(self) -> tuple[TopicQueue, ...]:
        """The queues that this member reads now, as `PullConsumer.assignment`."""
        return self.consumer.assignment

    async def pause(self, topic: str, queue_id: int | None = None) -> None:
        """Pause, as `PullConsumer.pause`."""
        await self._drop_waiting()
        await self._call(self.consumer.pause, topic, queue_id)

    async def resume(self, topic: str, queue_id: int | None = None) -> None:
        """Resume, as `PullConsumer.resume`."""
        await self._call(self.consumer.resume, topic, queue_id)

    async def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """Go on at another offset, as `PullConsumer.seek`."""
        await self._drop_waiting()
        await self._call(self.consumer.seek, topic, queue_id, offset)

    async def seek_to_time(self, topic: str, moment: datetime) -> None:
        """Go on at a moment, as `PullConsumer.seek_to_time`."""
        await self._drop_waiting()
        await self._call(self.consumer.seek_to_time, topic, moment)

    async def min_offsets(self, topic: str) -> dict[int, int]:
        """Return first offsets, as `PullConsumer.min_offsets`."""
        return await self._call(self.consumer.min_offsets, topic)

    async def max_offsets(self, topic: str) -> dict[int, int]:
        """Return next offsets, as `PullConsumer.max_offsets`."""
        return await self._call(self.consumer.max_offsets, topic)

    async def offsets_at(self, topic: str, moment: datetime) -> dict[int, int]:
        """Return offsets by time, as `PullConsumer.offsets_at`."""
        return await self._call(self.consumer.offsets_at, topic, moment)

    async def lag(self) -> list[QueueLag]:
        """Count what the group has not consumed, as `PullConsumer.lag`."""
        return await self._call(self.consumer.lag)

    async def _drop_waiting(self) -> None:
        """Give what waits to be handed out back, so that it is taken again."""
        if self._waiting:
            giving = self._free().submit(self.consumer.give_again, tuple(self._waiting))
            self._waiting.clear()
            # Also if the caller is cancelled: nobody else has these messages.
            await asyncio.shield(asyncio.wrap_future(giving))

    # --- the thread -------------------------------------------------------------------------

    def _free(self) -> ThreadPoolExecutor:
        """Return the thread, which works through its calls in order. Raises: ConcurrentUseError.

        While it runs a handler nothing else may wait for it, least of all that handler.
        """
        if self._runs:
            raise ConcurrentUseError
        return self._executor

    # --- joining and ending -----------------------------------------------------------------

    async def close(self) -> None:
        """Let the call of a handler on its way end, commit, and leave the group.

        Messages that were handed out by `poll` and not committed come again, and so does the one
        that a loop has in hand. A handler may call it: its own call is the last one, and the group
        is left after it. Closing a second time waits for the first.

        Raises: StorageError.
        """
        self._end()
        # A handler that waited for its own end would wait for ever.
        if self._left is not None and not any(run.is_of_this_task for run in self._runs):
            await asyncio.shield(asyncio.wrap_future(self._left))

    def _end(self) -> None:
        """Ask all to end, and leave the group after it; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        for stopping in self._polls:
            stopping.set()
        for run in self._runs:
            run.finish()
        if self._consumer is not None:
            unhandled = () if self._in_hand is None else (self._in_hand, *self._waiting)
            self._left = self._executor.submit(_leave, self._consumer, unhandled)
        elif self._joining is not None:
            # Else it would stay in its group until its lease ends.
            self._left = self._executor.submit(_close_joined, self._joining)
        self._executor.shutdown(wait=False)


def _worked(
    loop: asyncio.AbstractEventLoop, consumer: PullConsumer, work: Callable[[], ConsumeResult]
) -> ConsumeResult:
    """Work for a loop, and leave the group if the loop is closed: nobody else closes it."""
    try:
        return work()
    finally:
        if loop.is_closed():
            consumer.close()


def _pushed(
    consumer: PullConsumer, handler: AwaitedHandler, stopping: threading.Event
) -> ConsumeResult:
    """Push until `stopping` is set, in the thread of the consumer."""
    handle: ConsumerHandle = consumer.start(handler)
    handle.stop_when(stopping)
    if handle.exception is not None:
        raise handle.exception
    return handle.total


def _leave(consumer: PullConsumer, unhandled: Sequence[ReceivedMessage]) -> None:
    try:
        if unhandled:
            consumer.commit(unhandled)
    finally:
        consumer.close()


def _close_joined(joining: Future[PullConsumer]) -> None:
    if not joining.cancelled() and joining.exception() is None:
        joining.result().close()


class AwaitedHandler:
    """A handler for the thread of a consumer, whose work is done in an event loop.

    A call that takes too long is cancelled, so the thread is soon free. All but `__call__` is for
    the thread of the loop.
    """

    def __init__(
        self, handler: Callable[[ReceivedMessage], Any], timeout_s: float, stop: Callable[[], None]
    ) -> None:
        """Take a handler that is checked; `stop` asks the consumer to take no further message."""
        self._handler, self._timeout_s, self._stop = handler, timeout_s, stop
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None
        self.is_ending = False

    def __call__(self, message: ReceivedMessage) -> ConsumeStatus | None:
        """Wait for the handler. Raises: RunEndedError if nothing is to be handled any more."""
        if self.is_ending or self._loop.is_closed():
            raise RunEndedError
        call = self._begin(message)
        while not wait([call], LOOP_LOOK_S).done:
            self._check_loop()
        status: ConsumeStatus | None = call.result()
        return status

    def _begin(self, message: ReceivedMessage) -> Future[Any]:
        """Begin a call in the loop, with the context of this thread: the span of the message."""
        work = self._awaited(message)
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            self._check_loop()
            raise

    def _check_loop(self) -> None:
        """Raise RunEndedError if the loop is closed: what it has begun does not end."""
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
        """Finish, and cancel the call on its way: its message comes again."""
        self.finish()
        if self._task is not None:
            self._task.cancel()


class LoopEvent(threading.Event):
    """An event that is also set once its loop is closed: from then on nobody could set it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin unset."""
        super().__init__()
        self._loop = loop

    def is_set(self) -> bool:
        """Tell whether it is set, or the loop is closed."""
        return super().is_set() or self._loop.is_closed()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as `threading.Event.wait` does; a close of the loop is seen after the wait."""
        return super().wait(timeout) or self._loop.is_closed()
