from __future__ import annotations

import pytest

from txmq.check.round import CheckLease
from txmq.store.store import Store
from txmq.testing import before_commit

LEASE_S = 30.0
NOW_MS = 1_800_000_000_000


def lease(store: Store, holder: str) -> CheckLease:
    return CheckLease(store.tables.register("check_lease"), holder, LEASE_S)


def test_free_lease_is_taken(store: Store) -> None:
    assert lease(store, "a").take(NOW_MS)


def test_held_lease_is_refused_to_others(store: Store) -> None:
    lease(store, "a").take(NOW_MS)

    assert not lease(store, "b").take(NOW_MS + 29_999)


def test_lease_given_back_is_free_at_once(store: Store) -> None:
    first = lease(store, "a")
    first.take(NOW_MS)
    first.give_back(NOW_MS)

    assert lease(store, "b").take(NOW_MS)


def test_silent_holder_is_succeeded(store: Store) -> None:
    lease(store, "a").take(NOW_MS)

    assert lease(store, "b").take(NOW_MS + 30_000)


def test_holder_that_takes_it_again_is_not_silent(store: Store) -> None:
    first, second = lease(store, "a"), lease(store, "b")
    first.take(NOW_MS)
    first.take(NOW_MS + 20_000)

    assert not second.take(NOW_MS + 40_000)


def test_holder_whose_clock_is_ahead_is_succeeded_by_the_observers_clock(store: Store) -> None:
    second = lease(store, "b")
    lease(store, "a").take(NOW_MS + 3_600_000)

    assert not second.take(NOW_MS)
    assert not second.take(NOW_MS + 29_999)
    assert second.take(NOW_MS + 30_000)


def test_observer_whose_clock_is_set_back_waits_no_longer_than_a_lease(store: Store) -> None:
    second = lease(store, "b")
    lease(store, "a").take(NOW_MS)

    assert not second.take(NOW_MS - 3_600_000)
    assert second.take(NOW_MS - 3_600_000 + 30_000)


def test_of_two_takers_at_once_one_wins(store: Store) -> None:
    first, second = lease(store, "a"), lease(store, "b")
    with before_commit(lambda: pytest.fail("lost") if not second.take(NOW_MS) else None):
        assert not first.take(NOW_MS)


def test_loser_does_not_give_back_what_its_successor_holds(store: Store) -> None:
    first, second = lease(store, "a"), lease(store, "b")
    first.take(NOW_MS)
    second.take(NOW_MS + 30_000)
    first.give_back(NOW_MS + 30_001)

    assert not lease(store, "c").take(NOW_MS + 30_002)
