"""Read a topic without a group: it keeps no offsets and disturbs no consumer. Read-only."""

from __future__ import annotations

import time
from collections.abc import Iterator

from txmq.consumer.offsets import FROM_THE_BEGINNING, StartPoint
from txmq.consumer.reader import TopicReader
from txmq.message.filter import MessageFilter
from txmq.message.received import ReceivedMessage
from txmq.store.store import Store

LOOK_INTERVAL_S = 0.05


class TopicPeek:
    """Reads the messages of one topic, queue by queue, each queue in its order.

    Args:
        store: the store of the topic.
        topic: the stored name of the topic, which may not exist yet.
        start: where to begin.
        message_filter: only messages that pass it are returned; None passes all.
        namespace: messages show names of this namespace without it.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        start: StartPoint = FROM_THE_BEGINNING,
        *,
        message_filter: MessageFilter | None = None,
        namespace: str | None = None,
    ) -> None:
        """Read the log once: a start at the end means the end at this time; 0 commits.

        Raises: OffsetOutOfRangeError, StorageError.
        """
        self._store, self._topic, self._start = store, topic, start
        self._reader = TopicReader(store, topic, message_filter=message_filter, namespace=namespace)
        self._offsets: dict[int, int] = {}
        self._look()

    def _look(self) -> None:
        self._reader.look()
        new = [q for q in range(self._reader.queue_count) if q not in self._offsets]
        # A queue that appears later is read from its first message.
        start = FROM_THE_BEGINNING if self._offsets else self._start
        self._offsets.update(start.offsets_in(self._store, self._topic, new))

    def messages(self) -> Iterator[ReceivedMessage]:
        """Yield the visible messages that were not returned before; 0 commits.

        Raises: MessagesExpiredError, OffsetOutOfRangeError, StorageError.
        """
        self._look()
        for queue_id in list(self._offsets):
            while run := self._reader.read(queue_id, self._offsets[queue_id]):
                self._offsets[queue_id] = run.next_offset
                yield from run.rows.messages()
        self._reader.forget_before(self._offsets)

    def follow(self) -> Iterator[ReceivedMessage]:
        """Yield as `messages` does, and then the messages that become visible, for ever."""
        while True:
            yield from self.messages()
            time.sleep(LOOK_INTERVAL_S)
