"""What the logs still know of a transaction after retention took some of its rows.

Retention takes the halves of a transaction only after its final end, and its facts after its
halves, its claims and its rows of the schedule. So a transaction without halves has ended, or was
never there; its last fact says how if it is final. Without one a visible message proves a COMMIT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from txmq.lifecycle import FINAL_STATES, Halves, TransactionState
from txmq.store.logs import Logs
from txmq.store.resolution import EndReader, Resolution
from txmq.store.settled import FACT_COLUMNS, last_facts, without_deliveries

_COLUMNS = (*FACT_COLUMNS, "producer_group")


@dataclass(frozen=True, slots=True)
class Known:
    """A transaction as the logs show it.

    Attributes:
        state: None where nobody can tell: its facts are gone, or it was never there.
        source: who wrote the claim that led to that state; None where the state is None, or is
            known by a visible message alone.
        producer_group: None where no half, fact or message is left.
        halves: None where no half message is left.
        op_version: the commit of the op log that led to the state; None where it is not settled.
    """

    transaction_id: str
    state: TransactionState | None = None
    source: str | None = None
    life: int = 0
    producer_group: str | None = None
    halves: Halves | None = None
    op_version: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether a half or a final fact is left."""
        return self.state is not None


class KnownReader:
    """Reads what is known of transactions. Not safe for several threads."""

    def __init__(self, logs: Logs) -> None:
        """Open nothing yet."""
        self._logs, self._ends = logs, EndReader(logs)

    def of(self, transaction_id: str) -> Known:
        """What is known of one transaction; 0 commits."""
        return self.of_all([transaction_id])[transaction_id]

    def of_all(self, transaction_ids: Sequence[str]) -> dict[str, Known]:
        """What is known of each transaction, by the newest versions of the logs; 0 commits."""
        known = self._read(transaction_ids)
        if any(one.halves is None and not one.is_known for one in known.values()):
            # Settled is read before half; the end may have come, and the half gone, in between.
            known = self._read(transaction_ids)
        return known

    def _read(self, transaction_ids: Sequence[str]) -> dict[str, Known]:
        ends = self._ends.ends_of(transaction_ids)
        ids = pa.array(transaction_ids, pa.string())
        halves = self._logs.half.halves_of(transaction_ids)
        rows = self._logs.settled.table.rows_of("transaction_id", ids, _COLUMNS)
        facts = {
            row["transaction_id"]: row for row in last_facts(without_deliveries(rows)).to_pylist()
        }
        return {
            key: _by_halves(key, ends[key], halves[key], facts.get(key))
            if key in halves
            else _by_fact(key, facts.get(key))
            for key in transaction_ids
        }


def known_by_message(known: Known, row: Mapping[str, Any]) -> Known:
    """As `known`, else by a visible message or one of the schedule: only a COMMIT puts it there."""
    if known.is_known:
        return known
    return Known(
        known.transaction_id,
        TransactionState.COMMITTED,
        life=row["life"],
        producer_group=row["producer_group"],
    )


def _by_halves(
    transaction_id: str, end: Resolution, halves: Halves, fact: Mapping[str, Any] | None
) -> Known:
    is_settled = fact is not None and fact["state"] == end.state.value
    return Known(
        transaction_id,
        end.state,
        end.source,
        end.life,
        halves.producer_group,
        halves,
        fact["op_version"] if fact is not None and is_settled else None,
    )


def _by_fact(transaction_id: str, fact: Mapping[str, Any] | None) -> Known:
    if fact is None:
        return Known(transaction_id)
    state, group = TransactionState(fact["state"]), fact["producer_group"]
    if state not in FINAL_STATES:
        return Known(transaction_id, producer_group=group)
    return Known(
        transaction_id,
        state,
        fact["source"],
        fact["life"],
        group,
        op_version=fact["op_version"],
    )
