"""Take messages of the queues of a member: where it is in each queue, and what it is handed out."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from txmq.consumer.attempts import Attempts, attempts_of
from txmq.consumer.group_rules import (
    AttemptsByQueue,
    Commits,
    TopicCommit,
    TopicQueue,
    replay_of,
)
from txmq.consumer.member import GroupMember, HeldQueues
from txmq.consumer.offsets import UNREADABLE
from txmq.consumer.reader import Run, TopicReader
from txmq.consumer.send_back import PlacedMessage, SendBack
from txmq.errors import StorageUnavailableError
from txmq.message.received import ReceivedMessage

# What was read ahead of several queues is dropped beyond this.
READ_AHEAD_BYTES = 64 * 1024 * 1024
LOOK_MESSAGES = 10_000
QueueMessage = tuple[TopicQueue, ReceivedMessage]
Queues = Iterator[tuple[TopicQueue, "QueuePosition"]]
Position = TypeVar("Position", bound="QueuePosition")


class MessageTaking:
    """Takes messages, or ranges of offsets. Not safe for several threads; 0 commits.

    Args:
        member: whose queues these are.
        readers: one for each topic.
        positions: where the member is in each queue.
        sent_back: knows which messages were sent back already; None if none ever is.
    """

    def __init__(
        self,
        member: GroupMember,
        readers: Mapping[str, TopicReader],
        positions: QueuePositions[Any],
        *,
        sent_back: SendBack | None,
    ) -> None:
        """Read nothing yet."""
        self._member, self._readers, self._positions = member, readers, positions
        self._sent_back = sent_back
        self._has_raised = False
        # What `take` returned last, for whom an interrupt keeps it from.
        self.handed: Sequence[QueueMessage] = ()

    # --- messages ---------------------------------------------------------------------------

    def take(
        self, batch_of: Callable[[], HandedMessages], servable: Callable[[], Queues]
    ) -> list[QueueMessage]:
        """Fill a batch with messages, each queue in its order; see `GroupReader.take`."""
        self.handed = ()
        while True:
            busy, starts = self._positions.busy(), self._positions.starts()
            try:
                handed, failure = self._hand_out(batch_of(), servable(), busy)
                fresh = self.handed = self._fresh(handed, busy)
            except BaseException:
                # What was taken of the queues before would be committed, and nobody has it.
                self._positions.undo(starts, busy)
                raise
            if failure is not None:
                raise failure
            if fresh or not handed:
                return fresh

    def _hand_out(
        self, batch: HandedMessages, queues: Queues, busy: Collection[TopicQueue]
    ) -> tuple[list[QueueMessage], Exception | None]:
        """Return what is handed out, and the error to raise instead, if any."""
        looked: list[TopicQueue] = []
        failure = self._fill(batch, queues, looked)
        self._positions.bound_ahead(READ_AHEAD_BYTES)
        handed = batch.messages
        must_raise = failure is not None and not (self._has_raised and handed)
        # The lease may have ended while files were read.
        if must_raise or not self._member.may_serve:
            gave = first_handed(handed)
            self._positions.undo(gave, busy)
            looked = [queue for queue in looked if queue not in gave]
            handed = []
        self._positions.turn(looked)
        self._has_raised = must_raise
        return handed, failure if must_raise else None

    def _fill(
        self, batch: HandedMessages, queues: Queues, looked: list[TopicQueue]
    ) -> Exception | None:
        """Fill the batch, share by share, and return the first error of a queue without messages.

        Adds to `looked` what had its turn: not a queue for whose message there was no room. What
        lies before the error is handed out first: who goes on behind it would miss that.
        """
        failure = self._member.begin_failure
        starts: dict[TopicQueue, tuple[int, int]] = {}
        with_more: deque[tuple[TopicQueue, QueuePosition]] = deque()
        while not batch.is_full:
            entry = next(queues, None) or (with_more.popleft() if with_more else None)
            if entry is None:
                break
            queue, position = entry
            starts.setdefault(queue, position.place)
            try:
                if self._takes_share(batch, queue, position):
                    with_more.append(entry)
                if position.place != starts[queue] or not position.has_messages():
                    looked.append(queue)
            except UNREADABLE as error:
                looked.append(queue)
                if position.place == starts[queue]:
                    failure = failure or error
                # The other queues would wait for the storage as long.
                if isinstance(error, StorageUnavailableError):
                    break
        return failure

    def _takes_share(
        self, batch: HandedMessages, queue: TopicQueue, position: QueuePosition
    ) -> bool:
        """Take the share of a queue; tell whether it had so many messages, and may have more."""
        left = batch.of_a_queue
        while left and not batch.is_full and self._has_messages(queue, position):
            left -= batch.take(queue, position, left)
        batch.end_share()
        return not left

    def _has_messages(self, queue: TopicQueue, position: QueuePosition) -> bool:
        """Tell whether there are messages to hand out; read ahead if there are none yet."""
        self.begin(queue, position)
        while not position.has_messages():
            reader, offset = self._readers[queue.topic], position.read_offset
            run = None if offset is None else reader.read(queue.queue_id, offset)
            if run is None:
                return False
            # It may have met a rebuild.
            self.begin(queue, position)
            position.put(run)
        return True

    def _fresh(
        self, handed: list[QueueMessage], busy: Collection[TopicQueue]
    ) -> list[QueueMessage]:
        """Leave out messages that were sent back already, which count as handled."""
        doubted = self._doubted(handed)
        if self._sent_back is None or not doubted:
            return handed
        sent = self._sent_places(self._sent_back, doubted)
        fresh = [(q, message) for q, message in handed if (q, message.queue_offset) not in sent]
        # The lease may have ended meanwhile.
        if not self._member.may_serve:
            self._positions.undo(first_handed(handed), busy)
            return []
        for queue, offset in sent:
            self._positions.acknowledge(queue, offset)
        # The offset moves on with the next commit: the caller has nothing of these queues.
        self._positions.be_idle({q for q, _ in handed} - {q for q, _ in fresh} - {*busy})
        return fresh

    def _doubted(self, handed: list[QueueMessage]) -> list[QueueMessage]:
        """Return the messages before the end that their topic had when the member got the queue."""
        positions = {queue: self._positions.get(queue) for queue in {q for q, _ in handed}}
        ends = {q: 0 if at is None else at.doubt_end or 0 for q, at in positions.items()}
        if not any(ends.values()):
            return []
        return [(q, message) for q, message in handed if message.queue_offset < ends[q]]

    def _sent_places(
        self, sent_back: SendBack, doubted: list[QueueMessage]
    ) -> set[tuple[TopicQueue, int]]:
        """Return queue and offset of each message that was sent back."""
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
        """Look once where the topic ends, and check that it is the one that was read before.

        What was read ahead of a rebuild is dropped: its offsets may be of other messages now.

        Raises: TopicRestoredError; StorageError, OSError.
        """
        reader = self._readers[queue.topic]
        if reader.failure is not None:
            raise reader.failure
        if position.doubt_end is None:
            # Whoever had the queue before may have seen more of the topic.
            reader.look()
            self._positions.doubt_before(queue.topic, reader.ends)
        if position.read_in is not None:
            reader.check_follows(position.read_in, queue.queue_id, position.next_offset)
            if reader.has_moved_since(position.read_in):
                position.move_to(position.next_offset)
        position.read_in = reader.commit

    def fresh_range(
        self, queue: TopicQueue, position: QueuePosition, start: int, end: int
    ) -> tuple[int, int]:
        """Return the first part of a range of offsets in which no message was sent back already.

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
        """Return the offsets of a range whose messages were sent back, sorted."""
        # Most groups have never sent anything back; then no topic is read for it.
        if self._sent_back is None or not self._sent_back.have_any():
            return []
        reader, replay = self._readers[queue.topic], replay_of(self._member.held.replays, queue)
        placed = [
            PlacedMessage(*place, replay) for place in reader.places(queue.queue_id, start, end)
        ]
        were_sent = self._sent_back.are_sent_back(placed)
        return sorted(at.offset for at, was_sent in zip(placed, were_sent, strict=True) if was_sent)


