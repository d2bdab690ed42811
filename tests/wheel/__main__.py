"""`python -m tests.wheel`: build the wheel, install it alone under each Python, take first steps.

A Python that is not on this machine is said to be missing; 1 where none is there or a step fails.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.wheel.building import built_wheel, environment, python_of, run, say

STEPS = Path(__file__).with_name("first_steps.py")
VERSIONS = ("3.11", "3.12", "3.13")


def main() -> int:
    """Try each Python; print a line for each."""
    with tempfile.TemporaryDirectory(prefix="txmq-wheel-") as temporary:
        folder = Path(temporary)
        wheel = built_wheel(folder / "wheel")
        outcomes = [_tried(version, wheel, folder / version) for version in VERSIONS]
    return int(False in outcomes or True not in outcomes)


def _tried(version: str, wheel: Path, folder: Path) -> bool | None:
    """Whether all steps worked; None where this Python is missing."""
    python = python_of(version)
    if python is None:
        say(f"missing  Python {version}: not tried")
        return None
    try:
        first_steps(environment(python, folder, wheel), folder)
    except subprocess.CalledProcessError as error:
        say(f"broken   Python {version}: {error}\n{error.stdout}{error.stderr}")
        return False
    say(f"works    Python {version}: import, send, publish, read, txmq --help, txmq jobs")
    return True


def first_steps(python: Path, folder: Path) -> None:
    """What a newcomer does, in an empty folder. Raises: CalledProcessError."""
    empty = folder / "empty"
    empty.mkdir()
    # -I: neither the current folder nor PYTHONPATH can help.
    run(python, "-I", "-c", "import txmq", cwd=empty)
    run(python, "-I", STEPS, cwd=empty)
    run(python.parent / "txmq", "--help", cwd=empty)
    run(python.parent / "txmq", "jobs", "path", "spark-s3.conf", cwd=empty)
    run(python, "-I", "-m", "txmq", "jobs", "copy", "files", cwd=empty)
    run(python, "-I", "files/jobs/verify.py", "store", cwd=empty)


if __name__ == "__main__":
    sys.exit(main())
