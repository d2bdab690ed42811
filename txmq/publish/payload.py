"""Payload: which messages a topic still needs, and the two engines that copy their bodies.

A plan is made from narrow columns: for each half file the rows that are wanted, each with the
offset it gets. The engines differ only in who reads and writes the bodies: *arrow* streams record
batches in this process, *spark* joins the plan to the files by row number, without any sort.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.clock import timestamp
from txmq.columns import (
    Groups,
    Integers,
    equal_pairs,
    find_pairs,
    first_of_each,
    flags,
    integers,
    list_items,
)
from txmq.delta.parquet import (
    NewFile,
    spark_writer,
    staging_folder,
    write_file,
    write_partitions,
    written_by_spark,
)
from txmq.delta.pinned import disk_error
from txmq.delta.schemas import HALF, MICROSECONDS_UTC, SCHEDULE, TOPIC
from txmq.delta.storage import DataFile, Table
from txmq.errors import EnvironmentProblemError, PayloadMissingError, StorageError
from txmq.lifecycle import DeliveryState, TransactionState
from txmq.message.names import SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from txmq.store.half import DELAY_COLUMNS, HalfLog, is_delayed
from txmq.store.schedule import ScheduleLog
from txmq.store.typed import body_schema_in, typed_columns, with_body_columns

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_ROWS = 8192
READ_AHEAD_BATCHES = 3
DEAD_STATES = (TransactionState.DISCARDED.value, TransactionState.EXPIRED.value)
SHOWN_STATES = (TransactionState.COMMITTED.value, *DEAD_STATES)
DELIVERED = DeliveryState.DELIVERED.value
_HALF_COLUMNS = (
    "transaction_id", "sequence", "real_topic", "real_queue_id", "message_count", *DELAY_COLUMNS,
)  # fmt: skip
_SCHEDULE_COLUMNS = ("transaction_id", "sequence", "topic", "queue_id")
_PLAN = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("op_version", pa.int64()),
        ("ordinal", pa.int64()),
        ("life", pa.int32()),
        ("deliver_timestamp", MICROSECONDS_UTC),
        ("file", pa.int32()),
        ("row", pa.int64()),
    ]
)
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
class PlanFile:
    """A file that holds bodies, and the table that it is of: the half log or the schedule."""

    table: Table
    file: DataFile


@dataclass(frozen=True, slots=True)
class Plan:
    """Messages that facts make visible, in their order; `rows` has one row for each.

    `rows`: topic, queue_id, op_version, ordinal, life, deliver_timestamp (in the schedule only),
    file (number in `files`), row (number in its file).
    """

    files: Sequence[PlanFile]
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

    def used_files(self) -> list[PlanFile]:
        """The files that hold at least one of the messages."""
        return [self.files[number] for number in pc.unique(self.rows["file"]).to_pylist()]

    def size_bytes(self) -> int:
        """The size of the files that hold the bodies."""
        return sum(used.file.size_bytes for used in self.used_files())


class PayloadEngine(Protocol):
    """Copies the bodies of a plan into new files of a topic; 0 commits."""

    def write(self, topic: Table, plan: Plan, offsets: pa.Array, now_ms: int) -> list[NewFile]:
        """`offsets` has the queue_offset of each row of the plan."""
        ...


def make_plan(half: HalfLog, facts: pa.Table, schedule: ScheduleLog | None = None) -> Plan:
    """What the COMMITTED, DISCARDED, EXPIRED and DELIVERED among `facts` show, in their order.

    Args:
        half: where bodies are; its handle must not be older than the facts.
        facts: SHOWN_COLUMNS, in any order.
        schedule: where bodies of DELIVERED messages are; it is refreshed when there are any.

    Raises: PayloadMissingError if a committed transaction has fewer halves than it was settled
        with, or a delivered message is in neither table: nothing is skipped.
    """
    ranked = facts.append_column("rank", pa.array(_rank(facts)))
    shown = ranked.filter(pc.is_in(ranked["state"], value_set=pa.array(SHOWN_STATES)))
    plan = _shown(half.table, shown)
    delivered = ranked.filter(pc.equal(ranked["state"], DELIVERED))
    if not delivered.num_rows:
        return Plan(plan.files, plan.rows.select(_PLAN.names))
    return _merged([plan, *_delivered(half, schedule, delivered)])


def _shown(table: Table, facts: pa.Table) -> Plan:
    """What is shown of whole transactions: by their halves."""
    by_id = Groups.of(facts["transaction_id"])
    files = table.files_holding("transaction_id", by_id.keys)
    halves, place = _placed(table, files, by_id.keys, _HALF_COLUMNS)
    _check_complete(facts, by_id, halves, place)
    return Plan([PlanFile(table, file) for file in files], _ordered(halves, place, facts, by_id))


def _merged(plans: Sequence[Plan]) -> Plan:
    """One plan of several, in the order of the facts."""
    counts = np.cumsum([0, *(len(plan.files) for plan in plans)])
    parts = []
    for plan, before in zip(plans, counts.tolist(), strict=False):
        number = pc.add(plan.rows["file"], pa.scalar(before, pa.int32()))
        at = plan.rows.schema.get_field_index("file")
        parts.append(plan.rows.set_column(at, _PLAN.field("file"), number))
    rows = pa.concat_tables(parts)
    order = np.lexsort((integers(rows["sequence"], -1), integers(rows["rank"], 0)))
    files = [file for plan in plans for file in plan.files]
    return Plan(files, rows.take(pa.array(order)).select(_PLAN.names))


def _placed(
    table: Table, files: Sequence[DataFile], ids: pa.Array, columns: Sequence[str]
) -> tuple[pa.Table, Integers]:
    """The messages of these transactions, once each, and whose they are (number in `ids`)."""
    groups = _file_groups(files, len(ids))
    parts = [_wanted(table, files, group, ids, columns) for group in groups]
    fields = [table.schema.columns.field(name) for name in columns if name != "transaction_id"]
    empty = pa.schema([*fields, _PLAN.field("file"), _PLAN.field("row")]).empty_table()
    rows = pa.concat_tables([empty, *(rows for rows, _ in parts)])
    place = np.concatenate([np.arange(0, dtype=np.int64), *(place for _, place in parts)])
    first = first_of_each(place, integers(rows["sequence"], -1))
    return (rows, place) if first.all() else (rows.filter(pa.array(first)), place[first])


def _file_groups(files: Sequence[DataFile], ids: int) -> Iterator[range]:
    """Numbers of files that are read together: few rows, but one hash of `ids` for many of them."""
    start, rows = 0, 0
    for number, file in enumerate(files):
        rows += file.num_records
        if rows >= max(ROWS_READ_AT_ONCE, ids) or number == len(files) - 1:
            yield range(start, number + 1)
            start, rows = number + 1, 0


def _wanted(
    table: Table, files: Sequence[DataFile], group: range, ids: pa.Array, columns: Sequence[str]
) -> tuple[pa.Table, Integers]:
    """The wanted rows of some files with their file and their row in it, without their id."""
    lengths = [files[number].num_records for number in group]
    rows = table.read([files[number] for number in group], columns)
    place = integers(pc.index_in(rows["transaction_id"], value_set=ids), -1)
    file_numbers = np.repeat(np.array(group, dtype=np.int32), lengths)
    row_numbers = np.concatenate([np.arange(length, dtype=np.int64) for length in lengths])
    numbered = (
        rows.drop_columns(["transaction_id"])
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
    message, fact = equal_pairs(numbers, by_id.place, len(by_id.keys))
    row = rows[message]
    sequence = integers(halves["sequence"], -1)[row]
    rank = integers(facts["rank"], 0)[fact]
    order = np.lexsort((sequence, rank))
    facts = facts.take(pa.array(fact[order]))
    if not np.array_equal(row[order], np.arange(halves.num_rows)):
        halves = halves.take(pa.array(row[order]))
    topic, due = _topics_and_times(halves, facts)
    columns = [topic, halves["real_queue_id"], facts["op_version"], facts["ordinal"],
               facts["life"], due, halves["file"], halves["row"], facts["rank"],
               halves["sequence"]]  # fmt: skip
    return pa.table(columns, names=[*_PLAN.names, "rank", "sequence"])


def _topics_and_times(halves: pa.Table, facts: pa.Table) -> tuple[Any, Any]:
    """Where each message is shown; of those that wait in the schedule, until when."""
    is_dead = pc.is_in(facts["state"], value_set=pa.array(DEAD_STATES))
    topic = pc.if_else(is_dead, TRANS_CHECK_MAX_TIME_TOPIC, halves["real_topic"])
    waits = pc.and_(is_delayed(halves), pc.invert(is_dead))
    if not pc.any(waits, min_count=0).as_py():
        return topic, pa.nulls(halves.num_rows, MICROSECONDS_UTC)
    pause = pc.multiply(halves["delay_s"], 1_000_000).cast(pa.duration("us"))
    due = pc.coalesce(halves["deliver_timestamp"], pc.add(facts["settled_timestamp"], pause))
    never = pa.scalar(None, MICROSECONDS_UTC)
    return pc.if_else(waits, SCHEDULE_TOPIC, topic), pc.if_else(waits, due, never)


def _rank(facts: pa.Table) -> Integers:
    """The place of each fact in the order of its claim."""
    order = np.lexsort((integers(facts["ordinal"], 0), integers(facts["op_version"], 0)))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank


# --- delivered ---------------------------------------------------------------------------------


def _delivered(half: HalfLog, schedule: ScheduleLog | None, facts: pa.Table) -> Iterator[Plan]:
    """What DELIVERED facts show: from the schedule, and from half what is not there (yet)."""
    fact, sequence = list_items(facts["sequences"])
    by_id = Groups.of(facts["transaction_id"])
    left = np.arange(len(fact))
    sources: list[tuple[Table, Sequence[str]]] = [(half.table, _HALF_COLUMNS)]
    if schedule is not None and schedule.refresh().is_there:
        sources.insert(0, (schedule.table, _SCHEDULE_COLUMNS))
    for table, columns in sources:
        files = table.files_holding("transaction_id", by_id.keys) if len(left) else []
        rows, place = _placed(table, files, by_id.keys, columns)
        wanted = (by_id.place[fact[left]], sequence[left])
        at = find_pairs(wanted, (place, integers(rows["sequence"], -1)))
        found = left[at >= 0]
        plan_rows = _delivered_rows(rows.take(pa.array(at[at >= 0])), facts, fact[found])
        yield Plan([PlanFile(table, file) for file in files], plan_rows)
        left = left[at < 0]
    if len(left):
        first = facts["transaction_id"][int(fact[left[0]])]
        problem = f"misses {len(left):,} delivered messages, first of {first}"
        raise PayloadMissingError("schedule", f"{problem}; restore them, nothing is skipped")


def _delivered_rows(messages: pa.Table, facts: pa.Table, fact: Integers) -> pa.Table:
    chosen = facts.take(pa.array(fact))
    topic, queue_id = (
        messages[name if name in messages.column_names else f"real_{name}"]
        for name in ("topic", "queue_id")
    )
    due = pa.nulls(messages.num_rows, MICROSECONDS_UTC)
    columns = [topic, queue_id, chosen["op_version"], chosen["ordinal"], chosen["life"], due,
               messages["file"], messages["row"], chosen["rank"], messages["sequence"]]  # fmt: skip
    return pa.table(columns, names=[*_PLAN.names, "rank", "sequence"])


# --- arrow -------------------------------------------------------------------------------------


class ArrowEngine:
    """Streams the files through this process: one new file, memory of a few record batches."""

    def write(self, topic: Table, plan: Plan, offsets: pa.Array, now_ms: int) -> list[NewFile]:
        """See PayloadEngine."""
        numbered = plan.rows.append_column("queue_offset", offsets)
        parts = copied(plan.files, numbered, topic.schema.columns, now_ms)
        columns, body = topic.schema.columns, body_schema_in(topic)
        if body is not None:
            parts, columns = with_body_columns(parts, body), typed_columns(body)
        try:
            return _written(_read_ahead(parts), topic, columns)
        except OSError as error:
            told = disk_error(topic.schema.name, error)
            if told is None:
                raise
            raise told from error


def _written(parts: Iterator[pa.Table], topic: Table, columns: pa.Schema) -> list[NewFile]:
    schema, filesystem = topic.schema, topic.filesystem
    if schema.partition_by:
        return write_partitions(parts, schema.partition_by, filesystem, schema.statistics_columns)
    return [write_file(parts, columns, filesystem, schema.statistics_columns)]


def copied(
    files: Sequence[PlanFile], rows: pa.Table, schema: pa.Schema, now_ms: int
) -> Iterator[pa.Table]:
    """Rows of a topic for `rows` of a plan, each with a queue_offset, in the order of the files.

    A column store_timestamp in `rows` counts where it is not null, else `now_ms` does.
    """
    by_file = rows.sort_by([("file", "ascending"), ("row", "ascending")]).combine_chunks()
    numbers = by_file["file"].to_numpy()
    for number in pc.unique(rows["file"]).to_pylist():
        first, last = np.searchsorted(numbers, [number, number + 1])
        wanted = by_file.slice(first, last - first)
        for part, given in _copied_file(files[number], wanted):
            yield _topic_rows(part, given, schema, now_ms)


def _copied_file(file: PlanFile, wanted: pa.Table) -> Iterator[tuple[pa.Table, pa.Table]]:
    """The wanted messages by the names of a topic's columns, and what the plan gives them."""
    places = wanted["row"].to_numpy()
    copied = _copied_columns(file.table)
    start = 0
    for batch in file.table.batches(file.file, list(copied.values()), BATCH_ROWS):
        first, last = np.searchsorted(places, [start, start + batch.num_rows])
        if last > first:
            part, chosen = batch, places[first:last] - start
            # Two discarded lives show one message twice, so their number alone says nothing.
            if not np.array_equal(chosen, np.arange(batch.num_rows)):
                part = batch.take(pa.array(chosen))
            yield _renamed(part, copied), wanted.slice(first, last - first)
        start += batch.num_rows


