"""For tests of users and of txmq: clocks, faults, a broker in steps, fixtures of pytest."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txmq.testing.clocks import START_MS, ManualClock, WrongClock
    from txmq.testing.faults import (
        FAIL_POINTS_VARIABLE,
        arm_fail_points,
        before_commit,
        failing_commits,
    )
    from txmq.testing.stepped_broker import SteppedBroker, published_messages

_CLOCKS = ("START_MS", "ManualClock", "WrongClock")
_FAULTS = ("FAIL_POINTS_VARIABLE", "arm_fail_points", "before_commit", "failing_commits")

__all__ = [
    "FAIL_POINTS_VARIABLE",
    "START_MS",
    "ManualClock",
    "SteppedBroker",
    "WrongClock",
    "arm_fail_points",
    "before_commit",
    "failing_commits",
    "published_messages",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(_home_of(name), name)
    return value


def _home_of(name: str) -> object:
    # Loaded when it is used: pytest imports this package wherever txmq is installed.
    if name in _CLOCKS:
        from txmq.testing import clocks

        return clocks
    if name in _FAULTS:
        from txmq.testing import faults

        return faults
    from txmq.testing import stepped_broker
    from txmq.testing import stepped_broker as published

    return published if name == "published_messages" else stepped_broker


# Services never import this package, so the variable alone does nothing.
if os.environ.get("TXMQ_FAILPOINTS"):
    from txmq.testing import faults  # noqa: F401 - it arms them
