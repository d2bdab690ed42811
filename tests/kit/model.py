"""Searches the models of the protocol in docs/model with SPIN, as `make model` does.

Each model names its searches in its first lines: `run` with its switches, and what must come out.
`python -m tests.kit.model WORD ...` searches those that have all of these words.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

MODELS = Path(__file__).parents[2] / "docs" / "model"
PACKAGES = "spin gcc"
HOLDS = "holds"
MEMORY_MB = 4096
WORKERS = 2
_RUN = re.compile(
    r"^ \* run (?P<switches>[A-Z0-9_ ]+?) *: (?:violates )?(?P<outcome>\w+)$", re.MULTILINE
)
_VIOLATED = re.compile(r"(?P<file>\w+\.pml):(?P<line>\d+), Error: assertion violated")
_PROMISE = re.compile(r"/\* (?P<name>\w+)")
_STATES = re.compile(r"^ *(?P<count>\d+) states, stored", re.MULTILINE)
_DEPTH = re.compile(r"\(at depth (?P<depth>\d+)\)")
_UNREACHED = re.compile(r"^\t(?P<where>\w+\.pml:\d+, state \d+, .*)$", re.MULTILINE)
# Shortest traces are found breadth first; all states depth first.
_SHORTEST = ("-DBFS",)


@dataclass(frozen=True)
class Search:
    """One search: a model, its switches, and the promise that it breaks, or that it holds."""

    model: Path
    switches: tuple[str, ...]
    outcome: str

    @property
    def name(self) -> str:
        """What the page and the command call it."""
        return f"{self.model.name} {' '.join(self.switches)}"


@dataclass(frozen=True)
class Found:
    """What a search found: a promise that is broken, or `holds`, or what went wrong."""

    outcome: str
    states: int
    steps: int = 0


def searches(folder: Path = MODELS) -> list[Search]:
    """List the searches that the models name."""
    return [
        Search(model, tuple(run["switches"].split()), run["outcome"])
        for model in sorted(folder.glob("*.pml"))
        for run in _RUN.finditer(model.read_text("utf-8"))
    ]


def found_by(search: Search) -> Found:
    """Search all states of a model, in a folder that is removed."""
    with tempfile.TemporaryDirectory() as folder:
        for path in MODELS.glob("*.pml"):
            shutil.copy(path, folder)
        return _found(search, Path(folder))


def _found(search: Search, folder: Path) -> Found:
    switches = [f"-D{switch}" for switch in search.switches]
    order = () if search.outcome == HOLDS else _SHORTEST
    _output(folder, "spin", *switches, "-a", search.model.name)
    limits = ("-DSAFETY", f"-DMEMLIM={MEMORY_MB}", *order)
    _output(folder, "gcc", "-O2", "-w", *limits, "-o", "pan", "pan.c")
    report = _output(folder, "./pan", "-m200000", "-w24")
    states = int(match["count"]) if (match := _STATES.search(report)) else 0
    if "errors: 0" in report:
        return Found(_outcome_without_error(report), states)
    steps = int(match["depth"]) if (match := _DEPTH.search(report)) else 0
    return Found(_broken_promise(search, folder, switches), states, steps)


def _outcome_without_error(report: str) -> str:
    if "Search not completed" in report:
        return "is too large: no memory is left"
    # What is never reached is never checked.
    unreached = [where for where in _UNREACHED.findall(report) if "-end-" not in where]
    return f"never reaches {unreached[0]}" if unreached else HOLDS


def _broken_promise(search: Search, folder: Path, switches: list[str]) -> str:
    """Name the promise of the assertion at which the trace ends, by its comment."""
    replay = _output(folder, "spin", *switches, "-t", search.model.name)
    match = _VIOLATED.search(replay)
    if match is None:
        return "ends where it must not"
    line = (folder / match["file"]).read_text("utf-8").splitlines()[int(match["line"]) - 1]
    promise = _PROMISE.search(line)
    return promise["name"] if promise else line.strip()


def _output(folder: Path, *command: str) -> str:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


def main(words: list[str]) -> int:
    """Run the searches that have all words; return 1 if one of them finds something else."""
    missing = [name for name in PACKAGES.split() if shutil.which(name) is None]
    if missing:
        _say(f"skipped  the model: {' '.join(missing)} is not there (apt-get install {PACKAGES})")
        return 0
    chosen = [s for s in searches() if set(words) <= {s.model.stem, *s.switches}]
    failures = 0
    with ThreadPoolExecutor(WORKERS) as workers:
        for search, found in zip(chosen, workers.map(found_by, chosen), strict=True):
            failures += found.outcome != search.outcome
            _say(_line(search, found))
    return min(failures, 1)


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - the output of `make model`


def _line(search: Search, found: Found) -> str:
    is_right = found.outcome == search.outcome
    end = f"{found.steps} steps" if found.steps else f"{found.states:,} states"
    verdict = found.outcome if is_right else f"{found.outcome}, not {search.outcome}"
    return f"{'ok' if is_right else 'WRONG':6} {search.name:40} {verdict}: {end}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
