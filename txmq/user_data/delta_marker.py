"""The markers of local transactions in a user's Delta table, read and fenced by its files.

A fence has number 2, and the check commits it: one commit for all that are fenced at once. Spark
skips a write whose number is not above the number in the table. A write that is on its way loses
the commit to the fence (decision 0012). What no file can fence is fenced by Spark (decision 0066).

RESTORE takes the rows of a table back, and leaves the marks. So a marker is believed only if no
RESTORE undid the commit that it is in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.parquet as pq

from txmq.delta.actions import DAMAGES, EMPTY_COMMIT, CommitActions, commit_actions
from txmq.delta.checkpoints import checkpoint_path
from txmq.delta.log_files import log_files
from txmq.delta.pinned import PinnedTable
from txmq.delta.until_committed import until_committed
from txmq.errors import (
    LocalTransactionError,
    StorageError,
    StoreNotFoundError,
    UnsupportedPlaceError,
    shown,
)
from txmq.ground.sessions import spark_room
from txmq.user_data.markers import (
    DONE,
    FENCED,
    DeltaMarkers,
    Outcome,
    Restore,
    RestoresBack,
    fence_text,
    fenced_by,
    retention_s,
    undone_text,
)
from txmq.user_data.s3_log_store import is_committed_by_service

if TYPE_CHECKING:
    from txmq.ground.sessions import SparkSession

MISSING_TABLE = (
    "{} is no Delta table; give the table that the local transaction writes, by its path or as "
    "schema.table of a catalog, or make it first: a table that is not there cannot be fenced"
)
FENCE_ATTEMPTS = 20
# For this many ids or fewer, one look-up for each costs less than reading the log.
LOOKED_UP_SINGLY = 50
# `catalog.schema.table` or `schema.table`: Spark knows it, and no reader of files does.
_NAME_IN_A_CATALOG = re.compile(r"(\w+|`[^`]+`)(\.(\w+|`[^`]+`)){1,2}", re.ASCII)
_INFO = b'"commitInfo"'


class PastCommit(NamedTuple):
    """A commit of the table, None if the log does not have it, and the RESTORE that undid it."""

    version: int
    commit: CommitActions | None
    undone_by: Restore | None


class MarkedTable(PinnedTable):
    """The markers and fences of a user's Delta table. Not safe for several threads."""

    missing = MISSING_TABLE

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
            markers = self._marks_of_log(frozenset(transaction_ids).__contains__)
            if markers is not None:
                return markers
        marks = {key: self.mark(key) for key in transaction_ids}
        return {key: mark for key, mark in marks.items() if mark is not None}

    def is_done(self, transaction_id: str) -> bool | None:
        """Tell whether the local transaction is in the pinned version; None without a marker.

        Reads: the table's log. Commits: 0.

        Returns: True if it is, False if it is fenced.

        Raises:
            LocalTransactionError: a RESTORE undid it.
            StorageError: the table cannot be read.
        """
        outcome = self._outcome_of([transaction_id], self.markers([transaction_id]))[transaction_id]
        if outcome.reason:
            raise LocalTransactionError(transaction_id, self.location, outcome.reason)
        return None if outcome.mark is None else outcome.mark == DONE

    def outcomes(self, born_ms: Mapping[str, int], to_fence: Collection[str]) -> dict[str, Outcome]:
        """Look for the markers, and fence those of `to_fence` without one: one commit for all.

        Raises: CommitConflictError, UnsupportedTableError, StorageError.
        """
        marks = self.markers([key for key in born_ms if key not in to_fence])
        return self._outcome_of(born_ms, marks | self.fence(list(to_fence)))

    def _outcome_of(
        self, transaction_ids: Collection[str], marks: Mapping[str, int]
    ) -> dict[str, Outcome]:
        """Look at the commits of what seems to be done: were they undone, or are they fences?"""
        standing = self.undone([key for key, mark in marks.items() if mark == DONE])
        return {key: standing.get(key, Outcome(marks.get(key))) for key in transaction_ids}

    def undone(self, transaction_ids: Collection[str]) -> dict[str, Outcome]:
        """Return the outcomes of those ids with number 1 whose change is not there after all.

        A RESTORE undid it, or the commit is a fence by Spark. Of a commit that is older than the
        log it counts only whether a RESTORE leads behind the beginning of the log.
        Reads: commits backwards, up to the oldest of these.
        """
        pending, outcomes = set(transaction_ids), dict[str, Outcome]()
        for past in self.commits_back() if pending else ():
            marked = past.commit.marks.keys() & pending if past.commit else pending
            fences = marked.intersection(
                fenced_by(past.commit.user_metadata if past.commit else "")
            )
            outcomes |= dict.fromkeys(fences, Outcome(FENCED))
            if past.undone_by:
                problem = Outcome(None, undone_text(past.undone_by))
                outcomes |= dict.fromkeys(marked - fences, problem)
            pending = pending - marked
            if not pending:
                break
        return outcomes

    def commits_back(self) -> Iterator[PastCommit]:
        """Yield the commits from the pinned one backwards, but for the files that they name.

        Where log clean-up has taken the first ones, the last one stands for all of them.
        """
        restores = RestoresBack()
        for version in range(self.version, -1, -1):
            commit = self._past(version)
            restored_to = commit.restored_to if commit else None
            yield PastCommit(version, commit, restores.undone_by(version, restored_to))
            if commit is None:
                return

    def _past(self, version: int) -> CommitActions | None:
        """Read a commit; it is empty if another program wrote another shape."""
        content = self.folder.commit_bytes(version)
        if content is None:
            return None
        # A commit may name thousands of files.
        lines = [line for line in content.splitlines() if b'"txn"' in line or _INFO in line]
        try:
            return commit_actions(b"\n".join(lines))
        except DAMAGES:
            return EMPTY_COMMIT

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
                self.commit_marks(fences, said=fence_text(fences))
            return markers | fences

        return until_committed(self, compute, FENCE_ATTEMPTS)

    @property
    def marker_retention_s(self) -> float | None:
        """The time after which Delta may forget a marker; None if it keeps them for ever."""
        return retention_s(self.properties())

    def _marks_of_log(self, is_wanted: Callable[[str], bool]) -> dict[str, int] | None:
        """Read the marks with such names, from the newest checkpoint and the commits after it.

        None if one of these commits is not in the log.
        """
        files, version = log_files(self.folder), self.version
        base = max((number for number in files.checkpoints if number <= version), default=-1)
        commits = range(base + 1, version + 1)
        if any(number not in files.commits_ms for number in commits):
            return None
        stored = self._of_checkpoint(base) if base >= 0 else ()
        later = (_of_commit(self.folder.commit_bytes(number) or b"") for number in commits)
        marks = chain(stored, chain.from_iterable(later))
        return {name: number for name, number in marks if is_wanted(name)}

    def _of_checkpoint(self, version: int) -> Iterator[tuple[str, int]]:
        path = checkpoint_path(version)
        with self.folder.filesystem.open_input_file(path) as source:
            stored = pq.ParquetFile(source).read(["txn"])["txn"].combine_chunks()
        marks = stored.drop_null()
        names, numbers = marks.field("appId").to_pylist(), marks.field("version").to_pylist()
        return zip(names, numbers, strict=True)


