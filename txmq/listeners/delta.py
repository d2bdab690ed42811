"""A listener that answers by itself where the local transaction is a write to a Delta table."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from txmq.clock import Clock, SystemClock
from txmq.listeners.outcomes import outcome_table
from txmq.listeners.protocol import ages_s
from txmq.message.message import LocalTransactionState
from txmq.user_data.delta_marker import DONE, MarkedTable

# A marker is forgotten some time after its retention; nearer than this, nobody can tell.
RETENTION_MARGIN_S = 3600.0
MARKED = "its marker is in the table"
NOT_YET = "its marker is not in the table yet"
MAYBE_FORGOTTEN = "the table may have forgotten its marker (delta.setTransactionRetentionDuration)"
IS_FENCED = "its marker is not in the table and was fenced"


class DeltaListener:
    """COMMIT where the marker is in the table; else a fence is put there first, then ROLLBACK.

    So a local transaction that is still on its way cannot land after it was rolled back: its
    write changes nothing, and its producer's `commit()` says so. The marker is put on the write
    by `transaction.delta_options()`, `delta_sql()` or `delta_rs()`; of several tables that one
    local transaction writes, it belongs on the last one.

    Args:
        table: the location of the user's table.
        storage_options: as delta-rs takes them.
        rollback_after_s: UNKNOWN instead of a fence while a transaction is younger.

    Reads: the table's log. Writes: fences, one commit a round, none where nothing is undecided.
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
        """Open nothing yet."""
        self.table, self.storage_options = table, dict(storage_options or {})
        self._marked = MarkedTable("the local transactions' table", table, storage_options)
        self._rollback_after_s = rollback_after_s
        self._clock: Clock = clock or SystemClock()
        # A call that hangs is followed by one in another thread.
        self._lock = threading.Lock()

    def check_local_transactions_arrow(self, heads: pa.Table) -> pa.Table:
        """OUTCOMES of all heads. Raises: StorageError."""
        with self._lock:
            return self._outcomes(heads)

    def _outcomes(self, heads: pa.Table) -> pa.Table:
        ids = heads["transaction_id"].combine_chunks()
        old_s = pa.array(ages_s(heads, self._clock))
        retention_s = self._marked.refresh().marker_retention_s
        too_young = pc.less(old_s, self._rollback_after_s)
        too_old = pc.greater(old_s, _forgets_after_s(retention_s))
        is_undecided = pc.or_(too_young, too_old)
        marks = self._marked.markers(ids.filter(is_undecided).to_pylist())
        marks |= self._marked.fence(ids.filter(pc.invert(is_undecided)).to_pylist())
        reasons = pc.if_else(too_old, MAYBE_FORGOTTEN, NOT_YET).to_pylist()
        rows = [
            (each, *_answer(marks.get(each), reason))
            for each, reason in zip(ids.to_pylist(), reasons, strict=True)
        ]
        return outcome_table(rows)


def _forgets_after_s(retention_s: float | None) -> float:
    return float("inf") if retention_s is None else retention_s - RETENTION_MARGIN_S


def _answer(mark: int | None, reason: str) -> tuple[str, str]:
    if mark is None:
        return LocalTransactionState.UNKNOWN.value, reason
    if mark == DONE:
        return LocalTransactionState.COMMIT.value, MARKED
    return LocalTransactionState.ROLLBACK.value, IS_FENCED
