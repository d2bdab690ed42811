"""The spark engine: Spark joins the plan to the half files by row number and copies the bodies."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from txmq.delta.files import DataFile
from txmq.delta.folder import inside, spark_location
from txmq.delta.parquet import NewFile, staging_folder, written_by_spark
from txmq.delta.table import Table
from txmq.errors import EnvironmentProblemError, PayloadMissingError, StorageError
from txmq.ground.clock import timestamp
from txmq.ground.columns import Integers, in_order
from txmq.publish.plan import COPIED, GIVEN, NumberedPlan, Plan, merged
from txmq.spark.settings import MICROSECONDS, change_setting, spark_writer
from txmq.store.schemas import TOPIC

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# The arrays of one Spark job have at most this many elements.
SPARK_PLAN_ROWS = 4_000_000


class SparkEngine:
    """Spark reads the half files and writes the topic's files; this process holds no body."""

    def __init__(self, spark: SparkSession | None) -> None:
        """Raise EnvironmentProblemError if there is no session, or none that can write topics."""
        if spark is None:
            problem = "payload_engine is spark, but the publisher has no Spark session"
            raise EnvironmentProblemError(problem, "Pass spark=, or set payload_engine to arrow.")
        self._spark = spark
        for name, value in MICROSECONDS.items():
            change_setting(spark, name, value, way_out="Set payload_engine to arrow or auto.")

    def write(self, topic: Table, plans: Iterable[NumberedPlan], now_ms: int) -> list[NewFile]:
        """Write the messages as PayloadEngine says; the bodies go through Spark alone."""
        return [file for large in _large(plans) for file in self._written(topic, *large, now_ms)]

    def _written(self, topic: Table, plan: Plan, offsets: Integers, now_ms: int) -> list[NewFile]:
        numbered = plan.rows.append_column("queue_offset", pa.array(offsets))
        half = plan.used_files()[0].table
        half_files = [source.file for source in plan.files]
        files: list[NewFile] = []
        for job in _spark_jobs(half_files, numbered):
            files += self._run(half, topic, job, now_ms)
        written = sum(file.num_records for file in files)
        if written != numbered.num_rows:
            problem = f"Spark wrote {written:,} of {numbered.num_rows:,} messages; trying again"
            raise PayloadMissingError(topic.name, problem)
        return files

    def _run(self, half: Table, topic: Table, job: _SparkJob, now_ms: int) -> list[NewFile]:
        folder = staging_folder()
        writer = spark_writer(self._copied(half, job, now_ms))
        # Java needs the memory that planning used; Arrow returns it only on request.
        pa.default_memory_pool().release_unused()
        with _as_storage_error(topic.name):
            writer.parquet(f"{spark_location(topic.location)}/{folder}")
        return written_by_spark(folder, topic.folder.filesystem, TOPIC.statistics_columns, {})

    def _copied(self, half: Table, job: _SparkJob, now_ms: int) -> DataFrame:
        """Join each file with its row of arrays; a row of the file takes its element of each."""
        import pyspark.sql.functions as F  # noqa: N812

        paths = [f"{spark_location(half.location)}/{inside(file.path)}" for file in job.files]
        source = self._spark.read.schema(_stored_schema()).parquet(*paths)
        places = {name: F.col(f"_metadata.{name}") for name in ("file_name", "row_index")}
        arrays = F.broadcast(self._spark.createDataFrame(job.arrays))
        element = (F.col("row_index") - F.col("first")).cast("int")
        given = {name: F.get(name, element) for name in GIVEN}
        rows = source.withColumns(places).join(arrays, "file_name").withColumns(given)
        return rows.where(F.col("queue_offset").isNotNull()).select(_topic_columns(F, now_ms))


def _large(plans: Iterable[NumberedPlan]) -> Iterator[NumberedPlan]:
    """Put plans together until they are worth a job."""
    waiting: list[NumberedPlan] = []
    for plan in plans:
        waiting.append(plan)
        if sum(len(each.offsets) for each in waiting) >= SPARK_PLAN_ROWS:
            yield _together(waiting)
            waiting = []
    if waiting:
        yield _together(waiting)


def _together(plans: Sequence[NumberedPlan]) -> NumberedPlan:
    offsets = np.concatenate([each.offsets for each in plans])
    return NumberedPlan(merged([each.plan for each in plans]), offsets)


