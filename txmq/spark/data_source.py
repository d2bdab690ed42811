"""The data source `txmq`: topics under the names that users of Spark try first.

`spark.read.format("txmq")` and `spark.readStream.format("txmq")` read by offsets, which are what a
checkpoint names: compaction, a rebuilt topic or the clean-up of a log do not disturb a stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from txmq.consumer.group_rules import TopicQueue
from txmq.consumer.offsets import ConsumeFromWhere, TopicOffsets, check_offset
from txmq.consumer.reader import TopicReader
from txmq.errors import EnvironmentProblemError
from txmq.spark.members import OffsetRange
from txmq.spark.topic_slices import ReadOptions, TopicSlice, columns_of, messages_of, slices_of
from txmq.store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

FORMAT = "txmq"


class TxmqDataSource(DataSource):
    """Reads topics of a store, whose location is the path; `register_data_source` makes it known.

    The options are those of docs/spark.md.

    The columns are those of TOPIC in schemas.py, and behind them those of typed bodies.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the topics. Raises: ConfigError, StorageError."""
        return from_arrow_schema(columns_of(ReadOptions.of(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what plans and reads a DataFrame; nothing is opened yet."""
        return TopicBatchReader(ReadOptions.of(self.options), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's
        """Return what plans and reads a stream; nothing is opened yet.

        Raises: EnvironmentProblemError before Spark 4.2.
        """
        try:
            from txmq.spark.topic_stream import TopicStreamReader
        except ImportError as error:
            problem = "this Spark cannot ask a Python data source for a part of what is new"
            way_out = "Use Spark 4.2, or Consumer.read_stream."
            raise EnvironmentProblemError(problem, way_out) from error
        return TopicStreamReader(ReadOptions.of(self.options), schema)


# --- a DataFrame ----------------------------------------------------------------------------------


class TopicBatchReader(DataSourceReader):
    """Reads what is visible now, from the first to the last offset that the options say."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Open nothing: Spark sends the reader to its executors."""
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        """Plan one task for each slice. Raises: OffsetOutOfRangeError, StorageError."""
        store, options = self._options.store(), self._options
        tasks: list[TopicSlice] = []
        for topic in options.filters:
            reader = TopicReader(store, topic)
            reader.look()
            ranges = self._ranges(store, topic)
            tasks += slices_of(reader, ranges, options)
        return tasks

    def _ranges(self, store: Store, topic: str) -> list[OffsetRange]:
        offsets = TopicOffsets(store, topic)
        queues = range(offsets.queue_count())
        begins = self._options.start.offsets_in(store, topic, queues)
        ends = self._ends(offsets, topic, queues)
        return [
            OffsetRange(TopicQueue(topic, queue), begins[queue], ends[queue])
            for queue in queues
            if begins[queue] < ends[queue]
        ]

    def _ends(self, offsets: TopicOffsets, topic: str, queues: Iterable[int]) -> dict[int, int]:
        end, last = self._options.end, offsets.end(queues)
        if end.moment_ms is not None:
            return offsets.at(queues, end.moment_ms)
        if end.where is ConsumeFromWhere.FIRST_OFFSET:
            return offsets.first(queues)
        chosen = (end.offsets or {}).get(topic, {})
        for queue, offset in chosen.items():
            check_offset(topic, queue, offset, 0, last.get(queue, 0))
        return {**last, **chosen}

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Read one slice, on an executor."""
        return messages_of(partition, to_arrow_schema(self._schema, timezone="UTC"))
