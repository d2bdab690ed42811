"""A member of a consumer group whose handler gets the messages as DataFrames.

It shares queues, offsets, leases and retries with members that need no Spark; only the form of the
messages differs.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple, Self

from txmq.consumer.exclusive_use import ExclusiveUse
from txmq.consumer.group_reader import LOOK_INTERVAL_S, GroupReader
from txmq.consumer.group_rules import TopicQueue, replay_of
from txmq.consumer.handlers import ENDS, ConsumeStatus, ErrorHook, call_on_error, wrong_result
from txmq.consumer.offsets import UNREADABLE
from txmq.consumer.push import ConsumeResult
from txmq.consumer.send_back import FailedMessage
from txmq.consumer.taking import QueuePosition
from txmq.errors import (
    ConsumerGroupConflictError,
    MessagesExpiredError,
    StorageUnavailableError,
    TxmqError,
)
from txmq.ground.handles import ThreadHandle
from txmq.message.filter import MessageFilter
from txmq.spark.columns import is_not_erased
from txmq.spark.session import check_passes_over_no_file
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

# A batch of a handler of DataFrames.
BATCH_BYTES = 1024 * 1024 * 1024
logger = logging.getLogger(__name__)
BATCH_MESSAGES = 100_000
# A few bad messages cost fewer failing calls than this; a handler that always fails costs more.
FAILURES_MAX = 200
FAILURE_PAUSE_S = 1.0
BatchHandler = Callable[["DataFrame"], "ConsumeStatus | None"]


class SparkBatches:
    """Gives DataFrames to a handler, as a member of a consumer group, until it is closed.

    If the handler raises on a batch, or returns RECONSUME_LATER, the batch is split in two, and
    each part is tried again, until the bad messages are found. These are sent back, and the others
    count as handled. If the handler raises FAILURES_MAX times in one batch, its error ends the run.

    A batch may come again, whole or split otherwise, if the member dies before its commit. The
    handler must bear that: with an inbox, or a MERGE by `message_id`.

    A handler that hangs is not interrupted: after the consume timeout the lease of the member ends,
    and other members go on.

    For one thread at a time. `Consumer.subscribe` makes it.
    """

    def __init__(
        self,
        ranges: RangeReader,
        frames: TopicFrames,
        handler: BatchHandler,
        max_messages: int,
        on_error: ErrorHook | None = None,
    ) -> None:
        """Run for a reader that has joined its group already."""
        self._ranges, self._frames, self._handler = ranges, frames, handler
        self._on_error = on_error
        self._max_messages, self._use = max_messages, ExclusiveUse()
        self._handle: BatchHandle | None = None

    def run_once(self) -> ConsumeResult:
        """Give all visible messages to the handler (`availableNow`).

        Commits: one for each batch, and two more for a batch of which messages are sent back. A
        retry goes on after the last commit.

        Returns:
            How many messages were consumed and sent back. It counts offsets, so messages that a
            filter holds back count as consumed.

        Raises:
            MessagesExpiredError, OffsetOutOfRangeError, TopicRestoredError: a queue cannot be read;
                the other queues are read before.
            ClosedError, ConcurrentUseError: it was closed, or is used by another thread.
            ConsumerGroupConflictError, StorageError: as `PullConsumer.poll`.
            EnvironmentProblemError: the session passes over files that are gone or damaged.
            Exception: the error of a handler that always fails.
        """
        total = ConsumeResult()
        while result := self.run_batch():
            total += result
        return total

    def run_batch(self) -> ConsumeResult | None:
        """Give one batch to the handler; see `run_once`.

        Returns:
            How many messages were consumed and sent back; None if there was no message.

        Raises: as `run_once`.
        """
        with self._use.begin():
            # Not in the handler's time, or its messages would count as failed.
            self._frames.check_session()
            ranges = self._ranges.take(self._max_messages)
            if not ranges:
                return None
            batch = _BatchRun(self._ranges, self._frames, self._handler, ranges, self._on_error)
            return batch.run()

    def start(self) -> BatchHandle:
        """Run as `run_once` in a new thread until `stop()` of the handle.

        Errors of the store are logged, and the thread goes on. ConsumerGroupConflictError, and the
        error of a handler that always fails, end it: see `exception` of the handle.
        """
        self._handle = BatchHandle(self)
        self._handle.begin()
        return self._handle

    def close(self) -> None:
        """Stop the thread of `start`, and leave the group: one commit.

        Raises: ConcurrentUseError, StorageError.
        """
        if self._handle is not None:
            self._handle.stop()
        if self._use.is_over:
            return
        with self._use.begin():
            self._use.close()
            self._ranges.leave()

    def leave(self) -> None:
        """Leave the group until the next batch, so that others go on: one commit."""
        with self._use.begin():
            self._ranges.leave()

    def __enter__(self) -> Self:
        """Return the member itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the member."""
        self.close()


class _BatchRun:
    """One batch: given to the handler, and split where the handler fails."""

    def __init__(
        self,
        reader: RangeReader,
        frames: TopicFrames,
        handler: BatchHandler,
        ranges: list[OffsetRange],
        on_error: ErrorHook | None,
    ) -> None:
        self._reader, self._frames, self._handler = reader, frames, handler
        self._on_error = on_error
        self._ranges, self._handled = ranges, dict[TopicQueue, int]()
        self._failed: list[tuple[OffsetRange, FailedMessage]] = []
        self._failures = self._sent_back = 0
        self._has_left = False

    def run(self) -> ConsumeResult:
        try:
            self._reader.hand_out(self._ranges)
            self._try(self._ranges)
        finally:
            # Messages that were handled before a failure do not come again.
            try:
                self._send_back()
            finally:
                self._reader.commit(self._handled, self._ranges)
        return ConsumeResult(self._count(), self._sent_back)

    def _send_back(self) -> None:
        handled, failed_at = dict(self._handled), dict[TopicQueue, int]()
        for offsets, _ in reversed(self._failed):
            failed_at[offsets.queue] = offsets.start
        # Failed messages count as handled only once they are durable in the retry topic.
        self._handled = {q: min(end, failed_at.get(q, end)) for q, end in handled.items()}
        self._sent_back += self._reader.send_back([failed for _, failed in self._failed])
        self._handled, self._failed = handled, []

    def _count(self) -> int:
        starts = {offsets.queue: offsets.start for offsets in self._ranges}
        return sum(end - starts[queue] for queue, end in self._handled.items())

    def _try(self, ranges: list[OffsetRange]) -> None:
        if self._is_left(ranges):
            return
        self._send_back_before(ranges)
        reason = self._failure(ranges)
        if self._has_left:
            return
        if reason is None:
            self._handled.update({offsets.queue: offsets.end for offsets in ranges})
        elif count_messages(ranges) > 1:
            for part in split_in_two(ranges):
                self._try(part)
        else:
            self._note_failed(ranges[0], reason)

    def _send_back_before(self, ranges: Sequence[OffsetRange]) -> None:
        """Send back what failed before an effect: by its offset it says that all before is done."""
        queues = {offsets.queue for offsets in ranges}
        if any(offsets.queue in queues for offsets, _ in self._failed):
            self._send_back()

    def _note_failed(self, offsets: OffsetRange, reason: str | BaseException) -> None:
        failed = self._reader.failed_message(offsets, reason)
        if failed is not None:
            logger.warning("%r is sent back", failed.message)
            self._failed.append((offsets, failed))
            if isinstance(reason, BaseException):
                call_on_error(self._on_error, failed.message, reason)
        self._handled[offsets.queue] = offsets.end

    def _is_left(self, ranges: Sequence[OffsetRange]) -> bool:
        """Tell whether a queue was lost; the rest of the batch is then left out, for the order."""
        self._has_left = self._has_left or not self._reader.is_owned(ranges)
        return self._has_left

    def _failure(self, ranges: Sequence[OffsetRange]) -> str | BaseException | None:
        """Call the handler on the ranges; return why it failed, or None."""
        try:
            rows = self._frames.dataframe(ranges)
            # Opening a table may take longer than a lease.
            if self._is_left(ranges):
                return None
            status: object = self._handler(rows)
        except ENDS:
            raise
        except BaseException as error:
            self._failures += 1
            if self._failures >= FAILURES_MAX:
                raise
            logger.warning("a batch has failed and is split: %s", ranges, exc_info=True)
            return error
        if status is ConsumeStatus.RECONSUME_LATER:
            return ConsumeStatus.RECONSUME_LATER.value
        if (wrong := wrong_result(status)) is not None:
            logger.error("%s: %s", ranges, wrong)
        return wrong


class BatchHandle(ThreadHandle):
    """A handler that is given DataFrames until `stop()`.

    `stop()` returns after the batch on its way. `is_alive` says whether the thread runs,
    `exception` which error ended it.

    Attributes:
        total: the messages that it was given so far.
    """

    def __init__(self, batches: SparkBatches) -> None:
        """Start at once; `SparkBatches.start` makes it."""
        self._stop_is_asked = threading.Event()
        super().__init__("spark-batches", LOOK_INTERVAL_S, stopping=self._stop_is_asked)
        self._batches = batches
        self.total = ConsumeResult()

    def _turn(self) -> None:
        try:
            self.total += self._batches.run_batch() or ConsumeResult()
        except ConsumerGroupConflictError:
            raise
        except (TxmqError, OSError) as error:
            logger.error("the consumer goes on after: %s", error)  # noqa: TRY400 - it says all
            self._stop_is_asked.wait(FAILURE_PAUSE_S)

    def _end(self) -> None:
        if self._failure is not None:
            # Else the lease of a member that does nothing would keep the queues from others.
            self._batches.leave()


# --- Ranges of offsets ---------------------------------------------------------------------------


class OffsetRange(NamedTuple):
    """Messages of one queue from `start` to before `end`."""

    queue: TopicQueue
    start: int
    end: int

    @property
    def messages(self) -> int:
        """How many offsets the range has."""
        return self.end - self.start


def count_messages(ranges: Sequence[OffsetRange]) -> int:
    """Count the offsets of the ranges."""
    return sum(offsets.messages for offsets in ranges)


def split_in_two(
    ranges: Sequence[OffsetRange],
) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """Split ranges in two with half of the messages each; each queue stays in its order."""
    left = count_messages(ranges) // 2
    first, second = [], []
    for queue, start, end in ranges:
        cut = min(end, start + left)
        left -= cut - start
        if start < cut:
            first.append(OffsetRange(queue, start, cut))
        if cut < end:
            second.append(OffsetRange(queue, cut, end))
    return first, second


class RangeReader:
    """Takes ranges of offsets from the queues of a member. Not safe for several threads."""

    def __init__(self, reader: GroupReader) -> None:
        """Read for a member that has joined its group already."""
        self._reader = reader
        self.failure: Exception | None = None

    def take(
        self,
        max_messages: int,
        max_bytes: int = BATCH_BYTES,
        ends: Mapping[TopicQueue, int] | None = None,
    ) -> list[OffsetRange]:
        """Choose from the visible messages not handed out yet, one range a queue; do not wait.

        `failure` says why a queue could not be read.

        Args:
            max_messages: the largest number of messages in all ranges together.
            max_bytes: the size of them all, estimated by the sizes of their files; one message is
                always taken.
            ends: by queue the offset before which to stop; a queue that is not named is left out.

        Commits: at most one, to renew the lease.

        Raises: as `GroupReader.keep_up`; MessagesExpiredError, OffsetOutOfRangeError, StorageError,
            OSError if there is nothing to take from the other queues.
        """
        self._reader.keep_up()
        ranges: list[OffsetRange] = []
        failure = self._reader.begin_failure
        looked: list[TopicQueue] = []
        for queue, position in self._reader.servable():
            left = max_messages - count_messages(ranges)
            if left <= 0 or max_bytes <= 0:
                break
            looked.append(queue)
            end = math.inf if ends is None else ends.get(queue, 0)
            left = int(min(left, end - position.next_offset))
            if left <= 0:
                continue
            try:
                offsets, row_bytes = self._next(queue, position, left, max_bytes, not ranges)
            except UNREADABLE as error:
                failure = failure or error
                # The other queues would wait for the storage as long.
                if isinstance(error, StorageUnavailableError):
                    break
                continue
            if not offsets.messages and ranges and row_bytes > max_bytes:
                # There is no room for its next message: it comes first the next time.
                looked.pop()
                break
            if offsets.messages:
                ranges.append(offsets)
                max_bytes -= offsets.messages * row_bytes
        self._reader.turn(looked)
        self.failure = failure
        if failure is not None and not ranges:
            raise failure
        # The lease may have ended while files were read.
        if not self._reader.may_serve:
            return []
        return ranges

    def await_queues(self, wait_s: float) -> dict[TopicQueue, int]:
        """Wait until the member has all queues of its group, up to `wait_s`; return their ends.

        One that is gone has its queues until its lease is over. Raises: as `take`.
        """
        end_s = time.monotonic() + wait_s
        self._reader.keep_up()
        ends = self._reader.ends
        while not self._reader.has_all_queues and time.monotonic() < end_s:
            time.sleep(min(LOOK_INTERVAL_S, wait_s))
            self._reader.keep_up()
        return ends

    def pass_over(self, gone: MessagesExpiredError) -> None:
        """Go on behind messages that are gone, for the whole group: one commit.

        Raises: QueueNotOwnedError, StorageError.
        """
        self._reader.seek({TopicQueue(gone.topic, gone.queue_id): gone.first_offset})

    def replay(self, queue: TopicQueue) -> int:
        """Return how often the group went back in a queue on purpose."""
        return replay_of(self._reader.replays, queue)

    def resume(self, ranges: Mapping[OffsetRange, int]) -> list[TopicQueue]:
        """Commit what an earlier member handled and did not commit: at most two commits.

        A range counts where the group stands within it, and has not gone back since.

        Args:
            ranges: by range the replay of its queue.

        Returns:
            The queues that this member has not got yet: to be asked about again.

        Raises: as `take`.
        """
        self._reader.keep_up()
        rest: list[OffsetRange] = []
        pending: list[TopicQueue] = []
        for offsets, replay in ranges.items():
            stands = self._reader.position(offsets.queue)
            if stands is None:
                pending.append(offsets.queue)
            # Another member may have handled a part of it meanwhile.
            elif offsets.start <= stands < offsets.end and replay == self.replay(offsets.queue):
                rest.append(offsets._replace(start=stands))
        if rest:
            self.hand_out(rest)
            self.commit({offsets.queue: offsets.end for offsets in rest}, rest)
        return pending

    def hand_out(self, ranges: Sequence[OffsetRange]) -> None:
        """Note that the caller has these ranges: it commits them, or gives them again."""
        for queue, _, end in ranges:
            self._reader.hand_out(queue, end)

    def _next(
        self, queue: TopicQueue, position: QueuePosition, left: int, left_bytes: int, least: int
    ) -> tuple[OffsetRange, int]:
        """Return the next range of a queue, of `least` messages or more, and the size of a row."""
        while True:
            begin = position.next_offset
            end = min(self._reader.end_offset(queue, position), begin + left)
            row_bytes = max(self._reader.row_bytes(queue, begin, end), 1)
            end = min(end, begin + max(left_bytes // row_bytes, least))
            start, end = self._reader.fresh_range(queue, position, end)
            # All of them may have been sent back already.
            if start < end or start == begin:
                return OffsetRange(queue, start, end), row_bytes

    def is_owned(self, ranges: Sequence[OffsetRange]) -> bool:
        """Tell whether the member has had all queues of the ranges without a break."""
        return all(self._reader.is_owned(offsets.queue) for offsets in ranges)

    def commit(self, handled: Mapping[TopicQueue, int], ranges: Sequence[OffsetRange]) -> None:
        """Commit the handled part of the ranges, and hand the rest out again: one commit.

        The rest is handed out again also where the commit fails.

        Args:
            handled: the end of the handled part of each queue; a queue without one has none.
            ranges: one range a queue, as `take` returned them.

        Raises: StorageError.
        """
        ends = {queue: handled.get(queue, start) for queue, start, _ in ranges}
        unhandled = {queue: ends[queue] for queue, _, end in ranges if ends[queue] < end}
        try:
            self._reader.commit(unhandled)
        finally:
            # Else the next commit would pass what nobody has handled.
            self._reader.give_again(unhandled)

    def failed_message(
        self, offsets: OffsetRange, reason: str | BaseException
    ) -> FailedMessage | None:
        """Return the one message of a range as a failure, or None if the filter leaves it out.

        Raises: MessagesExpiredError, OffsetOutOfRangeError, StorageError.
        """
        message = self._reader.message_at(offsets.queue, offsets.start)
        if message is None:
            return None
        replay = replay_of(self._reader.replays, offsets.queue)
        return FailedMessage(message, reason, replay=replay)

    def send_back(self, failed: Sequence[FailedMessage]) -> int:
        """Send failed messages to the retry topic, and return how many were sent."""
        return self._reader.send_back(failed)

    def leave(self) -> None:
        """Leave the group: one commit."""
        self._reader.leave()


# --- Ranges as DataFrames ------------------------------------------------------------------------


class TopicFrames:
    """Makes DataFrames of ranges of offsets.

    Args:
        store: the store of the topics.
        spark: a session, also of Spark Connect.
        filters: the filter of each topic, by stored name; a topic without one passes whole.
        namespace: names of this namespace are shown without it.
    """

    def __init__(
        self,
        store: Store,
        spark: SparkSession,
        filters: Mapping[str, MessageFilter],
        namespace: str | None,
    ) -> None:
        """Read nothing yet."""
        self._store, self._spark = store, spark
        self._filters, self._namespace = filters, namespace

    def check_session(self) -> None:
        """Raise EnvironmentProblemError where the session leaves out what it cannot read."""
        check_passes_over_no_file(self._spark)

    def dataframe(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """Return the messages of the ranges that pass the filters, in the columns of TOPIC."""
        topics = dict.fromkeys(offsets.queue.topic for offsets in ranges)
        frames = [
            self._of_topic(topic, [offsets for offsets in ranges if offsets.queue.topic == topic])
            for topic in topics
        ]
        return united(frames, self._namespace)

    def _of_topic(self, topic: str, ranges: Sequence[OffsetRange]) -> DataFrame:
        rows = self._spark.read.format("delta").load(self._store.topic_location(topic))
        rows = rows.where(reduce(or_, map(_is_in_range, ranges))).where(is_not_erased())
        message_filter = self._filters.get(topic)
        if message_filter is None or message_filter.is_all:
            return rows
        return rows.where(message_filter.column())


def united(frames: Sequence[DataFrame], namespace: str | None) -> DataFrame:
    """Unite the rows of several topics, with names as the namespace shows them."""
    rows = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)
    return rows if namespace is None else _without_namespace(rows, namespace)


def _without_namespace(rows: DataFrame, namespace: str) -> DataFrame:
    import pyspark.sql.functions as F  # noqa: N812

    # As `names.unwrapped`; a namespace has no special characters of regular expressions.
    pattern = rf"^(RETRY_|DLQ_)?{namespace}\."
    names = ("topic", "producer_group")
    return rows.withColumns({name: F.regexp_replace(name, pattern, "$1") for name in names})


def _is_in_range(offsets: OffsetRange) -> Column:
    import pyspark.sql.functions as F  # noqa: N812

    is_in_queue = F.col("queue_id") == offsets.queue.queue_id
    offset = F.col("queue_offset")
    return is_in_queue & (offset >= offsets.start) & (offset < offsets.end)
