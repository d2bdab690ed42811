"""The spark engine: Spark joins the plan to the half files by row number and copies the bodies."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.clock import timestamp
from txmq.columns import Integers
from txmq.delta.files import DataFile
from txmq.delta.parquet import NewFile, spark_writer, staging_folder, written_by_spark
from txmq.delta.schemas import HALF, TOPIC
from txmq.delta.storage import Table
from txmq.errors import EnvironmentProblemError, PayloadMissingError, StorageError
from txmq.publish.plan import COPIED, GIVEN, Plan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The arrays of one job of the spark engine have at most this many places.
SPARK_PLAN_ROWS = 4_000_000


def suits_spark(plan: Plan) -> bool:
    """Whether the spark engine can copy it: files of the half log, and no partitions to write."""
    is_scheduled = pc.any(pc.is_valid(plan.rows["deliver_timestamp"]), min_count=0).as_py()
    return not is_scheduled and all(one.table.schema.name == HALF.name for one in plan.used_files())


class SparkEngine:
    """Spark reads the half files and writes the topic's files; the driver holds no body."""

    def __init__(self, spark: SparkSession | None) -> None:
        """Raise at once where there is no session."""
        if spark is None:
            what = "payload_engine is spark, but the publisher has no Spark session"
            raise EnvironmentProblemError(what, "Pass spark=, or set payload_engine to arrow.")
        self._spark = spark
        # Spark's default, INT96, is read by few engines.
        spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")

    def write(self, topic: Table, plan: Plan, offsets: pa.Array, now_ms: int) -> list[NewFile]:
        """See PayloadEngine."""
        numbered = plan.rows.append_column("queue_offset", offsets)
        half = plan.files[0].table
        halves = [each.file for each in plan.files]
        files: list[NewFile] = []
        for part in _spark_parts(halves, numbered):
            files += self._write_part(half, topic, part, now_ms)
        written = sum(file.num_records for file in files)
        if written != numbered.num_rows:
            problem = f"Spark wrote {written:,} of {numbered.num_rows:,} messages; trying again"
            raise PayloadMissingError(topic.schema.name, problem)
        return files

    def _write_part(
        self, half: Table, topic: Table, part: _SparkPart, now_ms: int
    ) -> list[NewFile]:
        folder = staging_folder()
        writer = spark_writer(self._copied(half, part, now_ms))
        # Java needs what planning took, and Arrow gives back only what it is asked for.
        pa.default_memory_pool().release_unused()
        with _spark_failures_told(topic.schema.name):
            writer.parquet(f"{topic.location}/{folder}")
        return written_by_spark(folder, topic.filesystem, TOPIC.statistics_columns, {})

    def _copied(self, half: Table, part: _SparkPart, now_ms: int) -> DataFrame:
        """A file meets its one row of arrays, and each of its rows its place in them."""
        import pyspark.sql.functions as F  # noqa: N812

        paths = [f"{half.location}/{file.path}" for file in part.files]
        source = self._spark.read.schema(_stored_schema()).parquet(*paths)
        places = {name: F.col(f"_metadata.{name}") for name in ("file_name", "row_index")}
        given = F.broadcast(self._spark.createDataFrame(part.given))
        place = (F.col("row_index") - F.col("first")).cast("int")
        found = {name: F.get(name, place) for name in GIVEN}
        rows = source.withColumns(places).join(given, "file_name").withColumns(found)
        return rows.where(F.col("queue_offset").isNotNull()).select(_topic_columns(F, now_ms))


@dataclass(frozen=True, slots=True)
class _SparkPart:
    """Files for one job; `given` has one row for each: its name, the first place, the arrays."""

    files: Sequence[DataFile]
    given: pa.Table


def _spark_parts(files: Sequence[DataFile], rows: pa.Table) -> Iterator[_SparkPart]:
    """The plan as jobs whose arrays are small enough for a broadcast."""
    lengths = [file.num_records for file in files]
    ends = np.cumsum(lengths)
    places = (ends - lengths)[rows["file"].to_numpy()] + rows["row"].to_numpy()
    for layer in _layers(places):
        for first in range(0, int(ends[-1]), SPARK_PLAN_ROWS):
            chosen = layer[(places[layer] >= first) & (places[layer] < first + SPARK_PLAN_ROWS)]
            if len(chosen):
                yield _spark_part(files, rows.take(pa.array(chosen)))


def _layers(places: Integers) -> Iterator[Integers]:
    """Row numbers whose places are distinct: a message of two discarded lives is shown twice."""
    left = np.arange(len(places))
    while len(left):
        _, first = np.unique(places[left], return_index=True)
        yield left[first]
        left = np.delete(left, first)


def _spark_part(files: Sequence[DataFile], rows: pa.Table) -> _SparkPart:
    """Arrays from the first to the last wanted row of each file, null where none is wanted."""
    ordered = rows.sort_by([("file", "ascending"), ("row", "ascending")]).combine_chunks()
    used, begins = np.unique(ordered["file"].to_numpy(), return_index=True)
    of_files = [ordered.slice(*cut) for cut in _cuts(begins, ordered.num_rows)]
    chosen = [files[number] for number in used]
    names = [file.path.rpartition("/")[2] for file in chosen]
    firsts = pa.array([part["row"][0].as_py() for part in of_files], pa.int64())
    arrays = [_arrays(part) for part in of_files]
    columns = {name: _lists([one[name] for one in arrays]) for name in GIVEN}
    return _SparkPart(chosen, pa.table({"file_name": names, "first": firsts, **columns}))


def _cuts(begins: Integers, length: int) -> Iterator[tuple[int, int]]:
    """Where each part begins, and how long it is."""
    for begin, end in pairwise([*begins.tolist(), length]):
        yield begin, end - begin


def _arrays(rows: pa.Table) -> pa.Table:
    """What the rows of one file are given, from its first wanted row to its last."""
    places = rows["row"].to_numpy() - rows["row"][0].as_py()
    at = np.full(int(places[-1]) + 1, -1, dtype=np.int64)
    at[places] = np.arange(len(places))
    return rows.select(list(GIVEN)).take(pa.array(at, mask=at < 0))


def _lists(columns: Sequence[pa.ChunkedArray]) -> pa.ListArray:
    """One list for each column."""
    ends = np.cumsum([0, *(len(column) for column in columns)])
    values = pa.chunked_array([chunk for column in columns for chunk in column.chunks])
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values.combine_chunks())


@contextmanager
def _spark_failures_told(table: str) -> Iterator[None]:
    """A job that failed as our error, so that it parks one topic and does not end the query."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JError) as error:
        text = str(error)[:200]
        problem = f"Spark could not write it ({type(error).__name__}: {text})"
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
