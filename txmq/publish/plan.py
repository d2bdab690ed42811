"""The plan: which messages a topic lacks, and which rows of which files hold them.

A plan is made from narrow columns, without bodies. The engines differ only in who copies the
bodies: *arrow* streams record batches through this process, *spark* joins the plan to the files by
row number, without a sort (decision 0002).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.files import DataFile, FileRange, UnreadableFile
from txmq.delta.parquet import NewFile
from txmq.delta.reading import MOVED_ATTEMPTS
from txmq.delta.table import Table
from txmq.errors import PayloadMissingError
from txmq.ground.columns import (
    Flags,
    Groups,
    Integers,
    are_in_order,
    equal_pairs,
    find_pairs,
    first_of_each,
    flags,
    integers,
    list_items,
)
from txmq.message.lifecycle import DeliveryState, TransactionState
from txmq.message.names import SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from txmq.store.half import DELAY_COLUMNS, HalfLog, is_delayed
from txmq.store.schemas import MICROSECONDS_UTC
from txmq.store.settled import ScheduleLog
from txmq.store.topic import are_queues
from txmq.store.topic_settings import MAX_QUEUE_NUMS

BATCH_ROWS = 8192
# The narrow columns of about this many halves are in memory before the needed rows are picked.
ROWS_READ_AT_ONCE = 200_000
DEAD_STATES = (TransactionState.DISCARDED.value, TransactionState.EXPIRED.value)
SHOWN_STATES = (TransactionState.COMMITTED.value, *DEAD_STATES)
DELIVERED = DeliveryState.DELIVERED.value
# A column of a topic, and the column of the half log that it is copied from.
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
# The columns of a topic that come from the plan.
GIVEN = ("queue_offset", "life", "op_version")
FILE_AND_ROW = (pa.field("file", pa.int32()), pa.field("row", pa.int64()))
_PLAN = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("op_version", pa.int64()),
        ("ordinal", pa.int64()),
        ("life", pa.int32()),
        ("deliver_timestamp", MICROSECONDS_UTC),
        *FILE_AND_ROW,
    ]
)
_HALF_COLUMNS = (
    "transaction_id", "sequence", "real_topic", "real_queue_id", "message_count", *DELAY_COLUMNS,
)  # fmt: skip
_SCHEDULE_COLUMNS = ("transaction_id", "sequence", "topic", "queue_id")


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A file that holds bodies, and its table: the half log or the schedule."""

    table: Table
    file: DataFile


@dataclass(frozen=True, slots=True)
class Plan:
    """The messages that facts make visible, one row each, in the order of the facts.

    `rows`: topic, queue_id, op_version, ordinal, life, deliver_timestamp (for the schedule only),
    file (the number of the file in `files`), row (the number of the row in the file).
    `missing`: transactions that are not in the plan, because messages of them cannot be read.
    `unfit`: those of them whose messages are there, and no queue of a topic can take one.
    """

    files: Sequence[PlanFile]
    rows: pa.Table
    missing: Mapping[str, str] = field(default_factory=dict)
    unfit: frozenset[str] = frozenset()

    def topics(self) -> list[str]:
        """Return the sorted names of the topics that get messages."""
        return sorted(pc.unique(self.rows["topic"]).to_pylist())

    def of_topic(self, topic: str, after: int) -> Plan:
        """Return the plan of the messages of one topic whose op_version is above a mark."""
        is_missing = pc.and_(
            pc.equal(self.rows["topic"], topic), pc.greater(self.rows["op_version"], after)
        )
        if pc.all(is_missing).as_py():
            return self
        return self.only(is_missing)

    def only(self, is_chosen: Any) -> Plan:
        """Return the plan with the rows for which `is_chosen` is true."""
        return replace(self, rows=self.rows.filter(is_chosen))

    def owners(self, facts: pa.Table) -> pa.ChunkedArray:
        """Return the transaction of each row; `facts` are those that the plan was made of."""
        claims_of_rows, claims_of_facts = (
            (integers(table["op_version"], -1), integers(table["ordinal"], -1))
            for table in (self.rows, facts)
        )
        fact = find_pairs(claims_of_rows, claims_of_facts)
        return facts["transaction_id"].take(pa.array(fact, mask=fact < 0))

    def used_files(self) -> list[PlanFile]:
        """Return the files that hold at least one of the messages."""
        return [self.files[number] for number in pc.unique(self.rows["file"]).to_pylist()]

    def size_bytes(self) -> int:
        """Return the total size of the files that hold the bodies."""
        return sum(source.file.size_bytes for source in self.used_files())


