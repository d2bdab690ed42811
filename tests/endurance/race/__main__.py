"""`python -m tests.endurance.race [--races 500] [--kills 40] [--seed 1] [--keep]`: both kinds, both ways."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from bench.machine import machine_facts
from tests.endurance.race.race import Outcome, Race, run

RESULT = Path(__file__).with_name("result.json")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.endurance.race", description=__doc__)
    parser.add_argument("--races", type=int, default=500)
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="keep the result in the repository")
    arguments = parser.parse_args()
    facts = machine_facts()
    outcomes = [run_one(race) for race in races(arguments)]
    if arguments.keep:
        result = {
            "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S+00:00}",
            **facts,
            "outcomes": [outcome.to_dict() for outcome in outcomes],
        }
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(not all(as_expected(outcome) for outcome in outcomes))


def races(arguments: argparse.Namespace) -> list[Race]:
    """In full with the fence and kills; a tenth without it, to see that the race looks."""
    return [
        Race(kind, count, arguments.seed, fenced=fenced, kills=kills)
        for kind in ("delta", "postgresql")
        for count, kills, fenced in (
            (arguments.races, arguments.kills, True),
            (max(20, arguments.races // 10), 0, False),
        )
    ]


def run_one(race: Race) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="txmq-race-") as folder:
        outcome = run(race, Path(folder))
    sys.stdout.write(json.dumps(outcome.to_dict()) + "\n")
    sys.stdout.flush()
    return outcome


def as_expected(outcome: Outcome) -> bool:
    """Right with the fence; without it the hole must be seen."""
    return outcome.is_right if outcome.race.fenced else bool(outcome.rows_without_message)


if __name__ == "__main__":
    sys.exit(main())
