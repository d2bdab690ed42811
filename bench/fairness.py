"""A slow writer and maintenance beside a crowd of callers, who commit to the same two logs."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from bench.callers import START_DELAY_S, of_txmq, send_one
from bench.messages import GROUP, random_body
from bench.outcome import Bar, Outcome, percentile
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.delta.folder import Objects
from txmq.maintenance.service import Maintenance
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

PROCESSES, THREADS = 8, 32
# Between the look of the slow writer and its put.
SLEEP_S = 0.02
SLOW_BAR = Bar(2.0, at_most=True)
# The last round may end after the callers have.
ROUND_BAR = Bar(1.0, at_most=False)


class Rounds(NamedTuple):
    """The rounds of maintenance that began while all called."""

    count: int
    longest_s: float
    files_merged: int


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """The p99 of a slow writer's commit(), and how many rounds maintenance ends meanwhile."""
    runs = [_crowd(sizes, fresh_folder(folder, "crowd") / "store") for _ in range(sizes.rounds)]
    beside = f"beside {PROCESSES} processes of {THREADS} threads"
    p99s = [percentile(commits, 0.99) for commits, _, _ in runs]
    facts = {
        "slow_commits": [len(commits) for commits, _, _ in runs],
        "crowd_per_s": [round(crowd / sizes.crowd_s) for _, _, crowd in runs],
    }
    rounds = [rounds for _, rounds, _ in runs]
    of_rounds = {
        "longest_s": [one.longest_s for one in rounds],
        "files_merged": [one.files_merged for one in rounds],
    }
    name = f"commit() p99 of a writer that sleeps 20 ms before each put, {beside}"
    return [
        Outcome("fairness", name, "s", p99s, (), SLOW_BAR, facts),
        Outcome(
            "fairness", f"rounds of maintenance {beside}", "rounds",
            [one.count for one in rounds], (), ROUND_BAR, of_rounds,
        ),
    ]  # fmt: skip


def _crowd(sizes: Sizes, location: Path) -> tuple[list[float], Rounds, int]:
    """The slow writer's commits, the rounds, and how many commits the crowd made."""
    Store.create(location)
    start = time.time() + START_DELAY_S * PROCESSES
    sizes = replace(sizes, callers_s=sizes.crowd_s)
    with ProcessPoolExecutor(PROCESSES + 2, mp_context=get_context("spawn")) as pool:
        crowd = [
            pool.submit(of_txmq, location, THREADS, sizes, start) for _ in range(PROCESSES)
        ]  # fmt: skip
        slow = pool.submit(_slow, location, sizes, start)
        maintained = pool.submit(_maintained, location, start, sizes.crowd_s)
        return slow.result(), maintained.result(), sum(len(one.result()) for one in crowd)


def _slow(location: Path, sizes: Sizes, start: float) -> list[float]:
    put_new = Objects.put_new

    def put_late(objects: Objects, path: str, content: bytes) -> bool:
        time.sleep(SLEEP_S)
        return put_new(objects, path, content)

    Objects.put_new = put_late  # type: ignore[method-assign]
    with TransactionProducer(Store.open(location), producer_group=GROUP) as producer:
        time.sleep(max(0.0, start - time.time()))
        end_s = time.perf_counter() + sizes.crowd_s
        commits = []
        while time.perf_counter() < end_s:
            commits.append(send_one(producer, random_body(sizes.body_bytes)))
        return commits


def _maintained(location: Path, start: float, seconds: float) -> Rounds:
    maintenance = Maintenance(Store.open(location))
    time.sleep(max(0.0, start - time.time()))
    end_s = time.perf_counter() + seconds
    durations_s, merged = [], 0
    while (begun_s := time.perf_counter()) < end_s:
        result = maintenance.run_once()
        if result.failed:
            raise RuntimeError(f"a round of maintenance failed: {dict(result.failed)}")
        durations_s.append(time.perf_counter() - begun_s)
        merged += result.compacted.files_before
    return Rounds(len(durations_s), max(durations_s), merged)