def _copied_columns(table: Table) -> dict[str, str]:
    """A topic's column, and the one of this table that it is copied from."""
    return {name: name for name in COPIED} if table.schema.name == SCHEDULE.name else COPIED


def _renamed(batch: pa.RecordBatch, copied: Mapping[str, str]) -> pa.Table:
    stored = set(batch.schema.names)
    names = {name: source for name, source in copied.items() if source in stored}
    return pa.table([batch[source] for source in names.values()], names=list(names))


def _topic_rows(messages: pa.Table, given: pa.Table, schema: pa.Schema, now_ms: int) -> pa.Table:
    """Rows of a topic: what is copied, what the plan gives, and when it is stored."""
    known = {name: messages[name] for name in messages.column_names}
    known |= {name: given[name] for name in _GIVEN}
    now = pa.scalar(timestamp(now_ms), MICROSECONDS_UTC)
    known["store_timestamp"] = (
        pc.fill_null(given["store_timestamp"], now)
        if "store_timestamp" in given.column_names
        else pa.repeat(now, messages.num_rows)
    )
    if "due_date" in schema.names:
        known["deliver_timestamp"] = given["deliver_timestamp"]
        known["due_date"] = given["deliver_timestamp"].cast(pa.date32())
    missing = pa.nulls(messages.num_rows)
    columns = [known.get(column.name, missing).cast(column.type) for column in schema]
    return pa.table(columns, schema=schema)


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
