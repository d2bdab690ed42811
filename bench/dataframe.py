"""(c) One DataFrame as one transaction, the whole way, and the memory that it takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bench.bare import BareStream, quiet_session
from bench.memory import PeakMemory, peak_memory
from bench.messages import GROUP, TOPIC, write_dataframe_files
from bench.outcome import BARE, Bar, Outcome, alternate
from bench.reader import Reader
from bench.sizes import Sizes
from bench.workspace import fresh_folder
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

POLL_S = 0.02
MEMORY_BOUND_MB = 1500.0
ROOMY_HEAP_MIB = 1024
BODY_SCHEMA = pa.schema([("body", pa.binary())])
Timed = tuple[float, PeakMemory]


def measure(sizes: Sizes, folder: Path, engine: str, heap_mib: int) -> list[Outcome]:
    """Rows a second with one engine, and the memory of Python and Java together."""
    spark = quiet_session(heap_mib)
    for name, size in (("warm", sizes.smaller()), ("full", sizes)):
        write_dataframe_files(folder / name, size.dataframe_rows, size.body_bytes)
    warm = _sides(spark, sizes.smaller(), folder, "warm", engine)
    full = _sides(spark, sizes, folder, "full", engine)
    # First: Java never gives back what the bare stream takes.
    warm["txmq"]()
    peaks = [full["txmq"]()[1] for _ in range(sizes.rounds)]
    warm[BARE]()
    samples = alternate(full, sizes.rounds)
    setting = f"{engine}, {heap_mib} MiB heap"
    return [_speed(sizes, setting, samples), _memory(setting, peaks, samples, heap_mib)]


def _speed(sizes: Sizes, setting: str, samples: dict[str, list[Timed]]) -> Outcome:
    rates = {
        name: [sizes.dataframe_rows / seconds for seconds, _ in timed]
        for name, timed in samples.items()
    }
    return Outcome("dataframe", f"whole way, {setting}", "rows/s", rates["txmq"], rates[BARE],
                   Bar(1.0, at_most=False), {"rows": sizes.dataframe_rows})  # fmt: skip


def _memory(
    setting: str, peaks: list[PeakMemory], samples: dict[str, list[Timed]], heap_mib: int
) -> Outcome:
    bar = Bar(MEMORY_BOUND_MB, at_most=True) if heap_mib < ROOMY_HEAP_MIB else None
    beside_bare = [asdict(peak) for _, peak in samples["txmq"]]
    return Outcome("dataframe", f"memory, {setting}", "MB",
                   [peak.together_mib * 1.048576 for peak in peaks], bar=bar,
                   facts={"peaks_mib": [asdict(peak) for peak in peaks],
                          "peaks_after_bare_mib": beside_bare})  # fmt: skip


def _sides(
    spark: SparkSession, sizes: Sizes, folder: Path, files: str, engine: str
) -> dict[str, Callable[[], Timed]]:
    dataframe = spark.read.parquet(str(folder / files))
    rows = sizes.dataframe_rows
    return {
        "txmq": partial(_txmq, dataframe, rows, folder, engine),
        BARE: partial(_bare, dataframe, rows, folder),
    }


def _txmq(dataframe: DataFrame, rows: int, folder: Path, engine: str) -> Timed:
    spark = dataframe.sparkSession
    fresh_folder(folder, "bare")
    store = Store.create(fresh_folder(folder, "txmq"), Config(payload_engine=engine))
    reader = Reader(folder / "txmq" / "topics" / TOPIC, POLL_S)
    handle = Publisher(store, spark=spark).start()
    try:
        with TransactionProducer(store, producer_group=GROUP) as producer:
            return _timed(spark, reader, rows, lambda: _send(producer, dataframe))
    finally:
        handle.stop()


def _send(producer: TransactionProducer, dataframe: DataFrame) -> None:
    with producer.begin_transaction() as transaction:
        transaction.send_dataframe(dataframe, topic=TOPIC)
        transaction.prepare()
        transaction.commit()


def _bare(dataframe: DataFrame, rows: int, folder: Path) -> Timed:
    spark = dataframe.sparkSession
    fresh_folder(folder, "txmq")
    stream = BareStream(spark, fresh_folder(folder, "bare"))
    stream.create_source(BODY_SCHEMA)
    query = stream.start()
    try:
        writer: Any = dataframe.write.format("delta").mode("append")
        reader = Reader(stream.sink, POLL_S)
        return _timed(spark, reader, rows, lambda: writer.save(str(stream.source)))
    finally:
        query.stop()


def _timed(spark: SparkSession, reader: Reader, rows: int, send: Callable[[], None]) -> Timed:
    with peak_memory(spark) as peak:
        start_s = time.perf_counter()
        send()
        return reader.wait_for_rows(rows) - start_s, peak
