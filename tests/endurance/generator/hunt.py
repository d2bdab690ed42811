"""How long the generator takes to find a hole whose mend is taken out."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from typing import Any

from tests.endurance.generator.judge import Find
from tests.endurance.generator.reverts import HOLES
from tests.endurance.generator.series import player, runs_of

Say = Callable[[str], None]


def hunted(name: str, seed: int, seconds: float, say: Say) -> dict[str, Any]:
    """Draw fresh plans without the mend of a hole until one finds it, or the time is over.

    A plan counts whose find is gone again with the mend. Those kept beside the tests are not used.

    Args:
        name: one of `HOLES`.
        seed: of the series.
        seconds: how long to draw.
        say: is told what was found.
    """
    begin_s, begin_cpu_s = time.perf_counter(), _cpu_s()
    numbers: dict[str, Any] = {"hole": HOLES[name].sentence, "seed": None, "runs": 0}
    with player(name) as play, player() as play_whole:
        for plan, finds in runs_of(seed, seconds, play):
            numbers["runs"] += 1
            open_finds = play_whole(plan) if finds else []
            if open_finds:
                say(f"with its mend: seed {plan.seed}: {open_finds[0]}")
            if _meets(name, finds) and not _meets(name, open_finds):
                say(f"without {name}: seed {plan.seed} after {numbers['runs']} runs: {finds[0]}")
                numbers["seed"] = plan.seed
                break
        numbers["seconds"] = round(time.perf_counter() - begin_s, 1)
    numbers["cpu_seconds"] = round(_cpu_s() - begin_cpu_s, 1)
    return numbers


def _meets(name: str, finds: Sequence[Find]) -> bool:
    return HOLES[name].finds in {find.kind for find in finds}


def _cpu_s() -> float:
    """Return the processor time of this process and of those that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
