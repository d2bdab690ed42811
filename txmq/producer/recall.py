"""Where one delayed message stands: what a recall asks before and after its claim. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from txmq.errors import ProducerGroupMismatchError, TransactionNotFoundError
from txmq.lifecycle import (
    PENDING,
    Claim,
    ClaimKind,
    DeliveryState,
    Halves,
    Standing,
    TransactionState,
    fold,
    fold_deliveries,
)
from txmq.store.schedule import delayed_messages

if TYPE_CHECKING:
    from txmq.store.store import Store


@dataclass(frozen=True, slots=True)
class MessageStanding:
    """The state of a transaction, and of one of its messages if that is a delayed one."""

    state: TransactionState
    delivery: DeliveryState | None


def recall_problem(standing: MessageStanding) -> str | None:
    """Why a message cannot be recalled, if so; one that is recalled already is no problem."""
    if standing.state is not TransactionState.COMMITTED:
        ended = "its transaction is not committed"
        return f"cannot be recalled: {ended} ({standing.state.value}); an open one is rolled back"
    match standing.delivery:
        case None:
            return "cannot be recalled: it is not a delayed message of its transaction"
        case DeliveryState.DELIVERED:
            return "cannot be recalled: it was due and is delivered"
    return None


class RecallCheck:
    """Reads where a message stands, with handles of its own. Not safe for several threads."""

    def __init__(self, store: Store) -> None:
        """Open nothing yet."""
        self._logs = store.tables.logs()

    def standing(self, transaction_id: str, sequence: int, producer_group: str) -> MessageStanding:
        """Where the message stands by all claims that are durable now; 0 commits.

        Raises: TransactionNotFoundError, ProducerGroupMismatchError, StorageError.
        """
        ids = pa.array([transaction_id], pa.string())
        self._logs.refresh()
        halves = self._logs.half.halves(transaction_id)
        delayed = delayed_messages(self._logs.half, self._logs.schedule, ids)
        group = _owner(transaction_id, halves, delayed)
        if group != producer_group:
            raise ProducerGroupMismatchError(transaction_id, group, producer_group)
        state, committed = self._committed(ids, halves or Halves(group, 0, 0))
        if committed is None or sequence not in delayed["sequence"].to_pylist():
            return MessageStanding(state, None)
        return MessageStanding(state, self._delivery(ids, committed, sequence))

    def _committed(self, ids: pa.Array, halves: Halves) -> tuple[TransactionState, Claim | None]:
        """The state of the transaction, and the COMMIT that took effect."""
        settled = self._logs.settled
        facts = settled.facts_of(ids).to_pylist()
        known = [row for row in facts if row["state"] == TransactionState.COMMITTED.value]
        if known:
            row = known[0]
            return TransactionState.COMMITTED, _commit(
                halves.producer_group, row["op_version"], row["ordinal"]
            )
        before = settled.standings(ids).get(ids[0].as_py(), PENDING)
        standing, new = fold(self._claims(ids), halves, Standing(before.state, before.life))
        commits = [fact.claim for fact in new if fact.state is TransactionState.COMMITTED]
        return standing.state, commits[0] if commits else None

    def _delivery(self, ids: pa.Array, committed: Claim, sequence: int) -> DeliveryState:
        ended = {
            each: DeliveryState(row["state"])
            for row in self._logs.settled.deliveries_of(ids).to_pylist()
            for each in row["sequences"]
        }
        standing, _ = fold_deliveries(self._claims(ids), committed, {sequence}, ended)
        return standing.get(sequence, DeliveryState.SCHEDULED)

    def _claims(self, ids: pa.Array) -> list[Claim]:
        """Claims that are not settled yet."""
        own_id, op = ids[0].as_py(), self._logs.op
        claims = op.claims_between(self._logs.settled.mark, op.table.version, [own_id])
        return claims[own_id]


def _commit(producer_group: str, op_version: int, ordinal: int) -> Claim:
    return Claim("", ClaimKind.COMMIT, producer_group, op_version, ordinal)


def _owner(transaction_id: str, halves: Halves | None, delayed: pa.Table) -> str:
    if halves is not None:
        return halves.producer_group
    if not delayed.num_rows:
        raise TransactionNotFoundError(transaction_id)
    return str(delayed["producer_group"][0])
