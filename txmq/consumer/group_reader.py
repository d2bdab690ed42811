"""Read the queues that a consumer group gives to one member, and commit their offsets."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from txmq.consumer.arguments import Subscription, check_reads
from txmq.consumer.group import group_in, settings_in
from txmq.consumer.group_rules import Commits, ConsumeMode, TopicQueue
from txmq.consumer.member import GroupMember
from txmq.consumer.reader import TopicReader
from txmq.consumer.send_back import FailedMessage, SendBack, SendsBack
from txmq.consumer.taking import (
    HandedMessages,
    MessageTaking,
    QueueMessage,
    QueuePosition,
    QueuePositions,
)
from txmq.errors import QueueNotOwnedError, StorageError
from txmq.ground.clock import Clock, elapsed_ms
from txmq.message.codec import BodyCodec, checked_codec
from txmq.message.names import shown_name
from txmq.message.received import ReceivedMessage, note_tries
from txmq.store.catalog import TopicCatalog, unknown_topics
from txmq.store.config import ConsumeSettings
from txmq.store.store import Store

logger = logging.getLogger(__name__)
# Ten groups that woke up with each commit took the publisher's processor.
LOOK_INTERVAL_S = 0.03
FULL_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The outcome of a commit.

    Attributes:
        offsets: the next offset of each queue that was committed.
        refused: queues that belong to another member now, which reads their messages again.
    """

    offsets: Mapping[TopicQueue, int]
    refused: frozenset[TopicQueue]


