"""The checker's own reading of markers: from the log of a Delta table or a table of a database.

A marker says DONE or FENCED of a transaction id. This shares no code with what writes them, on
purpose.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake.exceptions import DeltaError

from txmq.delta.credentials import storage_options_of
from txmq.errors import EnvironmentProblemError, StorageError, step_for_extra
from txmq.verify.declared_markers import DatabaseMarkers, DeltaMarkers
from txmq.verify.store import plain_location
from txmq.verify.tables import is_table, opened_folder, opened_table

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

UNMARKED, DONE, FENCED = 0, 1, 2
_RETENTION = "delta.setTransactionRetentionDuration"
_UNIT_S = {
    "microsecond": 1e-6, "millisecond": 1e-3, "second": 1.0, "minute": 60.0, "hour": 3_600.0,
    "day": 86_400.0, "week": 604_800.0,
}  # fmt: skip
_PERIOD = re.compile(rf"(\d+)\s+({'|'.join(_UNIT_S)})s?", re.ASCII)
_LOG = "_delta_log"
_COMMIT = re.compile(r"(\d{20})\.json", re.ASCII)
# In one file, in numbered parts, or named by a UUID.
_CHECKPOINT = re.compile(
    r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.[0-9a-f-]{36})?\.(?:parquet|json)", re.ASCII
)
_ATTEMPTS = 5
_PAUSE_S = 0.05
Result = TypeVar("Result")
# Below the smallest number of parameters that a database takes in one statement.
STATEMENT_IDS = 10_000
_OUTCOMES = {"DONE": DONE, "FENCED": FENCED}
_UNREACHABLE = "cannot be reached ({kind}); check the URL, the user and the password in {variable}"
_UNREADABLE = "cannot be read ({kind}); is the table there, and may this user read it?"


class Markers(Protocol):
    """Where one group's markers are, opened and seen to be there."""

    @property
    def retention_s(self) -> float | None:
        """After how long markers may be forgotten; None for never."""

    def outcomes(self, transaction_ids: Sequence[str]) -> dict[str, int]:
        """Return DONE or FENCED of those that have either. Raises: StorageError."""


# --- the log of a Delta table ------------------------------------------------------------------


class DeltaMarkerLog:
    """The markers in the log of a user's table, at the version it had when it was opened."""

    def __init__(self, place: DeltaMarkers) -> None:
        """Open it; 0 commits. Raises: StorageError, which never shows a location's secrets."""
        self._name = str(place)
        self._location = plain_location(place.location)
        self._options = storage_options_of(self._location, place.storage_options)
        with _by_kind(self._name):
            if not is_table(self._location, self._options):
                raise StorageError(self._name, "is not there; check its location")
            self._handle = _again(lambda: opened_table(self._location, self._options))

    @property
    def retention_s(self) -> float | None:
        """What the table's property says; 0 where it cannot be read, so that nothing is missed."""
        text = self._handle.metadata().configuration.get(_RETENTION)
        return None if text is None else _seconds(str(text))

    def outcomes(self, transaction_ids: Sequence[str]) -> dict[str, int]:
        """Return DONE or FENCED of those that have either."""
        with _by_kind(self._name):
            marks = self._of_log(pa.array(transaction_ids, pa.string()))
            if marks is None:
                marks = self._one_by_one(transaction_ids)
        return {mark_id: mark for mark_id, mark in marks.items() if mark in (DONE, FENCED)}

    def _of_log(self, wanted: pa.Array) -> dict[str, int] | None:
        """Read the newest checkpoint and the commits after it; None if the log has gaps."""
        filesystem = opened_folder(self._location, self._options)
        names = [info.base_name for info in filesystem.get_file_info(pa_fs.FileSelector(_LOG))]
        version = int(self._handle.version())
        base, checkpoint = _newest_checkpoint(names, version)
        commits = [f"{at:020d}.json" for at in range(base + 1, version + 1)]
        if not set(commits) <= set(names):
            return None
        marks: dict[str, int] = {}
        try:
            for name in (*checkpoint, *commits):
                marks.update(_marks(filesystem, f"{_LOG}/{name}", wanted))
        except FileNotFoundError:
            # Cleaned away while it was read.
            return None
        return marks

    def _one_by_one(self, transaction_ids: Sequence[str]) -> dict[str, int]:
        marks = {mark_id: self._handle.transaction_version(mark_id) for mark_id in transaction_ids}
        return {mark_id: int(mark) for mark_id, mark in marks.items() if mark is not None}


