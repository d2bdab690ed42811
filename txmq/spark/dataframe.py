"""Sends a DataFrame in a transaction: tasks write files of halves, and one commit adds them.

A task checks the rows of its partition and writes them by Arrow. Where no executor can, this
process does the same with rows that Spark brings to it, a partition after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.file_rows import BATCH_BYTES, in_row_groups
from txmq.delta.files import as_type
from txmq.delta.parquet import NewFile, write_files
from txmq.delta.table import Table
from txmq.errors import (
    EnvironmentProblemError,
    InvalidMessageError,
    SchemaMismatchError,
    StorageError,
)
from txmq.ground.clock import elapsed_ms, timestamp
from txmq.message.body_schema import BodySchema
from txmq.producer.frame_rows import PLACE, ROW_COLUMNS, TEXTS, FrameRows
from txmq.producer.routing import SendLimits
from txmq.publish.plan import BATCH_ROWS
from txmq.spark.executors import (
    OUTCOMES,
    TablePlace,
    as_batch,
    as_own_error,
    bounded_batches,
    check_executors,
    file_outcome,
    files_of,
    written_files,
)
from txmq.spark.session import arrow_schema_of
from txmq.store.half import HalfOrigin, store_date
from txmq.store.schemas import HALF

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

_COLUMN_TYPES = {
    "body": ("binary", "string"),
    "tags": ("string",),
    "keys": ("string",),
    "sharding_key": ("string",),
    "properties": ("map<string,string>",),
    "delay_s": ("int", "bigint"),
    "deliver_timestamp": ("timestamp",),
}

# Those of a head alone, and those that say where the file lies.
_NOT_IN_FILE = {
    "message_count", "check_immunity_time_s", "client_id", *HALF.partition_by,
}  # fmt: skip
_FILE = pa.schema([part for part in HALF.columns if part.name not in _NOT_IN_FILE])
# So long executors are believed to lack what they lacked: to look takes a job.
BELIEVED_MS = 600_000
_ROW_GROUP = (BATCH_ROWS, BATCH_BYTES)
# Beside a body and its properties.
_OTHER_BYTES = 1024


class DataFrameSend:
    """A checked DataFrame and its topic; it is not computed yet."""

    def __init__(
        self, dataframe: DataFrame, topic: str, body_schema: BodySchema | None = None
    ) -> None:
        """Check the columns. Raises: SchemaMismatchError with every difference at once."""
        self.topic = topic
        self.body_schema = body_schema
        self.dataframe = dataframe
        _check_dataframe(dataframe, body_schema)

    def write(
        self, half: Table, origin: HalfOrigin, first_sequence: int, limits: SendLimits
    ) -> list[NewFile]:
        """Compute the DataFrame once and write its halves beside the half log; 0 commits.

        Raises: InvalidMessageError with the number of rows that cannot be messages;
            InvalidBodyError (a kind of it) if bodies do not have the topic's schema. The files are
            removed then.
        """
        if self.body_schema is not None:
            # A missing package raises its own error here, and not one of a Spark worker.
            self.body_schema.problem(b"")
        halves = FrameHalves(
            TablePlace.of(half), self.topic, origin, limits, self.body_schema, first_sequence
        )
        with ExitStack() as settings:
            try:
                self._prepare_executors(half, limits, settings)
            except (EnvironmentProblemError, StorageError) as error:
                logger.warning("this process writes the halves of a DataFrame itself: %s", error)
                return self._written_here(half, halves)
            tasks = self._placed().mapInArrow(partial(_halves_written, halves), OUTCOMES)
            with as_own_error(half.name, are_rows_of_users=True):
                return written_files(tasks, half.folder)

    def _prepare_executors(self, half: Table, limits: SendLimits, settings: ExitStack) -> None:
        spark = self.dataframe.sparkSession
        check_executors(spark, half, believed_ms=BELIEVED_MS)
        row_bytes = limits.max_message_size_bytes + limits.max_properties_size_bytes + _OTHER_BYTES
        settings.enter_context(bounded_batches(spark, row_bytes))

    def _placed(self) -> DataFrame:
        import pyspark.sql.functions as F  # noqa: N812

        return self.dataframe.withColumn(PLACE, F.monotonically_increasing_id())

    def _written_here(self, half: Table, halves: FrameHalves) -> list[NewFile]:
        made_ms, failures = elapsed_ms(), list[Exception]()

        def batches() -> Iterator[pa.RecordBatch]:
            try:
                yield from _batches(self._placed())
            except Exception as error:
                failures.append(error)
                raise

        outcome = halves.outcome(batches())
        # What fails in the rows of a user is the user's error.
        for error in failures:
            raise error
        return files_of([outcome], half.folder, made_ms)


def _batches(dataframe: DataFrame) -> Iterator[pa.RecordBatch]:
    """Bring the rows here; memory holds one partition, as `toLocalIterator` does."""
    import pyspark.sql.functions as F  # noqa: N812

    columns = [_as_plain(F, name) for name in dataframe.columns]
    others = arrow_schema_of(dataframe.schema)
    kinds = pa.schema(
        [(name, _PLAIN_TYPES.get(name) or others.field(name).type) for name in dataframe.columns]
    )
    rows = dataframe.select(*columns).toLocalIterator()
    while some := [row.asDict() for row in islice(rows, _ROWS_HERE)]:
        yield pa.RecordBatch.from_pylist(some, schema=kinds)


_ROWS_HERE = 32
_OCTETS = pa.binary()
_PLAIN_TYPES = {
    PLACE: pa.int64(), "body": _OCTETS, **dict.fromkeys(TEXTS, _OCTETS),
    "properties": pa.map_(_OCTETS, _OCTETS), "delay_s": pa.int64(),
    "deliver_timestamp": pa.int64(),
}  # fmt: skip


def _as_plain(functions: Any, name: str) -> Any:
    """Return a column whose values come to Python as they are: bytes, whole numbers."""
    column = functions.col(name)
    if name == "properties":
        # Python would have no key that is a bytearray.
        entries = functions.map_entries(column)
        column = functions.transform(
            entries,
            lambda pair: functions.struct(
                pair["key"].cast("binary").alias("key"), pair["value"].cast("binary").alias("value")
            ),
        )
    elif name in (*TEXTS, "body"):
        column = column.cast("binary")
    elif name == "deliver_timestamp":
        column = functions.unix_micros(column)
    return column.alias(name)


# --- files of halves ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class FrameHalves:
    """What all halves of a DataFrame have in common, as a task needs it."""

    half: TablePlace
    topic: str
    origin: HalfOrigin
    limits: SendLimits
    body_schema: BodySchema | None
    first_sequence: int

    def outcome(self, batches: Iterable[pa.RecordBatch]) -> str:
        """Write the halves of some rows; return what `files_of` reads.

        Args:
            batches: the columns of the DataFrame and PLACE.

        Raises: as `file_outcome`.
        """
        rows = FrameRows(self.limits, self.body_schema, self.first_sequence)
        return file_outcome(HALF.name, partial(self._files, rows, batches), rows.refusals)

    def _files(self, rows: FrameRows, batches: Iterable[pa.RecordBatch]) -> list[NewFile]:
        halves = (half for half in map(rows.halves, batches) if half is not None)
        tables = in_row_groups(
            halves, self._table, lambda batch: (batch.num_rows, batch.nbytes), _ROW_GROUP
        )
        filesystem, origin = self.half.table().folder.filesystem, self.origin
        # As Delta writes them.
        partition: dict[str, str | None] = {
            "queue_id": str(origin.queue_id),
            "store_date": store_date(origin.transaction_id).isoformat(),
        }
        return write_files(tables, _FILE, filesystem, HALF.statistics_columns, partition)

    def _table(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        rows, origin = pa.Table.from_batches(batches), self.origin
        sequence = rows["sequence"].cast(pa.string())
        values = {
            "transaction_id": origin.transaction_id,
            "producer_group": origin.producer_group,
            "real_topic": self.topic,
            "born_timestamp": timestamp(origin.born_timestamp_ms),
            "ordinary": origin.ordinary,
            "message_id": pc.binary_join_element_wise(origin.transaction_id, sequence, ":"),
            **{name: rows[name] for name in ROW_COLUMNS},
        }
        columns = [_column(values[part.name], part.type, rows.num_rows) for part in _FILE]
        return pa.table(columns, schema=_FILE)


def _column(value: Any, kind: pa.DataType, count: int) -> Any:
    """Return a column of one type, of one value for all rows or of one for each."""
    if isinstance(value, pa.ChunkedArray):
        return as_type(value, kind)
    return pa.repeat(pa.scalar(value, kind), count)


def _halves_written(
    halves: FrameHalves, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the halves of a partition on an executor."""
    yield as_batch(halves.outcome(batches))


