"""How long the generator takes to find a hole whose mend is taken out."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.endurance.generator.plan import Plan
from tests.endurance.generator.reverts import HOLES, without
from tests.endurance.generator.series import runs_of, watched

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
    begin_s, begin_cpu_s, runs = time.perf_counter(), time.process_time(), 0
    numbers: dict[str, Any] = {"hole": HOLES[name].sentence, "seed": None}
    plans = runs_of(seed, seconds)
    while True:
        with without(name):
            plan, finds = next(plans, (None, []))
        if plan is None:
            break
        runs += 1
        numbers |= {"runs": runs, "seconds": round(time.perf_counter() - begin_s, 1),
                    "cpu_seconds": round(time.process_time() - begin_cpu_s, 1)}  # fmt: skip
        if HOLES[name].finds in {find.kind for find in finds} and _is_gone(name, plan):
            numbers["seed"] = plan.seed
            say(f"without {name}: seed {plan.seed} after {runs} runs: {finds[0]}")
            break
    return numbers


def _is_gone(name: str, plan: Plan) -> bool:
    """Whether the mend heals it; else the plan meets something that is open."""
    return HOLES[name].finds not in {find.kind for find in watched(plan)}
