"""A process that sells without waiting, and is killed in the middle of it."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kit.books import GROUP, TOPICS, Books
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

if TYPE_CHECKING:
    from concurrent.futures import Future

    from txmq.listeners.protocol import HalfMessage
    from txmq.producer.routing import SendResult

PAID, TOLD = TOPICS
SALES = 400


class AsynchronousBooks(Books):
    """Its local transactions; one of them may be the last thing that its process does."""

    def __init__(self, path: Path | str, last: str = "") -> None:
        super().__init__(path)
        self._last = last.encode()

    def execute_local_transaction(
        self, message: HalfMessage, argument: object
    ) -> LocalTransactionState:
        if not argument:
            return LocalTransactionState.ROLLBACK
        if message.body == self._last:
            self._die_paying(message)
        self.pay(message.transaction_id, message.body)
        return LocalTransactionState.COMMIT

    def _die_paying(self, message: HalfMessage) -> None:
        with closing(self._open()) as books:
            books.execute("INSERT INTO paid VALUES (?, ?)", (message.transaction_id, message.body))
            os.kill(os.getpid(), signal.SIGKILL)


def main(location: str, path: str, told: str, last: str) -> None:
    """Transactions to one topic and plain messages to another; `told` gets what is acknowledged."""
    with (
        Path(told).open("a", encoding="utf-8") as journal,
        TransactionProducer(
            Store.open(location), producer_group=GROUP, listener=AsynchronousBooks(path, last)
        ) as producer,
    ):

        def note(sent: Future[SendResult]) -> None:
            journal.write(f"{sent.result().message_id}\n")
            journal.flush()

        for number in range(SALES):
            body = b"sale %d" % number
            producer.send_message_in_transaction_async(Message(PAID, body), number % 3 != 2)
            producer.send_async(Message(TOLD, body)).add_done_callback(note)
