"""`python -m bench [part …] [--quick]`: measure, print a table, keep the result."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console

from bench import (
    asynchronous,
    backlog,
    callers,
    consumers,
    data_source,
    dataframe,
    fairness,
    gone_processes,
    growth,
    idle,
    large,
    latency,
    listeners,
    one_row_commits,
    pending,
    restart,
    retained,
    sizing,
    starts,
    thirty_days,
    verify,
)
from bench.machine import machine_facts
from bench.outcome import Outcome
from bench.sizes import FULL, QUICK, Sizes
from bench.table import print_table

RESULTS = Path(__file__).parent / "results"
WIDTH = 130
OF_A_RUN = ("git_commit", "load_before")
PARTS: dict[str, Callable[[Sizes, Path], list[Outcome]]] = {
    "latency": latency.measure,
    "backlog": backlog.measure,
    "one-row-commits": one_row_commits.measure,
    # Little memory, as the bar asks; and enough for the bare stream to run at its best.
    "dataframe-arrow": partial(dataframe.measure, engine="arrow", heap_mib=768),
    "dataframe-spark": partial(dataframe.measure, engine="spark", heap_mib=768),
    "dataframe-arrow-2g": partial(dataframe.measure, engine="arrow", heap_mib=2048),
    "dataframe-spark-2g": partial(dataframe.measure, engine="spark", heap_mib=2048),
    "callers": callers.measure,
    "fairness": fairness.measure,
    "asynchronous": asynchronous.measure,
    "listeners": listeners.measure,
    "consumers": consumers.measure,
    "data-source": data_source.measure,
    "pending": pending.measure,
    "thirty-days": thirty_days.measure,
    "growth": growth.measure,
    "gone-processes": gone_processes.measure,
    "restart": restart.measure,
    "retained": retained.measure,
    "large": large.measure,
    "sizing": sizing.measure,
    "starts": starts.measure,
    "idle": idle.measure,
    "verify": verify.measure,
}


def main() -> int:
    """Exit with 1 where a full run missed a bar."""
    arguments = _arguments()
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    sizes = QUICK if arguments.quick else FULL
    # Before the result file makes the work tree differ from its commit.
    facts = {"load_before": round(os.getloadavg()[0], 2), **machine_facts()}
    outcomes: list[Outcome] = []
    for part in arguments.parts or PARTS:
        outcomes += _run(part, sizes, console)
        if not arguments.quick:
            # A run of half an hour may be cut.
            _keep(outcomes, facts, console)
    print_table(outcomes, console)
    if arguments.quick:
        console.print("--quick only tries the scripts: nothing is kept, no bar counts.")
        return 0
    return int(any(outcome.passed is False for outcome in outcomes))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all if left out")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes, kept nowhere")
    return parser.parse_args()


def _run(part: str, sizes: Sizes, console: Console) -> list[Outcome]:
    """Each part has a process of its own, and so its own Java and its own memory."""
    # glibc keeps an arena a thread otherwise, and what was freed in them.
    os.environ.setdefault("MALLOC_ARENA_MAX", "2")
    console.print(f"{datetime.now(UTC):%H:%M:%S}  {part}")
    with (
        tempfile.TemporaryDirectory(prefix="txmq-bench-") as folder,
        ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool,
    ):
        return pool.submit(PARTS[part], sizes, Path(folder)).result()


def _keep(outcomes: Sequence[Outcome], facts: Mapping[str, Any], console: Console) -> None:
    """Each outcome says of which commit it is; parts may be measured one at a time."""
    now = datetime.now(UTC)
    path = RESULTS / f"{now:%Y-%m-%d}.json"
    own = {name: facts[name] for name in OF_A_RUN}
    own["measured_at"] = now.isoformat(timespec="seconds")
    measured = [{**outcome.to_dict(), **own} for outcome in outcomes]
    machine = {name: value for name, value in facts.items() if name not in OF_A_RUN}
    kept = _kept_parts(path, machine, {one["part"] for one in measured})
    result = {"date": own["measured_at"], **machine, "outcomes": [*kept, *measured]}
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    console.print(f"kept in bench/results/{path.name}")


def _kept_parts(path: Path, machine: Mapping[str, Any], again: set[str]) -> list[dict[str, Any]]:
    """What earlier runs of the same day, machine and versions measured of the other parts."""
    if not path.exists():
        return []
    before = json.loads(path.read_text(encoding="utf-8"))
    is_same = all(before.get(key) == value for key, value in machine.items())
    return [one for one in before["outcomes"] if is_same and one["part"] not in again]


if __name__ == "__main__":
    sys.exit(main())
