"""A topic read and written by Spark: `format("txmq")` beside Delta's own source and sink."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench.bare import quiet_session
from bench.consumers import store_with_backlog
from bench.messages import TOPIC
from bench.outcome import BARE, Outcome, alternate
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.consumer.pull import PullConsumer
from txmq.spark.data_source import register_data_source
from txmq.spark.streams import Consumer
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEAP_MIB = 1024
FRAME, STREAM, WRITTEN_FRAME, WRITTEN_STREAM, GROUP_STREAM = (
    "frame", "stream", "written frame", "written stream", "stream with a group"
)  # fmt: skip
MAX_MESSAGES = 1_000
BESIDE = {
    FRAME: "Delta's own source", STREAM: "Delta's own source",
    WRITTEN_FRAME: "Delta's own sink", WRITTEN_STREAM: "Delta's own sink",
}  # fmt: skip


def measure(sizes: Sizes, folder: Path) -> list[Outcome]:
    """Messages a second until all bodies were in Spark's hands; Spark is warm."""
    spark = quiet_session(HEAP_MIB)
    register_data_source(spark)
    location = store_with_backlog(sizes, folder).location
    outcomes = []
    for form, beside in BESIDE.items():
        sides = {
            "txmq": partial(_rate, spark, location, "txmq", form, sizes, folder),
            BARE: partial(_rate, spark, location, "delta", form, sizes, folder),
        }
        for side in sides.values():
            side()
        rates = alternate(sides, sizes.rounds)
        facts = {"messages": sizes.consumed, "body_bytes": sizes.body_bytes}
        name = f'{form}, format("txmq") beside {beside}'
        outcomes.append(
            Outcome("data-source", name, "messages/s", rates["txmq"], rates[BARE], facts=facts)
        )
    return [*outcomes, _beside_a_member(spark, location, sizes, folder)]


def _beside_a_member(spark: SparkSession, location: str, sizes: Sizes, folder: Path) -> Outcome:
    """As a group, both times: the stream moves its offsets, and the member at its end."""
    sides = {
        "txmq": partial(_rate, spark, location, "txmq", GROUP_STREAM, sizes, folder),
        BARE: partial(_polled, location, sizes),
    }
    for side in sides.values():
        side()
    rates = alternate(sides, sizes.rounds)
    name = f'stream with a group, format("txmq") beside PullConsumer.poll({MAX_MESSAGES:,})'
    return Outcome("data-source", name, "messages/s", rates["txmq"], rates[BARE])


def _polled(location: str, sizes: Sizes) -> float:
    group, count = f"polled-{time.monotonic_ns()}", 0
    with PullConsumer(Store.open(location), consumer_group=group, topics=TOPIC) as consumer:
        begin_s = time.perf_counter()
        while count < sizes.consumed:
            count += sum(bool(message.body) for message in consumer.poll(MAX_MESSAGES))
        consumer.commit()
        return sizes.consumed / (time.perf_counter() - begin_s)


def _rate(  # noqa: PLR0913, PLR0917 - the sides differ in two of them
    spark: SparkSession, location: str, source: str, form: str, sizes: Sizes, folder: Path
) -> float:
    is_stream = form in {STREAM, WRITTEN_STREAM, GROUP_STREAM}
    sink, mode, options = "noop", "overwrite", {}
    if form in {FRAME, STREAM, GROUP_STREAM}:
        group = {"group": f"stream-{time.monotonic_ns()}"} if form == GROUP_STREAM else {}
        rows = _rows(spark, location, source, is_stream=is_stream, **group)
    else:
        # The same rows for both, by the source that costs less.
        rows = _rows(spark, location, "delta", is_stream=is_stream).select("body")
        sink, mode = source, "append"
        options = _sink(source, fresh_folder(folder, "written"))
    begin_s = time.perf_counter()
    if is_stream:
        writer = rows.writeStream.format(sink).options(**options).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(fresh_folder(folder, "checkpoint")))
        writer.start().awaitTermination()
    else:
        rows.write.format(sink).options(**options).mode(mode).save()
    return sizes.consumed / (time.perf_counter() - begin_s)


def _sink(source: str, place: Path) -> dict[str, str]:
    """A new store, whose messages are durable and committed when the write returns; or a table."""
    if source == "delta":
        return {"path": str(place)}
    return {"path": Store.create(place / "store").location, "topic": TOPIC}


def _rows(
    spark: SparkSession, location: str, source: str, *, is_stream: bool, **options: str
) -> DataFrame:
    if source == "txmq":
        reader = spark.readStream if is_stream else spark.read
        return reader.format("txmq").options(topic=TOPIC, **options).load(location)
    consumer = Consumer(Store.open(location), consumer_group="bench")
    read = consumer.read_stream if is_stream else consumer.read
    return read(TOPIC, spark=spark)
