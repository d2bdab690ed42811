"""When the deadline join runs, when it rests, and who searches meanwhile."""

from __future__ import annotations

import threading
import time
from concurrent.futures import wait
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.builders import halves
from txmq.check.recheck import Recheck
from txmq.check.round import CheckRound
from txmq.check.service import SEARCHES_IN_A_PAUSE, LogTrigger
from txmq.errors import StorageError
from txmq.spark import join_trigger as triggers
from txmq.spark.join_trigger import LogTraffic, StreamTrigger
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
    prompt = True
    starts: threading.Event

    def __init__(self, *_: Any) -> None:
        type(self).started += 1
        type(self).prompt = True
        type(self).starts.wait()
        self.is_alive = True

    def has_dropped_rows(self) -> bool:
        return False

    def is_prompt(self, _silence_s: float) -> bool:
        return self.prompt

    def stop(self) -> None:
        self.is_alive = False


@pytest.fixture
def elapsed(monkeypatch: pytest.MonkeyPatch) -> Elapsed:
    passed = Elapsed()
    monkeypatch.setattr("txmq.check.service.time.monotonic", lambda: passed.s)
    monkeypatch.setattr(triggers, "_Running", Query)
    Query.started, Query.starts = 0, threading.Event()
    Query.starts.set()
    return passed


# A session that answers, and is asked for nothing else.
LIVING_JAVA: Any = SimpleNamespace(streams=SimpleNamespace(active=[]))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


