"""Sends a DataFrame in a transaction: executors write files of halves, one commit adds them.

Spark makes and checks the rows. Tasks write them by Arrow; where no task can, as on serverless
compute, Spark's own writer of Parquet does, and this process opens the footer of each file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial, reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.file_rows import BATCH_BYTES, in_row_groups
from txmq.delta.files import as_type
from txmq.delta.folder import spark_location
from txmq.delta.log_files import delete_files
from txmq.delta.parquet import NewFile, staging_folder, write_files, written_by_spark
from txmq.delta.table import Table
from txmq.errors import (
    EnvironmentProblemError,
    InvalidBodyError,
    InvalidMessageError,
    SchemaMismatchError,
    StorageError,
)
from txmq.ground.clock import timestamp
from txmq.message.body_schema import BodySchema
from txmq.message.message import MAX_FIELD_BYTES, RESERVED_PROPERTIES
from txmq.producer.routing import SendLimits
from txmq.publish.plan import BATCH_ROWS
from txmq.spark.executors import (
    OUTCOMES,
    TablePlace,
    as_own_error,
    check_batches,
    check_executors,
    file_outcome,
    written_files,
)
from txmq.spark.settings import microsecond_timestamps, spark_writer
from txmq.store.half import HalfOrigin, store_date
from txmq.store.schemas import HALF

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

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

# The columns of a half that each row has for itself.
_OF_A_ROW = (
    "sequence", "real_queue_id", "tags", "keys", "body", "properties", "sharding_key", "delay_s",
    "deliver_timestamp",
)  # fmt: skip
# Those of a head alone, and those that say where the file lies.
_NOT_IN_FILE = {
    "message_count", "check_immunity_time_s", "client_id", *HALF.partition_by,
}  # fmt: skip
_FILE = pa.schema([part for part in HALF.columns if part.name not in _NOT_IN_FILE])
# So long executors are believed to lack what they lacked: to look takes a job.
BELIEVED_MS = 600_000
_ROW_GROUP = (BATCH_ROWS, BATCH_BYTES)
_TEXTS = ("tags", "keys", "sharding_key")
WRONG_BODY = "body without the schema of its topic"
_IS_WRONG = "body_is_wrong"
_FIRST = "first "
_ROWS_OF_PARTITION = 1 << 33
# Python has no earlier time; in a zone east of UTC such a row may look like year 1.
_YEAR_1_US = -62_135_596_800_000_000
_CONTROL_CHARACTERS = r"[\x00-\x1f\x7f]"


class DataFrameSend:
    """A checked DataFrame and its topic; it is not computed yet."""

    def __init__(
        self, dataframe: DataFrame, topic: str, body_schema: BodySchema | None = None
    ) -> None:
        """Check the columns. Raises: SchemaMismatchError with every difference at once.

        With a `body_schema`, Python code on Spark's workers checks the bodies in `write`.
        """
        self.topic = topic
        self.body_schema = body_schema
        self.dataframe = dataframe
        _check_dataframe(dataframe)

    def write(
        self, half: Table, origin: HalfOrigin, first_sequence: int, limits: SendLimits
    ) -> list[NewFile]:
        """Compute the DataFrame once and write its halves beside the half log; 0 commits.

        Raises: InvalidMessageError with the number of rows that cannot be messages;
            InvalidBodyError (a kind of it) if bodies do not have the topic's schema. The files are
            removed then.
        """
        import pyspark.sql.functions as F  # noqa: N812
        from pyspark.sql import Observation

        observation = Observation()
        rows = self._half_rows(origin, first_sequence, limits.queue_count)
        problems = _problems(F, limits, self.dataframe.columns)
        if self.body_schema is not None:
            rows = rows.withColumn(_IS_WRONG, _is_wrong(F, self.body_schema)("body"))
            problems[WRONG_BODY] = F.col(_IS_WRONG)
        place = F.col("sequence") - F.lit(first_sequence)
        metrics = [*_counts(F, problems), *_first_places(F, problems, place)]
        observed = rows.observe(observation, *metrics).drop(_IS_WRONG)
        files = self._written(observed, half, origin)
        try:
            _refuse(observation.get)
        except InvalidMessageError:
            # What a producer may not delete is removed by maintenance.
            with suppress(OSError):
                delete_files(half.folder, [file.path for file in files])
            raise
        return files

    def _written(self, rows: DataFrame, half: Table, origin: HalfOrigin) -> list[NewFile]:
        """Let tasks write the rows by Arrow, or Spark itself where no task can."""
        try:
            check_batches(rows.sparkSession)
            check_executors(rows.sparkSession, half, believed_ms=BELIEVED_MS)
        except (EnvironmentProblemError, StorageError) as error:
            logger.info("Spark's own writer writes the halves: %s", error)
            return _written_by_spark(rows, half, partition_of(origin))
        halves = _Halves(TablePlace.of(half), self.topic, origin, partition_of(origin))
        tasks = rows.select(*_OF_A_ROW).mapInArrow(partial(_halves_written, halves), OUTCOMES)
        with as_own_error(half.name, are_rows_of_users=True):
            return written_files(tasks, half.folder)

    def _half_rows(self, origin: HalfOrigin, first_sequence: int, queue_count: int) -> DataFrame:
        import pyspark.sql.functions as F  # noqa: N812

        numbered = self.dataframe.withColumn(
            "sequence", F.monotonically_increasing_id() + F.lit(first_sequence)
        )
        columns = _half_columns(F, self, origin, queue_count)
        return numbered.select([column.alias(name) for name, column in columns.items()])


def _written_by_spark(
    rows: DataFrame, half: Table, partition: Mapping[str, str | None]
) -> list[NewFile]:
    """Write the rows into a folder of the half log by Spark's writer of Parquet."""
    folder = staging_folder()
    with microsecond_timestamps(rows.sparkSession):
        spark_writer(rows).parquet(f"{spark_location(half.location)}/{folder}")
    return written_by_spark(folder, half.folder.filesystem, HALF.statistics_columns, partition)


