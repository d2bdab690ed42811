"""`python -m tests.endurance.mix [--messages 50000] [--seconds 600] [--kills 10] [--keep]`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from bench.machine import machine_facts
from tests.endurance.mix.mix import Plan, run

RESULT = Path(__file__).with_name("result.json")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.endurance.mix", description=__doc__)
    parser.add_argument("--messages", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=600.0, help="to send them in")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without-spark", action="store_true")
    parser.add_argument("--keep", action="store_true", help="keep the result in the repository")
    given = parser.parse_args()
    facts = machine_facts()
    with tempfile.TemporaryDirectory(prefix="txmq-mix-") as folder:
        spark = "without" if given.without_spark else "with"
        plan = Plan(given.messages, given.seconds, given.kills, given.seed, spark)
        outcome = run(Path(folder), plan).to_dict()
    sys.stdout.write(json.dumps(outcome, indent=1) + "\n")
    if given.keep:
        result = {"date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S+00:00}", **facts, **outcome}
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(not outcome["is_right"])


if __name__ == "__main__":
    sys.exit(main())
