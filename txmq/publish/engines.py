"""Copy the bodies of a plan into new files of a topic.

The Arrow engine streams them through this process. With a session, Spark's executors copy large
plans, each task as the Arrow engine does.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.failures import disk_error, problem_of
from txmq.delta.file_rows import BATCH_BYTES, CHUNKS_MAX, in_row_groups
from txmq.delta.files import as_type
from txmq.delta.folder import Contents, in_windows
from txmq.delta.parquet import NewFile, write_files, write_partitions
from txmq.delta.table import Table
from txmq.errors import EnvironmentProblemError, StorageError, UnreadableFileError
from txmq.ground.clock import timestamp
from txmq.ground.columns import in_order
from txmq.ground.sessions import spark_room
from txmq.publish.plan import (
    BATCH_ROWS,
    COPIED,
    GIVEN,
    DistributedEngine,
    NumberedPlan,
    PayloadEngine,
    PlanFile,
)
from txmq.store.schemas import MICROSECONDS_UTC, SCHEDULE
from txmq.store.topic import body_schema_in, typed_columns, with_body_columns

if TYPE_CHECKING:
    from txmq.ground.sessions import SparkSession
    from txmq.message.body_schema import BodySchema
    from txmq.store.config import Config

logger = logging.getLogger(__name__)

READ_AHEAD_BATCHES = 3
# The Arrow engine reads in one thread and writes in another.
ARROW_CORES = 2
# One batch is read, READ_AHEAD_BATCHES wait, and one is written, as messages and as rows.
BATCHES_OF_A_TOPIC = READ_AHEAD_BATCHES + 3
# Messages with a topic's column names, and their rows of the plan.
_Messages = tuple[pa.Table, pa.Table]


class EngineChoice:
    """Chooses the engine that copies a plan.

    Attributes:
        arrow: the engine of this process.
    """

    def __init__(self, config: Config, spark: SparkSession | None) -> None:
        """Make the engines; with `auto`, Spark copies `payload_engine_spark_bytes` or more."""
        setting = config.payload_engine
        batch_bytes = batch_bytes_of(config.publish_batch_bytes, config.publish_threads)
        self.arrow = ArrowEngine(batch_bytes)
        self._spark = _spark_engine(spark, setting, batch_bytes)
        self._setting, self._spark_bytes = setting, config.payload_engine_spark_bytes

    def engine_for(self, topic: Table, size_bytes: int) -> PayloadEngine:
        """Return the engine for bodies of this size."""
        engine = self._spark
        if engine is None:
            return self.arrow
        if self._setting == "spark" or (size_bytes >= self._spark_bytes and _pays(engine, topic)):
            return engine
        return self.arrow


def _pays(engine: DistributedEngine, topic: Table) -> bool:
    """Tell whether executors can copy, and have more cores than the Arrow engine uses."""
    try:
        return engine.slots(topic) > ARROW_CORES
    except (EnvironmentProblemError, StorageError) as error:
        logger.warning("this process copies the messages of %s itself: %s", topic.name, error)
        return False


def _spark_engine(
    spark: SparkSession | None, setting: str, batch_bytes: int
) -> DistributedEngine | None:
    """Return Spark's engine if it may be chosen.

    Raises: EnvironmentProblemError if the setting demands it and there is no session.
    """
    if setting == "arrow" or (spark is None and setting != "spark"):
        return None
    engine: DistributedEngine = spark_room().payload_engine(spark, batch_bytes)
    return engine


def batch_bytes_of(publish_batch_bytes: int, threads: int) -> int:
    """Return the size of one batch, so that all topics together hold `publish_batch_bytes`."""
    return max(1, publish_batch_bytes // (threads * BATCHES_OF_A_TOPIC))


class ArrowEngine:
    """Streams the files through this process into new ones; holds a few record batches."""

    def __init__(self, batch_bytes: int = BATCH_BYTES) -> None:
        """Bound each of the batches by `batch_bytes`, see `batch_bytes_of`."""
        self._batch_bytes = batch_bytes

    def write(self, topic: Table, plans: Iterable[NumberedPlan], now_ms: int) -> list[NewFile]:
        """Write new files of `topic`, see PayloadEngine."""
        return write_messages(topic, body_schema_in(topic), plans, now_ms, self._batch_bytes)


def write_messages(
    topic: Table,
    body: BodySchema | None,
    plans: Iterable[NumberedPlan],
    now_ms: int,
    batch_bytes: int,
) -> list[NewFile]:
    """Copy the messages of plans into new files of a topic; 0 commits.

    Args:
        topic: its log is not read.
        body: the schema of the bodies of a typed topic.
        plans: as of `copied`, with `now_ms` and `batch_bytes`.

    Raises: UnreadableFileError; StoreFullError, ReadOnlyStoreError.
    """
    tables = copied(plans, topic.schema.columns, now_ms, batch_bytes=batch_bytes)
    columns = topic.schema.columns
    if body is not None:
        tables, columns = with_body_columns(tables, body), typed_columns(body)
    try:
        return _written(tables, topic, columns)
    except OSError as error:
        full_or_read_only = disk_error(topic.name, error)
        if full_or_read_only is None:
            raise
        raise full_or_read_only from error


def _written(tables: Iterator[pa.Table], topic: Table, columns: pa.Schema) -> list[NewFile]:
    """Write the tables into new files of up to FILE_BYTES, or into one for each partition."""
    begin = list(islice(tables, 2))
    if len(begin) <= 1:
        return [file for rows in begin for file in topic.writer.new_files(rows)]
    ahead = _read_ahead(chain(begin, tables))
    schema, filesystem = topic.schema, topic.folder.filesystem
    if schema.partition_by:
        return write_partitions(ahead, schema.partition_by, filesystem, schema.statistics_columns)
    return write_files(ahead, columns, filesystem, schema.statistics_columns)


def copied(
    plans: Iterable[NumberedPlan],
    schema: pa.Schema,
    now_ms: int,
    *,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[pa.Table]:
    """Yield the rows of a topic, plan by plan in the order of the files, a few thousand at a time.

    Args:
        plans: follow each other. A value in the optional column store_timestamp of their rows
            replaces `now_ms`.
        schema: the columns of the topic.
        now_ms: the store_timestamp of the rows.
        batch_bytes: what is read of a file at once.

    Raises: UnreadableFileError.
    """
    reader = _FileReader(batch_bytes)
    messages = (pair for numbered in plans for pair in _messages(numbered, reader))
    return in_row_groups(
        messages,
        lambda messages: _topic_rows_of(messages, schema, now_ms),
        lambda messages: (messages[0].num_rows, messages[0].nbytes),
        (BATCH_ROWS, batch_bytes),
    )


def _messages(numbered: NumberedPlan, reader: _FileReader) -> Iterator[_Messages]:
    """Yield the planned messages of all files, with a topic's column names, and their plan rows."""
    plan, offsets = numbered
    rows = in_order(plan.rows.append_column("queue_offset", pa.array(offsets)), "file", "row")
    numbers, firsts = np.unique(rows["file"].to_numpy(), return_index=True)
    # A topic that retention has emptied has no rows in the plan.
    ends = [*firsts.tolist(), rows.num_rows][1:]
    rows = rows.combine_chunks()
    rows_by_file = [
        (plan.files[number], rows.slice(first, end - first))
        for number, first, end in zip(numbers.tolist(), firsts.tolist(), ends, strict=True)
    ]
    for window in in_windows(rows_by_file):
        contents = _fetched([file for file, _ in window])
        for file, file_rows in window:
            yield from reader.messages(file, file_rows, contents)


