"""The deadline join rests while the logs are quiet, and nothing is checked late for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.kit.builders import halves
from txmq.check.recheck import Recheck
from txmq.check.round import CheckRound
from txmq.check.service import SEARCHES_IN_A_PAUSE
from txmq.errors import StorageError
from txmq.spark import join_trigger as triggers
from txmq.spark.join_trigger import LogTraffic, StreamTrigger
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.testing import ManualClock


class Elapsed:
    """The time that passed, for everything that is done at intervals."""

    def __init__(self) -> None:
        self.s = 0.0

    def pass_s(self, seconds: float) -> None:
        self.s += seconds


class Query:
    """A query that runs until it is stopped."""

    batches = 1
    exception = None
    started = 0

    def __init__(self, *_: Any) -> None:
        type(self).started += 1
        self.is_alive = True

    def has_dropped_rows(self) -> bool:
        return False

    def is_steady(self, *_: float) -> bool:
        return True

    def stop(self) -> None:
        self.is_alive = False


@pytest.fixture
def elapsed(monkeypatch: pytest.MonkeyPatch) -> Elapsed:
    passed = Elapsed()
    monkeypatch.setattr("txmq.check.service.time.monotonic", lambda: passed.s)
    monkeypatch.setattr(triggers, "_Running", Query)
    Query.started = 0
    return passed


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store", Config(deadline_join="always"))


@pytest.fixture
def clock() -> ManualClock:
    # Deadlines count from the time at which the storage received a half.
    return ManualClock(time.time_ns() // 1_000_000)


@pytest.fixture
def recheck(store: Store, clock: ManualClock) -> Recheck:
    return Recheck(store, CheckRound(store, listeners={}, clock=clock), clock)


@pytest.fixture
def trigger(
    store: Store,
    clock: ManualClock,
    recheck: Recheck,
    elapsed: Elapsed,  # noqa: ARG001 - its time passes
) -> StreamTrigger:
    spark: Any = object()
    return StreamTrigger(spark, store, clock, recheck, lambda *_: None)


def looked(trigger: StreamTrigger, elapsed: Elapsed, times: int = 1) -> bool:
    """The service's turns, one per interval; whether the last one asks for a recheck."""
    asks = False
    for _ in range(times):
        elapsed.pass_s(2.0)
        asks = trigger.keep_running()
    return asks


def commit(store: Store, number: int) -> None:
    store.tables.half_log().table.writer.append(halves(number), app_id="test", number=number)


def test_query_starts_with_the_service(trigger: StreamTrigger) -> None:
    assert trigger.keep_running()
    assert Query.started == 1


def test_query_stops_when_the_logs_were_quiet_and_a_recheck_follows(
    trigger: StreamTrigger, elapsed: Elapsed
) -> None:
    looked(trigger, elapsed, 14)
    assert trigger._running is not None

    assert looked(trigger, elapsed, 2) or trigger._is_resting
    assert trigger._running is None


def test_query_goes_on_while_there_are_commits(
    store: Store, trigger: StreamTrigger, elapsed: Elapsed
) -> None:
    for number in range(1, 30):
        commit(store, number)
        looked(trigger, elapsed)

    assert trigger._running is not None
    assert Query.started == 1


def resting(trigger: StreamTrigger, elapsed: Elapsed) -> StreamTrigger:
    looked(trigger, elapsed, 20)
    assert trigger._is_resting
    return trigger


def test_what_falls_due_during_a_rest_is_found_by_its_deadline(
    store: Store,
    clock: ManualClock,
    recheck: Recheck,
    trigger: StreamTrigger,
    elapsed: Elapsed,
) -> None:
    commit(store, 1)
    recheck.run_once()
    resting(trigger, elapsed)
    before_s = trigger.recheck_interval_s()

    clock.advance(3600)

    assert before_s == float("inf")
    assert trigger.recheck_interval_s() == store.config.check_trigger_interval_s


