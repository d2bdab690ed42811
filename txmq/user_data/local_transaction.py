"""What a producer puts on its local transaction, so that a ready-made listener can answer.

The marker is looked up before the end is written: a write that lost to a fence is silent in Spark,
and a COMMIT after it would show messages of a change that never was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from txmq.delta.pinned import commit_properties
from txmq.errors import (
    LocalTransactionDoneError,
    LocalTransactionError,
    LocalTransactionFencedError,
    LocalTransactionMissingError,
)
from txmq.user_data import database_marker
from txmq.user_data.database_marker import MarkerTable
from txmq.user_data.delta_marker import (
    DONE,
    MarkedTable,
    OneStatement,
    SqlStatement,
    marker_options,
    marker_settings,
    session_settings,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NO_TABLE = (
    "say which table carries the marker: pass its location, or give the producer a DeltaListener"
)


class LocalTransaction:
    """The marked writes of one transaction; most have one, on the table that decides.

    Not safe for several threads.
    """

    def __init__(self, transaction_id: str, listener: object = None) -> None:
        """`listener` may name the table (DeltaListener)."""
        self._id = transaction_id
        self._table = getattr(listener, "table", None)
        self._options: Mapping[str, str] = getattr(listener, "storage_options", None) or {}
        self._marked: dict[str, MarkedTable] = {}
        self._databases: list[MarkerTable] = []

    def is_done(self, table: str | None) -> bool:
        """Whether a write with the marker is in the table. Raises: StorageError."""
        return self._mark(table).refresh().mark(self._id) == DONE

    def delta_options(self, table: str | None) -> dict[str, str]:
        """Options for one Spark write. Raises: LocalTransactionError."""
        self._mark(table)
        return marker_options(self._id)

    @contextmanager
    def delta_sql(self, spark: SparkSession, table: str | None) -> Iterator[SqlStatement]:
        """The marker on one statement, which is confirmed when the block is left in peace."""
        marked = self._mark(table)
        problem = "a marker is on one statement, Spark skips the next; use the deciding one"
        second = LocalTransactionError(self._id, marked.location, problem)
        statement = OneStatement(spark, second)
        with session_settings(spark, marker_settings(self._id)):
            yield statement
        self._confirm(marked)

    @contextmanager
    def delta_rs(self, table: str | None) -> Iterator[tuple[Any, Any]]:
        """A DeltaTable that was seen without a fence, and CommitProperties with the marker."""
        marked = self._mark(table).reopen()
        mark = marked.mark(self._id)
        if mark is not None:
            raise self._problem(marked.location, is_done=mark == DONE)
        yield marked.handle, commit_properties({self._id: DONE})
        self._confirm(marked)

    @contextmanager
    def database(self, connection: Any, table: str) -> Iterator[None]:
        """The marker row in the database transaction that the caller will commit."""
        markers = MarkerTable(connection, table)
        if markers.commits_by_itself:
            problem = "the connection commits each statement by itself; turn autocommit off"
            raise LocalTransactionError(self._id, markers.table, problem)
        if not markers.mark(self._id):
            is_done = markers.outcome(self._id) == database_marker.DONE
            raise self._problem(markers.table, is_done=is_done)
        self._databases.append(markers)
        yield

    def confirm(self) -> None:
        """Every marked write is there. Raises: LocalTransactionError, StorageError."""
        for markers in self._databases:
            if markers.is_open:
                problem = "the database transaction is not committed; do it, then call again"
                raise LocalTransactionError(self._id, markers.table, problem)
        for marked in self._marked.values():
            self._confirm(marked)

    def _confirm(self, marked: MarkedTable) -> None:
        mark = marked.refresh().mark(self._id)
        if mark is None:
            raise LocalTransactionMissingError(self._id, marked.location)
        if mark != DONE:
            raise LocalTransactionFencedError(self._id, marked.location)

    def _mark(self, table: str | None) -> MarkedTable:
        location = table or self._table
        if location is None:
            raise LocalTransactionError(self._id, "delta", _NO_TABLE)
        options = self._options if location == self._table else None
        fresh = MarkedTable("the local transaction's table", location, options)
        return self._marked.setdefault(location, fresh)

    def _problem(self, where: str, *, is_done: bool) -> LocalTransactionError:
        kind = LocalTransactionDoneError if is_done else LocalTransactionFencedError
        return kind(self._id, where)
