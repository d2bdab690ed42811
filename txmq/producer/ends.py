"""Commits of ends, and the look at what each end led to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txmq.clock import Clock
from txmq.fail_points import FailPoint, reached
from txmq.lifecycle import ClaimKind, ClaimSource
from txmq.store.claim_writer import ClaimWriter
from txmq.store.op import end_table
from txmq.store.resolution import EndReader, Resolution

if TYPE_CHECKING:
    from txmq.store.store import Store

Ends = Sequence[tuple[str, ClaimKind]]


class EndCommits:
    """Ends that one producer group asks for. Not safe for several threads."""

    def __init__(self, store: Store, producer_group: str, clock: Clock) -> None:
        """Open nothing yet; `producer_group` is the stored name."""
        logs = store.tables.logs()
        self.reader = EndReader(logs)
        self._claims = ClaimWriter(logs.op, "producer", store.config.half_queues)
        self._group, self._clock = producer_group, clock
        # Heads carry the session, and halves go to the same queue as their ends.
        self.session, self.queue_id = self._claims.session, self._claims.queue_id

    def commit(self, ends: Ends, *, operator_reason: str | None = None) -> list[Resolution]:
        """Claim these ends: one commit.

        Args:
            ends: transactions of this group, each with COMMIT or ROLLBACK.
            operator_reason: makes them claims of an operator, with this reason.

        Returns:
            Where each transaction stands after the commit; another end may have been first.

        Raises: as ClaimWriter.append_table; StorageError also where the claims are written but the
            look after them failed.
        """
        rows = end_table(
            ends, producer_group=self._group, now_ms=self._clock.now_ms(),
            source=ClaimSource.OPERATOR if operator_reason else ClaimSource.PRODUCER,
            reason=operator_reason,
        )  # fmt: skip
        reached(FailPoint.END_READY)
        self._claims.append_table(rows)
        reached(FailPoint.END_COMMITTED)
        resolutions = self.reader.ends_after_claims(ends)
        reached(FailPoint.END_CONFIRMED)
        return resolutions
