"""`python -m tests.torture`: torture a store, print what it came to, exit 1 if anything is wrong."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from tests.torture.run import Torture

ROUNDS, SEED = 42, 20261121


def main() -> int:
    """Parse the arguments, run, print the result."""
    parser = argparse.ArgumentParser(description="torture a store")
    parser.add_argument("--folder", type=Path, default=Path("torture-store"))
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--without-spark", action="store_true")
    options = parser.parse_args()
    begin_s = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - begin_s:6.0f} s  {text}", flush=True)

    torture = Torture(
        options.folder, options.seed, options.rounds, with_spark=not options.without_spark, say=say
    )
    result = torture.run()
    print(json.dumps(result, indent=1))
    return 1 if result["problems"] or result["points_not_hit"] else 0


if __name__ == "__main__":
    sys.exit(main())
