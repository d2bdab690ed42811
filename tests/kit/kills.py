"""Kills this process's work at a step, as SIGKILL would: nothing after it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
