"""Which of several attempts to send one thing counts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from txmq.message.lifecycle import TransactionState as State
from txmq.producer.once import Attempt, attempts_that_count
from txmq.store.logs import Resolution


class Ids:
    """Each attempt may be known under two ids; the second one is for new attempts."""

    def candidates(self, key: str, attempt: int) -> Sequence[str]:
        return [f"{key}{attempt}-old", self.new(key, attempt)]

    def new(self, key: str, attempt: int) -> str:
        return f"{key}{attempt}"


def found(keys: Sequence[str], **states: State) -> tuple[list[Attempt], list[list[str]]]:
    """What counts where these attempts were made, and which ids were looked up together."""
    ends = {name.replace("_", "-"): Resolution(state, "") for name, state in states.items()}
    looks: list[list[str]] = []

    def ends_of(ids: Sequence[str]) -> dict[str, Resolution]:
        looks.append(list(ids))
        return {own_id: ends[own_id] for own_id in ids if own_id in ends}

    return attempts_that_count(keys, Ids(), ends_of), looks


def test_what_nobody_sent_is_the_first_attempt() -> None:
    assert found(["a"]) == ([Attempt("a0", None)], [["a0-old", "a0"]])


@pytest.mark.parametrize("state", State)
def test_attempt_counts_unless_it_was_rolled_back_or_expired(state: State) -> None:
    (attempt,), _ = found(["a"], a0=state)

    over = state in (State.ROLLED_BACK, State.EXPIRED)
    assert attempt == (Attempt("a1", None) if over else Attempt("a0", Resolution(state, "")))


def test_next_attempts_of_all_are_looked_up_together() -> None:
    attempts, looks = found(
        ["a", "b", "c"],
        a0=State.ROLLED_BACK, a1=State.EXPIRED, b0=State.PENDING, c0_old=State.ROLLED_BACK,
    )  # fmt: skip

    assert [each.transaction_id for each in attempts] == ["a2", "b0", "c1"]
    assert looks == [
        ["a0-old", "a0", "b0-old", "b0", "c0-old", "c0"],
        ["a1-old", "a1", "c1-old", "c1"],
        ["a2-old", "a2"],
    ]


@pytest.mark.parametrize("worse", [State.PENDING, State.DISCARDED, State.ROLLED_BACK])
@pytest.mark.parametrize("better", [State.COMMITTED, State.PENDING])
def test_of_several_ids_the_one_counts_that_readers_see_or_may_see(
    worse: State, better: State
) -> None:
    for own_id, states in {
        "a0": {"a0": better, "a0_old": worse},
        "a0-old": {"a0": worse, "a0_old": better},
    }.items():
        (attempt,), _ = found(["a"], **states)
        assert attempt.end is not None
        assert (attempt.transaction_id == own_id) or (worse is better)


def test_nothing_to_send_is_looked_up_nowhere() -> None:
    assert found([]) == ([], [])
