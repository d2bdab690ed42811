"""Payload: which messages a topic still needs, and the two engines that copy their bodies.

A plan is made from narrow columns: for each half file the rows that are wanted, each with the
offset it gets. The engines differ only in who reads and writes the bodies: *arrow* streams record
batches in this process, *spark* joins the plan to the files by row number, without any sort.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.clock import timestamp
from txmq.data_files import (
    NewFile,
    spark_writer,
    staging_folder,
    write_file,
    written_by_spark,
)
from txmq.delta_table import disk_error
from txmq.errors import EnvironmentProblemError, PayloadMissingError, StorageError
from txmq.grouping import Groups, Integers, first_of_each, flags, integers
from txmq.half_log import HalfLog
from txmq.lifecycle import TransactionState
from txmq.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.schemas import HALF, MICROSECONDS_UTC, TOPIC
from txmq.storage import DataFile, Table
from txmq.typed_topic import body_schema_in, typed_columns, with_body_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 8192
READ_AHEAD_BATCHES = 3
DEAD_STATES = (TransactionState.DISCARDED.value, TransactionState.EXPIRED.value)
SHOWN_STATES = (TransactionState.COMMITTED.value, *DEAD_STATES)
_PLAN_COLUMNS = ("transaction_id", "sequence", "real_topic", "real_queue_id", "message_count")
_HALF_FIELDS = [HALF.columns.field(name) for name in _PLAN_COLUMNS if name != "transaction_id"]
# A topic's column and the half's column that it is copied from.
COPIED = {
    "message_id": "message_id",
    "topic": "real_topic",
    "queue_id": "real_queue_id",
    "tags": "tags",
    "keys": "keys",
    "body": "body",
    "properties": "properties",
    "sharding_key": "sharding_key",
    "born_timestamp": "born_timestamp",
    "producer_group": "producer_group",
    "transaction_id": "transaction_id",
    "sequence": "sequence",
}
_GIVEN = ("queue_offset", "life", "op_version")
# Narrow columns of so many halves are in memory before the wanted ones are picked.
ROWS_READ_AT_ONCE = 200_000
# The arrays of one job of the spark engine have at most this many places.
SPARK_PLAN_ROWS = 4_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """Messages that facts make visible, in their order; `rows` has one row for each.

    `rows`: topic, queue_id, op_version, life, file (number in `files`), row (number in its file).
    """

    files: Sequence[DataFile]
    rows: pa.Table

    def topics(self) -> list[str]:
        """The topics that get something."""
        return sorted(pc.unique(self.rows["topic"]).to_pylist())

    def of_topic(self, topic: str, after: int) -> Plan:
        """The part of one topic that comes after a mark."""
        wanted = pc.and_(
            pc.equal(self.rows["topic"], topic), pc.greater(self.rows["op_version"], after)
        )
        return self if pc.all(wanted).as_py() else Plan(self.files, self.rows.filter(wanted))

    def size_bytes(self) -> int:
        """The size of the files that hold the bodies."""
        numbers = pc.unique(self.rows["file"]).to_pylist()
        return sum(self.files[number].size_bytes for number in numbers)


class PayloadEngine(Protocol):
    """Copies the bodies of a plan into new files of a topic; 0 commits."""

    def write(
        self, half: Table, topic: Table, plan: Plan, offsets: pa.Array, now_ms: int
    ) -> list[NewFile]:
        """`offsets` has the queue_offset of each row of the plan."""
        ...


def make_plan(half: HalfLog, facts: pa.Table) -> Plan:
    """What the COMMITTED, DISCARDED and EXPIRED among `facts` show, by claim and sequence.

    Raises: PayloadMissingError if a committed transaction has fewer halves than it was settled
        with: nothing is skipped.
    """
    shown = facts.filter(pc.is_in(facts["state"], value_set=pa.array(SHOWN_STATES)))
    by_id = Groups.of(shown["transaction_id"])
    files = half.table.files_holding("transaction_id", by_id.keys)
    halves, place = _halves_of(half.table, files, by_id.keys)
    _check_complete(shown, by_id, halves, place)
    return Plan(files, _ordered(halves, place, shown, by_id))


def _halves_of(table: Table, files: Sequence[DataFile], ids: pa.Array) -> tuple[pa.Table, Integers]:
    """The halves of these transactions, once each, and whose they are (number in `ids`)."""
    parts = [_wanted(table, files, group, ids) for group in _file_groups(files, len(ids))]
    columns = pa.schema([*_HALF_FIELDS, ("file", pa.int32()), ("row", pa.int64())])
    halves = pa.concat_tables([columns.empty_table(), *(rows for rows, _ in parts)])
    place = np.concatenate([np.arange(0, dtype=np.int64), *(place for _, place in parts)])
    first = first_of_each(place, integers(halves["sequence"], -1))
    return (halves, place) if first.all() else (halves.filter(pa.array(first)), place[first])


def _file_groups(files: Sequence[DataFile], ids: int) -> Iterator[range]:
    """Numbers of files that are read together: few rows, but one hash of `ids` for many of them."""
    start, rows = 0, 0
    for number, file in enumerate(files):
        rows += file.num_records
        if rows >= max(ROWS_READ_AT_ONCE, ids) or number == len(files) - 1:
            yield range(start, number + 1)
            start, rows = number + 1, 0


def _wanted(
    table: Table, files: Sequence[DataFile], group: range, ids: pa.Array
) -> tuple[pa.Table, Integers]:
    """The wanted rows of some files with their file and their row in it, without their id."""
    lengths = [files[number].num_records for number in group]
    halves = table.read([files[number] for number in group], _PLAN_COLUMNS)
    place = integers(pc.index_in(halves["transaction_id"], value_set=ids), -1)
    file_numbers = np.repeat(np.array(group, dtype=np.int32), lengths)
    row_numbers = np.concatenate([np.arange(length, dtype=np.int64) for length in lengths])
    numbered = (
        halves.drop_columns(["transaction_id"])
        .append_column("file", pa.array(file_numbers))
        .append_column("row", pa.array(row_numbers))
    )
    is_wanted = place >= 0
    if is_wanted.all():
        return numbered, place
    return numbered.filter(pa.array(is_wanted)), place[is_wanted]


def _check_complete(facts: pa.Table, by_id: Groups, halves: pa.Table, place: Integers) -> None:
    of_halves = Groups(by_id.keys, place)
    found = of_halves.count(flags(pc.is_valid(halves["real_topic"])))
    asked = of_halves.largest(integers(halves["message_count"], -1), -1)
    committed = flags(pc.equal(facts["state"], TransactionState.COMMITTED.value))
    gone = facts.filter(pa.array(committed & (found != asked)[by_id.place]))["transaction_id"]
    if len(gone):
        problem = f"halves of {len(gone):,} committed transactions are gone, first {gone[0]}"
        raise PayloadMissingError("half", f"{problem}; restore them, nothing is skipped")


def _ordered(halves: pa.Table, place: Integers, facts: pa.Table, by_id: Groups) -> pa.Table:
    """One row for each showing of a message: a discarded life and a later commit are two."""
    carries = flags(pc.is_valid(halves["real_topic"]))
    rows, numbers = np.flatnonzero(carries), place[carries]
    fact, row = _pairs(by_id, numbers, rows)
    sequence = integers(halves["sequence"], -1)[row]
    rank = _rank(facts)[fact]
    order = np.lexsort((sequence, rank))
    facts = facts.select(["state", "op_version", "life"]).take(pa.array(fact[order]))
    if not np.array_equal(row[order], np.arange(halves.num_rows)):
        halves = halves.take(pa.array(row[order]))
    is_dead = pc.is_in(facts["state"], value_set=pa.array(DEAD_STATES))
    topic = pc.if_else(is_dead, TRANS_CHECK_MAX_TIME_TOPIC, halves["real_topic"])
    columns = [topic, halves["real_queue_id"], facts["op_version"], facts["life"],
               halves["file"], halves["row"]]  # fmt: skip
    return pa.table(columns, names=["topic", "queue_id", "op_version", "life", "file", "row"])


def _pairs(by_id: Groups, numbers: Integers, rows: Integers) -> tuple[Integers, Integers]:
    """Each message beside each fact of its transaction: their row numbers."""
    order = np.argsort(by_id.place, kind="stable")
    counts = by_id.count()
    begin = np.cumsum(counts) - counts
    times = counts[numbers]
    nth = np.arange(times.sum()) - np.repeat(np.cumsum(times) - times, times)
    return order[np.repeat(begin[numbers], times) + nth], np.repeat(rows, times)


def _rank(facts: pa.Table) -> Integers:
    """The place of each fact in the order of its claim."""
    order = np.lexsort((integers(facts["ordinal"], 0), integers(facts["op_version"], 0)))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank


# --- arrow -------------------------------------------------------------------------------------


class ArrowEngine:
    """Streams the files through this process: one new file, memory of a few record batches."""

    def write(
        self, half: Table, topic: Table, plan: Plan, offsets: pa.Array, now_ms: int
    ) -> list[NewFile]:
        """See PayloadEngine."""
        numbered = plan.rows.append_column("queue_offset", offsets)
        parts = _copied(half, plan.files, numbered, now_ms)
        columns, body = TOPIC.columns, body_schema_in(topic)
        if body is not None:
            parts, columns = with_body_columns(parts, body), typed_columns(body)
        try:
            return [write_file(_read_ahead(parts), columns, topic.filesystem, TOPIC.statistics_columns)]
        except OSError as error:
            told = disk_error(topic.schema.name, error)
            if told is None:
                raise
            raise told from error


def _copied(
    half: Table, files: Sequence[DataFile], rows: pa.Table, now_ms: int
) -> Iterator[pa.Table]:
    by_file = rows.sort_by([("file", "ascending"), ("row", "ascending")]).combine_chunks()
    numbers = by_file["file"].to_numpy()
    for number in pc.unique(rows["file"]).to_pylist():
        first, last = np.searchsorted(numbers, [number, number + 1])
        yield from _copied_file(half, files[number], by_file.slice(first, last - first), now_ms)


def _copied_file(half: Table, file: DataFile, wanted: pa.Table, now_ms: int) -> Iterator[pa.Table]:
    places = wanted["row"].to_numpy()
    start = 0
    for batch in half.batches(file, list(COPIED.values()), BATCH_ROWS):
        first, last = np.searchsorted(places, [start, start + batch.num_rows])
        if last > first:
            part, chosen = batch, places[first:last] - start
            # Two discarded lives show one message twice, so their number alone says nothing.
            if not np.array_equal(chosen, np.arange(batch.num_rows)):
                part = batch.take(pa.array(chosen))
            yield _topic_rows(pa.table(part), wanted.slice(first, last - first), now_ms)
        start += batch.num_rows


def _topic_rows(halves: pa.Table, given: pa.Table, now_ms: int) -> pa.Table:
    """Rows of a topic from rows of the half log and what the plan gives them."""
    stored = set(halves.column_names)
    now = pa.repeat(pa.scalar(timestamp(now_ms), MICROSECONDS_UTC), halves.num_rows)
    columns = []
    for column in TOPIC.columns:
        if column.name == "store_timestamp":
            columns.append(now)
        elif column.name in _GIVEN:
            columns.append(given[column.name])
        elif COPIED[column.name] in stored:
            columns.append(halves[COPIED[column.name]].cast(column.type))
        else:
            columns.append(pa.nulls(halves.num_rows, column.type))
    return pa.table(columns, schema=TOPIC.columns)


def _read_ahead(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Read in another thread while this one writes; an error there is raised here."""
    first = next(parts, None)
    second = next(parts, None)
    if first is not None:
        yield first
    if second is None:
        return
    yield second
    yield from _from_thread(parts)


