"""Tells hooks of the ends that a check wrote (R89). Read-only."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import TxmqError
from txmq.hooks import EndContext, Hooks
from txmq.lifecycle import ClaimKind
from txmq.message.message import LocalTransactionState
from txmq.message.names import namespace_of, unwrapped
from txmq.store.resolution import EndReader, Resolution
from txmq.store.store import Store

logger = logging.getLogger(__name__)

_ASKED = {
    ClaimKind.COMMIT.value: LocalTransactionState.COMMIT,
    ClaimKind.ROLLBACK.value: LocalTransactionState.ROLLBACK,
    # All checks were answered UNKNOWN.
    ClaimKind.DISCARD.value: LocalTransactionState.UNKNOWN,
}
_COLUMNS = ["transaction_id", "kind", "producer_group", "source", "reason"]


class CheckHooks:
    """Tells hooks of durable COMMIT, ROLLBACK and DISCARD claims of a check."""

    def __init__(self, hooks: Hooks, store: Store) -> None:
        """Open nothing yet."""
        self._hooks = hooks
        self._queue: deque[pa.Table] = deque()
        self._lock = threading.Lock()
        self._ends = EndReader(store.tables.logs())

    def written(self, claims: pa.Table) -> None:
        """Queue the ends among durable `claims`, as OP, until `tell`."""
        if self._hooks.hear_ends:
            is_end = pc.is_in(claims["kind"], value_set=pa.array(list(_ASKED)))
            self._queue.append(claims.select(_COLUMNS).filter(is_end))

    def tell(self) -> None:
        """Tell the hooks of each queued end, with the state that the transaction has now.

        Do not call it while the check lease is held: a slow hook would delay other services.

        Reads: op, settled, half; nothing without hooks for ends. Commits: 0.
        """
        with self._lock:
            while self._queue:
                self._tell(self._queue.popleft().to_pylist())

    def flush(self) -> None:
        """Tell the hooks of the queued ends, then flush the hooks."""
        self.tell()
        self._hooks.flush()

    def _tell(self, rows: Sequence[Mapping[str, Any]]) -> None:
        resolutions = self._resolutions([row["transaction_id"] for row in rows])
        for row in rows:
            self._hooks.ended(_context(row, resolutions.get(row["transaction_id"])))

    def _resolutions(self, transaction_ids: Sequence[str]) -> Mapping[str, Resolution]:
        try:
            return self._ends.ends_of(transaction_ids)
        except TxmqError as error:
            # The claims are written; an error for hooks must not stop the next round.
            logger.warning("hooks are told of ends without their state: %s", error)
            return {}


def _context(row: Mapping[str, Any], resolution: Resolution | None) -> EndContext:
    return EndContext(
        producer_group=unwrapped(row["producer_group"]),
        namespace=namespace_of(row["producer_group"]),
        transaction_id=row["transaction_id"],
        asked=_ASKED[row["kind"]],
        source=row["source"] if resolution is None else resolution.source,
        from_check=True,
        state=None if resolution is None else resolution.state,
        reason=row["reason"],
    )
