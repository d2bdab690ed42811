"""`python -m tests.wheel`: build the wheel, install it alone under each Python, try it.

A Python that is not on this machine is said to be missing; 1 where none is there or a step fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
STEPS = Path(__file__).with_name("first_steps.py")
OWN_TESTS = Path(__file__).with_name("tests_of_a_user.py")
PROJECT_FILES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")
VERSIONS = ("3.11", "3.12", "3.13")


def main() -> int:
    """Try each Python; print a line for each."""
    with tempfile.TemporaryDirectory(prefix="txmq-wheel-") as temporary:
        folder = Path(temporary)
        wheel = _built(folder / "wheel")
        outcomes = [_tried(version, wheel, folder / version) for version in VERSIONS]
    return int(False in outcomes or True not in outcomes)


def _built(folder: Path) -> Path:
    # A copy, for what an earlier build has left would get into the wheel.
    source = folder / "source"
    shutil.copytree(ROOT / "txmq", source / "txmq", ignore=shutil.ignore_patterns("__pycache__"))
    for name in PROJECT_FILES:
        shutil.copy(ROOT / name, source)
    _run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, source)
    (wheel,) = folder.glob("*.whl")
    _say(f"built    {wheel.name}, {wheel.stat().st_size:,} bytes")
    return wheel


def _tried(version: str, wheel: Path, folder: Path) -> bool | None:
    """Whether all steps worked; None where this Python is missing."""
    python = next(_pythons(version), None)
    if python is None:
        _say(f"missing  Python {version}: not tried")
        return None
    try:
        _try(python, wheel, folder)
    except subprocess.CalledProcessError as error:
        _say(f"broken   Python {version}: {error}\n{error.stdout}{error.stderr}")
        return False
    _say(f"works    Python {version}: import, send, publish, read, txmq --help, pytest")
    return True


def _try(python: str, wheel: Path, folder: Path) -> None:
    _run(python, "-m", "venv", folder)
    scripts = folder / "bin"
    own = str(scripts / "python")
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    installer = (
        [uv, "pip", "install", "-q", "-p", own] if uv else [own, "-m", "pip", "install", "-q"]
    )
    _run(*installer, wheel)
    empty = folder / "empty"
    empty.mkdir()
    # -I: neither the current folder nor PYTHONPATH can help.
    _run(own, "-I", "-c", "import txmq", cwd=empty)
    _run(own, "-I", STEPS, cwd=empty)
    _run(scripts / "txmq", "--help", cwd=empty)
    _run(own, "-I", "-m", "txmq", "--help", cwd=empty)
    _run(*installer, f"txmq[testing] @ {wheel.as_uri()}")
    # A copy, for beside the original pytest would find our own fixtures.
    shutil.copy(OWN_TESTS, empty)
    _run(own, "-I", "-m", "pytest", "-q", "-W", "error", OWN_TESTS.name, cwd=empty)


def _pythons(version: str) -> Iterator[str]:
    """Interpreters of this version that start, and not only names on the PATH."""
    names = [shutil.which(f"python{version}")]
    homes = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}")
    for name in [*names, *map(str, sorted(homes))]:
        if name and _is_version(name, version):
            yield name


def _is_version(python: str, version: str) -> bool:
    program = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    answer = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return answer.stdout.strip() == version


def _run(*command: str | Path, cwd: Path | None = None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [str(part) for part in command],
        cwd=cwd, env=environment, check=True, capture_output=True, text=True,
    )  # fmt: skip


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
