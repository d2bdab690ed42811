"""Callers that wait for each commit: half, an empty local transaction, end.

Beside them a raw loop of the same form, which is the limit that storage, Arrow and threads set.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.messages import GROUP, TOPIC, random_body
from bench.outcome import Bar, Outcome, alternate, percentile
from bench.raw_commits import RawTransactions
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

LIMIT = Bar(0.7, at_most=False)
# A process imports its libraries first, all of them on the same few cores.
START_DELAY_S = 2.0
# Seconds of each end.
Commits = list[float]


class Callers(NamedTuple):
    """How many callers there are."""

    processes: int
    threads: int

    @property
    def name(self) -> str:
        """As the table shows it."""
        threads = f"{self.threads} threads" if self.threads > 1 else "1 thread"
        return f"{self.processes} processes of {threads}" if self.processes > 1 else threads


CALLERS = [
    Callers(1, 1),
    Callers(1, 8),
    Callers(1, 32),
    Callers(1, 512),
    Callers(4, 8),
    Callers(8, 32),
]


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """Transactions a second beside the raw loop, and the p50 of commit()."""
    return [outcome for callers in CALLERS for outcome in _outcomes(callers, sizes, folder)]


def _outcomes(callers: Callers, sizes: Sizes, folder: Path) -> list[Outcome]:
    sides = {
        "ours": partial(_run, of_txmq, callers, sizes, folder),
        "raw": partial(_run, _of_raw_loop, callers, sizes, folder),
    }
    samples = alternate(sides, sizes.rounds)
    rates = {side: [len(one) / sizes.callers_s for one in runs] for side, runs in samples.items()}
    p50s = {side: [median(one or [0.0]) * 1000 for one in runs] for side, runs in samples.items()}
    p99s = [percentile(one, 0.99) * 1000 for one in samples["ours"]]
    # More processes than the raw loop can serve starve each other.
    bare = rates["raw"] if all(rates["raw"]) else ()
    name = callers.name
    return [
        Outcome("callers", name, "transactions/s", rates["ours"], bare, LIMIT if bare else None),
        Outcome(
            "callers", f"{name}, commit() p50", "ms", p50s["ours"],
            p50s["raw"] if bare else (), facts={"p99_ms": p99s},
        ),
    ]  # fmt: skip


Run = Callable[[Path, int, Sizes, float], Commits]


def _run(run: Run, callers: Callers, sizes: Sizes, folder: Path) -> Commits:
    location = fresh_folder(folder, "callers")
    if run is of_txmq:
        Store.create(location)
    if callers.processes == 1:
        return run(location, callers.threads, sizes, time.time())
    start = time.time() + START_DELAY_S * callers.processes
    with ProcessPoolExecutor(callers.processes, mp_context=get_context("spawn")) as pool:
        asked = [
            pool.submit(run, location, callers.threads, sizes, start)
            for _ in range(callers.processes)
        ]
        return [commit_s for one in asked for commit_s in one.result()]


def of_txmq(location: Path, threads: int, sizes: Sizes, start: float) -> Commits:
    """Seconds that each commit() took, of all that ended in time."""
    with TransactionProducer(Store.open(location), producer_group=GROUP) as producer:
        return _in_time(partial(send_one, producer), threads, sizes, start)


def _of_raw_loop(location: Path, threads: int, sizes: Sizes, start: float) -> Commits:
    raw = RawTransactions(location)
    try:
        return _in_time(raw.run, threads, sizes, start)
    finally:
        raw.close()


def _in_time(call: Callable[[bytes], float], threads: int, sizes: Sizes, start: float) -> Commits:
    with ThreadPoolExecutor(threads) as pool:
        time.sleep(max(0.0, start - time.time()))
        end_s = time.perf_counter() + sizes.callers_s
        asked = [pool.submit(_caller, call, sizes.body_bytes, end_s) for _ in range(threads)]
        return [commit_s for one in asked for commit_s in one.result()]


def _caller(call: Callable[[bytes], float], body_bytes: int, end_s: float) -> Commits:
    commits = []
    while time.perf_counter() < end_s:
        commit_s = call(random_body(body_bytes))
        if time.perf_counter() < end_s:
            commits.append(commit_s)
    return commits


def send_one(producer: TransactionProducer, body: bytes) -> float:
    """Send one message; the seconds of its commit()."""
    with producer.begin_transaction() as transaction:
        transaction.send(Message(TOPIC, body))
        transaction.prepare()
        begun_s = time.perf_counter()
        transaction.commit()
        return time.perf_counter() - begun_s
