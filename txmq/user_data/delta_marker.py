"""The marker of a local transaction in a user's Delta table, and the fence that takes its place.

A marker is Delta's own transaction identifier: its name is the transaction id, its number is 1, and
it is in the commit that changes the table. A fence has number 2, and the check commits it. Spark
skips a write whose number is not above the number in the table. A write that is on its way loses
the commit to the fence (decision 0012).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from txmq.delta.checkpoints import checkpoint_path
from txmq.delta.log_files import log_files
from txmq.delta.pinned import PinnedTable
from txmq.delta.until_committed import until_committed
from txmq.errors import UnsupportedPlaceError, shown

if TYPE_CHECKING:
    from txmq.ground.sessions import DataFrame, SparkSession

SqlStatement = Callable[..., "DataFrame"]

DONE = 1
FENCED = 2
FENCE_ATTEMPTS = 20
# For this many ids or fewer, one look-up for each costs less than reading the log.
LOOKED_UP_SINGLY = 50
RETENTION_PROPERTY = "delta.setTransactionRetentionDuration"
APP_ID_OPTION, VERSION_OPTION = "txnAppId", "txnVersion"
APP_ID_SETTING = "spark.databricks.delta.write.txnAppId"
VERSION_SETTING = "spark.databricks.delta.write.txnVersion"
_INTERVAL = re.compile(r"(?:interval\s+)?(\d+)\s+(second|minute|hour|day|week)s?", re.ASCII)
# `catalog.schema.table` or `schema.table`: Spark knows it, and no reader of files does.
_NAME_IN_A_CATALOG = re.compile(r"`?\w+`?(\.`?\w+`?){1,2}", re.ASCII)
_UNIT_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}


class MarkedTable(PinnedTable):
    """The markers and fences of a user's Delta table. Not safe for several threads."""

    missing = (
        "{} is no Delta table; give the table that the local transaction writes, or make it first: "
        "a table that is not there cannot be fenced"
    )

    def __init__(
        self, name: str, location: str, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Open nothing yet. Raises: UnsupportedPlaceError for a name in a catalog."""
        _check_location(location)
        super().__init__(name, location, storage_options)

    def markers(self, transaction_ids: Sequence[str]) -> dict[str, int]:
        """Read DONE or FENCED of the ids that have a marker or a fence, in the pinned version.

        Reads: the table's log. Commits: 0.
        """
        if len(transaction_ids) > LOOKED_UP_SINGLY:
            markers = self._read_log(frozenset(transaction_ids))
            if markers is not None:
                return markers
        marks = {key: self.mark(key) for key in transaction_ids}
        return {key: mark for key, mark in marks.items() if mark is not None}

    def fence(self, transaction_ids: Sequence[str]) -> dict[str, int]:
        """Fence the ids that have neither marker nor fence, all in one commit.

        After that no local transaction of a fenced id can land, even if it is on its way. If no id
        needs a fence, there is no commit. A retry returns the same.

        Returns:
            DONE or FENCED of each id.

        Raises:
            CommitConflictError: other writers won FENCE_ATTEMPTS times.
            StorageError: the table cannot be read or written.
        """

        def compute() -> dict[str, int]:
            # A write that came first may be a local transaction of these.
            markers = self.markers(transaction_ids)
            fences = {key: FENCED for key in transaction_ids if key not in markers}
            if fences:
                self.commit_marks(fences)
            return markers | fences

        return until_committed(self, compute, FENCE_ATTEMPTS)

    @property
    def marker_retention_s(self) -> float | None:
        """The time after which Delta may forget a marker; None if it keeps them for ever."""
        text = self.properties().get(RETENTION_PROPERTY)
        if text is None:
            return None
        interval = _INTERVAL.fullmatch(text.strip().lower())
        # An interval that cannot be read may be short: then no marker is missing for certain.
        return float(int(interval[1]) * _UNIT_S[interval[2]]) if interval else 0.0

    def _read_log(self, ids: frozenset[str]) -> dict[str, int] | None:
        """Read as `markers`, from the newest checkpoint and the commits after it.

        None if one of these commits is not in the log.
        """
        files, version = log_files(self.folder), self.version
        base = max((number for number in files.checkpoints if number <= version), default=-1)
        commits = range(base + 1, version + 1)
        if any(number not in files.commits_ms for number in commits):
            return None
        markers = dict(self._of_checkpoint(base, ids)) if base >= 0 else {}
        for number in commits:
            markers.update(_of_commit(self.folder.commit_bytes(number) or b"", ids))
        return markers

    def _of_checkpoint(self, version: int, ids: frozenset[str]) -> Iterator[tuple[str, int]]:
        path = checkpoint_path(version)
        with self.folder.filesystem.open_input_file(path) as source:
            stored = pq.ParquetFile(source).read(["txn"])["txn"].combine_chunks()
        marks = stored.drop_null()
        names, numbers = marks.field("appId").to_pylist(), marks.field("version").to_pylist()
        yield from _of_ids(zip(names, numbers, strict=True), ids)


def _check_location(location: str) -> None:
    if _NAME_IN_A_CATALOG.fullmatch(location) and not Path(location).exists():
        problem = (
            "is the name of a table in a catalog; give its location, which DESCRIBE DETAIL shows, "
            f"or ./{location} for a folder"
        )
        raise UnsupportedPlaceError(f"table {shown(location)}", problem)


def _of_commit(content: bytes, ids: frozenset[str]) -> Iterator[tuple[str, int]]:
    lines = [line for line in content.splitlines() if b'"txn"' in line]
    # One call for all lines: the fences of a round may be 100,000 lines.
    actions: list[dict[str, Any]] = json.loads(b"[" + b",".join(lines) + b"]")
    marks = (action["txn"] for action in actions if action.get("txn"))
    return _of_ids(((str(mark["appId"]), int(mark["version"])) for mark in marks), ids)


def _of_ids(marks: Iterable[tuple[str, int]], ids: frozenset[str]) -> Iterator[tuple[str, int]]:
    return (mark for mark in marks if mark[0] in ids)


def marker_options(transaction_id: str) -> dict[str, str]:
    """Return the options that put the marker on a Spark write."""
    return {APP_ID_OPTION: transaction_id, VERSION_OPTION: str(DONE)}


def marker_settings(transaction_id: str) -> dict[str, str]:
    """Return the session settings that put the marker on the next SQL statement that writes."""
    return {APP_ID_SETTING: transaction_id, VERSION_SETTING: str(DONE)}


class MarkedStatement:
    """`spark.sql` for one statement: Spark silently skips a second write with the same marker."""

    def __init__(self, spark: SparkSession, second: Exception) -> None:
        """Run nothing yet; a second call raises `second`."""
        self._spark, self._second = spark, second
        self._is_used = False

    def __call__(self, statement: str, args: Any = None) -> DataFrame:
        """Run the statement."""
        if self._is_used:
            raise self._second
        self._is_used = True
        return self._spark.sql(statement) if args is None else self._spark.sql(statement, args)
