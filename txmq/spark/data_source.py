"""The data source `txmq`: topics under the names that users of Spark try first.

`spark.read.format("txmq")` and `spark.readStream.format("txmq")` read by offsets, which are what a
checkpoint names: compaction, a rebuilt topic or the clean-up of a log do not disturb a stream.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema

from txmq.consumer.arguments import filters_by_topic
from txmq.consumer.group_rules import TopicQueue
from txmq.consumer.offsets import ConsumeFromWhere, StartPoint, TopicOffsets, check_offset
from txmq.consumer.reader import TopicReader
from txmq.errors import ConfigError, EnvironmentProblemError, shown
from txmq.message.ids import check_transaction_id
from txmq.message.names import check_namespace
from txmq.spark.members import OffsetRange
from txmq.spark.session import arrow_schema_of
from txmq.spark.topic_slices import (
    NO_LIMIT,
    ReadOptions,
    TopicSlice,
    columns_of,
    messages_of,
    slices_of,
)
from txmq.spark.topic_writer import WRITES_STREAMS, BatchWriter, RowsWriter, WriteOptions
from txmq.store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

FORMAT = "txmq"
# Of rows that are sent by themselves; nobody asks it about them.
DEFAULT_GROUP = "spark"
EARLIEST, LATEST = "earliest", "latest"


def register_data_source(spark: SparkSession) -> None:
    """Let a session know `format("txmq")`; also one of Spark Connect. 0 commits.

    Args:
        spark: the session, of Spark 4.0 or newer; 4.1 to write streams, 4.2 to read them.

    Example:
        >>> register_data_source(spark)
        >>> spark.read.format("txmq").option("topic", "order-paid").load("/lake/store")
    """
    spark.dataSource.register(TxmqDataSource)


class TxmqDataSource(DataSource):
    """Reads and writes topics of a store, whose location is the path.

    `register_data_source` makes it known.

    The options are those of docs/spark.md.

    The columns are those of TOPIC in schemas.py, and behind them those of typed bodies.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Return the columns of the topics. Raises: ConfigError, StorageError."""
        return from_arrow_schema(columns_of(read_options(self.options)))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        """Return what sends the rows of a DataFrame: one transaction, and nothing else.

        Raises: ConfigError, SchemaMismatchError; as `accept_rows` of a producer.
        """
        return RowsWriter(write_options(self.options, overwrite=overwrite), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802 - Spark's
        """Return what sends a micro-batch of a stream, once however often it runs.

        Raises: as `writer`; EnvironmentProblemError before Spark 4.1.
        """
        options = write_options(self.options, overwrite=overwrite)
        if options.transaction is not None:
            raise ConfigError(["option transaction is of DataFrames alone"])
        if not WRITES_STREAMS:
            problem = "this Spark hands a Python data source the rows of a stream one by one"
            raise EnvironmentProblemError(problem, "Use Spark 4.1, or BatchTransactions.")
        return BatchWriter(options, schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what plans and reads a DataFrame; nothing is opened yet."""
        return TopicBatchReader(read_options(self.options), schema)

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
        options = read_options(self.options)
        if options.end != StartPoint(ConsumeFromWhere.LAST_OFFSET):
            raise ConfigError(["options endingOffsets and endingTimestamp are of DataFrames alone"])
        return TopicStreamReader(options, schema)


# --- a DataFrame ----------------------------------------------------------------------------------


class TopicBatchReader(DataSourceReader):
    """Reads what is visible now, from the first to the last offset that the options say."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Open nothing: Spark sends the reader to its executors."""
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        """Plan one task for each slice. Raises: OffsetOutOfRangeError, StorageError."""
        store, options = self._options.store(), self._options
        options.start.check(store, options.filters)
        tasks: list[TopicSlice] = []
        for topic in options.filters:
            # Before the look, so that all of them are in what it sees.
            ranges = self._ranges(store, topic)
            reader = TopicReader(store, topic)
            reader.look()
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
        return messages_of(partition, arrow_schema_of(self._schema))


