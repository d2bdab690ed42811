"""The consumer of RocketMQ 5 that acknowledges each message for itself, from any thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

from txmq.consumer.arguments import Subscription, Topics, check_poll, checked_invisible
from txmq.consumer.awaitable import LoopEvent
from txmq.consumer.exclusive_use import SharedUse
from txmq.consumer.group_reader import GroupReader
from txmq.consumer.group_rules import ConsumeMode, TopicQueue, replay_of
from txmq.consumer.offsets import ConsumeFromWhere, OffsetsByTopic
from txmq.consumer.pull import POLL_MESSAGES, MovableMember
from txmq.consumer.send_back import FailedMessage, SendsBack
from txmq.consumer.taking import Delivery, QueueMessage
from txmq.errors import ClosedError, InvalidReceiptError
from txmq.ground.clock import Clock, SystemClock, elapsed_ms
from txmq.ground.handles import OfOneProcess
from txmq.message.codec import BodyCodec, reading_codec
from txmq.message.received import ReceivedMessage, note_delivery, note_tries, receipt_of, tries_of
from txmq.store.config import ConsumeSettings
from txmq.store.store import Store, check_store

# Acknowledgements of a caller who does not receive are committed as often.
ACKNOWLEDGE_COMMIT_S = 1.0
NOT_ACKNOWLEDGED = "not acknowledged in time"


class SimpleConsumer(MovableMember):
    """Receives messages as a member of a group, and acknowledges each one for itself.

    A message that was received is invisible for a while. If nobody acknowledges it meanwhile, it
    comes again: in its place for `redeliver_in_place_max` times, then as a retry (R107), so that
    the offset of its queue moves on; after `max_reconsume_times` it is a dead letter (R108). In a
    group that keeps order, it comes again in its place each time, and nothing behind it is handed
    out until it is acknowledged.

    A queue belongs to one member at a time, as with `PullConsumer`: if that member is killed, its
    messages come to another one once its lease is over, but for those whose acknowledgement was
    committed. All members of the group must acknowledge.

    Any thread may call it; the calls take turns, and a `receive` that waits lets others in.

    Args:
        store: the store of the topics.
        consumer_group: the name of the group.
        topics: as those of PullConsumer, as are `from_where`, `from_timestamp`, `member_id`,
            `namespace`, `clock`, `sends_back`, `body_codec` and `require_encoded`.

    Raises: as PullConsumer.

    Example:
        >>> with SimpleConsumer(store, consumer_group="billing", topics="order-paid") as consumer:
        ...     for message in consumer.receive(16, invisible_duration_s=30):
        ...         print(message.keys)
        ...         consumer.ack(message)
    """

    def __init__(  # noqa: PLR0913 - the arguments of a consumer
        self,
        store: Store,
        *,
        consumer_group: str,
        topics: Topics,
        from_where: ConsumeFromWhere | OffsetsByTopic = ConsumeFromWhere.FIRST_OFFSET,
        from_timestamp: datetime | None = None,
        member_id: str | None = None,
        namespace: str | None = None,
        clock: Clock | None = None,
        sends_back: SendsBack | None = None,
        body_codec: BodyCodec | None = None,
        require_encoded: bool = False,
    ) -> None:
        """Check all arguments, then join the group.

        Commits: one, and one more that creates the table of a new group, or notes the members that
        it has.
        """
        check_store(store)
        subscription = Subscription.of(
            consumer_group=consumer_group, topics=topics, from_where=from_where,
            from_timestamp=from_timestamp, mode=ConsumeMode.CLUSTERING, member_id=member_id,
            namespace=namespace,
        )  # fmt: skip
        self.store, self.namespace = store, namespace
        self.consumer_group, self.member_id = subscription.consumer_group, subscription.member_id
        self.clock: Clock = clock or SystemClock()
        self._use = SharedUse()
        self._settings = store.config.of_consumer_group(self.consumer_group)
        # Queues of which acknowledgements are not committed, and were not, for others have them.
        self._pending, self._refused = set[TopicQueue](), set[TopicQueue]()
        self._committed_s = time.monotonic()
        self._reader = GroupReader(
            store, replace(subscription, is_acknowledged=True), self.clock, sends_back,
            codec=reading_codec(body_codec, requires_encoded=require_encoded),
        )  # fmt: skip

    # --- receiving --------------------------------------------------------------------------

    def receive(
        self,
        max_messages: int = POLL_MESSAGES,
        invisible_duration_s: float | None = None,
        timeout_s: float = 1.0,
        stopping: threading.Event | None = None,
    ) -> list[ReceivedMessage]:
        """Take messages that nobody has in hand, and be alone with them for a while.

        First come those that were not acknowledged in time. Waits for the first message if there
        is none. `reconsume_times` of a message says how often it was handed out before; it is
        counted in the store before the message is handed out, so a message that kills its process
        is counted too.

        Reads: topics. Writes: `state/group_<group>`. Commits: one if there are messages, with all
        acknowledgements so far; two more where messages become retries. A retry after an error
        loses nothing.

        Args:
            max_messages: the largest number of messages to return.
            invisible_duration_s: how long nobody else gets them; by default the setting of the
                group, else of the store.
            timeout_s: the longest time to wait for the first message; 0 does not wait.
            stopping: ends the wait when another thread sets it.

        Returns:
            The messages; an empty list if none came in time. At most 1,000 of a queue are in hands
            at once.

        Raises: as `PullConsumer.poll`.
        """
        check_poll(max_messages, timeout_s)
        default_s = self._settings.invisible_duration_s
        invisible_s = checked_invisible(invisible_duration_s, default_s)
        deadline_s = time.monotonic() + timeout_s
        messages = self._received(max_messages, invisible_s)
        while not messages and (left_s := deadline_s - time.monotonic()) > 0:
            if stopping is not None and stopping.is_set():
                break
            time.sleep(min(left_s, self._reader.look_interval_s))
            messages = self._received(max_messages, invisible_s, must_look=False)
        return messages

    def _received(
        self, max_messages: int, invisible_s: float, *, must_look: bool = True
    ) -> list[ReceivedMessage]:
        """Take what is there now; with `must_look` also if nothing is new."""
        with self._use.begin():
            reader = self._reader
            if not (must_look or reader.has_news()):
                return []
            try:
                reader.positions.hand_out_again(elapsed_ms(self.clock))
                taken = handed = self._taken(max_messages)
                while taken and not (handed := self._without_retries(taken)):
                    taken = self._taken(max_messages)
                if handed or self._pending:
                    self._commit()
                messages = [message for queue, message in handed if reader.is_owned(queue)]
                reader.work_for(invisible_s)
                reader.positions.receive_until(elapsed_ms(self.clock) + invisible_s * 1000)
            except BaseException:
                # Nobody has them; an interrupt may come at any step.
                reader.positions.undo_taken()
                raise
            finally:
                reader.note_received()
            return messages

    def _taken(self, max_messages: int) -> list[QueueMessage]:
        of_a_queue = self._settings.pull_batch_size
        return self._reader.poll(max_messages, 0.0, of_a_queue=of_a_queue)

    def _without_retries(self, taken: list[QueueMessage]) -> list[QueueMessage]:
        """Send those back that came in their place often enough; they are acknowledged by that."""
        retries = [(q, m) for q, m in taken if self._becomes_retry(q, m)]
        if not retries:
            return taken
        failed = [self._failed(queue, message) for queue, message in retries]
        self._reader.send_back(failed)
        for queue, message in retries:
            self._acknowledge(queue, message)
        return [(q, m) for q, m in taken if self._delivery(q, m) is not None]

    def _becomes_retry(self, queue: TopicQueue, message: ReceivedMessage) -> bool:
        delivery = self._delivery(queue, message)
        return delivery is not None and becomes_retry(
            delivery.times - 1, message.reconsume_times, self._settings,
            is_orderly=self._reader.is_orderly,
        )  # fmt: skip

    def _failed(self, queue: TopicQueue, message: ReceivedMessage) -> FailedMessage:
        delivery = self._delivery(queue, message)
        # What failed is the handing out before this one, which nobody gets.
        tries = 0 if delivery is None else delivery.times - 2
        note_tries(message, tries)
        replay = replay_of(self._reader.replays, queue)
        return FailedMessage(message, NOT_ACKNOWLEDGED, replay=replay, tries=tries)

    # --- acknowledging ----------------------------------------------------------------------

    def ack(self, message: ReceivedMessage) -> None:
        """Note that a message is handled: it does not come again.

        Commits: none; the next `receive`, `commit` or `close` makes it durable, and a call of
        `ack` a second after the last commit. A member that is killed before has the messages of
        its last acknowledgements come again.

        Args:
            message: a message that `receive` returned.

        Raises: InvalidReceiptError if it was handed out again meanwhile, was acknowledged before,
            or its queue has another member: then this call counts for nothing. ClosedError,
            InvalidNameError; StorageError, after which it is noted all the same.
        """
        with self._use.begin():
            self._acknowledge(self._queue_of(message), message)
            if time.monotonic() - self._committed_s >= ACKNOWLEDGE_COMMIT_S:
                self._commit()

    def change_invisible_duration(
        self, message: ReceivedMessage, invisible_duration_s: float
    ) -> None:
        """Have a message in hands come again so many seconds from now; 0 commits.

        0 has it come again at once, as one that failed.

        Args:
            message: a message that `receive` returned.
            invisible_duration_s: seconds from now.

        Raises: as `ack`; ConfigError.
        """
        invisible_s = checked_invisible(invisible_duration_s, 0.0)
        with self._use.begin():
            queue, until_ms = self._queue_of(message), elapsed_ms(self.clock) + invisible_s * 1000
            self._reader.work_for(invisible_s)
            self._reader.positions.change_invisible(queue, message.queue_offset, until_ms)

    def has_in_hand(self, message: ReceivedMessage) -> bool:
        """Tell whether a message is still this consumer's own; 0 commits. Raises: ClosedError."""
        with self._use.begin():
            queue = TopicQueue(self._stored(message.topic), message.queue_id)
            delivery = self._delivery(queue, message) if self._reader.is_owned(queue) else None
            return delivery is not None and elapsed_ms(self.clock) < delivery.until_ms

    def commit(self) -> frozenset[TopicQueue]:
        """Make all acknowledgements durable: one commit, or none if there is nothing new.

        Returns:
            Queues that another member got before what was acknowledged of them since the last call
            was durable: those messages come again.

        Raises: ClosedError, StorageError.
        """
        with self._use.begin():
            self._commit()
            refused, self._refused = self._refused, set()
            return frozenset(map(self._shown, refused))

    def _commit(self) -> None:
        result = self._reader.commit()
        self._refused |= result.refused & self._pending
        self._pending, self._committed_s = set(), time.monotonic()

    def _acknowledge(self, queue: TopicQueue, message: ReceivedMessage) -> None:
        self._pending.add(queue)
        self._reader.positions.acknowledge(queue, message.queue_offset)

    def _queue_of(self, message: ReceivedMessage) -> TopicQueue:
        """Return the queue of a message in hands. Raises: InvalidReceiptError."""
        queue = TopicQueue(self._stored(message.topic), message.queue_id)
        if not self._reader.is_owned(queue) or self._delivery(queue, message) is None:
            raise InvalidReceiptError(message.topic, message.queue_id, message.queue_offset)
        return queue

    def _delivery(self, queue: TopicQueue, message: ReceivedMessage) -> Delivery | None:
        position = self._reader.positions.get(queue)
        return None if position is None else position.delivery_of(message)

    # --- ending -----------------------------------------------------------------------------

    def close(self) -> None:
        """Commit, and leave the group: at most two commits.

        What was not acknowledged comes again at once, to another member. Closing a second time
        does nothing.

        Raises: StorageError.
        """
        if self._use.is_over:
            return
        with self._use.begin():
            self._use.close()
            try:
                self._commit()
            finally:
                self._reader.leave()

    def __enter__(self) -> Self:
        """Return the consumer itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the consumer."""
        self.close()


