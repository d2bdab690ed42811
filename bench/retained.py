"""Questions about open transactions in a store that retains many ended ones."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.memory import peak_mib
from bench.messages import GROUP, transactions
from bench.outcome import Bar, Outcome
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.check.recheck import RecheckJob
from txmq.delta.log_files import commit_fingerprint
from txmq.message.lifecycle import ClaimSource, TransactionState
from txmq.ops.admin.operator import Operator
from txmq.ops.admin.status import Admin
from txmq.ops.metrics.service import MetricsService
from txmq.publish.progress import PublishProgress
from txmq.store.schemas import SETTLED
from txmq.store.store import Store

CHUNK_ROWS, FILE_ROWS = 1_000_000, 125_000
RETAINED_MS = 72 * 3_600_000
BODY_BYTES = 16
OPEN = 1_000
MOST_TIMES_THE_COST = 1.3
QUESTIONS: Mapping[str, Callable[[Store], object]] = {
    "recheck": lambda store: RecheckJob(store).run_once(),
    "open": lambda store: Operator(store).open_transactions(),
    "status": lambda store: Admin(store).status(),
    "metrics": lambda store: MetricsService(store).run_once(),
}


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """Time and memory of each question in its own process, in the largest and smallest store."""
    stores = {count: store_with(count, folder / f"retained-{count}") for count in sizes.retained}
    built = {count: asked_in_a_process("recheck", stores[count]) for count in stores}
    samples: dict[tuple[str, int], list[tuple[float, float]]] = {}
    for number in range(sizes.rounds):
        for count in sizes.retained if number % 2 == 0 else reversed(sizes.retained):
            for question in QUESTIONS:
                sample = asked_in_a_process(question, stores[count])
                samples.setdefault((question, count), []).append(sample)
    few, many = min(stores), max(stores)
    facts = {
        "open": OPEN,
        "first_recheck_s_and_mib": {str(count): sample for count, sample in built.items()},
        "all_s_and_mib": {f"{name} {count}": taken for (name, count), taken in samples.items()},
    }
    bar = Bar(MOST_TIMES_THE_COST, at_most=True)
    beside = f"{many:,} ended retained beside {few:,}"
    return [
        Outcome("retained", f"{question}, {what}, {beside}", unit,
                [sample[place] for sample in samples[question, many]],
                [sample[place] for sample in samples[question, few]], bar, facts)
        for question in QUESTIONS
        for place, (what, unit) in enumerate((("time", "s"), ("peak memory", "MiB")))
    ]  # fmt: skip


def asked_in_a_process(question: str, location: str) -> tuple[float, float]:
    """Of its own, so that its memory is that of the question alone."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_asked, question, location).result()


def _asked(question: str, location: str) -> tuple[float, float]:
    store = Store.open(location)
    begun_s = time.perf_counter()
    QUESTIONS[question](store)
    took_s = time.perf_counter() - begun_s
    return took_s, peak_mib()


# --- the store ------------------------------------------------------------------------------------


def store_with(count: int, folder: Path, open_count: int = OPEN) -> str:
    """A store with so many settled and published transactions, and some open between them."""
    store = Store.create(fresh_folder(folder.parent, folder.name) / "store")
    now_ms = time.time_ns() // 1_000_000
    chunks = max(1, count // CHUNK_ROWS)
    for number in range(chunks):
        ids = _ids(count // chunks, now_ms - RETAINED_MS * (chunks - number) // chunks)
        still_open = _ids(open_count // chunks + (number < open_count % chunks), now_ms - number)
        _append(store, "half", _like(_halves(), pa.concat_arrays([ids, still_open])), number)
        _append(store, "op", _like(_ends(), ids), number)
        _settle(store, ids)
    _note_as_published(store)
    return store.location


def _ids(count: int, begin_ms: int) -> pa.Array:
    """So many ids of version 7, of one hour."""
    octets = np.frombuffer(os.urandom(count * 16), np.uint8).reshape(count, 16).copy()
    times_ms = begin_ms + np.linspace(0, 60_000, count, dtype=np.int64)
    for place in range(6):
        octets[:, place] = (times_ms >> (40 - 8 * place)) & 0xFF
    octets[:, 6] = 0x70 | (octets[:, 6] & 0x0F)
    octets[:, 8] = 0x80 | (octets[:, 8] & 0x3F)
    digits = np.frombuffer(octets.tobytes().hex().encode(), np.uint8).reshape(count, 32)
    texts = np.full((count, 36), ord("-"), np.uint8)
    for begin, end, shift in ((0, 8, 0), (8, 12, 1), (12, 16, 2), (16, 20, 3), (20, 32, 4)):
        texts[:, begin + shift : end + shift] = digits[:, begin:end]
    offsets = pa.py_buffer(np.arange(0, 36 * (count + 1), 36, dtype=np.int32))
    return pa.StringArray.from_buffers(count, offsets, pa.py_buffer(texts.tobytes()))


def _halves() -> pa.Table:
    return transactions(1, BODY_BYTES, 1)[0]


def _ends() -> pa.Table:
    return transactions(1, BODY_BYTES, 1)[1]


def _like(row: pa.Table, ids: pa.Array) -> pa.Table:
    """Rows like this one, of these transactions."""
    rows = row.take(pa.array(np.zeros(len(ids), np.int64)))
    columns = {"transaction_id": ids, "ordinal": pa.array(range(len(ids)), pa.int64()),
               "message_id": pc.binary_join_element_wise(ids, pa.scalar("0"), ":")}  # fmt: skip
    for name in columns.keys() & set(rows.column_names):
        place = rows.column_names.index(name)
        rows = rows.set_column(place, rows.schema.field(name), columns[name])
    return rows


def _append(store: Store, path: str, rows: pa.Table, number: int) -> None:
    table = store.tables.table_at(path)
    files = [
        file
        for begin in range(0, rows.num_rows, FILE_ROWS)
        for file in table.writer.new_files(rows.slice(begin, FILE_ROWS))
    ]
    table.writer.append_files(files, app_id="bench", number=number + 1)


def _settle(store: Store, ids: pa.Array) -> None:
    op = store.tables.table_at("op").refresh()
    log = store.tables.settled_log(op.log.table_id)
    count = len(ids)
    now = pa.scalar(time.time_ns() // 1000, SETTLED.columns.field("settled_timestamp").type)
    shared = {
        "state": pa.scalar(TransactionState.COMMITTED.value),
        "op_version": pa.scalar(op.version),
        "source": pa.scalar(ClaimSource.PRODUCER.value),
        "producer_group": pa.scalar(GROUP),
        "life": pa.scalar(0, pa.int32()),
        "settled_timestamp": now,
        "op_timestamp": now,
        "store_date": now.cast(pa.date32()),
    }
    columns = {"transaction_id": ids, "ordinal": pa.array(range(count), pa.int64())}
    columns |= {name: pa.repeat(value, count) for name, value in shared.items()}
    arrays = [
        columns[field.name].cast(field.type)
        if field.name in columns
        else pa.nulls(count, field.type)
        for field in SETTLED.columns
    ]
    rows = pa.table(arrays, schema=SETTLED.columns)
    log.swap(rows, op.version, commit_fingerprint(op, op.version))


def _note_as_published(store: Store) -> None:
    op = store.tables.table_at("op").refresh()
    register = store.tables.register("publisher")
    progress = PublishProgress(op.log.table_id).advanced(op.version, op)
    register.swap(register.read(), progress.to_value(), time.time_ns() // 1_000_000)
