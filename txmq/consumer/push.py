"""Pushes the messages of a member to a handler, and commits what was handled."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from txmq.consumer.batch import Batch, ConsumeResult, Handler
from txmq.consumer.group_reader import GroupReader
from txmq.consumer.positions import QueueMessage
from txmq.errors import ConsumerGroupConflictError, TxmqError
from txmq.handles import ThreadHandle

logger = logging.getLogger(__name__)

PUSH_MESSAGES = 256
PUSH_POLL_S = 0.2
FAILURE_PAUSE_S = 1.0


class MessagePush:
    """Gives the messages of a member to one handler. Not safe for several threads."""

    def __init__(self, reader: GroupReader, handler: Handler) -> None:
        """Nothing is read yet."""
        self._reader, self._handler = reader, handler

    def drain(self) -> ConsumeResult:
        """Push all that is visible, then commit; see `PullConsumer.run_once`."""
        total = ConsumeResult()
        try:
            while messages := self._reader.poll(PUSH_MESSAGES, 0.0, is_all_handled=True):
                total += self._push(messages, None)
        finally:
            self._reader.commit()
        return total

    def turn(self, stopping: threading.Event) -> ConsumeResult:
        """Wait a moment for messages and push them, until `stopping` is set."""
        messages = self._reader.poll(
            PUSH_MESSAGES, PUSH_POLL_S, stopping=stopping, is_all_handled=True
        )
        return self._push(messages, stopping)

    def _push(
        self, messages: Sequence[QueueMessage], stopping: threading.Event | None
    ) -> ConsumeResult:
        """Messages that were not handled, and cannot be sent back, are handed out again."""
        reader = self._reader
        batch = Batch(messages, self._handler, reader.replays)
        try:
            while not (batch.is_done or (stopping is not None and stopping.is_set())):
                batch.serve_next(reader.is_owned)
                if reader.is_commit_due:
                    batch.send_back(reader.send_back)
                    reader.commit(batch.unhandled())
            batch.send_back(reader.send_back)
        finally:
            reader.give_again(batch.unhandled())
        return batch.result


class ConsumerHandle(ThreadHandle):
    """A handler that is given messages until `stop()`.

    `stop()` returns after the call of the handler on its way: messages that were handled are
    committed (one commit), the others come again, and other threads may use the consumer.
    `is_alive` says whether the thread runs, `exception` which error ended it.

    Attributes:
        total: the messages that it was given so far.
    """

    def __init__(
        self,
        consumer_group: str,
        turn: Callable[[threading.Event], ConsumeResult],
        end: Callable[[], object],
    ) -> None:
        """`PullConsumer.start` makes it: `turn` pushes some messages, `end` commits the last."""
        self._stop_is_asked = threading.Event()
        super().__init__(f"consumer-{consumer_group}", 0.0, stopping=self._stop_is_asked)
        self._group, self._push, self._finish = consumer_group, turn, end
        self.total = ConsumeResult()

    def _turn(self) -> None:
        try:
            self.total += self._push(self._stop_is_asked)
        except ConsumerGroupConflictError:
            raise
        except (TxmqError, OSError) as error:
            logger.error("group %s goes on after: %s", self._group, error)  # noqa: TRY400 - it says all
            self._stop_is_asked.wait(FAILURE_PAUSE_S)

    def _end(self) -> None:
        try:
            self._finish()
        except (TxmqError, OSError) as error:
            logger.warning("the last messages come again: %s", error)
