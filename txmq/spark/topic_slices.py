"""What a reader of the data source `txmq` is asked for, and the slices that its tasks read.

Ranges of offsets are cut into slices, one for each task. A task returns exactly the offsets of its
slice, in the order of each queue, or fails; files that were merged or rebuilt meanwhile, and rows
that another program doubled, change nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from txmq.consumer.offsets import (
    NONE,
    POSITION_COLUMNS,
    StartPoint,
    may_hold,
)
from txmq.consumer.reader import TopicReader
from txmq.delta.failures import STORAGE_ERRORS, failed_read
from txmq.delta.file_rows import BATCH_BYTES
from txmq.delta.files import LARGE_FILE_BYTES, DataFile, FilePart
from txmq.delta.table import Table
from txmq.errors import (
    MessagesExpiredError,
    StorageError,
)
from txmq.ground.columns import (
    Flags,
    first_of_each,
    in_order,
    integers,
    only,
    python_values,
    sound_rows,
    whole,
)
from txmq.message.codec import without_erased
from txmq.message.filter import MessageFilter
from txmq.message.names import unwrapped
from txmq.spark.executors import TablePlace
from txmq.spark.members import OffsetRange
from txmq.store.schemas import TOPIC
from txmq.store.store import Store

# A task reads about so many bytes, which it may have to sort.
SLICE_BYTES = 32 * 1024 * 1024
# Whatever sizes a commit of another program names.
SLICES_MAX = 10_000
BATCH_ROWS = 10_000
# Without a limit a batch takes all that is visible.
NO_LIMIT = 1 << 62
# What a message has; rows of other programs may lack it.
_REQUIRED = (*POSITION_COLUMNS, "message_id", "transaction_id", "op_version", "store_timestamp")
_WAY_ON = "to go on without them, set failOnDataLoss to false"

# --- what is asked for ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of a reader, checked.

    Attributes:
        location: of the store.
        topics: the filter of each topic as they were given.
        filters: the filter of each topic, by its stored name.
        start: where a DataFrame, a new stream or a new group begins.
        end: where a DataFrame ends.
        group: the consumer group of a stream, as it was given; None for none.
        max_messages: the most that a batch of a stream takes.
        fails_on_data_loss: whether messages that are gone are an error.
    """

    location: str
    topics: Mapping[str, str | None]
    filters: Mapping[str, MessageFilter]
    start: StartPoint
    end: StartPoint
    group: str | None
    namespace: str | None
    max_messages: int
    fails_on_data_loss: bool

    def store(self) -> Store:
        """Open the store. Raises: as `Store.open`."""
        return Store.open(self.location)


def columns_of(options: ReadOptions) -> pa.Schema:
    """Return the columns of topics, those of their bodies last.

    Raises: TopicNotFoundError; StorageError if two topics have a column of one name and several
        types.
    """
    store = options.store()
    fields = {field.name: field for field in TOPIC.columns}
    for topic in options.filters:
        store.topic_location(topic)
        for field in store.tables.table_at(f"topics/{topic}").log.columns:
            if field.name in fields and fields[field.name].type != field.type:
                problem = f"column {field.name} is {field.type}, and {fields[field.name].type} in"
                raise StorageError(f"topics/{topic}", f"{problem} another topic; read each alone")
            fields.setdefault(field.name, field)
    return pa.schema([pa.field(field.name, field.type) for field in fields.values()])


# --- slices ---------------------------------------------------------------------------------------


def sliced(ranges: Sequence[OffsetRange], count: int) -> list[list[OffsetRange]]:
    """Cut ranges into up to `count` slices of like size; each queue goes on in the next slice."""

    def cut(offsets: OffsetRange, number: int) -> int:
        return offsets.start + offsets.messages * number // count

    slices = (
        [offsets._replace(start=cut(offsets, n), end=cut(offsets, n + 1)) for offsets in ranges]
        for n in range(count)
    )
    filled = ([offsets for offsets in each if offsets.messages] for each in slices)
    return [each for each in filled if each]


class TopicSlice(InputPartition):
    """What one task reads of a topic: ranges of offsets, and the files that may hold them."""

    def __init__(
        self,
        place: TablePlace,
        columns: pa.Schema,
        ranges: Sequence[OffsetRange],
        files: Sequence[DataFile],
        options: ReadOptions,
    ) -> None:
        """Hold plain values, which Spark sends to an executor."""
        super().__init__(None)
        self.place, self.columns, self.options = place, columns, options
        self.ranges, self.files = list(ranges), list(files)


def slices_of(
    reader: TopicReader, ranges: Sequence[OffsetRange], options: ReadOptions
) -> list[TopicSlice]:
    """Plan the tasks that read ranges of offsets of one topic, in their order; 0 commits."""
    if not ranges:
        return []
    table = reader.table
    parts = [part for part in reader.parts if may_hold_any(part, ranges)]
    rows = sum(part.file.num_records for part in parts)
    size_bytes = sum(max(0, part.file.size_bytes) for part in parts)
    share = min(1.0, sum(each.messages for each in ranges) / max(rows, 1))
    count = min(math.ceil(size_bytes * share / SLICE_BYTES), SLICES_MAX)
    place, columns = TablePlace.of(table), table.log.columns
    return [
        TopicSlice(place, columns, each, _files_of(parts, each), options)
        for each in sliced(ranges, max(1, count))
    ]


