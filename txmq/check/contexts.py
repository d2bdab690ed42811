"""Telling hooks what became of the ends that a check wrote (R89). Reads only."""

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
    # Nobody knew in time.
    ClaimKind.DISCARD.value: LocalTransactionState.UNKNOWN,
}
_COLUMNS = ["transaction_id", "kind", "producer_group", "source", "reason"]


class CheckHooks:
    """Tells of COMMIT, ROLLBACK and DISCARD claims of a check, once they are durable."""

    def __init__(self, hooks: Hooks, store: Store) -> None:
        """Open nothing yet."""
        self._hooks = hooks
        self._untold: deque[pa.Table] = deque()
        self._telling = threading.Lock()
        self._ends = EndReader(store.tables.logs())

    def written(self, claims: pa.Table) -> None:
        """Remember the ends among durable `claims`, as OP, until `tell`."""
        if self._hooks.hear_ends:
            is_end = pc.is_in(claims["kind"], value_set=pa.array(list(_ASKED)))
            self._untold.append(claims.select(_COLUMNS).filter(is_end))

    def tell(self) -> None:
        """Tell of each end that is remembered; another one may have been first.

        Not while the check lease is held: a slow hook would hold up other services.

        Reads: op, settled, half; nothing where no hook wants to know. Commits: 0.
        """
        with self._telling:
            while self._untold:
                self._tell(self._untold.popleft().to_pylist())

    def flush(self) -> None:
        """Tell what is left and let hooks write what they keep."""
        self.tell()
        self._hooks.flush()

    def _tell(self, rows: Sequence[Mapping[str, Any]]) -> None:
        found = self._found([row["transaction_id"] for row in rows])
        for row in rows:
            self._hooks.ended(_context(row, found.get(row["transaction_id"])))

    def _found(self, transaction_ids: Sequence[str]) -> Mapping[str, Resolution]:
        try:
            return self._ends.ends_of(transaction_ids)
        except TxmqError as error:
            # The claims are written; hooks may not stop the next ones.
            logger.warning("hooks are told of ends without their state: %s", error)
            return {}


def _context(row: Mapping[str, Any], found: Resolution | None) -> EndContext:
    return EndContext(
        producer_group=unwrapped(row["producer_group"]),
        namespace=namespace_of(row["producer_group"]),
        transaction_id=row["transaction_id"],
        asked=_ASKED[row["kind"]],
        source=row["source"] if found is None else found.source,
        from_check=True,
        state=None if found is None else found.state,
        reason=row["reason"],
    )
