"""Reads which end transactions have, for callers that have just claimed one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import (
    AlreadyResolvedError,
    IncompleteTransactionError,
    TransactionForgottenError,
)
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
    """The state of a transaction, who caused it, and how often the transaction was resumed.

    Attributes:
        is_kept: whether any log still has a row that proves the state; false of a transaction that
            nobody has prepared, and of one whose rows retention has removed.
        halves: those that are durable, where they were looked up.
    """

    state: TransactionState
    source: str
    life: int = 0
    is_kept: bool = field(default=True, compare=False)
    halves: Halves | None = field(default=None, compare=False)

    def confirm(self, transaction_id: str, asked: ClaimKind) -> None:
        """Check that this is the requested end.

        Raises:
            AlreadyResolvedError: with the real end.
            IncompleteTransactionError: a COMMIT found halves missing or contradicting each other.
            TransactionForgottenError: nothing of the transaction is kept any more.
        """
        if self.state is end_asked_for(asked):
            return
        if self.state is TransactionState.INCOMPLETE and self.halves is not None:
            count = self.halves.message_count
            raise IncompleteTransactionError(transaction_id, count, self.halves.found)
        if not self.is_kept:
            raise TransactionForgottenError(transaction_id)
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
        if not transaction_ids:
            return {}
        return self._logs.consistent(lambda: self._decided(transaction_ids))

    def kept_ends_of(self, transaction_ids: Sequence[str]) -> dict[str, Resolution]:
        """As `ends_of`, without transactions of which no log keeps anything."""
        ends = self.ends_of(transaction_ids)
        return {transaction_id: end for transaction_id, end in ends.items() if end.is_kept}

    def ends_after_claims(
        self,
        ends: Sequence[tuple[str, ClaimKind]],
        doubtful: Collection[str] = (),
    ) -> list[Resolution]:
        """The end of each transaction for which these claims were appended just now; 0 commits.

        If all claims about a transaction name the same end, that is its end. If they differ, the
        fact decides, or the order of the claims that are not settled yet.

        Args:
            ends: the claims.
            doubtful: transactions that are contested, whose other claims may be gone, or whose
                halves may not be all there; facts, claims and halves are read for these.
        """
        decided = self.ends_of(list({*doubtful}))
        return [
            decided.get(transaction_id)
            # An enum computes its hash in Python, at each look into a dict.
            or (_COMMITTED if kind is ClaimKind.COMMIT else _UNCONTESTED[kind])
            for transaction_id, kind in ends
        ]

    def contested(self, transaction_ids: Sequence[str]) -> list[str]:
        """Those whose claims in the op log name different ends; 0 reads without transactions."""
        if not transaction_ids:
            return []
        self._logs.op.refresh()
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
_COMMITTED = _UNCONTESTED[ClaimKind.COMMIT]


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
        is_kept = settled is not None
        return Resolution(standing.state, source, standing.life, is_kept)
    standing, facts = fold(claims, halves, standing)
    source = facts[-1].claim.source.value if facts else source
    return Resolution(standing.state, source, standing.life, halves=halves)
