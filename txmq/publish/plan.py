"""The plan: which messages a topic still needs, and from which rows of which files.

A plan is made from narrow columns: for each half file the rows that are wanted, each with the
offset it gets. The engines differ only in who reads and writes the bodies: *arrow* streams record
batches in this process, *spark* joins the plan to the files by row number, without any sort.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
from txmq.delta.files import DataFile
from txmq.delta.parquet import NewFile
from txmq.delta.schemas import MICROSECONDS_UTC
from txmq.delta.storage import Table
from txmq.errors import PayloadMissingError
from txmq.lifecycle import DeliveryState, TransactionState
from txmq.message.names import SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from txmq.store.half import DELAY_COLUMNS, HalfLog, is_delayed
from txmq.store.schedule import ScheduleLog

BATCH_ROWS = 8192
# Narrow columns of so many halves are in memory before the wanted ones are picked.
ROWS_READ_AT_ONCE = 200_000
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
GIVEN = ("queue_offset", "life", "op_version")


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


# --- spark -------------------------------------------------------------------------------------
