"""A future of a send is like any other: to the standard library, to asyncio, to its callbacks."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import FIRST_COMPLETED, Future, as_completed, wait
from concurrent.futures import TimeoutError as WaitedTooLong
from typing import Any

import pytest

from txmq.producer.pipeline import SendFuture

KINDS = [Future, SendFuture]
pytestmark = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def set_later(future: Future[Any], value: object) -> threading.Timer:
    timer = threading.Timer(0.05, future.set_result, [value])
    timer.start()
    return timer


def test_result_is_there_before_and_after_somebody_waits(kind: type[Future[Any]]) -> None:
    early, late = kind(), kind()
    early.set_result(1)
    timer = set_later(late, 2)

    assert early.done()
    assert (early.result(), late.result(10)) == (1, 2)
    assert (early.exception(), late.exception()) == (None, None)
    timer.join()


def test_exception_is_raised_and_told(kind: type[Future[Any]]) -> None:
    future, error = kind(), ValueError("no")
    future.set_exception(error)

    assert future.exception() is error
    with pytest.raises(ValueError, match="no"):
        future.result()


def test_who_waits_too_long_is_told(kind: type[Future[Any]]) -> None:
    future = kind()
    with pytest.raises(WaitedTooLong):
        future.result(0.01)
    with pytest.raises(WaitedTooLong):
        future.exception(0.01)
    future.set_result(1)

    assert future.result() == 1


def test_callbacks_are_called_once_before_and_after(kind: type[Future[Any]]) -> None:
    future, called = kind(), list[int]()
    future.add_done_callback(lambda _: called.append(1))
    future.set_result(None)
    future.add_done_callback(lambda _: called.append(2))

    assert called == [1, 2]


def test_several_are_waited_for_together(kind: type[Future[Any]]) -> None:
    early, late, never = kind(), kind(), kind()
    early.set_result(1)
    timer = set_later(late, 2)

    first, _ = wait([early, late, never], return_when=FIRST_COMPLETED)
    assert early in first
    done, pending = wait([late], timeout=10)
    assert (done, pending) == ({late}, set())
    timer.join()
    assert {one.result() for one in as_completed([early, late], timeout=10)} == {1, 2}
    assert wait([never], timeout=0.01).not_done == {never}


def test_asyncio_awaits_it(kind: type[Future[Any]]) -> None:
    async def awaited() -> list[Any]:
        early, late = kind(), kind()
        early.set_result(1)
        timer = set_later(late, 2)
        found = await asyncio.gather(asyncio.wrap_future(early), asyncio.wrap_future(late))
        timer.join()
        return list(found)

    assert asyncio.run(awaited()) == [1, 2]


def test_many_threads_wait_while_it_is_set(kind: type[Future[Any]]) -> None:
    for _ in range(200):
        future, found = kind(), list[int]()
        begin = threading.Barrier(4)

        def waiting(future: Future[Any] = future, found: list[int] = found) -> None:
            begin.wait()  # noqa: B023 - joined before the next one is made
            found.append(future.result(10))

        threads = [threading.Thread(target=waiting) for _ in range(3)]
        for thread in threads:
            thread.start()
        begin.wait()
        future.set_result(7)
        for thread in threads:
            thread.join()

        assert found == [7, 7, 7]


def test_it_says_what_it_is(kind: type[Future[Any]]) -> None:
    future = kind()
    assert "pending" in repr(future)
    future.set_result(1)
    assert "finished" in repr(future)
    assert not future.cancelled()
    assert not future.cancel()
