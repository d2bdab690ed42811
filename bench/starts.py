"""What a process does first, in a store of many topics, retained halves and gone producers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from bench.gone_processes import LOGS, leave_marks, let_them_be_old
from bench.memory import peak_mib
from bench.outcome import Bar, Outcome, alternate
from bench.restart import to_all_topics
from bench.retained import store_with
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.check.recheck import RecheckJob
from txmq.consumer.pull import PullConsumer
from txmq.ops.admin.status import Admin
from txmq.publish.publisher import Publisher
from txmq.store.store import Store

TOPIC = "topic-0"
POLL_S = 10.0
STATUS = "status"
MOST_TIMES_THE_FRESH_ONE = 1.3


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """Time and memory of each first act in a process of its own, beside a store with one topic."""
    retained = max(sizes.retained)
    locations = {
        "large": _filled(
            store_with(retained, folder / "large"), sizes.topics, sizes.gone_processes
        ),
        "fresh": _filled(Store.create(fresh_folder(folder, "fresh") / "store").location, 1, 0),
    }
    # As a service does that runs in it: the set of open transactions is kept then.
    for location in locations.values():
        RecheckJob(Store.open(location)).run_once()
    beside = f"{sizes.topics:,} topics, {retained:,} retained, {sizes.gone_processes:,} gone"
    return [line for act in ACTS for line in _of_act(act, beside, locations, sizes.rounds)]


def _of_act(act: str, beside: str, locations: Mapping[str, str], rounds: int) -> list[Outcome]:
    sides = {name: partial(_in_a_process, act, location) for name, location in locations.items()}
    samples = alternate(sides, rounds)
    # It looks at each topic, and says something of each.
    bar = None if act == STATUS else Bar(MOST_TIMES_THE_FRESH_ONE, at_most=True)
    return [
        Outcome("starts", f"{act}, {what}; {beside}", unit,
                [sample[place] for sample in samples["large"]],
                [sample[place] for sample in samples["fresh"]], bar)
        for place, (what, unit) in enumerate((("time", "s"), ("memory", "MiB")))
    ]  # fmt: skip


def _filled(location: str, topics: int, gone_processes: int) -> str:
    store = Store.open(location)
    to_all_topics(store, topics)
    Publisher(store).run_once()
    for log in LOGS if gone_processes else ():
        leave_marks(store.tables.table_at(log), gone_processes)
        let_them_be_old(store.tables.table_at(log))
    return location


def _in_a_process(act: str, location: str) -> tuple[float, float]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_acted, act, location).result()


def _acted(act: str, location: str) -> tuple[float, float]:
    begun_s = time.perf_counter()
    ACTS[act](Store.open(location))
    return time.perf_counter() - begun_s, peak_mib()


def _look(store: Store) -> None:
    with PullConsumer(store, consumer_group="bench", topics=TOPIC) as consumer:
        if not consumer.poll(1, timeout_s=POLL_S):
            raise LookupError(TOPIC)


ACTS: Mapping[str, Callable[[Store], object]] = {
    "Store.open": lambda store: store,
    "first send and commit()": partial(to_all_topics, topics=1),
    "first look of a consumer": _look,
    STATUS: lambda store: Admin(store).status(),
}
