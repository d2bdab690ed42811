"""A process that is killed with SIGKILL at a step with a name: `python -m tests.scenario.steps`.

The steps are methods of txmq, wrapped in the child process alone; txmq has no hooks for it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from tests.scenario.books import GROUP, Books, sell, sell_frame
from txmq.check_lease import CheckLease
from txmq.op_log import OpLog
from txmq.publisher import Publisher
from txmq.recheck import RecheckJob
from txmq.register import Register
from txmq.settled_log import SettledLog
from txmq.storage import Table
from txmq.store import Store
from txmq.topic_log import TopicLog

REPOSITORY = Path(__file__).parents[2]
ORDERS = 12


@dataclass(frozen=True)
class Step:
    """Where a process dies: before or after a call of a method of `owner`.

    `path` is the end of the location of the table that the object works on, if that matters;
    `hit` counts the calls up to the one that kills.
    """

    actor: str
    owner: type
    method: str
    when: str
    path: str = ""
    hit: int = 1


STEPS = {
    "the half is durable, its producer has no answer": Step(
        "producer", Table, "append", "after", "/half", hit=4
    ),
    "the local transaction is done, its end is not written": Step(
        "producer", Table, "append", "before", "/op", hit=5
    ),
    "the end is durable, its producer has no answer": Step(
        "producer", Table, "append", "after", "/op", hit=5
    ),
    "the frames are written, their halves are not committed": Step(
        "frame producer", Table, "append_files", "before", "/half"
    ),
    "facts are computed, not appended": Step("publisher", SettledLog, "swap", "before"),
    "facts are appended, nothing is published": Step("publisher", SettledLog, "swap", "after"),
    "one topic of two is published": Step("publisher", TopicLog, "swap_files", "after"),
    "a topic is made, its first rows are not appended": Step(
        "publisher", Store, "create_topic", "after"
    ),
    "the files of a topic are written, not committed": Step(
        "publisher", TopicLog, "swap_files", "before", hit=2
    ),
    "all topics are published, the progress is not kept": Step(
        "publisher", Register, "swap", "before", "/publisher"
    ),
    "the progress is kept, the publisher has no answer": Step(
        "publisher", Register, "swap", "after", "/publisher"
    ),
    "the lease is taken, nothing is asked": Step("checker", CheckLease, "take", "after"),
    "the listener has answered, the answer is not durable": Step(
        "checker", OpLog, "append", "before"
    ),
    "the answer is durable, the lease is not given back": Step(
        "checker", CheckLease, "give_back", "before"
    ),
}


def arm(step: Step) -> None:
    """From now on this process dies at the step."""
    original: Callable[..., Any] = getattr(step.owner, step.method)
    calls = 0

    @wraps(original)
    def wrapped(self: Any, *arguments: Any, **options: Any) -> Any:
        nonlocal calls
        if not _location(self).endswith(step.path):
            return original(self, *arguments, **options)
        calls += 1
        if step.when == "before":
            die(calls == step.hit)
        result = original(self, *arguments, **options)
        if step.when == "after":
            die(calls == step.hit)
        return result

    setattr(step.owner, step.method, wrapped)


def _location(it: Any) -> str:
    table = getattr(it, "table", it)
    return str(getattr(table, "location", ""))


def die(now: bool) -> None:  # noqa: FBT001
    if now:
        os.kill(os.getpid(), signal.SIGKILL)


def act(actor: str, store: Store, books: Books) -> None:
    """What the process does while it lives."""
    match actor:
        case "producer":
            sell(store, books, ORDERS)
        case "frame producer":
            sell_frame(store, books, rows=100)
        case "publisher":
            Publisher(store).run_once()
        case "checker":
            RecheckJob(store, listeners={GROUP: books}).run_once()


def run(name: str, location: str, books: str) -> int:
    """Start a process that dies at the step and return its exit code, as `subprocess` gives it."""
    command = [sys.executable, "-m", "tests.scenario.steps", name, location, books]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, check=False, timeout=120, env=environment).returncode


def main(name: str, location: str, books: str) -> None:
    arm(STEPS[name])
    act(STEPS[name].actor, Store.open(location), Books(books))


if __name__ == "__main__":
    main(*sys.argv[1:])
