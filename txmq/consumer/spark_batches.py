"""A member of a consumer group whose handler gets the messages as DataFrames.

It shares queues, offsets, leases and retries with members that need no Spark; only the form of the
messages differs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Self

from txmq.consumer.batch import ConsumeResult
from txmq.consumer.exclusive_use import ExclusiveUse
from txmq.consumer.frames import TopicFrames
from txmq.consumer.group_reader import LOOK_INTERVAL_S
from txmq.consumer.handler import ENDS, ConsumeStatus, ErrorHook, hand_out, wrong_result
from txmq.consumer.ranges import OffsetRange, RangeReader, count_messages, split_in_two
from txmq.consumer.rules import TopicQueue
from txmq.consumer.send_back import FailedMessage
from txmq.errors import ConsumerGroupConflictError, TxmqError
from txmq.handles import ThreadHandle

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
        """The reader of the ranges is a member of its group already."""
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
        with self._use:
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
        with self._use:
            self._use.close()
            self._ranges.leave()

    def leave(self) -> None:
        """Leave the group until the next batch, so that others go on: one commit."""
        with self._use:
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
        """An effect by offset says that all messages before it in its queue are done."""
        queues = {offsets.queue for offsets in ranges}
        if any(offsets.queue in queues for offsets, _ in self._failed):
            self._send_back()

    def _note_failed(self, offsets: OffsetRange, reason: str | BaseException) -> None:
        failed = self._reader.failed_message(offsets, reason)
        if failed is not None:
            logger.warning("%r is sent back", failed.message)
            self._failed.append((offsets, failed))
            if isinstance(reason, BaseException):
                hand_out(self._on_error, failed.message, reason)
        self._handled[offsets.queue] = offsets.end

    def _is_left(self, ranges: Sequence[OffsetRange]) -> bool:
        """Whether a queue was lost; then the rest of the batch is left out, to keep the order."""
        self._has_left = self._has_left or not self._reader.is_owned(ranges)
        return self._has_left

    def _failure(self, ranges: Sequence[OffsetRange]) -> str | BaseException | None:
        """Why the handler failed on the ranges; None where it handled them."""
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
        """`SparkBatches.start` makes it."""
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
