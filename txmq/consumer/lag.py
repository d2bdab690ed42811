"""Count the messages that consumer groups have not consumed, by the tables alone. Read-only."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from txmq.consumer.group import group_in, group_names
from txmq.consumer.group_rules import SHARED, GroupState, TopicQueue
from txmq.consumer.offsets import TopicOffsets
from txmq.errors import TxmqError
from txmq.ground.clock import Clock, SystemClock
from txmq.message.names import shown_name
from txmq.store.store import Store, check_store

logger = logging.getLogger(__name__)
# Is told the stored name of a damaged group, and its error.
Unreadable = Callable[[str, TxmqError], None]


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is behind in one queue.

    Attributes:
        group: the stored name of the group.
        topic: the stored name of the topic.
        queue_id: the queue of the topic.
        reader: in BROADCASTING the member that the offset belongs to; else empty.
        owner: the member that reads the queue now; None if no member does.
        next_offset: the offset of the first message that is not consumed.
        end_offset: the offset that the next message of the queue will get.
        acknowledged: messages behind `next_offset` that are consumed, where each message is
            acknowledged for itself.
        unacknowledged: messages that were handed out there and are not consumed.
    """

    group: str
    topic: str
    queue_id: int
    reader: str
    owner: str | None
    next_offset: int
    end_offset: int
    acknowledged: int = 0
    unacknowledged: int = 0

    @property
    def handed_offset(self) -> int:
        """The offset after the last message that is consumed, or was handed out."""
        return self.next_offset + self.acknowledged + self.unacknowledged

    @property
    def lag(self) -> int:
        """How many messages are not consumed, including those that retention has removed."""
        return max(0, self.end_offset - self.next_offset - self.acknowledged)

    def to_dict(self) -> dict[str, Any]:
        """Return the lag as plain values, for JSON."""
        return {**asdict(self), "lag": self.lag}


@dataclass(frozen=True, slots=True)
class GroupLag:
    """A group as one look at its register shows it, and how far it is behind, queue by queue."""

    name: str
    state: GroupState
    queues: list[QueueLag]


class ConsumerLag:
    """The lag of consumer groups.

    It reads the newest version of each topic once, so make a new one for each look. Not safe for
    several threads; 0 commits.

    Args:
        store: the store of the groups.
        clock: the clock that says which leases are over.

    Example:
        >>> sum(queue.lag for queue in ConsumerLag(store).of_group("billing"))
        0
    """

    def __init__(self, store: Store, clock: Clock | None = None) -> None:
        """Read nothing yet."""
        check_store(store)
        self._store, self._clock = store, clock or SystemClock()
        self._offsets: dict[str, TopicOffsets] = {}

    def of_all(self) -> list[QueueLag]:
        """Return the lag of all groups that a member has ever joined, queue by queue; 0 commits.

        Reads: `state/group_<group>`, topics. Raises: StorageError.
        """
        return [lag for group in group_names(self._store) for lag in self.of_group(group)]

    def of_group(self, consumer_group: str) -> list[QueueLag]:
        """Return the lag of one group, queue by queue; 0 commits.

        Args:
            consumer_group: the stored name of the group.

        Returns:
            One entry for each queue of which the group has an offset; in BROADCASTING one for each
            queue and member. An empty list for a group that no member has ever joined.

        Raises: InvalidNameError, StorageError.
        """
        group = self._look(consumer_group)
        return [] if group is None else group.queues

    def _look(self, consumer_group: str) -> GroupLag | None:
        """Look at one group; None if nobody has joined it, or it was deleted."""
        group = group_in(self._store, consumer_group)
        if not group.exists:
            return None
        state = group.read()
        if state.is_gone:
            return None
        return GroupLag(group.name, state, self._of_state(group.name, state))

    def _of_state(self, group: str, state: GroupState) -> list[QueueLag]:
        topics = set(state.queues)
        return [
            self._lag(group, state, reader, queue, offset)
            for reader, offsets in sorted(state.offsets.items())
            if (reader == SHARED) != state.is_broadcasting
            for queue, offset in sorted(offsets.items())
            if queue.topic in topics
        ]

    def _lag(
        self, group: str, state: GroupState, reader: str, queue: TopicQueue, offset: int
    ) -> QueueLag:
        by = state.owners.get(queue)
        member = reader if state.is_broadcasting else None if by is None else by.member_id
        owner = member if member in state.living(self._clock.now_ms()) else None
        lag = QueueLag(group, queue.topic, queue.queue_id, reader, owner, offset, self._end(queue))
        attempts = state.attempts.get(queue)
        if attempts is None or not state.settings.is_acknowledged:
            return lag
        handed, over = attempts.end - offset, attempts.acknowledged()
        return replace(lag, acknowledged=over, unacknowledged=handed - over)

    def _end(self, queue: TopicQueue) -> int:
        if queue.topic not in self._offsets:
            self._offsets[queue.topic] = TopicOffsets(self._store, queue.topic)
        return self._offsets[queue.topic].end([queue.queue_id])[queue.queue_id]


def lag_of_group(store: Store, consumer_group: str, clock: Clock | None = None) -> list[QueueLag]:
    """Return the lag of one group, queue by queue; see `ConsumerLag.of_group`."""
    return ConsumerLag(store, clock).of_group(consumer_group)


def readable_lags(store: Store, clock: Clock, unreadable: Unreadable) -> list[QueueLag]:
    """Return the lags of all groups that can be read; `unreadable` is told of the damaged ones.

    Raises: StorageError that may go by itself.
    """
    return [lag for group in readable_groups(store, clock, unreadable) for lag in group.queues]


def readable_groups(
    store: Store, clock: Clock, unreadable: Unreadable | None = None
) -> list[GroupLag]:
    """Return all groups with their lag; leave out damaged ones if `unreadable` is told of them.

    Raises: StorageError; with `unreadable` only one that may go by itself.
    """
    look, groups = ConsumerLag(store, clock), list[GroupLag]()
    for name in group_names(store):
        try:
            group = look._look(name)  # noqa: SLF001 - of the same file
        except TxmqError as error:
            if unreadable is None or error.retryable:
                raise
            unreadable(name, error)
            continue
        if group is not None:
            groups.append(group)
    return groups


class DamagedGroups:
    """Logs each damaged group once, and knows those of one look. Not safe for several threads.

    Attributes:
        problems: why each group cannot be read that the look met which began last.
    """

    def __init__(self) -> None:
        """Begin without a damaged group."""
        self._told: set[str] = set()
        self.problems: dict[str, str] = {}

    def of_a_look(self) -> Self:
        """Begin a look, without those of the one before."""
        self.problems = {}
        return self

    def __call__(self, group: str, error: TxmqError) -> None:
        """Note a damaged group; log it the first time."""
        self.problems[group] = str(error)
        if group not in self._told:
            self._told.add(group)
            logger.warning("group %s has no figures: %s", shown_name(group), error)
