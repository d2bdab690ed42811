"""`python -m tests.wheel`: build the wheel, install it alone under each Python, try it.

A Python that is not on this machine is said to be missing; 1 where none is there or a step fails.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.wheel.building import built_wheel, environment, install, python_of, run, say

STEPS = Path(__file__).with_name("first_steps.py")
OWN_TESTS = Path(__file__).with_name("tests_of_a_user.py")
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
        own = environment(python, folder, wheel)
        first_steps(own, folder)
        own_tests(own, wheel, folder)
    except subprocess.CalledProcessError as error:
        say(f"broken   Python {version}: {error}\n{error.stdout}{error.stderr}")
        return False
    say(f"works    Python {version}: import, send, publish, read, txmq --help, txmq jobs, pytest")
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


def own_tests(python: Path, wheel: Path, folder: Path) -> None:
    """The test kit, in the hands of a user. Raises: CalledProcessError."""
    install(python, f"txmq[testing] @ {wheel.as_uri()}")
    # A copy, for beside the original pytest would find our own fixtures.
    shutil.copy(OWN_TESTS, folder)
    run(python, "-I", "-m", "pytest", "-q", "-W", "error", OWN_TESTS.name, cwd=folder)


if __name__ == "__main__":
    sys.exit(main())
