"""The business in these stories: orders in SQLite, which txmq knows nothing about."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from txmq.message.message import LocalTransactionState, Message
from txmq.producer.producer import TransactionProducer

if TYPE_CHECKING:
    from txmq.listeners.protocol import HalfMessage
    from txmq.store.store import Store

GROUP = "orders-service"
TOPICS = ("order-paid", "stock-reserved")
SETTINGS = {
    # A transaction is due at once, also of a producer that lives, and a lease of a dead process
    # ends soon.
    "transaction_timeout_s": 0.001,
    "transaction_renewal_max_s": 0.0,
    "transaction_check_interval_s": 0.001,
    "listener_timeout_s": 0.9,
    "check_lease_s": 1.0,
    "park_retry_interval_s": 0.01,
    # One topic after the other, so that a kill between two of them means something.
    "publish_threads": 1,
    # Few orders make a log that is worth cleaning.
    "checkpoint_interval": 5,
}


class Books:
    """Paid orders, by the transaction that announces them; also answers for these."""

    def __init__(self, path: Path | str) -> None:
        """Make the file if it is not there."""
        self.path = str(path)
        with closing(self._open()) as books, books:
            books.execute("PRAGMA journal_mode = WAL")
            books.execute("CREATE TABLE IF NOT EXISTS paid (id TEXT PRIMARY KEY, body BLOB)")

    def _open(self) -> sqlite3.Connection:
        return sqlite3.connect(self.path, timeout=60)

    def pay(self, transaction_id: str, body: bytes) -> None:
        """The local transaction."""
        with closing(self._open()) as books, books:
            books.execute("INSERT INTO paid VALUES (?, ?)", (transaction_id, body))

    def paid(self) -> dict[str, bytes]:
        with closing(self._open()) as books:
            return dict(books.execute("SELECT id, body FROM paid").fetchall())

    def execute_local_transaction(
        self, message: HalfMessage, argument: object
    ) -> LocalTransactionState:
        """Not used: these producers are asked only."""
        raise NotImplementedError

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        """The producers of these stories are dead when they are asked, so no row is a no."""
        is_paid = message.transaction_id in self.paid()
        return LocalTransactionState.COMMIT if is_paid else LocalTransactionState.ROLLBACK


def sell(
    store: Store, books: Books, count: int, first: int = 0, delay_s: int | None = None
) -> None:
    """Orders of two messages each; every third is called off, every seventh is left open."""
    with TransactionProducer(store, producer_group=GROUP) as producer:
        for number in range(first, first + count):
            body = b"order %d" % number
            transaction = producer.begin_transaction()
            for topic in TOPICS:
                key = f"order-{number}"
                transaction.send(Message(topic, body, keys=key, delay_s=delay_s))
            transaction.prepare()
            if number % 3 == 2:
                transaction.rollback()
                continue
            books.pay(transaction.id, body)
            if number % 7 != 6:
                transaction.commit()


def sell_frame(store: Store, books: Books, rows: int) -> None:
    """One order of many messages to each topic, sent as DataFrames."""
    from txmq.spark.session import local_session

    frame = (
        local_session(for_minutes=True)
        .range(0, rows, 1, 2)
        .selectExpr("'order of a frame' AS body")
    )
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = producer.begin_transaction()
        for topic in TOPICS:
            transaction.send_dataframe(frame, topic=topic)
        transaction.prepare()
        books.pay(transaction.id, b"order of a frame")
        transaction.commit()
