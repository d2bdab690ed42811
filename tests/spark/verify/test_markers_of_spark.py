"""Markers that Spark wrote into the log of a user's table are read by `verify`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import write_deltalake

from tests.kit.asked import prepared
from tests.kit.reading import publish
from txmq.producer.producer import TransactionProducer
from txmq.verify import DeltaMarkers, verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txmq.store.store import Store

GROUP = "orders"


def test_markers_that_spark_wrote_are_read(
    store: Store, tmp_path: Path, spark: SparkSession
) -> None:
    location = str(tmp_path / "orders")
    rows = pa.table({"id": pa.array([0], pa.int64())})
    write_deltalake(location, rows, configuration={"delta.checkpointInterval": "2"})
    with TransactionProducer(store, producer_group=GROUP) as producer:
        for _ in range(3):
            transaction = prepared(producer)
            writer = spark.range(1).coalesce(1).write.format("delta").mode("append")
            writer.options(**transaction.delta_options(location)).save(location)
            transaction.commit()
    publish(store)
    assert list(Path(location, "_delta_log").glob("*.checkpoint*.parquet"))

    report = verify(store.location, business={GROUP: DeltaMarkers(location)})

    assert report.is_clean, report.to_dict()
    assert report.business is not None
    (result,) = report.business.results
    assert result.counts["done"] == 3
