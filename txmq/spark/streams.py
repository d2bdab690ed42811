"""Consumers on Spark: topics as streams and DataFrames, and members that get DataFrames."""

from __future__ import annotations

import math
import re
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from txmq.consumer.arguments import (
    Subscription,
    Topics,
    check_max_messages,
    checked_timeout,
    filters_by_topic,
)
from txmq.consumer.group import settings_in
from txmq.consumer.group_reader import GroupReader
from txmq.consumer.group_rules import ConsumeMode
from txmq.consumer.handlers import ErrorHook, check_function
from txmq.consumer.offsets import ConsumeFromWhere, OffsetsByTopic, StartPoint, moment_ms
from txmq.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    ConfigError,
    ReaderOvertakenError,
    TxmqError,
    shown,
)
from txmq.ground.clock import SystemClock, timestamp
from txmq.message.filter import MessageFilter
from txmq.message.names import check_namespace, group_in_namespace, topic_in_namespace
from txmq.spark.columns import is_not_erased
from txmq.spark.members import (
    BATCH_MESSAGES,
    BatchHandler,
    RangeReader,
    SparkBatches,
    TopicFrames,
    united,
)
from txmq.spark.session import check_passes_over_no_file
from txmq.store.store import Store, check_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


# Error conditions of Spark, and the texts of its older parts that name no condition.
_OVERTAKEN = (
    "DELTA_VERSION_NOT_FOUND", "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE",
    "DELTA_LOG_FILE_NOT_FOUND", "DELTA_FILE_NOT_FOUND_DETAILED", "FAILED_READ_FILE.FILE_NOT_EXIST",
    "Did not get the first delta file version", "Did not get the last delta file version",
)  # fmt: skip
# A file of a topic; a user's own file or one of the checkpoint may be missing, too.
_LOST_FILE = re.compile(r"FileNotFoundException\b[^\n]*/topics/")
_MISMATCH = (
    "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",
    # The topic is an older copy, and has not come as far as the checkpoint again.
    "Trying to load a non-existent version",
)
_CORRUPT = (
    "STREAMING_CHECKPOINT_MISSING_METADATA_FILE", "MALFORMED_LOG_FILE", "Incomplete log file",
    "CANNOT_LOAD_STATE_STORE",
)  # fmt: skip
_VERSION = re.compile(r"version[s]?:? (\d+)", re.IGNORECASE)


