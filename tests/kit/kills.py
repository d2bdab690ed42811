"""Kills this process's work at a step, as SIGKILL would, or interrupts it, as Ctrl-C does."""

from __future__ import annotations

import itertools
import linecache
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from txmq.ground.fail_points import FailPoint, arm


class Killed(BaseException):
    """As SIGKILL: no handler of errors sees it as one."""


@contextmanager
def killed_at(times: int, *points: FailPoint) -> Iterator[None]:
    """Die when one of these steps is reached for the n-th time; the block must come so far."""
    left = times

    def dies(point: FailPoint) -> None:
        nonlocal left
        left -= point in points
        if not left:
            raise Killed

    disarm = arm(dies)
    try:
        with pytest.raises(Killed):
            yield
    finally:
        disarm()


@contextmanager
def interrupted(owner: type, name: str, *, nth: int = 1, before: bool = False) -> Iterator[None]:
    """Interrupt this process as the n-th call of a method of `owner` returns, or begins."""
    method, left = getattr(owner, name), nth

    def interrupts(*arguments: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        if not left and before:
            raise KeyboardInterrupt
        answer = method(*arguments, **options)
        if not left:
            raise KeyboardInterrupt
        return answer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, interrupts)
        yield


def interrupted_at(place: int, call: Callable[[], object], files: Collection[str]) -> bool:
    """Raise KeyboardInterrupt at one of the steps of a call; tell whether it has so many.

    Steps are those in these files of code. A signal comes between two lines, and where a function
    begins or ends; but not where a `with` has taken or given back, nor at a `try`, which are lines
    only for who traces.
    """
    places = itertools.count()

    def interrupt(frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_code.co_filename
        if name not in files:
            return None
        is_step = not linecache.getline(name, frame.f_lineno).strip().startswith(("with ", "try:"))
        if event != "exception" and is_step and next(places) == place:
            raise KeyboardInterrupt
        return interrupt

    sys.settrace(interrupt)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False