class HandedMessages:
    """Messages that are handed out together: so many, and of such a size, but at least one.

    Attributes:
        of_a_queue: so many of one queue, before the next one has its turn.
    """

    def __init__(
        self, count: int, room_bytes: int, of_a_queue: int, *, is_of_one_queue: bool = False
    ) -> None:
        """Begin with room for `count` messages of `room_bytes` together."""
        self.messages: list[QueueMessage] = []
        self._count, self._room_bytes, self.of_a_queue = count, room_bytes, of_a_queue
        self._is_of_one_queue, self.is_full = is_of_one_queue, False

    def end_share(self) -> None:
        """Note that the next messages are those of another queue."""
        self.is_full = self.is_full or (self._is_of_one_queue and bool(self.messages))

    def take(self, queue: TopicQueue, position: QueuePosition, count: int) -> int:
        """Take at most `count` of the messages that were read ahead of a queue; return how many."""
        room_bytes = self._room_bytes
        if not self.messages:
            room_bytes = max(room_bytes, position.first_bytes)
        count = min(count, self._count - len(self.messages))
        messages, size_bytes = position.take(count, room_bytes)
        self.messages += [(queue, message) for message in messages]
        self._room_bytes -= size_bytes
        self.is_full = not messages or len(self.messages) >= self._count or self._room_bytes <= 0
        return len(messages)


