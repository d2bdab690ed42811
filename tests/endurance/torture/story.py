"""The torture as a story: seeded rounds of SIGKILLs at every fail point."""

from __future__ import annotations

from pathlib import Path

from tests.endurance.harness import Options, Result, Scale, Story
from tests.endurance.torture.place import disk, object_store
from tests.endurance.torture.run import Torture

ROUNDS = {Scale.FULL: 42, Scale.SLICE: 1}
# A request takes long, so a round has more writers and more orders.
REMOTE_ROUNDS = {Scale.FULL: 9, Scale.SLICE: 1}
REMOTE_ORDERS = {Scale.FULL: 1_200, Scale.SLICE: 300}
REMOTE_WRITERS = {Scale.FULL: 5, Scale.SLICE: 1}


def tell(folder: Path, options: Options) -> Result:
    """A run that was cut short goes on in its folder. A slice reaches few of the fail points."""
    folder.mkdir(parents=True, exist_ok=True)
    disk(folder)
    rounds, with_spark = ROUNDS[options.scale], options.with_spark and options.scale is Scale.FULL
    torture = Torture(folder, options.seed, rounds, with_spark=with_spark, say=options.say)
    numbers = torture.run()
    is_whole = options.scale is Scale.SLICE or not numbers["points_not_hit"]
    return Result(is_whole and not numbers["problems"], numbers)


def tell_remote(folder: Path, options: Options) -> Result:
    """The same over S3, with brokers that have no Spark; requests are throttled, answers lost."""
    folder.mkdir(parents=True, exist_ok=True)
    scale = options.scale
    with object_store(folder, REMOTE_ORDERS[scale], REMOTE_WRITERS[scale]) as fates:
        torture = Torture(
            folder, options.seed, REMOTE_ROUNDS[scale], with_spark=False, say=options.say
        )
        numbers = torture.run()
    return Result(not numbers["problems"], {**numbers, "requests": dict(fates)})


TORTURE = Story("torture", "kill everything at every step; is a message lost or doubled?", tell)
REMOTE_TORTURE = Story(
    "object-store", "the torture over S3 that throttles and loses answers", tell_remote
)
