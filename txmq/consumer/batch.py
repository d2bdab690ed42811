"""Messages on their way through a handler, one after the other."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from txmq.consumer.positions import QueueMessage, first_offsets
from txmq.consumer.rules import ConsumeStatus, TopicQueue
from txmq.consumer.send_back import FailedMessage
from txmq.message.received import ReceivedMessage
from txmq.results import Sum

logger = logging.getLogger(__name__)

Handler = Callable[[ReceivedMessage], ConsumeStatus | None]


class SendsBack(Protocol):
    """Where messages go that could not be handled; SendBack, or a test's own."""

    def send_back_all(self, failed: Sequence[FailedMessage]) -> object:
        """Durable on return."""
        ...


@dataclass(frozen=True, slots=True)
class ConsumeResult(Sum):
    """What a handler was given: `consumed` messages, of which `sent_back` come again later."""

    consumed: int = 0
    sent_back: int = 0


class Batch:
    """What was handed out and waits for the handler, and what it could not handle."""

    def __init__(
        self, handed: Iterable[QueueMessage], handler: Handler, replays: Mapping[TopicQueue, int]
    ) -> None:
        """`replays` says how often the group went back in a queue."""
        self._waiting, self._handler, self._replays = deque(handed), handler, replays
        self._failed: list[tuple[TopicQueue, FailedMessage]] = []
        self._left: dict[TopicQueue, ReceivedMessage] = {}
        self.result = ConsumeResult()

    @property
    def is_done(self) -> bool:
        """Whether nothing waits any more."""
        return not self._waiting

    def serve_next(self, is_ours: Callable[[TopicQueue], bool]) -> None:
        """Give one message to the handler; what comes in a queue that was lost is left."""
        queue, message = self._waiting[0]
        # What follows is left too: the queue may be ours again, and has an order.
        if queue in self._left or not is_ours(queue):
            self._left.setdefault(queue, message)
        else:
            reason = _failure_of(self._handler, message)
            self.result += ConsumeResult(consumed=1)
            if reason is not None:
                replay = self._replays.get(queue, 0)
                self._failed.append((queue, FailedMessage(message, reason, replay=replay)))
        # Not before: one that was interrupted is handed out again.
        self._waiting.popleft()

    def send_back(self, send: Callable[[Sequence[FailedMessage]], int]) -> None:
        """Have what failed come again later; durable on return."""
        if self._failed:
            sent_back = send([failed for _, failed in self._failed])
            self.result += ConsumeResult(sent_back=sent_back)
            self._failed = []

    def unhandled(self) -> dict[TopicQueue, int]:
        """The first offset of each queue that is neither handled nor sent back."""
        waiting = ((queue, message.queue_offset) for queue, message in self._waiting)
        failed = ((queue, each.message.queue_offset) for queue, each in self._failed)
        left = ((queue, message.queue_offset) for queue, message in self._left.items())
        return first_offsets([*waiting, *failed, *left])


def _failure_of(handler: Handler, message: ReceivedMessage) -> str | Exception | None:
    """Why a message was not handled; None where it was."""
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
