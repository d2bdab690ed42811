"""Consumer groups as a story: their members die, sleep, come and go."""

from __future__ import annotations

from pathlib import Path

from tests.endurance.groups.run import Plan, run
from tests.endurance.harness import Options, Result, Scale, Story


def plan(options: Options) -> Plan:
    """50,000 messages in five minutes for four groups, or 2,000 in eight seconds for two."""
    if options.scale is Scale.SLICE:
        return Plan(2_000, seconds=8.0, kills=4, seed=options.seed, groups=2, with_spark=False)
    return Plan(50_000, seconds=300.0, kills=40, seed=options.seed, with_spark=options.with_spark)


def tell(folder: Path, options: Options) -> Result:
    """Send, trouble the members meanwhile, compare what each group was given."""
    folder.mkdir(parents=True, exist_ok=True)
    outcome = run(folder, plan(options))
    return Result(outcome.is_right, outcome.to_dict())


GROUPS = Story("groups", "consumer groups whose members die, sleep, come and go", tell)