# --- columns --------------------------------------------------------------------------------------


def _check_dataframe(dataframe: Any, schema: BodySchema | None) -> None:
    # Spark Connect has a DataFrame class of its own, so check attributes and not the class.
    if not hasattr(dataframe, "isStreaming") or not hasattr(dataframe, "dtypes"):
        problem = f"must be a Spark DataFrame, not {type(dataframe).__name__}"
        raise InvalidMessageError("dataframe", problem)
    if dataframe.isStreaming:
        problem = (
            "it is a stream; write it by format('txmq'), or call send_dataframe in foreachBatch"
        )
        raise SchemaMismatchError([problem])
    check_columns(dataframe.dtypes, schema)


def check_columns(dtypes: Sequence[tuple[str, str]], schema: BodySchema | None) -> None:
    """Raise SchemaMismatchError with every difference from the columns of messages.

    Args:
        dtypes: name and type of each column, as `DataFrame.dtypes` has them.
        schema: of the bodies of a typed topic; without a column `body` the columns are its fields.
    """
    types = dict(dtypes)
    faults = [
        f"column {name!r} is {kind}, not {' or '.join(_COLUMN_TYPES[name])}"
        for name, kind in dtypes
        if kind not in _COLUMN_TYPES.get(name, (kind,))
    ]
    if len(types) != len(dtypes):
        faults.append("a column name appears twice")
    others = [name for name in types if name not in _COLUMN_TYPES]
    if "body" in types:
        faults += [f"column {name!r} is not one of {', '.join(_COLUMN_TYPES)}" for name in others]
    elif not others:
        faults.append("column body is missing")
    elif schema is not None:
        faults += _field_faults(others, schema)
    if PLACE in types:
        faults.append(f"column {PLACE!r} must have another name")
    if faults:
        raise SchemaMismatchError(faults)


def _field_faults(columns: Sequence[str], schema: BodySchema) -> Iterator[str]:
    fields = {field.name: field for field in schema.record.fields}
    for name in columns:
        if name not in fields:
            yield f"column {name!r} is not a field of the topic's schema: {', '.join(fields)}"
    for name, field in fields.items():
        if name not in columns and not field.may_be_missing:
            yield f"column {name!r} is missing, which the topic's schema needs"