class PayloadEngine(Protocol):
    """Copies the bodies of a plan into new files of a topic; 0 commits."""

    def write(self, topic: Table, plan: Plan, offsets: pa.Array, now_ms: int) -> list[NewFile]:
        """Write new files of `topic`; `offsets` holds the queue_offset of each row of the plan."""
        ...


def make_plan(half: HalfLog, facts: pa.Table, schedule: ScheduleLog | None = None) -> Plan:
    """Plan as `readable_plan`, but demand that every message is there that a queue can take.

    Raises:
        PayloadMissingError: a committed transaction has fewer halves than it was settled with, or
            a delivered message is in neither table. No message is skipped.
    """
    plan = readable_plan(half, facts, schedule)
    lost = {name: problem for name, problem in plan.missing.items() if name not in plan.unfit}
    if lost:
        first, problem = next(iter(lost.items()))
        what = f"messages of {len(lost):,} committed transactions cannot be read"
        next_step = f"restore them, first those of {first} ({problem}); no message is skipped"
        raise PayloadMissingError("half", f"{what}; {next_step}")
    return plan


def readable_plan(
    half: HalfLog,
    facts: pa.Table,
    schedule: ScheduleLog | None = None,
    given_up: Collection[str] = (),
) -> Plan:
    """Plan the messages that COMMITTED, DISCARDED, EXPIRED and DELIVERED facts make visible.

    Args:
        half: holds the bodies; its handle must not be older than the facts.
        facts: SHOWN_COLUMNS, in any order.
        schedule: holds the bodies of DELIVERED messages; it is refreshed if there are any.
        given_up: transactions of which only the messages are planned that can be read.

    Returns: the plan; transactions that cannot be read or written as a whole are `missing` in it.

    Reads: half and the schedule, without bodies. Commits: 0.
    """
    ranked = facts.append_column("rank", pa.array(_rank(facts)))
    shown = ranked.filter(pc.is_in(ranked["state"], value_set=pa.array(SHOWN_STATES)))
    plan = _plan_of_transactions(half.table, shown, given_up)
    delivered = ranked.filter(pc.equal(ranked["state"], DELIVERED))
    if delivered.num_rows:
        plan = _merged([plan, *_plans_of_deliveries(half, schedule, delivered, given_up)])
    return replace(plan, rows=_without(plan, ranked).select(_PLAN.names))


def _rank(facts: pa.Table) -> Integers:
    """Rank the facts in the order of their claims."""
    order = np.lexsort((integers(facts["ordinal"], 0), integers(facts["op_version"], 0)))
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank


def _plan_of_transactions(table: Table, facts: pa.Table, given_up: Collection[str]) -> Plan:
    """Plan facts about whole transactions: all their halves that hold a message."""
    by_id = Groups.of(facts["transaction_id"])
    messages = readable_rows(table, by_id.keys, _HALF_COLUMNS)
    problems = _missing(facts, by_id, messages)
    messages, unfit = _that_fit(messages, by_id.keys, "real_queue_id", "real_topic")
    rows = _ordered(messages.rows, messages.place, facts, by_id)
    files, missing = [PlanFile(table, file) for file in messages.files], {**problems, **unfit}
    return Plan(files, rows, _waiting(missing, given_up), frozenset(unfit) - problems.keys())


def _missing(facts: pa.Table, by_id: Groups, messages: ReadableRows) -> dict[str, str]:
    """Find the transactions that lack messages; return the problem of each.

    A dead letter need not be complete, but what an unreadable file may hold of it is waited for.
    """
    halves_by_id = Groups(by_id.keys, messages.place)
    count = halves_by_id.count(flags(pc.is_valid(messages.rows["real_topic"])))
    message_count = halves_by_id.largest(integers(messages.rows["message_count"], -1), -1)
    is_short = count != message_count
    is_committed = flags(pc.equal(facts["state"], TransactionState.COMMITTED.value))
    must_be_whole = np.zeros(len(by_id.keys), dtype=bool)
    must_be_whole[by_id.place[is_committed]] = True
    problems = dict.fromkeys(
        _names(by_id.keys, must_be_whole & is_short), "its halves are not there"
    )
    for file in messages.unreadable:
        in_file = is_short & file.covers(by_id.keys)
        problems |= dict.fromkeys(_names(by_id.keys, in_file), file.problem)
    return problems


