"""`python -m tests.endurance.torture`: torture a store and say what it came to; exit 1 if not all is well."""

from __future__ import annotations

import argparse
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.machine import machine_facts
from tests.endurance.torture.run import Torture

ROUNDS, SEED = 42, 20261121
KEPT = Path(__file__).parent / "result.json"


def main() -> int:
    """Parse the arguments, run, print the result."""
    options = _options()
    begin_s = time.monotonic()

    def say(text: str) -> None:
        sys.stdout.write(f"{time.monotonic() - begin_s:6.0f} s  {text}\n")
        sys.stdout.flush()

    torture = Torture(
        options.folder, options.seed, options.rounds, with_spark=not options.without_spark, say=say
    )
    result = torture.run()
    say(json.dumps(result, indent=1))
    if options.keep:
        _keep(result)
    return 1 if result["problems"] or result["points_not_hit"] else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.endurance.torture", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("torture-store"),
                        help="a run that was cut short goes on in its folder")  # fmt: skip
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--without-spark", action="store_true")
    parser.add_argument("--keep", action="store_true", help="write the result into the repository")
    return parser.parse_args()


def _keep(result: dict[str, Any]) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    kept = {"date": now, **machine_facts(), **result}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
