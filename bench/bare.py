"""The bare stream: Delta to Delta by Spark alone, as fast as it goes, with txmq's own settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltalake import DeltaTable, write_deltalake

from txmq.spark.session import local_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def quiet_session(heap_mib: int = 1024) -> SparkSession:
    """Both sides run in this session: two threads, one Java heap, nothing printed."""
    session = local_session("bench", extra={"spark.driver.memory": f"{heap_mib}m"})
    session.sparkContext.setLogLevel("ERROR")
    return session


class BareStream:
    """A source table, a sink table and the query between them."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        """Nothing is made yet."""
        self.source, self.sink = folder / "source", folder / "sink"
        self._spark, self._checkpoint = spark, folder / "checkpoint"

    def create_source(self, schema: pa.Schema) -> None:
        """An empty source table, so that the query can start before the first row."""
        DeltaTable.create(str(self.source), schema=schema)

    def append(self, rows: pa.Table) -> None:
        """One commit, by the writer that txmq's producer uses."""
        write_deltalake(str(self.source), rows, mode="append")

    def start(self, *, available_now: bool = False) -> Any:
        """The query; trigger 0 unless it shall only take what is there."""
        stream = self._spark.readStream.format("delta").load(str(self.source))
        writer = stream.writeStream.format("delta").option(
            "checkpointLocation", str(self._checkpoint)
        )
        if available_now:
            return writer.trigger(availableNow=True).start(str(self.sink))
        return writer.trigger(processingTime="0 seconds").start(str(self.sink))
