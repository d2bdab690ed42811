"""Refuses delta-rs in a process that was forked from one that had used it.

delta-rs starts its threads at its first use. A fork copies none of them, and delta-rs then panics
in the new process, with an error that is no Exception. Nothing can start them anew.
"""

from __future__ import annotations

import os

from txmq.errors import ClosedError

FORKED = (
    "delta-rs cannot work in this process, which was forked from one that had used a store. Open "
    "the store in the forked processes only (Celery: in worker_process_init; gunicorn: without "
    "--preload), or start them by spawn or forkserver (multiprocessing.set_start_method)"
)
# What delta-rs says where another program of the process used it before the fork.
_PANIC, _FORK_IN_PANIC = "PanicException", "Forked process"


class _DeltaRs:
    """Whether this process has used delta-rs, and whether a process before a fork had."""

    is_used = False
    is_lost = False


class _Process:
    """This process."""

    id = os.getpid()


def process_id() -> int:
    """As `os.getpid()`, which asks the system each time: that costs a tenth of a send."""
    return _Process.id


def refuse_fork() -> None:
    """Raise ClosedError where delta-rs cannot work any more."""
    if _DeltaRs.is_lost:
        raise ClosedError(FORKED)


def begin_use() -> None:
    """As `refuse_fork`; call it before each use of delta-rs, so that later forks are known."""
    refuse_fork()
    _DeltaRs.is_used = True


def refuse_panic(error: BaseException) -> None:
    """Raise ClosedError if an error is delta-rs's panic about a fork."""
    if type(error).__name__ == _PANIC and _FORK_IN_PANIC in str(error):
        raise ClosedError(FORKED) from error


def fork_problem(what: str) -> str:
    """What to do where something is used that was made before a fork."""
    if _DeltaRs.is_lost:
        return FORKED
    return f"{what} belongs to the process before the fork; make a new one in this process"


def _in_child() -> None:
    _Process.id = os.getpid()
    _DeltaRs.is_lost = _DeltaRs.is_lost or _DeltaRs.is_used


os.register_at_fork(after_in_child=_in_child)