@dataclass(frozen=True, slots=True, repr=False)
class _Halves:
    """What all halves of a DataFrame have in common, as a task needs it."""

    half: TablePlace
    topic: str
    origin: HalfOrigin
    partition: Mapping[str, str | None]

    def files(self, batches: Iterable[pa.RecordBatch]) -> list[NewFile]:
        tables = in_row_groups(
            batches, self._rows, lambda batch: (batch.num_rows, batch.nbytes), _ROW_GROUP
        )
        filesystem = self.half.table().folder.filesystem
        return write_files(tables, _FILE, filesystem, HALF.statistics_columns, self.partition)

    def _rows(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        rows = pa.Table.from_batches(batches)
        sequence = rows["sequence"].cast(pa.string())
        message_id = pc.binary_join_element_wise(self.origin.transaction_id, sequence, ":")
        values = {
            **_of_all_rows(self.origin, self.topic),
            "message_id": message_id,
            **{name: rows[name] for name in _OF_A_ROW},
        }
        columns = [_column(values[part.name], part.type, rows.num_rows) for part in _FILE]
        return pa.table(columns, schema=_FILE)


def _column(value: Any, kind: pa.DataType, count: int) -> Any:
    """Return a column of one type, of one value for all rows or of one for each."""
    if isinstance(value, pa.ChunkedArray):
        return as_type(value, kind)
    return pa.repeat(pa.scalar(value, kind), count)


def _halves_written(halves: _Halves, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the halves of a partition on an executor."""
    yield file_outcome(HALF.name, partial(halves.files, batches))


def partition_of(origin: HalfOrigin) -> dict[str, str | None]:
    """Return the partition values of the half log for this transaction, as Delta writes them."""
    return {
        "queue_id": str(origin.queue_id),
        "store_date": store_date(origin.transaction_id).isoformat(),
    }


def _of_all_rows(origin: HalfOrigin, topic: str) -> dict[str, Any]:
    """Return the values that all halves of a DataFrame share, whoever writes them."""
    return {
        "transaction_id": origin.transaction_id,
        "producer_group": origin.producer_group,
        "real_topic": topic,
        "born_timestamp": timestamp(origin.born_timestamp_ms),
        "ordinary": False,
    }


def _half_columns(
    functions: Any, send: DataFrameSend, origin: HalfOrigin, queue_count: int
) -> dict[str, Column]:
    given = set(send.dataframe.columns)

    def optional(name: str, kind: str) -> Any:
        return (functions.col(name) if name in given else functions.lit(None)).cast(kind)

    sequence = functions.col("sequence")
    key = optional("sharding_key", "string")
    by_key = functions.crc32(key.cast("binary")) % queue_count
    of_all = _of_all_rows(origin, send.topic)
    return {
        **{name: functions.lit(value) for name, value in of_all.items()},
        "sequence": sequence,
        "message_id": functions.concat(functions.lit(origin.transaction_id + ":"), sequence),
        "real_queue_id": functions.coalesce(by_key, sequence % queue_count).cast("int"),
        "tags": optional("tags", "string"),
        "keys": optional("keys", "string"),
        "body": functions.col("body").cast("binary"),
        "properties": functions.coalesce(
            optional("properties", "map<string,string>"),
            functions.create_map().cast("map<string,string>"),
        ),
        "sharding_key": key,
        # A delay of 0 s is no delay, as in a Message.
        "delay_s": functions.nullif(optional("delay_s", "bigint"), functions.lit(0)),
        "deliver_timestamp": optional("deliver_timestamp", "timestamp"),
    }


def _check_dataframe(dataframe: Any) -> None:
    # Spark Connect has a DataFrame class of its own, so check attributes and not the class.
    if not hasattr(dataframe, "isStreaming") or not hasattr(dataframe, "dtypes"):
        problem = f"must be a Spark DataFrame, not {type(dataframe).__name__}"
        raise InvalidMessageError("dataframe", problem)
    faults = _schema_faults(dataframe.dtypes)
    if dataframe.isStreaming:
        faults.append("it is a stream; call send_dataframe inside foreachBatch")
    if faults:
        raise SchemaMismatchError(faults)


def _schema_faults(dtypes: Sequence[tuple[str, str]]) -> list[str]:
    types = dict(dtypes)
    faults = [] if "body" in types else ["column body is missing"]
    if len(types) != len(dtypes):
        faults.append("a column name appears twice")
    for name, kind in dtypes:
        if name not in _COLUMN_TYPES:
            faults.append(f"column {name!r} is not one of {', '.join(_COLUMN_TYPES)}")
        elif kind not in _COLUMN_TYPES[name]:
            faults.append(f"column {name!r} is {kind}, not {' or '.join(_COLUMN_TYPES[name])}")
    return faults


def _problems(functions: Any, limits: SendLimits, given: Sequence[str]) -> dict[str, Column]:
    """Describe and build the conditions under which a row cannot be a message."""
    F = functions  # noqa: N806
    texts = [name for name in _TEXTS if name in given]
    checks = _body_problems(F, limits)
    if texts:
        checks |= _text_problems(F, texts)
    if "properties" in given:
        checks |= _property_problems(F)
    if {"delay_s", "deliver_timestamp"} & set(given):
        checks |= _delay_problems(F, limits)
    if texts or "properties" in given:
        checks |= _size_problems(F, limits, texts, with_properties="properties" in given)
    return checks


def _counts(functions: Any, problems: Mapping[str, Column]) -> list[Column]:
    """Build columns that count the rows with each problem while Spark writes them."""
    F = functions  # noqa: N806
    return [
        F.coalesce(F.sum(F.when(problem, 1).otherwise(0)), F.lit(0)).alias(name)
        for name, problem in problems.items()
    ]


def _first_places(functions: Any, problems: Mapping[str, Column], place: Column) -> list[Column]:
    """Build columns with the place of the first row with each problem, by Spark's numbers."""
    F = functions  # noqa: N806
    return [
        F.min(F.when(problem, place)).alias(f"{_FIRST}{name}") for name, problem in problems.items()
    ]


def _is_wrong(functions: Any, schema: BodySchema) -> Any:
    """Make a Spark function that returns true for a body without the schema."""
    # Call it here once: a missing package then raises its own error, not one of a Spark worker.
    schema.problem(b"")
    # No type hints: with them Spark would make a pandas function.
    return functions.udf(
        lambda body: body is not None and schema.problem(bytes(body)) is not None, "boolean"
    )


def _body_problems(functions: Any, limits: SendLimits) -> dict[str, Column]:
    too_large = functions.octet_length("body") > limits.max_message_size_bytes
    return {
        "body is null": functions.col("body").isNull(),
        f"body above {limits.max_message_size_bytes:,} bytes": too_large,
    }


def _text_problems(functions: Any, texts: Sequence[str]) -> dict[str, Column]:
    F = functions  # noqa: N806
    lengths = [F.coalesce(F.length(F.trim(name)), F.lit(1)) for name in texts]
    problems = {
        "control characters in a text": F.concat_ws("", *texts).rlike(_CONTROL_CHARACTERS),
        f"keys, tags or sharding_key above {MAX_FIELD_BYTES:,} bytes": (
            F.greatest(F.lit(0), *(_size_bytes(F, name) for name in texts)) > MAX_FIELD_BYTES
        ),
        "keys, tags or sharding_key blank": F.least(F.lit(1), *lengths) == 0,
        "keys, tags or sharding_key not valid UTF-8": _is_no_text(F, map(F.col, texts)),
    }
    if "tags" in texts:
        problems["tags with |"] = F.col("tags").contains("|")
    return problems


def _delay_problems(functions: Any, limits: SendLimits) -> dict[str, Column]:
    delay_s, due = functions.col("delay_s"), functions.col("deliver_timestamp")
    max_s = limits.timer_max_delay_s
    latest = functions.lit(timestamp(limits.now_ms) + timedelta(seconds=max_s))
    earliest = functions.timestamp_micros(functions.lit(_YEAR_1_US))
    return {
        "deliver_timestamp before year 1 in UTC": due < earliest,
        "delay_s below 0": delay_s < 0,
        "both delay_s and deliver_timestamp": delay_s.isNotNull() & due.isNotNull(),
        f"a delay above timer_max_delay_s ({max_s:,.0f} s)": (
            functions.coalesce(delay_s > max_s, functions.lit(False))  # noqa: FBT003
            | functions.coalesce(due > latest, functions.lit(False))  # noqa: FBT003
        ),
    }


def _is_no_text(functions: Any, texts: Iterable[Column]) -> Any:
    """Tell whether one of these is not valid UTF-8; a cast from binary does not look."""
    F = functions  # noqa: N806
    is_valid = [F.coalesce(F.is_valid_utf8(text), F.lit(True)) for text in texts]  # noqa: FBT003
    return ~reduce(and_, is_valid)


def _property_problems(functions: Any) -> dict[str, Column]:
    F = functions  # noqa: N806
    entries = F.map_entries("properties")
    together = F.transform(entries, lambda pair: F.concat(pair["key"], pair["value"]))
    return {
        "a property without a value": F.exists(entries, lambda pair: pair["value"].isNull()),
        "a property that is blank or reserved": F.exists(
            entries, lambda pair: _is_refused(F, pair["key"], pair["value"])
        ),
        "a property not valid UTF-8": F.exists(
            entries, lambda pair: _is_no_text(F, (pair["key"], pair["value"]))
        ),
        "control characters in a property": F.concat_ws("", together).rlike(_CONTROL_CHARACTERS),
    }


def _size_problems(
    functions: Any, limits: SendLimits, texts: Sequence[str], *, with_properties: bool
) -> dict[str, Column]:
    F = functions  # noqa: N806
    size = sum((_size_bytes(F, name) for name in texts), F.lit(0))
    if with_properties:
        size = size + F.aggregate(
            F.map_entries("properties"),
            F.lit(0),
            lambda total, pair: (
                total
                + F.octet_length(pair["key"])
                + F.coalesce(F.octet_length(pair["value"]), F.lit(0))
            ),
        )
    above = f"properties above {limits.max_properties_size_bytes:,} bytes"
    return {above: size > limits.max_properties_size_bytes}


def _size_bytes(functions: Any, name: str) -> Column:
    return functions.coalesce(functions.octet_length(name), functions.lit(0))  # type: ignore[no-any-return]


def _is_refused(functions: Any, name: Column, value: Column) -> Any:
    """Tell whether a property is refused as in a Message: blank, or a name that txmq reserves."""
    F = functions  # noqa: N806
    is_blank = (F.length(F.trim(name)) == 0) | (F.length(F.trim(value)) == 0)
    is_reserved = name.isin(*RESERVED_PROPERTIES) | F.lower(name).startswith("__txmq")
    return F.coalesce(is_blank | is_reserved, F.lit(False))  # noqa: FBT003


def _refuse(metrics: Mapping[str, int | None]) -> None:
    counts = {name: count for name, count in metrics.items() if not name.startswith(_FIRST)}
    problems = [
        f"{name}: {count:,} rows, first {_shown_place(metrics[f'{_FIRST}{name}'] or 0)}"
        for name, count in counts.items()
        if count
    ]
    if problems:
        kind = InvalidBodyError if counts.get(WRONG_BODY) else InvalidMessageError
        raise kind("dataframe", "has rows that cannot be sent; " + "; ".join(problems))


def _shown_place(place: int) -> str:
    """Name the place of a row: monotonically_increasing_id has the partition in its high bits."""
    return f"row {place % _ROWS_OF_PARTITION:,} of partition {place // _ROWS_OF_PARTITION:,}"