def _fetched(files: Sequence[PlanFile]) -> Contents:
    """Fetch the small files together; a plan is of one table or of two."""
    contents: dict[str, pa.Buffer] = {}
    for table in {id(file.table): file.table for file in files}.values():
        contents |= table.rows.fetched_files([file.file for file in files if file.table is table])
    return contents


class _FileReader:
    """Reads one file after the other; goes on where it is if the next plan begins in its file."""

    def __init__(self, batch_bytes: int) -> None:
        """Open nothing yet; hold up to `batch_bytes` of a file at once."""
        self._batch_bytes = batch_bytes
        self._path, self._sources = "", dict[str, str]()
        self._batches: Iterator[tuple[int, pa.RecordBatch]] = iter(())
        # The first row that was not needed yet is in this batch, or behind it.
        self._batch: tuple[int, pa.RecordBatch] | None = None

    def messages(self, file: PlanFile, rows: pa.Table, contents: Contents) -> Iterator[_Messages]:
        """Yield the planned messages of a file; `rows` are those of the plan, in their order."""
        numbers = rows["row"].to_numpy()
        self._reach(file, int(numbers[0]), contents)
        while self._batch is not None:
            start, batch = self._batch
            first, last = np.searchsorted(numbers, [start, start + batch.num_rows])
            if last > first:
                messages, places = batch, numbers[first:last] - start
                # Not by their count: two discarded lives make one message visible twice.
                if not np.array_equal(places, np.arange(batch.num_rows)):
                    messages = batch.take(pa.array(places))
                yield _renamed(messages, self._sources), rows.slice(first, last - first)
            if last == len(numbers):
                return
            self._batch = next(self._batches, None)
        # Else the next message would take the offset of one that is not copied.
        problem = f"it ends before row {int(numbers[-1]):,}"
        raise UnreadableFileError(file.table.schema.name, file.file.path, problem)

    def _reach(self, file: PlanFile, row: int, contents: Contents) -> None:
        """Open a file at a row, if it is another one or the row was passed."""
        path = file.file.path
        if path == self._path and self._batch is not None and self._batch[0] <= row:
            return
        self._path, self._sources = path, source_columns(file.table)
        columns = list(self._sources.values())
        self._batches = _batches(file, columns, row, self._batch_bytes, contents)
        self._batch = next(self._batches, None)


