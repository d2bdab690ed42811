"""`python -m tests.endurance.groups [--messages 50000] [--seconds 300] [--kills 40] [--seed 1] [--keep]`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from bench.machine import machine_facts
from tests.endurance.groups.run import Plan, run

RESULT = Path(__file__).with_name("result.json")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.endurance.groups", description=__doc__)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=300.0, help="to send them in")
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-spark", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep the result in the repository")
    parser.add_argument("--folder", type=Path, help="where all of it stays, to be looked at")
    given = parser.parse_args()
    facts = machine_facts()
    plan = Plan(
        given.messages, given.seconds, given.kills, given.seed, with_spark=not given.without_spark
    )
    with tempfile.TemporaryDirectory(prefix="txmq-groups-") as temporary:
        outcome = run(given.folder or Path(temporary), plan).to_dict()
    sys.stdout.write(json.dumps(outcome, indent=1) + "\n")
    if given.keep:
        result = {"date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S+00:00}", **facts, **outcome}
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(not outcome["is_right"])


if __name__ == "__main__":
    sys.exit(main())
