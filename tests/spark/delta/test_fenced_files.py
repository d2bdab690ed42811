"""A fence of the sweep changes properties of a table; streams that read it go on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.kit.builders import halves
from txmq.maintenance.orphans import sweep
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def test_streams_read_on_over_a_fence(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    half = store.tables.table_at("half")
    half.writer.append(halves(1), app_id="test", number=1)
    counts: list[int] = []

    def count(batch: DataFrame, _: int) -> None:
        counts.append(batch.count())

    changes = (
        spark.readStream.format("delta").option("readChangeFeed", "true")
        .option("startingVersion", 0).load(half.location)
    )  # fmt: skip
    query = (
        changes.writeStream.foreachBatch(count)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="100 milliseconds")
        .start()
    )
    try:
        query.processAllAvailable()
        half.writer.new_files(halves(2))
        assert sweep(store.tables.table_at("half"), lambda _: True) == 1
        query.processAllAvailable()
        half.writer.append(halves(3), app_id="test", number=2)
        query.processAllAvailable()
    finally:
        query.stop()

    assert sum(counts) == 2
    assert spark.read.format("delta").load(half.location).count() == 2