class GroupReader:
    """Reads for one member of a consumer group: the core of `PullConsumer` and `SparkBatches`.

    It holds the membership, a reader for each topic, and the position in each queue. Messages that
    it hands out are in the hands of the caller until `commit` says that they were handled, or
    `give_again` takes them back. All names of topics are stored names.

    Not safe for several threads: its owner lets in one thread at a time (`ExclusiveUse`).

    Args:
        store: the store of the topics.
        subscription: the group, its topics and filters, and the name of this member.
        clock: measures leases; only durations count.
        sends_back: sends failed messages to the retry topic; the default is `SendBack`.
        settings: those of the group, read here without it.
        codec: decodes bodies.
        positions: where the member is in each of its queues; without a queue yet.
    """

    def __init__(  # noqa: PLR0913 - the parts of a member
        self,
        store: Store,
        subscription: Subscription,
        clock: Clock,
        sends_back: SendsBack | None = None,
        *,
        settings: ConsumeSettings | None = None,
        codec: BodyCodec | None = None,
        positions: QueuePositions[Any] | None = None,
    ) -> None:
        """Join the group: one commit, and one more that creates the table of a new group.

        Raises: TopicNotFoundError, OffsetOutOfRangeError, ConsumerGroupConflictError, ConfigError,
            StorageError.
        """
        self._codec: BodyCodec | None = checked_codec(codec)
        catalog = TopicCatalog(store)
        for topic in subscription.filters:
            catalog.check_is_there(topic)
        self._store, self._subscription, self._clock = store, subscription, clock
        self._lease_s = store.config.consumer_lease_s
        self._look_interval_s = store.look_interval_s(LOOK_INTERVAL_S)
        self._full_look_s = store.look_interval_s(FULL_LOOK_S, is_idle=True)
        self._sends_back = sends_back or SendBack(store, subscription.consumer_group, clock)
        settings = settings or settings_in(store, subscription.consumer_group)
        is_orderly = settings.consume_message_orderly and not self.is_broadcasting
        self._paused = Pauses()
        self.positions = QueuePositions(QueuePosition) if positions is None else positions
        self._looked_s = self._looked_closely_s = self._committed_s = time.monotonic()
        self._has_told_unknown = False
        self._member = self._new_member(clock, settings.consume_timeout_s, is_orderly=is_orderly)
        self._renewal_s = self._member.renewal_s
        self._readers = {topic: self._reader(topic) for topic in self._member.topics}
        self._taking = MessageTaking(
            self._member, self._readers, self.positions, sent_back=self._knows_sent_back()
        )  # fmt: skip
        self._member.join()
        self.positions.follow(self._member.held)

    def _new_member(
        self, clock: Clock, consume_timeout_s: float, *, is_orderly: bool
    ) -> GroupMember:
        """Make the member, and the table of a new group; the member does not join yet."""
        store, subscription = self._store, self._subscription
        name = subscription.consumer_group
        group = group_in(store, name)
        if not group.exists:
            subscription.start.check(store, subscription.filters)
            group = group_in(store, name, create=True)
        return GroupMember(
            store, group, replace(subscription.settings, is_orderly=is_orderly), subscription.start,
            member_id=subscription.member_id, clock=clock, seen_queues=self._seen_queues,
            read_in=self.positions.read_in, attempts=self.positions.attempts,
            consume_timeout_s=consume_timeout_s,
        )  # fmt: skip

    def _reader(self, topic: str) -> TopicReader:
        return TopicReader(
            self._store,
            topic,
            message_filter=self._subscription.filter_of(topic),
            namespace=self._subscription.namespace,
            codec=self._codec,
        )

    def _knows_sent_back(self) -> SendBack | None:
        # Nothing is sent back in BROADCASTING (R109); a substitute of tests does not know.
        if self.is_broadcasting or not isinstance(self._sends_back, SendBack):
            return None
        return self._sends_back

    def _seen_queues(self) -> dict[str, int]:
        return {topic: reader.queue_count for topic, reader in self._readers.items()}

    # --- what the member has ----------------------------------------------------------------

    @property
    def is_broadcasting(self) -> bool:
        """Whether each member reads all messages."""
        return self._subscription.mode is ConsumeMode.BROADCASTING

    @property
    def is_orderly(self) -> bool:
        """Whether a message that fails is tried again in its place."""
        return self._member.settings.is_orderly

    def tries(self, queue: TopicQueue, offset: int) -> int:
        """Return how often a message has failed in its place."""
        position = self.positions.get(queue)
        return 0 if position is None else position.tries_at(offset)

    @property
    def queues(self) -> Collection[TopicQueue]:
        """The queues that the member reads now; none once its lease is over."""
        return self._member.held.epochs.keys()

    @property
    def replays(self) -> Mapping[TopicQueue, int]:
        """How often the group went back in each queue on purpose; no entry means never."""
        return self._member.held.replays

    @property
    def begin_failure(self) -> Exception | None:
        """Why queues of the member have no offset to begin at yet; None if all have one."""
        return self._member.begin_failure

    @property
    def may_serve(self) -> bool:
        """Whether the lease is not over: only then may messages be handed out."""
        return self._member.may_serve

    @property
    def has_all_queues(self) -> bool:
        """Whether the member reads every queue of the group."""
        return self._member.has_all_queues

    @property
    def ends(self) -> dict[TopicQueue, int]:
        """The next offset of each queue of the topics that the group reads, as seen last."""
        return {
            TopicQueue(topic, queue_id): end
            for topic, reader in self._readers.items()
            for queue_id, end in reader.ends.items()
        }

    def position(self, queue: TopicQueue) -> int | None:
        """Return the next offset of a queue; None if the member has it not, or is to give it up."""
        at = self.positions.get(queue)
        return None if at is None or queue in self._member.held.surplus else at.next_offset

    @property
    def is_commit_due(self) -> bool:
        """Whether the last commit is a third of a lease ago."""
        return time.monotonic() - self._committed_s >= self._renewal_s

    def is_owned(self, queue: TopicQueue, epoch: int | None = None) -> bool:
        """Tell whether the member has had a queue without a break since it took messages of it.

        Several threads may take: another one may have noticed that the queue was lost and came
        back. Then the `epoch` of the messages is an older one.
        """
        position = self.positions.get(queue)
        if position is None or self._member.held.epochs.get(queue) != position.epoch:
            return False
        return epoch is None or epoch == position.epoch

    def epochs_of(self, queues: Iterable[TopicQueue]) -> dict[TopicQueue, int]:
        """Return in which epoch the member got each of these queues that it takes messages of."""
        positions = {queue: self.positions.get(queue) for queue in queues}
        return {queue: at.epoch for queue, at in positions.items() if at is not None}

    def queues_of(self, topic: str) -> list[int]:
        """List the ids of the queues of a topic that the member has, sorted."""
        return self.positions.queues_of(topic)

    def check_reads(self, topic: str) -> None:
        """Raise ConfigError for a topic that the member does not read."""
        check_reads(topic, self._readers)

    def tell_unknown(self) -> None:
        """Warn once of topics that nobody has made or written: their names may be mistyped."""
        if self._has_told_unknown:
            return
        self._has_told_unknown = True
        unseen = [name for name in self._subscription.filters if not self._seen_queues()[name]]
        # Reading goes on, whatever becomes of a hint.
        with suppress(StorageError):
            for topic, problem in unknown_topics(self._store, unseen).items():
                group = shown_name(self._subscription.consumer_group)
                logger.warning("group %s waits for topic %s: %s", group, shown_name(topic), problem)

    # --- following the logs -----------------------------------------------------------------

    def keep_up(self, unhandled: Mapping[TopicQueue, int] | None = None) -> None:
        """Follow the logs of the group and of the topics, and renew the lease if it is time.

        Does nothing if the last call was less than a look's interval ago and messages wait.

        Args:
            unhandled: all that was handed out may be committed on the way, up to before these
                offsets; without it nothing of a queue of which the caller has messages.

        Commits: at most one, if the lease or the share of the queues must change.

        Raises: ConsumerGroupConflictError, OffsetOutOfRangeError, StorageError.
        """
        now_s = time.monotonic()
        is_fresh = now_s - self._looked_s < self._look_interval_s
        if is_fresh and self.positions.has_messages() and self._member.may_serve:
            return
        self._looked_s = now_s
        for reader in self._readers.values():
            reader.follow()
        positions = self.positions
        if unhandled is None:
            commits, busy = positions.idle_commits(), frozenset(positions.busy())
        else:
            commits, busy = positions.commits(unhandled), frozenset(unhandled)
        refused = self._member.keep_up(commits, busy)
        if refused is not None:
            self._after_swap(commits, refused)
        positions.follow(self._member.held)
        if now_s - self._looked_closely_s > self._lease_s:
            self._looked_closely_s = now_s
            for reader in self._readers.values():
                reader.follow(closely=True)

    def has_news(self, unhandled: Mapping[TopicQueue, int] | None = None) -> bool:
        """Look for the next commit file of each topic; a few times a second, follow all logs."""
        if time.monotonic() - self._looked_s >= self._full_look_s:
            self.keep_up(unhandled)
            return True
        return any(self._readers[topic].follow() for topic in self._subscription.filters)

    # --- handing out ------------------------------------------------------------------------

    def poll(
        self,
        count: int,
        timeout_s: float,
        *,
        stopping: threading.Event | None = None,
        of_a_queue: int | None = None,
    ) -> list[QueueMessage]:
        """Take messages; wait up to `timeout_s` for the first one, or until `stopping` is set.

        Args:
            count: the largest number of messages.
            timeout_s: the longest time to wait.
            stopping: ends the wait.
            of_a_queue: so many messages of one queue, before the next one has its turn; as many as
                there are if it is left out.

        Raises: as `keep_up` and `take`.
        """
        deadline_s = time.monotonic() + timeout_s
        self.keep_up()
        handed = self.take(count, of_a_queue)
        while not handed and (left_s := deadline_s - time.monotonic()) > 0:
            if stopping is not None and stopping.is_set():
                break
            time.sleep(min(left_s, self._look_interval_s))
            if self.has_news():
                handed = self.take(count, of_a_queue)
        if not handed:
            # Not sooner: the first message of a topic may be on its way.
            self.tell_unknown()
        return handed

    def take(
        self,
        count: int,
        of_a_queue: int | None = None,
        *,
        without: Collection[TopicQueue] = (),
        threads: int = 1,
    ) -> list[QueueMessage]:
        """Take at most `count` messages that are visible, each queue in its order; 0 commits.

        The queues come in turn; `of_a_queue` as in `poll`. Takes nothing of the queues `without`.
        Where several `threads` take, each gets messages of one queue, and its share of the bytes.

        They hold at most `consume_batch_bytes` together, but for a single message.

        If a queue or a topic cannot be read, the call raises and hands nothing out; the next call
        serves the other queues, and the call after it raises again.

        Raises: MessagesExpiredError, OffsetOutOfRangeError, StorageError, OSError.
        """
        room_bytes = self._store.config.consume_batch_bytes // threads
        batch = partial(
            HandedMessages, count, room_bytes, of_a_queue or count, is_of_one_queue=threads > 1
        )  # fmt: skip
        self._taking.take(batch, partial(self.servable, without))
        if self.is_orderly:
            for queue, message in self.handed:
                note_tries(message, self.tries(queue, message.queue_offset))
        return list(self.handed)

    @property
    def handed(self) -> Sequence[QueueMessage]:
        """The messages that the last `take` returned, or would have if nothing had interrupted it.

        Until `note_received`: whom an interrupt keeps them from gives them again.
        """
        return self._taking.handed

    def note_received(self) -> None:
        """Note that the caller has what was handed out, and says what becomes of it."""
        self._taking.handed = ()

    @property
    def look_interval_s(self) -> float:
        """How long to wait before another `has_news`."""
        return self._look_interval_s

    def turn(self, queues: Iterable[TopicQueue]) -> None:
        """Note that these queues have had their turn, for `servable`."""
        self.positions.turn(queues)

    def servable(
        self, without: Collection[TopicQueue] = ()
    ) -> Iterator[tuple[TopicQueue, QueuePosition]]:
        """Yield the queues to serve now: not paused, and not to be given up to another member.

        Those come first whose turn was longest ago, so that no queue is always last.
        """
        surplus, now_ms = self._member.held.surplus, elapsed_ms(self._clock)
        for queue, position in self.positions.in_turn():
            must_wait = position.suspended_until_ms > now_ms
            must_wait = must_wait or (self.is_orderly and position.has_messages_in_hands)
            must_wait = must_wait or queue in surplus or queue in without
            if not (must_wait or queue in self._paused):
                yield queue, position

    def end_offset(self, queue: TopicQueue, position: QueuePosition) -> int:
        """Return the offset after the last message of a queue that `keep_up` has seen.

        Raises: MessagesExpiredError, OffsetOutOfRangeError if the next message of the member
            was removed or will never come; StorageError.
        """
        self._taking.begin(queue, position)
        reader = self._readers[queue.topic]
        if position.next_offset != reader.ends.get(queue.queue_id, 0):
            reader.read(queue.queue_id, position.next_offset)
            # It may have met a rebuild.
            self._taking.begin(queue, position)
        return reader.ends.get(queue.queue_id, 0)

    def row_bytes(self, queue: TopicQueue, start: int, end: int) -> int:
        """Return the largest average row size of the files that may hold a range of offsets."""
        return self._readers[queue.topic].row_bytes(queue.queue_id, start, end)

    def fresh_range(self, queue: TopicQueue, position: QueuePosition, end: int) -> tuple[int, int]:
        """Return the next range of offsets up to `end` of which none was sent back already.

        What was sent back before the range counts as handled. Raises: StorageError.
        """
        start, end = self._taking.fresh_range(queue, position, position.next_offset, end)
        if start > position.next_offset:
            position.move_to(start)
        return start, end

    def hand_out(self, queue: TopicQueue, end: int) -> None:
        """Note that the caller has all messages of a queue up to before `end`."""
        self.positions.hand_out(queue, end)

    def message_at(self, queue: TopicQueue, offset: int) -> ReceivedMessage | None:
        """Read one message; None if it is not there, or the filter does not let it through.

        Raises: MessagesExpiredError, OffsetOutOfRangeError, StorageError.
        """
        run = self._readers[queue.topic].read(queue.queue_id, offset)
        if run is None or offset not in run.offsets:
            return None
        return run.rows.messages()[run.offsets.index(offset)]

    # --- what became of the messages --------------------------------------------------------

    def commit(self, unhandled: Mapping[TopicQueue, int] | None = None) -> CommitResult:
        """Commit all that was handed out, but nothing from the `unhandled` offsets on.

        Commits: one, or none if no offset has moved. Raises: StorageError.
        """
        commits = self.positions.commits(unhandled)
        must_swap = commits or self.positions.has_new_attempts(self._member.held)
        busy = {*(unhandled or ()), *self.positions.in_hands()}
        refused = self._member.swap(commits, busy) if must_swap else frozenset()
        self._after_swap(commits, refused)
        self.positions.follow(self._member.held)
        lost = refused | self.positions.take_lost()
        offsets = {q: offset for q, (_, offset) in commits.items() if q not in refused}
        return CommitResult(offsets, frozenset(lost))

    def fail_in_place(self, queue: TopicQueue, offset: int, suspend_s: float) -> None:
        """Count a try of a message, and let its queue rest; 0 commits.

        The next commit keeps the count: a member that is killed before forgets it.
        """
        if position := self.positions.get(queue):
            position.tries, position.tried_offset = self.tries(queue, offset) + 1, offset
            position.suspended_until_ms = elapsed_ms(self._clock) + round(suspend_s * 1000)

    def _after_swap(self, commits: Commits, refused: frozenset[TopicQueue]) -> None:
        self._committed_s = time.monotonic()
        self.positions.note_committed(commits, refused)
        for topic, reader in self._readers.items():
            reader.forget_before(self.positions.next_offsets(topic))

    def give_again(self, offsets: Mapping[TopicQueue, int], *, are_doubtful: bool = True) -> None:
        """Hand out these offsets next, and what follows them; 0 commits.

        Doubtful ones may have been sent back by whoever had them, without an answer.
        """
        self.positions.give_again(offsets, are_doubtful=are_doubtful)

    def send_back(self, failed: Sequence[FailedMessage]) -> int:
        """Send failed messages to the retry topic, and return how many were sent.

        They are durable on return. In BROADCASTING they are dropped (R109).

        Commits: as `SendBack.send_back_all`; it sends each failure once, so a retry is safe.
        """
        if not failed:
            return 0
        if self.is_broadcasting:
            group = self._subscription.consumer_group
            logger.warning("group %s: %d failed messages are dropped", group, len(failed))
            return 0
        self._sends_back.send_back_all(failed)
        return len(failed)

    # --- moving -----------------------------------------------------------------------------

    def pause(self, topic: str, queue_id: int | None = None) -> None:
        """Hand out nothing of a topic, or of one of its queues, until `resume`; 0 commits."""
        self._paused.pause(topic, queue_id)

    def resume(self, topic: str, queue_id: int | None = None) -> None:
        """End the pauses of a topic and of all its queues, or of one queue; 0 commits."""
        self._paused.resume(topic, queue_id)

    def seek(self, offsets: Mapping[TopicQueue, int]) -> None:
        """Go on at other offsets, for the whole group: one commit.

        Raises: QueueNotOwnedError for a queue that the member does not have; the other queues are
            moved all the same. StorageError.
        """
        positions = {queue: self.positions.get(queue) for queue in offsets}
        epochs = {queue: at.epoch for queue, at in positions.items() if at is not None}
        now = {queue: self._readers[queue.topic].commit for queue in offsets}
        seen_in = {queue: commit for queue, commit in now.items() if commit is not None}
        commits = {queue: (epoch, offsets[queue]) for queue, epoch in epochs.items()}
        refused = self._member.seek(commits, seen_in)
        for queue, position in positions.items():
            if position is not None and queue not in refused:
                position.restart(offsets[queue])
                position.read_in = now[queue]
        for queue, position in positions.items():
            if position is None or queue in refused:
                raise QueueNotOwnedError(queue.topic, queue.queue_id)

    def work_on(self, time_s: float) -> None:
        """Keep the lease for so long without a question: messages are in the caller's hands."""
        self._member.work_for(time_s)

    def leave(self) -> None:
        """Leave the group: one commit. Other members read again what was not committed."""
        self._member.leave()


class Pauses:
    """The topics and the queues of which a member hands out nothing for now.

    Not safe for several threads, as its owner.
    """

    def __init__(self) -> None:
        """Begin without a pause."""
        self._queues: set[TopicQueue] = set()
        self._topics: set[str] = set()

    def pause(self, topic: str, queue_id: int | None) -> None:
        """Pause one queue, or a topic with all its queues."""
        if queue_id is None:
            self._topics.add(topic)
        else:
            self._queues.add(TopicQueue(topic, queue_id))

    def resume(self, topic: str, queue_id: int | None) -> None:
        """End the pause of one queue, or those of a topic and of all its queues."""
        if queue_id is None:
            self._topics.discard(topic)
            self._queues = {queue for queue in self._queues if queue.topic != topic}
        else:
            self._queues.discard(TopicQueue(topic, queue_id))

    def __contains__(self, queue: TopicQueue) -> bool:
        """Tell whether the queue or its topic is paused."""
        return queue in self._queues or queue.topic in self._topics