class QueuePositions(Generic[Position]):
    """The positions in all queues of a member. Not safe for several threads.

    Args:
        kind: of what class they are.
    """

    def __init__(self, kind: type[Position]) -> None:
        """Begin without a queue; `follow` adds the queues of a member."""
        self._kind, self._positions = kind, dict[TopicQueue, Position]()
        self._lost: set[TopicQueue] = set()

    def follow(self, held: HeldQueues) -> None:
        """Drop queues that the member has lost, and begin with those that it got."""
        epochs = held.epochs
        for queue in [q for q, at in self._positions.items() if epochs.get(q) != at.epoch]:
            if self._positions.pop(queue).may_lose:
                self._lost.add(queue)
        for queue, epoch in epochs.items():
            if queue not in self._positions and queue in held.offsets:
                offset = held.offsets[queue]
                position = self._kind(epoch, offset, offset, read_in=held.followed.get(queue))
                if attempts := held.attempts.get(queue):
                    position.go_on_after(attempts)
                self._positions[queue] = position

    def take_lost(self) -> set[TopicQueue]:
        """Return the queues that were lost while their messages were in the hands of the caller.

        Each of them is reported once.
        """
        lost, self._lost = self._lost, set()
        return lost

    def doubt_before(self, topic: str, ends: Mapping[int, int]) -> None:
        """Doubt what lies before these ends, in queues of a topic that were not looked at yet."""
        for queue, position in self._positions.items():
            if queue.topic == topic and position.doubt_end is None:
                position.doubt_end = ends.get(queue.queue_id, 0)

    def queues_of(self, topic: str) -> list[int]:
        """List the ids of the queues of a topic that the member has, sorted."""
        return sorted(queue.queue_id for queue in self._positions if queue.topic == topic)

    def get(self, queue: TopicQueue) -> Position | None:
        """Return the position in a queue; None if the member does not have the queue."""
        return self._positions.get(queue)

    def has_messages(self) -> bool:
        """Tell whether messages of any queue were read ahead."""
        return any(position.has_messages() for position in self._positions.values())

    def bound_ahead(self, size_bytes: int) -> None:
        """Drop what was read ahead beyond a size; it is read again when it is asked for."""
        for position in self._positions.values():
            size_bytes -= position.ahead_bytes
            if size_bytes < 0 and position.has_messages():
                position.move_to(position.next_offset)

    def in_turn(self) -> Queues:
        """Yield all positions, those first whose `turn` was longest ago."""
        yield from list(self._positions.items())

    def turn(self, queues: Iterable[TopicQueue]) -> None:
        """Note that these queues have had their turn: the others come first the next time."""
        served = {queue: self._positions[queue] for queue in queues if queue in self._positions}
        others = {queue: at for queue, at in self._positions.items() if queue not in served}
        # In one step, for an interrupt between two would lose a position.
        self._positions = {**others, **served}

    def starts(self) -> dict[TopicQueue, int]:
        """Return the first offset of each queue that was not handed out."""
        return {queue: position.next_offset for queue, position in self._positions.items()}

    def busy(self) -> set[TopicQueue]:
        """Return the queues whose messages were handed out since their last commit."""
        return {queue for queue, position in self._positions.items() if position.is_in_use}

    def commits(self, unhandled: Mapping[TopicQueue, int] | None = None) -> Commits:
        """Return the offsets to commit: all that was handed out, up to before `unhandled`."""
        ends = {q: (at.epoch, at.handled_offset) for q, at in self._positions.items()}
        for queue, offset in (unhandled or {}).items():
            if queue in ends:
                # As in `give_again`.
                ends[queue] = (ends[queue][0], min(offset, ends[queue][1]))
        return {q: end for q, end in ends.items() if end[1] > self._positions[q].committed}

    def read_in(self, queues: Collection[TopicQueue]) -> dict[TopicQueue, TopicCommit]:
        """Return the commit of its topic that the offset of each queue was read in, if known."""
        commits = {queue: at.read_in for queue, at in self._positions.items() if queue in queues}
        return {queue: commit for queue, commit in commits.items() if commit is not None}

    def attempts(self) -> AttemptsByQueue:
        """Return what was handed out of each queue, from its next offset on, and is not over."""
        handed = {queue: (at.epoch, at.attempts()) for queue, at in self._positions.items()}
        return {queue: (epoch, at) for queue, (epoch, at) in handed.items() if at is not None}

    def has_new_attempts(self, held: HeldQueues) -> bool:
        """Tell whether the group does not know all of `attempts`."""
        own = self.attempts().items()
        return any(held.attempts.get(queue) != attempts for queue, (_, attempts) in own)

    def idle_commits(self) -> Commits:
        """Return the offsets to commit of idle queues: messages that filters held back."""
        busy = self.busy()
        return {queue: end for queue, end in self.commits().items() if queue not in busy}

    def hand_out(self, queue: TopicQueue, end: int) -> None:
        """Note that the caller has all messages of a queue up to before `end`."""
        self._positions[queue].move_to(end)
        self._positions[queue].is_busy = True

    def note_committed(self, commits: Commits, refused: Collection[TopicQueue]) -> None:
        """Note that the group knows these offsets now, but for the refused queues."""
        for queue, (epoch, offset) in commits.items():
            position = self._positions.get(queue)
            if position is not None and queue not in refused and position.epoch == epoch:
                position.committed = offset
                position.is_busy = position.is_busy and offset < position.next_offset
        for queue, position in self._positions.items():
            if queue not in refused and position.handled_offset == position.committed:
                position.note_durable()

    def next_offsets(self, topic: str) -> dict[int, int]:
        """Return the first offset of each queue of a topic that may be read."""
        return {
            queue.queue_id: position.handled_offset
            for queue, position in self._positions.items()
            if queue.topic == topic
        }

    def be_idle(self, queues: Collection[TopicQueue]) -> None:
        """Note that the caller has no messages of these queues."""
        for queue in queues:
            self._positions[queue].is_busy = False

    def undo(
        self, first_offsets: Mapping[TopicQueue, int], busy_before: Collection[TopicQueue]
    ) -> None:
        """Go back to these offsets as if they, and what follows, had not been handed out."""
        for queue, offset in first_offsets.items():
            if position := self._positions.get(queue):
                position.undo(offset, is_busy=queue in busy_before)

    def acknowledge(self, queue: TopicQueue, offset: int) -> None:
        """Note that a message of a queue is over."""
        if position := self._positions.get(queue):
            position.acknowledge(offset)

    def in_hands(self) -> set[TopicQueue]:
        """Return the queues of which messages are invisible that were not acknowledged."""
        return {q for q, position in self._positions.items() if position.has_messages_in_hands}

    def give_again(
        self, first_offsets: Mapping[TopicQueue, int], *, are_doubtful: bool = True
    ) -> None:
        """Hand out these offsets next, and what follows them; lost queues are left out.

        Doubtful ones may have been sent back by whoever had them, without an answer.
        """
        for queue, offset in first_offsets.items():
            if position := self._positions.get(queue):
                if are_doubtful:
                    position.doubt_end = max(position.doubt_end or 0, position.next_offset)
                # A queue that was lost and came back begins at an earlier offset.
                position.move_to(max(position.committed, min(offset, position.next_offset)))


