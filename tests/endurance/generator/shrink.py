"""Makes a plan that finds something as small as it can be: fewer steps, fewer faults."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.endurance.generator.judge import Kind
from tests.endurance.generator.plan import Plan, Step

MAX_RUNS = 150
Finds = Callable[[Plan], Kind | None]


def shrunk(plan: Plan, kind: Kind, kind_of: Finds, max_runs: int = MAX_RUNS) -> Plan:
    """The smallest plan on this way that still finds the same kind."""
    runs = 0
    while True:
        for smaller in _smaller(plan):
            runs += 1
            if runs > max_runs:
                return plan
            if kind_of(smaller) is kind:
                plan = smaller
                break
        else:
            return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    steps = plan.steps
    # Halves first: most of a day has nothing to do with what went wrong.
    size = len(steps) // 2
    while size > 1:
        for at in range(0, len(steps), size):
            yield plan.with_steps(steps[:at] + steps[at + size :])
        size //= 2
    for at in reversed(range(len(steps))):
        yield plan.with_steps(steps[:at] + steps[at + 1 :])
    for at, step in enumerate(steps):
        for simpler in _simpler(step):
            yield plan.with_steps((*steps[:at], simpler, *steps[at + 1 :]))


def _simpler(step: Step) -> Iterator[Step]:
    for at in range(len(step.meanwhile)):
        yield replace(step, meanwhile=step.meanwhile[:at] + step.meanwhile[at + 1 :])
    strike = step.strike
    if strike is None:
        return
    yield replace(step, strike=None)
    for at in range(len(strike.meanwhile)):
        rest = strike.meanwhile[:at] + strike.meanwhile[at + 1 :]
        yield replace(step, strike=replace(strike, meanwhile=rest))
    if strike.hit > 1:
        yield replace(step, strike=replace(strike, hit=1))
