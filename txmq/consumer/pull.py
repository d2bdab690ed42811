"""Consumers without Spark: a member of a group that polls, handles and commits."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Self

from txmq.clock import Clock, SystemClock
from txmq.consumer.arguments import (
    Topics,
    _check_poll,
    _checked_member_id,
    _checked_mode,
    _checked_queue,
    filters_by_topic,
)
from txmq.consumer.batch import Batch, ConsumeResult, Handler, SendsBack
from txmq.consumer.group import group_in
from txmq.consumer.lag import QueueLag, lag_of_group
from txmq.consumer.member import Commits, GroupMember
from txmq.consumer.offsets import OffsetsByTopic, StartPoint, TopicOffsets, check_offset, moment_ms
from txmq.consumer.positions import QueueMessage, QueuePosition, QueuePositions, first_offsets
from txmq.consumer.reader import Run, TopicReader
from txmq.consumer.rules import ConsumeFromWhere, ConsumeMode, GroupSettings, TopicQueue
from txmq.consumer.send_back import FailedMessage, SendBack
from txmq.errors import (
    ClosedError,
    ConcurrentUseError,
    ConfigError,
    ConsumerGroupConflictError,
    MessagesExpiredError,
    OffsetOutOfRangeError,
    QueueNotOwnedError,
    TxmqError,
    shown,
)
from txmq.handles import ThreadHandle
from txmq.message.filter import MessageFilter
from txmq.message.names import (
    check_namespace,
    group_in_namespace,
    topic_in_namespace,
    unwrapped,
)
from txmq.message.received import ReceivedMessage
from txmq.store.catalog import TopicCatalog
from txmq.store.store import Store

logger = logging.getLogger(__name__)

# Ten groups that all woke with each commit took the publisher's processor.
LOOK_INTERVAL_S = 0.03
FULL_LOOK_S = 0.1
POLL_MESSAGES = 32
PUSH_MESSAGES = 256
PUSH_POLL_S = 0.2
FAILURE_PAUSE_S = 1.0

_Unreadable = (MessagesExpiredError, OffsetOutOfRangeError)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What a commit came to.

    Attributes:
        offsets: the next offset of each queue that was committed.
        refused: queues that belong to another member now, which reads these messages again.
    """

    offsets: Mapping[TopicQueue, int]
    refused: frozenset[TopicQueue]


