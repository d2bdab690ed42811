"""A dispatcher's own business tables (SQLite): local transactions, and the listener over them."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from txmq.listeners.protocol import HalfMessage
from txmq.message.message import LocalTransactionState
from txmq.ops.demo.folder import DISPATCHER_PROPERTY, DemoFolder
from txmq.ops.demo.plan import Decision, PlannedTransaction

BUSY_TIMEOUT_S = 20.0
_SCHEMA = """
CREATE TABLE IF NOT EXISTS transactions (
    transaction_id TEXT PRIMARY KEY, number INTEGER UNIQUE, decision TEXT NOT NULL,
    unknown_checks INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS departures (
    flight_id INTEGER PRIMARY KEY, transaction_id TEXT NOT NULL REFERENCES transactions,
    flight TEXT NOT NULL, carrier TEXT NOT NULL, topics TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS attempts (number INTEGER PRIMARY KEY, transaction_id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS commits (transaction_id TEXT PRIMARY KEY, returned_s REAL NOT NULL);
-- A fence has no number: another transaction still has to do its flights.
CREATE VIEW IF NOT EXISTS finished AS
    SELECT transaction_id, number FROM transactions WHERE number IS NOT NULL
    UNION ALL SELECT transaction_id, number FROM attempts;
"""
_DECISIONS = {
    Decision.DONE: LocalTransactionState.COMMIT,
    Decision.REFUSED: LocalTransactionState.ROLLBACK,
    Decision.FENCED: LocalTransactionState.ROLLBACK,
    Decision.OPEN: LocalTransactionState.UNKNOWN,
}


class FencedError(Exception):
    """The check has answered ROLLBACK, so this local transaction must not be done any more."""


class Books:
    """The tables of one dispatcher, shared by its threads.

    Two tables are notes for the demo itself: `attempts` lists transactions that are left without a
    row on purpose, `commits` says when each commit returned.
    """

    def __init__(self, path: Path) -> None:
        """Open the tables, or make them."""
        self._lock = threading.Lock()
        self._connection = _connected(path)
        self._connection.executescript(_SCHEMA)

    def record(self, planned: PlannedTransaction, transaction_id: str, decision: Decision) -> None:
        """Do the local transaction: write its decision and its departures, all or nothing.

        Raises: FencedError if the check has answered before.
        """
        done = planned.flights if decision is Decision.DONE else ()
        row = (transaction_id, planned.number, decision.value, planned.unknown_checks)
        departures = [
            (flight.flight_id, transaction_id, flight.name, flight.carrier, " ".join(flight.topics))
            for flight in done
        ]
        with self._writing() as connection:
            try:
                connection.execute("INSERT INTO transactions VALUES (?, ?, ?, ?)", row)
            except sqlite3.IntegrityError as error:
                raise FencedError(transaction_id) from error
            connection.executemany("INSERT INTO departures VALUES (?, ?, ?, ?, ?)", departures)

    def note_attempt(self, planned: PlannedTransaction, transaction_id: str) -> None:
        """Note a transaction that is left undone on purpose, so that it is not tried again."""
        with self._writing() as connection:
            row = (planned.number, transaction_id)
            connection.execute("INSERT INTO attempts VALUES (?, ?)", row)

    def note_commit(self, transaction_id: str, returned_s: float) -> None:
        """Note when `commit()` returned."""
        with self._writing() as connection:
            row = (transaction_id, returned_s)
            connection.execute("INSERT OR IGNORE INTO commits VALUES (?, ?)", row)

    def finished(self) -> set[int]:
        """Return the numbers of the plan that a dispatcher need not work on any more."""
        return {number for (number,) in self._rows("SELECT number FROM finished")}

    def has_finished(self, number: int) -> bool:
        """Tell whether one number of the plan is finished."""
        query = "SELECT 1 FROM finished WHERE number = ?"
        with self._lock:
            return self._connection.execute(query, (number,)).fetchone() is not None

    def fates(self) -> dict[str, int]:
        """Return the number in the plan of each transaction that went as planned."""
        return dict(self._rows("SELECT transaction_id, number FROM finished"))

    def departures(self) -> list[tuple[int, str, str, str]]:
        """Return flight, transaction, carrier and topics of every departure that was done."""
        query = """SELECT flight_id, transaction_id, carrier, topics FROM departures
            JOIN transactions USING (transaction_id) WHERE decision = 'DONE'"""
        return list(self._rows(query))

    def commits(self) -> dict[str, float]:
        """Return when each `commit()` returned, in seconds since 1970."""
        return dict(self._rows("SELECT transaction_id, returned_s FROM commits"))

    def answer(self, transaction_id: str, check_times: int) -> LocalTransactionState:
        """Return the state of a local transaction; write a fence where it has no row."""
        with self._writing() as connection:
            # The fence: without it a slow dispatcher could still depart after our ROLLBACK.
            fence = "INSERT OR IGNORE INTO transactions (transaction_id, decision) VALUES (?, ?)"
            connection.execute(fence, (transaction_id, Decision.FENCED.value))
            query = "SELECT decision, unknown_checks FROM transactions WHERE transaction_id = ?"
            decision, unknown_checks = connection.execute(query, (transaction_id,)).fetchone()
        if check_times < unknown_checks:
            return LocalTransactionState.UNKNOWN
        return _DECISIONS[Decision(decision)]

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def _rows(self, query: str) -> list[Any]:
        with self._lock:
            return self._connection.execute(query).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Hold one SQLite transaction; other processes wait for it."""
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")


class DepartureListener:
    """Answers the broker's questions from the dispatchers' own tables."""

    def __init__(self, folder: DemoFolder) -> None:
        """Open each table on first use."""
        self._folder = folder
        self._books: dict[int, Books] = {}
        self._lock = threading.Lock()

    def execute_local_transaction(
        self, message: HalfMessage, argument: object
    ) -> LocalTransactionState:
        """Refuse: the dispatchers execute, the broker only asks."""
        raise NotImplementedError

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        """Answer from the row of the transaction."""
        books = self._of(int(message.properties[DISPATCHER_PROPERTY]))
        return books.answer(message.transaction_id, message.check_times)

    def close(self) -> None:
        """Close all tables."""
        with self._lock:
            while self._books:
                self._books.popitem()[1].close()

    def _of(self, dispatcher: int) -> Books:
        with self._lock:
            if dispatcher not in self._books:
                self._books[dispatcher] = Books(self._folder.books(dispatcher))
            return self._books[dispatcher]


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    # A commit outlives kill -9; it need not outlive a power cut here.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection
