"""What a publisher holds of transactions that are larger than a round, and of many large ones.

And what a driver of Spark holds of one DataFrame the whole way: its send and its publishing by
tasks on executors.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.bare import quiet_session
from bench.memory import peak_memory, peak_mib
from bench.messages import GROUP, QUEUES, TOPIC, random_body
from bench.outcome import Bar, Outcome
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.message.ids import new_transaction_id
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.half import HalfOrigin, HalfTransaction, half_table
from txmq.store.op import OpRow, op_table
from txmq.store.store import Store

# What one writer of a DataFrame puts into a file, and how far its numbers are from the next one's.
FILE_ROWS, FILE_STEP = 125_000, 1 << 33
# Bodies that a codec makes small, so that no disk bounds the largest transaction; in memory they
# are as large as others.
BODIES, PATTERN_BYTES = 64, 32
HEAP_MIB = 512
MOST_TIMES_THE_MEMORY = 1.3
MOST_MIB = 1_500 / 1.048576


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """Time and memory of a publisher's process, with one transaction and with a backlog."""
    few, many = min(sizes.large), max(sizes.large)
    transactions, messages = sizes.large_backlog
    samples: dict[str, tuple[float, float]] = {}
    for count in sorted(sizes.large):
        samples[str(count)] = _published(folder, 1, count, sizes.body_bytes)
    name = f"{transactions:,} x {messages:,}"
    samples[name] = _published(folder, transactions, messages, sizes.body_bytes)
    drivers = {count: _the_whole_way(folder, count, sizes.body_bytes) for count in sizes.large}
    facts = {"all_s_and_mib": samples, "drivers_s_s_and_mib": drivers}
    flat = Bar(MOST_TIMES_THE_MEMORY, at_most=True)
    base = [samples[str(few)][1]]
    return [
        Outcome("large", f"peak memory, one transaction of {many:,} beside {few:,}", "MiB",
                [samples[str(many)][1]], base, flat, facts),
        Outcome("large", f"peak memory, {name} beside one of {few:,}", "MiB",
                [samples[name][1]], base, flat),
        Outcome("large", f"peak memory, one transaction of {many:,}", "MiB",
                [samples[str(many)][1]], bar=Bar(MOST_MIB, at_most=True)),
        Outcome("large", f"speed, one transaction of {many:,} beside {few:,}", "messages/s",
                [many / samples[str(many)][0]], [few / samples[str(few)][0]]),
        Outcome("large", f"peak memory of a driver, DataFrame of {many:,} beside {few:,}", "MiB",
                [drivers[many].mib], [drivers[few].mib], flat),
        Outcome("large", f"peak memory of a driver, DataFrame of {many:,}", "MiB",
                [drivers[many].mib], bar=Bar(MOST_MIB, at_most=True)),
        Outcome("large", f"the whole way of a DataFrame of {many:,} beside {few:,}", "messages/s",
                [many / drivers[many].all_s], [few / drivers[few].all_s]),
    ]  # fmt: skip


def _published(
    folder: Path, transactions: int, messages: int, body_bytes: int
) -> tuple[float, float]:
    """Seconds and MiB of a process that publishes what was sent."""
    location = str(fresh_folder(folder, "large") / "store")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(_send, location, transactions, messages, body_bytes).result()
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_publish, location, transactions * messages).result()


def _publish(location: str, messages: int) -> tuple[float, float]:
    store = Store.open(location)
    begun_s = time.perf_counter()
    result = Publisher(store).run_once()
    took_s = time.perf_counter() - begun_s
    if result.published != messages:
        raise RuntimeError(f"{result.published:,} of {messages:,} messages are published")
    return took_s, peak_mib()


# --- a driver ------------------------------------------------------------------------------------


class Driver(NamedTuple):
    """What it took: to send, to publish, and Python and Java of the driver together."""

    send_s: float
    publish_s: float
    mib: float

    @property
    def all_s(self) -> float:
        """Both together."""
        return self.send_s + self.publish_s


