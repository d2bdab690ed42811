"""The business under torture: which orders were paid, in SQLite, with a fence for the check."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from txmq.message.message import LocalTransactionState

if TYPE_CHECKING:
    from txmq.listeners.protocol import HalfMessage

GROUP = "orders-service"
PAID, FENCED, UNDECIDABLE = "paid", "fenced", "undecidable"


class Ledger:
    """One row a transaction: paid, fenced off by a check, or not to be known.

    A check that finds no row fences the transaction off before it says ROLLBACK, so that a late
    payment fails; else a slow producer would pay for what was rolled back.
    """

    def __init__(self, path: Path | str) -> None:
        """Make the file if it is not there."""
        self.path = str(path)
        with self._open() as ledger:
            ledger.execute("PRAGMA journal_mode = WAL")
            ledger.execute("CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, state TEXT)")

    def pay(self, transaction_id: str, state: str = PAID) -> bool:
        """The local transaction; False where a check was faster, or it was paid before."""
        try:
            with self._open() as ledger:
                ledger.execute("INSERT INTO orders VALUES (?, ?)", (transaction_id, state))
        except sqlite3.IntegrityError:
            return False
        return True

    def state(self, transaction_id: str) -> str | None:
        """What is known of one transaction."""
        query = "SELECT state FROM orders WHERE id = ?"
        with self._open() as ledger:
            row = ledger.execute(query, (transaction_id,)).fetchone()
        return None if row is None else str(row[0])

    def ids(self, state: str) -> set[str]:
        """All transactions in a state."""
        with self._open() as ledger:
            rows = ledger.execute("SELECT id FROM orders WHERE state = ?", (state,)).fetchall()
        return {row[0] for row in rows}

    def execute_local_transaction(
        self, message: HalfMessage, argument: object
    ) -> LocalTransactionState:
        """Not used: these producers end their transactions by themselves."""
        raise NotImplementedError

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        """Fence first, then answer."""
        self.pay(message.transaction_id, FENCED)
        match self.state(message.transaction_id):
            case "paid":
                return LocalTransactionState.COMMIT
            case "undecidable":
                return LocalTransactionState.UNKNOWN
        return LocalTransactionState.ROLLBACK

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        ledger = sqlite3.connect(self.path, timeout=120)
        try:
            with ledger:
                yield ledger
        finally:
            ledger.close()
