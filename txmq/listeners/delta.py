"""A listener for writes to a Delta table: it looks for their markers, and writes fences."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from txmq.ground.clock import Clock, SystemClock
from txmq.listeners.protocol import ages_s, outcome_table
from txmq.message.message import LocalTransactionState
from txmq.user_data.delta_marker import DONE, MarkedTable

# Delta forgets a marker at a cleanup after its retention; within this margin it may be gone.
RETENTION_MARGIN_S = 3600.0
MARKED = "its marker is in the table"
NOT_YET = "its marker is not in the table yet"
MAYBE_FORGOTTEN = "the table may have forgotten its marker (delta.setTransactionRetentionDuration)"
IS_FENCED = "its marker is not in the table and was fenced"


class DeltaListener:
    """Answers COMMIT if the marker is in the table; else writes a fence and answers ROLLBACK.

    `transaction.delta_options()`, `delta_sql()` or `delta_rs()` puts the marker on the write of
    the local transaction. If a local transaction writes several tables, the marker belongs on the
    last write. After a fence, a local transaction that is still on its way cannot land: its write
    changes nothing, and `commit()` of its producer raises LocalTransactionFencedError
    (decision 0012). The table may have features that Spark alone writes, such as row tracking and
    clustering (decision 0057); one whose commits go through a catalog is refused.

    Args:
        table: the location of the user's table.
        storage_options: as delta-rs takes them.
        rollback_after_s: a transaction without a marker is UNKNOWN, and is not fenced, below this
            age.
        clock: the time for ages.

    Example:
        >>> DeltaListener("/lake/orders")
    """

    head_columns = ("transaction_id", "born_timestamp")

    def __init__(
        self,
        table: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        rollback_after_s: float = 0.0,
        clock: Clock | None = None,
    ) -> None:
        """Open nothing. Raises: UnsupportedPlaceError for a name in a catalog."""
        self.table, self.storage_options = table, dict(storage_options or {})
        self._marked = MarkedTable("the local transactions' table", table, storage_options)
        self._rollback_after_s = rollback_after_s
        self._clock: Clock = clock or SystemClock()
        # While a call hangs, the next call comes from another thread.
        self._lock = threading.Lock()

    def check_local_transactions_arrow(self, heads: pa.Table) -> pa.Table:
        """Look up the markers of all heads, and fence the transactions without one.

        Reads: the table's log. Commits: one to the user's table for all fences together, none if
        no marker is missing. A retry reads the same markers and fences.

        Args:
            heads: transaction_id and born_timestamp.

        Returns: transaction_id, state and reason, one row for each head. A transaction without a
            marker is UNKNOWN if it is older than `delta.setTransactionRetentionDuration` of the
            table, less an hour: the table may have forgotten its marker.

        Raises:
            StorageError: the location is no Delta table, or cannot be read or written.
            UnsupportedTableError: a feature of the table, which it names, allows no fence.
            CommitConflictError: other writers won every attempt to write the fences.
        """
        with self._lock:
            return self._outcomes(heads)

    def marker_place(self) -> str:
        """Return the location of the table."""
        return self.table

    def is_marked(self, transaction_id: str) -> bool | None:
        """Tell whether the local transaction is in the table, by its marker; fence nothing.

        Its producer asks in `commit()`. Reads: the table's log. Commits: 0.

        Args:
            transaction_id: the id of the transaction.

        Returns: True if it is, False if it is fenced, None if there is neither.

        Raises:
            StorageError: the location is no Delta table, or cannot be read.
        """
        with self._lock:
            mark = self._marked.refresh().mark(transaction_id)
        return None if mark is None else mark == DONE

    def _outcomes(self, heads: pa.Table) -> pa.Table:
        ids = heads["transaction_id"].combine_chunks()
        age_s = pa.array(ages_s(heads, self._clock))
        retention_s = self._marked.refresh().marker_retention_s
        is_too_young = pc.less(age_s, self._rollback_after_s)
        is_too_old = pc.greater(age_s, _forgets_after_s(retention_s))
        is_only_read = pc.or_(is_too_young, is_too_old)
        marks = self._marked.markers(ids.filter(is_only_read).to_pylist())
        marks |= self._marked.fence(ids.filter(pc.invert(is_only_read)).to_pylist())
        reasons = pc.if_else(is_too_old, MAYBE_FORGOTTEN, NOT_YET).to_pylist()
        return outcome_table(
            (key, *_answer(marks.get(key), reason))
            for key, reason in zip(ids.to_pylist(), reasons, strict=True)
        )


def _forgets_after_s(retention_s: float | None) -> float:
    return float("inf") if retention_s is None else retention_s - RETENTION_MARGIN_S


def _answer(mark: int | None, reason: str) -> tuple[str, str]:
    if mark is None:
        return LocalTransactionState.UNKNOWN.value, reason
    if mark == DONE:
        return LocalTransactionState.COMMIT.value, MARKED
    return LocalTransactionState.ROLLBACK.value, IS_FENCED
