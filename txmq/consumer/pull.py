"""Consumers without Spark: a member of a group that polls, handles and commits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

from txmq.consumer.arguments import (
    Subscription,
    Topics,
    check_max_messages,
    check_poll,
    checked_queue,
    checked_setting,
    checked_timeout,
)
from txmq.consumer.exclusive_use import ExclusiveUse, SharedUse
from txmq.consumer.group import settings_in
from txmq.consumer.group_reader import CommitResult, GroupReader
from txmq.consumer.group_rules import ConsumeMode, TopicQueue, replay_of
from txmq.consumer.handlers import (
    ErrorHook,
    Function,
    Handler,
    HandlersByTopic,
    ListHandler,
    MessageHandler,
    ProcessWatch,
    checked_on_error,
)
from txmq.consumer.lag import QueueLag, lag_of_group
from txmq.consumer.offsets import (
    ConsumeFromWhere,
    OffsetsByTopic,
    TopicOffsets,
    check_offset,
    moment_ms,
)
from txmq.consumer.push import ConsumeResult, ConsumerHandle, MessagePush
from txmq.consumer.send_back import FailedMessage, SendsBack
from txmq.consumer.taking import first_handed, first_offsets
from txmq.errors import ConfigError, QueueNotOwnedError
from txmq.ground.clock import Clock, SystemClock
from txmq.ground.handles import OfOneProcess
from txmq.listeners.hooks import Hook, Hooks
from txmq.message.codec import BodyCodec, reading_codec
from txmq.message.names import topic_in_namespace, unwrapped
from txmq.message.received import ReceivedMessage
from txmq.store.catalog import TopicCatalog
from txmq.store.store import Store, check_store


class MovableMember(OfOneProcess):
    """What all consumers of a process can do in their queues; each of them sets the attributes."""

    store: Store
    namespace: str | None
    consumer_group: str
    clock: Clock
    _use: ExclusiveUse | SharedUse
    _reader: GroupReader

    @property
    def assignment(self) -> tuple[TopicQueue, ...]:
        """The queues that this member reads now; the retry topic of the group is among them."""
        return tuple(sorted(self._shown(queue) for queue in self._reader.queues))

    def pause(self, topic: str, queue_id: int | None = None) -> None:
        """Hand out nothing of a topic, or of one of its queues, until `resume`; 0 commits.

        Args:
            topic: one of the topics of this consumer.
            queue_id: one queue; all queues of the topic if it is left out.

        Raises: InvalidNameError, ConfigError, ClosedError, ConcurrentUseError.
        """
        with self._use.begin():
            self._reader.pause(self._subscribed(topic), checked_queue(queue_id))

    def resume(self, topic: str, queue_id: int | None = None) -> None:
        """End what `pause` began; 0 commits.

        Args:
            topic: one of the topics of this consumer.
            queue_id: one queue; if it is left out, the topic and all its queues are resumed.

        Raises: InvalidNameError, ConfigError, ClosedError, ConcurrentUseError.
        """
        with self._use.begin():
            self._reader.resume(self._subscribed(topic), checked_queue(queue_id))

    def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """Go on at another offset of a queue, for the whole group: one commit.

        Messages that were handed out and not committed count as not handled. A retry sets the same
        offset again.

        Args:
            topic: one of the topics of this consumer.
            queue_id: a queue of `assignment`.
            offset: the next offset to read, from the first one that is kept to the end.

        Raises: OffsetOutOfRangeError, QueueNotOwnedError, InvalidNameError, ConfigError,
            ClosedError, ConcurrentUseError, StorageError.
        """
        with self._use.begin():
            queue = self._owned(self._subscribed(topic), queue_id)
            offsets = TopicOffsets(self.store, queue.topic)
            first, end = offsets.first([queue_id])[queue_id], offsets.end([queue_id])[queue_id]
            check_offset(queue.topic, queue_id, offset, first, end)
            self._reader.seek({queue: offset})

    def seek_to_time(self, topic: str, moment: datetime) -> None:
        """Go on with messages that were stored at `moment` or later, for the whole group.

        Moves all queues of the topic that this member has: one commit. A retry sets the same
        offsets again.

        Args:
            topic: one of the topics of this consumer.
            moment: a time with a time zone.

        Raises: ConfigError, QueueNotOwnedError, InvalidNameError, ClosedError, ConcurrentUseError,
            StorageError.
        """
        with self._use.begin():
            stored, at_ms = self._subscribed(topic), moment_ms(moment)
            self._reader.keep_up()
            offsets = TopicOffsets(self.store, stored).at(self._reader.queues_of(stored), at_ms)
            self._reader.seek({TopicQueue(stored, q): offset for q, offset in offsets.items()})

    def min_offsets(self, topic: str) -> dict[int, int]:
        """Return the first offset of each queue that retention has left; 0 commits.

        Args:
            topic: one of the topics of this consumer; all its queues are looked at, whoever has
                them.

        Raises: InvalidNameError, ConfigError, ClosedError, ConcurrentUseError, StorageError.
        """
        with self._use.begin():
            offsets, queues = self._offsets_of(topic)
            return offsets.first(queues)

    def max_offsets(self, topic: str) -> dict[int, int]:
        """Return the offset that the next message of each queue will get; as `min_offsets`."""
        with self._use.begin():
            offsets, queues = self._offsets_of(topic)
            return offsets.end(queues)

    def offsets_at(self, topic: str, moment: datetime) -> dict[int, int]:
        """Return the first offset of each queue that was stored at a moment or later.

        Of a queue without such a message the next offset; as `min_offsets`.

        Args:
            topic: one of the topics of this consumer.
            moment: a time with a time zone.
        """
        with self._use.begin():
            at_ms = moment_ms(moment)
            offsets, queues = self._offsets_of(topic)
            return offsets.at(queues, at_ms)

    def _offsets_of(self, topic: str) -> tuple[TopicOffsets, range]:
        stored = self._subscribed(topic)
        offsets = TopicOffsets(self.store, stored)
        declared = TopicCatalog(self.store).queue_count(stored)
        return offsets, range(max(declared, offsets.queue_count()))

    def close(self) -> None:
        """Leave the group."""
        raise NotImplementedError

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

    def _owned(self, topic: str, queue_id: int) -> TopicQueue:
        self._reader.keep_up()
        # True and 1.0 are equal to 1 in Python.
        if type(queue_id) is int and self._reader.is_owned(TopicQueue(topic, queue_id)):
            return TopicQueue(topic, queue_id)
        raise QueueNotOwnedError(topic, queue_id)

    def _subscribed(self, topic: str) -> str:
        stored = self._stored(topic)
        self._reader.check_reads(stored)
        return stored

    def _stored(self, topic: str) -> str:
        return topic_in_namespace(topic, self.namespace)

    def _shown(self, queue: TopicQueue) -> TopicQueue:
        return TopicQueue(unwrapped(queue.topic, self.namespace), queue.queue_id)

    def lag(self) -> list[QueueLag]:
        """Count the messages that the whole group has not consumed yet, queue by queue.

        Reads: `state/group_<group>`, topics. Commits: 0.

        Returns:
            One entry for each queue of which the group has an offset.

        Raises: StorageError.
        """
        return lag_of_group(self.store, self.consumer_group, self.clock)


POLL_MESSAGES = 32


class PullConsumer(MovableMember):
    """Reads topics as a member of a consumer group; needs no Spark.

    The members of a CLUSTERING group share its queues and take over for each other: if a member is
    silent for `consumer_lease_s`, its queues go to other members, which read on from its last
    commit. So a message may come again, but no two members have it at the same moment.

    A group does not hold back VACUUM or retention. If retention removes messages that it has not
    read, `poll` raises MessagesExpiredError.

    A consumer is for one thread at a time, and a forked process needs its own. A thread inside the
    consumer renews the lease.

    Args:
        store: the store of the topics.
        consumer_group: the name of the group.
        topics: a name, several names, or a mapping of names to filters as `parse_filter` takes
            them. A topic that does not exist yet is read from its first message; a warning says so
            once, with the nearest name that is there.
        from_where: where a group begins that has no offsets yet (R106): the first or the last
            offset, a moment, or offsets by topic and queue.
        from_timestamp: the moment, for ConsumeFromWhere.TIMESTAMP.
        mode: in CLUSTERING the members share the messages; in BROADCASTING each member reads all
            messages, and failed ones are not sent back (R109).
        member_id: the name of this member. BROADCASTING needs it: offsets are kept under it.
        namespace: the namespace of the names of the group and of the topics (R94).
        clock: measures leases and calls; only durations count.
        sends_back: sends failed messages to the retry topic; the default is `SendBack`.
        consume_timeout_s: a handler that takes longer has failed; by default the setting of the
            group, else of the store.
        consume_threads: how many threads call the handler of `start`; by default the setting of the
            group, else of the store.
        on_error: called with the message and the error where a handler fails: with what it raised,
            a ConsumeTimeoutError (in a thread of its own), or a HandlerResultError.
        hooks: are told of each call of a handler.
        body_codec: decodes bodies, as `AesGcmCodec` does; without it they are the stored bytes.
        require_encoded: `body` of a message that no codec has encoded raises BodyCodecError;
            without it such a body is taken as it is, whoever wrote it.

    Raises:
        InvalidNameError: a name cannot be used.
        InvalidFilterError: a filter cannot be read.
        ConfigError, HookError: another argument cannot be used.
        TopicNotFoundError: the topic does not exist, and the store creates none by itself.
        OffsetOutOfRangeError: the group cannot begin at an offset of `from_where`.
        ConsumerGroupConflictError: members that live read other topics, filters or in another mode.
        StorageError: a table cannot be read or written.

    Example:
        >>> with PullConsumer(store, consumer_group="billing", topics="order-paid") as consumer:
        ...     for message in consumer.poll(timeout_s=0.1):
        ...         print(message.keys)
        ...     consumer.commit().refused
        frozenset()
    """

    _use: ExclusiveUse

    def __init__(  # noqa: PLR0913 - the arguments of a consumer
        self,
        store: Store,
        *,
        consumer_group: str,
        topics: Topics,
        from_where: ConsumeFromWhere | OffsetsByTopic = ConsumeFromWhere.FIRST_OFFSET,
        from_timestamp: datetime | None = None,
        mode: ConsumeMode = ConsumeMode.CLUSTERING,
        member_id: str | None = None,
        namespace: str | None = None,
        clock: Clock | None = None,
        sends_back: SendsBack | None = None,
        consume_timeout_s: float | None = None,
        consume_threads: int | None = None,
        on_error: ErrorHook | None = None,
        hooks: Iterable[Hook] = (),
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
            from_timestamp=from_timestamp, mode=mode, member_id=member_id, namespace=namespace,
        )  # fmt: skip
        self.store = store
        self.namespace, self.consumer_group = namespace, subscription.consumer_group
        self.mode, self.member_id = subscription.mode, subscription.member_id
        self.clock: Clock = clock or SystemClock()
        self._use = ExclusiveUse()
        self._handle: ConsumerHandle | None = None
        settings = settings_in(store, self.consumer_group)
        timeout_s = checked_timeout(consume_timeout_s, settings.consume_timeout_s)
        self._settings = replace(
            settings, consume_timeout_s=timeout_s,
            consume_threads=checked_setting(
                "consume_threads", consume_threads, settings.consume_threads
            ),
        )  # fmt: skip
        self._on_error = checked_on_error(on_error)
        self._watch = ProcessWatch(Hooks(hooks), consumer_group, namespace)
        self._by_topic = HandlersByTopic(subscription.filters, namespace)
        self._reader = GroupReader(
            store, subscription, self.clock, sends_back, settings=self._settings,
            codec=reading_codec(body_codec, requires_encoded=require_encoded),
        )  # fmt: skip

    # --- pulling ----------------------------------------------------------------------------

    def poll(
        self,
        max_messages: int = POLL_MESSAGES,
        timeout_s: float = 1.0,
        stopping: threading.Event | None = None,
    ) -> list[ReceivedMessage]:
        """Take messages that are visible, each queue in its order.

        Waits for the first message if there is none. Messages that a filter holds back count as
        consumed.

        If a queue cannot be read because retention removed its next message, its offset is out of
        range, or a file is damaged, the call raises and hands nothing out. The next call serves the
        other queues, and the call after it raises again, until the cause is gone, as after `seek`.

        Reads: topics. Writes: `state/group_<group>`, to renew the lease. Commits: none, but for
        the renewal of the lease every third of `consumer_lease_s`. A retry after an error loses
        nothing: what was not handed out comes with the next call.

        Args:
            max_messages: the largest number of messages to return.
            timeout_s: the longest time to wait for the first message; 0 does not wait.
            stopping: ends the wait when another thread sets it.

        Returns:
            The messages; an empty list if none came in time.

        Raises:
            MessagesExpiredError: retention removed messages that the group had not read.
            OffsetOutOfRangeError: a queue has no message at the offset of the group.
            TopicRestoredError: a topic is not the one that the group has read.
            ConsumerGroupConflictError: the group got other settings while the lease was over.
            ConfigError: an argument is out of range.
            ClosedError, ConcurrentUseError: the consumer was closed, or is used by another thread.
            StorageError: a table cannot be read or written.
        """
        check_poll(max_messages, timeout_s)
        is_in_use = False
        try:
            with self._use.begin():
                self._reader.note_received()
                is_in_use = True
                polled = self._reader.poll(max_messages, timeout_s, stopping=stopping)
            return [message for _, message in polled]
        except BaseException:
            # An interrupt keeps them from the caller, whose next commit would pass them; what
            # another thread was handed is not ours to give.
            if is_in_use:
                self._reader.give_again(first_handed(self._reader.handed))
            raise

    def give_again(self, messages: Iterable[ReceivedMessage]) -> None:
        """Have messages that `poll` handed out handed out again, with those behind them; 0 commits.

        Raises: ClosedError, ConcurrentUseError.
        """
        with self._use.begin():
            self._reader.give_again(self._places(messages))

    def _places(self, messages: Iterable[ReceivedMessage]) -> dict[TopicQueue, int]:
        return first_offsets(
            (TopicQueue(self._stored(message.topic), message.queue_id), message.queue_offset)
            for message in messages
        )

    @property
    def is_commit_due(self) -> bool:
        """Whether the last commit is a third of a lease ago: a good time for the next one."""
        return self._reader.is_commit_due

    def commit(self, unhandled: Iterable[ReceivedMessage] = ()) -> CommitResult:
        """Commit all messages that `poll` handed out as handled.

        Commits: one, or none if nothing was handed out since the last commit. A retry after an
        error commits the same offsets; they never go back.

        Args:
            unhandled: messages that are still in work: nothing from them on is committed.

        Returns:
            The next offsets, and the queues that were refused because another member has them now.

        Raises: ClosedError, ConcurrentUseError, StorageError.
        """
        with self._use.begin():
            result = self._reader.commit(self._places(unhandled))
        return CommitResult(
            {self._shown(queue): offset for queue, offset in result.offsets.items()},
            frozenset(self._shown(queue) for queue in result.refused),
        )

    def send_back(
        self, message: ReceivedMessage, *, reason: str | BaseException, delay_level: int = 0
    ) -> None:
        """Have a message come again later, or end among the dead letters (R107, R108).

        It is durable on return and counts as handled. In BROADCASTING it is dropped (R109).

        Commits: two, one to `half` and one to `op`; none where an earlier try has sent it. A retry
        sends nothing twice.

        Args:
            message: a message that `poll` handed out.
            reason: why it failed, in one line without the body; of an exception its class is kept.
            delay_level: 0 for the next level of the group's retries; above 0 for this level; below
                0 for the dead letters at once.

        Raises: as `SendBack.send_back`; ConfigError where the group keeps order, but for dead
            letters; ClosedError, ConcurrentUseError.
        """
        with self._use.begin():
            queue = TopicQueue(self._stored(message.topic), message.queue_id)
            replay = replay_of(self._reader.replays, queue)
            tries = self._reader.tries(queue, message.queue_offset)
            failed = FailedMessage(message, reason, delay_level, replay, tries)
            if self._reader.is_orderly and delay_level >= 0:
                problem = f"group {self.consumer_group} keeps order, so no message is sent back"
                advice = "hand it to give_again, or pass a delay_level below 0 for the dead letters"
                raise ConfigError([f"{problem}; {advice}"])
            self._reader.send_back([failed])

    # --- pushing ----------------------------------------------------------------------------

    def on(self, topic: str, *, model: type[Any] | None = None) -> Callable[[Function], Function]:
        """Have a function handle the messages of a topic, also those that come again; 0 commits.

        `run_once()` and `start()` without a handler then give each message to the function of its
        topic. A body that does not fit the model counts as a failure, so it comes again and ends
        among the dead letters.

        Args:
            topic: one of the topics of this consumer.
            model: without it the function is called with the message; with it, a pydantic model or
                a dataclass, with the body as that model, and the message.

        Returns:
            A decorator, which returns the function as it is.

        Raises: ConfigError for a function that cannot be a handler, or a second one for the topic;
            EnvironmentProblemError where a model is given and pydantic is not installed; as
            `pause`.

        Example:
            >>> @consumer.on("order-paid")
            ... def bill(message):
            ...     print(message.json()["order"])
        """
        return self._by_topic.on(topic, model)

    def run_once(
        self,
        handler: Handler | ListHandler | None = None,
        *,
        consume_message_batch_max_size: int | None = None,
    ) -> ConsumeResult:
        """Give all visible messages to a handler, one after the other, and commit.

        If the handler raises, or returns RECONSUME_LATER, the message is sent back before the next
        one of its queue is served; in a group that keeps order its queue waits until it is tried
        again. So it is where the handler returns anything else than None or
        a ConsumeStatus, or takes longer than `consume_timeout_s`. In the last case the member also
        leaves the group: others go on behind the message, and this call does once the handler
        returns. KeyboardInterrupt and SystemExit end the run: messages before this one are
        committed, and it comes again.

        Commits: one at the end, and one each time the lease is renewed, every third of
        `consumer_lease_s`; two more each time that messages are sent back. A retry goes on after
        the last commit.

        Args:
            handler: called with each message; None or ConsumeStatus.SUCCESS means handled. It must
                not be async. The functions of `on` if it is left out.
            consume_message_batch_max_size: the handler is called with lists of so many messages of
                one queue at most. What it says of a list holds for all its messages; in a group
                that keeps order the first one is tried again in its place, with those behind it.

        Returns:
            How many messages the handler was given, and how many of them were sent back.

        Raises: ConfigError for a handler that cannot be called; as `poll` and `send_back`.
        """
        push = self._push(handler, consume_message_batch_max_size)
        with self._use.begin():
            return push.drain()

    def _push(
        self, handler: Handler | ListHandler | None, batch_max_size: int | None
    ) -> MessagePush:
        if batch_max_size is not None:
            check_max_messages(batch_max_size, "consume_message_batch_max_size")
            if handler is None:
                raise ConfigError(["functions of `on` are given one message; pass a handler"])
        chosen = self._by_topic.handler() if handler is None else handler
        checked = MessageHandler(chosen, self._on_error, self._watch, batch_max_size=batch_max_size)
        return MessagePush(self._reader, checked, self.clock, self._settings)

    def start(
        self,
        handler: Handler | ListHandler | None = None,
        *,
        consume_message_batch_max_size: int | None = None,
    ) -> ConsumerHandle:
        """Run as `run_once` in new threads until `stop()` of the handle.

        There are `consume_threads`; each has messages of one queue at a time, so queues are handled
        at the same time, and each queue in its order. Until the end the consumer belongs to them:
        other calls raise ConcurrentUseError. Errors of the store are logged, and they go on;
        ConsumerGroupConflictError ends them. A call of the handler that takes longer than
        `consume_timeout_s` is given up: its message is sent back, and another thread goes on; after
        20 calls for each thread that never return the consumer ends.

        Args:
            handler: as in `run_once`; it is called from the new threads.
            consume_message_batch_max_size: as in `run_once`.

        Returns:
            The handle, which stops the threads and counts the messages.

        Raises: ConfigError, ClosedError, ConcurrentUseError.
        """
        push, use = self._push(handler, consume_message_batch_max_size), self._use.begin()
        handle = ConsumerHandle(self.consumer_group, push, partial(self._end_push, use))
        try:
            self._handle = handle
            handle.begin()
        except BaseException:
            # It may run all the same; then `close` stops it.
            if not handle.is_alive:
                self._use.end(use)
            raise
        return handle

    def _end_push(self, use: threading.Lock, has_failed: bool) -> None:  # noqa: FBT001 - the one argument
        """Commit what the thread has handled, and let other threads in."""
        try:
            self._reader.commit()
            if has_failed:
                # Else its lease would keep the queues from other members.
                self._reader.leave()
        finally:
            self._use.end(use)

    # --- ending -----------------------------------------------------------------------------

    def close(self) -> None:
        """Stop the handler of `start`, and leave the group: one commit.

        Messages that were handed out and not committed come again, to another member. Closing a
        second time does nothing.

        Raises: ConcurrentUseError, StorageError.
        """
        if self._use.is_over:
            return
        if self._handle is not None:
            self._handle.stop()
        with self._use.begin():
            self._use.close()
            self._reader.leave()