def _from_thread(parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
    ready: queue.Queue[tuple[pa.Table | None, BaseException | None]] = queue.Queue(
        READ_AHEAD_BATCHES
    )
    stopped = threading.Event()

    def read() -> None:
        failure: BaseException | None = None
        try:
            for part in parts:
                if stopped.is_set():
                    return
                ready.put((part, None))
        except BaseException as error:  # noqa: BLE001 - raised in the consuming thread
            failure = error
        ready.put((None, failure))

    threading.Thread(target=read, name="txmq-read-ahead", daemon=True).start()
    try:
        while (item := ready.get())[0] is not None:
            yield item[0]
        if item[1] is not None:
            raise item[1]
    finally:
        stopped.set()
        # A reader that waits for room must see the flag.
        while not ready.empty():
            ready.get_nowait()


# --- spark -------------------------------------------------------------------------------------


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

    def write(
        self, half: Table, topic: Table, plan: Plan, offsets: pa.Array, now_ms: int
    ) -> list[NewFile]:
        """See PayloadEngine."""
        numbered = plan.rows.append_column("queue_offset", offsets)
        files: list[NewFile] = []
        for part in _spark_parts(plan.files, numbered):
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
        found = {name: F.get(name, place) for name in _GIVEN}
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
    columns = {name: _lists([one[name] for one in arrays]) for name in _GIVEN}
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
    return rows.select(list(_GIVEN)).take(pa.array(at, mask=at < 0))


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
