"""The torture as a story: seeded rounds of SIGKILLs at every fail point."""

from __future__ import annotations

from pathlib import Path

from tests.endurance.harness import Options, Result, Scale, Story
from tests.endurance.torture.run import Torture

ROUNDS = {Scale.FULL: 42, Scale.SLICE: 1}


def tell(folder: Path, options: Options) -> Result:
    """A run that was cut short goes on in its folder. A slice reaches few of the fail points."""
    torture = Torture(
        folder,
        options.seed,
        ROUNDS[options.scale],
        with_spark=options.with_spark and options.scale is Scale.FULL,
        say=options.say,
    )
    numbers = torture.run()
    is_whole = options.scale is Scale.SLICE or not numbers["points_not_hit"]
    return Result(is_whole and not numbers["problems"], numbers)


TORTURE = Story("torture", "kill everything at every step; is a message lost or doubled?", tell)
