"""For tests of users and of txmq: clocks, faults, a broker in steps, fixtures of pytest."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from txmq.testing.clocks import START_MS, ManualClock, WrongClock
    from txmq.testing.faults import (
        FAIL_POINTS_VARIABLE,
        arm_fail_points,
        before_commit,
        failing_commits,
    )
    from txmq.testing.published import published_messages
    from txmq.testing.stepped_broker import SteppedBroker

# Loaded when they are used: pytest imports this package wherever txmq is installed.
_MODULES = {
    "FAIL_POINTS_VARIABLE": "faults",
    "START_MS": "clocks",
    "ManualClock": "clocks",
    "SteppedBroker": "stepped_broker",
    "WrongClock": "clocks",
    "arm_fail_points": "faults",
    "before_commit": "faults",
    "failing_commits": "faults",
    "published_messages": "published",
}

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
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}.{_MODULES[name]}")
    value = globals()[name] = getattr(module, name)
    return value


# Services never import this package, so the variable alone does nothing.
if os.environ.get("TXMQ_FAILPOINTS"):
    import_module(f"{__name__}.faults")
