"""A broker that starts in a store with many topics and a long history, in a process of its own."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa

from bench.messages import GROUP, one_message_transactions
from bench.outcome import Bar, Outcome
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.message.ids import message_id, new_transaction_id
from txmq.message.message import Message
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.store import Store

PER_COMMIT, BODY_BYTES = 10_000, 64
LOOK_S = 0.005
LONGEST_S = 10.0


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """The start, and the first message to each topic after it."""
    location = fresh_folder(folder, "restart") / "store"
    store = Store.create(location)
    _history(store, sizes.history_messages)
    to_all_topics(store, sizes.topics)
    Publisher(store).run_once()
    starts, firsts = [], []
    for _ in range(sizes.rounds):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            start_s, first_s = pool.submit(_restarted, location, sizes.topics).result()
        starts.append(start_s)
        firsts.append(start_s + first_s)
    name = f"{sizes.topics:,} topics and {sizes.history_messages:,} messages"
    bar = Bar(LONGEST_S, at_most=True)
    facts = {"start_s": starts}
    return [
        Outcome("restart", f"start of a broker, {name}", "s", starts, (), bar, facts),
        Outcome(
            "restart", f"start and a first message in each topic, {name}", "s", firsts, (), bar
        ),
    ]


def _history(store: Store, count: int) -> None:
    """Messages of one topic, each a transaction, in commits of PER_COMMIT."""
    half, op = store.tables.half_log().table, store.tables.op_log().table
    halves, ends = one_message_transactions(min(PER_COMMIT, count), BODY_BYTES)
    for number in range(1, count // halves.num_rows + 1):
        halves, ends = _anew(halves, ends)
        half.writer.append(halves, app_id="history", number=number)
        op.writer.append(ends, app_id="history", number=number)
    Publisher(store).run_once()


def _anew(halves: pa.Table, ends: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The same rows as other transactions."""
    now_ms = time.time_ns() // 1_000_000
    ids = [new_transaction_id(now_ms) for _ in range(halves.num_rows)]
    names = {"transaction_id": ids, "message_id": [message_id(name, 0) for name in ids]}
    return _with(halves, names), _with(ends, {"transaction_id": ids})


def _with(rows: pa.Table, columns: dict[str, list[str]]) -> pa.Table:
    for name, values in columns.items():
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, rows.schema.field(place), pa.array(values, pa.string()))
    return rows


def to_all_topics(store: Store, topics: int) -> None:
    """A message to each topic, in one transaction."""
    with (
        TransactionProducer(store, producer_group=GROUP) as producer,
        producer.begin_transaction() as transaction,
    ):
        for number in range(topics):
            transaction.send(Message(f"topic-{number}", b"body"))
        transaction.prepare()
        transaction.commit()


def _restarted(location: Path, topics: int) -> tuple[float, float]:
    begun_s = time.perf_counter()
    store = Store.open(location)
    handle = Broker(store).start()
    started_s = time.perf_counter()
    try:
        tables = [store.tables.table_at(f"topics/topic-{number}") for number in range(topics)]
        for table in tables:
            table.refresh()
        sent_s = time.perf_counter()
        to_all_topics(store, topics)
        while not all(table.log.has_news() for table in tables):
            time.sleep(LOOK_S)
        shown_s = time.perf_counter()
    finally:
        handle.stop()
    return started_s - begun_s, shown_s - sent_s