def becomes_retry(
    failures: int, failures_in_all: int, settings: ConsumeSettings, *, is_orderly: bool
) -> bool:
    """Tell whether a message leaves its place for the retry topic, or for the dead letters.

    Args:
        failures: how often it was handed out in its place and not acknowledged.
        failures_in_all: these, and how often it was sent back before.
        settings: the settings of the group.
        is_orderly: whether it stays in its place as long as it may.
    """
    if failures == 0:
        return False
    in_place_max = settings.max_reconsume_times if is_orderly else settings.redeliver_in_place_max
    return failures > in_place_max or failures_in_all > settings.max_reconsume_times


class AwaitableMessage(ReceivedMessage):
    """A message of an AsyncSimpleConsumer, with what may become of it."""

    __slots__ = ("_consumer",)

    def __init__(self, message: ReceivedMessage, consumer: AsyncSimpleConsumer) -> None:
        """View the same row, under the same receipt."""
        super().__init__(message._rows, message._row)  # noqa: SLF001 - of its own class
        note_delivery(self, tries_of(message), receipt_of(message))
        self._consumer = consumer

    async def ack(self) -> None:
        """Acknowledge it, as `AsyncSimpleConsumer.ack`."""
        await self._consumer.ack(self)

    async def change_invisible_duration(self, invisible_duration_s: float) -> None:
        """Have it come again so many seconds from now, as `AsyncSimpleConsumer` does."""
        await self._consumer.change_invisible_duration(self, invisible_duration_s)


