"""The mix as a story: messages of every kind while brokers are killed."""

from __future__ import annotations

from pathlib import Path

from tests.endurance.harness import Options, Result, Scale, Story
from tests.endurance.mix.mix import WITH, WITHOUT, Plan, run


def plan(options: Options) -> Plan:
    """50,000 messages in ten minutes, or 3,000 in ten seconds without Spark."""
    if options.scale is Scale.SLICE:
        return Plan(3_000, seconds=10.0, kills=4, seed=options.seed, spark=WITHOUT)
    spark = WITH if options.with_spark else WITHOUT
    return Plan(50_000, seconds=600.0, kills=10, seed=options.seed, spark=spark)


def tell(folder: Path, options: Options) -> Result:
    """Send, kill brokers meanwhile, compare what came with what was sent."""
    folder.mkdir(parents=True, exist_ok=True)
    outcome = run(folder, plan(options))
    is_too_late = options.scale is Scale.FULL and outcome.is_late
    return Result(outcome.is_right and not is_too_late, outcome.to_dict())


MIX = Story("mix", "messages of every kind while brokers are killed; does each come once?", tell)
