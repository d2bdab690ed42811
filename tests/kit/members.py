"""Processes that join a group, each of which says when it is ready."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.kit.reading import wait_until
from tests.kit.steps import REPOSITORY
from txmq.consumer.handlers import Handler
from txmq.consumer.pull import PullConsumer

READY_WAIT_S = 120.0
END_WAIT_S = 30.0


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
