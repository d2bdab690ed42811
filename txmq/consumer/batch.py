"""Gives messages to a handler, one after the other, and keeps those that it could not handle."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from txmq.consumer.positions import QueueMessage, first_offsets
from txmq.consumer.rules import ConsumeStatus, TopicQueue
from txmq.consumer.send_back import FailedMessage
from txmq.message.received import ReceivedMessage
from txmq.results import Sum

logger = logging.getLogger(__name__)

Handler = Callable[[ReceivedMessage], ConsumeStatus | None]


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
    """Messages that were handed out and wait for the handler, and those that it failed on."""

    def __init__(
        self,
        messages: Iterable[QueueMessage],
        handler: Handler,
        replays: Mapping[TopicQueue, int],
    ) -> None:
        """`replays` says how often the group went back in a queue on purpose."""
        self._waiting, self._handler, self._replays = deque(messages), handler, replays
        self._failed: list[tuple[TopicQueue, FailedMessage]] = []
        self._left: dict[TopicQueue, ReceivedMessage] = {}
        self._consumed, self._sent_back = 0, 0

    @property
    def result(self) -> ConsumeResult:
        """The counts so far."""
        return ConsumeResult(self._consumed, self._sent_back)

    @property
    def is_done(self) -> bool:
        """Whether no message waits any more."""
        return not self._waiting

    def serve_next(self, is_owned: Callable[[TopicQueue], bool]) -> None:
        """Give one message to the handler; leave it out if its queue was lost."""
        queue, message = self._waiting[0]
        # The member may get the queue again: messages after one that was left out wait too.
        if queue in self._left or not is_owned(queue):
            self._left.setdefault(queue, message)
        else:
            reason = _failure_of(self._handler, message)
            self._consumed += 1
            if reason is not None:
                replay = self._replays.get(queue, 0)
                self._failed.append((queue, FailedMessage(message, reason, replay=replay)))
        # After the handler: a message whose handler was interrupted is handed out again.
        self._waiting.popleft()

    def send_back(self, send: Callable[[Sequence[FailedMessage]], int]) -> None:
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


def _failure_of(handler: Handler, message: ReceivedMessage) -> str | Exception | None:
    """Why the handler failed on a message; None where it handled it."""
    try:
        status: object = handler(message)
    except Exception as error:  # noqa: BLE001 - a handler may fail in any way
        logger.warning("%r is sent back: %s", message, type(error).__name__)
        return error
    if status is None or status is ConsumeStatus.SUCCESS:
        return None
    if status is ConsumeStatus.RECONSUME_LATER:
        return ConsumeStatus.RECONSUME_LATER.value
    return f"the handler returned {type(status).__name__}, which is no ConsumeStatus"
