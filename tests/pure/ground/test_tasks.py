"""A task is run if and only if whoever submitted it got its future."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from txmq.ground.tasks import called, submitted


@pytest.fixture
def ran() -> list[str]:
    return []


class Reluctant(ThreadPoolExecutor):
    """Queues a task, then says that no thread can be started, as `submit` does."""

    error: BaseException | None = None
    after: Callable[[], object] = staticmethod(lambda: None)

    def submit(self, *arguments: Any, **options: Any) -> Future[Any]:
        task = super().submit(*arguments, **options)
        if self.error is not None:
            self.after()
            raise self.error
        return task


def test_result_and_error_come_with_the_future(ran: list[str]) -> None:
    with ThreadPoolExecutor(1) as pool:
        assert submitted(pool, len, "four").result() == 4
        with pytest.raises(SystemExit):
            submitted(pool, exit_now).result()
        submitted(pool, ran.append, "next").result()
    assert called(len, "four").result() == 4
    assert ran == ["next"]


def exit_now() -> None:
    raise SystemExit


def test_task_whose_submit_failed_is_not_run_by_the_next_thread(ran: list[str]) -> None:
    begin = threading.Event()
    with Reluctant(1) as pool:
        busy: Future[bool] = submitted(pool, begin.wait)
        pool.error = RuntimeError("can't start new thread")
        with pytest.raises(RuntimeError, match="new thread"):
            submitted(pool, ran.append, "refused")
        pool.error = None
        begin.set()
        busy.result()
        submitted(pool, ran.append, "next").result()

    assert ran == ["next"]


def test_task_that_a_thread_has_already_gives_its_future(ran: list[str]) -> None:
    begun = threading.Event()

    def work() -> None:
        begun.set()
        ran.append("begun")

    with Reluctant(1) as pool:
        pool.error, pool.after = RuntimeError("can't start new thread"), begun.wait
        submitted(pool, work).result()

    assert ran == ["begun"]


def test_who_is_interrupted_leaves_nothing_at_work(ran: list[str]) -> None:
    begun = threading.Event()

    def work() -> None:
        begun.set()
        ran.append("ended")

    with Reluctant(1) as pool:
        pool.error, pool.after = KeyboardInterrupt(), begun.wait
        with pytest.raises(KeyboardInterrupt):
            submitted(pool, work)
        assert ran == ["ended"]