@pytest.fixture
def clock() -> ManualClock:
    # Deadlines count from the time at which the storage received a half.
    return ManualClock(time.time_ns() // 1_000_000)


@pytest.fixture
def recheck(store: Store, clock: ManualClock) -> Recheck:
    return Recheck(store, CheckRound(store, listeners={}, clock=clock), clock)


def made(store: Store, clock: ManualClock, recheck: Recheck, *, rests: bool) -> StreamTrigger:
    by_logs = LogTrigger(store, recheck, lambda *_: None)
    return StreamTrigger(LIVING_JAVA, store, clock, by_logs, rests=rests)


@pytest.fixture
def trigger(
    store: Store,
    clock: ManualClock,
    recheck: Recheck,
    elapsed: Elapsed,  # noqa: ARG001 - its time passes
) -> StreamTrigger:
    """Of a check service alone."""
    return made(store, clock, recheck, rests=False)


@pytest.fixture
def choosing(
    store: Store,
    clock: ManualClock,
    recheck: Recheck,
    elapsed: Elapsed,  # noqa: ARG001 - its time passes
) -> StreamTrigger:
    """Of a broker, which chooses between the query and searches of the logs."""
    return made(store, clock, recheck, rests=True)


def looked(trigger: StreamTrigger, elapsed: Elapsed, times: int = 1) -> bool:
    """The service's turns, one per interval; whether the last one asks for a recheck."""
    asks = False
    for _ in range(times):
        elapsed.pass_s(2.0)
        asks = kept(trigger)
    return asks


def kept(trigger: StreamTrigger) -> bool:
    """One turn, and a second one if a query was begun: now it has started."""
    asks = trigger.keep_running()
    if trigger._starting is None:
        return asks
    wait([trigger._starting])
    return trigger.keep_running()


def commit(store: Store, number: int) -> None:
    store.tables.half_log().table.writer.append(halves(number), app_id="test", number=number)


# --- from start to stop ---------------------------------------------------------------------------


def test_query_starts_with_the_service(trigger: StreamTrigger) -> None:
    assert kept(trigger)
    assert Query.started == 1


def test_search_goes_on_at_its_own_pace_while_a_query_starts(
    store: Store, recheck: Recheck, trigger: StreamTrigger
) -> None:
    Query.starts.clear()
    assert not trigger.keep_running()
    recheck.run_once()
    commit(store, 1)

    assert not trigger.keep_running()
    assert trigger.recheck_interval_s() == store.config.check_trigger_interval_s
    Query.starts.set()
    assert kept(trigger)


def test_query_that_starts_while_the_service_stops_is_stopped(trigger: StreamTrigger) -> None:
    trigger.keep_running()
    trigger.stop()

    assert Query.started == 1
    assert trigger._running is None


def test_query_goes_on_while_nothing_happens(trigger: StreamTrigger, elapsed: Elapsed) -> None:
    looked(trigger, elapsed, 100)

    assert trigger._running is not None
    assert Query.started == 1


def test_what_was_open_before_the_query_is_searched_for_until_it_was_due(
    store: Store, clock: ManualClock, recheck: Recheck, trigger: StreamTrigger
) -> None:
    commit(store, 1)
    kept(trigger)
    recheck.run_once()
    # The query sees this one.
    commit(store, 2)
    before_s = trigger.recheck_interval_s()

    clock.advance(store.config.transaction_timeout_s + 1.0)

    assert before_s == store.config.check_trigger_interval_s
    assert trigger.recheck_interval_s() == store.config.recheck_interval_s


def test_search_goes_on_at_its_own_pace_until_one_has_ended(
    store: Store, recheck: Recheck, trigger: StreamTrigger, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept(trigger)

    def broken() -> None:
        raise StorageError("half", "cannot be read")

    monkeypatch.setattr(recheck._open, "read", lambda _: broken())
    with pytest.raises(StorageError):
        recheck.run_once()
    before_s = trigger.recheck_interval_s()
    monkeypatch.undo()
    recheck.run_once()

    assert before_s == store.config.check_trigger_interval_s
    assert trigger.recheck_interval_s() == store.config.recheck_interval_s


def test_search_goes_on_at_its_own_pace_while_micro_batches_come_late(
    store: Store, recheck: Recheck, trigger: StreamTrigger
) -> None:
    kept(trigger)
    recheck.run_once()
    commit(store, 1)
    Query.prompt = False
    late_s = trigger.recheck_interval_s()
    Query.prompt = True

    assert late_s == store.config.check_trigger_interval_s
    assert trigger.recheck_interval_s() == store.config.recheck_interval_s


def test_query_that_starts_anew_has_not_seen_what_the_one_before_saw(
    store: Store, recheck: Recheck, trigger: StreamTrigger, elapsed: Elapsed
) -> None:
    kept(trigger)
    recheck.run_once()
    trigger.recheck_interval_s()
    commit(store, 1)
    assert trigger._running is not None
    trigger._running.is_alive = False

    assert looked(trigger, elapsed, 2)
    assert trigger.recheck_interval_s() == store.config.check_trigger_interval_s


# --- in a broker: while the logs are quiet --------------------------------------------------------


def joining(store: Store, recheck: Recheck, choosing: StreamTrigger, elapsed: Elapsed) -> None:
    """Traffic while searches are slow."""
    recheck.search_s = store.config.check_trigger_interval_s
    for number in range(101, 107):
        commit(store, number)
        looked(choosing, elapsed)
    assert choosing._running is not None


def test_query_stops_when_the_logs_were_quiet_and_a_recheck_follows(
    store: Store, recheck: Recheck, choosing: StreamTrigger, elapsed: Elapsed
) -> None:
    joining(store, recheck, choosing, elapsed)
    looked(choosing, elapsed, 14)
    assert choosing._running is not None

    assert looked(choosing, elapsed)
    assert choosing._running is None


def test_query_goes_on_while_there_are_commits(
    store: Store, recheck: Recheck, choosing: StreamTrigger, elapsed: Elapsed
) -> None:
    joining(store, recheck, choosing, elapsed)
    for number in range(1, 30):
        commit(store, number)
        looked(choosing, elapsed)

    assert choosing._running is not None
    assert Query.started == 1


def test_what_falls_due_during_a_rest_is_found_by_its_deadline(
    store: Store, clock: ManualClock, recheck: Recheck, choosing: StreamTrigger
) -> None:
    commit(store, 1)
    recheck.run_once()
    before_s = choosing.recheck_interval_s()

    clock.advance(3600)

    assert before_s == float("inf")
    assert choosing.recheck_interval_s() == store.config.check_trigger_interval_s


def test_new_half_during_a_rest_is_searched_at_once(
    store: Store, recheck: Recheck, choosing: StreamTrigger
) -> None:
    recheck.run_once()
    commit(store, 1)

    assert choosing.recheck_interval_s() == store.config.check_trigger_interval_s


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


def test_cheap_searches_take_the_place_of_the_query_also_under_traffic(
    store: Store, recheck: Recheck, choosing: StreamTrigger, elapsed: Elapsed
) -> None:
    recheck.search_s = store.config.check_trigger_interval_s / SEARCHES_IN_A_PAUSE
    for number in range(1, 12):
        commit(store, number)
        looked(choosing, elapsed)
        assert choosing.recheck_interval_s() == store.config.check_trigger_interval_s

    assert Query.started == 0


def test_query_starts_under_traffic_once_searches_would_come_late(
    store: Store, recheck: Recheck, choosing: StreamTrigger, elapsed: Elapsed
) -> None:
    recheck.search_s = 1.01 * store.config.check_trigger_interval_s / SEARCHES_IN_A_PAUSE
    looked(choosing, elapsed, 5)
    assert Query.started == 0

    asks = [commit(store, number) or looked(choosing, elapsed) for number in range(1, 6)]

    assert asks == [False, False, False, False, True]
    assert Query.started == 1


@pytest.mark.parametrize("seconds", [4, 8, 28])
def test_query_starts_also_where_commits_come_seldom_but_keep_coming(
    store: Store, recheck: Recheck, choosing: StreamTrigger, elapsed: Elapsed, seconds: int
) -> None:
    recheck.search_s = 5.0
    for number in range(1, 12):
        commit(store, number)
        looked(choosing, elapsed, seconds // 2)

    assert Query.started == 1


def test_transaction_a_minute_starts_no_query(
    store: Store, recheck: Recheck, choosing: StreamTrigger, elapsed: Elapsed
) -> None:
    recheck.search_s = 5.0
    for number in range(1, 12):
        commit(store, number)
        looked(choosing, elapsed, 30)

    assert Query.started == 0


def test_searches_that_take_long_come_at_least_every_recheck_interval(
    store: Store, recheck: Recheck, choosing: StreamTrigger
) -> None:
    recheck.search_s = 60.0

    assert choosing.recheck_interval_s() == store.config.recheck_interval_s
