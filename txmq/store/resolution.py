"""Reads which end transactions have, for callers that have just claimed one."""

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
from txmq.store.logs import Logs
from txmq.store.settled import last_facts


@dataclass(frozen=True, slots=True)
class Resolution:
    """The state of a transaction, who caused it, and how often the transaction was resumed."""

    state: TransactionState
    source: str
    life: int = 0

    def confirm(self, transaction_id: str, asked: ClaimKind) -> None:
        """Check that this is the requested end. Raises: AlreadyResolvedError with the real end."""
        if self.state is not end_asked_for(asked):
            raise AlreadyResolvedError(transaction_id, self.state.value, self.source)


class EndReader:
    """Reads which end transactions have, settled or not. Not safe for several threads."""

    def __init__(self, logs: Logs) -> None:
        """Open nothing yet."""
        self._logs = logs

    def end_of(self, transaction_id: str) -> Resolution:
        """The state of one transaction now; 0 commits."""
        return self.ends_of([transaction_id])[transaction_id]

    def ends_of(self, transaction_ids: Sequence[str]) -> dict[str, Resolution]:
        """The states of these transactions now; 0 commits, and 0 reads without transactions."""
        return self._decided(transaction_ids) if transaction_ids else {}

    def ends_after_claims(self, ends: Sequence[tuple[str, ClaimKind]]) -> list[Resolution]:
        """The end of each transaction for which these claims were appended just now; 0 commits.

        The claims must have been appended through the op log of these `logs`, so that its handle
        shows them. If all claims about a transaction name the same end, that is its end. If they
        differ, the fact decides, or the order of the claims that are not settled yet.
        """
        decided = self.ends_of(self._contested([transaction_id for transaction_id, _ in ends]))
        return [decided.get(transaction_id) or _UNCONTESTED[kind] for transaction_id, kind in ends]

    def _contested(self, transaction_ids: Sequence[str]) -> list[str]:
        rows = self._logs.op.rows_about(pa.array(transaction_ids, pa.string()))
        rows = rows.filter(pc.not_equal(rows["kind"], ClaimKind.UNKNOWN.value))
        kinds = rows.group_by("transaction_id").aggregate([("kind", "count_distinct")])
        several = kinds.filter(pc.greater(kinds["kind_count_distinct"], 1))
        return [str(transaction_id) for transaction_id in several["transaction_id"].to_pylist()]

    def _decided(self, transaction_ids: Sequence[str]) -> dict[str, Resolution]:
        logs = self._logs
        logs.refresh()
        facts = logs.settled.facts_of(pa.array(transaction_ids, pa.string()))
        settled = _settled(last_facts(facts))
        claims = logs.unsettled_claims(transaction_ids)
        halves = logs.half.halves_of(transaction_ids)
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
