from __future__ import annotations

import pytest

from tests.kit.builders import COMPLETE, GROUP, claim
from txmq.message.lifecycle import (
    CONFLICT,
    FINAL_STATES,
    MISSING,
    Claim,
    ClaimKind,
    ClaimSource,
    Halves,
    Standing,
    TransactionState,
    end_asked_for,
    fold,
    next_state,
)

KIND = ClaimKind
STATE = TransactionState
MISSING_ONE = Halves(GROUP, message_count=2, found=1)
NO_HEAD = Halves(GROUP, message_count=None, found=1)
CONFLICTING = Halves(GROUP, message_count=1, found=1, conflicting=True)


def state_after(*claims: Claim, halves: Halves = COMPLETE) -> TransactionState:
    return fold(claims, halves)[0].state


def story(*kinds_and_lives: tuple[ClaimKind, int | None]) -> list[Claim]:
    return [
        claim(kind, version=version, life=life)
        for version, (kind, life) in enumerate(kinds_and_lives)
    ]


# --- the state machine, arrow by arrow ---------------------------------------------------------

# (state, kind, life of the claim minus life of the transaction) -> state; all others: no effect.
ARROWS = {
    **{(STATE.PENDING, KIND.COMMIT, shift): STATE.COMMITTED for shift in (None, 0)},
    **{(STATE.PENDING, KIND.ROLLBACK, shift): STATE.ROLLED_BACK for shift in (None, 0)},
    **{(STATE.INCOMPLETE, KIND.ROLLBACK, shift): STATE.ROLLED_BACK for shift in (None, 0)},
    (STATE.PENDING, KIND.DISCARD, 0): STATE.DISCARDED,
    (STATE.DISCARDED, KIND.RESUME, 1): STATE.PENDING,
    (STATE.INCOMPLETE, KIND.RESUME, 1): STATE.PENDING,
    (STATE.PENDING, KIND.EXPIRE, 0): STATE.EXPIRED,
    (STATE.DISCARDED, KIND.EXPIRE, 0): STATE.EXPIRED,
    (STATE.INCOMPLETE, KIND.EXPIRE, 0): STATE.EXPIRED,
}


@pytest.mark.parametrize("state", TransactionState)
@pytest.mark.parametrize("kind", ClaimKind)
@pytest.mark.parametrize("shift", [None, -1, 0, 1, 2])
def test_every_arrow_of_the_design_and_no_other(
    state: TransactionState, kind: ClaimKind, shift: int | None
) -> None:
    life = None if shift is None else 3 + shift

    found = next_state(Standing(state, life=3), claim(kind, life=life), COMPLETE)

    assert found == ARROWS.get((state, kind, shift))


@pytest.mark.parametrize(
    ("halves", "reason"),
    [(MISSING_ONE, MISSING), (NO_HEAD, MISSING), (CONFLICTING, CONFLICT)],
    ids=["missing one", "no head", "conflicting"],
)
def test_commit_of_damaged_halves_is_incomplete_and_says_why(halves: Halves, reason: str) -> None:
    standing, facts = fold([claim(KIND.COMMIT)], halves)

    assert standing.state is STATE.INCOMPLETE
    assert [fact.reason for fact in facts] == [reason]


def test_rollback_of_damaged_halves_takes_effect() -> None:
    assert state_after(claim(KIND.ROLLBACK), halves=MISSING_ONE) is STATE.ROLLED_BACK


def test_incomplete_transaction_is_committed_only_after_repair_and_resume() -> None:
    broken = story((KIND.COMMIT, None), (KIND.COMMIT, None))
    repaired = [claim(KIND.RESUME, version=2, life=1), claim(KIND.COMMIT, version=3)]

    standing, _ = fold(broken, MISSING_ONE)
    assert standing.state is STATE.INCOMPLETE

    standing, _ = fold(repaired, Halves(GROUP, message_count=2, found=2), standing)
    assert standing == Standing(STATE.COMMITTED, life=1)


# --- order ------------------------------------------------------------------------------------


def test_first_end_wins() -> None:
    first, second = story((KIND.COMMIT, None), (KIND.ROLLBACK, None))

    assert state_after(first, second) is STATE.COMMITTED
    assert state_after(second, first) is STATE.COMMITTED


def test_ordinal_decides_inside_one_commit() -> None:
    earlier = claim(KIND.ROLLBACK, version=7, ordinal=1)
    later = claim(KIND.COMMIT, version=7, ordinal=2)

    assert state_after(later, earlier) is STATE.ROLLED_BACK


def test_order_is_by_number_and_not_by_text() -> None:
    assert state_after(claim(KIND.COMMIT, 10), claim(KIND.ROLLBACK, 9)) is STATE.ROLLED_BACK


def test_two_claims_in_one_place_are_read_alike_by_all() -> None:
    one, other = claim(KIND.COMMIT, 1, 0), claim(KIND.ROLLBACK, 1, 0)

    assert fold([one, other], COMPLETE) == fold([other, one], COMPLETE)


def test_fact_names_the_claim_that_took_effect() -> None:
    late = claim(KIND.ROLLBACK, version=9, source=ClaimSource.OPERATOR)
    early = claim(KIND.COMMIT, version=3, source=ClaimSource.CHECK, reason="asked")

    _, facts = fold([late, early], COMPLETE)

    assert [(fact.claim, fact.state, fact.life, fact.reason) for fact in facts] == [
        (early, STATE.COMMITTED, 0, "asked")
    ]


