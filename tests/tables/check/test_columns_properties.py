"""The columns of a round say what the rules say about each of its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from txmq.check.claims import Action, actions_of, claim_of, claims_of, result_of
from txmq.check.standing import (
    STANDINGS,
    Ask,
    CheckStanding,
    Drop,
    DueRow,
    StandingReader,
    believable_next_check_ms,
    decide,
    due_table,
    standing_of_row,
)
from txmq.listeners.protocol import OUTCOMES, Reason, outcome_of
from txmq.message.lifecycle import PENDING, Claim, ClaimKind, ClaimSource, Halves, Standing, fold
from txmq.message.lifecycle import TransactionState as State
from txmq.message.message import LocalTransactionState
from txmq.store.config import Config
from txmq.store.logs import NONE_WAIT
from txmq.store.op import OpRow, op_table

NOW_MS = 1_000_000
CONFIG = Config(
    transaction_check_max=3,
    groups={
        "quick": {"transaction_check_interval_s": 0.5, "transaction_check_max": 1},
        "slow": {"transaction_check_interval_s": 90.0, "transaction_check_max": 4},
    },
)
GROUPS = ("orders", "quick", "slow")
IDS = tuple("abcdef")
times_ms = st.integers(NOW_MS - 3, NOW_MS + 3)
small = st.integers(0, 4)


# --- decisions and claims --------------------------------------------------------------------


@st.composite
def due_rows(draw: st.DrawFn) -> DueRow:
    own_id = draw(st.sampled_from(IDS))
    # The group of a transaction is that of its half.
    group = GROUPS[IDS.index(own_id) % len(GROUPS)]
    return DueRow(
        own_id, group, draw(times_ms), draw(small), draw(small), ordinary=draw(st.booleans())
    )


standings = st.builds(
    CheckStanding,
    st.builds(Standing, st.sampled_from(State), small, small, times_ms | st.none()),
    small,
)
answers = st.sampled_from(
    [
        *((state.value, None) for state in LocalTransactionState),
        ("UNKNOWN", Reason.TIMEOUT.value),
        ("ROLLBACK", "no such order"),
        (None, Reason.BUSY.value),
        (None, Reason.NO_LISTENER.value),
        (None, Reason.UNREADABLE.value),
    ]
)


def standing_table(now: list[CheckStanding]) -> pa.Table:
    rows = [
        {
            "state": one.standing.state.value,
            "life": one.standing.life,
            "check_times": one.standing.check_times,
            "next_check_ms": one.standing.next_check_timestamp_ms,
            "uncounted": one.uncounted,
            "must_be_asked": one.must_be_asked,
        }
        for one in now
    ]
    return pa.Table.from_pylist(rows, STANDINGS)


def expected_actions(
    dues: list[DueRow], now: Mapping[str, CheckStanding]
) -> dict[str, tuple[DueRow, Any]]:
    """The rules, row by row: the first row of each transaction that is not dropped counts."""
    found: dict[str, tuple[DueRow, Any]] = {}
    for due in sorted(dues, key=lambda due: (due.deadline_ms, due.transaction_id)):
        own = CONFIG.of_group(due.producer_group)
        decision = decide(due, now[due.transaction_id], NOW_MS, own)
        if not isinstance(decision, Drop):
            found.setdefault(due.transaction_id, (due, decision))
    return found


worlds = st.fixed_dictionaries(dict.fromkeys(IDS, standings))


@given(st.lists(due_rows(), max_size=30), worlds, st.dictionaries(st.sampled_from(IDS), answers))
def test_round_ends_in_the_claims_of_the_rules(
    dues: list[DueRow],
    now: Mapping[str, CheckStanding],
    told: Mapping[str, tuple[str | None, str | None]],
) -> None:
    expected = expected_actions(dues, now)
    actions = actions_of(
        due_table(dues), standing_table([now[due.transaction_id] for due in dues]), NOW_MS, CONFIG
    )
    asked = {key for key, (_, decision) in expected.items() if isinstance(decision, Ask)}
    assert set(actions.asks["transaction_id"].to_pylist()) == asked

    answers = {key: told.get(key, (None, "BUSY")) for key in asked}
    outcomes = [{"transaction_id": key, "state": s, "reason": r} for key, (s, r) in answers.items()]
    actions = actions.answered(pa.Table.from_pylist(outcomes, OUTCOMES))

    claims = []
    for key, (due, decision) in expected.items():
        if isinstance(decision, Ask):
            state, reason = answers[key]
            decision = outcome_of({"state": state, "reason": reason})  # noqa: PLW2901
        action = Action(due.producer_group, now[key], decision)
        claim = claim_of(action, ClaimSource.RECHECK, NOW_MS, CONFIG)
        claims.append(replace(claim, transaction_id=key))
    found = claims_of(actions, ClaimSource.RECHECK, NOW_MS, CONFIG)
    names = [name for name in found.column_names if name != "ordinal"]
    assert found.select(names).to_pylist() == op_table(claims, 0).select(names).to_pylist()
    result = result_of(actions, dropped=0)
    counted = result.asked + result.unasked + result.discarded + result.never_acknowledged
    assert counted == len(expected)


# --- standings -------------------------------------------------------------------------------


kinds = st.sampled_from(
    [ClaimKind.UNKNOWN] * 4 + [kind for kind in ClaimKind if kind is not ClaimKind.UNKNOWN]
)
far_ms = st.sampled_from([NOW_MS - 5, NOW_MS, NOW_MS + 5, NOW_MS + 1_000, NOW_MS + 10**7])


@st.composite
def claim_rows(draw: st.DrawFn) -> OpRow:
    own_id, is_own = draw(st.sampled_from(IDS)), draw(st.integers(0, 5)) > 0
    group = GROUPS[IDS.index(own_id) % len(GROUPS)] if is_own else "strangers"
    return OpRow(
        own_id,
        draw(kinds),
        group,
        ClaimSource.CHECK,
        draw(far_ms),
        life=draw(st.integers(0, 2) | st.none()),
        check_times=draw(small | st.none()),
        next_check_timestamp_ms=draw(far_ms | st.none()),
        reason=draw(st.sampled_from([None, "BUSY", "TIMEOUT"])),
    )


class Logs:
    """What StandingReader looks at, in memory: claims in commits, and facts about some."""

    def __init__(self, commits: list[list[OpRow]], mark: int) -> None:
        self.rows = [
            (version, ordinal, row)
            for version, rows in enumerate(commits)
            for ordinal, row in enumerate(rows)
        ]
        self.mark = mark
        self.version = len(commits)
        self.table = self

    def as_of_a_store(self) -> SimpleNamespace:
        return SimpleNamespace(
            op=self,
            settled=self,
            set_aside=lambda: NONE_WAIT,
            unsettled_claims=lambda ids: (self.claims_between(self.mark, self.version, ids), {}),
        )

    def claims(self, own_id: str, since: int = -1) -> list[Claim]:
        return [
            Claim(
                row.transaction_id, row.kind, row.producer_group, version, ordinal,
                life=row.life, check_times=row.check_times,
                next_check_timestamp_ms=row.next_check_timestamp_ms,
            )
            for version, ordinal, row in self.rows
            if row.transaction_id == own_id and version > since
        ]  # fmt: skip

    def claims_between(self, after: int, _: int, ids: list[str]) -> dict[str, list[Claim]]:
        return {own_id: self.claims(own_id, after) for own_id in ids}

    def between(self, after: int, _: int) -> pa.Table:
        later = [row for version, _, row in self.rows if version > after]
        return op_table(later, 0)

    def settled(self, own_id: str) -> Standing | None:
        """Where the claims up to the mark led to, if anywhere."""
        before = [claim for claim in self.claims(own_id) if claim.op_version <= self.mark]
        standing, facts = fold(before, Halves(group_of(own_id), 0, 0))
        return standing if facts else None


def group_of(own_id: str) -> str:
    return GROUPS[IDS.index(own_id) % len(GROUPS)]


def expected_standing(logs: Logs, own_id: str) -> CheckStanding:
    """Row by row: the fold gives state and life, the rows of that life the checks."""
    group, standing = group_of(own_id), logs.settled(own_id) or PENDING
    if standing.state not in (State.COMMITTED, State.ROLLED_BACK, State.EXPIRED):
        later = logs.claims(own_id, logs.mark)
        standing, _ = fold(later, Halves(group, 0, 0), standing)
    own = [
        row
        for _, _, row in logs.rows
        if row.transaction_id == own_id
        and row.producer_group == group
        and row.life == standing.life
        and row.kind in (ClaimKind.UNKNOWN, ClaimKind.RESUME)
    ]
    times = max((row.check_times or 0 for row in own), default=0)
    last = [row for row in own if (row.check_times or 0) == times]
    next_ms = [
        believable_next_check_ms(
            row.next_check_timestamp_ms, row.op_timestamp_ms, NOW_MS, CONFIG.of_group(group)
        )
        for row in last
        if row.next_check_timestamp_ms is not None
    ]
    is_pending = standing.state is State.PENDING
    unasked = sum(row.kind is ClaimKind.UNKNOWN for row in last) - (times > 0)
    at_ms = max(next_ms, default=None) if is_pending else None
    return CheckStanding(Standing(standing.state, standing.life, times, at_ms), max(unasked, 0))


@given(st.lists(st.lists(claim_rows(), max_size=6), max_size=5), st.integers(-1, 4))
def test_standings_are_those_of_the_fold_and_the_rows_of_its_life(
    commits: list[list[OpRow]], mark: int
) -> None:
    logs = Logs(commits, mark)
    looked = StandingReader(logs.as_of_a_store(), CONFIG)  # type: ignore[arg-type]
    facts = [
        {"transaction_id": own_id, "state": settled.state.value, "life": settled.life}
        for own_id in IDS
        if (settled := logs.settled(own_id)) is not None
    ]
    fact_schema = pa.schema(
        {"transaction_id": pa.string(), "state": pa.string(), "life": pa.int32()}
    )
    owners = pa.table({"transaction_id": IDS, "producer_group": list(map(group_of, IDS))})
    rows = op_table([row for _, _, row in logs.rows], 0)

    found = looked.folded(owners, pa.Table.from_pylist(facts, fact_schema), rows, NOW_MS)

    assert found.schema == STANDINGS
    expected = [expected_standing(logs, own_id) for own_id in IDS]
    assert [standing_of_row(row) for row in found.to_pylist()] == expected


def test_reason_is_that_of_the_newest_look() -> None:
    def row(at_s: int, reason: str | None, check_times: int = 0) -> OpRow:
        return OpRow(
            "a", ClaimKind.UNKNOWN, "orders", ClaimSource.CHECK, NOW_MS + at_s * 1000,
            life=0, check_times=check_times, reason=reason,
        )  # fmt: skip

    logs = Logs([[row(3, "NO_LISTENER")], [row(1, "TIMEOUT", 0), row(2, "BUSY")]], -1)
    looked = StandingReader(logs.as_of_a_store(), CONFIG)  # type: ignore[arg-type]
    owners = pa.table({"transaction_id": ["a", "b"], "producer_group": ["orders", "quick"]})
    facts = pa.schema(
        {"transaction_id": pa.string(), "state": pa.string(), "life": pa.int32()}
    ).empty_table()

    found = looked.folded(owners, facts, op_table([r for _, _, r in logs.rows], 0), NOW_MS)

    assert found["reason"].to_pylist() == ["NO_LISTENER", None]
