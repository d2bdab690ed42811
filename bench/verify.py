"""Verify of a whole store: its peak memory and its rate, as the store grows tenfold and again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

from bench.messages import GROUP, transactions
from bench.outcome import Bar, Outcome
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.publish.publisher import Publisher
from txmq.store.store import Store

GROWTH = (100, 10, 1)
# Verify digests bodies and keeps rows, so small ones leave room on the disk for many.
BODY_BYTES = 100
PER_COMMIT = 50_000
# Commits of one-message transactions alternate with commits of these.
MESSAGES_OF_A_BATCH = 1_000
ROLLBACK_EVERY = 50
MOST_MIB = 2_048
KIB = 1_024


@dataclass(frozen=True)
class Run:
    """One verification in a process of its own."""

    duration_s: float
    peak_mib: float


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """A hundredth of the messages, a tenth of them, all of them."""
    outcomes: list[Outcome] = []
    for part in GROWTH:
        outcomes += _outcomes(sizes.verified // part, sizes.rounds, folder)
    return outcomes


def _outcomes(count: int, rounds: int, folder: Path) -> list[Outcome]:
    location = _in_a_process(count, fresh_folder(folder, "verify"))
    runs = [_verified(location, count) for _ in range(rounds)]
    facts = {"messages": count, "body_bytes": BODY_BYTES, "batch": MESSAGES_OF_A_BATCH}
    name = f"{count:,} messages"
    return [
        Outcome("verify", f"peak memory, {name}", "MiB", [run.peak_mib for run in runs],
                bar=Bar(MOST_MIB, at_most=True), facts=facts),
        Outcome("verify", f"rate, {name}", "messages/s", [count / run.duration_s for run in runs]),
    ]  # fmt: skip


def _verified(location: str, count: int) -> Run:
    """The command as users run it; a violation or another number of messages ends the benchmark."""
    command = [sys.executable, "-m", "txmq", "verify", location, "--json"]
    start_s = time.perf_counter()
    with tempfile.TemporaryFile() as report:
        process = subprocess.Popen(command, stdout=report)
        # Of this process alone, not the largest of all children so far.
        _, status, usage = os.wait4(process.pid, 0)
        duration_s = time.perf_counter() - start_s
        process.returncode = os.waitstatus_to_exitcode(status)
        report.seek(0)
        messages = json.load(report)["counts"]["messages"]
    if process.returncode or messages != count:
        problem = f"verify read {messages:,} of {count:,} messages, exit code {process.returncode}"
        raise RuntimeError(problem)
    return Run(duration_s, usage.ru_maxrss / KIB)


def _in_a_process(count: int, folder: Path) -> str:
    """A child counts the memory that its parent held at the fork, so this one stays small."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_store_with, count, folder / "store").result()


def _store_with(count: int, location: Path) -> str:
    """Half of the messages alone in their transaction, half in batches; all of them published."""
    store = Store.create(location)
    half, op = store.tables.half_log().table, store.tables.op_log().table
    for number in range(-(-count // PER_COMMIT)):
        rows = min(PER_COMMIT, count - number * PER_COMMIT)
        batch = MESSAGES_OF_A_BATCH if number % 2 else 1
        halves, ends = transactions(rows, BODY_BYTES, batch, rollback_every=ROLLBACK_EVERY)
        half.writer.append(halves, app_id=GROUP, number=number + 1)
        op.writer.append(ends, app_id=GROUP, number=number + 1)
    Publisher(store).run_once()
    return store.location
