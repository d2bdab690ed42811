"""Consumers: a topic as a stream, from where this group begins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txmq.consumer_rules import ConsumeFromWhere
from txmq.errors import ConfigError
from txmq.names import check_group, check_namespace, check_readable_topic, check_stored_group
from txmq.namespaces import wrapped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txmq.store import Store


class Consumer:
    """Reads topics as streams; runs on Spark Connect too.

    The stream's checkpoint keeps the place of the group, as for any Delta stream.

    Args:
        store: where the topics are.
        consumer_group: who reads.
        namespace: in which names of topics and of the group are meant (R94); the topics of other
            namespaces are then out of reach, system topics are not.

    Example:
        >>> consumer = Consumer(store, consumer_group="billing")
        >>> stream = consumer.read_stream("order-paid", spark=spark)
    """

    def __init__(self, store: Store, *, consumer_group: str, namespace: str | None = None) -> None:
        """Check the names; 0 commits."""
        self.store = store
        self.namespace = None if namespace is None else check_namespace(namespace)
        own = wrapped(check_group(consumer_group, "consumer_group"), self.namespace)
        self.consumer_group = check_stored_group(own, "consumer_group")

    def read_stream(
        self,
        topic: str,
        *,
        spark: SparkSession,
        from_where: ConsumeFromWhere = ConsumeFromWhere.FIRST_OFFSET,
    ) -> DataFrame:
        """The messages of a topic as a streaming DataFrame; columns as TOPIC in schemas.py.

        Inside a namespace `topic` and `producer_group` are without it.

        Compaction and retention do not disturb it: rows that leave a topic are not news.

        Raises: TopicNotFoundError before the first committed message; ConfigError.
        """
        if from_where is ConsumeFromWhere.TIMESTAMP:
            raise ConfigError(["from_where of a stream must be FIRST_OFFSET or LAST_OFFSET"])
        location = self.store.topic_location(self._stored(topic))
        reader = spark.readStream.format("delta").option("skipChangeCommits", "true")
        if from_where is ConsumeFromWhere.LAST_OFFSET:
            reader = reader.option("startingVersion", "latest")
        rows = reader.load(location)
        return rows if self.namespace is None else _without_namespace(rows, self.namespace)

    def checkpoint_location(self, topic: str) -> str:
        """A place for the checkpoint of this group's stream of one topic."""
        name = f"consumers/{self.consumer_group}/{self._stored(topic)}"
        return self.store.checkpoint_location(name)

    def _stored(self, topic: str) -> str:
        return check_readable_topic(wrapped(check_readable_topic(topic), self.namespace))


def _without_namespace(rows: DataFrame, namespace: str) -> DataFrame:
    import pyspark.sql.functions as F  # noqa: N812

    # As `namespaces.unwrapped`; names have no other special characters.
    pattern = rf"^(RETRY_|DLQ_)?{namespace}\."
    names = ("topic", "producer_group")
    return rows.withColumns({name: F.regexp_replace(name, pattern, "$1") for name in names})
