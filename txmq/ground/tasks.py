"""Tasks that a pool of threads runs if and only if whoever submitted them got their future.

`ThreadPoolExecutor.submit` queues its task before it starts a thread for it. Where no thread can be
started it raises, and the task is run all the same, by the next thread that is free.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from typing import Any, TypeVar

Result = TypeVar("Result")


def submitted(executor: Executor, work: Callable[..., Result], *arguments: Any) -> Future[Result]:
    """Submit a task. Raises: what `submit` raises; then the task is never run."""
    task: Future[Result] = Future()
    try:
        executor.submit(_run, task, work, arguments)
    except BaseException as error:
        if task.cancel():
            raise
        if not isinstance(error, Exception):
            # A thread has it already, and whoever is interrupted here asks for no result.
            wait([task])
            raise
    return task


def called(work: Callable[..., Result], *arguments: Any) -> Future[Result]:
    """Do what a pool does, in this thread: another one would cost a third of a millisecond."""
    task: Future[Result] = Future()
    _run(task, work, arguments)
    return task


def _run(task: Future[Result], work: Callable[..., Result], arguments: tuple[Any, ...]) -> None:
    if not task.set_running_or_notify_cancel():
        return
    try:
        result = work(*arguments)
    except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
        task.set_exception(error)
    else:
        task.set_result(result)
