"""What to do with a transaction whose deadline passed unanswered: pure rules."""

from __future__ import annotations

from dataclasses import dataclass

from txmq.lifecycle import PENDING, Standing, TransactionState
from txmq.store.check_settings import CheckSettings

# A group without a listener is looked at again after 1, 2, 4… intervals, up to this.
MAX_BACKOFF_S = 600.0
_MAX_DOUBLINGS = 32
# A longer immunity is no time that anybody meant; the timeout holds then.
IMMUNITY_MAX_S = 1e9


@dataclass(frozen=True, slots=True)
class DueRow:
    """A transaction whose deadline passed, as the join or the recheck saw it.

    `check_times` and `life` are those of the row that armed it (a head: 0 and 0).
    """

    transaction_id: str
    producer_group: str
    deadline_ms: int
    check_times: int = 0
    life: int = 0
    ordinary: bool = False


@dataclass(frozen=True, slots=True)
class CheckStanding:
    """The fold of now, and how often the transaction was re-armed unasked since its last check."""

    standing: Standing = PENDING
    uncounted: int = 0


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the listener; `check_times` questions were counted before this one."""

    check_times: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Asked often enough (R61); it is not asked again."""


@dataclass(frozen=True, slots=True)
class RollBack:
    """An ordinary message without its COMMIT was never acknowledged: nobody needs to be asked."""


@dataclass(frozen=True, slots=True)
class Rearm:
    """Not due yet although it came out: the clock was set back. It must not get lost."""

    next_check_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Ended, or another row of the op log arms it: writing one more would double the chain."""


Decision = Ask | Discard | RollBack | Rearm | Drop


def decide(due: DueRow, now: CheckStanding, clock_ms: int, settings: CheckSettings) -> Decision:
    """What becomes of a due row, given the fold of now and the clock value that emitted it.

    `settings` are those of its producer group.
    """
    standing = now.standing
    if standing.state is not TransactionState.PENDING:
        return Drop()
    if (due.life, due.check_times) != (standing.life, standing.check_times):
        return Drop()
    next_check_ms = standing.next_check_timestamp_ms
    if next_check_ms is None:
        next_check_ms = due.deadline_ms
    if next_check_ms > clock_ms:
        return Rearm(next_check_ms) if next_check_ms == due.deadline_ms else Drop()
    if due.ordinary:
        return RollBack()
    if standing.check_times >= settings.transaction_check_max:
        return Discard()
    return Ask(standing.check_times)


def next_check_ms(clock_ms: int, settings: CheckSettings) -> int:
    """When a transaction is due again after a counted question (R53)."""
    return clock_ms + round(settings.transaction_check_interval_s * 1000)


def next_try_ms(clock_ms: int, uncounted: int, settings: CheckSettings) -> int:
    """When a transaction is due again that could not be asked; the pause grows each time."""
    interval_s = settings.transaction_check_interval_s
    pause_s = interval_s * (1 << min(uncounted, _MAX_DOUBLINGS))
    return clock_ms + round(min(pause_s, max(interval_s, MAX_BACKOFF_S)) * 1000)


def believable_next_check_ms(
    next_check_timestamp_ms: int, armed_ms: int, clock_ms: int, settings: CheckSettings
) -> int:
    """The next check as written, or now where its writer's clock has been set back since.

    Else one wrong hour of a clock would silence a transaction for an hour, a wrong year for a year.
    """
    ahead_ms = armed_ms - clock_ms
    if ahead_ms > settings.transaction_check_interval_s * 1000:
        return min(next_check_timestamp_ms, clock_ms)
    return next_check_timestamp_ms