def source_columns(table: Table) -> dict[str, str]:
    """Map each copied column of a topic to the column of this table that it is copied from."""
    return {name: name for name in COPIED} if table.schema.name == SCHEDULE.name else COPIED


def _batches(
    file: PlanFile, columns: Sequence[str], first: int, batch_bytes: int, contents: Contents
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read a file from the row group with a row on; batches come with numbers of their first rows.

    Raises: UnreadableFileError, whatever a damaged file leads to.
    """
    try:
        yield from file.table.rows.batches_from(
            file.file, columns, first, BATCH_ROWS, batch_bytes, contents
        )
    except MemoryError:
        raise
    except Exception as error:
        problem = problem_of(error)
        raise UnreadableFileError(file.table.schema.name, file.file.path, problem) from error


def _renamed(batch: pa.RecordBatch, sources: Mapping[str, str]) -> pa.Table:
    """Give the columns the names of a topic's; a column that the file lacks is left out."""
    stored = set(batch.schema.names)
    names = {name: source for name, source in sources.items() if source in stored}
    return pa.table([batch[source] for source in names.values()], names=list(names))


def _topic_rows_of(messages: Sequence[_Messages], schema: pa.Schema, now_ms: int) -> pa.Table:
    """Make few rows of each of many files together: each call of Arrow has its price."""
    # Another program may have written files of other types, or an earlier txmq of fewer columns.
    runs = groupby(messages, lambda pair: pair[0].schema)
    tables = [_topic_rows(*_together(list(run)), schema, now_ms) for _, run in runs]
    return pa.concat_tables(tables)


def _together(messages: Sequence[_Messages]) -> _Messages:
    """Join messages of the same columns; many small chunks become one."""
    if len(messages) == 1:
        return messages[0]
    batches, plan_rows = zip(*messages, strict=True)
    joined, rows = pa.concat_tables(batches), pa.concat_tables(plan_rows)
    if len(messages) <= CHUNKS_MAX:
        return joined, rows
    return joined.combine_chunks(), rows.combine_chunks()


def _topic_rows(
    messages: pa.Table, plan_rows: pa.Table, schema: pa.Schema, now_ms: int
) -> pa.Table:
    """Make rows of a topic: copied columns, columns of the plan, and the store_timestamp."""
    values = {name: messages[name] for name in messages.column_names}
    values |= {name: plan_rows[name] for name in GIVEN}
    now = pa.scalar(timestamp(now_ms), MICROSECONDS_UTC)
    values["store_timestamp"] = (
        pc.fill_null(plan_rows["store_timestamp"], now)
        if "store_timestamp" in plan_rows.column_names
        else pa.repeat(now, messages.num_rows)
    )
    if "due_date" in schema.names:
        values["deliver_timestamp"] = plan_rows["deliver_timestamp"]
        values["due_date"] = plan_rows["deliver_timestamp"].cast(pa.date32())
    nulls = pa.nulls(messages.num_rows)
    columns = [as_type(values.get(column.name, nulls), column.type) for column in schema]
    return pa.table(columns, schema=schema)


def _read_ahead(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Read in another thread while this thread writes; one or two tables need no thread."""
    first = next(tables, None)
    second = next(tables, None)
    if first is not None:
        yield first
    if second is None:
        return
    yield second
    yield from _from_thread(tables)


def _from_thread(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables, read up to READ_AHEAD_BATCHES ahead; raise an error of the reader here."""
    ready: queue.Queue[pa.Table | _End] = queue.Queue(READ_AHEAD_BATCHES)
    is_stopped = threading.Event()
    arguments = (tables, ready, is_stopped)
    thread = threading.Thread(target=_read, args=arguments, name="txmq-read-ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.failure is not None:
            raise item.failure
    finally:
        is_stopped.set()
        # A reader that waits for room in the queue must see the flag.
        while not ready.empty():
            ready.get_nowait()
        # It plans pieces, for which it uses the half log.
        thread.join()


@dataclass(frozen=True, slots=True)
class _End:
    """The end of the tables, and the error that ended them, if any."""

    failure: BaseException | None


def _read(
    tables: Iterator[pa.Table], ready: queue.Queue[pa.Table | _End], is_stopped: threading.Event
) -> None:
    """Put the tables and their end into a queue, until `is_stopped`."""
    failure: BaseException | None = None
    try:
        for table in tables:
            if is_stopped.is_set():
                return
            ready.put(table)
    except BaseException as error:  # noqa: BLE001 - raised in the consuming thread
        failure = error
    ready.put(_End(failure))
