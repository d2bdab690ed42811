"""The generator as a story: for so many seconds, or for twenty minutes.

With the mend of a hole taken out it draws until it finds the hole.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.endurance.generator.hunt import hunted
from tests.endurance.generator.reverts import HOLES
from tests.endurance.generator.series import Series
from tests.endurance.harness import Options, Result, Scale, Story

SECONDS = {Scale.FULL: 1_200.0, Scale.SLICE: 30.0}


def tell(_: Path, options: Options) -> Result:
    """One series; what fails is kept beside the tests, which play it again."""
    seconds = options.seconds or SECONDS[options.scale]
    series = Series(options.seed, seconds, options.say)
    numbers = series.run()
    return Result(not series.kinds, numbers)


GENERATOR = Story("generator", "faults that nobody listed, in twos and threes, from a seed", tell)


def story_without(name: str) -> Story:
    """The story of one hole: with its mend taken out, does a fresh seed find it, and when?"""

    def tell_without(_: Path, options: Options) -> Result:
        seconds = options.seconds or SECONDS[Scale.FULL]
        numbers = hunted(name, options.seed, seconds, options.say)
        return Result(numbers["seed"] is not None, {"seconds_at_most": seconds, **numbers})

    return Story(f"without-{name}", HOLES[name].sentence, tell_without)


def row_of(name: str, numbers: Mapping[str, Any]) -> str:
    """The row of a hole in the table of docs/faults.md."""
    seed = "not found" if numbers["seed"] is None else numbers["seed"]
    times = f"{numbers['seconds']:,.0f} | {numbers['cpu_seconds']:,.0f}"
    return f"| {name} | {numbers['hole']} | {seed} | {numbers['runs']:,} | {times} |"
