"""Delayed messages far away: what a tick costs with a million of them, and a new start."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, median

import numpy as np
import pyarrow as pa

from bench.memory import peak_mib
from bench.messages import GROUP, one_message_transactions
from bench.outcome import Bar, Outcome
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.maintenance.service import Maintenance
from txmq.message.lifecycle import ClaimKind
from txmq.publish.delay_service import DelayService
from txmq.publish.publisher import Publisher
from txmq.store.schemas import HALF
from txmq.store.store import Store
from txmq.testing import ManualClock

PER_COMMIT = 10_000
BODY_BYTES = 64
DAYS = 30
FEW_TIMES_LESS = 100
SIMULATED_S = 3_600.0
MOST_TIMES_THE_COST = 1.2
LONGEST_START_S = 60.0


@dataclass(frozen=True)
class Served:
    """An hour of a delay service: its start, its ticks without and with deliveries, memory."""

    start_s: float
    idle_tick_us: float
    idle_tick_p50_us: float
    ticks: int
    delivered: int
    memory_mib: float


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """A million beside a hundredth of them, on one simulated clock."""
    many, few = sizes.pending, sizes.pending // FEW_TIMES_LESS
    stores = {count: _store_with(count, folder / f"pending-{count}") for count in (many, few)}
    served: dict[int, list[Served]] = {many: [], few: []}
    for number in range(sizes.rounds):
        for count in (many, few) if number % 2 == 0 else (few, many):
            served[count].append(_in_a_process(*stores[count]))
    name = f"{many:,} beside {few:,} pending over {DAYS} days"
    facts = {
        "ticks": served[many][0].ticks,
        "delivered": [served[many][0].delivered, served[few][0].delivered],
        "tick_p50_us": [median(one.idle_tick_p50_us for one in served[c]) for c in (many, few)],
    }
    bar = Bar(MOST_TIMES_THE_COST, at_most=True)
    return [
        Outcome("pending", f"a tick, {name}", "us", [one.idle_tick_us for one in served[many]],
                [one.idle_tick_us for one in served[few]], bar, facts),
        Outcome("pending", f"memory, {name}", "MiB", [one.memory_mib for one in served[many]],
                [one.memory_mib for one in served[few]], bar),
        Outcome("pending", f"new start, {many:,} pending", "s",
                [one.start_s for one in served[many]], bar=Bar(LONGEST_START_S, at_most=True)),
    ]  # fmt: skip


def _in_a_process(location: str, now_ms: int) -> Served:
    """Of its own, so that its memory is that of the service alone."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_served, location, now_ms).result()


def _served(location: str, now_ms: int) -> Served:
    clock = ManualClock(now_ms)
    store = Store.open(location)
    began_s = time.perf_counter()
    service = DelayService(store, clock=clock)
    service.run_once()
    start_s = time.perf_counter() - began_s
    interval_s = store.config.delay_trigger_interval_s
    idle_s, delivered, ticks = [], 0, round(SIMULATED_S / interval_s)
    for _ in range(ticks):
        clock.advance(interval_s)
        tick_s = time.perf_counter()
        found = service.run_once().delivered
        tick_s = time.perf_counter() - tick_s
        delivered += found
        if not found:
            idle_s.append(tick_s)
    idle_us = mean(idle_s) * 1e6, median(idle_s) * 1e6
    return Served(start_s, *idle_us, ticks, delivered, peak_mib())


def _store_with(count: int, folder: Path) -> tuple[str, int]:
    """Messages with times spread evenly, committed and in the schedule; the clock they begin at."""
    store = Store.create(fresh_folder(folder, "store"))
    now = datetime.now(UTC)
    draw = np.random.default_rng(count)
    half, op = store.tables.half_log().table, store.tables.op_log().table
    for number in range(-(-count // PER_COMMIT)):
        rows = min(PER_COMMIT, count - number * PER_COMMIT)
        halves, ends = one_message_transactions(rows, BODY_BYTES)
        due = [now + timedelta(seconds=s) for s in draw.uniform(60, DAYS * 86_400, rows)]
        half.writer.append(_due_at(halves, due), app_id=GROUP, number=number + 1)
        op.writer.append(ends, app_id=f"{GROUP}/{ClaimKind.COMMIT}", number=number + 1)
    Publisher(store).run_once()
    Maintenance(store).run_once()
    return store.location, round(now.timestamp() * 1000) + 60_000


def _due_at(halves: pa.Table, due: list[datetime]) -> pa.Table:
    column = HALF.columns.field("deliver_timestamp")
    place = halves.schema.get_field_index(column.name)
    return halves.set_column(place, column, pa.array(due, column.type))
