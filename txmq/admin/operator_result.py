"""The effect of an operator's claim, and of giving up what cannot be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import ClaimWithoutEffectError
from txmq.lifecycle import FINAL_STATES, ClaimKind, ClaimSource, TransactionState
from txmq.results import plain
from txmq.store.set_aside import read_set_aside
from txmq.store.settled import last_facts
from txmq.store.store import Store


@dataclass(frozen=True, slots=True)
class OperatorResult:
    """The effect of an operator's claim; without `apply` the effect that it would have.

    Attributes:
        kind: COMMIT, ROLLBACK or RESUME.
        reason: the reason with the name of the OS user, as the row holds it.
        state_before, state_after: the state before and after the claim.
        life: how often the transaction has been resumed after the claim.
        source: who wrote the claim that led to `state_after`.
        messages: how many messages the transaction has in each topic.
        problem: MISSING or CONFLICT where the half messages must be repaired first; of a
            transaction that is given up, the file that cannot be read.
        is_needed: false where the transaction already has this end; then nothing is written.
        op_version: the commit that holds the row; None where none was written.
    """

    transaction_id: str
    producer_group: str
    kind: ClaimKind
    reason: str
    state_before: TransactionState
    state_after: TransactionState
    life: int
    source: str
    messages: Mapping[str, int]
    problem: str | None = None
    is_needed: bool = False
    op_version: int | None = None

    @property
    def is_written(self) -> bool:
        """Whether the row is in the op log."""
        return self.op_version is not None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**plain(self), "is_written": self.is_written}


def planned_give_up(store: Store, transaction_id: str, reason: str) -> OperatorResult:
    """What it would lead to if the messages that cannot be read were given up; 0 commits.

    Raises: ClaimWithoutEffectError, StorageError.
    """
    entry = read_set_aside(store.tables).transactions.get(transaction_id)
    if entry is None:
        next_step = "only what txmq status shows as set aside can be given up"
        raise ClaimWithoutEffectError(transaction_id, "a give-up", "not set aside", next_step)
    logs, ids = store.tables.logs(), pa.array([transaction_id], pa.string())
    logs.refresh()
    rows, _ = logs.half.readable_summaries(ids)
    facts = last_facts(logs.settled.facts_of(ids)).to_pylist()
    before = TransactionState(facts[0]["state"]) if facts else TransactionState.PENDING
    groups = pc.unique(rows["producer_group"]).drop_null().to_pylist()
    known = [*sorted(groups), entry.producer_group, logs.settled.group_of(transaction_id)]
    return OperatorResult(
        transaction_id=transaction_id,
        producer_group=next(group for group in [*known, ""] if group is not None),
        kind=ClaimKind.ROLLBACK,
        reason=reason,
        state_before=before,
        state_after=before if before in FINAL_STATES else TransactionState.ROLLED_BACK,
        life=facts[0]["life"] if facts else 0,
        source=ClaimSource.OPERATOR.value,
        messages=messages_by_topic(rows),
        problem=entry.problem,
        is_needed=entry.giver_up is None,
    )


def messages_by_topic(rows: pa.Table) -> dict[str, int]:
    """How many messages the rows of one transaction hold for each topic."""
    rows = rows.filter(pc.is_valid(rows["real_topic"]))
    # A retried append wrote its rows twice; they count once.
    messages = rows.group_by(["sequence", "real_topic"]).aggregate([])
    counts = messages["real_topic"].value_counts().to_pylist()
    return {count["values"]: count["counts"] for count in sorted(counts, key=lambda c: c["values"])}
