"""Two folds, written apart, come to the same end for every list of claims."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from txmq.message.lifecycle import Claim, ClaimKind, ClaimSource, Halves, fold
from txmq.verify.fold import KINDS, SeenClaim, SeenFact, facts_of

LIVES = st.none() | st.integers(0, 3)


@st.composite
def claims(draw: st.DrawFn) -> list[Claim]:
    """Claims of several commits, in no order; some places are taken twice."""
    return draw(
        st.lists(
            st.builds(
                Claim,
                transaction_id=st.just("transaction"),
                kind=st.sampled_from(ClaimKind),
                producer_group=st.sampled_from(("group", "group", "group", "strangers")),
                op_version=st.integers(1, 6),
                ordinal=st.integers(0, 4),
                source=st.sampled_from(ClaimSource),
                life=LIVES,
                check_times=st.none() | st.integers(0, 20),
            ),
            max_size=14,
        )
    )


def seen(claim: Claim) -> SeenClaim:
    rest = (str(claim.check_times), str(claim.next_check_timestamp_ms), str(claim.reason))
    return SeenClaim(
        claim.op_version,
        claim.ordinal,
        claim.kind.value,
        claim.producer_group,
        claim.source.value,
        claim.life,
        rest,
    )


def claim(kind: ClaimKind, op_version: int, life: int | None = None) -> Claim:
    return Claim("transaction", kind, "group", op_version, 0, life=life)


RESUMED = [
    claim(ClaimKind.DISCARD, 1, 0),
    claim(ClaimKind.RESUME, 2, 1),
    claim(ClaimKind.DISCARD, 3, 0),
    claim(ClaimKind.COMMIT, 4),
    claim(ClaimKind.ROLLBACK, 5),
]


@example(written=RESUMED, complete=True)
@example(written=[claim(ClaimKind.COMMIT, 1), claim(ClaimKind.RESUME, 2, 1)], complete=False)
@example(written=[claim(ClaimKind.EXPIRE, 1, 0), claim(ClaimKind.COMMIT, 2)], complete=True)
@given(written=claims(), complete=st.booleans())
def test_the_checker_folds_as_the_lifecycle_does(written: list[Claim], *, complete: bool) -> None:
    halves = Halves("group", message_count=1, found=1 if complete else 0)

    _, expected = fold(written, halves)
    changing = [seen(one) for one in written if one.kind.value in KINDS]
    found = facts_of(changing, "group", complete=complete)

    assert found == [
        SeenFact(fact.claim.op_version, fact.claim.ordinal, fact.state.value, fact.life)
        for fact in expected
    ]


@given(written=claims())
def test_halves_that_were_missing_at_one_commit_make_it_incomplete(written: list[Claim]) -> None:
    changing = [seen(one) for one in written if one.kind.value in KINDS]
    everywhere = {one.place for one in changing}

    assert facts_of(changing, "group", complete=False) == facts_of(
        changing, "group", complete=True, incomplete_at=everywhere
    )
