"""The markers of local transactions in a user's Delta table, read and fenced by Spark itself.

It serves tables that no file can fence: by their name in a catalog, managed by it, on storage for
which txmq has no key, with features that txmq does not know. A fence is an append without rows
that carries the identifier and the number of the marker. Of the two, Delta keeps the first one and
passes over the other, or refuses it; `userMetadata` in DESCRIBE HISTORY says which one stands
(decision 0066). All of it are options of writes, and no settings, so it runs on Spark Connect and
on serverless compute.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Self

from txmq.delta.actions import BY_TIME, EMPTY_COMMIT, RESTORE
from txmq.errors import LocalTransactionError, StorageError, StoreNotFoundError, shown
from txmq.ground.fail_points import FailPoint, reached
from txmq.user_data.delta_inbox import batch_said
from txmq.user_data.delta_marker import MISSING_TABLE, PastCommit, is_name_in_catalog
from txmq.user_data.markers import (
    DONE,
    FENCED,
    Outcome,
    Restore,
    RestoresBack,
    done_by,
    fence_options,
    fenced_by,
    retention_s,
    undone_text,
)
from txmq.user_data.s3_log_store import check_log_store, is_committed_by_service

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The second commits of all fences take as long again, and a listener has 10 s by default.
FENCING_S = 2.5
# The history is read from its end: so many commits, then more, then all.
HISTORY_STEPS: Sequence[int | None] = (50, 1_000, 20_000, None)
# By so much may the clock of a producer differ from the times in the history.
CLOCKS_DIFFER_MS = 3_600_000
# A table may be made so much after a transaction began, by another clock.
MADE_LATER_MS = 60_000
# These carry the identifier besides the words; others, such as TRUNCATE, the words alone.
MARKED_OPERATIONS = frozenset(
    {"WRITE", "MERGE", "UPDATE", "DELETE", "CREATE TABLE AS SELECT",
     "CREATE OR REPLACE TABLE AS SELECT", "REPLACE TABLE AS SELECT"}
)  # fmt: skip
UNCLEAR = (
    "the table has its mark, and no commit in its history says whether it is a marker or a fence "
    "(delta.logRetentionDuration, or a write with a userMetadata of its own); look whether the "
    "change is there, then txmq resolve"
)
MADE_LATER = (
    "the table was made after the transaction began, so another one may have had its name; look "
    "whether the change was made there, then txmq resolve"
)
UNKNOWN_NAME = (
    "the catalog of this session has no Delta table {}; who writes it and who answers for it need "
    "the same catalog (that of local_session() ends with its process: give the path there)"
)
_COLUMNS = (
    "version",
    "unix_millis(timestamp) AS time_ms",
    "operation",
    "coalesce(userMetadata, '') AS said",
    "operationParameters['version'] AS restored_to",
)
_PART = re.compile(r"`[^`]+`|\w+", re.ASCII)
_IDENTITY = "DELTA_IDENTITY_COLUMNS_EXPLICIT_INSERT_NOT_SUPPORTED"
_NO_TABLE = {
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_ONLY_OPERATION",
    "DELTA_TABLE_ONLY_OPERATION",
    "EXPECT_TABLE_NOT_VIEW.NO_ALTERNATIVE",
    "PATH_NOT_FOUND",
    "SCHEMA_NOT_FOUND",
    "TABLE_OR_VIEW_NOT_FOUND",
}


class SparkMarkedTable:
    """The markers and fences of a user's Delta table, by Spark. Not safe for several threads."""

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        location: str,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open nothing yet; error texts use `name`."""
        self.location = location
        self._spark, self._name = spark, name
        self._table = quoted(location)
        self._monotonic_s = monotonic_s
        self._is_checked = False

    def refresh(self) -> Self:
        """Return the object itself: each look reads the newest history."""
        return self

    def check_markable(self) -> None:
        """Look whether Spark can read the table, and overwrites no other commit there; 0 commits.

        Raises: StoreNotFoundError, UnsupportedPlaceError, StorageError.
        """
        if self._is_checked:
            return
        with self._errors("read"):
            detail = self._spark.sql(f"DESCRIBE DETAIL {self._table}").collect()[0]
        # Neither a catalog nor Databricks lets a commit be overwritten.
        is_managed = "catalogManaged" in detail["tableFeatures"]
        if not is_managed and not is_committed_by_service(detail["location"]):
            check_log_store(self._spark, detail["location"])
        self._is_checked = True

    def is_done(self, transaction_id: str) -> bool | None:
        """Tell by the history whether the local transaction is there; see `DeltaMarkers`."""
        standing = self._standing({transaction_id: None}).of(transaction_id)
        if standing is None:
            return None
        if standing.undone_by is not None:
            problem = undone_text(standing.undone_by)
            raise LocalTransactionError(transaction_id, self.location, problem)
        return standing.mark == DONE

    def outcomes(self, born_ms: Mapping[str, int], to_fence: Collection[str]) -> dict[str, Outcome]:
        """Look for the markers, and fence those of `to_fence` without one; see `DeltaMarkers`.

        It begins no fence after FENCING_S, but one always: the others have no outcome.
        Commits: two for each fence. A retry writes what is missing of a fence.

        Raises: StoreNotFoundError, UnsupportedPlaceError, StorageError.
        """
        standings = self._standing(born_ms)
        missing = [key for key in to_fence if standings.of(key) is None]
        made_later = {key for key in missing if standings.is_made_after(born_ms[key])}
        fenced = self._fence_in_time([key for key in missing if key not in made_later])
        if fenced:
            standings = self._standing(born_ms)
        left = set(missing) - made_later - fenced
        self._finish([key for key in born_ms if standings.is_fenced(key)])
        reasons = dict.fromkeys(fenced, UNCLEAR) | dict.fromkeys(made_later, MADE_LATER)
        return {key: standings.outcome(key, reasons.get(key)) for key in born_ms if key not in left}

    @property
    def marker_retention_s(self) -> float | None:
        """The time after which Delta may forget a marker; None if it keeps them for ever."""
        with self._errors("read"):
            rows = self._spark.sql(f"SHOW TBLPROPERTIES {self._table}").collect()
        return retention_s({row["key"]: row["value"] for row in rows})

    # --- fences -----------------------------------------------------------------------------------

    def _fence_in_time(self, transaction_ids: Sequence[str]) -> set[str]:
        """Fence one after the other while there is time; return those that were tried."""
        if transaction_ids:
            self.check_markable()
        fenced, end_s = set[str](), self._monotonic_s() + FENCING_S
        for transaction_id in transaction_ids:
            if fenced and self._monotonic_s() >= end_s:
                break
            self._fence(transaction_id)
            fenced.add(transaction_id)
        return fenced

    def _fence(self, transaction_id: str) -> None:
        """Put a fence where no mark is; if a marker or another fence was first, nothing happens."""
        try:
            self._append_nothing(fence_options(transaction_id, DONE))
        except StorageError:
            # Delta refuses the second one of two that are committed at once.
            if self._standing({transaction_id: None}).of(transaction_id) is None:
                raise
        reached(FailPoint.FENCE_COMMITTED)

    def _finish(self, transaction_ids: Sequence[str]) -> None:
        """Raise the numbers of fences to 2, so that who reads marks by files needs no history."""
        for transaction_id in transaction_ids:
            # Spark passes over it where it was done before.
            self._append_nothing(fence_options(transaction_id, FENCED))
            reached(FailPoint.FENCE_RAISED)

    def _append_nothing(self, options: Mapping[str, str]) -> None:
        from pyspark.errors import AnalysisException

        with self._errors("write"):
            try:
                self._append(self._no_rows(), options)
            except AnalysisException as error:
                if error.getCondition() != _IDENTITY:
                    raise
                # A table fills such columns itself; those that may be null need not be given.
                rows = self._no_rows()
                needed = [field.name for field in rows.schema.fields if not field.nullable]
                self._append(rows.select(*needed), options)

    def _no_rows(self) -> DataFrame:
        return self._spark.table(self._table).where("false")

    def _append(self, rows: DataFrame, options: Mapping[str, str]) -> None:
        rows.writeTo(self._table).options(**options).append()

    # --- the history ------------------------------------------------------------------------------

    def _standing(self, born_ms: Mapping[str, int | None]) -> Standings:
        """Read the history backwards, until all are found or it is older than these."""
        births = list(born_ms.values())
        known = [birth for birth in births if birth is not None]
        begin_ms = min(known) - CLOCKS_DIFFER_MS if len(known) == len(births) > 0 else 0
        for limit in HISTORY_STEPS:
            commits = self._history(limit)
            standings = Standings.of_history(commits, born_ms)
            is_whole = limit is None or len(commits) < limit
            if is_whole or not standings.missing or commits[-1].time_ms < begin_ms:
                break
        return standings

    @property
    def _missing(self) -> str:
        if is_name_in_catalog(self.location):
            return UNKNOWN_NAME.format(self.location)
        return MISSING_TABLE.format(self.location)

    def _history(self, limit: int | None) -> list[PastWrite]:
        newest = "" if limit is None else f" LIMIT {limit}"
        with self._errors("read"):
            history = self._spark.sql(f"DESCRIBE HISTORY {self._table}{newest}")
            return [PastWrite(*row) for row in history.selectExpr(*_COLUMNS).collect()]

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        """Turn an error of Spark into a StorageError that says what could not be done."""
        try:
            yield
        except _errors_of_spark() as error:
            condition = error.getCondition() if hasattr(error, "getCondition") else None
            if condition in _NO_TABLE:
                raise StoreNotFoundError(self._name, self._missing) from error
            kind = condition or type(error).__name__
            said = (str(error).strip().splitlines() or [kind])[0]
            problem = f"{self.location}: Spark could not {verb} it ({kind}: {shown(said)})"
            raise StorageError(self._name, problem) from error


class SparkBatchMarks(SparkMarkedTable):
    """The marks of micro-batches in a user's Delta table, by what their writes say of themselves.

    A write whose `userMetadata` the user replaced is not known; Delta passes over its batch all the
    same when it comes again.
    """

    def reopen(self) -> Self:
        """Look at the newest history from now on."""
        self.check_markable()
        self._steps, self._is_whole = iter(HISTORY_STEPS), False
        self._writes = self._history(next(self._steps))
        return self

    @property
    def version(self) -> int:
        """The version of the table that is looked at."""
        return self._writes[0].version

    def mark(self, name: str) -> int | None:
        """Return the number of the last batch; None where the history has none."""
        numbers = (past.commit.marks.get(name) for past in self.commits_back() if past.commit)
        return next((number for number in numbers if number is not None), None)

    def may_have(self, is_wanted: Callable[[str], bool]) -> bool:  # noqa: ARG002 - of the protocol
        """Return true: the history alone shows them."""
        return True

    def commits_back(self) -> Iterator[PastCommit]:
        """Yield the commits from the newest one that is looked at backwards."""
        restores = RestoresBack()
        for write in self._writes_back():
            undone_by = restores.undone_by(write.version, write.target)
            commit = replace(EMPTY_COMMIT, marks=batch_said(write.said), user_metadata=write.said)
            yield PastCommit(write.version, commit, undone_by)

    def _writes_back(self) -> Iterator[PastWrite]:
        """Read the history in steps, and keep what was read for the next walk."""
        count = 0
        while True:
            yield from self._writes[count:]
            count = len(self._writes)
            if self._is_whole:
                return
            limit, newest = next(self._steps), self.version
            writes = self._history(limit)
            self._is_whole = limit is None or len(writes) < limit
            # Others may have committed since.
            self._writes = [write for write in writes if write.version <= newest]


class PastWrite(NamedTuple):
    """A commit in the history, as _COLUMNS."""

    version: int
    time_ms: int
    operation: str
    said: str
    restored_to: str | None

    @property
    def target(self) -> int | None:
        """The version to which it took the table back, or BY_TIME; None if it is no RESTORE."""
        if self.operation != RESTORE:
            return None
        return BY_TIME if self.restored_to is None else int(self.restored_to)


class Standing(NamedTuple):
    """Who stands in a table for a transaction: its marker or a fence; the first one counts."""

    mark: int
    undone_by: Restore | None = None


class Standings(NamedTuple):
    """What the history says of some transactions."""

    found: Mapping[str, Standing]
    missing: frozenset[str]
    oldest: PastWrite | None

    @classmethod
    def of_history(cls, commits: Sequence[PastWrite], wanted: Collection[str]) -> Self:
        """Read them from commits, the newest one first."""
        found, restores, ids = dict[str, Standing](), RestoresBack(), frozenset(wanted)
        for commit in commits:
            undone_by = restores.undone_by(commit.version, commit.target)
            done = done_by(commit.said) if commit.operation in MARKED_OPERATIONS else []
            # An older commit replaces what a newer one said.
            found |= dict.fromkeys(ids.intersection(done), Standing(DONE, undone_by))
            found |= dict.fromkeys(ids.intersection(fenced_by(commit.said)), Standing(FENCED))
        return cls(found, ids.difference(found), commits[-1] if commits else None)

    def of(self, transaction_id: str) -> Standing | None:
        """Return who stands there for a transaction; None for nobody."""
        return self.found.get(transaction_id)

    def is_fenced(self, transaction_id: str) -> bool:
        """Tell whether a fence stands there."""
        standing = self.of(transaction_id)
        return standing is not None and standing.mark == FENCED

    def is_made_after(self, born_ms: int) -> bool:
        """Tell whether the table is clearly younger than a transaction."""
        oldest = self.oldest
        is_first = oldest is not None and oldest.version == 0
        return is_first and oldest is not None and oldest.time_ms > born_ms + MADE_LATER_MS

    def outcome(self, transaction_id: str, reason: str | None) -> Outcome:
        """Return the outcome; `reason` says why there is none where nobody stands there."""
        standing = self.of(transaction_id)
        if standing is None:
            return Outcome(None, reason)
        if standing.undone_by is not None:
            return Outcome(None, undone_text(standing.undone_by))
        return Outcome(standing.mark)


def quoted(location: str) -> str:
    """Write a path, or the name of a table in a catalog, as Spark reads it in every place."""
    if not is_name_in_catalog(location):
        return f"delta.`{location.replace('`', '``')}`"
    return ".".join(f"`{part.strip('`')}`" for part in _PART.findall(location))


def _errors_of_spark() -> tuple[type[Exception], ...]:
    from pyspark.errors import PySparkException

    try:
        # PySpark hands on some errors of Java as they are; a client of Spark Connect has no Java.
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    except ImportError:
        return (PySparkException,)
    return PySparkException, Py4JError
