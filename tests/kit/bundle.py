"""The bundle of deploy/databricks as its files say it; Databricks is not asked."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

PROJECT = Path(__file__).parents[2]
FOLDER = PROJECT / "deploy" / "databricks"
ROOT_FILE = FOLDER / "databricks.yml"
REFERENCE = re.compile(r"\$\{([\w.]+)\}")

Part = dict[str, Any]


def files() -> list[Path]:
    """The root file, and what it includes."""
    (pattern,) = parsed(ROOT_FILE)["include"]
    return [ROOT_FILE, *sorted(FOLDER.glob(pattern))]


def parsed(path: Path) -> Part:
    part: Part = yaml.safe_load(path.read_text("utf-8"))
    return part


def jobs() -> Iterator[tuple[Path, str, Part]]:
    """Each job, with the file that its relative paths begin at."""
    for path in files():
        for name, job in parsed(path).get("resources", {}).get("jobs", {}).items():
            yield path, name, job


def tasks() -> Iterator[tuple[Path, Part, Part]]:
    """Each task with its job."""
    for path, _, job in jobs():
        for task in job["tasks"]:
            yield path, job, task


def filled(text: str, **given: str) -> str:
    """A text with the values of its variables: those given, else their defaults.

    What it names of a workspace becomes a folder of this repository.
    """
    defaults = {name: each.get("default") for name, each in parsed(ROOT_FILE)["variables"].items()}

    def value(match: re.Match[str]) -> str:
        if match[1] == "workspace.file_path":
            return str(PROJECT)
        return str({**defaults, **given}[match[1].removeprefix("var.")])

    return REFERENCE.sub(value, text)