def _waiting(problems: Mapping[str, str], given_up: Collection[str]) -> dict[str, str]:
    return {name: problem for name, problem in problems.items() if name not in given_up}


def _that_fit(
    messages: ReadableRows, ids: pa.Array, queue_column: str, column: str
) -> tuple[ReadableRows, dict[str, str]]:
    """Leave out messages for queues that no topic has; return the problems of their transactions.

    Other programs write them; such a row would take the offsets of an honest one. A row without a
    value in `column` is no message.
    """
    queues = messages.rows[queue_column]
    is_unfit = ~are_queues(queues) & flags(pc.is_valid(messages.rows[column]))
    if not is_unfit.any():
        return messages, {}
    owners = ids.take(pa.array(messages.place[is_unfit])).to_pylist()
    numbers = queues.filter(pa.array(is_unfit)).to_pylist()
    problem = "a message of it is for queue {}, and a topic has queues from 0 to {}"
    rows = messages.rows.filter(pa.array(~is_unfit))
    return replace(messages, rows=rows, place=messages.place[~is_unfit]), {
        owner: problem.format("null" if number is None else number, MAX_QUEUE_NUMS - 1)
        for owner, number in zip(owners, numbers, strict=True)
    }


def _names(ids: pa.Array, chosen: Flags) -> list[str]:
    return list(ids.filter(pa.array(chosen)).to_pylist())


def _ordered(halves: pa.Table, place: Integers, facts: pa.Table, by_id: Groups) -> pa.Table:
    """Make one row for each time that a message becomes visible, in the order of the facts.

    A message may become visible twice: as a dead letter of a DISCARDED life, and by a later COMMIT.
    """
    has_message = flags(pc.is_valid(halves["real_topic"]))
    if not has_message.all():
        halves, place = halves.filter(pa.array(has_message)), place[has_message]
    row, fact_row = equal_pairs(place, by_id.place, len(by_id.keys))
    sequence = integers(halves["sequence"], -1)[row]
    rank_of_row = integers(facts["rank"], 0)[fact_row]
    if not are_in_order(rank_of_row, sequence):
        order = np.lexsort((sequence, rank_of_row))
        row, fact_row = row[order], fact_row[order]
    fact = pa.array(fact_row)
    if not np.array_equal(row, np.arange(halves.num_rows)):
        halves = halves.take(pa.array(row))
    topic, due = _topics_and_times(halves, facts, fact)
    version, ordinal, life, rank = (
        facts[name].take(fact) for name in ("op_version", "ordinal", "life", "rank")
    )
    columns = [topic, halves["real_queue_id"], version, ordinal, life, due, halves["file"],
               halves["row"], rank, halves["sequence"]]  # fmt: skip
    return pa.table(columns, names=[*_PLAN.names, "rank", "sequence"])


def _topics_and_times(halves: pa.Table, facts: pa.Table, fact: pa.Array) -> tuple[Any, Any]:
    """Find the topic of each message, and the due time of each that goes to the schedule.

    `fact` is the row in `facts` of each message; texts of a fact are not repeated for all of them.
    """
    if pc.any(pc.equal(halves["real_topic"], SCHEDULE_TOPIC), min_count=0).as_py():
        # Written by hand; there it would be due at no time.
        raise ValueError(f"{SCHEDULE_TOPIC} is for delayed messages alone")
    is_dead = pc.is_in(facts["state"], value_set=pa.array(DEAD_STATES)).take(fact)
    topic = halves["real_topic"]
    if pc.any(is_dead, min_count=0).as_py():
        topic = pc.if_else(is_dead, TRANS_CHECK_MAX_TIME_TOPIC, topic)
    waits = pc.and_(is_delayed(halves), pc.invert(is_dead))
    if not pc.any(waits, min_count=0).as_py():
        return topic, pa.nulls(halves.num_rows, MICROSECONDS_UTC)
    delay = pc.multiply(halves["delay_s"], 1_000_000).cast(pa.duration("us"))
    # A claim by hand may have no time.
    committed = pc.coalesce(facts["op_timestamp"], facts["settled_timestamp"]).take(fact)
    due = pc.coalesce(halves["deliver_timestamp"], pc.add(committed, delay))
    no_time = pa.scalar(None, MICROSECONDS_UTC)
    return pc.if_else(waits, SCHEDULE_TOPIC, topic), pc.if_else(waits, due, no_time)


