"""The first send of a process in a store that many producers have used and left.

Each of them leaves a mark in `half` and in `op`, which checkpoints leave out after three days.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.memory import peak_mib
from bench.messages import GROUP, TOPIC, random_body
from bench.outcome import Bar, Outcome, alternate
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.delta.actions import session_mark
from txmq.delta.checkpoints import SESSION_MS, checkpoint_path
from txmq.delta.log_files import clean_log
from txmq.delta.table import Table
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

LOGS = ("half", "op")
MARKS_OF_A_COMMIT = 10_000
MOST_TIMES_THE_FRESH_ONE = 1.2
# A new process each time, whose first send is counted.
STARTS = 5


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """Time and memory of a first send after so many processes, beside a store without any."""
    stores = {name: Store.create(fresh_folder(folder, name) / "store")
              for name in ("gone", "recent", "fresh")}  # fmt: skip
    for name, store in stores.items():
        for log in LOGS:
            # Each has checkpoints, for to read one takes a while by itself.
            leave_marks(store.tables.table_at(log), 1 if name == "fresh" else sizes.gone_processes)
    for log in LOGS:
        let_them_be_old(stores["gone"].tables.table_at(log))
    for store in stores.values():
        for log in LOGS:
            # As maintenance does, once all have read them.
            table = store.tables.table_at(log).refresh()
            clean_log(table, table.version)
    sides = {name: partial(_first_sends, store.location) for name, store in stores.items()}
    samples = alternate(sides, sizes.rounds)
    return [*_outcomes(samples, "gone", sizes), *_outcomes(samples, "recent", sizes)]


def leave_marks(table: Table, count: int) -> None:
    """Write the marks of so many sessions, and a checkpoint that has them."""
    table.refresh()
    for _ in range(count // MARKS_OF_A_COMMIT or 1):
        size = min(count, MARKS_OF_A_COMMIT)
        table.writer.commit_marks({session_mark("producer", uuid.uuid4()): 1 for _ in range(size)})
    table.writer.checkpoint()


def let_them_be_old(table: Table) -> None:
    """Let the marks of the last checkpoint be of long ago, and write the next checkpoint."""
    path = Path(table.location, checkpoint_path(table.refresh().version))
    rows = pq.read_table(path)
    marks = rows["txn"].combine_chunks()
    name, number, stamp_ms = marks.flatten()
    old_ms = pc.subtract(stamp_ms, 2 * SESSION_MS)
    older = pa.StructArray.from_arrays(
        [name, number, old_ms], fields=list(marks.type), mask=marks.is_null()
    )
    pq.write_table(rows.set_column(rows.schema.get_field_index("txn"), "txn", older), path)
    table.writer.commit_marks({"bench": 1})
    table.writer.checkpoint()


def _first_sends(location: str) -> list[tuple[float, float]]:
    """Return the seconds and the MiB of the first send of some new processes."""
    context = get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as pool:
        return [pool.submit(_first_send, location).result() for _ in range(STARTS)]


def _first_send(location: str) -> tuple[float, float]:
    begun_s = time.perf_counter()
    with (
        TransactionProducer(Store.open(location), producer_group=GROUP) as producer,
        producer.begin_transaction() as transaction,
    ):
        transaction.send(Message(TOPIC, random_body(64)))
        transaction.prepare()
        transaction.commit()
        took_s = time.perf_counter() - begun_s
    return took_s, peak_mib()


def _outcomes(
    samples: dict[str, list[list[tuple[float, float]]]], name: str, sizes: Sizes
) -> list[Outcome]:
    times = {"gone": "that are gone for long", "recent": "of the last three days"}[name]
    after = f"after {sizes.gone_processes:,} processes {times}, beside a new store"
    bar = Bar(MOST_TIMES_THE_FRESH_ONE, at_most=True) if name == "gone" else None
    return [
        Outcome("gone-processes", f"open, first send and commit() {after}", "s",
                _least(samples[name], 0), _least(samples["fresh"], 0), bar,
                {"samples": samples[name]}),
        Outcome("gone-processes", f"memory {after}", "MiB",
                _least(samples[name], 1), _least(samples["fresh"], 1), bar, {}),
    ]  # fmt: skip


def _least(rounds: Sequence[Sequence[tuple[float, float]]], place: int) -> list[float]:
    """Return the least of each round: a start is disturbed by all else that runs."""
    return [min(sample[place] for sample in samples) for samples in rounds]
