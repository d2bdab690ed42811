"""Open and discarded transactions as values, for operators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from txmq.lifecycle import Halves, TransactionState
from txmq.message.ids import transaction_time_ms
from txmq.results import Plain


@dataclass(frozen=True, slots=True)
class OpenTransaction(Plain):
    """A transaction without a final end.

    Attributes:
        age_s: the time since the moment in its id; None where the id has none.
        check_times: how many checks were counted in this life.
        next_check: when its listener is asked next; None where it is not asked, or where that
            time is long past and was not read.
        is_due: whether its listener is asked in the next round.
        reason: why the last check brought no end, such as NO_LISTENER, BUSY or TIMEOUT; None
            before the first check, and where the listener gave UNKNOWN without a reason.
        problem: MISSING or CONFLICT where a COMMIT would not take effect, else None.
    """

    transaction_id: str
    producer_group: str
    state: TransactionState
    life: int
    age_s: float | None
    check_times: int
    next_check: datetime | None
    is_due: bool
    reason: str | None
    problem: str | None


@dataclass(frozen=True, slots=True)
class DiscardedTransaction(Plain):
    """A transaction that is not checked any more; its messages are dead letters.

    `discarded_at` and `reason` come from the claim that discarded it.
    """

    transaction_id: str
    producer_group: str
    life: int
    check_times: int
    discarded_at: datetime | None
    reason: str | None


def open_row(row: Mapping[str, Any], halves: Halves | None, now_ms: int) -> OpenTransaction:
    """A row of `open_transactions` as a value."""
    state = TransactionState(row["state"])
    is_pending = state is TransactionState.PENDING
    return OpenTransaction(
        transaction_id=row["transaction_id"],
        producer_group=row["producer_group"],
        state=state,
        life=row["life"],
        age_s=_age_s(row["transaction_id"], now_ms),
        check_times=row["check_times"],
        next_check=row["deadline"] if is_pending else None,
        is_due=row["is_due"],
        reason=row["reason"],
        problem=row["problem"] if halves is None else halves.problem,
    )


def discarded_row(row: Mapping[str, Any], claim: Mapping[str, Any]) -> DiscardedTransaction:
    """A row of `open_transactions` and the claim that discarded it as a value."""
    return DiscardedTransaction(
        transaction_id=row["transaction_id"],
        producer_group=row["producer_group"],
        life=row["life"],
        check_times=row["check_times"],
        discarded_at=claim.get("op_timestamp"),
        reason=claim.get("reason"),
    )


def life_key(row: Mapping[str, Any]) -> tuple[str, str, int]:
    """The key of one life of one transaction."""
    return row["transaction_id"], row["producer_group"], row["life"]


def _age_s(transaction_id: str, now_ms: int) -> float | None:
    try:
        return max(0.0, (now_ms - transaction_time_ms(transaction_id)) / 1000)
    except ValueError:
        # A program other than txmq may have written a half with any id.
        return None
