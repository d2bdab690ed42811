"""Puts markers on a local transaction, so that a ready-made listener can answer checks.

The producer looks for its marker before it writes COMMIT: Spark says nothing about a write that it
skipped because of a fence, and COMMIT would publish messages of a change that did not happen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from txmq.delta.pinned import commit_properties
from txmq.errors import (
    LocalTransactionDoneError,
    LocalTransactionError,
    LocalTransactionFencedError,
    LocalTransactionMissingError,
    StoreNotFoundError,
    UnsupportedTableError,
)
from txmq.ground.sessions import spark_room
from txmq.user_data import database_marker
from txmq.user_data.database_marker import MarkerTable
from txmq.user_data.delta_marker import MarkedTable, markers_of
from txmq.user_data.markers import (
    DONE,
    USER_METADATA_SETTING,
    DeltaMarkers,
    MarkedStatement,
    SqlStatement,
    marker_options,
    marker_settings,
)
from txmq.user_data.s3_log_store import active_session, check_log_store

if TYPE_CHECKING:
    from txmq.ground.sessions import SparkSession

_BY_OPTIONS = "Mark a write of a DataFrame by delta_options(), or run the statement on a cluster"
_WORD = re.compile(r"\w+", re.ASCII)
_TABLE_NAME = "the local transaction's table"
_NO_TABLE = (
    "say which table carries the marker: pass its location, or give the producer a DeltaListener"
)


@runtime_checkable
class MarkerLookup(Protocol):
    """A listener that can look up the marker of one transaction at any time."""

    def marker_place(self) -> str:
        """Name the table that it looks into, for errors."""
        ...

    def is_marked(self, transaction_id: str) -> bool | None:
        """Tell whether the local transaction is done; False if it is fenced, None if neither."""
        ...


class LocalTransaction:
    """The marked writes of one transaction; most transactions have one, the deciding write.

    Not safe for several threads.
    """

    def __init__(self, transaction_id: str, listener: object = None) -> None:
        """Mark nothing yet; `listener` names the table (DeltaListener) and may look for markers."""
        self._id = transaction_id
        self._lookup = _lookup_of(listener)
        self._table = getattr(listener, "table", None)
        self._options: Mapping[str, str] = getattr(listener, "storage_options", None) or {}
        self._spark: SparkSession | None = getattr(listener, "spark", None)
        self._marked: dict[str, DeltaMarkers] = {}
        self._databases: list[MarkerTable] = []

    def is_done(self, table: str | None) -> bool:
        """Tell whether a write with the marker is in the table.

        Raises: LocalTransactionError where RESTORE took the table back behind it; StorageError.
        """
        return self._mark(table).refresh().is_done(self._id) is True

    def delta_options(self, table: str | None, user_metadata: str | None = None) -> dict[str, str]:
        """Return the options that put the marker on one Spark write.

        Raises: LocalTransactionError if no table is named; UnsupportedTableError,
            UnsupportedPlaceError, StorageError.
        """
        self._check_markable(self._mark(table), active_session())
        return marker_options(self._id, user_metadata)

    @contextmanager
    def delta_sql(self, spark: SparkSession, table: str | None) -> Iterator[SqlStatement]:
        """Put the marker on one statement; look for it when the block ends without an error."""
        marked = self._mark(table, spark)
        self._check_markable(marked, spark, refuses_words=True)
        problem = (
            "delta_sql runs one statement, because Spark skips a second write with the same "
            "marker; put the marker on the statement that decides"
        )
        second = LocalTransactionError(self._id, marked.location, problem)
        statement = MarkedStatement(spark, second)
        users_text = spark_room().setting_of(spark, USER_METADATA_SETTING)
        settings = marker_settings(self._id, users_text)
        with spark_room().session_settings(spark, settings, way_out=_BY_OPTIONS):
            yield statement
        self._confirm(marked)

    @contextmanager
    def delta_rs(self, table: str | None) -> Iterator[tuple[Any, Any]]:
        """Give a DeltaTable without this marker or fence, and CommitProperties with the marker.

        Looks for the marker when the block ends without an error.
        Raises: LocalTransactionDoneError, LocalTransactionFencedError, UnsupportedTableError;
            LocalTransactionError where a RESTORE undid an earlier try.
        """
        marked = self._by_files(table).reopen()
        self._check(marked, marked.check_writable)
        is_done = marked.is_done(self._id)
        if is_done is not None:
            raise self._problem(marked.location, is_done=is_done)
        yield marked.handle, commit_properties({self._id: DONE})
        self._confirm(marked)

    @contextmanager
    def database(self, connection: Any, table: str) -> Iterator[None]:
        """Write the marker row in the database transaction; the caller commits it.

        Raises: LocalTransactionDoneError, LocalTransactionFencedError; LocalTransactionError for a
            connection in autocommit.
        """
        markers = MarkerTable(connection, table)
        if markers.commits_by_itself:
            problem = (
                "the connection is in autocommit, so the marker would commit alone; turn it off"
            )
            raise LocalTransactionError(self._id, markers.table, problem)
        if not markers.mark(self._id):
            is_done = markers.outcome(self._id) == database_marker.DONE
            raise self._problem(markers.table, is_done=is_done)
        self._databases.append(markers)
        yield

    def confirm(self) -> None:
        """Look for the marker of every marked write; 0 commits.

        If nothing was marked through this object, and the listener looks for markers, it is asked:
        a local transaction that was left out is no local transaction.

        Raises:
            LocalTransactionError: a marker is missing or fenced, a RESTORE undid its write, the
                caller has not committed a database transaction, or nobody can see whether it did.
            StorageError: a table cannot be read.
        """
        for markers in self._databases:
            self._confirm_database(markers)
        for marked in self._marked.values():
            self._confirm(marked)
        if self._lookup is not None and not (self._databases or self._marked):
            is_done = self._lookup.is_marked(self._id)
            self._check_done(self._lookup.marker_place(), is_done=is_done)

    @property
    def has_database(self) -> bool:
        """Whether a write to a database was marked, whose connection is of one thread."""
        return bool(self._databases)

    @property
    def is_unmarked(self) -> bool:
        """Whether `confirm` has nothing to look for."""
        return self._lookup is None and not (self._databases or self._marked)

    def _confirm_database(self, markers: MarkerTable) -> None:
        """Look into the database: it says nothing to txmq when the caller commits or rolls back."""
        is_done = self._is_committed(markers)
        if not is_done and markers.is_open:
            problem = "the database transaction is not committed; commit it, then call again"
            raise LocalTransactionError(self._id, markers.table, problem)
        self._check_done(markers.table, is_done=is_done)

    def _is_committed(self, markers: MarkerTable) -> bool | None:
        """Ask as `MarkerLookup.is_marked`; through another connection if there is one."""
        lookup = self._lookup
        try:
            if lookup is not None and lookup.marker_place() == markers.table:
                return lookup.is_marked(self._id)
            if markers.is_open:
                return None
            outcome = markers.committed_outcome(self._id)
        except Exception as error:
            if markers.is_open:
                return None
            problem = (
                f"nobody can see whether the database transaction was committed "
                f"({type(error).__name__}); call commit() before you close the connection, or "
                "give the producer a DatabaseListener"
            )
            raise LocalTransactionError(self._id, markers.table, problem) from error
        return None if outcome is None else outcome == database_marker.DONE

    def _check_done(self, where: str, *, is_done: bool | None) -> None:
        if is_done is None:
            raise LocalTransactionMissingError(self._id, where)
        if not is_done:
            raise LocalTransactionFencedError(self._id, where)

    def _confirm(self, marked: DeltaMarkers) -> None:
        self._check_done(marked.location, is_done=marked.refresh().is_done(self._id))

    def _check_markable(
        self, marked: DeltaMarkers, spark: SparkSession | None, *, refuses_words: bool = False
    ) -> None:
        """Refuse a table that cannot be fenced; one that is not there the marked write makes.

        A single word in a statement is the name of a table that txmq would look for in a folder.
        """
        try:
            self._check(marked, marked.check_markable)
        except StoreNotFoundError:
            if refuses_words and _WORD.fullmatch(marked.location):
                self._marked.pop(marked.location)
                raise
        if isinstance(marked, MarkedTable):
            check_log_store(spark, marked.location)

    def _check(self, marked: DeltaMarkers, check: Callable[[], None]) -> None:
        """Raise UnsupportedTableError if `check` does; then nothing is marked."""
        try:
            check()
        except UnsupportedTableError:
            self._marked.pop(marked.location, None)
            raise

    def _mark(self, table: str | None, spark: SparkSession | None = None) -> DeltaMarkers:
        location = self._location(table)
        if location not in self._marked:
            options = self._options if location == self._table else None
            session = spark or self._spark or active_session()
            self._marked[location] = markers_of(_TABLE_NAME, location, options, session)
        return self._marked[location]

    def _by_files(self, table: str | None) -> MarkedTable:
        """Return the table for a write by delta-rs, which knows no other kind of it."""
        location = self._location(table)
        marked = self._marked.get(location)
        if not isinstance(marked, MarkedTable):
            options = self._options if location == self._table else None
            marked = MarkedTable(_TABLE_NAME, location, options)
            self._marked[location] = marked
        return marked

    def _location(self, table: str | None) -> str:
        location = table or self._table
        if location is None:
            raise LocalTransactionError(self._id, "delta", _NO_TABLE)
        return location

    def _problem(self, where: str, *, is_done: bool) -> LocalTransactionError:
        kind = LocalTransactionDoneError if is_done else LocalTransactionFencedError
        return kind(self._id, where)


# Looking at a protocol takes as long as a send, and a producer has one listener.
@cache
def _is_lookup(kind: Any) -> bool:
    return issubclass(kind, MarkerLookup)


def _lookup_of(listener: object) -> MarkerLookup | None:
    kind = type(listener)
    is_lookup = _is_lookup(kind)  # type: ignore[arg-type]
    return cast("MarkerLookup", listener) if is_lookup else None
