"""A member of a consumer group whose handler gets the messages as DataFrames.

It shares queues, offsets, leases and retries with members that need no Spark: only what is handed
over differs. The driver knows ranges of offsets; Spark reads the rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple, Self

from txmq.consumer.arguments import Topics
from txmq.consumer.batch import ConsumeResult
from txmq.consumer.pull import LOOK_INTERVAL_S, PullConsumer
from txmq.consumer.rules import ConsumeStatus, TopicQueue
from txmq.consumer.send_back import FailedMessage
from txmq.errors import (
    ConfigError,
    ConsumerGroupConflictError,
    MessagesExpiredError,
    OffsetOutOfRangeError,
    TxmqError,
    shown,
)
from txmq.handles import ThreadHandle
from txmq.message.filter import MessageFilter

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

logger = logging.getLogger(__name__)

BATCH_MESSAGES = 100_000
# So many failing calls tell a few bad messages from a handler that fails always.
FAILURES_MAX = 200
FAILURE_PAUSE_S = 1.0
BatchHandler = Callable[["DataFrame"], "ConsumeStatus | None"]


class OffsetRange(NamedTuple):
    """Messages of one queue from `start` to before `end`."""

    queue: TopicQueue
    start: int
    end: int

    @property
    def messages(self) -> int:
        """How many offsets it has."""
        return self.end - self.start


def split_in_two(ranges: Sequence[OffsetRange]) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """The first and the second half of the messages; each queue stays in its order."""
    left = sum(each.messages for each in ranges) // 2
    first, second = [], []
    for queue, start, end in ranges:
        cut = min(end, start + left)
        left -= cut - start
        if start < cut:
            first.append(OffsetRange(queue, start, cut))
        if cut < end:
            second.append(OffsetRange(queue, cut, end))
    return first, second


class RangeConsumer(PullConsumer):
    """A pull consumer that is asked for ranges of offsets instead of messages."""

    def _filters(self, topics: Topics) -> dict[str, MessageFilter]:
        self._own_filters = super()._filters(topics)
        return self._own_filters

    def in_use(self) -> AbstractContextManager[None]:
        """For one thread at a time. Raises: ClosedError, ConcurrentUseError."""
        return self._use()

    def take_ranges(self, max_messages: int) -> list[OffsetRange]:
        """What is visible and not handed out yet, all of it at most `max_messages`; does not wait.

        Raises: as `poll`.
        """
        self._keep_up()
        ranges: list[OffsetRange] = []
        failure: TxmqError | None = None
        for queue, place in self._positions.in_turn():
            left = max_messages - sum(each.messages for each in ranges)
            if left and not self._is_paused(queue) and queue not in self._member.held.surplus:
                try:
                    end = min(self._end_of(queue, place.position), place.position + left)
                except (MessagesExpiredError, OffsetOutOfRangeError) as error:
                    failure = failure or error
                    continue
                if place.position < end:
                    ranges.append(OffsetRange(queue, place.position, end))
        if failure is not None and not ranges:
            raise failure
        for queue, _, end in ranges:
            self._positions.hand_out(queue, end)
        return ranges if self._member.may_serve else []

    def _end_of(self, queue: TopicQueue, position: int) -> int:
        """Raises where the next message is gone, or can never come."""
        reader = self._readers[queue.topic]
        if position != reader.ends.get(queue.queue_id, 0):
            reader.read(queue.queue_id, position)
        return reader.ends.get(queue.queue_id, 0)

    def is_ours(self, ranges: Sequence[OffsetRange]) -> bool:
        """Whether no other member has got one of these queues meanwhile."""
        return all(self._is_ours(each.queue) for each in ranges)

    def commit_ranges(
        self, handled: Mapping[TopicQueue, int], ranges: Sequence[OffsetRange]
    ) -> None:
        """Commit what was handled of the ranges, and hand the rest out again: one commit."""
        rest = {queue: handled.get(queue, start) for queue, start, _ in ranges}
        rest = {queue: at for queue, at in rest.items() if at < _end(ranges, queue)}
        self._commit(rest)
        self._positions.give_again(rest)

    def failed(self, one: OffsetRange, reason: str | Exception) -> FailedMessage | None:
        """One message that could not be handled; None where the filter does not let it through."""
        run = self._readers[one.queue.topic].read(one.queue.queue_id, one.start)
        if run is None or one.start not in run.offsets:
            return None
        message = run.rows.messages()[run.offsets.index(one.start)]
        return FailedMessage(message, reason, replay=self._member.held.replays.get(one.queue, 0))

    def send_all_back(self, failed: Sequence[FailedMessage]) -> int:
        """Have messages come again later, durable on return; how many were sent."""
        return self._send_back(failed) if failed else 0

    def dataframe(self, spark: SparkSession, ranges: Sequence[OffsetRange]) -> DataFrame:
        """The messages of the ranges that the filters let through; columns as TOPIC."""
        topics = dict.fromkeys(each.queue.topic for each in ranges)
        parts = [
            self._of_topic(spark, topic, [each for each in ranges if each.queue.topic == topic])
            for topic in topics
        ]
        return united(parts, self.namespace)

    def _of_topic(
        self, spark: SparkSession, topic: str, ranges: Sequence[OffsetRange]
    ) -> DataFrame:
        rows = spark.read.format("delta").load(self.store.topic_location(topic))
        rows = rows.where(reduce(or_, map(_column, ranges)))
        own = self._own_filters.get(topic)
        return rows if own is None or own.is_all else rows.where(own.column())


def united(parts: Sequence[DataFrame], namespace: str | None) -> DataFrame:
    """Rows of several topics as one, with names as a namespace calls them."""
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts)
    return rows if namespace is None else without_namespace(rows, namespace)


def without_namespace(rows: DataFrame, namespace: str) -> DataFrame:
    """The same with the names of topics and groups as this namespace calls them."""
    import pyspark.sql.functions as F  # noqa: N812

    # As `namespaces.unwrapped`; names have no other special characters.
    pattern = rf"^(RETRY_|DLQ_)?{namespace}\."
    names = ("topic", "producer_group")
    return rows.withColumns({name: F.regexp_replace(name, pattern, "$1") for name in names})


def _column(one: OffsetRange) -> Column:
    import pyspark.sql.functions as F  # noqa: N812

    offset = F.col("queue_offset")
    return (F.col("queue_id") == one.queue.queue_id) & (offset >= one.start) & (offset < one.end)


def _end(ranges: Sequence[OffsetRange], queue: TopicQueue) -> int:
    return max(each.end for each in ranges if each.queue == queue)


class SparkBatches:
    """Hands DataFrames to a handler, as a member of a group, until it is closed.

    A batch whose handler raises, or says RECONSUME_LATER, is tried again in halves until the bad
    messages are found; these are sent back and the others go on. A handler that fails always ends
    the run with its own error, and nothing more is sent back. Each batch may come again, whole or
    cut otherwise, where a member dies before its commit: the handler's effect must bear that (an
    inbox, a MERGE by message_id). Made by `Consumer.subscribe`.
    """

    def __init__(
        self, consumer: RangeConsumer, handler: BatchHandler, spark: SparkSession, max_messages: int
    ) -> None:
        """The consumer is a member already."""
        if type(max_messages) is not int or max_messages < 1:
            problem = f"max_messages must be a whole number above 0, not {shown(max_messages)}"
            raise ConfigError([problem])
        self._consumer, self._handler, self._spark = consumer, handler, spark
        self._max_messages = max_messages
        self._handle: BatchHandle | None = None

    def run_once(self) -> ConsumeResult:
        """Give all that is visible to the handler (`availableNow`); one commit a batch.

        Counts offsets: what a filter does not let through is consumed too.

        Raises: what the handler raises where it fails always; MessagesExpiredError when all other
            queues are read; StorageError.
        """
        total = ConsumeResult()
        while result := self.run_batch():
            total += result
        return total

    def run_batch(self) -> ConsumeResult | None:
        """One batch; None where nothing is there."""
        with self._consumer.in_use():
            ranges = self._consumer.take_ranges(self._max_messages)
            if not ranges:
                return None
            return _BatchRun(self._consumer, self._handler, self._spark, ranges).run()

    def start(self) -> BatchHandle:
        """As `run_once`, in a thread of its own, until `stop()`."""
        self._handle = BatchHandle(self)
        self._handle.begin()
        return self._handle

    def close(self) -> None:
        """Stop, and leave the group."""
        if self._handle is not None:
            self._handle.stop()
        self._consumer.close()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


class _BatchRun:
    """One batch, cut where its handler fails."""

    def __init__(
        self,
        consumer: RangeConsumer,
        handler: BatchHandler,
        spark: SparkSession,
        ranges: list[OffsetRange],
    ) -> None:
        self._consumer, self._handler, self._spark = consumer, handler, spark
        self._ranges, self._handled = ranges, dict[TopicQueue, int]()
        self._failed: list[tuple[OffsetRange, FailedMessage]] = []
        self._failures = self._sent_back = 0
        self._has_left = False

    def run(self) -> ConsumeResult:
        try:
            self._try(self._ranges)
        finally:
            # What was handled before a failure does not come again.
            try:
                self._send_back()
            finally:
                self._consumer.commit_ranges(self._handled, self._ranges)
        return ConsumeResult(self._count(), self._sent_back)

    def _send_back(self) -> None:
        handled, first = self._handled, dict[TopicQueue, int]()
        for one, _ in reversed(self._failed):
            first[one.queue] = one.start
        # Until they are durable elsewhere they are not handled.
        self._handled = {queue: min(end, first.get(queue, end)) for queue, end in handled.items()}
        self._sent_back = self._consumer.send_all_back([failed for _, failed in self._failed])
        self._handled = handled

    def _count(self) -> int:
        starts = {each.queue: each.start for each in self._ranges}
        return sum(end - starts[queue] for queue, end in self._handled.items())

    def _try(self, ranges: list[OffsetRange]) -> None:
        if self._is_left(ranges):
            return
        reason = self._failure(ranges)
        if self._has_left:
            return
        if reason is None:
            self._handled.update({each.queue: each.end for each in ranges})
        elif sum(each.messages for each in ranges) > 1:
            for half in split_in_two(ranges):
                self._try(half)
        else:
            failed = self._consumer.failed(ranges[0], reason)
            if failed is not None:
                self._failed.append((ranges[0], failed))
            self._handled[ranges[0].queue] = ranges[0].end

    def _is_left(self, ranges: Sequence[OffsetRange]) -> bool:
        """Once a part was left, so is the rest: the queue may be ours again, and has an order."""
        self._has_left = self._has_left or not self._consumer.is_ours(ranges)
        return self._has_left

    def _failure(self, ranges: Sequence[OffsetRange]) -> str | Exception | None:
        try:
            rows = self._consumer.dataframe(self._spark, ranges)
            # Opening a table may take longer than a lease.
            if self._is_left(ranges):
                return None
            status = self._handler(rows)
        except Exception as error:
            self._failures += 1
            if self._failures >= FAILURES_MAX:
                raise
            logger.warning("a batch is tried again in halves: %s", type(error).__name__)
            return error
        if status is None or status is ConsumeStatus.SUCCESS:
            return None
        return ConsumeStatus.RECONSUME_LATER.value


class BatchHandle(ThreadHandle):
    """A handler that is given DataFrames until `stop()`; `total` counts their messages."""

    def __init__(self, batches: SparkBatches) -> None:
        """Made by `SparkBatches.start()`."""
        super().__init__("spark-batches", LOOK_INTERVAL_S)
        self._batches = batches
        self.total = ConsumeResult()

    def _turn(self) -> None:
        try:
            self.total += self._batches.run_batch() or ConsumeResult()
        except ConsumerGroupConflictError:
            raise
        except (TxmqError, OSError) as error:
            logger.error("the consumer goes on after: %s", error)  # noqa: TRY400 - it says all
            self._stopping.wait(FAILURE_PAUSE_S)