def _files_of(parts: Iterable[FilePart], ranges: Sequence[OffsetRange]) -> list[DataFile]:
    return [part.file for part in parts if may_hold_any(part, ranges)]


# --- on an executor -------------------------------------------------------------------------------


def messages_of(task: TopicSlice, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield exactly the messages of a slice that pass the filter, each queue in its order.

    Memory holds the slice.

    Raises: MessagesExpiredError where a message is gone, unless the options allow it; StorageError.
    """
    rows = _in_order(sound_rows(_rows_of(task), _REQUIRED))
    if task.options.fails_on_data_loss:
        _check_whole(rows, task.ranges)
    rows = without_erased(rows)
    # The retry topic of a group has none.
    message_filter = task.options.filters.get(task.ranges[0].queue.topic)
    if message_filter is not None and not message_filter.is_all:
        rows = rows.filter(message_filter.mask(rows))
    shown_rows = _without_namespace(rows, task.options.namespace)
    columns = [
        shown_rows[field.name].cast(field.type)
        if field.name in shown_rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    size = max(1, min(BATCH_ROWS, BATCH_BYTES * rows.num_rows // max(rows.nbytes, 1)))
    yield from pa.table(columns, schema=schema).combine_chunks().to_batches(size)


def _rows_of(task: TopicSlice) -> pa.Table:
    """Read the rows of a slice, in no order; of large files only the row groups that hold some."""
    schema = replace(TOPIC, columns=task.columns)
    table = Table(task.place.location, schema, task.place.options)
    pieces = [task.columns.empty_table()]
    for file in task.files:
        try:
            pieces += _pieces_of(table, file, task)
        except (*STORAGE_ERRORS, pa.ArrowException) as error:
            # Its cause may hold a token, and would stand in Spark's log.
            raise failed_read(table.name, error, file.path) from None
    return pa.concat_tables(pieces)


def _pieces_of(table: Table, file: DataFile, task: TopicSlice) -> Iterator[pa.Table]:
    parts: Sequence[FilePart] = [FilePart(file, {}, {})]
    if file.size_bytes > LARGE_FILE_BYTES:
        parts = table.rows.row_groups(parts[0], POSITION_COLUMNS) or parts
    parts = [part for part in parts if may_hold_any(part, task.ranges)]
    for piece in table.rows.pieces_of_parts(parts, task.columns.names) if parts else ():
        yield piece.filter(pa.array(_is_in(piece, task.ranges)))


def _is_in(rows: pa.Table, ranges: Sequence[OffsetRange]) -> Flags:
    queue, offset = (integers(rows[name], NONE) for name in POSITION_COLUMNS)
    flags = np.zeros(rows.num_rows, dtype=bool)
    for each in ranges:
        flags |= (queue == each.queue.queue_id) & (offset >= each.start) & (offset < each.end)
    return flags


def _in_order(rows: pa.Table) -> pa.Table:
    """Sort by queue and offset; of rows that another program doubled the first one stays."""
    ordered = in_order(rows, *POSITION_COLUMNS)
    queue, offset = (integers(ordered[name], NONE) for name in POSITION_COLUMNS)
    return only(ordered, first_of_each(queue, offset))


def _check_whole(rows: pa.Table, ranges: Sequence[OffsetRange]) -> None:
    """Raise MessagesExpiredError for the first message of the ranges that is not among the rows."""
    queue, offset = (integers(rows[name], NONE) for name in POSITION_COLUMNS)
    for each in ranges:
        there = offset[queue == each.queue.queue_id]
        if len(there) < each.messages:
            # Each once and in order, so the first gap is where they run ahead.
            ahead = np.flatnonzero(there - each.start != np.arange(len(there)))
            first = each.start + (int(ahead[0]) if len(ahead) else len(there))
            after = there[there > first]
            missed = each.messages - len(there)
            raise MessagesExpiredError(
                each.queue.topic, each.queue.queue_id, next_offset=first, missed=missed,
                first_offset=int(after[0]) if len(after) else each.end, way_on=_WAY_ON,
            )  # fmt: skip


def _without_namespace(rows: pa.Table, namespace: str | None) -> pa.Table:
    if namespace is None:
        return rows
    for name in ("topic", "producer_group"):
        place, names = rows.column_names.index(name), whole(rows[name]).dictionary_encode()
        bare = [unwrapped(text, namespace) for text in python_values(names.dictionary)]
        column = pa.array(bare, pa.string()).take(names.indices)
        rows = rows.set_column(place, rows.schema.field(place), column)
    return rows


def may_hold_any(part: FilePart, ranges: Iterable[OffsetRange]) -> bool:
    """Tell whether a part of a file may hold a message of one of the ranges."""
    return any(may_hold(part, each.queue.queue_id, each.start, each.end) for each in ranges)