class AsyncSimpleConsumer(OfOneProcess):
    """A SimpleConsumer for coroutines: it works in threads of its own, never in the event loop.

    `async with` joins the group, and leaves it. Any number of tasks may receive and acknowledge.
    An `await` of an acknowledgement returns once it is durable; those that wait at the same time
    share a commit.

    Args:
        store: the store of the topics.
        consumer_group: the name of the group.
        topics: as those of PullConsumer.
        options: as those of SimpleConsumer.

    Raises: InvalidNameError, InvalidFilterError, ConfigError. What SimpleConsumer raises beyond
        them comes at `async with`.

    Example:
        >>> async with AsyncSimpleConsumer(
        ...     store, consumer_group="billing", topics="order-paid"
        ... ) as consumer:
        ...     async for message in consumer:
        ...         await bill(message.keys)
        ...         await message.ack()
    """

    def __init__(
        self, store: Store, *, consumer_group: str, topics: Topics, **options: Any
    ) -> None:
        """Check the names, and read and write nothing."""
        check_store(store)
        Subscription.of(
            consumer_group=consumer_group, topics=topics, mode=ConsumeMode.CLUSTERING,
            from_where=options.get("from_where", ConsumeFromWhere.FIRST_OFFSET),
            from_timestamp=options.get("from_timestamp"), member_id=options.get("member_id"),
            namespace=options.get("namespace"),
        )  # fmt: skip
        self._make = partial(
            SimpleConsumer, store, consumer_group=consumer_group, topics=topics, **options
        )
        self._consumer: SimpleConsumer | None = None
        self._joining: Future[SimpleConsumer] | None = None
        self._is_closed = False
        # One waits for messages while the other one acknowledges.
        self._executor = ThreadPoolExecutor(2, thread_name_prefix="txmq-async-simple")
        self._receiving: set[threading.Event] = set()
        self._in_loop: deque[AwaitableMessage] = deque()
        self._acks: list[tuple[ReceivedMessage, asyncio.Future[None]]] = []
        self._committing: asyncio.Task[None] | None = None
        self._left: Future[None] | None = None

    @property
    def consumer(self) -> SimpleConsumer:
        """The consumer that does the work; its calls wait.

        Raises: ClosedError outside of `async with`.
        """
        if self._consumer is None or self._is_closed:
            raise ClosedError("the consumer is not open; use it in `async with`")
        return self._consumer

    # --- receiving --------------------------------------------------------------------------

    async def receive(
        self,
        max_messages: int = POLL_MESSAGES,
        invisible_duration_s: float | None = None,
        timeout_s: float = 1.0,
    ) -> list[AwaitableMessage]:
        """Take messages, as `SimpleConsumer.receive`; those of a cancelled call come again."""
        stopping = LoopEvent(asyncio.get_running_loop())
        receive = partial(
            self.consumer.receive, max_messages, invisible_duration_s, timeout_s, stopping
        )
        receiving = self._executor.submit(receive)
        self._receiving.add(stopping)
        try:
            messages = await asyncio.wrap_future(receiving)
        except asyncio.CancelledError:
            stopping.set()
            receiving.add_done_callback(self._give_again)
            raise
        finally:
            self._receiving.discard(stopping)
        return [AwaitableMessage(message, self) for message in messages]

    def _give_again(self, receiving: Future[list[ReceivedMessage]]) -> None:
        if receiving.cancelled() or receiving.exception() is not None:
            return
        # What cannot be given again now comes when its invisible time is over.
        with suppress(InvalidReceiptError, ClosedError):
            for message in receiving.result():
                self.consumer.change_invisible_duration(message, 0)

    def __aiter__(self) -> Self:
        """Hand out message after message, for ever.

        A message that the loop does not acknowledge comes again. The loop ends if another task
        calls `close`.
        """
        return self

    async def __anext__(self) -> AwaitableMessage:
        """Return the next message. Raises: as `SimpleConsumer.receive`."""
        while not self._is_closed:
            while self._in_loop:
                message = self._in_loop.popleft()
                # It may have waited here too long, and have come again.
                if self.consumer.has_in_hand(message):
                    return message
            try:
                self._in_loop.extend(await self.receive())
            except ClosedError:
                break
        raise StopAsyncIteration

    # --- acknowledging ----------------------------------------------------------------------

    async def ack(self, message: ReceivedMessage) -> None:
        """Acknowledge a message, and return once that is durable.

        A task that is cancelled meanwhile may have acknowledged all the same.

        Raises: as `SimpleConsumer.ack`; InvalidReceiptError also where another member got the
            queue meanwhile.
        """
        consumer, over = self.consumer, asyncio.get_running_loop().create_future()
        self._acks.append((message, over))
        if self._committing is None or self._committing.done():
            self._committing = asyncio.create_task(self._acknowledge(consumer))
        await over

    async def _acknowledge(self, consumer: SimpleConsumer) -> None:
        """Acknowledge all that waits, with one commit for those that came meanwhile."""
        loop = asyncio.get_running_loop()
        while self._acks:
            acks, self._acks = self._acks, []
            call = partial(acknowledge_all, consumer, [message for message, _ in acks])
            try:
                problems = await loop.run_in_executor(self._executor, call)
            except Exception as error:  # noqa: BLE001 - raised where each of them is awaited
                problems = [error] * len(acks)
            for (_, over), problem in zip(acks, problems, strict=True):
                if over.done():
                    continue
                if problem is None:
                    over.set_result(None)
                else:
                    over.set_exception(problem)

    async def change_invisible_duration(
        self, message: ReceivedMessage, invisible_duration_s: float
    ) -> None:
        """Have a message in hands come again later, as `SimpleConsumer` does."""
        call = partial(self.consumer.change_invisible_duration, message, invisible_duration_s)
        await asyncio.get_running_loop().run_in_executor(self._executor, call)

    # --- joining and ending -----------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Join the group.

        Raises: as SimpleConsumer; ClosedError if it was used before, or is closed meanwhile.
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
        """Commit, and leave the group; see `SimpleConsumer.close`. A second time waits for it.

        Raises: StorageError.
        """
        self._end()
        if self._left is not None:
            await asyncio.shield(asyncio.wrap_future(self._left))

    def _end(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        for stopping in self._receiving:
            stopping.set()
        if self._joining is not None:
            self._left = self._executor.submit(_close_joined, self._joining)
        self._executor.shutdown(wait=False)

    async def __aexit__(self, *_: object) -> None:
        """Close the consumer, also after an exception."""
        await self.close()


def acknowledge_all(
    consumer: SimpleConsumer, messages: Sequence[ReceivedMessage]
) -> list[Exception | None]:
    """Acknowledge messages with one commit; return the problem of each, None where it is durable.

    Raises: ClosedError, StorageError.
    """
    problems: list[Exception | None] = []
    for message in messages:
        try:
            consumer.ack(message)
            problems.append(None)
        except InvalidReceiptError as problem:
            problems.append(problem)
    lost = consumer.commit()
    return [
        InvalidReceiptError(message.topic, message.queue_id, message.queue_offset)
        if problem is None and TopicQueue(message.topic, message.queue_id) in lost
        else problem
        for message, problem in zip(messages, problems, strict=True)
    ]


def _close_joined(joining: Future[SimpleConsumer]) -> None:
    if not joining.cancelled() and joining.exception() is None:
        joining.result().close()
