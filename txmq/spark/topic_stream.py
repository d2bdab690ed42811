"""Streams of the data source `txmq`: which offsets a micro-batch takes (Spark 4.2 or newer).

The offsets in the checkpoint say of each queue what the batch reads, [replay, stands, from, to]:
`from` to before `to`, while the group of the stream stood at `stands` and had gone back on purpose
`replay` times. Spark asks for the next batch when the one before is done, and only then the group
is moved. Where a stream was killed in between, the next one moves it, if the group stands there
still.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from txmq.consumer.arguments import Subscription
from txmq.consumer.group import settings_in
from txmq.consumer.group_reader import GroupReader
from txmq.consumer.group_rules import ConsumeMode, TopicCommit, TopicQueue
from txmq.consumer.offsets import ConsumeFromWhere, TopicOffsets
from txmq.consumer.reader import TopicReader
from txmq.errors import CheckpointCorruptError, MessagesExpiredError, OffsetOutOfRangeError
from txmq.ground.clock import Clock, SystemClock
from txmq.spark.members import OffsetRange, RangeReader
from txmq.spark.session import arrow_schema_of
from txmq.spark.topic_slices import NO_LIMIT, ReadOptions, TopicSlice, messages_of, slices_of
from txmq.store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)
# An idle stream looks so often; on an object store less often.
LOOK_INTERVAL_S = 0.1
# A micro-batch may take long; a member that is gone loses its lease all the same.
CONSUME_TIMEOUT_S = 86_400.0
# A member that is gone has lost its lease after so many.
LEASES = 1.5
_BAD_OFFSETS = "has offsets that no stream of txmq wrote; begin with a new one"


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans and reads the micro-batches of a stream. Spark calls it from one thread."""

    def __init__(
        self, options: ReadOptions, schema: StructType, clock: Clock | None = None
    ) -> None:
        """Open nothing: Spark sends the reader to its executors too.

        Args:
            options: what a user said.
            schema: the columns that the stream returns.
            clock: measures the leases of a group.
        """
        self._options, self._schema, self._clock = options, schema, clock
        self._opened: tuple[Topics, Source] | None = None
        # When a look last found nothing.
        self._idle_s: float | None = None

    def _source(self) -> Source:
        return self._open()[1]

    def _open(self) -> tuple[Topics, Source]:
        """Open the store, and join the group: as `GroupReader`."""
        if self._opened is None:
            store = self._options.store()
            topics = Topics(store, self._options)
            is_alone = self._options.group is None
            source = AloneSource(topics) if is_alone else GroupSource(topics, self._clock)
            self._opened = topics, source
        return self._opened

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's
        """Return where a new checkpoint begins. Raises: OffsetOutOfRangeError, StorageError."""
        return self._source().first().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's
        """Return `maxMessagesPerTrigger`."""
        most = self._options.max_messages
        return ReadAllAvailable() if most == NO_LIMIT else ReadMaxRows(most)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's
        """Take nothing that becomes visible from now on."""
        self._source().end_now()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return what the next batch reads; `start` if there is nothing.

        Commits: with a group at most one, and at most one more to renew its lease.

        Raises: CheckpointCorruptError, TopicRestoredError, OffsetOutOfRangeError, StorageError.
        """
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else NO_LIMIT
        before = BatchOffsets.of(start)
        self._await_turn()
        after = self._source().after(before, most)
        self._idle_s = time.monotonic() if after is None else None
        return start if after is None else after.to_json()

    def _await_turn(self) -> None:
        """Wait a moment after a look that found nothing: Spark asks each few milliseconds."""
        if self._idle_s is not None:
            interval_s = self._open()[0].store.look_interval_s(LOOK_INTERVAL_S, is_idle=True)
            time.sleep(max(0.0, self._idle_s + interval_s - time.monotonic()))

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's
        """Return how far the topics are, for the progress of the query."""
        return self._open()[0].ends()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks of a batch, also of one that is run again. Raises: as `latestOffset`."""
        return self._open()[0].slices(BatchOffsets.of(end)) if start != end else []

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Read one slice, on an executor."""
        return messages_of(partition, arrow_schema_of(self._schema))

    def stop(self) -> None:
        """Leave the group: one commit."""
        if self._opened is not None:
            self._opened[1].leave()
            self._opened = None

    def __getstate__(self) -> dict[str, Any]:
        """Leave what is open out: an executor opens its own."""
        return {**self.__dict__, "_opened": None}


# --- offsets --------------------------------------------------------------------------------------


class QueueOffsets(NamedTuple):
    """What a batch reads of a queue: `start` to before `end`.

    Attributes:
        replay, stands: how often its group had gone back on purpose, and where it stood.
    """

    replay: int
    stands: int
    start: int
    end: int

    def without_messages(self) -> QueueOffsets:
        """Return the same for a later batch, which reads none of them."""
        return self._replace(start=self.end)


@dataclass(frozen=True, slots=True)
class BatchOffsets:
    """What a batch reads, and the commits of its topics in which it was seen."""

    queues: Mapping[TopicQueue, QueueOffsets]
    commits: Mapping[str, TopicCommit | None]

    @classmethod
    def of(cls, value: dict[str, Any]) -> BatchOffsets:
        """Read what `to_json` wrote. Raises: CheckpointCorruptError."""
        queues: dict[TopicQueue, QueueOffsets] = {}
        commits: dict[str, TopicCommit | None] = {}
        try:
            for topic, facts in value.items():
                seen = facts["commit"]
                commits[topic] = None if seen is None else TopicCommit(*map(_number, seen))
                for queue, numbers in facts["queues"].items():
                    offsets = QueueOffsets(*map(_number, numbers))
                    queues[TopicQueue(topic, int(queue))] = offsets
                    if not offsets.stands <= offsets.start <= offsets.end:
                        raise ValueError(topic)  # noqa: TRY301 - one error for all
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointCorruptError("the checkpoint of a stream", _BAD_OFFSETS) from error
        return cls(queues, commits)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for Spark's checkpoint."""
        value: dict[str, Any] = {
            topic: {"commit": None if seen is None else [*seen], "queues": {}}
            for topic, seen in sorted(self.commits.items())
        }
        for queue, offsets in sorted(self.queues.items()):
            value[queue.topic]["queues"][str(queue.queue_id)] = [*offsets]
        return value

    def ranges(self, topic: str) -> list[OffsetRange]:
        """Return what the batch reads of a topic."""
        return [
            OffsetRange(queue, offsets.start, offsets.end)
            for queue, offsets in self.queues.items()
            if queue.topic == topic and offsets.start < offsets.end
        ]


