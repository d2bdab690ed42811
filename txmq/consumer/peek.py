"""Reading a topic without a group: nothing is remembered, nobody is disturbed. Reads only."""

from __future__ import annotations

import time
from collections.abc import Iterator

from txmq.consumer.offsets import StartPoint
from txmq.consumer.reader import TopicReader
from txmq.consumer.rules import ConsumeFromWhere
from txmq.message.filter import MessageFilter
from txmq.message.received import ReceivedMessage
from txmq.store.store import Store

LOOK_INTERVAL_S = 0.05
_FIRST = StartPoint(ConsumeFromWhere.FIRST_OFFSET)


class TopicPeek:
    """Gives the messages of one topic, queue by queue, each queue in its order.

    Args:
        store: where the topic is.
        topic: its stored name; it need not be there yet.
        start: where to begin.
        message_filter: what is wanted; None is all.
        namespace: names in it are shown without it.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        start: StartPoint = _FIRST,
        *,
        message_filter: MessageFilter | None = None,
        namespace: str | None = None,
    ) -> None:
        """Look once, so that the end that it may begin at is the end of now."""
        self._store, self._topic, self._start = store, topic, start
        self._reader = TopicReader(store, topic, message_filter=message_filter, namespace=namespace)
        self._offsets: dict[int, int] = {}
        self._look()

    def _look(self) -> None:
        self._reader.look()
        new = [q for q in range(self._reader.queue_count) if q not in self._offsets]
        # A queue that is seen later began after us.
        start = _FIRST if self._offsets else self._start
        self._offsets.update(start.offsets_in(self._store, self._topic, new))

    def messages(self) -> Iterator[ReceivedMessage]:
        """What is visible and was not given yet.

        Raises: MessagesExpiredError, OffsetOutOfRangeError, StorageError.
        """
        self._look()
        for queue_id in list(self._offsets):
            while run := self._reader.read(queue_id, self._offsets[queue_id]):
                self._offsets[queue_id] = run.next_offset
                yield from run.rows.messages()
        self._reader.forget_before(self._offsets)

    def follow(self) -> Iterator[ReceivedMessage]:
        """As `messages`, and then what comes, for ever."""
        while True:
            yield from self.messages()
            time.sleep(LOOK_INTERVAL_S)
