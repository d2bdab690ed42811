"""(e) Thirty simulated days with maintenance: a message is visible as soon as on the first."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from bench.bare import quiet_session
from bench.messages import GROUP, TOPIC, random_body
from bench.outcome import Bar, Outcome
from bench.reader import Reader
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.delta.log_files import log_files
from txmq.ground.clock import AffineClock
from txmq.maintenance.service import Maintenance
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store

DAY_MS = 86_400_000
# A day in twenty seconds.
SPEED = 4320.0
FIRST_MESSAGES = 20
COMPARED_DAYS = 1.0
TRAFFIC_THREADS = 8
TRAFFIC_PAUSE_S = 0.4
PATHS = ("half", "op", "settled", f"topics/{TOPIC}")
# Simulated times: five, twenty and sixty seconds of the machine's.
SETTINGS = {
    "maintenance_interval_s": 1.0,
    "log_reserved_time_s": 6 * 3600.0,
    "topic_log_reserved_time_h": 24.0,
    "file_reserved_time_h": 72.0,
}


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """The p50 of the last day beside that of the first, and the most files on any day."""
    spark = quiet_session()
    clock = AffineClock.from_now(speed=SPEED)
    store = Store.create(fresh_folder(folder, "history") / "store", Config(**SETTINGS))
    reader = Reader(Path(store.location, "topics", TOPIC))
    services = [
        Publisher(store, spark=spark, clock=clock).start(),
        Maintenance(store, clock=clock).start(),
    ]
    try:
        with TransactionProducer(store, producer_group=GROUP, clock=clock) as producer:
            for _ in range(FIRST_MESSAGES):
                _send(producer, reader, sizes.body_bytes)
            start_ms = clock.now_ms()
            with _traffic(producer, sizes.body_bytes) as sent:
                samples, stock = _days(sizes, producer, reader, store, clock)
    finally:
        for service in services:
            service.stop()
    return _outcomes(sizes, start_ms, samples, stock, sent)


def _days(
    sizes: Sizes, producer: TransactionProducer, reader: Reader, store: Store, clock: AffineClock
) -> tuple[list[tuple[int, float]], list[dict[str, tuple[int, int]]]]:
    """When each single message was sent and how long it took, and the stock of each day."""
    samples: list[tuple[int, float]] = []
    stock: list[dict[str, tuple[int, int]]] = []
    start_ms = clock.now_ms()
    while (age_ms := clock.now_ms() - start_ms) < sizes.days * DAY_MS:
        samples.append((clock.now_ms(), _send(producer, reader, sizes.body_bytes)))
        if age_ms >= len(stock) * DAY_MS:
            stock.append({path: _stock(store, path) for path in PATHS})
    stock.append({path: _stock(store, path) for path in PATHS})
    return samples, stock


def _send(producer: TransactionProducer, reader: Reader, body_bytes: int) -> float:
    with producer.begin_transaction() as transaction:
        transaction.send(Message(TOPIC, random_body(body_bytes)))
        transaction.prepare()
        transaction.commit()
    start_s = time.perf_counter()
    return reader.wait_for_value("transaction_id", transaction.id) - start_s


def _stock(store: Store, path: str) -> tuple[int, int]:
    """Live files and log entries of a table."""
    table = store.tables.table_at(path)
    return len(table.files.all()), len(log_files(table.folder).commits_ms)


@contextmanager
def _traffic(producer: TransactionProducer, body_bytes: int) -> Iterator[list[int]]:
    """Other threads send beside the measured ones, by the same producer."""
    sent, stopping = [0], threading.Event()

    def order(_: int) -> None:
        with producer.begin_transaction() as transaction:
            transaction.send(Message(TOPIC, random_body(body_bytes)))
            transaction.prepare()
            transaction.commit()

    def run() -> None:
        with ThreadPoolExecutor(TRAFFIC_THREADS) as pool:
            while not stopping.wait(TRAFFIC_PAUSE_S):
                list(pool.map(order, range(TRAFFIC_THREADS)))
                sent[0] += TRAFFIC_THREADS

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield sent
    finally:
        stopping.set()
        thread.join()


def _outcomes(
    sizes: Sizes,
    start_ms: int,
    samples: list[tuple[int, float]],
    stock: list[dict[str, tuple[int, int]]],
    sent: list[int],
) -> list[Outcome]:
    end_ms = samples[-1][0]
    first = [took_s for at_ms, took_s in samples if at_ms < start_ms + COMPARED_DAYS * DAY_MS]
    last = [took_s for at_ms, took_s in samples if at_ms > end_ms - COMPARED_DAYS * DAY_MS]
    part = "thirty-days"
    facts = {
        "days": sizes.days,
        "transactions": sent[0] + len(samples),
        "first_day_s": first,
        "last_day_s": last,
        "live_files_and_log_entries_by_day": stock,
    }
    files = max(live for day in stock for live, _ in day.values())
    entries = max(log for day in stock for _, log in day.values())
    return [
        Outcome(part, "commit to visible, p50 of the last day beside the first", "s",
                [median(last)], [median(first)], Bar(1.3, at_most=True), facts),
        Outcome(part, "most live files of a table on any day", "files", [files],
                bar=Bar(1000, at_most=True)),
        Outcome(part, "most log entries of a table on any day", "files", [entries],
                bar=Bar(1500, at_most=True)),
    ]  # fmt: skip
