"""Processes that join a group, each of which says when it is ready."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from tests.kit.reading import wait_until
from tests.kit.steps import REPOSITORY
from txmq.consumer.handlers import Handler
from txmq.consumer.pull import PullConsumer

READY_WAIT_S = 120.0
END_WAIT_S = 30.0
# Past the lease of members that are stopped.
SLEEP_S = 3.5


def serve(member: PullConsumer, handle: Handler, folder: Path, *, ready: str, stop: str) -> None:
    """Handle messages, in the process of a member, until the file `stop` is in the folder."""
    with member:
        running = member.start(handle)
        folder.joinpath(ready).touch()
        while not folder.joinpath(stop).exists() and running.is_alive:
            time.sleep(0.05)
        running.stop()
        if running.exception is not None:
            raise running.exception


@contextmanager
def members(
    module: str, folder: Path, arguments: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """`python -m module` for each name with its arguments, when all of them are ready.

    Each makes `NAME.ready` in the folder and ends when `stop` is there. One that is stopped goes on
    before it is told to end.
    """
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    running = {
        name: subprocess.Popen([sys.executable, "-m", module, *values], env=environment)
        for name, values in arguments.items()
    }
    ready = [folder / f"{name}.ready" for name in arguments]
    try:
        wait_until(lambda: all(path.exists() for path in ready), READY_WAIT_S, "members")
        yield running
    finally:
        folder.joinpath("stop").touch()
        for process in running.values():
            process.send_signal(signal.SIGCONT)
            try:
                process.wait(END_WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class RestlessMembers:
    """So many of them; each accident befalls a random one, and another takes its place.

    Each is `python -m program LOCATION FOLDER NAME` and ends when `NAME.stop` is in the folder.
    """

    def __init__(self, program: str, location: str, folder: Path, number: int) -> None:
        self._program, self._location, self._folder = program, location, folder
        self._random, self._names = random.Random(7), count()
        self.running = [self._started() for _ in range(number)]
        self.accidents: set[str] = set()

    def _started(self) -> tuple[str, subprocess.Popen[bytes]]:
        name = str(next(self._names))
        arguments = [self._location, str(self._folder), name]
        return name, subprocess.Popen([sys.executable, "-m", self._program, *arguments])

    def have_an_accident(self) -> None:
        """Have one be killed, leave, or be stopped past its lease and go on."""
        place = self._random.randrange(len(self.running))
        name, process = self.running[place]
        accident = self._random.choice(["kill", "leave", "sleep"])
        self.accidents.add(accident)
        if accident == "sleep":
            process.send_signal(signal.SIGSTOP)
            time.sleep(SLEEP_S)
            process.send_signal(signal.SIGCONT)
            return
        if accident == "kill":
            process.kill()
        else:
            self._folder.joinpath(f"{name}.stop").touch()
        process.wait()
        self.running[place] = self._started()

    def stop(self) -> list[int]:
        """Have all of them end, and return what each of them returned."""
        for name, _ in self.running:
            self._folder.joinpath(f"{name}.stop").touch()
        return [process.wait() for _, process in self.running]


@contextmanager
def restless(program: str, location: str, folder: Path, number: int) -> Iterator[RestlessMembers]:
    """Members that have accidents; those that are left are killed at the end."""
    members = RestlessMembers(program, location, folder, number)
    try:
        yield members
    finally:
        for _, process in members.running:
            process.kill()
            process.wait()
