"""Reads the state of one delayed message, before and after the claim of a recall. Read-only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from txmq.errors import NotRecalledError, ProducerGroupMismatchError
from txmq.message.ids import message_id
from txmq.message.lifecycle import (
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
from txmq.store.known import KnownReader, known_by_message, no_transaction
from txmq.store.logs import unknown_key
from txmq.store.settled import delayed_messages

if TYPE_CHECKING:
    from txmq.store.store import Store


@dataclass(frozen=True, slots=True)
class MessageStanding:
    """The state of a transaction, and of one of its messages if that message is delayed."""

    state: TransactionState
    delivery: DeliveryState | None


class RecallCheck:
    """Reads the state of a message, with table handles of its own. Not safe for several threads."""

    def __init__(self, store: Store) -> None:
        """Open nothing yet."""
        self._store, self._logs = store, store.tables.logs()

    def is_recalled(self, transaction_id: str, sequence: int, producer_group: str) -> bool:
        """Tell whether it is recalled already; False if it can be recalled. 0 commits.

        Raises: NotRecalledError if it cannot be recalled; else as `standing`.
        """
        standing = self.standing(transaction_id, sequence, producer_group)
        problem = recall_problem(standing)
        if problem:
            state = standing.delivery or standing.state
            raise NotRecalledError(message_id(transaction_id, sequence), state.value, problem)
        return standing.delivery is DeliveryState.RECALLED

    def standing(self, transaction_id: str, sequence: int, producer_group: str) -> MessageStanding:
        """Read the state of the message by all claims that are durable now; 0 commits.

        Raises: TransactionNotFoundError, ProducerGroupMismatchError, StorageError.
        """
        read = partial(self._standing, transaction_id, sequence, producer_group)
        return self._logs.consistent(read)

    def _standing(self, transaction_id: str, sequence: int, producer_group: str) -> MessageStanding:
        ids = pa.array([transaction_id], pa.string())
        facts = KnownReader(self._logs).of(transaction_id)
        delayed = delayed_messages(self._logs.half, self._logs.schedule, ids)
        if delayed.num_rows:
            # A row of the schedule proves a COMMIT.
            facts = known_by_message(facts, {"life": 0, **delayed.slice(0, 1).to_pylist()[0]})
        group = facts.producer_group
        if facts.state is None or group is None:
            raise no_transaction(self._store, transaction_id)
        if group != producer_group:
            raise ProducerGroupMismatchError(transaction_id, group, producer_group)
        ended = self._ended(ids)
        if sequence in ended:
            return MessageStanding(facts.state, ended[sequence])
        state, committed = self._committed(ids, facts.halves or Halves(group, None, 0))
        if committed is None or sequence not in delayed["sequence"].to_pylist():
            return MessageStanding(state, None)
        return MessageStanding(state, self._delivery(ids, committed, sequence))

    def _committed(self, ids: pa.Array, halves: Halves) -> tuple[TransactionState, Claim | None]:
        """Return the state of the transaction, and the COMMIT that took effect."""
        settled = self._logs.settled
        for fact in settled.facts_of(ids).to_pylist():
            if fact["state"] == TransactionState.COMMITTED.value:
                group, version, ordinal = halves.producer_group, fact["op_version"], fact["ordinal"]
                commit = Claim("", ClaimKind.COMMIT, group, version, ordinal)
                return TransactionState.COMMITTED, commit
        before = settled.standings(ids).get(ids[0].as_py(), PENDING)
        standing, new_facts = fold(self._claims(ids), halves, Standing(before.state, before.life))
        commits = [fact.claim for fact in new_facts if fact.state is TransactionState.COMMITTED]
        return standing.state, commits[0] if commits else None

    def _delivery(self, ids: pa.Array, committed: Claim, sequence: int) -> DeliveryState:
        states, _ = fold_deliveries(self._claims(ids), committed, {sequence}, {})
        return states.get(sequence, DeliveryState.SCHEDULED)

    def _ended(self, ids: pa.Array) -> dict[int, DeliveryState]:
        """Read the settled deliveries and recalls; they outlive the rows of the messages."""
        return {
            sequence: DeliveryState(row["state"])
            for row in self._logs.settled.deliveries_of(ids).to_pylist()
            for sequence in row["sequences"]
        }

    def _claims(self, ids: pa.Array) -> list[Claim]:
        """Return the claims about the transaction that are not settled yet.

        Raises: StorageError if one of them is signed by an unknown key.
        """
        transaction_id = ids[0].as_py()
        claims, doubts = self._logs.unsettled_claims([transaction_id])
        if transaction_id in doubts:
            raise unknown_key(transaction_id, doubts[transaction_id])
        return claims[transaction_id]


def recall_problem(standing: MessageStanding) -> str | None:
    """Return why a message cannot be recalled; None if it can be, or is recalled already."""
    if standing.state is not TransactionState.COMMITTED:
        state = f"its transaction is not committed ({standing.state.value})"
        return f"cannot be recalled: {state}; roll an open transaction back instead"
    match standing.delivery:
        case None:
            return "cannot be recalled: it is not a delayed message of its transaction"
        case DeliveryState.DELIVERED:
            return "cannot be recalled: it was due and is delivered"
    return None