# --- groups -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ClaimKind)
def test_claim_of_another_group_has_no_effect(kind: ClaimKind) -> None:
    foreign = claim(kind, producer_group="somebody-else", life=0, check_times=9)

    assert fold([foreign], COMPLETE) == (Standing(), ())


def test_group_name_must_be_the_same_to_the_letter() -> None:
    assert state_after(claim(KIND.COMMIT, producer_group=GROUP.upper())) is STATE.PENDING


# --- lives ------------------------------------------------------------------------------------


def test_discard_of_an_old_life_does_not_end_the_new_one() -> None:
    claims = story((KIND.DISCARD, 0), (KIND.RESUME, 1), (KIND.DISCARD, 0))

    assert fold(claims, COMPLETE)[0] == Standing(STATE.PENDING, life=1)


def test_resume_written_twice_opens_one_life() -> None:
    claims = story((KIND.DISCARD, 0), (KIND.RESUME, 1), (KIND.RESUME, 1))

    assert fold(claims, COMPLETE)[0] == Standing(STATE.PENDING, life=1)


def test_commit_that_names_no_life_counts_after_a_resume() -> None:
    claims = story((KIND.DISCARD, 0), (KIND.RESUME, 1), (KIND.COMMIT, None))

    assert fold(claims, COMPLETE)[0] == Standing(STATE.COMMITTED, life=1)


def test_commit_of_a_discarded_transaction_waits_for_resume() -> None:
    claims = story((KIND.DISCARD, 0), (KIND.COMMIT, None), (KIND.RESUME, 1))

    assert state_after(*claims) is STATE.PENDING


def test_expire_of_an_old_life_has_no_effect() -> None:
    claims = story((KIND.DISCARD, 0), (KIND.RESUME, 1), (KIND.EXPIRE, 0))

    assert state_after(*claims) is STATE.PENDING


# --- checks -----------------------------------------------------------------------------------


def unknown(version: int, times: int, life: int = 0, due_ms: int | None = None) -> Claim:
    return claim(
        KIND.UNKNOWN, version, life=life, check_times=times, next_check_timestamp_ms=due_ms
    )


def test_checks_are_counted_by_their_number() -> None:
    standing, facts = fold([unknown(1, 1), unknown(2, 2, due_ms=90)], COMPLETE)

    assert standing == Standing(STATE.PENDING, 0, check_times=2, next_check_timestamp_ms=90)
    assert facts == ()


def test_check_written_twice_counts_once() -> None:
    assert fold([unknown(1, 1), unknown(2, 1)], COMPLETE)[0].check_times == 1


def test_older_check_written_again_changes_nothing() -> None:
    rows = [unknown(1, 1, due_ms=10), unknown(2, 2, due_ms=20)]

    assert fold([*rows, unknown(3, 1, due_ms=10)], COMPLETE) == fold(rows, COMPLETE)


def test_uncounted_check_rearms_without_counting() -> None:
    rows = [unknown(1, 1, due_ms=10), unknown(2, 1, due_ms=50)]

    assert fold(rows, COMPLETE)[0] == Standing(check_times=1, next_check_timestamp_ms=50)


def test_uncounted_check_written_again_late_does_not_bring_the_next_one_forward() -> None:
    rows = [unknown(1, 0, due_ms=10), unknown(2, 0, due_ms=50)]

    assert fold([*rows, unknown(3, 0, due_ms=10)], COMPLETE)[0].next_check_timestamp_ms == 50


def test_resume_starts_the_count_again() -> None:
    rows = [unknown(1, 3), claim(KIND.DISCARD, 2, life=0), claim(KIND.RESUME, 3, life=1)]

    assert fold(rows, COMPLETE)[0] == Standing(STATE.PENDING, life=1)


def test_check_of_an_old_life_does_not_count_in_the_new_one() -> None:
    rows = [claim(KIND.DISCARD, 1, life=0), claim(KIND.RESUME, 2, life=1), unknown(3, 9, life=0)]

    assert fold(rows, COMPLETE)[0].check_times == 0


@pytest.mark.parametrize("end", [KIND.COMMIT, KIND.ROLLBACK])
def test_check_after_the_end_changes_nothing(end: ClaimKind) -> None:
    ended = claim(end, 1)

    assert fold([ended, unknown(2, 5, due_ms=9)], COMPLETE) == fold([ended], COMPLETE)


# --- the rest ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "state"), [(KIND.COMMIT, STATE.COMMITTED), (KIND.ROLLBACK, STATE.ROLLED_BACK)]
)
def test_an_end_has_its_state(kind: ClaimKind, state: TransactionState) -> None:
    assert end_asked_for(kind) is state
    assert state in FINAL_STATES


@pytest.mark.parametrize("kind", sorted(set(ClaimKind) - {KIND.COMMIT, KIND.ROLLBACK}))
def test_what_is_no_end_has_none(kind: ClaimKind) -> None:
    with pytest.raises(ValueError, match="does not end"):
        end_asked_for(kind)


@pytest.mark.parametrize(
    ("found", "count", "problem"),
    [(2, 2, None), (1, 2, MISSING), (3, 2, MISSING), (0, None, MISSING), (1, None, MISSING)],
)
def test_halves_are_complete_when_their_head_says_so(
    found: int, count: int | None, problem: str | None
) -> None:
    assert Halves(GROUP, count, found).problem == problem
