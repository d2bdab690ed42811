"""What may come of a question to a listener, as a value and as columns."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from txmq.errors import EnvironmentProblemError, ListenerError
from txmq.message.message import LocalTransactionState


class Reason(enum.StrEnum):
    """Why a claim of the check was written, where the listener's answer alone does not say it."""

    CHECK_MAX = "CHECK_MAX"
    NO_LISTENER = "NO_LISTENER"
    BUSY = "BUSY"
    TIMEOUT = "TIMEOUT"
    UNREADABLE = "UNREADABLE"
    NOT_DUE = "NOT_DUE"
    NOT_ACKNOWLEDGED = "NOT_ACKNOWLEDGED"
    LATE = "LATE"
    NO_ANSWER = "NO_ANSWER"
    CONTRADICTION = "CONTRADICTION"
    NO_STATE = "NO_STATE"


# Nobody was asked, so it does not count; an operator may have to help.
UNASKED_REASONS = (Reason.NO_LISTENER, Reason.BUSY, Reason.UNREADABLE)


logger = logging.getLogger(__name__)

MAX_REASON_CHARACTERS = 200
# A null state: no listener has seen the question.
OUTCOMES = pa.schema(
    [
        pa.field("transaction_id", pa.string()),
        pa.field("state", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
# Waits for OUTCOMES.
Collect = Callable[[], pa.Table]
_REASONS = {reason.value: reason for reason in Reason}


@dataclass(frozen=True, slots=True)
class Answered:
    """A question that reached its listener: it counts, whatever came of it."""

    state: LocalTransactionState
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class NotReached:
    """A question that no listener has seen: it does not count."""

    reason: Reason


Outcome = Answered | NotReached
TIMED_OUT = Answered(LocalTransactionState.UNKNOWN, Reason.TIMEOUT)
BUSY = NotReached(Reason.BUSY)


def outcome_of(row: Mapping[str, Any]) -> Outcome:
    """State and reason of a row of OUTCOMES, as the rules want it."""
    if row["state"] is None:
        return NotReached(_REASONS[row["reason"]])
    return Answered(LocalTransactionState(row["state"]), row["reason"])


def outcome_table(rows: Iterable[tuple[str, str | None, str | None]]) -> pa.Table:
    """OUTCOMES from id, state and reason of each question."""
    listed = list(rows)
    columns = zip(*listed, strict=True) if listed else [[] for _ in OUTCOMES]
    return pa.table([pa.array(column, pa.string()) for column in columns], OUTCOMES)


def same_outcome(transaction_ids: Any, outcome: Outcome) -> pa.Table:
    """One outcome for many questions."""
    state = outcome.state.value if isinstance(outcome, Answered) else None
    count = len(transaction_ids)
    columns = [transaction_ids, *(_repeated(text, count) for text in (state, outcome.reason))]
    return pa.table(columns, OUTCOMES)


def raised(error: BaseException) -> Answered:
    """An exception of a listener: its type alone, for its text may hold a body (R81)."""
    if isinstance(error, ListenerError | EnvironmentProblemError):
        # Our own words.
        return Answered(LocalTransactionState.UNKNOWN, str(error)[:MAX_REASON_CHARACTERS])
    return Answered(LocalTransactionState.UNKNOWN, f"the listener raised {type(error).__name__}")


def warn_of_open(group: str, count: int) -> None:
    """Questions whose listener still hangs in them."""
    if count:
        logger.warning("group %s: %d questions are still open in its listener", group, count)


def _repeated(text: str | None, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(None if text is None else str(text), pa.string()), count)
