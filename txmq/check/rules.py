"""The rules of the check: what to do with a transaction whose deadline passed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from txmq.lifecycle import PENDING, Standing, TransactionState
from txmq.store.check_settings import CheckSettings

# A transaction that cannot be asked is due again after 1, 2, 4… intervals, up to this.
MAX_BACKOFF_S = 600.0
_MAX_DOUBLINGS = 32
# A longer immunity is taken for an error; the timeout holds instead.
IMMUNITY_MAX_S = 1e9


@dataclass(frozen=True, slots=True)
class DueRow:
    """A transaction whose deadline passed, as the deadline join or the recheck read it.

    `check_times` and `life` come from the row that armed it (a head: 0 and 0). `has_returned` says
    that its group could not be asked and now has a listener, so that its pause is over.
    """

    transaction_id: str
    producer_group: str
    deadline_ms: int
    check_times: int = 0
    life: int = 0
    ordinary: bool = False
    has_returned: bool = False


@dataclass(frozen=True, slots=True)
class CheckStanding:
    """The current standing, and how often the transaction was re-armed since its last check."""

    standing: Standing = PENDING
    uncounted: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the listener; `check_times` questions were counted before."""

    check_times: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Discard: the transaction was asked `transaction_check_max` times (R61)."""


@dataclass(frozen=True, slots=True)
class RollBack:
    """Roll back an ordinary message without a COMMIT: it was never acknowledged, so ask nobody."""


@dataclass(frozen=True, slots=True)
class Rearm:
    """Set the same deadline again: the row is not due, because the clock was set back."""

    next_check_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Do nothing: the transaction has an end, or another claim arms it and would be doubled."""


Decision = Ask | Discard | RollBack | Rearm | Drop


def decide(due: DueRow, now: CheckStanding, clock_ms: int, settings: CheckSettings) -> Decision:
    """Decide about a due row.

    Args:
        due: the row.
        now: the current standing of its transaction.
        clock_ms: the clock value by which it is due.
        settings: of its producer group.
    """
    standing = now.standing
    if standing.state is not TransactionState.PENDING:
        return Drop()
    if (due.life, due.check_times) != (standing.life, standing.check_times):
        return Drop()
    next_check_ms = standing.next_check_timestamp_ms
    if next_check_ms is None:
        next_check_ms = due.deadline_ms
    if next_check_ms > clock_ms and not due.has_returned:
        return Rearm(next_check_ms) if next_check_ms == due.deadline_ms else Drop()
    if due.ordinary:
        return RollBack()
    if standing.check_times >= settings.transaction_check_max:
        return Discard()
    return Ask(standing.check_times)


def next_check_ms(clock_ms: int, settings: CheckSettings) -> int:
    """The next check after a counted question (R53)."""
    return clock_ms + round(settings.transaction_check_interval_s * 1000)


def next_try_ms(clock_ms: int, uncounted: int, settings: CheckSettings) -> int:
    """The next try after a question that could not be asked; the pause grows each time."""
    interval_s = settings.transaction_check_interval_s
    pause_s = interval_s * (1 << min(uncounted, _MAX_DOUBLINGS))
    return clock_ms + round(min(pause_s, max(interval_s, MAX_BACKOFF_S)) * 1000)


def believable_next_check_ms(
    next_check_timestamp_ms: int, armed_ms: int, clock_ms: int, settings: CheckSettings
) -> int:
    """The next check as written, or now if its writer's clock was ahead.

    Otherwise a clock that was wrong by a year would delay the check of a transaction by a year.
    """
    ahead_ms = armed_ms - clock_ms
    if ahead_ms > settings.transaction_check_interval_s * 1000:
        return min(next_check_timestamp_ms, clock_ms)
    return next_check_timestamp_ms