def _plans_of_deliveries(
    half: HalfLog, schedule: ScheduleLog | None, facts: pa.Table, given_up: Collection[str]
) -> Iterator[Plan]:
    """Plan DELIVERED facts: first from the schedule, then from half what the schedule lacks.

    The last plan has no rows; it names the transactions whose messages are in neither, or in no
    queue of a topic.
    """
    fact, sequence = list_items(facts["sequences"])
    by_id = Groups.of(facts["transaction_id"])
    missing = np.arange(len(fact))
    unreadable: list[UnreadableFile] = []
    unfit: dict[str, str] = {}
    sources: list[tuple[Table, Sequence[str], str]] = [(half.table, _HALF_COLUMNS, "real_queue_id")]
    if schedule is not None and schedule.refresh().is_there:
        sources.insert(0, (schedule.table, _SCHEDULE_COLUMNS, "queue_id"))
    for table, columns, queue_column in sources:
        ids = by_id.keys if len(missing) else by_id.keys.slice(0, 0)
        messages = readable_rows(table, ids, columns)
        unreadable += messages.unreadable
        messages, problems = _that_fit(messages, ids, queue_column, "sequence")
        unfit |= problems
        addresses = (by_id.place[fact[missing]], sequence[missing])
        row = find_pairs(addresses, (messages.place, integers(messages.rows["sequence"], -1)))
        is_there = row >= 0
        rows = messages.rows.take(pa.array(row[is_there]))
        plan_rows = _delivered_rows(rows, facts, fact[missing[is_there]])
        yield Plan([PlanFile(table, file) for file in messages.files], plan_rows)
        missing = missing[~is_there]
    ids = pc.unique(facts["transaction_id"].take(pa.array(fact[missing])))
    problems = dict.fromkeys(ids.to_pylist(), "a delivered message is not there")
    for file in unreadable:
        problems |= dict.fromkeys(_names(ids, file.covers(ids)), file.problem)
    problems |= {name: problem for name, problem in unfit.items() if name in problems}
    no_rows = _delivered_rows(rows.slice(0, 0), facts, fact[:0])
    yield Plan([], no_rows, _waiting(problems, given_up), frozenset(unfit))


def _delivered_rows(messages: pa.Table, facts: pa.Table, fact: Integers) -> pa.Table:
    """Make the rows of a plan, one for each delivered message; `fact` is the row of its fact."""
    facts = facts.take(pa.array(fact))
    topic, queue_id = (
        messages[name if name in messages.column_names else f"real_{name}"]
        for name in ("topic", "queue_id")
    )
    due = pa.nulls(messages.num_rows, MICROSECONDS_UTC)
    columns = [topic, queue_id, facts["op_version"], facts["ordinal"], facts["life"], due,
               messages["file"], messages["row"], facts["rank"], messages["sequence"]]  # fmt: skip
    return pa.table(columns, names=[*_PLAN.names, "rank", "sequence"])


def _merged(plans: Sequence[Plan]) -> Plan:
    """Join several plans into one, in the order of the facts."""
    first_numbers = np.cumsum([0, *(len(plan.files) for plan in plans)])
    tables = []
    for plan, first_number in zip(plans, first_numbers.tolist(), strict=False):
        number = pc.add(plan.rows["file"], pa.scalar(first_number, pa.int32()))
        column = plan.rows.schema.get_field_index("file")
        tables.append(plan.rows.set_column(column, _PLAN.field("file"), number))
    rows = pa.concat_tables(tables)
    order = np.lexsort((integers(rows["sequence"], -1), integers(rows["rank"], 0)))
    files = [file for plan in plans for file in plan.files]
    missing = {name: problem for plan in plans for name, problem in plan.missing.items()}
    unfit = frozenset[str]().union(*(plan.unfit for plan in plans))
    return Plan(files, rows.take(pa.array(order)), missing, unfit)


def _without(plan: Plan, ranked: pa.Table) -> pa.Table:
    """Return the rows without those of missing transactions, which wait as a whole."""
    if not plan.missing:
        return plan.rows
    missing = pa.array(list(plan.missing), pa.string())
    ranks = ranked.filter(pc.is_in(ranked["transaction_id"], value_set=missing))["rank"]
    return plan.rows.filter(pc.invert(pc.is_in(plan.rows["rank"], value_set=ranks)))


