"""The outcome of a question to a listener, as a value and as columns."""

from __future__ import annotations

import enum
import logging
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from txmq.errors import EnvironmentProblemError, ListenerError
from txmq.message.message import LocalTransactionState


class Reason(enum.StrEnum):
    """Why the check wrote a claim, if the state in the claim does not say it."""

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


# No listener saw the question, so it does not count; an operator may have to help.
UNASKED_REASONS = (Reason.NO_LISTENER, Reason.BUSY, Reason.UNREADABLE)


logger = logging.getLogger(__name__)

MAX_REASON_CHARACTERS = 200
SHOWN_CHARACTERS = 64
# A null state: no listener saw the question.
OUTCOMES = pa.schema(
    [
        pa.field("transaction_id", pa.string()),
        pa.field("state", pa.string()),
        pa.field("reason", pa.string()),
    ]
)
_REASONS = {reason.value: reason for reason in Reason}
# txmq writes their texts; a subclass may be a user's, whose text may hold a body.
_OWN_ERRORS = (ListenerError, EnvironmentProblemError)


@dataclass(frozen=True, slots=True)
class Answered:
    """A question that reached its listener: it counts, whatever the answer is."""

    state: LocalTransactionState
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class NotReached:
    """A question that no listener saw: it does not count."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Collect:
    """The questions to one listener, on their way.

    Attributes:
        wait: waits until a monotonic time at the latest; whether all is answered or too late.
        outcomes: waits for the deadline of the questions and returns OUTCOMES; call it once.
    """

    wait: Callable[[float], bool]
    outcomes: Callable[[], pa.Table]

    def __call__(self) -> pa.Table:
        """As `outcomes`."""
        return self.outcomes()


Outcome = Answered | NotReached
TIMED_OUT = Answered(LocalTransactionState.UNKNOWN, Reason.TIMEOUT)
BUSY = NotReached(Reason.BUSY)


def outcome_of(row: Mapping[str, Any]) -> Outcome:
    """A row of OUTCOMES as a value."""
    if row["state"] is None:
        return NotReached(_REASONS[row["reason"]])
    return Answered(LocalTransactionState(row["state"]), row["reason"])


def outcome_table(rows: Iterable[tuple[str | None, str | None, str | None]]) -> pa.Table:
    """OUTCOMES from the id, state and reason of each question."""
    listed = list(rows)
    columns = zip(*listed, strict=True) if listed else [[] for _ in OUTCOMES]
    return pa.table([pa.array(column, pa.string()) for column in columns], OUTCOMES)


def same_outcome(transaction_ids: Any, outcome: Outcome) -> pa.Table:
    """OUTCOMES with one outcome for all questions."""
    state = outcome.state.value if isinstance(outcome, Answered) else None
    count = len(transaction_ids)
    columns = [transaction_ids, *(_repeated(text, count) for text in (state, outcome.reason))]
    return pa.table(columns, OUTCOMES)


def raised(error: BaseException) -> Answered:
    """UNKNOWN for a listener that raised; only the type is shown, because the text may hold a body.

    The texts of ListenerError and EnvironmentProblemError are txmq's own and are shown (R81).
    """
    if type(error) in _OWN_ERRORS:
        return Answered(LocalTransactionState.UNKNOWN, str(error)[:MAX_REASON_CHARACTERS])
    name = type(error).__name__[:SHOWN_CHARACTERS]
    return Answered(LocalTransactionState.UNKNOWN, f"the listener raised {name}")


def one_line(text: str | None) -> str | None:
    """A listener's reason, cut and on one line."""
    if text is None:
        return None
    characters = text[:MAX_REASON_CHARACTERS]
    return "".join(" " if unicodedata.category(c)[0] == "C" else c for c in characters)


def warn_of_open(group: str, count: int) -> None:
    """Log how many questions a listener has not answered at the deadline."""
    if count:
        logger.warning("group %s: its listener hangs in %d questions", group, count)


def _repeated(text: str | None, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(None if text is None else str(text), pa.string()), count)
