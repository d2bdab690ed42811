"""A query that breaks is started anew, unless no new start can heal it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.kit.reading import wait_until
from txmq import handles as service
from txmq.handles import BREAKS_MAX, Restarting, StreamHandle


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
    monkeypatch.setattr(service, "STOP_WAIT_S", 0.01)
    in_batch, forgotten = threading.Lock(), threading.Event()
    in_batch.acquire()

    StreamHandle(Ended(), threading.Event(), in_batch, forgotten.set).stop()

    assert forgotten.is_set()
