"""Faults on demand: commits that fail or lose their answer, and processes that die at a step."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError

from txmq.delta import pinned as delta_table
from txmq.delta.actions import NewCommit, Seen
from txmq.delta.commit_writer import CommitWriter, Written
from txmq.ground.fail_points import FailPoint, arm

FAIL_POINTS_VARIABLE = "TXMQ_FAILPOINTS"


@contextmanager
def failing_commits(
    count: int,
    *,
    error: Exception | None = None,
    after_commit: bool = False,
    table: str | None = None,
) -> Iterator[list[str]]:
    """Make the next `count` Delta commits of this process raise `error`.

    Args:
        count: how many commits fail; later commits succeed.
        error: the error that they raise; a lost race (CommitFailedError) if left out.
        after_commit: make the commit and lose only its answer.
        table: the end of a table's location, such as "half"; all tables if left out.

    Yields:
        The locations of the commits that failed so far.
    """
    failed: list[str] = []
    failure = error or CommitFailedError("another writer was first (injected)")

    def around(location: str, commit: Callable[[], None]) -> None:
        fails = len(failed) < count and _is_of(location, table)
        if after_commit or not fails:
            commit()
        if fails:
            failed.append(location)
            raise failure

    with _around_commits(around):
        yield failed


@contextmanager
def before_commit(action: Callable[[], None], *, table: str | None = None) -> Iterator[None]:
    """Run `action` once, right before the next Delta commit of this process.

    It can play another writer that is faster. `table` is as in `failing_commits`.
    """
    waiting = [action]

    def around(location: str, commit: Callable[[], None]) -> None:
        if waiting and _is_of(location, table):
            waiting.pop()()
        commit()

    with _around_commits(around):
        yield


def arm_fail_points(text: str) -> Callable[[], None]:
    """Let this process die, fail or wait at fail points.

    Args:
        text: `point=action` or `point=action@hit`, separated by commas, such as
            `settle.facts_committed=kill@3,check.answered=raise`. Actions: `kill` (SIGKILL),
            `raise` (an OSError) and `pause-SECONDS`. Without a hit it acts at the first one.

    Returns:
        A function that disarms these fail points.

    Raises: ValueError for an unknown point or action.
    """
    plans = [_fault(plan) for plan in text.split(",") if plan.strip()]
    hits: Counter[FailPoint] = Counter()
    lock = threading.Lock()

    def hook(point: FailPoint) -> None:
        with lock:
            hits[point] += 1
            count = hits[point]
        for fault in plans:
            if (fault.point, fault.hit) == (point, count):
                fault.strike()

    return arm(hook)


@dataclass(frozen=True)
class _Fault:
    point: FailPoint
    action: str
    hit: int

    def strike(self) -> None:
        if self.action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.action == "raise":
            raise OSError(errno.EIO, f"fail point {self.point}")
        time.sleep(float(self.action.removeprefix("pause-")))


def _fault(text: str) -> _Fault:
    name, _, rest = text.strip().partition("=")
    action, _, hit = rest.partition("@")
    is_pause = action.startswith("pause-") and action[6:].replace(".", "", 1).isdecimal()
    if name not in list(FailPoint) or not (is_pause or action in ("kill", "raise")):
        problem = f"{text!r} is not point=action@hit; points: {', '.join(FailPoint)}"
        raise ValueError(problem)
    return _Fault(FailPoint(name), action, int(hit or 1))


def _is_of(location: str, table: str | None) -> bool:
    return table is None or location.rstrip("/").endswith(f"/{table}")


@contextmanager
def _around_commits(around: Callable[[str, Callable[[], None]], None]) -> Iterator[None]:
    """Call `around` at each commit: txmq makes those of its own tables, delta-rs all others."""
    append, commit_of_txmq = vars(delta_table)["write_deltalake"], CommitWriter.commit
    commit_files = DeltaTable.create_write_transaction

    def write(handle: DeltaTable, *arguments: Any, **options: Any) -> None:
        around(handle.table_uri, lambda: append(handle, *arguments, **options))

    def write_files(handle: DeltaTable, *arguments: Any, **options: Any) -> None:
        around(handle.table_uri, lambda: commit_files(handle, *arguments, **options))

    def commit_own(writer: CommitWriter, since: Seen, commit: NewCommit) -> Written:
        answers: list[Written] = []
        around(writer.location, lambda: answers.append(commit_of_txmq(writer, since, commit)))
        return answers[-1]

    with (
        _replaced(delta_table, "write_deltalake", write),
        _replaced(DeltaTable, "create_write_transaction", write_files),
        _replaced(CommitWriter, "commit", commit_own),
    ):
        yield


@contextmanager
def _replaced(owner: object, name: str, value: object) -> Iterator[None]:
    original = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, original)


# Services never import this module, so the variable alone does nothing.
if os.environ.get(FAIL_POINTS_VARIABLE):
    arm_fail_points(os.environ[FAIL_POINTS_VARIABLE])