def _newest_checkpoint(names: Sequence[str], version: int) -> tuple[int, list[str]]:
    """Return the version of the newest whole checkpoint and its files; -1 and none without one."""
    parts: dict[tuple[int, int], list[str]] = {}
    for match in filter(None, map(_CHECKPOINT.fullmatch, names)):
        at, total = int(match[1]), int(match[2] or 1)
        if at <= version:
            parts.setdefault((at, total), []).append(match[0])
    # Of several that are whole any will do.
    whole = {at: files[:total] for (at, total), files in parts.items() if len(files) >= total}
    newest = max(whole, default=-1)
    return newest, whole.get(newest, [])


def _marks(filesystem: pa_fs.FileSystem, path: str, wanted: pa.Array) -> dict[str, int]:
    """Read the marks of the wanted transactions from one file of the log."""
    with filesystem.open_input_file(path) as source:
        stored = _of_parquet(source) if path.endswith(".parquet") else _of_lines(source.read())
    marks = stored.filter(pc.is_in(stored["appId"], value_set=wanted))
    return dict(zip(marks["appId"].to_pylist(), marks["version"].to_pylist(), strict=True))


def _of_parquet(source: Any) -> pa.Table:
    file = pq.ParquetFile(source)
    if "txn" not in file.schema_arrow.names:
        return _table([])
    rows = file.read(["txn.appId", "txn.version"])["txn"].drop_null()
    columns = [pc.struct_field(rows, name) for name in ("appId", "version")]
    return pa.table([columns[0].cast(pa.string()), columns[1]], names=["appId", "version"])


def _of_lines(content: bytes) -> pa.Table:
    actions = (json.loads(line) for line in content.splitlines() if b'"txn"' in line)
    return _table([action["txn"] for action in actions if action.get("txn")])


def _table(marks: Sequence[Mapping[str, Any]]) -> pa.Table:
    schema = pa.schema([("appId", pa.string()), ("version", pa.int64())])
    rows = [{name: mark[name] for name in schema.names} for mark in marks]
    return pa.Table.from_pylist(rows, schema=schema)


def _seconds(interval: str) -> float:
    text = interval.strip().lower().removeprefix("interval").strip()
    if _PERIOD.sub("", text).strip():
        return 0.0
    return sum(int(number) * _UNIT_S[unit] for number, unit in _PERIOD.findall(text))


def _again(read: Callable[[], Result]) -> Result:
    """Read again after a failure: beside fast writers a reader can meet a gap in the log."""
    for attempt in range(1, _ATTEMPTS):
        try:
            return read()
        except (DeltaError, OSError):
            time.sleep(_PAUSE_S * attempt)
    return read()


@contextmanager
def _by_kind(name: str) -> Iterator[None]:
    """Tell only the kind of an error: its words may hold a location with its credentials."""
    try:
        yield
    except (DeltaError, OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        problem = f"cannot be read ({type(error).__name__}); check its location and its rights"
        raise StorageError(name, problem) from None


# --- a table of a database ---------------------------------------------------------------------


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
        """Return DONE or FENCED of those that have either; one statement per 10,000 ids."""
        outcomes: dict[str, int] = {}
        with self._connected() as connection:
            for first in range(0, max(1, len(transaction_ids)), STATEMENT_IDS):
                chunk = transaction_ids[first : first + STATEMENT_IDS]
                rows = connection.execute(self._select(chunk)).all()
                outcomes |= {str(key): _OUTCOMES[says] for key, says in rows if says in _OUTCOMES}
        return outcomes

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
        """Tell only the kind of an error: its words may hold the URL."""
        from sqlalchemy.exc import SQLAlchemyError

        try:
            yield
        except (SQLAlchemyError, OSError, ValueError, ImportError) as error:
            text = problem.format(kind=_kind(error), variable=self._place.variable)
            raise StorageError(str(self._place), text) from None


def _engine(place: DatabaseMarkers) -> Engine:
    try:
        from sqlalchemy import create_engine
        from sqlalchemy.exc import SQLAlchemyError
        from sqlalchemy.pool import NullPool
    except ImportError as error:
        problem = "SQLAlchemy is not installed, and a database URL needs it"
        raise EnvironmentProblemError(problem, step_for_extra("database")) from error
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
    """Raise StorageError for a missing SQLite file: connecting would make it."""
    file = engine.url.database
    if engine.dialect.name != "sqlite" or not file or file.startswith((":memory:", "file:")):
        return
    if not Path(file).exists():
        raise StorageError(str(place), "is not there; check the path in the URL")


def _kind(error: BaseException) -> str:
    return type(getattr(error, "orig", None) or error).__name__
