"""A listener that answers by itself where the local transaction is one of a database."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from txmq.clock import Clock, SystemClock
from txmq.errors import EnvironmentProblemError, ListenerError
from txmq.listeners.outcomes import outcome_table
from txmq.listeners.protocol import ages_s
from txmq.message.message import LocalTransactionState
from txmq.user_data.database_marker import DONE, FENCED, MARKER_TABLE, MarkerTable, check_table

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

STATEMENT_IDS = 25_000
# What is left of a round after so long waiting for running transactions is UNKNOWN.
WAIT_S = 2.0
_ANSWERS = {
    DONE: (LocalTransactionState.COMMIT.value, "its marker is in the database"),
    FENCED: (LocalTransactionState.ROLLBACK.value, "its marker is not in the database: fenced"),
}
_NOT_YET = (LocalTransactionState.UNKNOWN.value, "its marker is not in the database yet")
_RUNNING = (LocalTransactionState.UNKNOWN.value, "its local transaction is still running")


class DatabaseListener:
    """COMMIT where the marker row is there; else a fence row is written first, then ROLLBACK.

    So a local transaction that is still on its way cannot be committed after it was rolled back:
    its marker row meets the fence. One that is running keeps its row locked and stays UNKNOWN.
    The marker is written by `with transaction.database(connection): ...`.

    Args:
        connect: returns a new connection each time: of a DB-API driver, or of SQLAlchemy; or an
            SQLAlchemy engine.
        url_variable: in its place, the environment variable that holds a URL of SQLAlchemy.
        table: the marker table; `create_marker_table()` makes it.
        rollback_after_s: UNKNOWN instead of a fence while a transaction is younger.

    Statements: one per 25,000 questions, one more for those without a marker and one to read the
    fences; a few more where local transactions are running.
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
        """Connect to nothing yet.

        Raises: InvalidNameError; ListenerError; EnvironmentProblemError.
        """
        if (connect is None) == (url_variable is None):
            raise ListenerError(type(self).__name__, "needs either connect or url_variable")
        source = connect if url_variable is None else _engine(url_variable)
        self._connect = source if callable(source) else source.connect
        self._table = check_table(table)
        self._rollback_after_s = rollback_after_s
        self._clock: Clock = clock or SystemClock()

    def create_marker_table(self) -> None:
        """Make the marker table if it is not there."""
        with self._opened() as (connection, markers):
            markers.create()
            connection.commit()

    def check_local_transactions_arrow(self, heads: pa.Table) -> pa.Table:
        """OUTCOMES of all heads. Raises: what the driver raises."""
        young = (ages_s(heads, self._clock) < self._rollback_after_s).tolist()
        ids = heads["transaction_id"].to_pylist()
        with self._opened() as (connection, markers):
            answers = _Answers(connection, markers)
            for first in range(0, len(ids), STATEMENT_IDS):
                chunk = slice(first, first + STATEMENT_IDS)
                answers.add(ids[chunk], young[chunk])
        rows = [(each, *answers.of.get(each, _NOT_YET)) for each in ids]
        return outcome_table(rows)

    @contextmanager
    def _opened(self) -> Iterator[tuple[Any, MarkerTable]]:
        connection = self._connect()
        try:
            markers = MarkerTable(connection, self._table)
            if markers.commits_by_itself:
                problem = "the listener's connection commits each statement by itself"
                raise EnvironmentProblemError(problem, "Connect without autocommit.")
            yield connection, markers
        finally:
            connection.close()


def _engine(variable: str) -> Any:
    """An engine for the URL in an environment variable, so that no file and no log has it."""
    try:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import ArgumentError, NoSuchModuleError
        from sqlalchemy.pool import NullPool
    except ImportError as error:
        problem = "SQLAlchemy is not installed, and a database URL needs it"
        raise EnvironmentProblemError(problem, "pip install 'txmq[database]'") from error
    url = os.environ.get(variable)
    if not url:
        problem = f"the environment variable {variable} is not set"
        raise EnvironmentProblemError(problem, "Set it to a database URL of SQLAlchemy.")
    try:
        # A round is seldom, and a connection that waits may be cut.
        return create_engine(url, poolclass=NullPool)
    except (ArgumentError, NoSuchModuleError, ImportError, ValueError):
        # Their words may repeat the URL.
        problem = f"the environment variable {variable} holds no URL that SQLAlchemy can use here"
        raise EnvironmentProblemError(
            problem, "Check its form, and that the driver is installed."
        ) from None


class _Answers:
    """What the marker table says, filled in chunk by chunk."""

    def __init__(self, connection: Any, markers: MarkerTable) -> None:
        self.of: dict[str, tuple[str, str]] = {}
        self._connection, self._markers = connection, markers
        self._give_up_s = time.monotonic() + WAIT_S

    def add(self, ids: Sequence[str], is_young: Sequence[bool]) -> None:
        self._read(ids)
        old = [each for each, young in zip(ids, is_young, strict=True) if not young]
        undecided = [each for each in old if each not in self.of]
        if undecided:
            self._fence(undecided)
            self._read(undecided)

    def _read(self, ids: Sequence[str]) -> None:
        found = self._markers.outcomes(ids)
        self._connection.commit()
        self.of |= {each: _ANSWERS[outcome] for each, outcome in found.items()}

    def _fence(self, ids: Sequence[str]) -> None:
        """All in one statement; in halves where a running transaction holds one of them."""
        try:
            self._markers.wait_shortly()
            self._markers.fence(ids)
            self._connection.commit()
        except Exception as error:
            self._connection.rollback()
            if not self._markers.is_busy(error):
                raise
            self._fence_apart(ids)

    def _fence_apart(self, ids: Sequence[str]) -> None:
        if len(ids) == 1 or time.monotonic() > self._give_up_s:
            self.of |= dict.fromkeys(ids, _RUNNING)
            return
        middle = len(ids) // 2
        self._fence(ids[:middle])
        self._fence(ids[middle:])
