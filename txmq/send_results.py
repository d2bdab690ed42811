"""What a send came to."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from txmq.message import LocalTransactionState


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
    """A future that cannot be cancelled: what it stands for is on its way to a commit."""

    def cancel(self) -> bool:
        """Never."""
        return False

    def running(self) -> bool:
        """Until it is done."""
        return not self.done()
