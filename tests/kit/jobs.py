"""Runs a module as a job with Java of its own, which may die; nothing of it is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress

from tests.kit.steps import REPOSITORY
from txmq.testing import FAIL_POINTS_VARIABLE


def exit_code_of(module: str, *arguments: str, limit_s: float, faults: str = "") -> int:
    """Run it with these fail points; return when it and all of its session have ended."""
    environment = {**os.environ, FAIL_POINTS_VARIABLE: faults, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], env=environment, start_new_session=True
    )
    try:
        return process.wait(limit_s)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
