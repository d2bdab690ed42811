"""Consumers: a topic as a stream, from where this group begins."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from txmq.names import check_group, check_readable_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txmq.store import Store


class ConsumeFromWhere(enum.Enum):
    """Where a new checkpoint begins (R106); an old checkpoint goes on where it was."""

    FIRST_OFFSET = "first"
    LAST_OFFSET = "last"


class Consumer:
    """Reads topics as streams; runs on Spark Connect too.

    The stream's checkpoint keeps the place of the group, as for any Delta stream.

    Example:
        >>> consumer = Consumer(store, consumer_group="billing")
        >>> stream = consumer.read_stream("order-paid", spark=spark)
    """

    def __init__(self, store: Store, *, consumer_group: str) -> None:
        """Check the name of the group; 0 commits."""
        self.store = store
        self.consumer_group = check_group(consumer_group, "consumer_group")

    def read_stream(
        self,
        topic: str,
        *,
        spark: SparkSession,
        from_where: ConsumeFromWhere = ConsumeFromWhere.FIRST_OFFSET,
    ) -> DataFrame:
        """The messages of a topic as a streaming DataFrame; columns as TOPIC in schemas.py.

        Compaction and retention do not disturb it: rows that leave a topic are not news.

        Raises: TopicNotFoundError before the first committed message.
        """
        location = self.store.topic_location(check_readable_topic(topic))
        reader = spark.readStream.format("delta").option("skipChangeCommits", "true")
        if from_where is ConsumeFromWhere.LAST_OFFSET:
            reader = reader.option("startingVersion", "latest")
        return reader.load(location)

    def checkpoint_location(self, topic: str) -> str:
        """A place for the checkpoint of this group's stream of one topic."""
        name = f"consumers/{self.consumer_group}/{check_readable_topic(topic)}"
        return self.store.checkpoint_location(name)
