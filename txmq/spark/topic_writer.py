"""What `format("txmq")` writes: the rows of a DataFrame, or of each micro-batch of a stream.

Tasks write files of halves, as those of `send_dataframe` do, and one commit on the driver adds
them. Spark runs each step on the driver in a Python process of its own, so that a writer is
planned in one and commits in another. Files of a job that failed are left to maintenance: Spark
also says that it failed where a commit gave no answer, and then the files may be live.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from txmq.delta.folder import TableFolder
from txmq.errors import (
    EnvironmentProblemError,
    SchemaMismatchError,
    StorageError,
    TopicChangedError,
    TxmqError,
)
from txmq.ground.clock import SystemClock, elapsed_ms
from txmq.message.ids import new_transaction_id
from txmq.message.message import LocalTransactionState
from txmq.message.names import check_group, check_stored_group, wrapped
from txmq.producer.commits import ProducerCommits
from txmq.producer.frame_rows import PLACE, ROWS_OF_PARTITION
from txmq.producer.keyed import KeyedAttempt
from txmq.producer.pipeline import waited
from txmq.producer.query_batches import QueryBatch
from txmq.producer.routing import MessageRouter, PlannedSend, WrittenRows, check_immunity_s
from txmq.spark.dataframe import FrameHalves, check_columns
from txmq.spark.executors import TablePlace, files_of
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# As Spark names it, for the tasks of a micro-batch.
_QUERY_ID = "sql.streaming.queryId"
# What an error says of an earlier write.
_WRITTEN_ONCE = "of write_options()"
# Spark 4.0 has none for batches of Arrow.
_StreamWriter: Any = getattr(datasource, "DataSourceStreamArrowWriter", DataSourceStreamWriter)
WRITES_STREAMS = _StreamWriter is not DataSourceStreamWriter
# Spark's whole numbers.
_WHOLE = ("tinyint", "smallint", "int", "bigint")
Messages = Sequence[WriterCommitMessage | None]


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of a writer, checked.

    Attributes:
        location: of the store.
        topic: of all rows, without its namespace.
        producer_group: as it was given.
        namespace: of the topic and the group; None for none.
        transaction: the id of an open transaction that the rows become messages of.
        immunity_s: the time before the first check of that transaction.
        columns: by the field of a message, the column that it is taken from.
        may_differ: whether the rows of a batch may differ from run to run.
    """

    location: str
    topic: str
    producer_group: str
    namespace: str | None
    transaction: str | None
    immunity_s: float
    columns: Mapping[str, str]
    may_differ: bool

    @contextmanager
    def commits(self) -> Iterator[tuple[ProducerCommits, MessageRouter]]:
        """Open the store for its producer group, and close it after the block."""
        store, clock = Store.open(self.location), SystemClock()
        router = MessageRouter(store, self.namespace, clock)
        group = check_stored_group(wrapped(check_group(self.producer_group), self.namespace))
        commits = ProducerCommits(store, group, clock, router)
        try:
            yield commits, router
        finally:
            commits.close()


@dataclass(frozen=True, slots=True)
class TaskOutcome(WriterCommitMessage):
    """What a task wrote.

    Spark plans the writer of a stream once for the tasks of a batch and once more for its commit.
    So a task says what the commit has to know of the plan that it had.

    Attributes:
        outcome: as `files_of` reads it.
        transaction_id: of the halves.
        began_ms: when the plan was made, by `elapsed_ms` of the driver.
        query_id: that of the stream; None for none.
    """

    outcome: str
    transaction_id: str
    began_ms: int
    query_id: str | None