def test_new_half_during_a_rest_is_searched_at_once(
    store: Store, recheck: Recheck, trigger: StreamTrigger, elapsed: Elapsed
) -> None:
    recheck.run_once()
    resting(trigger, elapsed)
    commit(store, 1)

    assert trigger.recheck_interval_s() == store.config.check_trigger_interval_s


def test_one_transaction_ends_no_rest_and_traffic_does(
    store: Store, trigger: StreamTrigger, elapsed: Elapsed
) -> None:
    resting(trigger, elapsed)
    commit(store, 1)
    looked(trigger, elapsed, 3)
    assert trigger._running is None

    asks = [commit(store, n) or looked(trigger, elapsed) for n in range(2, 7)]

    assert asks == [False, False, False, False, True]
    assert Query.started == 2


def test_logs_that_cannot_be_looked_at_are_not_quiet(
    store: Store, elapsed: Elapsed, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = LogTraffic(store)

    def broken() -> bool:
        raise StorageError("half", "cannot be read")

    monkeypatch.setattr(logs._tables[0].log, "has_news", broken)
    for _ in range(20):
        elapsed.pass_s(2.0)
        logs.look()

    assert not logs.is_quiet


# --- while searches are cheap ---------------------------------------------------------------------


@pytest.fixture
def choosing(
    tmp_path: Path,
    clock: ManualClock,
    elapsed: Elapsed,  # noqa: ARG001 - its time passes
) -> tuple[Store, Recheck, StreamTrigger]:
    """A service that chooses between the query and searches of the logs."""
    store = Store.create(tmp_path / "choosing", Config())
    recheck = Recheck(store, CheckRound(store, listeners={}, clock=clock), clock)
    return store, recheck, StreamTrigger(object(), store, clock, recheck, lambda *_: None)  # type: ignore[arg-type]


def test_cheap_searches_take_the_place_of_the_query_also_under_traffic(
    choosing: tuple[Store, Recheck, StreamTrigger], elapsed: Elapsed
) -> None:
    store, recheck, trigger = choosing
    recheck.search_s = store.config.check_trigger_interval_s / SEARCHES_IN_A_PAUSE
    for number in range(1, 12):
        commit(store, number)
        looked(trigger, elapsed)
        assert trigger.recheck_interval_s() == store.config.check_trigger_interval_s

    assert Query.started == 0


def test_query_starts_under_traffic_once_searches_would_come_late(
    choosing: tuple[Store, Recheck, StreamTrigger], elapsed: Elapsed
) -> None:
    store, recheck, trigger = choosing
    recheck.search_s = 1.01 * store.config.check_trigger_interval_s / SEARCHES_IN_A_PAUSE
    looked(trigger, elapsed, 5)
    assert Query.started == 0

    asks = [commit(store, number) or looked(trigger, elapsed) for number in range(1, 6)]

    assert asks == [False, False, False, False, True]
    assert Query.started == 1


@pytest.mark.parametrize("seconds", [4, 8, 28])
def test_query_starts_also_where_commits_come_seldom_but_keep_coming(
    choosing: tuple[Store, Recheck, StreamTrigger], elapsed: Elapsed, seconds: int
) -> None:
    store, recheck, trigger = choosing
    recheck.search_s = 5.0
    for number in range(1, 12):
        commit(store, number)
        looked(trigger, elapsed, seconds // 2)

    assert Query.started == 1


def test_transaction_a_minute_starts_no_query(
    choosing: tuple[Store, Recheck, StreamTrigger], elapsed: Elapsed
) -> None:
    store, recheck, trigger = choosing
    recheck.search_s = 5.0
    for number in range(1, 12):
        commit(store, number)
        looked(trigger, elapsed, 30)

    assert Query.started == 0


def test_searches_that_take_long_come_at_least_every_recheck_interval(
    choosing: tuple[Store, Recheck, StreamTrigger],
) -> None:
    store, recheck, trigger = choosing
    recheck.search_s = 60.0

    assert trigger.recheck_interval_s() == store.config.recheck_interval_s
