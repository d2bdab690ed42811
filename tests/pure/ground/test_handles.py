"""Handles of services: a query that breaks is started anew, and every end is told."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.memory_table import MemoryStore
from tests.kit.reading import wait_until
from txmq.errors import EnvironmentProblemError
from txmq.ground import handles as service
from txmq.ground.handles import (
    BREAKS_MAX,
    Restarting,
    ThreadHandle,
    is_survivable,
    set_by_signals,
)
from txmq.ops.broker import Broker, BrokerHandle
from txmq.ops.broker_log import BrokerCounts
from txmq.spark import queries as streaming
from txmq.spark.queries import StreamHandle, batch_of_spark


class Query:
    """Runs until it is broken or stopped; all share one flag to stop, as those of a service do."""

    def __init__(self, stopping: threading.Event) -> None:
        self.is_alive, self.exception, self.stops = True, None, 0
        self.is_forgotten = False
        self._stopping = stopping

    def break_down(self, failure: Exception) -> None:
        self.exception, self.is_alive = failure, False  # type: ignore[assignment]

    def stop(self) -> None:
        self._stopping.set()
        self.is_alive, self.stops = False, self.stops + 1

    def forget(self) -> None:
        self.is_forgotten = True


def test_thread_that_was_not_begun_is_stopped_at_once() -> None:
    """As where no more threads can be started: its owner ends all the same."""
    ThreadHandle("never", 0.0).stop()


@pytest.fixture
def queries(monkeypatch: pytest.MonkeyPatch) -> list[Query]:
    monkeypatch.setattr(service, "LOOK_INTERVAL_S", 0.001)
    return []


def running(
    queries: list[Query],
    is_final: Callable[[Any], bool] = lambda _: False,
    *,
    breaks: bool = False,
) -> Restarting:
    stopping = threading.Event()

    def start() -> Any:
        queries.append(Query(stopping))
        if breaks:
            queries[-1].break_down(OSError("broken at once"))
        return queries[-1]

    return Restarting(start, stopping, is_final)


def test_broken_query_is_started_anew(queries: list[Query]) -> None:
    handle = running(queries)
    queries[0].break_down(OSError("no checkpoint"))
    wait_until(lambda: len(queries) == 2)

    queries[1].break_down(OSError("no checkpoint again"))
    wait_until(lambda: len(queries) == 3)

    assert handle.is_alive
    assert handle.exception is None
    handle.stop()
    assert [query.stops for query in queries] == [0, 0, 1]
    assert [query.is_forgotten for query in queries] == [True, True, False]
    assert not handle.is_alive


def test_final_failure_ends_it(queries: list[Query]) -> None:
    handle = running(queries, is_final=lambda failure: "restored" in str(failure))
    queries[0].break_down(OSError("the op log was restored"))
    wait_until(lambda: not handle.is_alive)

    assert "restored" in str(handle.exception)
    assert len(queries) == 1
    handle.stop()


def test_query_that_breaks_again_and_again_ends_it(queries: list[Query]) -> None:
    handle = running(queries, breaks=True)
    wait_until(lambda: not handle.is_alive)

    assert "at once" in str(handle.exception)
    assert len(queries) == BREAKS_MAX + 1
    handle.stop()


def test_start_that_fails_ends_it(queries: list[Query]) -> None:
    handle = running(queries)
    monkey = RuntimeError("no Java")

    def failing() -> Any:
        raise monkey

    handle._start = failing
    queries[0].break_down(OSError("no checkpoint"))
    wait_until(lambda: not handle.is_alive)

    assert handle.exception is monkey


def test_start_whose_checkpoint_is_deleted_meanwhile_is_tried_again(queries: list[Query]) -> None:
    stopping = threading.Event()

    def start() -> Any:
        queries.append(Query(stopping))
        if len(queries) in (1, 3):
            message = "no such file"
            raise RuntimeError(message)
        return queries[-1]

    handle = Restarting(start, stopping, lambda _: False)
    assert len(queries) == 2
    queries[1].break_down(OSError("no checkpoint"))
    wait_until(lambda: len(queries) == 4)

    assert handle.is_alive
    handle.stop()


def test_first_start_that_fails_again_and_again_is_an_error(queries: list[Query]) -> None:
    def start() -> Any:
        queries.append(Query(threading.Event()))
        message = "no such folder"
        raise RuntimeError(message)

    with pytest.raises(RuntimeError, match="no such folder"):
        Restarting(start, threading.Event(), lambda _: False)
    assert len(queries) == BREAKS_MAX + 1


class Ended:
    """A query whose Java was killed."""

    isActive = False  # noqa: N815 - Spark's name


class Dying:
    """A query whose Java is killed at one of the calls that stop it."""

    def __init__(self, last_call: str) -> None:
        self._last_call, self._has_java = last_call, True

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        self._call("isActive")
        return True

    @property
    def status(self) -> dict[str, bool]:
        self._call("status")
        return {"isTriggerActive": False}

    def stop(self) -> None:
        self._call("stop")

    def _call(self, name: str) -> None:
        self._has_java = self._has_java and name != self._last_call
        if not self._has_java:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")


@pytest.mark.parametrize("last_call", ["isActive", "status", "stop"])
def test_query_is_stopped_where_java_ends_meanwhile(last_call: str) -> None:
    # A signal to all processes of a service ends Java while Python stops its queries.
    forgotten = threading.Event()

    StreamHandle(Dying(last_call), threading.Event(), threading.Lock(), forgotten.set).stop()

    assert forgotten.is_set()


def test_query_is_not_stopped_before_its_last_batch_has_ended() -> None:
    # Python would end under the batch, by a signal.
    in_batch, forgotten = threading.Lock(), threading.Event()
    handle = StreamHandle(Ended(), threading.Event(), in_batch, forgotten.set)
    with in_batch:
        stopper = threading.Thread(target=handle.stop)
        stopper.start()
        stopper.join(timeout=0.1)
        has_waited = stopper.is_alive() and not forgotten.is_set()
    stopper.join()

    assert has_waited
    assert forgotten.is_set()


def test_batch_that_hangs_does_not_keep_a_service_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streaming, "STOP_WAIT_S", 0.01)
    in_batch, forgotten = threading.Lock(), threading.Event()
    in_batch.acquire()

    StreamHandle(Ended(), threading.Event(), in_batch, forgotten.set).stop()

    assert forgotten.is_set()


# --- threads and brokers --------------------------------------------------------------------------


class Service(ThreadHandle):
    """A thread whose turn or end fails as it is told."""

    def __init__(self, turn: BaseException | None = None, end: BaseException | None = None) -> None:
        super().__init__("test", 0.001)
        self._turn_failure, self._end_failure = turn, end
        self.begin()

    def _turn(self) -> None:
        if self._turn_failure is not None:
            raise self._turn_failure

    def _end(self) -> None:
        if self._end_failure is not None:
            raise self._end_failure


@pytest.mark.parametrize("failure", [SystemExit(3), KeyboardInterrupt(), MemoryError()])
def test_whatever_ends_a_thread_is_its_exception(failure: BaseException) -> None:
    handle = Service(turn=failure)
    wait_until(lambda: not handle.is_alive)

    assert handle.exception is failure


def test_end_that_fails_is_the_exception_of_its_thread() -> None:
    failure = OSError("progress not kept")
    handle = Service(end=failure)
    handle.stop()

    assert handle.exception is failure


def test_turn_that_fails_is_told_before_an_end_that_fails() -> None:
    turn = OSError("turn")
    handle = Service(turn=turn, end=OSError("end"))
    wait_until(lambda: not handle.is_alive)

    assert handle.exception is turn


class Started:
    """A service of a broker that notes when it was stopped."""

    is_alive, exception = True, None

    def __init__(self, name: str, stopped: list[str], failure: Exception | None = None) -> None:
        self._name, self._stopped, self._failure = name, stopped, failure

    def stop(self) -> None:
        self._stopped.append(self._name)
        if self._failure is not None:
            raise self._failure


def test_service_that_cannot_stop_holds_up_no_other() -> None:
    stopped: list[str] = []
    failure = OSError("no Java")
    handle = BrokerHandle(
        {
            "publisher": Started("publisher", stopped),
            "check service": Started("check service", stopped, failure),
            "maintenance": Started("maintenance", stopped),
        }
    )

    with pytest.raises(OSError, match="no Java"):
        handle.stop()

    assert stopped == ["maintenance", "check service", "publisher"]


def start_of(name: str, stopped: list[str]) -> Callable[..., Started]:
    return lambda **_: Started(name, stopped)


STARTED = ["maintenance", "publisher", "check_service", "delay_service"]


@pytest.mark.parametrize("broken", STARTED)
def test_broker_that_cannot_start_all_services_runs_none(
    broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, stopped = Broker(MemoryStore()), list[str]()
    for name in STARTED:
        monkeypatch.setattr(getattr(broker, name), "start", start_of(name, stopped))

    def failing(**_: bool) -> None:
        message = "can't start new thread"
        raise RuntimeError(message)

    monkeypatch.setattr(getattr(broker, broken), "start", failing)
    with pytest.raises(RuntimeError, match="can't start"):
        broker.start()

    assert stopped == STARTED[: STARTED.index(broken)][::-1]


def test_publisher_stops_after_the_check_service_whose_answers_it_publishes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker, stopped = Broker(MemoryStore()), list[str]()
    monkeypatch.setattr("txmq.ops.broker.WatchedServices.counts", lambda _: BrokerCounts())
    for name in STARTED:
        monkeypatch.setattr(getattr(broker, name), "start", start_of(name, stopped))

    broker.start().stop()

    assert stopped == STARTED[::-1]


# --- what is no Exception -------------------------------------------------------------------------


class PanicException(BaseException):
    """As pyo3 names what a panic of Rust becomes."""


class Died(Started):
    """A service that has ended, maybe by something."""

    def __init__(self, name: str, stopped: list[str], end: BaseException | None) -> None:
        super().__init__(name, stopped)
        self.exception = end
        self.is_alive = False


@pytest.mark.parametrize(
    ("end", "by"),
    [(SystemExit(0), "SystemExit"), (PanicException("x"), "PanicException"), (None, "itself")],
)
def test_broker_whose_service_died_says_which_and_by_what(
    end: BaseException | None, by: str
) -> None:
    stopped: list[str] = []
    services = {
        "publisher": Started("publisher", stopped),
        "maintenance": Died("maintenance", stopped, end),
    }
    handle = BrokerHandle(services)

    with pytest.raises(EnvironmentProblemError, match=f"the maintenance ended by {by}") as caught:
        handle.wait()

    assert caught.value.__cause__ is end
    assert stopped == ["maintenance", "publisher"]


def test_broker_that_was_told_to_stop_ends_without_an_error() -> None:
    handle = BrokerHandle({"publisher": Died("publisher", [], None)})
    handle.stop()

    handle.wait()


@pytest.mark.parametrize("failure", [SystemExit(1), PanicException("x"), KeyboardInterrupt()])
def test_whatever_one_service_raises_at_its_end_the_others_stop(failure: BaseException) -> None:
    stopped: list[str] = []
    services = {
        "publisher": Started("publisher", stopped),
        "check service": Started("check service", stopped, failure),  # type: ignore[arg-type]
    }

    with pytest.raises(type(failure)):
        BrokerHandle(services).stop()

    assert stopped == ["check service", "publisher"]


@pytest.mark.parametrize("failure", [SystemExit(1), PanicException("x")])
def test_spark_hears_of_a_batch_whatever_it_raised(failure: BaseException) -> None:
    with pytest.raises(EnvironmentProblemError, match="a micro-batch ended by") as caught:  # noqa: SIM117
        with batch_of_spark():
            raise failure

    assert caught.value.__cause__ is failure


@pytest.mark.parametrize(
    ("error", "survives"),
    [(ValueError(), True), (PanicException(), True), (SystemExit(), False),
     (KeyboardInterrupt(), False)],
)  # fmt: skip
def test_work_may_fail_alone_unless_the_process_is_to_end(
    error: BaseException,
    survives: bool,  # noqa: FBT001
) -> None:
    assert is_survivable(error) is survives


def test_signal_within_a_look_at_the_event_is_heeded() -> None:
    # `Event.wait` holds this lock while it looks; the handler runs in the same thread.
    event = threading.Event()
    with set_by_signals(event):
        with event._cond:  # type: ignore[attr-defined]
            os.kill(os.getpid(), signal.SIGTERM)

        assert event.wait(60)


def test_signals_do_what_they_did_before_after_the_block() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    event = threading.Event()

    with set_by_signals(event):
        assert signal.getsignal(signal.SIGTERM) != before[0]

    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before
    assert not event.is_set()
