"""Callers that wait for each commit: half, an empty local transaction, end."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median

from bench.messages import GROUP, TOPIC, random_body
from bench.outcome import Outcome, percentile
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

THREADS = (1, 8, 32, 512)
PROCESSES = 4
THREADS_OF_A_PROCESS = 8
START_DELAY_S = 3.0


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """Transactions a second and the p50 of commit(); no bar, for there is nothing beside it."""
    outcomes: list[Outcome] = []
    for threads in THREADS:
        run = partial(_one_process, sizes, folder, threads)
        outcomes += _outcomes(f"{threads} threads" if threads > 1 else "1 thread", run, sizes)
    name = f"{PROCESSES} processes of {THREADS_OF_A_PROCESS} threads"
    return outcomes + _outcomes(name, partial(_processes, sizes, folder), sizes)


def _outcomes(name: str, run: partial[list[float]], sizes: Sizes) -> list[Outcome]:
    run()
    samples = [run() for _ in range(sizes.rounds)]
    rates = [len(commits) / sizes.callers_s for commits in samples]
    p50s = [median(commits) * 1000 for commits in samples]
    facts = {"p99_ms": [percentile(commits, 0.99) * 1000 for commits in samples]}
    return [
        Outcome("callers", name, "transactions/s", rates),
        Outcome("callers", f"{name}, commit() p50", "ms", p50s, facts=facts),
    ]


def _one_process(sizes: Sizes, folder: Path, threads: int) -> list[float]:
    Store.create(fresh_folder(folder, "callers"))
    return _commits(folder / "callers", threads, sizes, time.time())


def _processes(sizes: Sizes, folder: Path) -> list[float]:
    Store.create(fresh_folder(folder, "callers"))
    start = time.time() + START_DELAY_S
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        asked = [
            pool.submit(_commits, folder / "callers", THREADS_OF_A_PROCESS, sizes, start)
            for _ in range(PROCESSES)
        ]
        return [commit_s for one in asked for commit_s in one.result()]


def _commits(location: Path, threads: int, sizes: Sizes, start: float) -> list[float]:
    """Seconds that each commit() took, of all that ended in time."""
    with (
        TransactionProducer(Store.open(location), producer_group=GROUP) as producer,
        ThreadPoolExecutor(threads) as pool,
    ):
        time.sleep(max(0.0, start - time.time()))
        end_s = time.perf_counter() + sizes.callers_s
        asked = [pool.submit(_caller, producer, sizes.body_bytes, end_s) for _ in range(threads)]
        return [commit_s for one in asked for commit_s in one.result()]


def _caller(producer: TransactionProducer, body_bytes: int, end_s: float) -> list[float]:
    commits = []
    while time.perf_counter() < end_s:
        with producer.begin_transaction() as transaction:
            transaction.send(Message(TOPIC, random_body(body_bytes)))
            transaction.prepare()
            start_s = time.perf_counter()
            transaction.commit()
            commits.append(time.perf_counter() - start_s)
    return commits
