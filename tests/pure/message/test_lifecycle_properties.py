"""The fold against what the design promises of it, for any claims in any order."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.kit.builders import COMPLETE, GROUP, transaction_id
from txmq.message.lifecycle import (
    FINAL_STATES,
    Claim,
    ClaimKind,
    Fact,
    Halves,
    Standing,
    TransactionState,
    fold,
    order_of,
)

ENDS = (ClaimKind.COMMIT, ClaimKind.ROLLBACK)


@st.composite
def any_claim(draw: st.DrawFn, groups: Sequence[str] = (GROUP, "foreign")) -> Claim:
    kind = draw(st.sampled_from(ClaimKind))
    return Claim(
        transaction_id(1),
        kind,
        draw(st.sampled_from(groups)),
        draw(st.integers(0, 6)),
        draw(st.integers(0, 3)),
        life=draw(st.none() if kind in ENDS and draw(st.booleans()) else st.integers(0, 3)),
        check_times=draw(st.integers(0, 4)) if kind is ClaimKind.UNKNOWN else None,
        next_check_timestamp_ms=draw(st.none() | st.integers(0, 9)),
    )


CLAIMS = st.lists(any_claim(), max_size=14)
HALVES = st.builds(
    Halves, st.just(GROUP), st.none() | st.integers(0, 2), st.integers(0, 2), st.booleans()
)


@given(CLAIMS, HALVES, st.randoms(use_true_random=False))
def test_the_order_of_reading_does_not_matter(
    claims: list[Claim], halves: Halves, shuffler: random.Random
) -> None:
    shuffled = list(claims)
    shuffler.shuffle(shuffled)

    assert fold(shuffled, halves) == fold(claims, halves)


@given(CLAIMS, HALVES, st.lists(st.integers(1, 7), max_size=3))
def test_fold_in_pieces_equals_fold_at_once(
    claims: list[Claim], halves: Halves, borders: list[int]
) -> None:
    standing = Standing()
    facts: list[Fact] = []
    for low, high in zip([0, *sorted(borders)], [*sorted(borders), 99], strict=True):
        piece = [claim for claim in claims if low <= claim.op_version < high]
        standing, found = fold(piece, halves, standing)
        facts.extend(found)

    assert (standing, tuple(facts)) == fold(claims, halves)


@given(CLAIMS, HALVES, st.data())
def test_rows_written_twice_change_nothing(
    claims: list[Claim], halves: Halves, data: st.DataObject
) -> None:
    # A retried append repeats rows in a later commit, in their order.
    again = [claim for claim in sorted(claims, key=order_of) if data.draw(st.booleans())]
    late = [replace(claim, op_version=100, ordinal=n) for n, claim in enumerate(again)]

    once, facts_once = fold(claims, halves)
    twice, facts_twice = fold([*claims, *late], halves)

    # An end that names no life fits any, so one that came before a RESUME may count again after
    # it; and one that had no effect in its own place may have one in a later place.
    effective = {fact.claim for fact in facts_once}
    resumed = any(fact.claim.kind is ClaimKind.RESUME for fact in facts_once)
    ends_again = any(claim.kind in ENDS and claim.life is None for claim in again)
    if all(claim in effective for claim in again) and not (resumed and ends_again):
        assert (twice, facts_twice) == (once, facts_once)


@given(st.lists(any_claim(), max_size=8), st.data())
def test_checks_written_twice_change_nothing(claims: list[Claim], data: st.DataObject) -> None:
    checks = [claim for claim in sorted(claims, key=order_of) if claim.kind is ClaimKind.UNKNOWN]
    again = [claim for claim in checks if data.draw(st.booleans())]
    late = [replace(claim, op_version=100, ordinal=n) for n, claim in enumerate(again)]

    assert fold([*checks, *late], COMPLETE) == fold(checks, COMPLETE)


@given(CLAIMS, HALVES)
def test_each_row_written_twice_at_once_changes_nothing(
    claims: list[Claim], halves: Halves
) -> None:
    doubled = [twin for claim in claims for twin in (claim, claim)]

    assert fold(doubled, halves) == fold(claims, halves)


@given(CLAIMS, HALVES)
def test_claims_of_other_groups_have_no_effect(claims: list[Claim], halves: Halves) -> None:
    own = [claim for claim in claims if claim.producer_group == GROUP]

    assert fold(claims, halves) == fold(own, halves)


@given(CLAIMS, HALVES, CLAIMS)
def test_final_state_never_changes(claims: list[Claim], halves: Halves, later: list[Claim]) -> None:
    standing, _ = fold(claims, halves)

    after, facts = fold(later, halves, standing)

    if standing.state in FINAL_STATES:
        assert (after, facts) == (standing, ())


@given(st.lists(any_claim(groups=(GROUP,)), max_size=10))
def test_without_discard_and_expire_the_first_end_wins(claims: list[Claim]) -> None:
    kept = [c for c in claims if c.kind not in (ClaimKind.DISCARD, ClaimKind.EXPIRE)]
    ordered = sorted(kept, key=order_of)
    ends = [claim for claim in ordered if claim.kind in ENDS and claim.life in (None, 0)]

    standing, facts = fold(kept, COMPLETE)

    assert [fact.claim for fact in facts] == ends[:1]
    if ends:
        won = ends[0].kind is ClaimKind.COMMIT
        assert standing.state is (
            TransactionState.COMMITTED if won else TransactionState.ROLLED_BACK
        )


@given(CLAIMS, HALVES)
def test_nothing_damaged_is_ever_committed(claims: list[Claim], halves: Halves) -> None:
    standing, facts = fold(claims, halves)

    if halves.problem:
        assert TransactionState.COMMITTED not in {standing.state, *(fact.state for fact in facts)}
    else:
        assert TransactionState.INCOMPLETE not in {standing.state, *(fact.state for fact in facts)}


@given(CLAIMS, HALVES)
def test_facts_tell_the_state_and_the_life(claims: list[Claim], halves: Halves) -> None:
    standing, facts = fold(claims, halves)

    told = (facts[-1].state, facts[-1].life) if facts else (TransactionState.PENDING, 0)
    assert (standing.state, standing.life) == told
    assert [order_of(fact.claim) for fact in facts] == sorted(order_of(f.claim) for f in facts)


@given(CLAIMS, HALVES)
def test_a_life_is_one_resume_that_took_effect(claims: list[Claim], halves: Halves) -> None:
    standing, facts = fold(claims, halves)

    assert standing.life == sum(fact.claim.kind is ClaimKind.RESUME for fact in facts)


@given(CLAIMS, HALVES)
def test_checks_are_the_highest_number_since_the_last_resume(
    claims: list[Claim], halves: Halves
) -> None:
    standing, facts = fold(claims, halves)

    ordered = sorted(claims, key=order_of)
    changes = [ordered.index(fact.claim) for fact in facts]
    resumes = [
        n for n, fact in zip(changes, facts, strict=True) if fact.claim.kind is ClaimKind.RESUME
    ]
    start = resumes[-1] if resumes else 0
    stop = next((n for n in changes if n > start or not resumes), len(ordered))
    counted = [
        claim.check_times or 0
        for claim in ordered[start:stop]
        if claim.kind is ClaimKind.UNKNOWN
        and claim.producer_group == GROUP
        and claim.life == standing.life
    ]
    assert standing.check_times == max(counted, default=0)
