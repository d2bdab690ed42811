"""Gives messages to a handler, one after the other, and keeps those that it could not handle."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from txmq.consumer.positions import QueueMessage, first_offsets
from txmq.consumer.rules import TopicQueue, replay_of
from txmq.consumer.send_back import FailedMessage
from txmq.message.received import ReceivedMessage
from txmq.results import Sum

Send = Callable[[Sequence[FailedMessage]], int]


@dataclass(frozen=True, slots=True)
class ConsumeResult(Sum):
    """How many messages a handler was given.

    Attributes:
        consumed: the messages that it was given.
        sent_back: those of them that failed and come again later.
    """

    consumed: int = 0
    sent_back: int = 0


class Batch:
    """Messages that were handed out and wait for the handler, and those that it failed on.

    A message that failed is sent back before the next message of its queue is served: an effect by
    offset, as that of DeltaInbox, says that all messages before it are done.
    """

    def __init__(self, messages: Iterable[QueueMessage], replays: Mapping[TopicQueue, int]) -> None:
        """`replays` says how often the group went back in a queue on purpose."""
        self._waiting, self._replays = deque(messages), replays
        self._failed: list[tuple[TopicQueue, FailedMessage]] = []
        self._left: dict[TopicQueue, ReceivedMessage] = {}
        self._consumed, self._sent_back = 0, 0
        self.is_given_up = False

    @property
    def result(self) -> ConsumeResult:
        """The counts so far."""
        return ConsumeResult(self._consumed, self._sent_back)

    @property
    def is_done(self) -> bool:
        """Whether no message waits any more."""
        return not self._waiting

    def next_message(
        self, is_owned: Callable[[TopicQueue], bool], send: Send
    ) -> ReceivedMessage | None:
        """The next message for the handler; None where it is left out since its queue was lost.

        It stays the next one until `finish`. Sends back what failed before it in its queue.
        """
        queue, message = self._waiting[0]
        if any(failed == queue for failed, _ in self._failed):
            self.send_back(send)
        # The member may get the queue again: messages after one that was left out wait too.
        if queue in self._left or not is_owned(queue):
            self._left.setdefault(queue, message)
            self._waiting.popleft()
            return None
        return message

    def finish(
        self, failure: str | BaseException | None, is_owned: Callable[[TopicQueue], bool]
    ) -> None:
        """The handler is through with the next message; None means that it handled it.

        A failure counts only while the queue is owned: else another member has the message.
        """
        queue, message = self._waiting.popleft()
        self._consumed += 1
        if failure is not None and not is_owned(queue):
            self._left.setdefault(queue, message)
        elif failure is not None:
            replay = replay_of(self._replays, queue)
            self._failed.append((queue, FailedMessage(message, failure, replay=replay)))

    def send_back(self, send: Send) -> None:
        """Have `send` send back the messages that failed; they are durable on return."""
        if self._failed:
            self._sent_back += send([failed for _, failed in self._failed])
            self._failed = []

    def unhandled(self) -> dict[TopicQueue, int]:
        """The first offset of each queue that was neither handled nor sent back."""
        waiting = ((queue, message.queue_offset) for queue, message in self._waiting)
        failed = ((queue, failed.message.queue_offset) for queue, failed in self._failed)
        left = ((queue, message.queue_offset) for queue, message in self._left.items())
        return first_offsets([*waiting, *failed, *left])
