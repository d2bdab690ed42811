"""Which topics and queues of a consumer are paused."""

from __future__ import annotations

from txmq.consumer.rules import TopicQueue


class Pauses:
    """The topics and the queues of which a member hands out nothing for now.

    Not safe for several threads, as its owner.
    """

    def __init__(self) -> None:
        """Nothing is paused."""
        self._queues: set[TopicQueue] = set()
        self._topics: set[str] = set()

    def pause(self, topic: str, queue_id: int | None) -> None:
        """Pause one queue, or a topic with all its queues."""
        if queue_id is None:
            self._topics.add(topic)
        else:
            self._queues.add(TopicQueue(topic, queue_id))

    def resume(self, topic: str, queue_id: int | None) -> None:
        """End the pause of one queue, or those of a topic and of all its queues."""
        if queue_id is None:
            self._topics.discard(topic)
            self._queues = {queue for queue in self._queues if queue.topic != topic}
        else:
            self._queues.discard(TopicQueue(topic, queue_id))

    def __contains__(self, queue: TopicQueue) -> bool:
        """Whether the queue or its topic is paused."""
        return queue in self._queues or queue.topic in self._topics