@dataclass(slots=True)
class QueuePosition:
    """The position in one queue.

    Attributes:
        epoch: the epoch under which the member has the queue.
        committed: the next offset as the group knows it.
        next_offset: the first offset that was not handed out.
        is_busy: whether messages were handed out since the last commit.
        read_in: the commit of its topic that `next_offset` was read in; None if it is not known.
        tried_offset, tries: how often the message at this offset has failed in its place.
        suspended_until_ms: it is not served before; of the clock of durations.
        doubt_end: messages before it may have been handed out, and sent back, without a commit;
            None before the first look at the queue.
    """

    epoch: int
    committed: int
    next_offset: int
    is_busy: bool = False
    read_in: TopicCommit | None = None
    doubt_end: int | None = None
    tried_offset: int = 0
    tries: int = 0
    suspended_until_ms: int = 0
    _messages: list[ReceivedMessage] = field(default_factory=list)
    _offsets: list[int] = field(default_factory=list)
    _sizes_bytes: list[int] = field(default_factory=list)
    _row: int = 0
    _end_offset: int = 0

    def take(self, count: int, room_bytes: int) -> tuple[list[ReceivedMessage], int]:
        """Hand out at most `count` of the messages that were read ahead, as far as there is room.

        Returns:
            The messages, and their size.
        """
        end = self._row
        size_bytes = 0
        for size in self._sizes_bytes[self._row : self._row + count]:
            if size_bytes + size > room_bytes:
                break
            end, size_bytes = end + 1, size_bytes + size
        messages = self._messages[self._row : end]
        if messages:
            self.is_busy = True
            self._pass_to(end)
        return messages, size_bytes

    def _pass_to(self, row: int) -> None:
        """Note that the messages before a row are handed out."""
        self._row = row
        is_last = row == len(self._messages)
        self.next_offset = self._end_offset if is_last else self._offsets[row]

    @property
    def place(self) -> tuple[int, int]:
        """Another one after each message that is taken or skipped."""
        return self.next_offset, 0

    @property
    def read_offset(self) -> int | None:
        """The offset to read next; None if nothing is to be read now."""
        return self.next_offset

    @property
    def handled_offset(self) -> int:
        """The offset up to which all was handed out, and is handled for all that is known here."""
        return self.next_offset

    @property
    def is_in_use(self) -> bool:
        """Whether the caller has messages of the queue."""
        return self.is_busy

    @property
    def may_lose(self) -> bool:
        """Whether the caller had messages that are not committed."""
        return self.is_busy

    @property
    def has_messages_in_hands(self) -> bool:
        """Whether messages are invisible that were not acknowledged yet."""
        return False

    def go_on_after(self, attempts: Attempts) -> None:
        """Begin with what an owner before has counted."""
        self.tried_offset, self.tries = attempts.offset, attempts.times_of(attempts.offset)

    def attempts(self) -> Attempts | None:
        """Return the tries of a message that is not committed; None if there is none."""
        if not self.tries or self.tried_offset < self.committed:
            return None
        return attempts_of({self.tried_offset: self.tries}, self.tried_offset + 1)

    def tries_at(self, offset: int) -> int:
        """Return how often a message has failed in its place."""
        return self.tries if self.tried_offset == offset else 0

    def acknowledge(self, offset: int) -> None:
        """Note that a message is over."""

    def note_durable(self) -> None:
        """Note that the group knows all that became of its messages."""

    @property
    def first_bytes(self) -> int:
        """The size of the next message that was read ahead."""
        return self._sizes_bytes[self._row]

    @property
    def ahead_bytes(self) -> int:
        """The size of the messages that were read ahead; a run is kept as a whole."""
        return sum(self._sizes_bytes) if self.has_messages() else 0

    def has_messages(self) -> bool:
        """Tell whether messages that were read ahead wait to be handed out."""
        return self._row < len(self._messages)

    def put(self, run: Run) -> None:
        """Keep messages that were read ahead. A run that the filter empties is skipped."""
        self._messages, self._offsets = run.rows.messages(), run.offsets
        self._sizes_bytes = run.rows.sizes_bytes()
        self._end_offset = run.next_offset
        self._pass_to(0)

    def move_to(self, offset: int) -> None:
        """Hand out this offset next; messages that were read ahead are dropped and read again."""
        self.next_offset, self._row = offset, 0
        self._messages, self._offsets, self._sizes_bytes = [], [], []
        self.is_busy = self.is_busy and offset > self.committed

    def undo(self, offset: int, *, is_busy: bool) -> None:
        """Go back to an offset as if it, and what follows, had not been handed out."""
        self.move_to(offset)
        self.is_busy = is_busy

    def restart(self, offset: int) -> None:
        """Go on at any offset, without a trace of what was handed out before."""
        self.move_to(offset)
        self.committed, self.is_busy = offset, False
        self.tries = self.suspended_until_ms = 0


def first_offsets(offsets: Iterable[tuple[TopicQueue, int]]) -> dict[TopicQueue, int]:
    """Return the smallest offset of each queue."""
    smallest: dict[TopicQueue, int] = {}
    for queue, offset in offsets:
        smallest[queue] = min(offset, smallest.get(queue, offset))
    return smallest


def first_handed(handed: Sequence[QueueMessage]) -> dict[TopicQueue, int]:
    """Return the smallest offset of each queue of these messages."""
    return first_offsets((queue, message.queue_offset) for queue, message in handed)
