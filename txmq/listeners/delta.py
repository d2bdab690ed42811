"""A listener for writes to a Delta table: it looks for their markers, and writes fences."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.credentials import storage_options_of
from txmq.ground.clock import Clock, SystemClock
from txmq.ground.handles import OfOneProcess
from txmq.listeners.protocol import LEFT, ages_s, outcome_table
from txmq.message.message import LocalTransactionState
from txmq.user_data.delta_marker import markers_of
from txmq.user_data.markers import DONE, DeltaMarkers, Outcome
from txmq.user_data.s3_log_store import active_session

if TYPE_CHECKING:
    from txmq.ground.sessions import SparkSession

# Delta forgets a marker at a cleanup after its retention; within this margin it may be gone.
RETENTION_MARGIN_S = 3600.0
_TABLE_NAME = "the local transactions' table"
MARKED = "its marker is in the table"
NOT_YET = "its marker is not in the table yet"
MAYBE_FORGOTTEN = "the table may have forgotten its marker (delta.setTransactionRetentionDuration)"
IS_FENCED = "its marker is not in the table and was fenced"


class DeltaListener(OfOneProcess):
    """Answers COMMIT if the marker is in the table; else writes a fence and answers ROLLBACK.

    Where a RESTORE took the table back behind the write with the marker, it answers UNKNOWN with
    that reason, and an operator decides. Rows that are deleted by other means are the user's own
    matter.

    `transaction.delta_options()`, `delta_sql()` or `delta_rs()` puts the marker on the write of
    the local transaction. If a local transaction writes several tables, the marker belongs on the
    last write. After a fence, a local transaction that is still on its way cannot land: its write
    changes nothing, and `commit()` of its producer raises LocalTransactionFencedError
    (decision 0012).

    txmq writes the fences into the files of the table, all of a round in one commit. Where it
    cannot, Spark writes them, one after the other: for a table named in a catalog or managed by
    it, on storage for which there is no key here, with features that txmq does not know (decision
    0066).

    Args:
        table: the location of the user's table, or its name in a catalog.
        storage_options: as delta-rs takes them.
        spark: a session that may read and write the table; by default that of the service that
            asks, or the active one.
        rollback_after_s: a transaction without a marker is UNKNOWN, and is not fenced, below this
            age.
        clock: the time for ages.

    Example:
        >>> DeltaListener("/lake/orders")
        >>> DeltaListener("main.sales.orders", spark=spark)
    """

    head_columns = ("transaction_id", "born_timestamp")

    def __init__(
        self,
        table: str,
        *,
        storage_options: Mapping[str, str] | None = None,
        rollback_after_s: float = 0.0,
        clock: Clock | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        """Open nothing."""
        self.table, self.storage_options = table, storage_options_of(table, storage_options)
        self.spark = spark
        self._markers: DeltaMarkers | None = None
        self._rollback_after_s = rollback_after_s
        self._clock: Clock = clock or SystemClock()
        # While a call hangs, the next call comes from another thread.
        self._lock = threading.Lock()

    def check_local_transactions_arrow(self, heads: pa.Table) -> pa.Table:
        """Look up the markers of all heads, and fence the transactions without one.

        Reads: the table's log. Commits: one to the user's table for all fences together, by Spark
        two for each; none if no marker is missing. A retry reads the same markers and fences.

        Args:
            heads: transaction_id and born_timestamp.

        Returns: transaction_id, state and reason, one row for each head. A transaction without a
            marker is UNKNOWN if it is older than `delta.setTransactionRetentionDuration` of the
            table, less an hour: the table may have forgotten its marker. One that Spark has no
            time to fence in this call has no state and the reason LEFT: the next round asks again.

        Raises:
            StorageError: the location is no Delta table, or cannot be read or written.
            UnsupportedTableError: a feature of the table, which it names, allows no fence by files,
                and there is no Spark session.
            UnsupportedPlaceError: a name in a catalog, and no session; or Spark overwrites commits.
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
            LocalTransactionError: RESTORE took the table back behind it.
            StorageError: the location is no Delta table, or cannot be read.
        """
        with self._lock:
            return self._opened().is_done(transaction_id)

    def _outcomes(self, heads: pa.Table) -> pa.Table:
        ids = heads["transaction_id"].combine_chunks()
        age_s = pa.array(ages_s(heads, self._clock))
        markers = self._opened()
        is_too_young = pc.less(age_s, self._rollback_after_s)
        is_too_old = pc.greater(age_s, _forgets_after_s(markers.marker_retention_s))
        is_only_read = pc.or_(is_too_young, is_too_old)
        to_fence = ids.filter(pc.invert(is_only_read)).to_pylist()
        born_ms = (
            heads["born_timestamp"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
        )
        births = dict(zip(ids.to_pylist(), born_ms.to_pylist(), strict=True))
        outcomes = markers.outcomes(births, to_fence)
        reasons = pc.if_else(is_too_old, MAYBE_FORGOTTEN, NOT_YET).to_pylist()
        return outcome_table(
            (key, *_answer(outcomes.get(key), reason))
            for key, reason in zip(ids.to_pylist(), reasons, strict=True)
        )

    def use_session(self, spark: SparkSession) -> None:
        """Take the session of the service that asks, if the listener was given none."""
        self.spark = self.spark or spark

    def _opened(self) -> DeltaMarkers:
        """Return the table at its newest version; who fences it is chosen once."""
        if self._markers is None:
            spark = self.spark or active_session()
            options = self.storage_options
            self._markers = markers_of(_TABLE_NAME, self.table, options, spark)
        return self._markers.refresh()


def _forgets_after_s(retention_s: float | None) -> float:
    return float("inf") if retention_s is None else retention_s - RETENTION_MARGIN_S


def _answer(outcome: Outcome | None, reason: str) -> tuple[str | None, str]:
    if outcome is None:
        return None, LEFT
    if outcome.mark is None:
        return LocalTransactionState.UNKNOWN.value, outcome.reason or reason
    if outcome.mark == DONE:
        return LocalTransactionState.COMMIT.value, MARKED
    return LocalTransactionState.ROLLBACK.value, IS_FENCED