@dataclass(frozen=True, slots=True)
class ReadableRows:
    """Messages of some transactions, once each.

    Attributes:
        files: all files that may hold them.
        rows: the messages, each with the number of its file and of its row in it.
        place: for each message the number of its transaction.
        unreadable: the files that could not be read.
    """

    files: Sequence[DataFile]
    rows: pa.Table
    place: Integers
    unreadable: Sequence[UnreadableFile]


def readable_rows(table: Table, ids: pa.Array, columns: Sequence[str]) -> ReadableRows:
    """Read these transactions' messages; read again where an unreadable file was replaced."""
    for _ in range(MOVED_ATTEMPTS):
        messages = _rows_now(table, table.files.ranges_holding("transaction_id", ids), ids, columns)
        if not messages.unreadable or not table.search.has_replaced(messages.unreadable):
            break
    return messages


def _rows_now(
    table: Table, spans: Sequence[FileRange], ids: pa.Array, columns: Sequence[str]
) -> ReadableRows:
    """Read the messages from the files as they are now; keep the first of equal ones."""
    fields = [table.schema.columns.field(name) for name in columns if name != "transaction_id"]
    tables = [pa.schema([*fields, *FILE_AND_ROW]).empty_table()]
    places, unreadable = [np.arange(0, dtype=np.int64)], []
    for group in _file_groups(spans, len(ids)):
        numbered, problems = _numbered_rows(table, spans, group, columns)
        unreadable += problems
        if numbered:
            rows, place = _needed(pa.concat_tables(numbered), ids)
            tables.append(rows)
            places.append(place)
    rows, place = pa.concat_tables(tables), np.concatenate(places)
    is_first = first_of_each(place, integers(rows["sequence"], -1))
    if not is_first.all():
        rows, place = rows.filter(pa.array(is_first)), place[is_first]
    return ReadableRows([span.file for span in spans], rows, place, unreadable)


def _file_groups(spans: Sequence[FileRange], ids: int) -> Iterator[range]:
    """Yield the numbers of files to read together.

    Their rows fit into memory, and are many enough for one hash of `ids`.
    """
    start, rows = 0, 0
    for number, span in enumerate(spans):
        rows += span.file.num_records
        if rows >= max(ROWS_READ_AT_ONCE, ids) or number == len(spans) - 1:
            yield range(start, number + 1)
            start, rows = number + 1, 0


def _numbered_rows(
    table: Table, spans: Sequence[FileRange], group: range, columns: Sequence[str]
) -> tuple[list[pa.Table], list[UnreadableFile]]:
    """Read the rows of some files with their numbers; return the unreadable files too."""
    if not table.search.has_unreadable:
        try:
            rows, counts = table.rows.read_counted(
                [spans[number].file for number in group], columns
            )
            return [_numbered(rows, group, counts)], []
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001, S110 - read again, file by file
            pass
    numbered, unreadable = [], []
    for number in group:
        span = spans[number]
        rows, problem = table.search.readable(
            span.file, partial(table.rows.read, [span.file], columns)
        )
        if rows is None:
            unreadable.append(UnreadableFile(span.file, span.low, span.high, problem))
        else:
            numbered.append(_numbered(rows, [number], [rows.num_rows]))
    return numbered, unreadable


def _numbered(rows: pa.Table, files: Sequence[int], counts: Sequence[int]) -> pa.Table:
    """Add to each row the number of its file and its own number in the file."""
    numbers = pa.array(np.repeat(np.array(files, dtype=np.int32), counts))
    firsts = np.cumsum([0, *counts[:-1]])
    row_numbers = pa.array(np.arange(rows.num_rows) - np.repeat(firsts, counts))
    return rows.append_column("file", numbers).append_column("row", row_numbers)


def _needed(rows: pa.Table, ids: pa.Array) -> tuple[pa.Table, Integers]:
    """Pick the rows of these transactions, without the id, and the place of each in `ids`."""
    place = integers(pc.index_in(rows["transaction_id"], value_set=ids), -1)
    rows, is_needed = rows.drop_columns(["transaction_id"]), place >= 0
    if is_needed.all():
        return rows, place
    return rows.filter(pa.array(is_needed)), place[is_needed]
