"""The checker's own reading of a marker table in a database: SELECTs by SQLAlchemy.

A row says DONE or FENCED of a transaction id. Shares no code with what writes them, on purpose.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txmq.errors import EnvironmentProblemError, StorageError
from txmq.verify.business_markers import DatabaseMarkers
from txmq.verify.plain.markers import DONE, FENCED

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

# Below the smallest number of parameters that a database takes in one statement.
STATEMENT_IDS = 10_000
_OUTCOMES = {"DONE": DONE, "FENCED": FENCED}
_UNREACHABLE = "cannot be reached ({kind}); check the URL, the user and the password in {variable}"
_UNREADABLE = "cannot be read ({kind}); is the table there, and may this user read it?"


class DatabaseMarkerTable:
    """The marker table behind an environment variable; each call connects anew."""

    retention_s = None

    def __init__(self, place: DatabaseMarkers) -> None:
        """Connect once and see that the table can be read.

        Raises: EnvironmentProblemError, StorageError; neither shows the URL.
        """
        self._place = place
        self._engine = _engine(place)
        self.outcomes([])

    def outcomes(self, transaction_ids: Sequence[str]) -> dict[str, int]:
        """DONE or FENCED of those that have either: one statement for 10,000 ids, at least one."""
        found: dict[str, int] = {}
        with self._connected() as connection:
            for first in range(0, max(1, len(transaction_ids)), STATEMENT_IDS):
                chunk = transaction_ids[first : first + STATEMENT_IDS]
                rows = connection.execute(self._select(chunk)).all()
                found |= {str(key): _OUTCOMES[says] for key, says in rows if says in _OUTCOMES}
        return found

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        with self._by_kind(_UNREACHABLE):
            connection = self._engine.connect()
        with self._by_kind(_UNREADABLE), connection:
            yield connection

    def _select(self, transaction_ids: Sequence[str]) -> Any:
        from sqlalchemy import column, select, table
        from sqlalchemy.sql import quoted_name

        schema, _, name = self._place.table.rpartition(".")
        # Unquoted as in the statement that made it, so that both are folded alike.
        markers = table(
            quoted_name(name, quote=False),
            column("transaction_id"),
            column("outcome"),
            schema=quoted_name(schema, quote=False) if schema else None,
        )
        wanted = markers.c.transaction_id.in_(transaction_ids)
        return select(markers.c.transaction_id, markers.c.outcome).where(wanted)

    @contextmanager
    def _by_kind(self, problem: str) -> Iterator[None]:
        """Of an error only its kind is told: its words may hold the URL."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (SQLAlchemyError, OSError, ValueError, ImportError) as error:
            told = problem.format(kind=_kind(error), variable=self._place.variable)
            raise StorageError(str(self._place), told) from None


def _engine(place: DatabaseMarkers) -> Engine:
    try:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import SQLAlchemyError
        from sqlalchemy.pool import NullPool
    except ImportError as error:
        problem = "SQLAlchemy is not installed, and a database URL needs it"
        raise EnvironmentProblemError(problem, "pip install 'txmq[database]'") from error
    url = os.environ.get(place.variable)
    if not url:
        problem = f"the environment variable {place.variable} is not set"
        raise EnvironmentProblemError(problem, "Set it to a database URL of SQLAlchemy.")
    try:
        engine = create_engine(url, poolclass=NullPool)
    except (SQLAlchemyError, ImportError, ValueError) as error:
        problem = f"the database URL in {place.variable} cannot be used ({_kind(error)})"
        next_step = "Correct it, or install the driver that it names."
        raise EnvironmentProblemError(problem, next_step) from None
    _refuse_missing_file(place, engine)
    return engine


def _refuse_missing_file(place: DatabaseMarkers, engine: Engine) -> None:
    """SQLite would make an empty database, and a checker writes nothing."""
    file = engine.url.database
    if engine.dialect.name != "sqlite" or not file or file.startswith((":memory:", "file:")):
        return
    if not Path(file).exists():
        raise StorageError(str(place), "is not there; check the path in the URL")


def _kind(error: BaseException) -> str:
    return type(getattr(error, "orig", None) or error).__name__
