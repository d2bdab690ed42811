"""Writes of the data source `txmq` without Spark: its writers are called as Spark calls them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

import txmq.testing  # noqa: F401 - arms the fail points, in each process that has the source
from txmq.spark import topic_writer
from txmq.spark.data_source import TxmqDataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import WriterCommitMessage

QUERY = "b7f3b4c8-0000-4000-8000-000000000001"
BODY = pa.schema([("body", pa.string())])


class ArmedSource(TxmqDataSource):
    """The source, with the fail points of its process."""


@dataclass(frozen=True)
class Task:
    """What a task may ask Spark."""

    partition: int
    query_id: str | None

    def partitionId(self) -> int:  # noqa: N802
        return self.partition

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        assert name == "sql.streaming.queryId"
        return self.query_id


@dataclass
class Written:
    """A frame, or a stream with its checkpoint; each step has a source of its own, as in Spark.

    Attributes:
        options: of the writer.
        query_id: that of the stream; None for a frame.
        schema: of the rows.
    """

    options: dict[str, str]
    query_id: str | None = None
    schema: pa.Schema = field(default=BODY)

    def writer(self) -> Any:
        source, columns = TxmqDataSource(dict(self.options)), from_arrow_schema(self.schema)
        if self.query_id is None:
            return source.writer(columns, False)  # noqa: FBT003
        return source.streamWriter(columns, False)  # noqa: FBT003

    def tasks(self, *partitions: Sequence[Any]) -> list[WriterCommitMessage | None]:
        """The rows of each partition; what is no dict is a body."""
        writer = self.writer()
        messages = []
        for number, rows in enumerate(partitions):
            values = [row if isinstance(row, dict) else {"body": row} for row in rows]
            batches = pa.Table.from_pylist(values, schema=self.schema).to_batches(2)
            with patch.object(topic_writer.TaskContext, "get", lambda n=number: self._task(n)):
                messages.append(writer.write(iter(batches)))
        return messages

    def _task(self, number: int) -> Task:
        return Task(number, self.query_id)

    def save(self, *partitions: Sequence[Any]) -> None:
        """A frame: one plan for the tasks and the commit."""
        messages = self.tasks(*partitions)
        self.writer().commit(messages)

    def run(self, batch: int, *partitions: Sequence[Any]) -> None:
        """A micro-batch of the stream."""
        messages = self.tasks(*partitions)
        self.writer().commit(messages, batch)
