"""A listener for database transactions: it looks for their markers, and writes fences."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from txmq.errors import EnvironmentProblemError, ListenerError, step_for_extra
from txmq.ground.clock import Clock, SystemClock
from txmq.listeners.protocol import ages_s, outcome_table
from txmq.message.message import LocalTransactionState
from txmq.user_data.database_marker import (
    DONE,
    FENCED,
    MARKER_TABLE,
    MarkerTable,
    check_marker_table,
)

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

STATEMENT_IDS = 25_000
# After waiting this long for running transactions, the rest of the call is UNKNOWN.
WAIT_S = 2.0
# State and reason by the outcome in the marker table; JdbcListener answers the same.
ANSWERS = {
    DONE: (LocalTransactionState.COMMIT.value, "its marker is in the database"),
    FENCED: (LocalTransactionState.ROLLBACK.value, "its marker is not in the database: fenced"),
}
NOT_YET = (LocalTransactionState.UNKNOWN.value, "its marker is not in the database yet")
_RUNNING = (LocalTransactionState.UNKNOWN.value, "its local transaction is still running")


class DatabaseListener:
    """Answers COMMIT if the marker row exists; else writes a fence row and answers ROLLBACK.

    `with transaction.database(connection): ...` writes the marker row in the local transaction.
    After a fence, a local transaction that is still on its way cannot commit: its marker row meets
    the fence. A running local transaction keeps its row locked; the answer is UNKNOWN
    (decision 0012).

    Args:
        connect: a function that returns a new connection of a DB-API driver or of SQLAlchemy, or
            an SQLAlchemy engine.
        url_variable: instead of `connect`, the environment variable that holds a database URL of
            SQLAlchemy. The URL is in no setting, table, log or error.
        table: the marker table; `create_marker_table()` makes it.
        rollback_after_s: a transaction without a marker is UNKNOWN, and is not fenced, below this
            age.
        clock: the time for ages.

    Statements: one per 25,000 questions; where markers are missing, one to write the fences and
    one to read them; a few more where local transactions are running.

    Example:
        >>> listener = DatabaseListener(lambda: sqlite3.connect("orders.db"))
        >>> listener.create_marker_table()
    """

    head_columns = ("transaction_id", "born_timestamp")

    def __init__(
        self,
        connect: Callable[[], Any] | Any = None,
        *,
        url_variable: str | None = None,
        table: str = MARKER_TABLE,
        rollback_after_s: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        """Connect to nothing.

        Raises:
            ListenerError: both or neither of `connect` and `url_variable` are given.
            InvalidNameError: `table` is no table name.
            EnvironmentProblemError: the variable is not set or holds no usable URL, or SQLAlchemy
                is not installed.
        """
        if (connect is None) == (url_variable is None):
            raise ListenerError(type(self).__name__, "needs either connect or url_variable")
        source = connect if url_variable is None else _engine(url_variable)
        self._connect = source if callable(source) else source.connect
        self._table = check_marker_table(table)
        self._rollback_after_s = rollback_after_s
        self._clock: Clock = clock or SystemClock()

    def create_marker_table(self) -> None:
        """Make the marker table if it does not exist; a retry changes nothing.

        Raises:
            EnvironmentProblemError: the driver is not known, or the connection is in autocommit.
            Exception: the driver's own errors.
        """
        with self._opened() as (connection, markers):
            markers.create()
            connection.commit()

    def check_local_transactions_arrow(self, heads: pa.Table) -> pa.Table:
        """Look up the markers of all heads, and fence the transactions without one.

        A retry reads the same markers and fences. Commits: one in the database for each statement;
        none to the store.

        Args:
            heads: transaction_id and born_timestamp.

        Returns: transaction_id, state and reason, one row for each head.

        Raises:
            EnvironmentProblemError: the driver is not known, or the connection is in autocommit.
            Exception: the driver's own errors.
        """
        is_young = (ages_s(heads, self._clock) < self._rollback_after_s).tolist()
        ids = heads["transaction_id"].to_pylist()
        with self._opened() as (connection, markers):
            answers = _Answers(connection, markers)
            for first in range(0, len(ids), STATEMENT_IDS):
                chunk = slice(first, first + STATEMENT_IDS)
                answers.add(ids[chunk], is_young[chunk])
        return outcome_table((key, *answers.by_id.get(key, NOT_YET)) for key in ids)

    def marker_place(self) -> str:
        """Return the name of the marker table."""
        return self._table

    def is_marked(self, transaction_id: str) -> bool | None:
        """Tell whether a local transaction is committed, by its marker row; fence nothing.

        Its producer asks in `commit()`. Statements: one, through a connection of its own.

        Args:
            transaction_id: the id of the transaction.

        Returns: True if it is, False if it is fenced, None if there is no row.

        Raises:
            EnvironmentProblemError: the driver is not known, or the connection is in autocommit.
            Exception: the driver's own errors.
        """
        with self._opened() as (_, markers):
            outcome = markers.outcome(transaction_id)
        return None if outcome is None else outcome == DONE

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, MarkerTable]]:
        connection = self._connect()
        try:
            markers = MarkerTable(connection, self._table)
            if markers.commits_by_itself:
                problem = "the listener's connection is in autocommit"
                raise EnvironmentProblemError(problem, "Connect without autocommit.")
            yield connection, markers
        finally:
            connection.close()


def _engine(variable: str) -> Any:
    """Make an engine of a URL in an environment variable, so that no file or log holds it."""
    try:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
        from sqlalchemy.pool import NullPool
    except ImportError as error:
        problem = "SQLAlchemy is not installed, and a database URL needs it"
        raise EnvironmentProblemError(problem, step_for_extra("database")) from error
    url = os.environ.get(variable)
    if not url:
        problem = f"the environment variable {variable} is not set"
        raise EnvironmentProblemError(problem, "Set it to a database URL of SQLAlchemy.")
    try:
        # Rounds are rare, and a pooled connection may be cut between two of them.
        return create_engine(url, poolclass=NullPool)
    except (ArgumentError, NoSuchModuleError, ImportError, ValueError):
        # The text of such an error may repeat the URL.
        problem = f"the environment variable {variable} holds no URL that SQLAlchemy can use here"
        raise EnvironmentProblemError(
            problem, "Check its form, and that the driver is installed."
        ) from None


class _Answers:
    """State and reason of each transaction that has a marker, a fence or a lock."""

    def __init__(self, connection: Any, markers: MarkerTable) -> None:
        self.by_id: dict[str, tuple[str, str]] = {}
        self._connection, self._markers = connection, markers
        self._give_up_s = time.monotonic() + WAIT_S

    def add(self, ids: Sequence[str], is_young: Sequence[bool]) -> None:
        """Read the markers of a chunk, and fence its transactions that are old enough."""
        self._read(ids)
        old = [key for key, young in zip(ids, is_young, strict=True) if not young]
        undecided = [key for key in old if key not in self.by_id]
        if undecided:
            self._fence(undecided)
            self._read(undecided)

    def _read(self, ids: Sequence[str]) -> None:
        outcomes = self._markers.outcomes(ids)
        self._connection.commit()
        self.by_id |= {key: ANSWERS[outcome] for key, outcome in outcomes.items()}

    def _fence(self, ids: Sequence[str]) -> None:
        """Fence all in one statement; if a running transaction locks a row, try two halves."""
        try:
            self._markers.wait_shortly()
            self._markers.fence(ids)
            self._connection.commit()
        except Exception as error:
            self._connection.rollback()
            if not self._markers.is_busy(error):
                raise
            self._fence_halves(ids)

    def _fence_halves(self, ids: Sequence[str]) -> None:
        if len(ids) == 1 or time.monotonic() > self._give_up_s:
            self.by_id |= dict.fromkeys(ids, _RUNNING)
            return
        middle = len(ids) // 2
        self._fence(ids[:middle])
        self._fence(ids[middle:])
