"""The results of sends, and the future of an asynchronous send."""

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
    """The result of `send`: its messages are durable and committed.

    Attributes:
        message_ids: in the order of the messages; `recall` takes them.
        transaction_ids: one, or several for a batch above `max_transaction_size_bytes`.
    """

    message_ids: tuple[str, ...]
    transaction_ids: tuple[str, ...]

    @property
    def message_id(self) -> str:
        """The id of the first message."""
        return self.message_ids[0]


@dataclass(frozen=True, slots=True)
class TransactionSendResult:
    """The result of `send_message_in_transaction`.

    Attributes:
        transaction_id: the id of the transaction.
        message_id: the id of its message.
        local_transaction_state: the answer of the listener; after UNKNOWN the check service asks
            for the end.
    """

    transaction_id: str
    message_id: str
    local_transaction_state: LocalTransactionState


class SendFuture(Future[Any]):
    """A future that cannot be cancelled, because its send is already queued for a commit.

    Tens of thousands exist at a time, and most are done before anybody waits for them. Objects that
    only a waiter needs (a condition, a lock, lists: ten objects) are made at their first use.
    """

    _state, _result, _exception = PENDING, None, None
    _is_watched = False
    _waiters: Any = ()
    _done_callbacks: Any = ()
    _condition: threading.Condition

    def __init__(self) -> None:
        """Do not call the parent's `__init__`, which makes all objects at once."""

    def __getattr__(self, name: str) -> Any:
        """Make the condition at its first use; all methods of the parent read it first."""
        if name != "_condition":
            raise AttributeError(name)
        self.__dict__.setdefault("_waiters", [])
        self.__dict__.setdefault("_done_callbacks", [])
        condition = self.__dict__.setdefault(name, threading.Condition())
        # Before anybody has the condition: whoever sets the result afterwards takes it too.
        self._is_watched = True
        return condition

    def set_result(self, result: Any) -> None:
        """Set the result and wake the waiters.

        A thread that reads the condition later sees the result; a thread that has it already is
        woken. Therefore no lock is needed that all threads would share.
        """
        self._result = result
        self._state = FINISHED
        if not self._is_watched:
            return
        with self._condition:
            for waiter in self._waiters:
                waiter.add_result(self)
            self._condition.notify_all()
        self._invoke_callbacks()

    def _invoke_callbacks(self) -> None:
        """Call the callbacks; the parent's would let SystemExit end the committing thread."""
        for callback in self._done_callbacks:
            _called(callback, self)

    def cancel(self) -> bool:
        """Return False: a send cannot be cancelled."""
        return False

    def running(self) -> bool:
        """Whether it is not done yet."""
        return not self.done()

    def done(self) -> bool:
        """Whether it has a result or an exception."""
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> Any:
        """The result, as of any future."""
        if self._state == FINISHED and self._exception is None:
            return self._result
        return super().result(timeout)


def _called(callback: Callable[[SendFuture], object], future: SendFuture) -> None:
    try:
        callback(future)
    except BaseException:
        # A callback that fails must not stop the other callbacks, nor the committing thread.
        logger.exception("a callback of a send raised")
