"""A stream of the data source `txmq` without Spark: its source is asked in the order of Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.pandas.types import from_arrow_schema

from tests.kit.consumer_world import ConsumerWorld
from tests.kit.delay_world import TOPIC
from txmq.ground.clock import Clock
from txmq.spark.data_source import read_options
from txmq.spark.topic_slices import columns_of
from txmq.spark.topic_stream import GroupSource, TopicStreamReader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit


class TwoQueues(ConsumerWorld):
    """Its topic has two queues."""

    def fill(self, count: int, *, topic: str = TOPIC, queues: int = 2) -> None:
        super().fill(count, topic=topic, queues=queues)


@contextmanager
def older_topic(world: ConsumerWorld) -> Iterator[None]:
    """Let the topic go back, at the end, to what it is now."""
    folder = Path(world.store.location, "topics", TOPIC)
    shutil.copytree(folder, folder.with_name("copy"))
    yield
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)


@dataclass
class Query:
    """One query: what its checkpoint says, and what its sink has of each batch.

    Attributes:
        offsets: what the batches read; written before a batch runs.
        done: how many of them the checkpoint calls done.
        sink: rows by batch; a batch that runs again replaces its rows.
    """

    world: ConsumerWorld
    options: dict[str, str]
    offsets: list[dict[str, Any]] = field(default_factory=list)
    done: int = 0
    sink: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    _first: dict[str, Any] | None = None
    _reader: TopicStreamReader | None = None
    limit: ReadLimit | None = None
    clock: Clock | None = None

    @classmethod
    def over(cls, world: ConsumerWorld, topic: str = TOPIC, **options: str) -> Query:
        return cls(world, {"path": world.store.location, "topic": topic, **options})

    @property
    def reader(self) -> TopicStreamReader:
        if self._reader is None:
            options = read_options(self.options)
            schema = from_arrow_schema(columns_of(options))
            self._reader = TopicStreamReader(options, schema, self.clock or self.world.clock)
        return self._reader

    def start_of(self, batch: int) -> dict[str, Any]:
        if batch:
            return self.offsets[batch - 1]
        if self._first is None:
            self._first = self.reader.initialOffset()
        return self._first

    def plan(self) -> bool:
        """Choose and note what the next batch reads, unless the last one is not done."""
        if self.done < len(self.offsets):
            return True
        start = self.start_of(self.done)
        end = self.reader.latestOffset(start, self.limit or self.reader.getDefaultReadLimit())
        if end == start:
            return False
        self.offsets.append(end)
        return True

    def write(self) -> None:
        """Read the batch that was planned into the sink; it is not done yet."""
        tasks = self.reader.partitions(self.start_of(self.done), self.offsets[self.done])
        batches: Sequence[pa.RecordBatch] = [b for task in tasks for b in self.reader.read(task)]
        self.sink[self.done] = [row for batch in batches for row in batch.to_pylist()]

    def run(self) -> int:
        """Run all batches that there are; return how many."""
        before = self.done
        while self.plan():
            self.write()
            self.done += 1
        return self.done - before

    def die(self) -> None:
        """End the process: nothing is given up, and no lease is renewed."""
        source = (
            None if self._reader is None or not self._reader._opened else self._reader._opened[1]
        )
        if isinstance(source, GroupSource):
            renewal = source._ranges._reader._member._lease_renewal
            assert renewal is not None
            renewal.stop()
        self._reader = None

    def stop(self) -> None:
        self.reader.stop()
        self._reader = None

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in sorted(self.sink) for row in self.sink[batch]]

    @property
    def bodies(self) -> list[str]:
        return [row["body"].decode() for row in self.rows]

    def are_in_order(self) -> bool:
        """Each queue without gaps, over all batches."""
        offsets: dict[tuple[str, int], list[int]] = {}
        for row in self.rows:
            offsets.setdefault((row["topic"], row["queue_id"]), []).append(row["queue_offset"])
        return all(each == list(range(each[0], each[0] + len(each))) for each in offsets.values())
