"""Where a consumer stands in each of its queues, and what it has read ahead."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from txmq.consumer.member import Commits, HeldQueues
from txmq.consumer.reader import Run
from txmq.consumer.rules import TopicQueue
from txmq.message.received import ReceivedMessage

QueueMessage = tuple[TopicQueue, ReceivedMessage]


@dataclass(slots=True)
class QueuePosition:
    """One queue of this member.

    Attributes:
        epoch: under which it has the queue.
        committed: the offset that the group knows.
        position: the first offset that was not handed out.
        is_dirty: whether messages were handed out since the last commit.
    """

    epoch: int
    committed: int
    position: int
    is_dirty: bool = False
    _waiting: list[ReceivedMessage] = field(default_factory=list)
    _offsets: list[int] = field(default_factory=list)
    _row: int = 0
    _fetched: int = 0

    def take(self, count: int) -> list[ReceivedMessage]:
        """Hand out what was read ahead, at most `count`."""
        end = min(len(self._waiting), self._row + count)
        taken = self._waiting[self._row : end]
        if taken:
            self._row, self.is_dirty = end, True
            is_last = end == len(self._waiting)
            self.position = self._fetched if is_last else self._offsets[end]
        return taken

    def has_waiting(self) -> bool:
        """Whether something was read ahead."""
        return self._row < len(self._waiting)

    def put(self, run: Run) -> None:
        """What was read next; if none of it is wanted it counts as handed out."""
        self._waiting, self._offsets = run.rows.messages(), run.offsets
        self._row, self._fetched = 0, run.next_offset
        self.position = self._offsets[0] if self._offsets else run.next_offset

    def go_to(self, offset: int) -> None:
        """Hand out this one next; what was read ahead is read again."""
        self.position, self._waiting, self._offsets, self._row = offset, [], [], 0
        self.is_dirty = self.is_dirty and offset > self.committed


class QueuePositions:
    """All queues of a member. Not safe for several threads."""

    def __init__(self) -> None:
        """None yet."""
        self._positions: dict[TopicQueue, QueuePosition] = {}
        self._turn = 0
        self.lost: set[TopicQueue] = set()

    def follow(self, held: HeldQueues) -> None:
        """Forget queues that are not ours any more, begin with those that are now."""
        for queue in [q for q, own in self._positions.items() if held.epochs.get(q) != own.epoch]:
            if self._positions.pop(queue).is_dirty:
                self.lost.add(queue)
        for queue, epoch in held.epochs.items():
            if queue not in self._positions and queue in held.offsets:
                offset = held.offsets[queue]
                self._positions[queue] = QueuePosition(epoch, offset, offset)

    @property
    def queues(self) -> list[TopicQueue]:
        """Those that are held, sorted."""
        return sorted(self._positions)

    def get(self, queue: TopicQueue) -> QueuePosition | None:
        """The place in one queue, if it is held."""
        return self._positions.get(queue)

    def has_waiting(self) -> bool:
        """Whether something was read ahead in any of them."""
        return any(own.has_waiting() for own in self._positions.values())

    def in_turn(self) -> list[tuple[TopicQueue, QueuePosition]]:
        """All of them, another one first each time, so that none is always the last."""
        found = list(self._positions.items())
        if not found:
            return []
        self._turn = (self._turn + 1) % len(found)
        return [*found[self._turn :], *found[: self._turn]]

    def busy(self) -> set[TopicQueue]:
        """Queues of which messages were handed out and not committed."""
        return {queue for queue, own in self._positions.items() if own.is_dirty}

    def commits(self, unhandled: Mapping[TopicQueue, int] | None = None) -> Commits:
        """What was handed out, or up to the first that is `unhandled`."""
        ends = {q: (own.epoch, own.position) for q, own in self._positions.items()}
        for queue, offset in (unhandled or {}).items():
            if queue in ends:
                ends[queue] = (ends[queue][0], offset)
        return {q: end for q, end in ends.items() if end[1] > self._positions[q].committed}

    def idle_commits(self) -> Commits:
        """What no filter let through, of queues of which nothing was handed out."""
        busy = self.busy()
        return {queue: end for queue, end in self.commits().items() if queue not in busy}

    def hand_out(self, queue: TopicQueue, end: int) -> None:
        """All up to before an offset is in the hands of the caller."""
        self._positions[queue].go_to(end)
        self._positions[queue].is_dirty = True

    def note_committed(self, commits: Commits, refused: Collection[TopicQueue]) -> None:
        """The group knows these offsets now."""
        for queue, (epoch, offset) in commits.items():
            own = self._positions.get(queue)
            if own is not None and queue not in refused and own.epoch == epoch:
                own.committed = offset
                own.is_dirty = own.is_dirty and offset < own.position

    def offsets(self, topic: str) -> dict[int, int]:
        """Where each queue of a topic stands."""
        return {q.queue_id: own.position for q, own in self._positions.items() if q.topic == topic}

    def undo(self, taken: Mapping[TopicQueue, int], busy_before: Collection[TopicQueue]) -> None:
        """As if these offsets, and what comes after them, had not been handed out."""
        self.give_again(taken)
        for queue in taken:
            self._positions[queue].is_dirty = queue in busy_before

    def give_again(self, first: Mapping[TopicQueue, int]) -> None:
        """Hand out these offsets next, and what comes after them."""
        for queue, offset in first.items():
            if queue in self._positions:
                self._positions[queue].go_to(offset)


def first_offsets(places: Iterable[tuple[TopicQueue, int]]) -> dict[TopicQueue, int]:
    """The smallest offset of each queue."""
    found: dict[TopicQueue, int] = {}
    for queue, offset in places:
        found[queue] = min(offset, found.get(queue, offset))
    return found
