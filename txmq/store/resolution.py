"""The one look after a claim was written: which end does the transaction really have?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import AlreadyResolvedError
from txmq.lifecycle import (
    Claim,
    ClaimKind,
    ClaimSource,
    Halves,
    Standing,
    TransactionState,
    end_asked_for,
    fold,
)
from txmq.store.half import HalfLog
from txmq.store.op import OpLog
from txmq.store.settled import SettledLog, last_facts


@dataclass(frozen=True, slots=True)
class Resolution:
    """The state of a transaction, who brought it about, and how often it was resumed."""

    state: TransactionState
    source: str
    life: int = 0

    def confirm(self, transaction_id: str, asked: ClaimKind) -> None:
        """Return if this is the end asked for, else raise what it is instead.

        Raises: AlreadyResolvedError.
        """
        if self.state is not end_asked_for(asked):
            raise AlreadyResolvedError(transaction_id, self.state.value, self.source)


class Resolver:
    """Reads the logs for the callers of one commit together; writes nothing."""

    def __init__(self, half: HalfLog, op: OpLog, settled: SettledLog) -> None:
        """`op` must be the log that the claims were appended through: its handle shows them."""
        self._half, self._op, self._settled = half, op, settled

    def resolutions(self, ends: Sequence[tuple[str, ClaimKind]]) -> list[Resolution]:
        """The end of each transaction that its producer has just claimed one for; 0 commits.

        Where every claim names the same end, that is the answer; else the settled row decides,
        or the order of the claims that are not settled yet.
        """
        contested = self._contested([transaction_id for transaction_id, _ in ends])
        decided = self._decided(contested) if contested else {}
        return [decided.get(own_id) or _UNCONTESTED[kind] for own_id, kind in ends]

    def resolution(self, transaction_id: str) -> Resolution:
        """Where one transaction stands now."""
        return self.resolutions_of([transaction_id])[transaction_id]

    def resolutions_of(self, transaction_ids: Sequence[str]) -> dict[str, Resolution]:
        """Where these stand now, by all that is durable; 0 commits."""
        self._op.table.refresh()
        return self._decided(transaction_ids)

    def _contested(self, transaction_ids: Sequence[str]) -> list[str]:
        rows = self._op.rows_about(pa.array(transaction_ids, pa.string()))
        rows = rows.filter(pc.not_equal(rows["kind"], ClaimKind.UNKNOWN.value))
        kinds = rows.group_by("transaction_id").aggregate([("kind", "count_distinct")])
        several = kinds.filter(pc.greater(kinds["kind_count_distinct"], 1))
        return [str(transaction_id) for transaction_id in several["transaction_id"].to_pylist()]

    def _decided(self, transaction_ids: Sequence[str]) -> dict[str, Resolution]:
        ids = pa.array(transaction_ids, pa.string())
        self._settled.table.refresh()
        settled = _settled(last_facts(self._settled.facts_of(ids)))
        claims = self._op.claims_between(
            self._settled.mark, self._op.table.version, transaction_ids
        )
        self._half.table.refresh()
        halves = self._half.halves_of(transaction_ids)
        return {
            transaction_id: _resolution(
                settled.get(transaction_id), claims[transaction_id], halves.get(transaction_id)
            )
            for transaction_id in transaction_ids
        }


_UNCONTESTED = {
    kind: Resolution(end_asked_for(kind), ClaimSource.PRODUCER.value)
    for kind in (ClaimKind.COMMIT, ClaimKind.ROLLBACK)
}


def _settled(facts: pa.Table) -> dict[str, tuple[Standing, str]]:
    return {
        row["transaction_id"]: (
            Standing(TransactionState(row["state"]), row["life"]),
            row["source"],
        )
        for row in facts.to_pylist()
    }


def _resolution(
    settled: tuple[Standing, str] | None, claims: Iterable[Claim], halves: Halves | None
) -> Resolution:
    standing, source = settled or (Standing(), ClaimSource.PRODUCER.value)
    if halves is None:
        return Resolution(standing.state, source, standing.life)
    standing, facts = fold(claims, halves, standing)
    source = facts[-1].claim.source.value if facts else source
    return Resolution(standing.state, source, standing.life)
