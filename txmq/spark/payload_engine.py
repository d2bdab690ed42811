"""The spark engine: tasks on Spark's executors copy the bodies of large plans.

A task does what the Arrow engine does in this process: it gets rows of the plan with their offsets,
reads these messages from the half files and writes files of the topic. No body passes through Java
or through this process.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from txmq.delta.files import DataFile
from txmq.delta.parquet import NewFile
from txmq.delta.table import Table
from txmq.errors import (
    EnvironmentProblemError,
    PayloadMissingError,
    StorageError,
    UnreadableFileError,
)
from txmq.ground.columns import integers
from txmq.message.body_schema import parsed_schema
from txmq.publish.engines import source_columns, write_messages
from txmq.publish.plan import BATCH_ROWS, NumberedPlan, Plan, PlanFile
from txmq.spark.executors import (
    OUTCOMES,
    TablePlace,
    as_batch,
    as_own_error,
    check_executors,
    file_outcome,
    slots,
    written_files,
)
from txmq.store.topic import body_schema_in, body_schema_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A task copies about so much of the half files, as Spark reads files; or so many messages.
TASK_BYTES = 128 * 1024 * 1024
TASK_ROWS, TASK_ROWS_LEAST = 1_000_000, 32
# A larger file is none.
_LARGEST_BYTES = 1 << 60
# The tasks of one job are sent as plans of about so many bytes; a message takes some five.
JOB_BYTES = 64 * 1024 * 1024
# What a task needs of a plan, beside the offsets.
_SENT = ("file", "row", "life", "op_version", "deliver_timestamp")


class SparkEngine:
    """Lets Spark's executors copy the messages of plans. Safe for several threads."""

    def __init__(self, spark: SparkSession | None, batch_bytes: int) -> None:
        """Start no job yet; a task holds batches of `batch_bytes`, as the Arrow engine does.

        Raises: EnvironmentProblemError if there is no session.
        """
        if spark is None:
            problem = "payload_engine is spark, but the publisher has no Spark session"
            raise EnvironmentProblemError(problem, "Pass spark=, or set payload_engine to arrow.")
        self._spark, self._batch_bytes = spark, batch_bytes

    def slots(self, topic: Table) -> int:
        """Return how many tasks Spark makes by default. Raises: as `executors.slots`."""
        return slots(self._spark, topic, body_schema_text(topic))

    def write(self, topic: Table, plans: Iterable[NumberedPlan], now_ms: int) -> list[NewFile]:
        """Write the messages as PayloadEngine says; this process holds no body.

        Raises: PayloadMissingError; UnreadableFileError; StrangeRowError; as `slots`.
        """
        # A schema that cannot be read is an error of the topic, and not of an executor.
        body_schema_in(topic)
        check_executors(self._spark, topic, body_schema_text(topic))
        jobs: list[Future[list[NewFile]]] = []
        count = 0
        with ThreadPoolExecutor(1, "txmq-spark-job") as thread:
            for job in _jobs(plans):
                count += sum(task.rows for task in job)
                # One job runs while the next one is planned.
                if jobs:
                    jobs[-1].result()
                sources = {table.schema.name: table for task in job for table in task.sources}
                copy = _Copy.of(topic, sources.values(), now_ms, self._batch_bytes)
                jobs.append(thread.submit(self._run, topic, copy, job))
        files = [file for job in jobs for file in job.result()]
        if (written := sum(file.num_records for file in files)) != count:
            problem = f"Spark wrote {written:,} of {count:,} messages; trying again"
            raise PayloadMissingError(topic.name, problem)
        return files

    def _run(self, topic: Table, copy: _Copy, job: Sequence[_Task]) -> list[NewFile]:
        try:
            with as_own_error(topic.name):
                return written_files(self._outcomes(copy, job), topic.folder)
        except UnreadableFileError as error:
            _check_that_nobody_reads(copy.sources[error.table].table(), error)
            raise

    def _outcomes(self, copy: _Copy, job: Sequence[_Task]) -> DataFrame:
        plans = pa.array([task.plans for task in job], pa.list_(pa.binary()))
        tasks = pa.table({"task": np.arange(len(job)), "plans": plans})
        # By their numbers: round robin gives some partitions two tasks, and others none.
        frame = self._spark.createDataFrame(tasks).repartitionByRange(len(job), "task")
        return frame.select("plans").mapInArrow(partial(_copied, copy), OUTCOMES)


def _check_that_nobody_reads(source: Table, error: UnreadableFileError) -> None:
    """Read a file that an executor cannot read.

    Raises: StorageError if this process can: then the executor lacks something, and no transaction
        is to blame.
    """
    file = DataFile(error.path, 0, 0, {})
    try:
        for _ in source.rows.batches(file, list(source_columns(source).values()), BATCH_ROWS):
            pass
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - whatever a damaged file leads to
        return
    problem = f"an executor of Spark cannot read {error.path}, and this process can"
    raise StorageError(source.name, f"{problem} ({error.problem})") from error