class _Rows:
    """Rows that become the messages of one transaction.

    Args:
        options: of the writer.
        schema: the columns.

    Raises: SchemaMismatchError; as `accept_rows` of a producer.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Plan the halves; nothing is written yet."""
        self._options, self._began_ms = options, elapsed_ms()
        dtypes = [(part.name, part.dataType.simpleString()) for part in schema.fields]
        columns = with_fields(dtypes, options.columns)
        is_ordinary = options.transaction is None
        with options.commits() as (commits, router):
            config = commits.store.config
            check_immunity_s("option", "checkImmunityTime", options.immunity_s, config)
            topic = router.accept_rows(
                options.topic, [name for name, _ in columns], is_transactional=not is_ordinary
            )
            send = self._send(options.transaction or new_transaction_id(commits.now_ms()))
            body_schema = router.body_schema(topic)
            check_columns(columns, body_schema)
            if body_schema is not None:
                # A missing package raises its own error here, and not one of a task.
                body_schema.problem(b"")
            head = commits.half_of(send, ordinary=is_ordinary)
            half = TablePlace.of(commits.store.tables.half_log().table)
            self._halves = FrameHalves(
                half, topic, head.origin, router.send_limits(topic), body_schema, head.rows
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskOutcome:
        """Write the halves of a partition, on an executor."""
        task = TaskContext.get()
        if task is None:
            raise EnvironmentProblemError("this is no task of Spark", "Let Spark call it.")
        batches = (_taken(batch, self._options.columns) for batch in iterator)
        outcome = self._halves.outcome(_placed(batches, task.partitionId()))
        query_id = task.getLocalProperty(_QUERY_ID)
        return TaskOutcome(
            outcome, self._halves.origin.transaction_id, self._began_ms, query_id or None
        )

    def _send(self, transaction_id: str) -> PlannedSend:
        return PlannedSend(transaction_id, (), immunity_s=self._options.immunity_s)

    def _written(self, tasks: Sequence[TaskOutcome]) -> WrittenRows:
        """Return the rows that all tasks wrote. Raises: as `files_of`."""
        began_ms = min((task.began_ms for task in tasks), default=0)
        files = files_of([task.outcome for task in tasks], self._folder, began_ms)
        return WrittenRows(self._halves.topic, self._halves.body_schema, files)

    @property
    def _folder(self) -> TableFolder:
        return self._halves.half.table().folder


class RowsWriter(_Rows, DataSourceArrowWriter):
    """Sends the rows of a DataFrame when the job succeeds: all of them, or none."""

    def commit(self, messages: Messages) -> None:
        """Append the halves and, unless the transaction is somebody's, commit it.

        Commits: one to half, and one to op; none without rows.

        Raises: InvalidMessageError for rows that cannot be messages; AlreadyResolvedError,
            DifferentMessagesError, StorageError.
        """
        tasks = _tasks(messages)
        rows = self._written(tasks)
        if not rows.files:
            return
        send = self._send(tasks[0].transaction_id)
        with self._options.commits() as (commits, _):
            if self._options.transaction is None:
                waited(commits.send_dataframe(send, rows))
                return
            attempt = KeyedAttempt(send.transaction_id, _WRITTEN_ONCE, None)
            try:
                waited(commits.prepare_keyed(attempt, send, [rows]))
            except TopicChangedError:
                # Nobody may commit these, and a caller may go on to `prepare()`.
                with suppress(TxmqError):
                    commits.end_by_id(send.transaction_id, LocalTransactionState.ROLLBACK)
                raise


def _tasks(messages: Messages) -> list[TaskOutcome]:
    """Return what the tasks wrote, all of one plan.

    Raises: EnvironmentProblemError where Spark hands over none of a task, as with a continuous
        trigger; StorageError.
    """
    tasks = [message for message in messages if isinstance(message, TaskOutcome)]
    if len(tasks) < len(messages):
        problem = "Spark does not say what each task wrote, as with trigger(continuous=…)"
        raise EnvironmentProblemError(problem, "Use another trigger; nothing was sent.")
    if len({task.transaction_id for task in tasks}) > 1:
        raise StorageError("half", "tasks of one write had several plans; write again")
    return tasks


def with_fields(
    dtypes: Sequence[tuple[str, str]], columns: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return name and type of each column, with the fields that are taken from others.

    Args:
        dtypes: as `DataFrame.dtypes` has them.
        columns: by the field of a message, the column that it is taken from.

    Raises: SchemaMismatchError.
    """
    types, faults = dict(dtypes), list[str]()
    for field, column in columns.items():
        if field in types:
            faults.append(f"column {field!r} is there, and an option names another for it")
        elif column not in types:
            faults.append(f"column {column!r}, which an option names, is missing")
        elif types[column] not in (_WHOLE if field == "delay_s" else (*_WHOLE, "string")):
            faults.append(f"column {column!r} is {types[column]}, which is no {field}")
    if faults:
        raise SchemaMismatchError(faults)
    fields = [(field, "bigint" if field == "delay_s" else "string") for field in columns]
    # Beside a body they are nothing else.
    unused = set(columns.values()) if "body" in types else set()
    return [*(each for each in dtypes if each[0] not in unused), *fields]


def _taken(batch: pa.RecordBatch, columns: Mapping[str, str]) -> pa.RecordBatch:
    """Return a batch as `with_fields` says."""
    if not columns:
        return batch
    kinds = {field: pa.int64() if field == "delay_s" else pa.string() for field in columns}
    fields = [batch[column].cast(kinds[field]) for field, column in columns.items()]
    unused = set(columns.values()) if "body" in batch.schema.names else set()
    names = [name for name in batch.schema.names if name not in unused]
    arrays = [*(batch[name] for name in names), *fields]
    return pa.RecordBatch.from_arrays(arrays, [*names, *columns])


def _placed(batches: Iterable[pa.RecordBatch], partition: int) -> Iterator[pa.RecordBatch]:
    """Add the place of each row, as Spark's monotonically_increasing_id counts."""
    place = partition * ROWS_OF_PARTITION
    for batch in batches:
        places = np.arange(place, place + batch.num_rows)
        place += batch.num_rows
        columns = [*batch.columns, pa.array(places)]
        yield pa.RecordBatch.from_arrays(columns, [*batch.schema.names, PLACE])


# --- streams --------------------------------------------------------------------------------------


class BatchWriter(_Rows, _StreamWriter):  # type: ignore[misc]
    """Sends each micro-batch of a stream, once however often Spark runs it."""

    def commit(self, messages: Messages, batchId: int) -> None:  # noqa: N803 - Spark's
        """Append the halves and commit them, unless an earlier run of the batch did.

        Commits: one to half and one to op; none without rows.

        Raises: as `BatchSender.send`.
        """
        tasks = _tasks(messages)
        if not tasks:
            return
        rows = self._written(tasks)
        if tasks[0].query_id is None:
            problem = "this Spark tells a task no id of its query, by which a batch is known again"
            raise EnvironmentProblemError(problem, "Use BatchTransactions.")
        send = self._send(tasks[0].transaction_id)
        batch = QueryBatch(tasks[0].query_id, batchId, self._options.may_differ)
        with self._options.commits() as (commits, _):
            commits.send_batch(send, rows, batch)