def is_name_in_catalog(location: str) -> bool:
    """Tell a name such as `catalog.schema.table` from a path; a folder of that name is a path."""
    return bool(_NAME_IN_A_CATALOG.fullmatch(location)) and not Path(location).exists()


def _check_location(location: str) -> None:
    if is_name_in_catalog(location):
        problem = (
            "is the name of a table in a catalog, and only a DeltaListener, a DeltaInbox or a "
            "transaction with a Spark session takes it (spark=); or give its location, which "
            f"DESCRIBE DETAIL shows, or ./{location} for a folder"
        )
        raise UnsupportedPlaceError(f"table {shown(location)}", problem)


def _of_commit(content: bytes) -> Iterator[tuple[str, int]]:
    lines = [line for line in content.splitlines() if b'"txn"' in line]
    # One call for all lines: the fences of a round may be 100,000 lines.
    actions: list[dict[str, Any]] = json.loads(b"[" + b",".join(lines) + b"]")
    marks = (action["txn"] for action in actions if action.get("txn"))
    return ((str(mark["appId"]), int(mark["version"])) for mark in marks)


def markers_of(
    name: str,
    location: str,
    storage_options: Mapping[str, str] | None = None,
    spark: SparkSession | None = None,
) -> DeltaMarkers:
    """Choose who reads and fences a table: txmq by its files, or Spark.

    Spark does it for a name in a catalog, and, where there is a session, for a table that txmq
    cannot open or fence. Both see what the other wrote, so nothing depends on the choice.

    Args:
        name: of the table, for error texts.
        location: a path, or the name of a table in a catalog.
        storage_options: as delta-rs takes them.
        spark: a session that may read and write the table.

    Raises: UnsupportedPlaceError for a name in a catalog without a session.
    """
    if spark is not None and is_name_in_catalog(location):
        return _by_spark(spark, name, location)
    by_files = MarkedTable(name, location, storage_options)
    if spark is None:
        return by_files
    if is_committed_by_service(location):
        return _by_spark(spark, name, location)
    try:
        by_files.check_markable()
    except StoreNotFoundError:
        return by_files
    except StorageError:
        return _by_spark(spark, name, location)
    return by_files


def _by_spark(spark: SparkSession, name: str, location: str) -> DeltaMarkers:
    markers: DeltaMarkers = spark_room().marked_table(spark, name, location)
    return markers
