"""What a send came to."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, PENDING
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txmq.message import LocalTransactionState

# Held for an assignment or two, so one for all is enough.
_MAKING = threading.Lock()


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
        with _MAKING:
            if name not in self.__dict__:
                self._waiters, self._done_callbacks = [], []
                self._condition = threading.Condition()
        return self._condition

    def set_result(self, result: Any) -> None:
        """Without a condition nobody has to be woken."""
        with _MAKING:
            if "_condition" not in self.__dict__:
                self._result, self._state = result, FINISHED
                return
        super().set_result(result)

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
