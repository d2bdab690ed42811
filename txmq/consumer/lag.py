"""How many messages consumer groups have not consumed yet, by the tables alone. Read-only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, TypeVar

from txmq.clock import Clock, SystemClock
from txmq.consumer.group import group_in, group_names
from txmq.consumer.offsets import TopicOffsets
from txmq.consumer.rules import SHARED, GroupState, TopicQueue
from txmq.errors import TxmqError
from txmq.message.names import shown_name
from txmq.store.store import Store

logger = logging.getLogger(__name__)
# Is told the stored name of a damaged group, and its error.
Unreadable = Callable[[str, TxmqError], None]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is behind in one queue.

    Attributes:
        group: the stored name of the group.
        topic: the stored name of the topic.
        queue_id: the queue of the topic.
        reader: in BROADCASTING the member that the offset belongs to; else empty.
        owner: the member that reads the queue now; None where no member does.
        next_offset: the offset of the first message that is not consumed.
        end_offset: the offset that the next message of the queue will get.
    """

    group: str
    topic: str
    queue_id: int
    reader: str
    owner: str | None
    next_offset: int
    end_offset: int

    @property
    def lag(self) -> int:
        """How many messages are not consumed, including those that retention has removed."""
        return max(0, self.end_offset - self.next_offset)

    def to_dict(self) -> dict[str, Any]:
        """The lag as plain values, for JSON."""
        return {**asdict(self), "lag": self.lag}


class DamagedGroups:
    """Logs each damaged group once. Not safe for several threads."""

    def __init__(self) -> None:
        """Nothing is told yet."""
        self._told: set[str] = set()

    def __call__(self, group: str, error: TxmqError) -> None:
        """Log it, unless that was done."""
        if group not in self._told:
            self._told.add(group)
            logger.warning("group %s has no figures: %s", shown_name(group), error)


def read_or_told(
    group: str, read: Callable[[], Value], unreadable: Unreadable | None
) -> Value | None:
    """What is read of a group; None for one that is damaged, of which `unreadable` is told."""
    try:
        return read()
    except TxmqError as error:
        if unreadable is None or error.retryable:
            raise
        unreadable(group, error)
        return None


def readable_lags(store: Store, clock: Clock, unreadable: Unreadable) -> list[QueueLag]:
    """As `ConsumerLag.of_all`, without the groups that are damaged, of which it is told.

    Raises: StorageError that may go by itself.
    """
    lags = ConsumerLag(store, clock)
    return [
        lag
        for group in group_names(store)
        for lag in read_or_told(group, partial(lags.of_group, group), unreadable) or ()
    ]


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
        """Nothing is read yet."""
        self._store, self._clock = store, clock or SystemClock()
        self._offsets: dict[str, TopicOffsets] = {}

    def of_all(self) -> list[QueueLag]:
        """The lag of all groups that a member has ever joined, queue by queue; 0 commits.

        Reads: `state/group_<group>`, topics. Raises: StorageError.
        """
        return [lag for group in group_names(self._store) for lag in self.of_group(group)]

    def of_group(self, consumer_group: str) -> list[QueueLag]:
        """The lag of one group, queue by queue; 0 commits.

        Args:
            consumer_group: the stored name of the group.

        Returns:
            One entry for each queue of which the group has an offset; in BROADCASTING one for each
            queue and member. An empty list for a group that no member has ever joined.

        Raises: InvalidNameError, StorageError.
        """
        group = group_in(self._store, consumer_group)
        if not group.exists:
            return []
        return self._of_state(group.name, group.read())

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
        living = state.living(self._clock.now_ms())
        owner = reader if state.is_broadcasting else _owner(state, queue)
        end = self._end(queue)
        return QueueLag(
            group, queue.topic, queue.queue_id, reader,
            owner if owner in living else None, offset, end,
        )  # fmt: skip

    def _end(self, queue: TopicQueue) -> int:
        if queue.topic not in self._offsets:
            self._offsets[queue.topic] = TopicOffsets(self._store, queue.topic)
        return self._offsets[queue.topic].end([queue.queue_id])[queue.queue_id]


def lag_of_group(store: Store, consumer_group: str, clock: Clock | None = None) -> list[QueueLag]:
    """The lag of one group, queue by queue; see `ConsumerLag.of_group`."""
    return ConsumerLag(store, clock).of_group(consumer_group)


def _owner(state: GroupState, queue: TopicQueue) -> str | None:
    owners: Mapping[TopicQueue, Any] = state.owners
    return owners[queue].member_id if queue in owners else None
