"""Builds the wheel and installs it into empty environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT_FILES = ("setup.cfg", "pyproject.toml", "README.md", "LICENSE")
FOLDERS = ("txmq", "jobs", "conf")


def built_wheel(folder: Path) -> Path:
    """The wheel of this clone, made of its source distribution."""
    # A copy, for what an earlier build has left would get into the wheel.
    source = folder / "source"
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, source / name, ignore=ignored, symlinks=True)
    for name in PROJECT_FILES:
        shutil.copy(ROOT / name, source)
    sdist = _source_distribution(source, folder)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, sdist)
    (wheel,) = folder.glob("*.whl")
    say(f"built    {sdist.name}, {sdist.stat().st_size:,} bytes")
    say(f"built    {wheel.name}, {wheel.stat().st_size:,} bytes")
    return wheel


def _source_distribution(source: Path, folder: Path) -> Path:
    program = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    tools = folder / "tools"
    environment(sys.executable, tools, "setuptools>=64", "wheel")
    run(tools / "bin" / "python", "-c", program, cwd=source)
    (sdist,) = folder.glob("*.tar.gz")
    return sdist


def environment(python: str, folder: Path, *requirements: str | Path) -> Path:
    """A virtual environment with these packages alone; its Python."""
    run(python, "-m", "venv", folder)
    own = folder / "bin" / "python"
    install(own, *requirements)
    return own


def install(own: Path, *requirements: str | Path) -> None:
    """Install packages into the environment of this Python."""
    scripts = Path(sys.executable).parent
    uv = shutil.which("uv", path=f"{scripts}{os.pathsep}{os.environ['PATH']}")
    installer = (
        [uv, "pip", "install", "-q", "-p", str(own)]
        if uv
        else [str(own), "-m", "pip", "install", "-q"]
    )
    run(*installer, *requirements)


def python_of(version: str) -> str | None:
    """An interpreter of this version that starts; None where there is none."""
    return next(_pythons(version), None)


def _pythons(version: str) -> Iterator[str]:
    names = [shutil.which(f"python{version}")]
    homes = (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python{version}")
    for name in [*names, *map(str, sorted(homes))]:
        if name and _is_version(name, version):
            yield name


def _is_version(python: str, version: str) -> bool:
    """Names on the PATH may lead to nothing."""
    program = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
    answer = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return answer.stdout.strip() == version


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a command that neither the clone nor PYTHONPATH helps. Raises: CalledProcessError."""
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(
        [str(part) for part in command],
        cwd=cwd, env=variables, check=True, capture_output=True, text=True,
    )  # fmt: skip


def say(text: str) -> None:
    """Print one line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
