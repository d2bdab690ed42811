"""Where a group begins in queues of which it has no offsets."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from txmq.consumer.modes import ConsumeFromWhere
from txmq.consumer.offsets import FROM_THE_BEGINNING, StartPoint
from txmq.consumer.rules import GroupState, TopicQueue
from txmq.errors import StorageError
from txmq.store.store import Store


class GroupStart:
    """Sets first offsets. Not safe for several threads; 0 commits.

    Args:
        store: the store of the topics.
        start: where the group begins.
        retry_topic: read from its first message, as are queues that a topic got later.

    Attributes:
        failures: why topics could not be read at the last try.
    """

    def __init__(self, store: Store, start: StartPoint, retry_topic: str) -> None:
        """Nothing is read yet."""
        self._store, self._start, self._retry_topic = store, start, retry_topic
        self.failures: Mapping[str, Exception] = {}

    def begun(self, state: GroupState, member_id: str) -> GroupState:
        """Set first offsets for all queues that have none, also for those of other members.

        So a queue begins where the group began, however late a member takes it. Queues of a topic
        that cannot be read begin at a later try.

        Raises: OffsetOutOfRangeError; StorageError where the group begins at the last offset.
        """
        stored = state.offsets_of(member_id)
        missing: dict[str, list[int]] = {}
        for topic, queue_id in state.all_queues():
            if TopicQueue(topic, queue_id) not in stored:
                missing.setdefault(topic, []).append(queue_id)
        begun, failures = {queue.topic for queue in stored}, dict[str, Exception]()
        starts: dict[TopicQueue, int] = {}
        for topic, queues in missing.items():
            try:
                offsets = self._offsets_in(topic, queues, begun)
            except (StorageError, OSError) as error:
                # The last offset moves on: beginning there later would skip messages.
                if self._start.where is ConsumeFromWhere.LAST_OFFSET:
                    raise
                failures[topic] = error
                continue
            starts |= {TopicQueue(topic, queue_id): at for queue_id, at in offsets.items()}
        self.failures = failures
        return state.begun(member_id, starts) if starts else state

    def _offsets_in(self, topic: str, queues: list[int], begun: Collection[str]) -> dict[int, int]:
        is_whole = topic in begun or topic == self._retry_topic
        start = FROM_THE_BEGINNING if is_whole else self._start
        return start.offsets_in(self._store, topic, queues)