# --- options --------------------------------------------------------------------------------------


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Check what a user said to a reader.

    Raises: ConfigError with all faults; InvalidNameError, InvalidFilterError.
    """
    given = {name.lower(): value for name, value in options.items()}
    faults = _unknown(given, OPTIONS)
    if "tags" in given and "filter" in given:
        faults.append("options tags and filter are both given; pass one")
    fails = partial(_flag, name="failOnDataLoss", default="true")
    readers: Mapping[str, Callable[[Mapping[str, str]], Any]] = {
        "max": _max_messages, "start": _start, "end": _end, "fails": fails
    }  # fmt: skip
    values: dict[str, Any] = {}
    for name, read in readers.items():
        try:
            values[name] = read(given)
        except ConfigError as error:
            faults += error.faults
    if faults:
        raise ConfigError(faults)
    space = given.get("namespace")
    namespace = None if space is None else check_namespace(space)
    text = f"sql:{given['filter']}" if "filter" in given else given.get("tags")
    topics = dict.fromkeys([name.strip() for name in given["topic"].split(",")], text)
    return ReadOptions(
        given["path"], topics, filters_by_topic(topics, namespace),
        values["start"].in_namespace(namespace), values["end"].in_namespace(namespace),
        given.get("group"), namespace, values["max"], values["fails"],
    )  # fmt: skip


def write_options(options: Mapping[str, str], *, overwrite: bool) -> WriteOptions:
    """Check what a user said to a writer.

    Args:
        options: as Spark has them.
        overwrite: whether the mode is `overwrite`, or `complete` of a stream.

    Raises: ConfigError with all faults; InvalidNameError, TransactionNotFoundError.
    """
    given = {name.lower(): value for name, value in options.items()}
    faults = _unknown(given, WRITE_OPTIONS)
    if overwrite:
        faults.append("messages are added and never replaced; use the mode append")
    immunity_s = _seconds(given.get("checkimmunitytime", "0"))
    if immunity_s is None:
        problem = f"must be seconds, not {shown(given['checkimmunitytime'])}"
        faults.append(f"option checkImmunityTime {problem}")
    may_differ = False
    try:
        may_differ = _flag(given, "rowsMayDiffer", default="false")
    except ConfigError as error:
        faults += error.faults
    if faults:
        raise ConfigError(faults)
    space, transaction = given.get("namespace"), given.get("transaction")
    return WriteOptions(
        given["path"], given["topic"], given.get("producergroup", DEFAULT_GROUP),
        None if space is None else check_namespace(space),
        None if transaction is None else check_transaction_id(transaction), immunity_s or 0.0,
        {field: given[name] for name, field in _FIELDS.items() if name in given},
        may_differ,
    )  # fmt: skip


def _seconds(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _unknown(given: Mapping[str, str], known: Mapping[str, str]) -> list[str]:
    """Return the faults of names: options that are not known, and those that are missing."""
    faults = [
        f"option {name} is not one of {', '.join(sorted(known.values()))}"
        for name in given.keys() - known.keys()
    ]
    return faults + [
        f"option {name} is missing" for name in ("path", "topic") if not given.get(name)
    ]


# The fields of a message that an option takes from a column.
_FIELDS = {
    "keys": "keys", "tags": "tags", "shardingkey": "sharding_key", "delayseconds": "delay_s"
}  # fmt: skip
WRITE_OPTIONS = {
    name.lower(): name
    for name in (
        "path", "topic", "keys", "tags", "shardingKey", "delaySeconds", "producerGroup",
        "namespace", "transaction", "checkImmunityTime", "rowsMayDiffer",
        # Of each writer of a stream.
        "checkpointLocation", "queryName",
    )
}  # fmt: skip
OPTIONS = {
    name.lower(): name
    for name in (
        "path", "topic", "tags", "filter", "namespace", "startingOffsets", "startingTimestamp",
        "endingOffsets", "endingTimestamp", "group", "maxMessagesPerTrigger", "failOnDataLoss",
    )
}  # fmt: skip


def _max_messages(given: Mapping[str, str]) -> int:
    text = given.get("maxmessagespertrigger")
    if text is None:
        return NO_LIMIT
    if re.fullmatch(r"[1-9][0-9]{0,17}", text, re.ASCII):
        return int(text)
    raise ConfigError(
        [f"option maxMessagesPerTrigger must be a whole number above 0, not {shown(text)}"]
    )


def _flag(given: Mapping[str, str], name: str, *, default: str) -> bool:
    text = given.get(name.lower(), default).lower()
    if text not in {"true", "false"}:
        raise ConfigError([f"option {name} must be true or false, not {shown(text)}"])
    return text == "true"


def _start(given: Mapping[str, str]) -> StartPoint:
    return _point("starting", given, ConsumeFromWhere.FIRST_OFFSET)


def _end(given: Mapping[str, str]) -> StartPoint:
    return _point("ending", given, ConsumeFromWhere.LAST_OFFSET)


def _point(which: str, given: Mapping[str, str], default: ConsumeFromWhere) -> StartPoint:
    """Read `startingOffsets` or `startingTimestamp`, or those of the end. Raises: ConfigError."""
    offsets, moment = given.get(f"{which}offsets"), given.get(f"{which}timestamp")
    if offsets is not None and moment is not None:
        raise ConfigError([f"options {which}Offsets and {which}Timestamp are both given; pass one"])
    if moment is not None:
        return StartPoint.of(ConsumeFromWhere.TIMESTAMP, _moment(f"{which}Timestamp", moment))
    if offsets is None or offsets.lower() in {EARLIEST, LATEST}:
        is_first = default if offsets is None else _NAMED[offsets.lower()]
        return StartPoint(is_first)
    try:
        by_topic = json.loads(offsets)
        chosen = {
            topic: {int(queue): offset for queue, offset in queues.items()}
            for topic, queues in by_topic.items()
        }
    except (ValueError, AttributeError, RecursionError) as error:
        example = '{"order-paid": {"0": 42}}'
        problem = f"option {which}Offsets must be {EARLIEST}, {LATEST} or JSON such as {example}"
        raise ConfigError([f"{problem}, not {shown(offsets)}"]) from error
    return replace(StartPoint.of(chosen, None), where=default)


_NAMED = {EARLIEST: ConsumeFromWhere.FIRST_OFFSET, LATEST: ConsumeFromWhere.LAST_OFFSET}


def _moment(name: str, text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        example = "2026-11-28T12:00:00+00:00"
        raise ConfigError(
            [f"option {name} must be a time with its zone such as {example}, not {shown(text)}"]
        )
    return moment
