"""Messages of topics as DataFrames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from txmq.consumer.ranges import OffsetRange
from txmq.message.erased import is_not_erased
from txmq.message.filter import MessageFilter
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


class TopicFrames:
    """Makes DataFrames of ranges of offsets.

    Args:
        store: the store of the topics.
        spark: a session, also of Spark Connect.
        filters: the filter of each topic, by stored name; a topic without one passes whole.
        namespace: names of this namespace are shown without it.
    """

    def __init__(
        self,
        store: Store,
        spark: SparkSession,
        filters: Mapping[str, MessageFilter],
        namespace: str | None,
    ) -> None:
        """Nothing is read yet."""
        self._store, self._spark = store, spark
        self._filters, self._namespace = filters, namespace

    def dataframe(self, ranges: Sequence[OffsetRange]) -> DataFrame:
        """The messages of the ranges that pass the filters; columns as TOPIC in schemas.py."""
        topics = dict.fromkeys(offsets.queue.topic for offsets in ranges)
        frames = [
            self._of_topic(topic, [offsets for offsets in ranges if offsets.queue.topic == topic])
            for topic in topics
        ]
        return united(frames, self._namespace)

    def _of_topic(self, topic: str, ranges: Sequence[OffsetRange]) -> DataFrame:
        rows = self._spark.read.format("delta").load(self._store.topic_location(topic))
        rows = rows.where(reduce(or_, map(_is_in_range, ranges))).where(is_not_erased())
        message_filter = self._filters.get(topic)
        if message_filter is None or message_filter.is_all:
            return rows
        return rows.where(message_filter.column())


def united(frames: Sequence[DataFrame], namespace: str | None) -> DataFrame:
    """The rows of several topics in one DataFrame, with names as the namespace shows them."""
    rows = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)
    return rows if namespace is None else _without_namespace(rows, namespace)


def _without_namespace(rows: DataFrame, namespace: str) -> DataFrame:
    import pyspark.sql.functions as F  # noqa: N812

    # As `names.unwrapped`; a namespace has no special characters of regular expressions.
    pattern = rf"^(RETRY_|DLQ_)?{namespace}\."
    names = ("topic", "producer_group")
    return rows.withColumns({name: F.regexp_replace(name, pattern, "$1") for name in names})


def _is_in_range(offsets: OffsetRange) -> Column:
    import pyspark.sql.functions as F  # noqa: N812

    is_in_queue = F.col("queue_id") == offsets.queue.queue_id
    offset = F.col("queue_offset")
    return is_in_queue & (offset >= offsets.start) & (offset < offsets.end)
