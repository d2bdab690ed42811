"""Turns the outcomes of a round into claims, and counts them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.check.standing import (
    Ask,
    CheckStanding,
    Decision,
    Discard,
    Drop,
    Rearm,
    RollBack,
    decide,
    due_row,
    next_check_ms,
    next_try_ms,
    standing_of_row,
)
from txmq.ground.columns import DistinctRows, Groups, Integers, first_of_each, flags, integers
from txmq.ground.results import Sum
from txmq.listeners.protocol import Answered, NotReached, Outcome, Reason, outcome_of
from txmq.message.lifecycle import ClaimKind, ClaimSource, Standing
from txmq.message.message import LocalTransactionState
from txmq.store.config import CheckSettings, Config
from txmq.store.op import OpRow, end_life, op_table

_ENDS = {
    LocalTransactionState.COMMIT: ClaimKind.COMMIT,
    LocalTransactionState.ROLLBACK: ClaimKind.ROLLBACK,
}
# The columns that a claim of the check depends on, beside its outcome.
_STANDING = ["producer_group", "life", "check_times", "uncounted"]
_RENEWED = "renewed_ms"
Ending = Ask | Discard | RollBack | Rearm | Outcome


@dataclass(frozen=True, slots=True)
class Action:
    """The outcome for a transaction of one group, after its listener was asked."""

    producer_group: str
    now: CheckStanding
    decision: Ending


@dataclass(frozen=True, slots=True)
class Actions:
    """The decisions about the transactions of a round.

    Attributes:
        rows: transaction_id and standing of each transaction.
        place: for each row the index of its decision in `decisions`.
        decisions: the distinct decisions.
    """

    rows: pa.Table
    place: Integers
    decisions: tuple[Ending, ...]

    @property
    def asks(self) -> pa.Table:
        """transaction_id, producer_group and check_times of the transactions to ask about."""
        is_ask = np.array([isinstance(decision, Ask) for decision in self.decisions], dtype=bool)
        columns = ["transaction_id", "producer_group", "check_times"]
        return self.rows.select(columns).filter(pa.array(is_ask[self.place]))

    def answered(self, outcomes: pa.Table) -> Actions:
        """Return the same actions, with the `outcomes` in place of their questions."""
        distinct = DistinctRows.of(outcomes.select(["state", "reason"]))
        decisions = [outcome_of(case) for case in distinct.rows.to_pylist()]
        row = pc.index_in(
            self.rows["transaction_id"], value_set=outcomes["transaction_id"].combine_chunks()
        )
        of_outcome = np.append(distinct.place + len(self.decisions), -1)[integers(row, -1)]
        place = np.where(of_outcome < 0, self.place, of_outcome)
        return Actions(self.rows, place, (*self.decisions, *decisions))

    def only(self, transaction_ids: pa.Array) -> Actions:
        """Return the actions about these transactions."""
        return self._where(pc.is_in(self.rows["transaction_id"], value_set=transaction_ids))

    def without(self, transaction_ids: pa.Array) -> Actions:
        """Return the actions about all other transactions."""
        is_in = pc.is_in(self.rows["transaction_id"], value_set=transaction_ids)
        return self._where(pc.invert(is_in))

    def _where(self, is_kept: pa.ChunkedArray) -> Actions:
        return Actions(self.rows.filter(is_kept), self.place[flags(is_kept)], self.decisions)

    def ids_of(self, decision: Ending) -> list[str]:
        """Return the transactions with this decision."""
        ids = self.rows["transaction_id"].filter(self._has(decision))
        return [str(transaction_id) for transaction_id in ids.to_pylist()]

    def groups_of(self, decision: Ending) -> frozenset[str]:
        """Return the producer groups of the transactions with this decision."""
        groups = self.rows["producer_group"].filter(self._has(decision))
        return frozenset(pc.unique(groups).to_pylist())

    def _has(self, decision: Ending) -> pa.Array:
        is_equal = np.array([other == decision for other in self.decisions], dtype=bool)
        return pa.array(is_equal[self.place])


@dataclass(frozen=True, slots=True)
class RoundResult(Sum):
    """The counts of one round, or the sum of several rounds.

    Attributes:
        committed: transactions whose listener answered COMMIT.
        rolled_back: transactions whose listener answered ROLLBACK.
        unknown: transactions that were asked without a final answer; the check counts.
        unasked: transactions that could not be asked (no listener, no free thread, unreadable, not
            due yet), or whose producer lives and works on them; they are re-armed, and no check
            counts.
        discarded: transactions that were asked `transaction_check_max` times before (R61).
        never_acknowledged: ordinary messages that were rolled back without a question.
        dropped: due rows whose transaction has an end, is armed by another row, or whose group is
            still being asked.
        left: transactions whose messages found no room in the round; they stay due.
        unreadable: ids of transactions whose halves cannot be read.
        unheard_groups: groups without a listener.
    """

    committed: int = 0
    rolled_back: int = 0
    unknown: int = 0
    unasked: int = 0
    discarded: int = 0
    never_acknowledged: int = 0
    dropped: int = 0
    left: int = 0
    unreadable: tuple[str, ...] = ()
    unheard_groups: frozenset[str] = field(default_factory=frozenset)

    @property
    def asked(self) -> int:
        """The number of questions that reached a listener."""
        return self.committed + self.rolled_back + self.unknown


def actions_of(
    dues: pa.Table,
    standings: pa.Table,
    clock_ms: int,
    config: Config,
    renewed_ms: Mapping[str, int] = MappingProxyType({}),
) -> Actions:
    """Decide about each due row; return the actions in the order of the deadlines.

    Args:
        dues: DUE; a transaction may appear several times.
        standings: STANDINGS of the rows of `dues`.
        clock_ms: the clock value by which they are due.
        config: has the check settings of each group.
        renewed_ms: until when living producers renew their transactions, by id.
    """
    now = standings.rename_columns([f"now_{name}" for name in standings.column_names])
    both = pa.table([*dues.columns, *now.columns], [*dues.column_names, *now.column_names])
    both = both.append_column(_RENEWED, _renewed_ms(dues["transaction_id"], renewed_ms))
    both = both.sort_by([("deadline_ms", "ascending"), ("transaction_id", "ascending")])
    distinct = DistinctRows.of(
        _without_past(both.drop_columns(["transaction_id", "now_reason"]), clock_ms)
    )
    of_case = [_decision(case, clock_ms, config) for case in distinct.rows.to_pylist()]
    decisions = tuple(dict.fromkeys(case for case in of_case if not isinstance(case, Drop)))
    index: dict[Decision, int] = {decision: at for at, decision in enumerate(decisions)}
    # A dropped row has no action.
    place = np.array([index.get(case, -1) for case in of_case], dtype=np.int64)[distinct.place]
    kept = _first_kept(both["transaction_id"], place >= 0)
    return Actions(_with_standing(both.filter(pa.array(kept))), place[kept], decisions)


def _renewed_ms(transaction_ids: pa.ChunkedArray, renewed_ms: Mapping[str, int]) -> pa.Array:
    """Return until when each is renewed; 0 where nobody renews it."""
    place = pc.index_in(transaction_ids, value_set=pa.array(renewed_ms, pa.string()))
    until_ms = pa.array(renewed_ms.values(), pa.int64()).take(place.combine_chunks())
    return pc.fill_null(until_ms, 0)


def _without_past(rows: pa.Table, clock_ms: int) -> pa.Table:
    """Replace each past time by now: a rule only asks whether a time is past."""
    for name in ("deadline_ms", "now_next_check_ms", _RENEWED):
        place = rows.schema.get_field_index(name)
        times = pc.if_else(pc.less(rows[name], clock_ms), clock_ms, rows[name])
        rows = rows.set_column(place, name, times)
    return rows


def _decision(case: Mapping[str, Any], clock_ms: int, config: Config) -> Decision:
    settings = config.of_group(case["producer_group"])
    now = {name.removeprefix("now_"): case[name] for name in case if name.startswith("now_")}
    due = due_row({**case, "transaction_id": ""})
    return decide(due, standing_of_row(now), clock_ms, settings, case[_RENEWED])


def _first_kept(transaction_ids: pa.ChunkedArray, is_kept: Any) -> Any:
    """Keep the first row of each transaction."""
    places, kept = Groups.of(transaction_ids).place, np.flatnonzero(is_kept)
    same = np.zeros(len(kept), dtype=np.int64)
    chosen = np.zeros(len(places), dtype=bool)
    chosen[kept[first_of_each(places[kept], same)]] = True
    return chosen


def _with_standing(rows: pa.Table) -> pa.Table:
    columns = ["transaction_id", "producer_group", "now_life", "now_check_times", "now_uncounted"]
    return rows.select(columns).rename_columns(["transaction_id", *_STANDING])


def claims_of(actions: Actions, source: ClaimSource, now_ms: int, config: Config) -> pa.Table:
    """Build the claims of actions, as OP: each ends a transaction or sets its next check.

    `claim_of` is called once for each distinct case.
    """
    numbered = actions.rows.select(_STANDING).append_column("decision", pa.array(actions.place))
    distinct = DistinctRows.of(numbered)
    claims = [
        claim_of(_action(case, actions.decisions), source, now_ms, config)
        for case in distinct.rows.to_pylist()
    ]
    return _of_transactions(claims, distinct, actions.rows["transaction_id"])


def _action(case: Mapping[str, Any], decisions: Sequence[Ending]) -> Action:
    standing = Standing(life=case["life"], check_times=case["check_times"])
    now = CheckStanding(standing, case["uncounted"])
    return Action(case["producer_group"], now, decisions[case["decision"]])


def _of_transactions(
    claims: Sequence[OpRow], distinct: DistinctRows, transaction_ids: pa.ChunkedArray
) -> pa.Table:
    rows = op_table(claims, 0).take(pa.array(distinct.place))
    place = rows.schema.get_field_index("transaction_id")
    return rows.set_column(place, rows.schema.field(place), transaction_ids)


def claim_of(action: Action, source: ClaimSource, now_ms: int, config: Config) -> OpRow:
    """Build the claim of an action, without its transaction id."""
    standing, group = action.now.standing, action.producer_group
    row = OpRow("", ClaimKind.UNKNOWN, group, source, now_ms)
    counted = replace(row, life=standing.life, check_times=standing.check_times)
    end = replace(row, life=end_life(group, standing.life, config))
    match action.decision:
        case Answered(state=state, reason=reason) if state in _ENDS:
            return replace(end, kind=_ENDS[state], reason=reason)
        case RollBack():
            return replace(end, kind=ClaimKind.ROLLBACK, reason=Reason.NOT_ACKNOWLEDGED)
        case Discard():
            return replace(counted, kind=ClaimKind.DISCARD, reason=Reason.CHECK_MAX)
        case _:
            return _rearmed(counted, action, now_ms, config.of_group(group))


def _rearmed(row: OpRow, action: Action, now_ms: int, settings: CheckSettings) -> OpRow:
    """Build an UNKNOWN claim with the next check; count it if a listener was asked (R61, R78)."""
    again_ms = next_try_ms(now_ms, action.now.uncounted, settings)
    reason: str | None = Reason.BUSY
    match action.decision:
        case Answered(reason=reason):
            again_ms = next_check_ms(now_ms, settings)
            row = replace(row, check_times=action.now.standing.check_times + 1)
        case NotReached(reason=reason):
            pass
        case Rearm(next_check_timestamp_ms=again_ms, reason=reason):
            pass
    return replace(row, next_check_timestamp_ms=again_ms, reason=reason)


def late_claims(answers: pa.Table, now_ms: int) -> pa.Table:
    """Build claims of ends that listeners answered after their round; the first end wins.

    Args:
        answers: transaction_id, producer_group, state.
        now_ms: the time of the claims.
    """
    distinct = DistinctRows.of(answers.select(["producer_group", "state"]))
    claims = [_late_claim(case, now_ms) for case in distinct.rows.to_pylist()]
    return _of_transactions(claims, distinct, answers["transaction_id"])


def _late_claim(case: Mapping[str, Any], now_ms: int) -> OpRow:
    kind, group = _ENDS[LocalTransactionState(case["state"])], case["producer_group"]
    return OpRow("", kind, group, ClaimSource.CHECK, now_ms, reason=Reason.LATE)


def result_of(actions: Actions, dropped: int = 0, left: int = 0) -> RoundResult:
    """Count what one round did."""
    counts = _counts(actions)
    return RoundResult(
        committed=counts["committed"],
        rolled_back=counts["rolled_back"],
        unknown=counts["unknown"],
        unasked=counts["unasked"],
        discarded=counts["discarded"],
        never_acknowledged=counts["never_acknowledged"],
        dropped=dropped,
        left=left,
        unreadable=tuple(actions.ids_of(NotReached(Reason.UNREADABLE))),
        unheard_groups=actions.groups_of(NotReached(Reason.NO_LISTENER)),
    )


def _counts(actions: Actions) -> Counter[str]:
    counts: Counter[str] = Counter()
    number = np.bincount(actions.place, minlength=len(actions.decisions))
    for decision, count in zip(actions.decisions, number.tolist(), strict=True):
        counts[_count_name(decision)] += count
    return counts


def _count_name(decision: Ending) -> str:
    match decision:
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
