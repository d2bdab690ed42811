"""The torture as a story: seeded rounds of SIGKILLs at every fail point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.endurance.harness import Options, Result, Scale, Story
from tests.endurance.torture.place import disk, object_store
from tests.endurance.torture.run import Torture

ROUNDS = {Scale.FULL: 42, Scale.SLICE: 1}
Where = Callable[[Path], AbstractContextManager[Mapping[str, Any]]]


def tell(folder: Path, options: Options) -> Result:
    """A run that was cut short goes on in its folder. A slice reaches few of the fail points."""
    with_spark = options.with_spark and options.scale is Scale.FULL
    return _told(folder, options, disk, with_spark=with_spark)


def tell_remote(folder: Path, options: Options) -> Result:
    """The same over S3, with brokers that have no Spark; requests are throttled, answers lost."""
    return _told(folder, options, object_store, with_spark=False)


def _told(folder: Path, options: Options, where: Where, *, with_spark: bool) -> Result:
    folder.mkdir(parents=True, exist_ok=True)
    rounds = ROUNDS[options.scale]
    with where(folder) as fates:
        torture = Torture(folder, options.seed, rounds, with_spark=with_spark, say=options.say)
        numbers = torture.run()
    numbers |= {"requests": dict(fates)} if fates else {}
    is_whole = options.scale is Scale.SLICE or not numbers["points_not_hit"]
    return Result(is_whole and not numbers["problems"], numbers)


TORTURE = Story("torture", "kill everything at every step; is a message lost or doubled?", tell)
REMOTE_TORTURE = Story(
    "object-store", "the torture over S3 that throttles and loses answers", tell_remote
)
