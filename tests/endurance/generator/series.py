"""Runs of one seed after the other; what fails is shrunk and kept."""

from __future__ import annotations

import faulthandler
import resource
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tests.endurance.generator.draw import drawn_plan
from tests.endurance.generator.judge import Find, Kind
from tests.endurance.generator.plan import Plan, drawn_seed
from tests.endurance.generator.play import played
from tests.endurance.generator.reverts import without
from tests.endurance.generator.shrink import shrunk

KEPT = Path(__file__).parent / "kept"
# A run takes a second; one that takes so long hangs, and its threads say where.
HANGS_S = 300.0
SHRUNK_OF_A_KIND = 4
# A number of a foreign row that becomes a size must not take the machine.
MEMORY_MAX_BYTES = 3 * 1024**3
# What a killed process leaves behind ends with the process that played it: threads, above all.
RUNS_OF_A_PROCESS = 100
# The room of all their stacks counts.
STACK_BYTES = 1024**2
Play = Callable[[Plan], list[Find]]


@dataclass
class Series:
    """A series of runs and what it came to."""

    seed: int
    seconds: float
    say: Callable[[str], None] = field(default=lambda _: None)
    folder: Path | None = None
    runs: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    finds: list[dict[str, Any]] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)

    def run(self) -> dict[str, Any]:
        """All runs; the numbers of the result."""
        begin_s = time.perf_counter()
        with player() as play:
            for plan, finds in runs_of(self.seed, self.seconds, play):
                self.runs += 1
                self.faults.update(fault.name for fault in plan.faults)
                if finds:
                    self._note(plan, finds[0], time.perf_counter() - begin_s, play)
        return self.numbers(time.perf_counter() - begin_s)

    def _note(self, plan: Plan, find: Find, after_s: float, play: Play) -> None:
        self.kinds[find.kind.name] += 1
        self.say(f"seed {plan.seed} after {self.runs} runs: {find}")
        if self.kinds[find.kind.name] > SHRUNK_OF_A_KIND:
            return
        small = shrunk(plan, find.kind, lambda smaller: first_kind(play(smaller)))
        again = play(small)
        text = str(again[0] if again else find)
        path = kept(small, text, self.folder)
        self.say("\n".join([f"shrunk, kept as {path}: {text}", *small.story()]))
        self.finds.append(
            {"seed": plan.seed, "after_s": round(after_s, 1), "find": text, "story": small.story()}
        )

    def numbers(self, took_s: float) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "runs": self.runs,
            "seconds": round(took_s, 1),
            "faults": dict(sorted(self.faults.items())),
            "kinds": dict(self.kinds),
            "finds": self.finds,
        }


@contextmanager
def player(hole: str = "") -> Iterator[Play]:
    """Play plans in another process, which is a new one now and then; the mend of a hole is out."""
    spawn = get_context("spawn")
    with ProcessPoolExecutor(1, spawn, max_tasks_per_child=RUNS_OF_A_PROCESS) as pool:
        yield lambda plan: pool.submit(watched, plan, hole).result()


def runs_of(seed: int, seconds: float, play: Play) -> Iterator[tuple[Plan, list[Find]]]:
    """Plans and their finds, for so long."""
    end_s, number = time.perf_counter() + seconds, 0
    while time.perf_counter() < end_s:
        plan = drawn_plan(drawn_seed(seed, number))
        number += 1
        yield plan, play(plan)


def watched(plan: Plan, hole: str = "") -> list[Find]:
    """What a run finds, without the mend of a hole; one that hangs ends the process."""
    faulthandler.dump_traceback_later(HANGS_S, exit=True)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = MEMORY_MAX_BYTES if hard < 0 else min(hard, MEMORY_MAX_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    threading.stack_size(STACK_BYTES)
    try:
        with without(hole) if hole else nullcontext():
            return played(plan)
    except Exception as error:  # noqa: BLE001 - the harness itself is wrong
        # An error of a library may be of a type that no other process can make.
        raise RuntimeError(f"seed {plan.seed}: {error!r}") from None
    finally:
        faulthandler.cancel_dump_traceback_later()


def first_kind(finds: list[Find]) -> Kind | None:
    """The worst of them."""
    return finds[0].kind if finds else None


def kept(plan: Plan, text: str, folder: Path | None = None) -> Path:
    """Write a plan where the tests play it again; the first line says what it found."""
    folder = folder or KEPT
    folder.mkdir(parents=True, exist_ok=True)
    name = text.partition(":")[0].lower()
    path = folder / f"{name}-{plan.seed}.json"
    path.write_text(plan.to_json() + "\n", encoding="utf-8")
    return path


def kept_plans(folder: Path = KEPT) -> dict[str, Plan]:
    """The plans that failed once, by their names."""
    paths = sorted(folder.glob("*.json"))
    return {path.stem: Plan.from_json(path.read_text(encoding="utf-8")) for path in paths}
