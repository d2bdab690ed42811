"""Takes messages from the queues of a member, without those that were sent back already.

A member may die, or lose an answer, between sending a message back and the commit of its offset.
Then the message comes again, and so does its retry. So a member that gets a queue, or messages that
were given again, looks which of them were sent back. Behind these messages it looks for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from txmq.consumer.offsets import UNREADABLE
from txmq.consumer.positions import (
    HandedMessages,
    QueueMessage,
    QueuePosition,
    QueuePositions,
    first_offsets,
)
from txmq.consumer.rules import TopicQueue, replay_of
from txmq.consumer.send_back import PlacedMessage
from txmq.errors import StorageUnavailableError

if TYPE_CHECKING:
    from txmq.consumer.member import GroupMember
    from txmq.consumer.reader import TopicReader

# What was read ahead of several queues is dropped beyond this.
READ_AHEAD_BYTES = 64 * 1024 * 1024
LOOK_MESSAGES = 10_000

Queues = Sequence[tuple["TopicQueue", QueuePosition]]


class KnowsSentBack(Protocol):
    """Says which messages were sent back already: `SendBack`."""

    def are_sent_back(self, messages: Sequence[PlacedMessage]) -> list[bool]:
        """Whether each of these was sent back; 0 commits."""
        ...

    def have_any(self) -> bool:
        """Whether anything was ever sent back; 0 commits."""
        ...


class MessageTaking:
    """Takes messages, or ranges of offsets. Not safe for several threads; 0 commits.

    Args:
        member: whose queues these are.
        readers: one for each topic.
        positions: where the member is in each queue.
        batch_bytes: the largest size of what `take` returns, but for a single message.
        sent_back: None where failed messages are not sent back.
    """

    def __init__(
        self,
        member: GroupMember,
        readers: Mapping[str, TopicReader],
        positions: QueuePositions,
        *,
        batch_bytes: int,
        sent_back: KnowsSentBack | None,
    ) -> None:
        """Nothing is read yet."""
        self._member, self._readers, self._positions = member, readers, positions
        self._batch_bytes, self._sent_back = batch_bytes, sent_back
        self._has_raised = False

    # --- messages ---------------------------------------------------------------------------

    def take(self, count: int, servable: Callable[[], Queues]) -> list[QueueMessage]:
        """At most `count` messages, each queue in its order; see `GroupReader.take`."""
        while True:
            busy = self._positions.busy()
            handed = self._handed(count, servable(), busy)
            fresh = self._fresh(handed, busy)
            if fresh or not handed:
                return fresh

    def _handed(
        self, count: int, queues: Queues, busy: Collection[TopicQueue]
    ) -> list[QueueMessage]:
        batch = HandedMessages(count, self._batch_bytes)
        starts = {queue: position.next_offset for queue, position in queues}
        try:
            failure = self._filled(batch, queues)
            self._positions.bound_ahead(READ_AHEAD_BYTES)
        except BaseException:
            # What was taken of the queues before would be committed, and nobody has it.
            self._positions.undo(starts, busy)
            raise
        handed = batch.messages
        must_raise = failure is not None and not (self._has_raised and handed)
        # The lease may have ended while files were read.
        if must_raise or not self._member.may_serve:
            self._positions.undo(_first(handed), busy)
            handed = []
        self._has_raised = must_raise
        if failure is not None and must_raise:
            raise failure
        return handed

    def _filled(self, batch: HandedMessages, queues: Queues) -> Exception | None:
        """Fill the batch, and return the first error of a queue that cannot be read."""
        failure = self._member.begin_failure
        for queue, position in queues:
            try:
                while not batch.is_full and self._has_messages(queue, position):
                    batch.take(queue, position)
            except UNREADABLE as error:
                failure = failure or error
                # The other queues would wait for the storage as long.
                if isinstance(error, StorageUnavailableError):
                    break
        return failure

    def _has_messages(self, queue: TopicQueue, position: QueuePosition) -> bool:
        """Whether there are messages to hand out; reads ahead where there are none yet."""
        self.begin(queue, position)
        while not position.has_messages():
            run = self._readers[queue.topic].read(queue.queue_id, position.next_offset)
            if run is None:
                return False
            position.put(run)
        return True

    def _fresh(
        self, handed: list[QueueMessage], busy: Collection[TopicQueue]
    ) -> list[QueueMessage]:
        """The messages without those that were sent back, which count as handled."""
        doubted = self._doubted(handed)
        if self._sent_back is None or not doubted:
            return handed
        try:
            sent = self._already_sent(self._sent_back, doubted)
        except BaseException:
            self._positions.undo(_first(handed), busy)
            raise
        fresh = (
            [(q, message) for q, message in handed if (q, message.queue_offset) not in sent]
            if sent
            else handed
        )
        # The lease may have ended meanwhile.
        if not self._member.may_serve:
            self._positions.undo(_first(handed), busy)
            return []
        if sent:
            # The offset moves on with the next commit: the caller has nothing of these queues.
            self._positions.be_idle({q for q, _ in handed} - {q for q, _ in fresh} - {*busy})
        return fresh

    def _doubted(self, handed: list[QueueMessage]) -> list[QueueMessage]:
        """The messages before the end that their topic had when the member got the queue."""
        positions = {queue: self._positions.get(queue) for queue in {q for q, _ in handed}}
        ends = {q: 0 if at is None else at.doubt_end or 0 for q, at in positions.items()}
        if not any(ends.values()):
            return []
        return [(q, message) for q, message in handed if message.queue_offset < ends[q]]

    def _already_sent(
        self, sent_back: KnowsSentBack, doubted: list[QueueMessage]
    ) -> set[tuple[TopicQueue, int]]:
        """Queue and offset of each message that was sent back."""
        # Most groups have never sent anything back; then no message is looked up.
        if not sent_back.have_any():
            return set()
        replays = self._member.held.replays
        placed = [PlacedMessage.of(message, replay_of(replays, q)) for q, message in doubted]
        were_sent = sent_back.are_sent_back(placed)
        return {
            (queue, message.queue_offset)
            for (queue, message), was_sent in zip(doubted, were_sent, strict=True)
            if was_sent
        }

    # --- queues -----------------------------------------------------------------------------

    def begin(self, queue: TopicQueue, position: QueuePosition) -> None:
        """Look where the topic ends, once, and that it is the one that the group has followed.

        Raises: TopicRestoredError; StorageError, OSError.
        """
        reader = self._readers[queue.topic]
        if reader.failure is not None:
            raise reader.failure
        if position.doubt_end is None:
            # Whoever had the queue before may have seen more of the topic.
            reader.look()
            self._positions.doubt_before(queue.topic, reader.ends)
        commit = self._member.held.followed.get(queue)
        if commit is not None:
            reader.check_follows(commit, queue.queue_id, position.next_offset)

    def fresh_range(
        self, queue: TopicQueue, position: QueuePosition, start: int, end: int
    ) -> tuple[int, int]:
        """The first part of a range of offsets in which no message was sent back already.

        Raises: StorageError.
        """
        doubt_end = min(end, position.doubt_end or 0)
        for begin in range(start, doubt_end, LOOK_MESSAGES):
            for offset in self._sent_in(queue, begin, min(begin + LOOK_MESSAGES, doubt_end)):
                if offset > start:
                    return start, offset
                start = offset + 1
        return start, end

    def _sent_in(self, queue: TopicQueue, start: int, end: int) -> list[int]:
        """The offsets of a range whose messages were sent back, in their order."""
        # Most groups have never sent anything back; then no topic is read for it.
        if self._sent_back is None or not self._sent_back.have_any():
            return []
        reader, replay = self._readers[queue.topic], replay_of(self._member.held.replays, queue)
        placed = [
            PlacedMessage(*place, replay) for place in reader.places(queue.queue_id, start, end)
        ]
        were_sent = self._sent_back.are_sent_back(placed)
        return sorted(at.offset for at, was_sent in zip(placed, were_sent, strict=True) if was_sent)


def _first(handed: Sequence[QueueMessage]) -> dict[TopicQueue, int]:
    return first_offsets((queue, message.queue_offset) for queue, message in handed)
