"""Consumers: a topic as a stream, from where this group begins."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from txmq.clock import timestamp
from txmq.consumer.arguments import Topics, filters_by_topic
from txmq.consumer.frames import BATCH_MESSAGES, BatchHandler, RangeConsumer, SparkBatches, united
from txmq.consumer.offsets import OffsetsByTopic, StartPoint, moment_ms
from txmq.consumer.rules import ConsumeFromWhere, ConsumeMode
from txmq.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    ConfigError,
    ReaderOvertakenError,
    TxmqError,
    shown,
)
from txmq.message.filter import MessageFilter
from txmq.message.names import (
    check_namespace,
    group_in_namespace,
    topic_in_namespace,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from txmq.store.store import Store

# Error conditions, and what older parts of Spark say without one.
_OVERTAKEN = (
    "DELTA_VERSION_NOT_FOUND", "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE",
    "DELTA_LOG_FILE_NOT_FOUND", "DELTA_FILE_NOT_FOUND_DETAILED", "FAILED_READ_FILE.FILE_NOT_EXIST",
    "Did not get the first delta file version", "Did not get the last delta file version",
    "FileNotFoundException",
)  # fmt: skip
_MISMATCH = ("DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",)
_CORRUPT = (
    "STREAMING_CHECKPOINT_MISSING_METADATA_FILE", "MALFORMED_LOG_FILE", "Incomplete log file",
    "CANNOT_LOAD_STATE_STORE",
)  # fmt: skip
_VERSION = re.compile(r"version[s]?:? (\d+)", re.IGNORECASE)


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
        self.consumer_group = group_in_namespace(consumer_group, self.namespace, "consumer_group")
        self._given_group = consumer_group

    def read_stream(
        self,
        topics: Topics,
        *,
        spark: SparkSession,
        from_where: ConsumeFromWhere | OffsetsByTopic = ConsumeFromWhere.FIRST_OFFSET,
        from_timestamp: datetime | None = None,
    ) -> DataFrame:
        """The messages of topics as a streaming DataFrame; columns as TOPIC in schemas.py.

        Inside a namespace `topic` and `producer_group` are without it. Of several topics, typed
        columns are null where a topic has them not.

        Compaction and retention do not disturb it: rows that leave a topic are not news.

        Args:
            topics: one, several, or each with a filter, as `parse_filter` takes them.
            spark: a session, also of Spark Connect.
            from_where: where a new checkpoint begins (R106); an old one goes on where it was.
                With a moment or offsets Spark reads all that is there and leaves out what is older.
            from_timestamp: the moment, for ConsumeFromWhere.TIMESTAMP.

        Raises: TopicNotFoundError before the first committed message; InvalidFilterError,
            ConfigError.
        """
        start = StartPoint.of(from_where, from_timestamp)
        given = start.offsets or {}
        offsets = {topic_in_namespace(topic, self.namespace): own for topic, own in given.items()}
        filters = filters_by_topic(topics)
        parts = [
            self._stream(topic_in_namespace(topic, self.namespace), own, spark, start, offsets)
            for topic, own in filters.items()
        ]
        return united(parts, self.namespace)

    def read(
        self,
        topics: Topics,
        *,
        spark: SparkSession,
        version: int | None = None,
        as_of: datetime | None = None,
    ) -> DataFrame:
        """All messages of topics as a DataFrame, or as they were: Delta's time travel.

        How far back it goes, maintenance says: what retention took is not there any more.

        Args:
            topics: one, several, or each with a filter.
            spark: a session, also of Spark Connect.
            version: of the topic's table; for one topic only.
            as_of: a moment, aware; of several topics each as it was then.

        Raises: TopicNotFoundError, InvalidFilterError, ConfigError. Spark raises what cannot be
            travelled to when the rows are read; see `stream_errors`.
        """
        filters = filters_by_topic(topics)
        options = _travel(version, as_of, len(filters))
        parts = []
        for topic, own in filters.items():
            stored = topic_in_namespace(topic, self.namespace)
            location = self.store.topic_location(stored)
            # Delta refuses a moment after the last commit, which is the topic as it is.
            is_now = as_of is not None and self._is_newest(stored, moment_ms(as_of))
            reader = spark.read.format("delta").options(**({} if is_now else options))
            rows = reader.load(location)
            parts.append(rows if own.is_all else rows.where(own.column()))
        return united(parts, self.namespace)

    def _is_newest(self, topic: str, at_ms: int) -> bool:
        times_ms = self.store.table_at(f"topics/{topic}").commit_times_ms()
        return at_ms >= max(times_ms.values(), default=0)

    def _stream(
        self,
        topic: str,
        message_filter: MessageFilter,
        spark: SparkSession,
        start: StartPoint,
        offsets: OffsetsByTopic,
    ) -> DataFrame:
        location = self.store.topic_location(topic)
        reader = spark.readStream.format("delta").option("skipChangeCommits", "true")
        if start.where is ConsumeFromWhere.LAST_OFFSET:
            reader = reader.option("startingVersion", "latest")
        rows = reader.load(location)
        if start.moment_ms is not None:
            rows = rows.where(rows["store_timestamp"] >= timestamp(start.moment_ms))
        for queue_id, offset in offsets.get(topic, {}).items():
            rows = rows.where((rows["queue_id"] != queue_id) | (rows["queue_offset"] >= offset))
        return rows if message_filter.is_all else rows.where(message_filter.column())

    def subscribe(  # noqa: PLR0913 - what a member is told once
        self,
        topics: Topics,
        handler: BatchHandler,
        *,
        spark: SparkSession,
        max_messages: int = BATCH_MESSAGES,
        from_where: ConsumeFromWhere | OffsetsByTopic = ConsumeFromWhere.FIRST_OFFSET,
        from_timestamp: datetime | None = None,
        mode: ConsumeMode = ConsumeMode.CLUSTERING,
        member_id: str | None = None,
    ) -> SparkBatches:
        """Become a member of the group whose handler gets DataFrames; see SparkBatches.

        `run_once()` of what it returns drains what is there, `start()` goes on, `close()` leaves.
        For a handler that takes message by message use PullConsumer: both share one group.

        Args:
            topics: one, several, or each with a filter.
            handler: called with a DataFrame of at most `max_messages` messages, from one thread;
                None or ConsumeStatus.SUCCESS is well, RECONSUME_LATER and exceptions are failures.
            spark: a session, also of Spark Connect.
            max_messages: of one batch.
            from_where: where a group begins that has no offsets yet (R106).
            from_timestamp: the moment, for ConsumeFromWhere.TIMESTAMP.
            mode: CLUSTERING shares the queues, in BROADCASTING each member reads all of them.
            member_id: names this member; needed in BROADCASTING.

        Raises: as PullConsumer.
        """
        consumer = RangeConsumer(
            self.store, consumer_group=self._given_group, topics=topics, from_where=from_where,
            from_timestamp=from_timestamp, mode=mode, member_id=member_id, namespace=self.namespace,
        )  # fmt: skip
        return SparkBatches(consumer, handler, spark, max_messages)

    def wait(self, query: StreamingQuery, timeout_s: float | None = None) -> bool:
        """Wait for a query that reads topics; whether it ended. Raises: as `stream_errors`."""
        with self.stream_errors():
            if timeout_s is not None:
                return bool(query.awaitTermination(math.ceil(timeout_s)))
            query.awaitTermination()
        return True

    @contextmanager
    def stream_errors(self) -> Iterator[None]:
        """Around the start of a query, or what waits for it: Spark's failures as errors of ours.

        Raises: ReaderOvertakenError where retention or clean-up took what it had not read;
            CheckpointMismatchError where its checkpoint is that of another topic;
            CheckpointCorruptError; any other failure as Spark raises it.
        """
        try:
            yield
        except Exception as error:
            typed = typed_stream_error(error)
            if typed is None:
                raise
            raise typed from error

    def checkpoint_location(self, topic: str) -> str:
        """A place for the checkpoint of this group's stream of one topic."""
        name = f"consumers/{self.consumer_group}/{topic_in_namespace(topic, self.namespace)}"
        return self.store.checkpoint_location(name)


def _travel(version: object, as_of: object, topics: int) -> dict[str, str]:
    """Options of Delta's reader. Raises: ConfigError."""
    if version is not None and as_of is not None:
        raise ConfigError(["version and as_of are both given; pass one"])
    if as_of is not None:
        return {"timestampAsOf": timestamp(moment_ms(as_of)).isoformat()}
    if version is None:
        return {}
    if type(version) is not int or version < 0:
        raise ConfigError([f"version must be a whole number from 0 on, not {shown(version)}"])
    if topics > 1:
        raise ConfigError(["version belongs to one topic; for several use as_of"])
    return {"versionAsOf": str(version)}


def typed_stream_error(error: BaseException) -> TxmqError | None:
    """The error of ours that stands for a failure of a query; None for any other failure."""
    text = str(error)
    if any(condition in text for condition in _MISMATCH):
        return CheckpointMismatchError()
    if any(condition in text for condition in _CORRUPT):
        return CheckpointCorruptError("the checkpoint of a consumer", "cannot be read; restore it")
    if any(condition in text for condition in _OVERTAKEN):
        found = _VERSION.search(text)
        return ReaderOvertakenError(None if found is None else int(found[1]))
    return None