def _number(value: object) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(value)
    return value


def shares(waiting: Mapping[TopicQueue, int], most: int, turn: int) -> dict[TopicQueue, int]:
    """Share `most` messages among queues: each gets as many as it has, or a like share of the rest.

    The queue with the fewest comes first, so that what it leaves goes to the others. If there are
    fewer messages than queues, `turn` says which queue comes first.
    """
    busy = sorted((queue for queue, count in waiting.items() if count), key=waiting.__getitem__)
    if most < len(busy):
        queues = sorted(busy)
        first = turn % len(queues)
        chosen = [*queues[first:], *queues[:first]][:most]
        return {queue: int(queue in chosen) for queue in waiting}
    shared = dict.fromkeys(waiting, 0)
    for place, queue in enumerate(busy):
        left = most - sum(shared.values())
        shared[queue] = min(waiting[queue], -(-left // (len(busy) - place)))
    return shared


# --- topics ---------------------------------------------------------------------------------------


class Topics:
    """The topics of a stream, followed as their logs grow. Not safe for several threads."""

    def __init__(self, store: Store, options: ReadOptions) -> None:
        """Read nothing yet."""
        self.store, self.options = store, options
        self._readers: dict[str, TopicReader] = {}
        self._looked_s: dict[str, float] = {}

    def look(self, topic: str, *, closely: bool = False) -> TopicReader:
        """Follow the log of a topic, and return its reader. Raises: StorageError.

        Closely it notices a topic that was made anew; each lease it does so by itself.
        """
        reader = self._readers.setdefault(topic, TopicReader(self.store, topic))
        reader.look()
        now_s = time.monotonic()
        if closely or now_s > self._looked_s.get(topic, 0.0) + self.store.config.consumer_lease_s:
            self._looked_s[topic] = now_s
            reader.look_closely()
        return reader

    def ends(self) -> dict[str, Any]:
        """Return the next offset of each queue of each topic."""
        readers = {topic: self.look(topic) for topic in self.options.filters}
        return {
            topic: {str(queue): end for queue, end in sorted(reader.ends.items())}
            for topic, reader in readers.items()
        }

    def slices(self, batch: BatchOffsets) -> list[TopicSlice]:
        """Plan the tasks of a batch. Raises: TopicRestoredError, StorageError."""
        tasks: list[TopicSlice] = []
        for topic in batch.commits:
            reader, ranges = self.look(topic, closely=True), batch.ranges(topic)
            self.check_same(reader, batch, ranges)
            tasks += slices_of(reader, ranges, self.options)
        return tasks

    @staticmethod
    def check_same(reader: TopicReader, batch: BatchOffsets, ranges: Sequence[OffsetRange]) -> None:
        """Raise TopicRestoredError where the offsets of a batch are of other messages now."""
        if (commit := batch.commits[reader.topic]) is not None:
            for offsets in ranges:
                reader.check_follows(commit, offsets.queue.queue_id, offsets.end)


class Source(Protocol):
    """Chooses what the batches of a stream read."""

    def first(self) -> BatchOffsets:
        """Return where a new checkpoint begins."""
        ...

    def after(self, before: BatchOffsets, most: int) -> BatchOffsets | None:
        """Return what the batch after `before` reads, which is done; None for nothing."""
        ...

    def end_now(self) -> None:
        """Take nothing that becomes visible later."""
        ...

    def leave(self) -> None:
        """Give up what is held."""
        ...


class AloneSource:
    """A stream without a group: its checkpoint alone knows how far it is; 0 commits."""

    def __init__(self, topics: Topics) -> None:
        """Read nothing yet."""
        self._topics = topics
        self._last: Mapping[TopicQueue, int] | None = None

    def first(self) -> BatchOffsets:
        """Do as Source says, by the options."""
        queues: dict[TopicQueue, QueueOffsets] = {}
        commits: dict[str, TopicCommit | None] = {}
        store, start = self._topics.store, self._topics.options.start
        start.check(store, self._topics.options.filters)
        for topic in self._topics.options.filters:
            commits[topic] = self._topics.look(topic).commit
            ids = range(TopicOffsets(store, topic).queue_count())
            for queue_id, offset in start.offsets_in(store, topic, ids).items():
                queues[TopicQueue(topic, queue_id)] = QueueOffsets(0, offset, offset, offset)
        return BatchOffsets(queues, commits)

    def after(self, before: BatchOffsets, most: int) -> BatchOffsets | None:
        """Do as Source says: each queue goes on where the batch before ended."""
        if not any(self._waiting(before, closely=False).values()):
            return None
        # What is new may be of a topic that was made anew.
        waiting = self._waiting(before, closely=True)
        begins = {queue: self._begin(queue, before) for queue in waiting}
        chosen = shares(waiting, most, turn=sum(begins.values()))
        queues = {
            queue: QueueOffsets(0, begin, begin, begin + chosen[queue])
            for queue, begin in begins.items()
        }
        topics = self._topics.options.filters
        return BatchOffsets(queues, {topic: self._topics.look(topic).commit for topic in topics})

    def _waiting(self, before: BatchOffsets, *, closely: bool) -> dict[TopicQueue, int]:
        """Count by queue what waits.

        Raises: TopicRestoredError, OffsetOutOfRangeError where the topic is another one now.
        """
        waiting: dict[TopicQueue, int] = {}
        for topic in self._topics.options.filters:
            reader = self._topics.look(topic, closely=closely)
            own = {queue for queue in before.queues if queue.topic == topic}
            for queue in sorted(own | {TopicQueue(topic, number) for number in reader.ends}):
                begin, end = self._begin(queue, before), reader.ends.get(queue.queue_id, 0)
                if (commit := before.commits.get(topic)) is not None:
                    reader.check_follows(commit, queue.queue_id, begin)
                if begin > end:
                    raise OffsetOutOfRangeError(
                        topic, queue.queue_id, offset=begin, first_offset=0, end_offset=end
                    )
                last = end if self._last is None else min(end, self._last.get(queue, 0))
                waiting[queue] = max(0, last - begin)
        return waiting

    @staticmethod
    def _begin(queue: TopicQueue, before: BatchOffsets) -> int:
        return before.queues[queue].end if queue in before.queues else 0

    def end_now(self) -> None:
        """Do as Source says."""
        self._last = _queue_ends(self._topics)

    def leave(self) -> None:
        """Do nothing: nothing is held."""


def _queue_ends(topics: Topics) -> dict[TopicQueue, int]:
    return {
        TopicQueue(topic, int(queue)): end
        for topic, queues in topics.ends().items()
        for queue, end in queues.items()
    }


class GroupSource:
    """A stream that is a member of a group, which shares the queues and keeps the offsets."""

    def __init__(self, topics: Topics, clock: Clock | None) -> None:
        """Join the group: as `GroupReader`."""
        options = topics.options
        subscription = Subscription.of(
            consumer_group=options.group, topics=options.topics, mode=ConsumeMode.CLUSTERING,
            from_where=ConsumeFromWhere.FIRST_OFFSET, from_timestamp=None, member_id=None,
            namespace=options.namespace,
        )  # fmt: skip
        start = replace(options.start, accepts_losses=not options.fails_on_data_loss)
        settings = settings_in(topics.store, subscription.consumer_group)
        reader = GroupReader(
            topics.store, replace(subscription, start=start), clock or SystemClock(),
            settings=replace(settings, consume_timeout_s=CONSUME_TIMEOUT_S),
        )  # fmt: skip
        self._topics, self._ranges = topics, RangeReader(reader)
        self._handed: list[OffsetRange] = []
        self._last: Mapping[TopicQueue, int] | None = None
        self._left_at: BatchOffsets | None = None
        self._is_new = True

    def first(self) -> BatchOffsets:
        """Return no queue: the group says where it goes on."""
        return BatchOffsets({}, {})

    def after(self, before: BatchOffsets, most: int) -> BatchOffsets | None:
        """Do as Source says; what was done before is committed first."""
        if self._left_at == before:
            return None
        pending = self._commit(before)
        # What came just now is asked about again before it is read.
        ranges = [offsets for offsets in self._taken(most) if offsets.queue not in pending]
        if not ranges:
            if self._last is not None and not pending:
                # The query ends here, and Spark kills this process without a word.
                self._ranges.leave()
                self._left_at = before
            return None
        self._handed = ranges
        self._ranges.hand_out(ranges)
        queues = {queue: before.queues[queue].without_messages() for queue in pending}
        for queue, start, end in ranges:
            queues[queue] = QueueOffsets(self._ranges.replay(queue), start, start, end)
        commits = {queue.topic: self._topics.look(queue.topic).commit for queue in queues}
        return BatchOffsets(queues, commits)

    def _taken(self, most: int) -> list[OffsetRange]:
        """Take what is there. Raises: MessagesExpiredError, unless the options allow it."""
        while True:
            try:
                ranges = self._ranges.take(most, NO_LIMIT, self._last)
                gone = self._ranges.failure
            except MessagesExpiredError as error:
                ranges, gone = [], error
            if not isinstance(gone, MessagesExpiredError):
                return ranges
            # Else nobody would hear of it while other queues have news.
            if self._topics.options.fails_on_data_loss:
                raise gone
            logger.warning("%s; the stream goes on without them", gone)
            self._ranges.pass_over(gone)

    def _commit(self, before: BatchOffsets) -> list[TopicQueue]:
        """Commit what `before` says is done; return the queues that this member has not got yet.

        Raises: TopicRestoredError where that was of a topic that is another one now.
        """
        own = {offsets.queue: offsets for offsets in self._handed}
        done = {queue: OffsetRange(queue, at.start, at.end) for queue, at in before.queues.items()}
        handled = {queue: own[queue].end for queue in own if done.get(queue) == own[queue]}
        if self._handed:
            # Spark asks a second time where it did not run what it was told before.
            self._ranges.commit(handled, self._handed)
            self._handed = []
        elif self._is_new:
            for topic in before.commits:
                reader = self._topics.look(topic, closely=True)
                at_end = [OffsetRange(q, n.end, n.end) for q, n in before.queues.items()]
                own_ranges = [offsets for offsets in at_end if offsets.queue.topic == topic]
                self._topics.check_same(reader, before, own_ranges)
        self._is_new = False
        # Also of what was refused: this member may have lost the queue meanwhile.
        return self._ranges.resume(
            {
                OffsetRange(queue, at.stands, at.end): at.replay
                for queue, at in before.queues.items()
            }
        )

    def end_now(self) -> None:
        """Do as Source says; the queues of a member that is gone are waited for."""
        wait_s = LEASES * self._topics.store.config.consumer_lease_s
        self._last = self._ranges.await_queues(wait_s)

    def leave(self) -> None:
        """Leave the group: one commit."""
        self._ranges.leave()
