"""From commit to visible in a store with a long log, beside a store that is new."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from bench.messages import GROUP, TOPIC, random_body
from bench.outcome import Bar, Outcome, alternate
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.delta.table import Table
from txmq.message.message import Message
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

PAUSE_S, LOOK_S = 0.2, 0.001
FIRST_MESSAGES = 5
LOGS = ("half", "op")
MOST_TIMES_THE_FRESH_ONE = 1.2


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """The p50 of each round after a history of so many commits, beside a fresh store."""
    grown = Store.create(fresh_folder(folder, "grown") / "store")
    made_s = _grow(grown, sizes.history_commits)
    fresh = Store.create(fresh_folder(folder, "fresh") / "store")
    sides: dict[str, Callable[[], list[float]]] = {
        "grown": lambda: _latencies(grown, sizes), "fresh": lambda: _latencies(fresh, sizes),
    }  # fmt: skip
    samples = alternate(sides, sizes.rounds)
    ours, bare = ([median(one) for one in samples[name]] for name in ("grown", "fresh"))
    facts = {
        "versions": {log: grown.tables.table_at(log).refresh().version for log in LOGS},
        "commit_files": {log: _commit_files(grown, log) for log in LOGS},
        "history_s": round(made_s, 1),
        "samples_s": samples,
    }
    measure = f"commit to visible after {sizes.history_commits:,} commits, beside a new store, p50"
    bar = Bar(MOST_TIMES_THE_FRESH_ONE, at_most=True)
    return [Outcome("growth", measure, "s", ours, bare, bar, facts)]


def _grow(store: Store, commits: int) -> float:
    """So many commits to both logs, one transaction each, with the broker and its maintenance."""
    begun_s = time.perf_counter()
    handle = Broker(store).start()
    try:
        with TransactionProducer(store, producer_group=GROUP) as producer:
            for _ in range(commits // len(LOGS)):
                _send(producer)
    finally:
        handle.stop()
    return time.perf_counter() - begun_s


def _send(producer: TransactionProducer) -> None:
    with producer.begin_transaction() as transaction:
        transaction.send(Message(TOPIC, random_body(64)))
        transaction.prepare()
        transaction.commit()


def _latencies(store: Store, sizes: Sizes) -> list[float]:
    """Each message is waited for before the next one; pauses keep step with nothing."""
    handle = Broker(store).start()
    latencies = []
    try:
        with TransactionProducer(store, producer_group=GROUP) as producer:
            _send(producer)
            topic = _topic(store)
            for _ in range(FIRST_MESSAGES + sizes.single_messages):
                time.sleep(random.uniform(0, PAUSE_S))  # noqa: S311 - no secret
                topic.refresh()
                _send(producer)
                latencies.append(_visible_after_s(topic))
    finally:
        handle.stop()
    return latencies[FIRST_MESSAGES:]


def _topic(store: Store) -> Table:
    table = store.tables.table_at(f"topics/{TOPIC}")
    while not table.exists():
        time.sleep(LOOK_S)
    return table


def _visible_after_s(topic: Table) -> float:
    begun_s = time.perf_counter()
    while not topic.log.has_news():
        time.sleep(LOOK_S)
    return time.perf_counter() - begun_s


def _commit_files(store: Store, log: str) -> int:
    names = os.listdir(Path(store.location, log, "_delta_log"))  # noqa: PTH208 - names only
    return sum(name.endswith(".json") for name in names)
