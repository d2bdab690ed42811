"""What a send came to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txmq.message.message import LocalTransactionState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SendResult:
    """Messages that are durable and will be shown, in the order in which they were given.

    A batch that is larger than `max_transaction_size_bytes` is several transactions.
    """

    message_ids: tuple[str, ...]
    transaction_ids: tuple[str, ...]

    @property
    def message_id(self) -> str:
        """The id of the first message."""
        return self.message_ids[0]


@dataclass(frozen=True, slots=True)
class TransactionSendResult:
    """What `send_message_in_transaction` came to; UNKNOWN leaves the end to the check service."""

    transaction_id: str
    message_id: str
    local_transaction_state: LocalTransactionState


class SendFuture(Future[Any]):
    """A future that cannot be cancelled: what it stands for is on its way to a commit.

    Tens of thousands are on their way at a time, and most are done before anybody waits for them.
    What only a waiter needs (a condition, a lock, lists: ten objects) is made when one asks for it.
    """

    _state, _result, _exception = PENDING, None, None
    _waiters: Any = ()
    _done_callbacks: Any = ()
    _condition: threading.Condition

    def __init__(self) -> None:
        """Not the parent's, which makes it all at once."""

    def __getattr__(self, name: str) -> Any:
        """The condition, at the first use; all methods of the parent ask for it first."""
        if name != "_condition":
            raise AttributeError(name)
        self.__dict__.setdefault("_waiters", [])
        self.__dict__.setdefault("_done_callbacks", [])
        return self.__dict__.setdefault(name, threading.Condition())

    def set_result(self, result: Any) -> None:
        """Whoever asks for the condition later sees the result; who has it already is woken.

        So no lock is needed that all threads would share.
        """
        self._result = result
        self._state = FINISHED
        condition = self.__dict__.get("_condition")
        if condition is None:
            return
        with condition:
            for waiter in self._waiters:
                waiter.add_result(self)
            condition.notify_all()
        for callback in self._done_callbacks:
            _called(callback, self)

    def cancel(self) -> bool:
        """Never."""
        return False

    def running(self) -> bool:
        """Until it is done."""
        return not self.done()

    def done(self) -> bool:
        """Whether it has a result or an exception."""
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> Any:
        """As of any future."""
        if self._state == FINISHED and self._exception is None:
            return self._result
        return super().result(timeout)


def _called(callback: Callable[[SendFuture], object], future: SendFuture) -> None:
    try:
        callback(future)
    except Exception:
        # As the standard library does: one callback must not keep the others from it.
        logger.exception("a callback of a send raised")
