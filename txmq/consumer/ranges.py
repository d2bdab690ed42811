"""Ranges of offsets in the place of messages: the driver knows offsets, Spark reads the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from txmq.consumer.group_reader import GroupReader
from txmq.consumer.offsets import UNREADABLE
from txmq.consumer.positions import QueuePosition
from txmq.consumer.rules import TopicQueue, replay_of
from txmq.consumer.send_back import FailedMessage
from txmq.errors import StorageUnavailableError

# A batch of a handler of DataFrames.
BATCH_BYTES = 1024 * 1024 * 1024


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
    """How many offsets the ranges have."""
    return sum(offsets.messages for offsets in ranges)


def split_in_two(
    ranges: Sequence[OffsetRange],
) -> tuple[list[OffsetRange], list[OffsetRange]]:
    """Two parts with half of the messages each; each queue stays in its order."""
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
        """The reader is a member of its group already."""
        self._reader = reader

    def take(self, max_messages: int, max_bytes: int = BATCH_BYTES) -> list[OffsetRange]:
        """The visible messages that were not handed out yet, one range a queue; does not wait.

        Args:
            max_messages: the largest number of messages in all ranges together.
            max_bytes: the size of them all, estimated by the sizes of their files; one message is
                always taken.

        Commits: at most one, to renew the lease.

        Raises: as `GroupReader.keep_up`; MessagesExpiredError, OffsetOutOfRangeError, StorageError,
            OSError if there is nothing to take from the other queues.
        """
        self._reader.keep_up()
        ranges: list[OffsetRange] = []
        failure = self._reader.begin_failure
        for queue, position in self._reader.servable():
            left = max_messages - count_messages(ranges)
            if left <= 0 or max_bytes <= 0:
                break
            try:
                offsets, row_bytes = self._next(queue, position, left, max_bytes, not ranges)
            except UNREADABLE as error:
                failure = failure or error
                # The other queues would wait for the storage as long.
                if isinstance(error, StorageUnavailableError):
                    break
                continue
            if offsets.messages:
                ranges.append(offsets)
                max_bytes -= offsets.messages * row_bytes
        if failure is not None and not ranges:
            raise failure
        # The lease may have ended while files were read.
        if not self._reader.may_serve:
            return []
        for queue, _, end in ranges:
            self._reader.hand_out(queue, end)
        return ranges

    def _next(
        self, queue: TopicQueue, position: QueuePosition, left: int, left_bytes: int, least: int
    ) -> tuple[OffsetRange, int]:
        """The next range of a queue, at least `least` messages, and the size of a row of it."""
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
        """Whether the member has had all queues of the ranges without a break."""
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
        """The one message of a range as a failure; None where the filter does not let it through.

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