class PullConsumer:
    """Reads topics as a member of a consumer group; needs no Spark.

    The members of a CLUSTERING group share its queues and survive each other: a queue whose member
    is silent for `consumer_lease_s` goes to another one, from the last commit on. So a message may
    come again, and no two members have it at the same moment. A group needs no hold on VACUUM, and
    retention may overtake it, which is MessagesExpiredError.

    For one thread at a time; a forked process needs its own. A thread of its own renews the lease.

    Args:
        store: where the topics are.
        consumer_group: who reads.
        topics: one, several, or each with a filter, as `parse_filter` takes them. A topic need not
            be there yet.
        from_where: where a group begins that has no offsets yet (R106): the first or the last
            offset, a moment, or offsets by topic and queue.
        from_timestamp: the moment, for ConsumeFromWhere.TIMESTAMP.
        mode: in BROADCASTING each member reads all messages, and nothing is sent back (R109).
        member_id: names this member; needed in BROADCASTING, for offsets are kept under it.
        namespace: in which names of topics and of the group are meant (R94).

    Raises: InvalidNameError, InvalidFilterError, ConfigError, ConsumerGroupConflictError,
        OffsetOutOfRangeError, StorageError.

    Example:
        >>> with PullConsumer(store, consumer_group="billing", topics="order-paid") as consumer:
        ...     for message in consumer.poll(timeout_s=0.1):
        ...         print(message.keys)
        ...     consumer.commit().refused
        frozenset()
    """

    def __init__(  # noqa: PLR0913 - what a consumer is told once
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
    ) -> None:
        """Check everything, then join the group: one commit, and one that makes a new group."""
        self.store = store
        self.namespace = None if namespace is None else check_namespace(namespace)
        self.consumer_group = group_in_namespace(consumer_group, self.namespace, "consumer_group")
        self.mode = _checked_mode(mode)
        self.member_id = _checked_member_id(member_id, self.mode)
        self.clock: Clock = clock or SystemClock()
        filters = self._filters(topics)
        catalog = TopicCatalog(store)
        for topic in filters:
            catalog.check_is_there(topic)
        start = self._start_point(from_where, from_timestamp)
        self._sends_back = sends_back or SendBack(store, self.consumer_group, self.clock)
        self._pid, self._is_closed, self._using = os.getpid(), False, threading.Lock()
        self._paused: set[TopicQueue] = set()
        self._paused_topics: set[str] = set()
        self._positions, self._has_raised = QueuePositions(), False
        self._looked_s = self._looked_closely_s = self._committed_s = time.monotonic()
        self._handle: ConsumerHandle | None = None
        self._group = group_in(store, self.consumer_group)
        if not self._group.exists:
            start.check(store, filters)
            self._group = group_in(store, self.consumer_group, create=True)
        settings = GroupSettings(self.mode, {name: own.text for name, own in filters.items()})
        self._member = GroupMember(
            store, self._group, settings, start,
            member_id=self.member_id, clock=self.clock, seen_queues=self._seen_queues,
        )  # fmt: skip
        self._readers = {topic: self._reader(topic, filters) for topic in self._member.topics}
        self._member.join()
        self._positions.follow(self._member.held)

    def _filters(self, topics: Topics) -> dict[str, MessageFilter]:
        return {self._stored(topic): own for topic, own in filters_by_topic(topics).items()}

    def _start_point(
        self, from_where: ConsumeFromWhere | OffsetsByTopic, from_timestamp: datetime | None
    ) -> StartPoint:
        if isinstance(from_where, Mapping):
            from_where = {self._stored(topic): own for topic, own in from_where.items()}
        return StartPoint.of(from_where, from_timestamp)

    def _reader(self, topic: str, filters: Mapping[str, MessageFilter]) -> TopicReader:
        own = filters.get(topic)
        message_filter = None if own is None or own.is_all else own
        return TopicReader(
            self.store, topic, message_filter=message_filter, namespace=self.namespace
        )

    def _stored(self, topic: str) -> str:
        return topic_in_namespace(topic, self.namespace)

    def _shown(self, queue: TopicQueue) -> TopicQueue:
        return TopicQueue(unwrapped(queue.topic, self.namespace), queue.queue_id)

    def _seen_queues(self) -> dict[str, int]:
        return {topic: reader.queue_count for topic, reader in self._readers.items()}

    # --- pulling ----------------------------------------------------------------------------

    def poll(
        self, max_messages: int = POLL_MESSAGES, timeout_s: float = 1.0
    ) -> list[ReceivedMessage]:
        """Messages that are visible, each queue in its order; waits for the first if there is none.

        Messages that a filter does not let through count as consumed. Reads: topics. Writes:
        `state/group_<group>`, now and then, to live on. Commits: none, but for the lease.

        Where retention was faster, or an offset is out of range, it raises and hands nothing out;
        the next call serves the other queues, and then it raises again, until `seek` or a reset.

        Raises: MessagesExpiredError, OffsetOutOfRangeError, ConsumerGroupConflictError,
            ClosedError, ConcurrentUseError, StorageError.
        """
        _check_poll(max_messages, timeout_s)
        with self._use():
            return [message for _, message in self._polled(max_messages, timeout_s)]

    def _polled(
        self,
        count: int,
        timeout_s: float,
        stopping: threading.Event | None = None,
        *,
        is_all_handled: bool = False,
    ) -> list[QueueMessage]:
        """`is_all_handled`: what was handed out before may be committed on the way."""
        deadline_s = time.monotonic() + timeout_s
        self._keep_up(is_all_handled=is_all_handled)
        handed = self._take(count)
        while not handed and (left_s := deadline_s - time.monotonic()) > 0:
            if stopping is not None and stopping.is_set():
                break
            time.sleep(min(left_s, LOOK_INTERVAL_S))
            if self._has_news(is_all_handled=is_all_handled):
                handed = self._take(count)
        return handed

    def _has_news(self, *, is_all_handled: bool) -> bool:
        """A look at one file name of each topic; at everything else a few times a second."""
        if time.monotonic() - self._looked_s >= FULL_LOOK_S:
            self._keep_up(is_all_handled=is_all_handled)
            return True
        return any(self._readers[topic].look() for topic in self._member.settings.subscription)

    def _keep_up(self, *, is_all_handled: bool = False) -> None:
        """Look at the logs, of the group and of the topics, where it is some time ago."""
        now_s = time.monotonic()
        is_fresh = now_s - self._looked_s < LOOK_INTERVAL_S
        if is_fresh and self._positions.has_waiting() and self._member.may_serve:
            return
        self._looked_s = now_s
        for reader in self._readers.values():
            reader.look()
        commits = self._positions.commits() if is_all_handled else self._positions.idle_commits()
        refused = self._member.keep_up(commits, () if is_all_handled else self._positions.busy())
        if refused is not None:
            self._after_swap(commits, refused)
        self._positions.follow(self._member.held)
        if now_s - self._looked_closely_s > self.store.config.consumer_lease_s:
            self._looked_closely_s = now_s
            for reader in self._readers.values():
                reader.look_closely()

    def _take(self, count: int) -> list[QueueMessage]:
        busy, handed, failure = self._positions.busy(), list[QueueMessage](), None
        surplus = self._member.held.surplus
        for queue, place in self._positions.in_turn():
            if self._is_paused(queue) or queue in surplus:
                continue
            try:
                while len(handed) < count and (place.has_waiting() or self._fill(queue, place)):
                    handed += [(queue, each) for each in place.take(count - len(handed))]
            except _Unreadable as error:
                failure = failure or error
        is_silent = failure is None or (self._has_raised and bool(handed))
        # The lease may have ended while files were read.
        if not is_silent or not self._member.may_serve:
            taken = ((queue, message.queue_offset) for queue, message in handed)
            self._positions.undo(first_offsets(taken), busy)
            handed = []
        self._has_raised = not is_silent
        if failure is not None and not is_silent:
            raise failure
        return handed

    def _fill(self, queue: TopicQueue, place: QueuePosition) -> bool:
        """Read ahead; whether there is something to hand out."""
        reader = self._readers[queue.topic]
        while not place.has_waiting():
            run: Run | None = reader.read(queue.queue_id, place.position)
            if run is None:
                return False
            place.put(run)
        return True

    def commit(self) -> CommitResult:
        """Say that all that `poll` handed out is done: one commit, none if there is nothing to say.

        Raises: ClosedError, ConcurrentUseError, StorageError.
        """
        with self._use():
            return self._commit()

    def _commit(self, unhandled: Mapping[TopicQueue, int] | None = None) -> CommitResult:
        commits = self._positions.commits(unhandled)
        refused = self._member.swap(commits, tuple(unhandled or ())) if commits else frozenset()
        self._after_swap(commits, refused)
        lost = refused | self._positions.lost
        self._positions.lost = set()
        self._positions.follow(self._member.held)
        offsets = {q: offset for q, (_, offset) in commits.items() if q not in refused}
        return CommitResult(
            {self._shown(queue): offset for queue, offset in offsets.items()},
            frozenset(self._shown(queue) for queue in lost),
        )

    def _after_swap(self, commits: Commits, refused: frozenset[TopicQueue]) -> None:
        self._committed_s = time.monotonic()
        self._positions.note_committed(commits, refused)
        for topic, reader in self._readers.items():
            reader.forget_before(self._positions.offsets(topic))

    def send_back(
        self, message: ReceivedMessage, *, reason: str | BaseException, delay_level: int = 0
    ) -> None:
        """Have a message come again later, or end among the dead letters (R107, R108).

        It is durable on return and counts as handled. In BROADCASTING it is dropped (R109).

        Args:
            message: what `poll` handed out.
            reason: why, in a line without the body; of an exception its class is kept.
            delay_level: when it comes again, above 0; 0 for longer each time; below 0 never.

        Raises: as `TransactionProducer.send`; ClosedError, ConcurrentUseError.
        """
        with self._use():
            queue = TopicQueue(self._stored(message.topic), message.queue_id)
            replay = self._member.held.replays.get(queue, 0)
            self._send_back([FailedMessage(message, reason, delay_level, replay)])

    def _send_back(self, failed: Sequence[FailedMessage]) -> int:
        """How many come again."""
        if self.mode is ConsumeMode.BROADCASTING:
            logger.warning("group %s: %d messages are dropped", self.consumer_group, len(failed))
            return 0
        self._sends_back.send_back_all(failed)
        return len(failed)

    # --- pushing ----------------------------------------------------------------------------

    def run_once(self, handler: Handler) -> ConsumeResult:
        """Give all that is visible to a handler, one message after the other, and commit.

        A message whose handler raises, or says RECONSUME_LATER, is sent back, and the next one is
        served. Commits: one at the end and one whenever the lease is renewed, every third of
        `consumer_lease_s`; and two more before it where some are sent back.

        Raises: as `poll` and `send_back`.
        """
        with self._use():
            total = ConsumeResult()
            try:
                while handed := self._polled(PUSH_MESSAGES, 0.0, is_all_handled=True):
                    total += self._handled(handed, handler)
            finally:
                self._commit()
            return total

    def start(self, handler: Handler) -> ConsumerHandle:
        """As `run_once`, in a thread of its own, until `stop()`; the consumer is its alone then.

        Raises: ClosedError, ConcurrentUseError.
        """
        self._check_open()
        if not self._using.acquire(blocking=False):
            raise ConcurrentUseError
        self._handle = ConsumerHandle(self, handler)
        self._handle.begin()
        return self._handle

    def _handled(
        self, handed: list[QueueMessage], handler: Handler, stopping: threading.Event | None = None
    ) -> ConsumeResult:
        """One after the other; what is left, or cannot be sent back, is handed out again."""
        batch = Batch(handed, handler, self._member.held.replays)
        try:
            while not (batch.is_done or (stopping is not None and stopping.is_set())):
                batch.serve_next(self._is_ours)
                if time.monotonic() - self._committed_s >= self._member.renewal_s:
                    batch.send_back(self._send_back)
                    self._commit(batch.unhandled())
            batch.send_back(self._send_back)
        finally:
            self._positions.give_again(batch.unhandled())
        return batch.result

    def _is_ours(self, queue: TopicQueue) -> bool:
        place = self._positions.get(queue)
        return place is not None and self._member.held.epochs.get(queue) == place.epoch

    def push(self, handler: Handler, stopping: threading.Event) -> ConsumeResult:
        """One turn of `start`: wait a moment for messages, have them handled."""
        handed = self._polled(PUSH_MESSAGES, PUSH_POLL_S, stopping, is_all_handled=True)
        return self._handled(handed, handler, stopping)

    def end_push(self) -> None:
        """Commit what was handled; other threads may use the consumer again."""
        try:
            self._commit()
        finally:
            self._using.release()

    # --- moving -----------------------------------------------------------------------------

    @property
    def assignment(self) -> tuple[TopicQueue, ...]:
        """The queues that this member reads now; the group's retry topic is among them."""
        return tuple(sorted(self._shown(queue) for queue in self._member.held.epochs))

    def pause(self, topic: str, queue_id: int | None = None) -> None:
        """Hand out nothing of a topic, or of one of its queues, until `resume`; 0 commits.

        Raises: ConfigError, ClosedError, ConcurrentUseError.
        """
        with self._use():
            stored = self._subscribed(topic)
            if queue_id is None:
                self._paused_topics.add(stored)
            else:
                self._paused.add(TopicQueue(stored, _checked_queue(queue_id)))

    def resume(self, topic: str, queue_id: int | None = None) -> None:
        """Go on where `pause` was called, with a topic and all its queues, or with one queue."""
        with self._use():
            stored = self._subscribed(topic)
            if queue_id is None:
                self._paused_topics.discard(stored)
                self._paused = {queue for queue in self._paused if queue.topic != stored}
            else:
                self._paused.discard(TopicQueue(stored, _checked_queue(queue_id)))

    def _is_paused(self, queue: TopicQueue) -> bool:
        return queue in self._paused or queue.topic in self._paused_topics

    def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """Go on with another offset of a queue, for the whole group: one commit.

        Raises: OffsetOutOfRangeError, QueueNotOwnedError, ClosedError, ConcurrentUseError.
        """
        with self._use():
            queue = self._owned(TopicQueue(self._subscribed(topic), queue_id))
            known = TopicOffsets(self.store, queue.topic)
            first, end = known.first([queue_id])[queue_id], known.end([queue_id])[queue_id]
            check_offset(queue.topic, queue_id, offset, first, end)
            self._seek({queue: offset})

    def seek_to_time(self, topic: str, moment: datetime) -> None:
        """Go on with what was stored at a moment or later, in all queues of a topic that are ours.

        One commit. Raises: ConfigError, QueueNotOwnedError, ClosedError, ConcurrentUseError.
        """
        with self._use():
            stored, at_ms = self._subscribed(topic), moment_ms(moment)
            self._keep_up()
            own = [queue.queue_id for queue in self._positions.queues if queue.topic == stored]
            found = TopicOffsets(self.store, stored).at(own, at_ms)
            self._seek({TopicQueue(stored, queue): offset for queue, offset in found.items()})

    def _seek(self, offsets: Mapping[TopicQueue, int]) -> None:
        places = {queue: self._positions.get(queue) for queue in offsets}
        epochs = {queue: own.epoch for queue, own in places.items() if own is not None}
        commits = {queue: (epochs[queue], offsets[queue]) for queue in epochs}
        refused = self._member.seek(commits)
        for queue, own in places.items():
            if own is None or queue in refused:
                raise QueueNotOwnedError(queue.topic, queue.queue_id)
            own.go_to(offsets[queue])
            own.committed, own.is_dirty = offsets[queue], False

    def _owned(self, queue: TopicQueue) -> TopicQueue:
        self._keep_up()
        if self._positions.get(queue) is None:
            raise QueueNotOwnedError(queue.topic, queue.queue_id)
        return queue

    def _subscribed(self, topic: str) -> str:
        stored = self._stored(topic)
        if stored not in self._readers:
            raise ConfigError([f"topic {shown(topic)} is not among those of this consumer"])
        return stored

    def lag(self) -> list[QueueLag]:
        """What the whole group has not consumed yet, queue by queue, from the tables; 0 commits."""
        return lag_of_group(self.store, self.consumer_group, self.clock)

    # --- ending -----------------------------------------------------------------------------

    def close(self) -> None:
        """Leave the group: one commit. What was not committed comes again, to another member."""
        if self._is_closed or self._pid != os.getpid():
            return
        if self._handle is not None:
            self._handle.stop()
        with self._use():
            self._is_closed = True
            self._member.leave()

    def __enter__(self) -> Self:
        """The consumer itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def _check_open(self) -> None:
        if self._is_closed or self._pid != os.getpid():
            raise ClosedError("the consumer was closed, or its process was forked; make another")

    @contextmanager
    def _use(self) -> Iterator[None]:
        self._check_open()
        if not self._using.acquire(blocking=False):
            raise ConcurrentUseError
        try:
            yield
        finally:
            self._using.release()


class ConsumerHandle(ThreadHandle):
    """A handler that is given messages until `stop()`; `total` counts them."""

    def __init__(self, consumer: PullConsumer, handler: Handler) -> None:
        """Made by `PullConsumer.start()`."""
        super().__init__(f"consumer-{consumer.consumer_group}", 0.0)
        self._consumer, self._handler = consumer, handler
        self.total = ConsumeResult()

    def _turn(self) -> None:
        try:
            self.total += self._consumer.push(self._handler, self._stopping)
        except ConsumerGroupConflictError:
            raise
        except (TxmqError, OSError) as error:
            logger.error("group %s goes on after: %s", self._consumer.consumer_group, error)  # noqa: TRY400 - it says all
            self._stopping.wait(FAILURE_PAUSE_S)

    def _end(self) -> None:
        try:
            self._consumer.end_push()
        except (TxmqError, OSError) as error:
            logger.warning("the last messages come again: %s", error)
