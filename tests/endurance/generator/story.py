"""The generator as a story: for so many seconds, or for twenty minutes."""

from __future__ import annotations

from pathlib import Path

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