@dataclass(frozen=True, slots=True)
class _SparkJob:
    """The files of one job; `arrays` has one row per file: its name, its first row, the arrays."""

    files: Sequence[DataFile]
    arrays: pa.Table


def _spark_jobs(files: Sequence[DataFile], rows: pa.Table) -> Iterator[_SparkJob]:
    """Cut the plan into jobs whose arrays are small enough for a broadcast."""
    lengths = [file.num_records for file in files]
    ends = np.cumsum(lengths)
    places = (ends - lengths)[rows["file"].to_numpy()] + rows["row"].to_numpy()
    for layer in _layers(places):
        for first in range(0, int(ends[-1]), SPARK_PLAN_ROWS):
            chosen = layer[(places[layer] >= first) & (places[layer] < first + SPARK_PLAN_ROWS)]
            if len(chosen):
                yield _spark_job(files, rows.take(pa.array(chosen)))


def _layers(places: Integers) -> Iterator[Integers]:
    """Split the row numbers of the plan into sets without a double place.

    A message of two discarded lives becomes visible twice, so its place is in the plan twice.
    """
    remaining = np.arange(len(places))
    while len(remaining):
        _, first = np.unique(places[remaining], return_index=True)
        yield remaining[first]
        remaining = np.delete(remaining, first)


def _spark_job(files: Sequence[DataFile], rows: pa.Table) -> _SparkJob:
    """Build arrays from the first to the last planned row of each file, null between."""
    ordered = in_order(rows, "file", "row").combine_chunks()
    used, begins = np.unique(ordered["file"].to_numpy(), return_index=True)
    rows_by_file = [ordered.slice(*span) for span in _spans(begins, ordered.num_rows)]
    used_files = [files[number] for number in used]
    names = [file.path.rpartition("/")[2] for file in used_files]
    firsts = pa.array([of_file["row"][0].as_py() for of_file in rows_by_file], pa.int64())
    values = [_with_gaps(of_file) for of_file in rows_by_file]
    columns = {name: _lists([of_file[name] for of_file in values]) for name in GIVEN}
    return _SparkJob(used_files, pa.table({"file_name": names, "first": firsts, **columns}))


def _spans(begins: Integers, length: int) -> Iterator[tuple[int, int]]:
    """Return the begin and the length of each span."""
    for begin, end in pairwise([*begins.tolist(), length]):
        yield begin, end - begin


def _with_gaps(rows: pa.Table) -> pa.Table:
    """Fill the GIVEN columns of one file with null rows for rows that are not in the plan."""
    places = rows["row"].to_numpy() - rows["row"][0].as_py()
    source = np.full(int(places[-1]) + 1, -1, dtype=np.int64)
    source[places] = np.arange(len(places))
    return rows.select(list(GIVEN)).take(pa.array(source, mask=source < 0))


def _lists(columns: Sequence[pa.ChunkedArray]) -> pa.ListArray:
    """Make one list of the values of each column."""
    ends = np.cumsum([0, *(len(column) for column in columns)])
    values = pa.chunked_array([chunk for column in columns for chunk in column.chunks])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values.combine_chunks())


@contextmanager
def _as_storage_error(table: str) -> Iterator[None]:
    """Turn the failure of a job into StorageError, which parks one topic and ends no query."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        # The text of an error may quote a body.
        condition = error.getCondition() if isinstance(error, PySparkException) else None
        kind = ", ".join(filter(None, [type(error).__name__, condition]))
        problem = f"Spark could not write it ({kind})"
        raise StorageError(table, problem) from error


def _stored_schema() -> str:
    kinds = {"real_queue_id": "int", "body": "binary", "properties": "map<string,string>",
             "born_timestamp": "timestamp", "sequence": "bigint"}  # fmt: skip
    return ", ".join(f"{name} {kinds.get(name, 'string')}" for name in COPIED.values())


def _topic_columns(functions: Any, now_ms: int) -> list[Any]:
    now = functions.lit(timestamp(now_ms))
    return [
        now.alias(name)
        if name == "store_timestamp"
        else functions.col(COPIED.get(name, name)).alias(name)
        for name in TOPIC.columns.names
    ]
