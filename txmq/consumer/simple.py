"""The consumer of RocketMQ 5 that acknowledges each message for itself, from any thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Self

from txmq.consumer.acknowledged import AcknowledgedPositions
from txmq.consumer.arguments import Subscription, Topics, check_poll, checked_setting
from txmq.consumer.awaitable import AwaitedConsumer
from txmq.consumer.exclusive_use import SharedUse
from txmq.consumer.group import settings_in
from txmq.consumer.group_reader import LOOK_INTERVAL_S, GroupReader
from txmq.consumer.group_rules import ConsumeMode, TopicQueue, replay_of
from txmq.consumer.offsets import ConsumeFromWhere, OffsetsByTopic
from txmq.consumer.pull import POLL_MESSAGES, MovableMember
from txmq.consumer.send_back import FailedMessage, SendsBack
from txmq.consumer.taking import QueueMessage
from txmq.errors import ClosedError, ConfigError, InvalidReceiptError, TxmqError, shown
from txmq.ground.clock import Clock, SystemClock, elapsed_ms
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
        self._settings = settings_in(store, self.consumer_group)
        # Queues of which acknowledgements are not committed, and were not, for others have them.
        self._pending, self._refused = set[TopicQueue](), set[TopicQueue]()
        self._committed_s, self._has_raised = time.monotonic(), False
        # Whether the last `receive` was broken off.
        self._is_unfinished = False
        self._positions = AcknowledgedPositions(is_orderly=self._settings.consume_message_orderly)
        self._reader = GroupReader(
            store, replace(subscription, is_acknowledged=True), self.clock, sends_back,
            settings=self._settings,
            codec=reading_codec(body_codec, requires_encoded=require_encoded),
            positions=self._positions,
        )  # fmt: skip

    @property
    def is_orderly(self) -> bool:
        """Whether the group keeps order."""
        return self._reader.is_orderly

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
        invisible_s = self._checked_setting(invisible_duration_s)
        deadline_s = time.monotonic() + timeout_s
        messages = self._received(max_messages, invisible_s)
        while not messages and (left_s := deadline_s - time.monotonic()) > 0:
            if stopping is not None and stopping.is_set():
                break
            time.sleep(min(left_s, self._reader.look_interval_s))
            messages = self._received(max_messages, invisible_s, must_look=False)
        return messages

    def _checked_setting(self, invisible_duration_s: float | None) -> float:
        return checked_setting(
            "invisible_duration_s", invisible_duration_s, self._settings.invisible_duration_s
        )

    def _received(
        self,
        max_messages: int,
        invisible_s: float,
        *,
        must_look: bool = True,
        is_ahead: bool = False,
    ) -> list[ReceivedMessage]:
        """Take what is there now; with `must_look` also if nothing is new.

        What is taken ahead, for a caller who asks for it later, does not count as handed out if its
        time is over before.
        """
        with self._use.begin():
            reader, positions = self._reader, self._positions
            if self._is_unfinished:
                # An interrupt of the last call may have come while it undid what it had taken.
                positions.undo_taken()
            if not (must_look or reader.has_news()):
                return []
            self._is_unfinished = True
            try:
                positions.hand_out_again(elapsed_ms(self.clock))
                handed = self._handed(max_messages)
                if handed or self._pending:
                    self._commit()
                messages = [message for queue, message in handed if reader.is_owned(queue)]
                until_ms = elapsed_ms(self.clock) + invisible_s * 1000
                positions.receive_until(until_ms, is_ahead=is_ahead)
                self._work_on()
            except BaseException:
                # Nobody has them; an interrupt may come at any step.
                positions.undo_taken()
                raise
            finally:
                reader.note_received()
            self._is_unfinished = False
            return messages

    def _handed(self, max_messages: int) -> list[QueueMessage]:
        """Take messages, without those that become retries."""
        of_a_queue = self._settings.pull_batch_size
        while taken := self._reader.poll(max_messages, 0.0, of_a_queue=of_a_queue):
            retries = [(q, m) for q, m in taken if self._becomes_retry(q, m)]
            if not retries:
                return taken
            are_sent = self._send_back(retries, is_alone=len(retries) == len(taken))
            if are_sent and len(retries) == len(taken):
                continue
            return [(q, m) for q, m in taken if (q, m) not in retries]
        return []

    def _send_back(self, retries: list[QueueMessage], *, is_alone: bool) -> bool:
        """Send those back that came in their place often enough; they are acknowledged by that.

        Where they cannot be sent, others are handed out all the same, and the next call raises.
        """
        try:
            self._reader.send_back([self._failed(queue, message) for queue, message in retries])
        except (TxmqError, OSError):
            if is_alone or not self._has_raised:
                self._has_raised = True
                raise
            self._has_raised = False
            for queue, message in retries:
                self._positions.give_back(queue, message.queue_offset)
            return False
        for queue, message in retries:
            self._acknowledge(queue, message)
        return True

    def _becomes_retry(self, queue: TopicQueue, message: ReceivedMessage) -> bool:
        delivery = self._positions.delivery_of(queue, message)
        return delivery is not None and becomes_retry(
            delivery.times - 1, message.reconsume_times, self._settings,
            is_orderly=self._reader.is_orderly,
        )  # fmt: skip

    def _failed(self, queue: TopicQueue, message: ReceivedMessage) -> FailedMessage:
        # What failed is the handing out before this one, which nobody gets.
        tries = tries_of(message) - 1
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
            ConfigError; StorageError, after which it is noted all the same.
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
        invisible_s = checked_setting("invisible_duration_s", invisible_duration_s, 0.0)
        with self._use.begin():
            self._hold(self._queue_of(message), message, invisible_s)

    def _hold(
        self,
        queue: TopicQueue,
        message: ReceivedMessage,
        invisible_s: float,
        *,
        is_ahead: bool = False,
    ) -> None:
        until_ms = elapsed_ms(self.clock) + invisible_s * 1000
        self._positions.change_invisible(queue, message.queue_offset, until_ms, is_ahead=is_ahead)
        self._work_on()

    def _begin(self, message: ReceivedMessage, ahead: Iterable[ReceivedMessage]) -> bool:
        """Hand out a message that was taken ahead, and go on to hold the others.

        Returns:
            Whether it is still in hand: else it comes again.
        """
        with self._use.begin():
            self._hold_all([message], is_ahead=False)
            self._hold_all(ahead, is_ahead=True)
            return self._queue_in_hand(message) is not None

    def _hold_all(self, messages: Iterable[ReceivedMessage], *, is_ahead: bool) -> None:
        """Hold those of the messages that are still in hand from now on."""
        with self._use.begin():
            for message in messages:
                if queue := self._queue_in_hand(message):
                    self._hold(
                        queue, message, self._settings.invisible_duration_s, is_ahead=is_ahead
                    )

    def _give_back(self, messages: Iterable[ReceivedMessage]) -> None:
        """Have messages that no caller got come again, as if they had not been handed out."""
        with self._use.begin():
            for message in messages:
                if queue := self._queue_in_hand(message):
                    self._positions.give_back(queue, message.queue_offset)

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

    def _acknowledge_all(
        self, messages: Sequence[ReceivedMessage]
    ) -> list[InvalidReceiptError | None]:
        """Acknowledge messages with one commit; return the problem of each, None if it is durable.

        Raises: ClosedError, StorageError, after which they are noted all the same.
        """
        with self._use.begin():
            queues: list[TopicQueue | None] = []
            for message in messages:
                queues.append(self._queue_in_hand(message))
                if queue := queues[-1]:
                    self._acknowledge(queue, message)
            before, self._refused = self._refused, set()
            self._commit()
            lost, self._refused = self._refused, before | self._refused
            return [
                InvalidReceiptError(message.topic, message.queue_id, message.queue_offset)
                if queue is None or queue in lost
                else None
                for message, queue in zip(messages, queues, strict=True)
            ]

    def _commit(self) -> None:
        result = self._reader.commit()
        self._refused |= result.refused & self._pending
        self._pending, self._committed_s = set(), time.monotonic()

    def _acknowledge(self, queue: TopicQueue, message: ReceivedMessage) -> None:
        self._pending.add(queue)
        self._positions.acknowledge(queue, message.queue_offset)

    def _queue_of(self, message: ReceivedMessage) -> TopicQueue:
        """Return the queue of a message in hands. Raises: ConfigError, InvalidReceiptError."""
        check_message(message)
        queue = self._queue_in_hand(message)
        if queue is None:
            raise InvalidReceiptError(message.topic, message.queue_id, message.queue_offset)
        return queue

    def _queue_in_hand(self, message: ReceivedMessage) -> TopicQueue | None:
        """Return the queue of a message; None if it is not in hand any more."""
        queue = TopicQueue(self._stored(message.topic), message.queue_id)
        if not self._reader.is_owned(queue):
            return None
        return queue if self._positions.delivery_of(queue, message) is not None else None

    def _work_on(self) -> None:
        """Keep the lease without a question as long as messages are in hands."""
        left_ms = self._positions.visible_ms() - elapsed_ms(self.clock)
        self._reader.work_on(max(left_ms, 0) / 1000)

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


def check_message(message: object) -> None:
    """Refuse what `receive` did not return. Raises: ConfigError."""
    if not isinstance(message, ReceivedMessage):
        raise ConfigError([f"message must be one that receive returned, not {shown(message)}"])


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


class AsyncSimpleConsumer(AwaitedConsumer[SimpleConsumer]):
    """A SimpleConsumer for coroutines: it works in a thread of its own, never in the event loop.

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
        make = partial(
            SimpleConsumer, store, consumer_group=consumer_group, topics=topics, **options
        )
        # The calls of its thread are short: nobody waits for messages in it.
        super().__init__(make, "txmq-async-simple")
        self._look_interval_s = store.look_interval_s(LOOK_INTERVAL_S)
        # Taken, and not handed out by `async for` yet.
        self._ahead: deque[AwaitableMessage] = deque()
        self._acks: list[tuple[ReceivedMessage, asyncio.Future[None]]] = []
        self._committing: asyncio.Task[None] | None = None

    # --- receiving --------------------------------------------------------------------------

    async def receive(
        self,
        max_messages: int = POLL_MESSAGES,
        invisible_duration_s: float | None = None,
        timeout_s: float = 1.0,
    ) -> list[AwaitableMessage]:
        """Take messages, as `SimpleConsumer.receive`; those of a cancelled call come again."""
        check_poll(max_messages, timeout_s)
        invisible_s = self.consumer._checked_setting(invisible_duration_s)  # noqa: SLF001 - of this file
        return await self._received(max_messages, invisible_s, timeout_s)

    async def _received(
        self, max_messages: int, invisible_s: float, timeout_s: float, *, is_ahead: bool = False
    ) -> list[AwaitableMessage]:
        deadline_s, must_look = time.monotonic() + timeout_s, True
        while True:
            take = partial(
                self.consumer._received, max_messages, invisible_s,  # noqa: SLF001 - of this file
                must_look=must_look, is_ahead=is_ahead,
            )  # fmt: skip
            messages = await self._taken(take)
            left_s = deadline_s - time.monotonic()
            if messages or left_s <= 0:
                return [AwaitableMessage(message, self) for message in messages]
            await asyncio.sleep(min(left_s, self._look_interval_s))
            must_look = False

    async def _taken(self, take: Callable[[], list[ReceivedMessage]]) -> list[ReceivedMessage]:
        taking = self._executor.submit(take)
        try:
            return await asyncio.wrap_future(taking)
        except asyncio.CancelledError:
            # In the same thread, after it.
            if not self._is_closed:
                self._executor.submit(self._give_back, taking)
            raise

    def _give_back(self, taking: Future[list[ReceivedMessage]]) -> None:
        if not taking.cancelled() and taking.exception() is None and self._consumer is not None:
            self._consumer._give_back(taking.result())  # noqa: SLF001 - of this file

    def __aiter__(self) -> Self:
        """Hand out message after message, for ever.

        A message is invisible from when the loop gets it. One that the loop does not acknowledge
        comes again. The loop ends if another task calls `close`.
        """
        return self

    async def __anext__(self) -> AwaitableMessage:
        """Return the next message. Raises: as `SimpleConsumer.receive`."""
        try:
            while True:
                while self._ahead:
                    # What waits here too long comes again.
                    if message := await self._next_ahead():
                        return message
                invisible_s = self.consumer._checked_setting(None)  # noqa: SLF001 - of this file
                taken = await self._received(POLL_MESSAGES, invisible_s, 1.0, is_ahead=True)
                self._ahead.extend(taken)
        except ClosedError:
            raise StopAsyncIteration from None

    async def _next_ahead(self) -> AwaitableMessage | None:
        """Take the first message that was taken ahead; None if it is not in hand any more."""
        message, consumer = self._ahead.popleft(), self.consumer
        begin = partial(consumer._begin, message, tuple(self._ahead))  # noqa: SLF001 - of this file
        beginning = self._executor.submit(begin)
        try:
            is_in_hand = await asyncio.wrap_future(beginning)
        except asyncio.CancelledError:
            # The caller does not get it, so it stays the first one.
            self._ahead.appendleft(message)
            if not self._is_closed:
                self._executor.submit(partial(consumer._hold_all, [message], is_ahead=True))  # noqa: SLF001 - of this file
            raise
        if not is_in_hand and consumer.is_orderly:
            # What is behind it comes after it.
            rest = tuple(self._ahead)
            self._ahead.clear()
            await self._call(consumer._give_back, rest)  # noqa: SLF001 - of this file
        return message if is_in_hand else None

    # --- acknowledging ----------------------------------------------------------------------

    async def ack(self, message: ReceivedMessage) -> None:
        """Acknowledge a message, and return once that is durable.

        A task that is cancelled meanwhile may have acknowledged all the same.

        Raises: as `SimpleConsumer.ack`; InvalidReceiptError also where another member got the
            queue meanwhile.
        """
        check_message(message)
        consumer, over = self.consumer, asyncio.get_running_loop().create_future()
        self._acks.append((message, over))
        if self._committing is None or self._committing.done():
            self._committing = asyncio.create_task(self._acknowledge(consumer))
        await over

    async def _acknowledge(self, consumer: SimpleConsumer) -> None:
        """Acknowledge all that waits, with one commit for those that came meanwhile."""
        while self._acks:
            acks, self._acks = self._acks, []
            problems: Sequence[Exception | None]
            try:
                messages = [message for message, _ in acks]
                problems = await self._call(consumer._acknowledge_all, messages)  # noqa: SLF001 - of this file
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
        await self._call(self.consumer.change_invisible_duration, message, invisible_duration_s)

    # --- joining and ending -----------------------------------------------------------------

    async def close(self) -> None:
        """Commit, and leave the group; see `SimpleConsumer.close`. A second time waits for it.

        Acknowledgements that wait are made before.

        Raises: StorageError.
        """
        is_first, self._is_closed = not self._is_closed, True
        if is_first and self._committing is not None:
            await asyncio.wait([self._committing])
        self._end()
        if self._left is not None:
            await asyncio.shield(asyncio.wrap_future(self._left))

    def _end(self) -> None:
        """Leave the group after what is on its way; a second call does nothing."""
        self._is_closed = True
        if self._left is None and self._joining is not None:
            self._left = self._executor.submit(_close_joined, self._joining, tuple(self._ahead))
        self._executor.shutdown(wait=False)


def _close_joined(joining: Future[SimpleConsumer], ahead: Sequence[ReceivedMessage]) -> None:
    if joining.cancelled() or joining.exception() is not None:
        return
    consumer = joining.result()
    try:
        # As taken and never handed out, which the commit of the end tells the next member.
        consumer._give_back(ahead)  # noqa: SLF001 - of this file
    finally:
        consumer.close()
