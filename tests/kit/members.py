"""Processes that join a group, each of which says when it is ready."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.kit.reading import wait_until
from tests.kit.steps import REPOSITORY

READY_WAIT_S = 120.0
END_WAIT_S = 30.0


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
