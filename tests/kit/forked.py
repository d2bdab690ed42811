"""Processes of their own that are there at once: forked from one that has imported everything.

A new Python imports for a second before it does what a test wants killed; hundreds are started.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
import uuid
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import TYPE_CHECKING

from txmq.testing import arm_fail_points

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerProcess

PRELOADED = [
    "tests.kit.accidents", "tests.process.check.check_process", "tests.endurance.torture.actors",
    "tests.endurance.race.actors", "tests.endurance.groups.member",
    "tests.endurance.writers.actors",
]  # fmt: skip
POLL_S = 0.005


class Forked:
    """A running process, as `subprocess.Popen` shows one; what it writes goes to a file."""

    def __init__(
        self, function: Callable[..., None], *arguments: str, faults: str, log: Path
    ) -> None:
        """Call `function` in a session of its own; `faults` as TXMQ_FAILPOINTS takes them."""
        self._process: ForkServerProcess = _server().Process(
            target=_run, args=(function, arguments, faults, str(log))
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid, self.log = self._process.pid, log

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout_s: float) -> int:
        self._process.join(timeout_s)
        if self.returncode is None:
            raise TimeoutError(self._process.name)
        return self.returncode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def complaint(self) -> str:
        """What it wrote."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_until_stopped(self) -> None:
        """Return when it is stopped as by SIGSTOP."""
        while not self.is_stopped:
            assert self.returncode is None, "it ended and did not stop"
            time.sleep(POLL_S)

    @property
    def is_stopped(self) -> bool:
        """Whether it is stopped as by SIGSTOP; one that has just ended is not."""
        try:
            return self._state() == "T"
        except (FileNotFoundError, ProcessLookupError):
            return False

    def _state(self) -> str:
        stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8")
        return stat.rpartition(")")[2].split()[0]


def forked(
    function: Callable[..., None], location: str, *arguments: str, faults: str = ""
) -> Forked:
    """`function` of a store's location and more, with its log beside the store."""
    log = Path(f"{location}-{uuid.uuid4()}.log")
    return Forked(function, location, *arguments, faults=faults, log=log)


def _server() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def _run(function: Callable[..., None], arguments: tuple[str, ...], faults: str, log: str) -> None:
    os.setsid()
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(written, number)
    # The one that is forked from ignores it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    arm_fail_points(faults)
    function(*arguments)
