"""The consumer groups that a rebuild of a topic would lead astray, because offsets move."""

from __future__ import annotations

from collections.abc import Mapping

from txmq.consumer.group import group_in, group_names
from txmq.consumer.rules import GroupState, TopicQueue
from txmq.errors import TopicNotRebuiltError
from txmq.message.names import shown_name
from txmq.store.store import Store


class RebuiltGroups:
    """Groups that have read beyond the first offset that moves, or are reading the topic.

    Their next offset would name another message: restored messages before it were never seen, and
    others come again.

    Args:
        store: the store of the groups.
        topic: the stored name of the topic.
        moved_from: by queue the first offset that a rebuild gives to another message.
    """

    def __init__(self, store: Store, topic: str, moved_from: Mapping[int, int]) -> None:
        """Nothing is read yet."""
        self._store, self._topic = store, topic
        self._first = {TopicQueue(topic, queue): offset for queue, offset in moved_from.items()}

    def names(self) -> tuple[str, ...]:
        """The stored names of these groups; 0 commits. Raises: StorageError."""
        if not self._first:
            return ()
        groups = (group_in(self._store, name) for name in group_names(self._store))
        return tuple(group.name for group in groups if self._is_led_astray(group.read()))

    def check(self) -> None:
        """Raise TopicNotRebuiltError if there are such groups; 0 commits."""
        if names := self.names():
            where = ", ".join(f"{q.queue_id} from {n:,} on" for q, n in sorted(self._first.items()))
            problem = (
                f"is not rebuilt: offsets would move (queues {where}) under the consumer groups "
                f"{', '.join(map(shown_name, names))}; close their members and reset their offsets "
                "to there, or force it, which does both: what follows comes to them again"
            )
            raise TopicNotRebuiltError(self._topic, problem)

    def reset(self, now_ms: int) -> None:
        """Put these groups back to the first offset that moves: one commit for each group.

        A retry puts nobody back twice. Raises: StorageError.
        """
        for name in self.names():
            group_in(self._store, name).change(self._put_back, now_ms)

    def _is_led_astray(self, state: GroupState) -> bool:
        return self._put_back(state) != state

    def _put_back(self, state: GroupState) -> GroupState:
        return state.put_back(self._first) if self._topic in state.queues else state