def _the_whole_way(folder: Path, messages: int, body_bytes: int) -> Driver:
    location = str(fresh_folder(folder, "large") / "store")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_send_and_publish, location, messages, body_bytes).result()


def _send_and_publish(location: str, messages: int, body_bytes: int) -> Driver:
    spark = quiet_session(HEAP_MIB)
    store = Store.create(location, Config(payload_engine="spark"))
    bodies = f"repeat(lpad(id % {BODIES}, {PATTERN_BYTES}, '-'), {body_bytes // PATTERN_BYTES})"
    rows = spark.range(0, messages, 1, max(2, messages // FILE_ROWS)).selectExpr(f"{bodies} body")
    with peak_memory(spark) as peak:
        begun_s = time.perf_counter()
        producer = TransactionProducer(store, producer_group=GROUP)
        with producer, producer.begin_transaction() as transaction:
            transaction.send_dataframe(rows, topic=TOPIC)
            transaction.prepare()
            transaction.commit()
        sent_s = time.perf_counter()
        result = Publisher(store, spark=spark).run_once()
        ended_s = time.perf_counter()
    if result.published != messages:
        raise RuntimeError(f"{result.published:,} of {messages:,} messages are published")
    return Driver(sent_s - begun_s, ended_s - sent_s, peak.together_mib)


# --- sending --------------------------------------------------------------------------------------


def _send(location: str, transactions: int, messages: int, body_bytes: int) -> None:
    """Write the halves as a DataFrame's files, and one commit with the ends of all."""
    store = Store.create(location)
    now_ms = time.time_ns() // 1_000_000
    origins = [
        HalfOrigin(new_transaction_id(now_ms), GROUP, 0, 3600.0, now_ms)
        for _ in range(transactions)
    ]
    patterns = [random_body(PATTERN_BYTES) for _ in range(BODIES)]
    bodies = pa.array([each * (body_bytes // PATTERN_BYTES) for each in patterns], pa.binary())
    half = store.tables.table_at("half")
    files = [
        file
        for rows in _together(_halves(origin, messages, bodies) for origin in origins)
        for file in half.writer.new_files(rows)
    ]
    half.writer.append_files(files, app_id="bench", number=1)
    ends = [
        OpRow(origin.transaction_id, ClaimKind.COMMIT, GROUP, ClaimSource.PRODUCER, now_ms)
        for origin in origins
    ]
    store.tables.table_at("op").writer.append(op_table(ends, 0), app_id="bench", number=1)


def _together(tables: Iterator[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    waiting, count = list[pa.Table](), 0
    for parts in tables:
        for part in parts:
            waiting.append(part)
            count += part.num_rows
            if count >= FILE_ROWS:
                yield pa.concat_tables(waiting)
                waiting, count = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _halves(origin: HalfOrigin, messages: int, bodies: pa.Array) -> Iterator[pa.Table]:
    """The rows of one transaction, up to FILE_ROWS at once."""
    head = half_table([HalfTransaction(origin, [Message(TOPIC, b"")], [0], messages)])
    for number, first in enumerate(range(0, messages, FILE_ROWS)):
        count = min(FILE_ROWS, messages - first)
        begin = number * FILE_STEP if number else 0
        sequence = pa.array(np.arange(begin, begin + count))
        rows = head.take(pa.array(np.zeros(count, np.int64)))
        values = {
            "sequence": sequence,
            "message_id": pc.binary_join_element_wise(
                pa.scalar(origin.transaction_id), sequence.cast(pa.string()), ":"
            ),
            "body": bodies.take(pa.array(np.arange(count) % BODIES)),
            "real_queue_id": pa.array((np.arange(count) % QUEUES).astype(np.int32)),
        }
        if number or count > 1:
            is_head = np.arange(first, first + count) == 0
            values["message_count"] = pa.array(np.full(count, messages), mask=~is_head)
        for name, value in values.items():
            place = rows.column_names.index(name)
            rows = rows.set_column(place, rows.schema.field(name), value)
        yield rows
