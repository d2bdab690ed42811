from __future__ import annotations

import pytest

from txmq.check.standing import (
    MAX_BACKOFF_S,
    Ask,
    CheckStanding,
    Discard,
    Drop,
    DueRow,
    Rearm,
    RollBack,
    believable_next_check_ms,
    decide,
    next_check_ms,
    next_try_ms,
)
from txmq.message.lifecycle import Standing, TransactionState
from txmq.store.config import Config

NOW_MS = 1_000_000
SETTINGS = Config(transaction_check_interval_s=30.0, transaction_check_max=3).of_group("orders")


def due(**fields: object) -> DueRow:
    return DueRow("id", "orders", **{"deadline_ms": NOW_MS - 1, **fields})  # type: ignore[arg-type]


def pending(check_times: int = 0, next_ms: int | None = None, life: int = 0) -> CheckStanding:
    return CheckStanding(Standing(TransactionState.PENDING, life, check_times, next_ms))


def test_head_past_its_deadline_is_asked() -> None:
    assert decide(due(), pending(), NOW_MS, SETTINGS) == Ask(0)


def test_deadline_itself_is_due() -> None:
    assert decide(due(deadline_ms=NOW_MS), pending(), NOW_MS, SETTINGS) == Ask(0)


@pytest.mark.parametrize(
    "state", [s for s in TransactionState if s is not TransactionState.PENDING]
)
def test_what_is_not_pending_is_never_asked(state: TransactionState) -> None:
    assert decide(due(), CheckStanding(Standing(state)), NOW_MS, SETTINGS) == Drop()


def test_row_of_an_earlier_check_is_dropped() -> None:
    now = pending(check_times=2, next_ms=NOW_MS - 1)

    assert decide(due(check_times=1), now, NOW_MS, SETTINGS) == Drop()


def test_row_of_an_earlier_life_is_dropped() -> None:
    assert decide(due(life=0), pending(life=1), NOW_MS, SETTINGS) == Drop()


def test_row_that_another_row_has_armed_again_is_dropped() -> None:
    later = pending(check_times=1, next_ms=NOW_MS + 30_000)

    assert decide(due(check_times=1), later, NOW_MS, SETTINGS) == Drop()


def test_row_that_came_out_too_early_is_armed_again() -> None:
    at_ms = NOW_MS + 5
    now = pending(check_times=1, next_ms=at_ms)

    assert decide(due(check_times=1, deadline_ms=at_ms), now, NOW_MS, SETTINGS) == Rearm(at_ms)


def test_head_that_came_out_too_early_is_armed_again() -> None:
    at_ms = NOW_MS + 5

    assert decide(due(deadline_ms=at_ms), pending(), NOW_MS, SETTINGS) == Rearm(at_ms)


def test_last_allowed_question_is_asked() -> None:
    now = pending(check_times=2, next_ms=NOW_MS)

    assert decide(due(check_times=2), now, NOW_MS, SETTINGS) == Ask(2)


@pytest.mark.parametrize("check_times", [3, 4, 100])
def test_reached_maximum_is_discarded_unasked(check_times: int) -> None:
    now = pending(check_times, NOW_MS)

    assert decide(due(check_times=check_times), now, NOW_MS, SETTINGS) == Discard()


def test_reached_maximum_waits_for_its_deadline() -> None:
    now = pending(3, NOW_MS + 1)

    assert decide(due(check_times=3), now, NOW_MS, SETTINGS) == Drop()


def test_ordinary_message_is_rolled_back_unasked() -> None:
    assert decide(due(ordinary=True), pending(), NOW_MS, SETTINGS) == RollBack()


def test_next_check_is_one_interval_later() -> None:
    assert next_check_ms(NOW_MS, SETTINGS) == NOW_MS + 30_000


@pytest.mark.parametrize(
    ("uncounted", "pause_s"), [(0, 30), (1, 60), (2, 120), (4, 480), (5, 600), (10_000, 600)]
)
def test_pause_before_the_next_try_grows_up_to_its_limit(uncounted: int, pause_s: int) -> None:
    assert next_try_ms(NOW_MS, uncounted, SETTINGS) == NOW_MS + pause_s * 1000


def test_pause_is_never_shorter_than_the_interval() -> None:
    config = Config(transaction_check_interval_s=MAX_BACKOFF_S * 2, transaction_check_max=2)
    slow = config.of_group("orders")

    assert next_try_ms(0, 5, slow) == MAX_BACKOFF_S * 2 * 1000


def test_deadline_from_a_clock_that_was_set_back_is_now() -> None:
    hour_ms = 3_600_000
    armed_ms = NOW_MS + hour_ms

    assert believable_next_check_ms(armed_ms + 30_000, armed_ms, NOW_MS, SETTINGS) == NOW_MS


def test_deadline_from_a_clock_that_is_a_little_ahead_holds() -> None:
    armed_ms = NOW_MS + 29_000

    assert (
        believable_next_check_ms(armed_ms + 30_000, armed_ms, NOW_MS, SETTINGS) == NOW_MS + 59_000
    )