# --- tasks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Task:
    """Some of the messages; Spark sends `plans`, see `_encoded`."""

    plans: list[bytes]
    rows: int
    sources: Sequence[Table]


def _jobs(plans: Iterable[NumberedPlan]) -> Iterator[list[_Task]]:
    """Put tasks together: enough for any cluster, and few enough for this process."""
    job: list[_Task] = []
    size_bytes = 0
    for task in _tasks(plans):
        job.append(task)
        size_bytes += sum(map(len, task.plans))
        if size_bytes >= JOB_BYTES:
            yield job
            job, size_bytes = [], 0
    if job:
        yield job


def _tasks(plans: Iterable[NumberedPlan]) -> Iterator[_Task]:
    """Cut large plans, and put small ones together."""
    parts: list[NumberedPlan] = []
    size = 0.0
    for part, part_size in (part for numbered in plans for part in _parts(numbered)):
        parts.append(part)
        size += part_size
        if size >= 1:
            yield _task(parts)
            parts, size = [], 0.0
    if parts:
        yield _task(parts)


def _parts(numbered: NumberedPlan) -> Iterator[tuple[NumberedPlan, float]]:
    """Cut a plan into parts of up to one task, by file and row; each with its share of a task."""
    plan, offsets = numbered
    file = integers(plan.rows["file"], 0)
    counts = np.bincount(file, minlength=len(plan.files))
    # A commit by others may name any sizes, and no numbers of rows.
    sizes = [min(max(source.file.size_bytes, 0), _LARGEST_BYTES) for source in plan.files]
    rows_of = [max(source.file.num_records, 1) for source in plan.files]
    shares = np.array(sizes) / np.maximum(rows_of, counts) / TASK_BYTES
    shares = np.clip(shares, 1 / TASK_ROWS, 1 / TASK_ROWS_LEAST)
    order = np.lexsort((integers(plan.rows["row"], 0), file))
    ends = np.cumsum(shares[file[order]])
    # A plan has at least one message.
    total = float(ends[-1])
    cuts = np.unique(np.searchsorted(ends, np.arange(1, total), side="right"))
    for chosen in np.split(order, cuts):
        rows = plan.rows.take(pa.array(chosen))
        yield (
            NumberedPlan(replace(plan, rows=rows), offsets[chosen]),
            total * len(chosen) / len(order),
        )


def _task(parts: Sequence[NumberedPlan]) -> _Task:
    tables = {id(source.table): source.table for each in parts for source in each.plan.used_files()}
    rows = sum(len(each.offsets) for each in parts)
    return _Task([_encoded(each) for each in parts], rows, list(tables.values()))


def _encoded(numbered: NumberedPlan) -> bytes:
    """Write what a task needs of a plan as a stream of Arrow; its schema names the files."""
    plan = numbered.plan.with_used_files()
    rows = plan.rows.select(_SENT).append_column("queue_offset", pa.array(numbered.offsets))
    files = [(each.table.schema.name, each.file.path, each.file.num_records, each.file.size_bytes)
             for each in plan.files]  # fmt: skip
    rows = rows.replace_schema_metadata({"files": json.dumps(files)})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


# --- on an executor -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, repr=False)
class _Copy:
    """What the tasks of a job have in common; `sources` are the tables of their files by kind."""

    topic: TablePlace
    body_schema: str | None
    sources: Mapping[str, TablePlace]
    now_ms: int
    batch_bytes: int

    @classmethod
    def of(cls, topic: Table, sources: Iterable[Table], now_ms: int, batch_bytes: int) -> _Copy:
        places = {table.schema.name: TablePlace.of(table) for table in sources}
        body_schema = body_schema_text(topic)
        return cls(TablePlace.of(topic), body_schema, places, now_ms, batch_bytes)

    def files(self, plans: Sequence[bytes]) -> list[NewFile]:
        tables = {kind: place.table() for kind, place in self.sources.items()}
        decoded = (_decoded(plan, tables) for plan in plans)
        body = None if self.body_schema is None else parsed_schema(self.body_schema)
        return write_messages(self.topic.table(), body, decoded, self.now_ms, self.batch_bytes)


def _copied(copy: _Copy, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Copy the messages of each task."""
    for batch in batches:
        for plans in batch.column(0).to_pylist():
            yield as_batch(file_outcome(copy.topic.location, partial(copy.files, plans)))


def _decoded(content: bytes, tables: Mapping[str, Table]) -> NumberedPlan:
    """Read what `_encoded` wrote."""
    rows = pa.ipc.open_stream(content).read_all()
    files = [
        PlanFile(tables[kind], DataFile(path, num_records, size_bytes, {}))
        for kind, path, num_records, size_bytes in json.loads(rows.schema.metadata[b"files"])
    ]
    return NumberedPlan(
        Plan(files, rows.drop_columns(["queue_offset"])), integers(rows["queue_offset"], 0)
    )
