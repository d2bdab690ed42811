"""The row of the op log in which each due row of a round ends, and the round in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from txmq.check_rules import (
    Ask,
    CheckStanding,
    Discard,
    DueRow,
    Rearm,
    Reason,
    RollBack,
    next_check_ms,
    next_try_ms,
)
from txmq.config import Config
from txmq.lifecycle import ClaimKind, ClaimSource
from txmq.listener_threads import Answered, LateAnswer, NotReached, Outcome
from txmq.message import LocalTransactionState
from txmq.op_log import OpRow

_ENDS = {
    LocalTransactionState.COMMIT: ClaimKind.COMMIT,
    LocalTransactionState.ROLLBACK: ClaimKind.ROLLBACK,
}


@dataclass(frozen=True, slots=True)
class Action:
    """What is to be done with a due row: `decision` is an outcome once its listener was asked."""

    due: DueRow
    now: CheckStanding
    decision: Ask | Discard | RollBack | Rearm | Outcome


@dataclass(frozen=True, slots=True)
class RoundResult:
    """What became of the due rows of one round, or of several added up.

    `unknown` were asked and counted; `unasked` were not (no listener, no free thread, unreadable,
    not due yet) and are armed again; `dropped` had ended or are armed by another row.
    """

    committed: int = 0
    rolled_back: int = 0
    unknown: int = 0
    unasked: int = 0
    discarded: int = 0
    never_acknowledged: int = 0
    dropped: int = 0
    unreadable: tuple[str, ...] = ()
    unheard_groups: frozenset[str] = field(default_factory=frozenset)

    @property
    def asked(self) -> int:
        """Questions that reached a listener."""
        return self.committed + self.rolled_back + self.unknown

    def __add__(self, other: RoundResult) -> RoundResult:
        """Two rounds as one."""
        return RoundResult(
            committed=self.committed + other.committed,
            rolled_back=self.rolled_back + other.rolled_back,
            unknown=self.unknown + other.unknown,
            unasked=self.unasked + other.unasked,
            discarded=self.discarded + other.discarded,
            never_acknowledged=self.never_acknowledged + other.never_acknowledged,
            dropped=self.dropped + other.dropped,
            unreadable=self.unreadable + other.unreadable,
            unheard_groups=self.unheard_groups | other.unheard_groups,
        )


def claim_of(action: Action, source: ClaimSource, now_ms: int, config: Config) -> OpRow:
    """The row in which an action ends; it ends the transaction or says when to look again."""
    due, standing = action.due, action.now.standing
    row = OpRow(due.transaction_id, ClaimKind.UNKNOWN, due.producer_group, source, now_ms)
    counted = replace(row, life=standing.life, check_times=standing.check_times)
    match action.decision:
        case Answered(state=state) if state in _ENDS:
            return replace(row, kind=_ENDS[state])
        case RollBack():
            return replace(row, kind=ClaimKind.ROLLBACK, reason=Reason.NOT_ACKNOWLEDGED)
        case Discard():
            return replace(counted, kind=ClaimKind.DISCARD, reason=Reason.CHECK_MAX)
        case _:
            return _rearmed(counted, action, now_ms, config)


def _rearmed(row: OpRow, action: Action, now_ms: int, config: Config) -> OpRow:
    """An UNKNOWN row: counted if the question reached a listener (R61, R78)."""
    again_ms = next_try_ms(now_ms, action.now.uncounted, config)
    reason: str | None = Reason.BUSY
    match action.decision:
        case Answered(reason=reason):
            again_ms = next_check_ms(now_ms, config)
            row = replace(row, check_times=action.now.standing.check_times + 1)
        case NotReached(reason=reason):
            pass
        case Rearm(next_check_timestamp_ms=again_ms):
            reason = Reason.NOT_DUE
    return replace(row, next_check_timestamp_ms=again_ms, reason=reason)


def late_claim(answer: LateAnswer, now_ms: int) -> OpRow:
    """An end that was named after its round is a claim like any other; the first end wins."""
    return OpRow(
        answer.transaction_id,
        _ENDS[answer.state],
        answer.producer_group,
        ClaimSource.CHECK,
        now_ms,
        reason=Reason.LATE,
    )


def result_of(actions: Sequence[Action], dropped: int) -> RoundResult:
    """One round in numbers."""
    counts = Counter(_became(action) for action in actions)
    return RoundResult(
        committed=counts["committed"],
        rolled_back=counts["rolled_back"],
        unknown=counts["unknown"],
        unasked=counts["unasked"],
        discarded=counts["discarded"],
        never_acknowledged=counts["never_acknowledged"],
        dropped=dropped,
        unreadable=tuple(
            action.due.transaction_id
            for action in actions
            if action.decision == NotReached(Reason.UNREADABLE)
        ),
        unheard_groups=frozenset(
            action.due.producer_group
            for action in actions
            if action.decision == NotReached(Reason.NO_LISTENER)
        ),
    )


def _became(action: Action) -> str:
    match action.decision:
        case Answered(state=LocalTransactionState.COMMIT):
            return "committed"
        case Answered(state=LocalTransactionState.ROLLBACK):
            return "rolled_back"
        case Answered():
            return "unknown"
        case NotReached() | Rearm() | Ask():
            return "unasked"
        case Discard():
            return "discarded"
        case RollBack():
            return "never_acknowledged"
