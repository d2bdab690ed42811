"""Where a member without Spark reads on: which queues it has, pauses, seeks, lag."""

from __future__ import annotations

from datetime import datetime

from txmq.clock import Clock
from txmq.consumer.arguments import checked_queue
from txmq.consumer.exclusive_use import ExclusiveUse
from txmq.consumer.group_reader import GroupReader
from txmq.consumer.lag import QueueLag, lag_of_group
from txmq.consumer.offsets import TopicOffsets, check_offset, moment_ms
from txmq.consumer.rules import TopicQueue
from txmq.errors import QueueNotOwnedError
from txmq.message.names import topic_in_namespace, unwrapped
from txmq.store.store import Store


class MovableMember:
    """The part of PullConsumer that says where it reads on, in the names of its users."""

    store: Store
    namespace: str | None
    consumer_group: str
    clock: Clock
    _use: ExclusiveUse
    _reader: GroupReader

    @property
    def assignment(self) -> tuple[TopicQueue, ...]:
        """The queues that this member reads now; the retry topic of the group is among them."""
        return tuple(sorted(self._shown(queue) for queue in self._reader.queues))

    def pause(self, topic: str, queue_id: int | None = None) -> None:
        """Hand out nothing of a topic, or of one of its queues, until `resume`; 0 commits.

        Args:
            topic: one of the topics of this consumer.
            queue_id: one queue; all queues of the topic if it is left out.

        Raises: InvalidNameError, ConfigError, ClosedError, ConcurrentUseError.
        """
        with self._use:
            self._reader.pause(self._subscribed(topic), checked_queue(queue_id))

    def resume(self, topic: str, queue_id: int | None = None) -> None:
        """End what `pause` began; 0 commits.

        Args:
            topic: one of the topics of this consumer.
            queue_id: one queue; if it is left out, the topic and all its queues are resumed.

        Raises: InvalidNameError, ConfigError, ClosedError, ConcurrentUseError.
        """
        with self._use:
            self._reader.resume(self._subscribed(topic), checked_queue(queue_id))

    def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """Go on at another offset of a queue, for the whole group: one commit.

        Messages that were handed out and not committed count as not handled. A retry sets the same
        offset again.

        Args:
            topic: one of the topics of this consumer.
            queue_id: a queue of `assignment`.
            offset: the next offset to read, from the first one that is kept to the end.

        Raises: OffsetOutOfRangeError, QueueNotOwnedError, InvalidNameError, ConfigError,
            ClosedError, ConcurrentUseError, StorageError.
        """
        with self._use:
            queue = self._owned(self._subscribed(topic), queue_id)
            offsets = TopicOffsets(self.store, queue.topic)
            first, end = offsets.first([queue_id])[queue_id], offsets.end([queue_id])[queue_id]
            check_offset(queue.topic, queue_id, offset, first, end)
            self._reader.seek({queue: offset})

    def seek_to_time(self, topic: str, moment: datetime) -> None:
        """Go on with messages that were stored at `moment` or later, for the whole group.

        Moves all queues of the topic that this member has: one commit. A retry sets the same
        offsets again.

        Args:
            topic: one of the topics of this consumer.
            moment: a time with a time zone.

        Raises: ConfigError, QueueNotOwnedError, InvalidNameError, ClosedError, ConcurrentUseError,
            StorageError.
        """
        with self._use:
            stored, at_ms = self._subscribed(topic), moment_ms(moment)
            self._reader.keep_up()
            offsets = TopicOffsets(self.store, stored).at(self._reader.queues_of(stored), at_ms)
            self._reader.seek({TopicQueue(stored, q): offset for q, offset in offsets.items()})

    def _owned(self, topic: str, queue_id: int) -> TopicQueue:
        self._reader.keep_up()
        # True and 1.0 are equal to 1 in Python.
        if type(queue_id) is int and self._reader.is_owned(TopicQueue(topic, queue_id)):
            return TopicQueue(topic, queue_id)
        raise QueueNotOwnedError(topic, queue_id)

    def _subscribed(self, topic: str) -> str:
        stored = self._stored(topic)
        self._reader.check_reads(stored)
        return stored

    def _stored(self, topic: str) -> str:
        return topic_in_namespace(topic, self.namespace)

    def _shown(self, queue: TopicQueue) -> TopicQueue:
        return TopicQueue(unwrapped(queue.topic, self.namespace), queue.queue_id)

    def lag(self) -> list[QueueLag]:
        """How many messages the whole group has not consumed yet, queue by queue.

        Reads: `state/group_<group>`, topics. Commits: 0.

        Returns:
            One entry for each queue of which the group has an offset.

        Raises: StorageError.
        """
        return lag_of_group(self.store, self.consumer_group, self.clock)
