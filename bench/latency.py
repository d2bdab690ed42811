"""(a) From the commit of a single message until a reader sees it, with the broker running."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.bare import BareStream, quiet_session
from bench.messages import GROUP, TOPIC, one_message_transactions, plain_rows, random_body
from bench.outcome import BARE, Bar, Outcome, alternate, percentile
from bench.reader import Reader
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.message.message import Message
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAUSE_S = 0.5
FIRST_MESSAGES = 2
P50_BAR, P99_BAR = 0.02, 0.05


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """The p50 and the p99 of each round, beside those of the bare stream."""
    spark = quiet_session()
    sides = _sides(spark, sizes, folder)
    alternate(_sides(spark, sizes.smaller(), folder), 1)
    samples = alternate(sides, sizes.rounds)
    facts = {"samples_s": samples}
    return [
        _outcome(samples, "p50", 0.5, P50_BAR, facts),
        _outcome(samples, "p99", 0.99, P99_BAR, {}),
    ]


def _outcome(
    samples: Mapping[str, Sequence[Sequence[float]]],
    name: str,
    part: float,
    bound: float,
    facts: Mapping[str, Any],
) -> Outcome:
    """One value for each round; rounds are short, so of the slowest message of each for p99."""
    ours, bare = ([percentile(one, part) for one in samples[side]] for side in ("txmq", BARE))
    bar = Bar(bound, at_most=True)
    return Outcome("latency", f"commit to visible, {name}", "s", ours, bare, bar, facts)


def _sides(spark: SparkSession, sizes: Sizes, folder: Path) -> dict[str, Callable[[], list[float]]]:
    return {
        "txmq": lambda: _txmq(spark, sizes, fresh_folder(folder, "txmq")),
        BARE: lambda: _bare(spark, sizes, fresh_folder(folder, "bare")),
    }


def _txmq(spark: SparkSession, sizes: Sizes, folder: Path) -> list[float]:
    store = Store.create(folder / "store")
    reader = Reader(folder / "store" / "topics" / TOPIC)
    handle = Broker(store, spark=spark).start()
    try:
        with TransactionProducer(store, producer_group=GROUP) as producer:
            return _spread(sizes, lambda: _send(producer, reader, sizes.body_bytes))
    finally:
        handle.stop()


def _send(producer: TransactionProducer, reader: Reader, body_bytes: int) -> float:
    with producer.begin_transaction() as transaction:
        transaction.send(Message(TOPIC, random_body(body_bytes)))
        transaction.prepare()
        transaction.commit()
    start_s = time.perf_counter()
    return reader.wait_for_value("transaction_id", transaction.id) - start_s


def _bare(spark: SparkSession, sizes: Sizes, folder: Path) -> list[float]:
    stream = BareStream(spark, folder)
    stream.create_source(plain_rows(one_message_transactions(1, 1)[0]).schema)
    query = stream.start()
    try:
        reader = Reader(stream.sink)
        return _spread(sizes, lambda: _append(stream, reader, sizes.body_bytes))
    finally:
        query.stop()


def _append(stream: BareStream, reader: Reader, body_bytes: int) -> float:
    rows = plain_rows(one_message_transactions(1, body_bytes)[0])
    stream.append(rows)
    start_s = time.perf_counter()
    return reader.wait_for_value("transaction_id", rows["transaction_id"][0].as_py()) - start_s


def _spread(sizes: Sizes, send: Callable[[], float]) -> list[float]:
    """Pauses of any length, so that no message keeps step with a trigger."""
    latencies = []
    for _ in range(FIRST_MESSAGES + sizes.single_messages):
        latencies.append(send())
        time.sleep(random.uniform(0, PAUSE_S))  # noqa: S311 - no secret
    return latencies[FIRST_MESSAGES:]
