"""Queues that stand still: messages wait, a member lives, and the next offset does not move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from txmq.consumer.lag import QueueLag


class QueueKey(NamedTuple):
    """One queue as one consumer group reads it."""

    group: str
    topic: str
    queue_id: int
    reader: str


class StillQueues:
    """Remembers of the last count alone where each queue stood. Not safe for several threads."""

    def __init__(self) -> None:
        """Nothing is seen yet."""
        self._since: dict[QueueKey, tuple[int, float]] = {}

    def seen(self, lags: Sequence[QueueLag], at_s: float) -> dict[QueueKey, float]:
        """How long each queue with messages and a member has stood still, of those that do."""
        since: dict[QueueKey, tuple[int, float]] = {}
        for queue in lags:
            if queue.lag and queue.owner is not None:
                key = QueueKey(queue.group, queue.topic, queue.queue_id, queue.reader)
                offset, since_s = self._since.get(key, (queue.next_offset, at_s))
                has_moved = offset != queue.next_offset
                since[key] = (queue.next_offset, at_s if has_moved else since_s)
        self._since = since
        return {key: max(0.0, at_s - since_s) for key, (_, since_s) in since.items()}