class Consumer:
    """Reads topics with Spark, also with Spark Connect.

    `read_stream` and `read` give DataFrames; the checkpoint of a stream keeps its offsets, as for
    any Delta stream. `subscribe` joins the consumer group and gives DataFrames to a handler; the
    group keeps its offsets.

    Args:
        store: the store of the topics.
        consumer_group: the name of the group.
        namespace: the namespace of the names of the group and of the topics (R94). Topics of other
            namespaces cannot be named then; system topics can.

    Raises: InvalidNameError.

    Example:
        >>> consumer = Consumer(store, consumer_group="billing")
        >>> stream = consumer.read_stream("order-paid", spark=spark)
    """

    def __init__(self, store: Store, *, consumer_group: str, namespace: str | None = None) -> None:
        """Check the names; nothing is read; 0 commits."""
        check_store(store)
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
        """Return the messages of topics as a streaming DataFrame; columns as TOPIC in schemas.py.

        Compaction and retention do not disturb the stream: it skips commits that only rewrite or
        remove rows. Commits: 0.

        Inside a namespace, `topic` and `producer_group` show names without it. In a stream of
        several topics, a typed column is null for the topics that do not have it.

        Args:
            topics: a name, several names, or a mapping of names to filters as `parse_filter`
                takes them.
            spark: a session, also of Spark Connect.
            from_where: where a new checkpoint begins (R106). For a moment or offsets, Spark reads
                all that is kept and drops older messages: pass the same ones as long as the
                checkpoint lives, since it drops them at every start. With LAST_OFFSET a checkpoint
                has no place before its first message: what comes between two starts is left out
                until then, so give a job with availableNow a fixed moment.
            from_timestamp: the moment, for ConsumeFromWhere.TIMESTAMP.

        Raises:
            TopicNotFoundError: no message of the topic is visible yet.
            InvalidNameError, InvalidFilterError, ConfigError: an argument cannot be used.
            EnvironmentProblemError: the session passes over files that are gone or damaged.
        """
        start = StartPoint.of(from_where, from_timestamp).in_namespace(self.namespace)
        check_passes_over_no_file(spark)
        frames = [
            self._stream(topic, message_filter, spark, start)
            for topic, message_filter in filters_by_topic(topics, self.namespace).items()
        ]
        return united(frames, self.namespace)

    def _stream(
        self, topic: str, message_filter: MessageFilter, spark: SparkSession, start: StartPoint
    ) -> DataFrame:
        location = self.store.topic_location(topic)
        reader = spark.readStream.format("delta").option("skipChangeCommits", "true")
        if start.where is ConsumeFromWhere.LAST_OFFSET:
            reader = reader.option("startingVersion", "latest")
        rows = reader.load(location).where(is_not_erased())
        if start.moment_ms is not None:
            rows = rows.where(rows["store_timestamp"] >= timestamp(start.moment_ms))
        for queue_id, offset in (start.offsets or {}).get(topic, {}).items():
            rows = rows.where((rows["queue_id"] != queue_id) | (rows["queue_offset"] >= offset))
        return rows if message_filter.is_all else rows.where(message_filter.column())

    def read(
        self,
        topics: Topics,
        *,
        spark: SparkSession,
        version: int | None = None,
        as_of: datetime | None = None,
    ) -> DataFrame:
        """Return all messages of topics as a DataFrame, now or at an earlier time.

        An earlier time uses Delta's time travel: maintenance decides how far back it reaches, and
        messages that retention removed are not there any more. Commits: 0.

        Args:
            topics: a name, several names, or a mapping of names to filters.
            spark: a session, also of Spark Connect.
            version: a version of the topic's table; for one topic only.
            as_of: a time with a time zone; several topics are each read as they were then.

        Raises:
            TopicNotFoundError: no message of the topic is visible yet.
            InvalidNameError, InvalidFilterError, ConfigError: an argument cannot be used.
            EnvironmentProblemError: the session passes over files that are gone or damaged.
            Exception: when the rows are read, Spark raises its own error for a version or a time
                that is not kept.
        """
        check_passes_over_no_file(spark)
        filters = filters_by_topic(topics, self.namespace)
        options = _travel_options(version, as_of, len(filters))
        frames = []
        for topic, message_filter in filters.items():
            location = self.store.topic_location(topic)
            # Delta refuses a time after the last commit; the topic is unchanged since then.
            is_now = as_of is not None and self._is_newest(topic, moment_ms(as_of))
            reader = spark.read.format("delta").options(**({} if is_now else options))
            rows = reader.load(location).where(is_not_erased())
            frames.append(rows if message_filter.is_all else rows.where(message_filter.column()))
        return united(frames, self.namespace)

    def _is_newest(self, topic: str, at_ms: int) -> bool:
        times_ms = self.store.tables.table_at(f"topics/{topic}").folder.commit_times_ms()
        return at_ms >= max(times_ms.values(), default=0)

    def subscribe(  # noqa: PLR0913 - the arguments of a consumer
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
        consume_timeout_s: float | None = None,
        on_error: ErrorHook | None = None,
    ) -> SparkBatches:
        """Join the group as a member whose handler gets DataFrames; see SparkBatches.

        `run_once()` of the member drains what is visible, `start()` goes on in a thread, `close()`
        leaves the group. A handler of single messages needs PullConsumer; both kinds of members
        may share a group.

        Commits: one, and one more that creates the table of a new group.

        Args:
            topics: a name, several names, or a mapping of names to filters.
            handler: called with DataFrames, by one thread. None or ConsumeStatus.SUCCESS means
                handled; RECONSUME_LATER and exceptions are failures.
            spark: a session, also of Spark Connect.
            max_messages: the largest number of messages of one batch.
            from_where: where a group begins that has no offsets yet (R106).
            from_timestamp: the moment, for ConsumeFromWhere.TIMESTAMP.
            mode: in CLUSTERING the members share the queues, in BROADCASTING each member reads all.
            member_id: the name of this member; BROADCASTING needs it.
            consume_timeout_s: a handler that takes longer for one batch loses the lease of the
                member; the setting of the group, else of the store, if it is left out.
            on_error: called with each message that is found to fail, and with its error.

        Raises: as PullConsumer.
        """
        check_max_messages(max_messages)
        check_function("handler", handler)
        if on_error is not None:
            check_function("on_error", on_error)
        subscription = Subscription.of(
            consumer_group=self._given_group, topics=topics, from_where=from_where,
            from_timestamp=from_timestamp, mode=mode, member_id=member_id, namespace=self.namespace,
        )  # fmt: skip
        settings = settings_in(self.store, subscription.consumer_group)
        timeout_s = checked_timeout(consume_timeout_s, settings.consume_timeout_s)
        if settings.consume_message_orderly and mode is ConsumeMode.CLUSTERING:
            name = subscription.consumer_group
            problem = f"group {name} keeps order, and rows of a DataFrame that fail would leave it"
            raise ConfigError([f"{problem}; use PullConsumer, or readStream.format('txmq')"])
        settings = replace(settings, consume_timeout_s=timeout_s)
        reader = GroupReader(self.store, subscription, SystemClock(), settings=settings)
        frames = TopicFrames(self.store, spark, subscription.filters, self.namespace)
        return SparkBatches(RangeReader(reader), frames, handler, max_messages, on_error)

    def wait(self, query: StreamingQuery, timeout_s: float | None = None) -> bool:
        """Wait until a query over topics ends.

        Args:
            query: a running query.
            timeout_s: the longest time to wait, rounded up to whole seconds; None waits for ever.

        Returns:
            Whether the query has ended.

        Raises: as `stream_errors`.
        """
        with self.stream_errors():
            if timeout_s is not None:
                return bool(query.awaitTermination(math.ceil(timeout_s)))
            query.awaitTermination()
        return True

    @contextmanager
    def stream_errors(self) -> Iterator[None]:
        """Translate failures of Spark's streams into errors of txmq.

        Put it around the start of a query, and around code that waits for one.

        Raises:
            ReaderOvertakenError: retention or clean-up removed what the stream had not read.
            CheckpointMismatchError: the checkpoint belongs to another topic, or the topic was made
                anew or restored to an older copy.
            CheckpointCorruptError: the checkpoint cannot be read.
            Exception: any other failure, as Spark raises it.
        """
        try:
            yield
        except Exception as error:
            typed = typed_stream_error(error)
            if typed is None:
                raise
            raise typed from error

    def checkpoint_location(self, topic: str) -> str:
        """Return the place for the checkpoint of this group's stream of a topic; create nothing.

        Args:
            topic: the name of one topic; a stream of several topics needs a place of its own.

        Raises: InvalidNameError.
        """
        stored = topic_in_namespace(topic, self.namespace)
        return self.store.checkpoint_location(f"consumers/{self.consumer_group}/{stored}")


def _travel_options(version: object, as_of: object, topics: int) -> dict[str, str]:
    """Return the options of Delta's reader for time travel. Raises: ConfigError."""
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
    """Return the error of txmq for a failure of a query, or None."""
    text = str(error)
    if any(condition in text for condition in _MISMATCH):
        return CheckpointMismatchError()
    if any(condition in text for condition in _CORRUPT):
        problem = "cannot be read; begin with a new one, since an older one may lose messages"
        return CheckpointCorruptError("the checkpoint of a consumer", problem)
    if any(condition in text for condition in _OVERTAKEN) or _LOST_FILE.search(text):
        version = _VERSION.search(text)
        return ReaderOvertakenError(None if version is None else int(version[1]))
    return None
