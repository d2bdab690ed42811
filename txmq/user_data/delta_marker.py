"""The marker of a local transaction in a user's Delta table, and the fence that takes its place.

A marker is Delta's own transaction identifier: name = transaction id, number 1, put there by the
very commit that changes the table. A fence has number 2 and comes from the check: Spark skips a
write whose number is not above what is there, and a write on its way loses to it (decision 0012).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from txmq.delta.log import LOG_FOLDER, log_files
from txmq.delta.pinned import PinnedTable, pause
from txmq.errors import CommitConflictError, CommitRefusedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SqlStatement = Callable[..., "DataFrame"]

DONE = 1
FENCED = 2
FENCE_ATTEMPTS = 20
# Up to so many, looking each up costs less than reading the log.
LOOKED_UP_SINGLY = 50
RETENTION_PROPERTY = "delta.setTransactionRetentionDuration"
APP_ID_OPTION, VERSION_OPTION = "txnAppId", "txnVersion"
APP_ID_SETTING = "spark.databricks.delta.write.txnAppId"
VERSION_SETTING = "spark.databricks.delta.write.txnVersion"
_INTERVAL = re.compile(r"(?:interval\s+)?(\d+)\s+(second|minute|hour|day|week)s?", re.ASCII)
_UNIT_S = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}


def marker_options(transaction_id: str) -> dict[str, str]:
    """Options of a Spark write that put the marker on it."""
    return {APP_ID_OPTION: transaction_id, VERSION_OPTION: str(DONE)}


def marker_settings(transaction_id: str) -> dict[str, str]:
    """Session settings that put the marker on the next SQL statement that writes."""
    return {APP_ID_SETTING: transaction_id, VERSION_SETTING: str(DONE)}


class MarkedTable(PinnedTable):
    """A table of the user's, as far as markers go. Not safe for several threads."""

    missing = "is no Delta table; markers are looked for where the local transaction writes"

    def markers(self, transaction_ids: Sequence[str]) -> dict[str, int]:
        """DONE or FENCED of those that have either, in the version this object is pinned to.

        Reads: the table's log. Commits: 0.
        """
        if len(transaction_ids) > LOOKED_UP_SINGLY:
            found = self._read_log(frozenset(transaction_ids))
            if found is not None:
                return found
        marks = {each: self.mark(each) for each in transaction_ids}
        return {each: mark for each, mark in marks.items() if mark is not None}

    def fence(self, transaction_ids: Sequence[str]) -> dict[str, int]:
        """DONE or FENCED of each: those that had neither are fenced, all in one commit.

        After it no local transaction of these can land any more, whatever is on its way.
        Raises: CommitConflictError where others win all the time; StorageError.
        """
        for attempt in range(FENCE_ATTEMPTS):
            known = self.refresh().markers(transaction_ids)
            fences = {each: FENCED for each in transaction_ids if each not in known}
            try:
                if fences:
                    self.commit_marks(fences)
            except CommitRefusedError:
                # A local transaction was faster than its fence.
                pause(attempt)
            else:
                return known | fences
        raise CommitConflictError(self.name, f"local transactions won {FENCE_ATTEMPTS} times")

    @property
    def marker_retention_s(self) -> float | None:
        """After how long Delta may forget markers; None where it keeps them for ever."""
        text = self.properties().get(RETENTION_PROPERTY)
        if text is None:
            return None
        found = _INTERVAL.fullmatch(text.strip().lower())
        # What cannot be read may be anything: then no marker is missing for certain.
        return float(int(found[1]) * _UNIT_S[found[2]]) if found else 0.0

    def _read_log(self, wanted: frozenset[str]) -> dict[str, int] | None:
        """As `markers`, from the newest checkpoint and the commits after it; None without both."""
        files, version = log_files(self), self.version
        base = max((at for at in files.checkpoints if at <= version), default=-1)
        commits = range(base + 1, version + 1)
        if any(at not in files.commits_ms for at in commits):
            return None
        found = dict(self._of_checkpoint(base, wanted)) if base >= 0 else {}
        for at in commits:
            found.update(_of_commit(self.commit_bytes(at) or b"", wanted))
        return found

    def _of_checkpoint(self, version: int, wanted: frozenset[str]) -> Iterator[tuple[str, int]]:
        path = f"{LOG_FOLDER}/{version:020d}.checkpoint.parquet"
        with self.filesystem.open_input_file(path) as source:
            stored = pq.ParquetFile(source).read(["txn"])["txn"].combine_chunks()
        yield from _wanted(_pairs(stored.drop_null()), wanted)


def _pairs(stored: pa.StructArray) -> Iterator[tuple[str, int]]:
    names, numbers = stored.field("appId"), stored.field("version")
    return zip(names.to_pylist(), numbers.to_pylist(), strict=True)


def _of_commit(content: bytes, wanted: frozenset[str]) -> Iterator[tuple[str, int]]:
    lines = [line for line in content.splitlines() if b'"txn"' in line]
    # One call for all: a fence of a round is a hundred thousand lines.
    actions: list[dict[str, Any]] = json.loads(b"[" + b",".join(lines) + b"]")
    marks = (action["txn"] for action in actions if action.get("txn"))
    return _wanted(((str(mark["appId"]), int(mark["version"])) for mark in marks), wanted)


def _wanted(marks: Iterable[tuple[str, int]], wanted: frozenset[str]) -> Iterator[tuple[str, int]]:
    return (mark for mark in marks if mark[0] in wanted)


class OneStatement:
    """`spark.sql`, once: Spark would skip a second statement with the same mark in silence."""

    def __init__(self, spark: SparkSession, second: Exception) -> None:
        """`second` is raised by a second call."""
        self._spark, self._second = spark, second
        self._is_used = False

    def __call__(self, statement: str, args: Any = None) -> DataFrame:
        """Run the statement."""
        if self._is_used:
            raise self._second
        self._is_used = True
        return self._spark.sql(statement) if args is None else self._spark.sql(statement, args)


@contextmanager
def session_settings(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """Settings for a block, and what they were before after it."""
    before: dict[str, str | None] = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            spark.conf.unset(name) if earlier is None else spark.conf.set(name, earlier)
