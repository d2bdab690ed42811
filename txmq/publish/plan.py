"""The plan: which messages a topic lacks, and which rows of which files hold them.

A plan is made from narrow columns, without bodies. The engines differ only in where the bodies are
copied by row number, without a sort (decision 0002): *arrow* streams record batches through this
process, *spark* lets tasks on executors do the same (decision 0071).

Many messages are planned piece by piece, and memory holds one piece (decision 0070). The pieces
follow each other in the order of the messages: by fact, then by sequence.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.files import DataFile, UnreadableFile
from txmq.delta.parquet import NewFile
from txmq.delta.reading import MOVED_ATTEMPTS
from txmq.delta.table import Table
from txmq.errors import PayloadMissingError, StorageError
from txmq.ground.columns import (
    Flags,
    Groups,
    Integers,
    are_in_order,
    equal_pairs,
    find_pairs,
    flags,
    in_order,
    integers,
    list_items,
    only,
)
from txmq.message.lifecycle import DeliveryState, TransactionState
from txmq.message.names import SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from txmq.publish.message_rows import (
    FILE_AND_ROW,
    FIRST,
    Place,
    Reach,
    Selection,
    are_many,
    reaches_of,
    row_schema,
    rows_of,
    spans_of,
)
from txmq.store.half import DELAY_COLUMNS, HalfLog, is_delayed
from txmq.store.schemas import HALF, MICROSECONDS_UTC
from txmq.store.settled import ScheduleLog
from txmq.store.topic import are_queues
from txmq.store.topic_settings import MAX_QUEUE_NUMS

BATCH_ROWS = 8192
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
_PLAN = pa.schema(
    [
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("op_version", pa.int64()),
        ("ordinal", pa.int64()),
        ("life", pa.int32()),
        ("deliver_timestamp", MICROSECONDS_UTC),
        *FILE_AND_ROW,
        ("fact", pa.int64()),
        ("sequence", pa.int64()),
    ]
)
_HALF_COLUMNS = (
    "transaction_id", "sequence", "real_topic", "real_queue_id", "message_count", *DELAY_COLUMNS,
)  # fmt: skip
_SCHEDULE_COLUMNS = ("transaction_id", "sequence", "topic", "queue_id")
# The plans of so many messages are kept; a row takes 60 B and its topic.
KEPT_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A file that holds bodies, and its table: the half log or the schedule."""

    table: Table
    file: DataFile


@dataclass(frozen=True, slots=True)
class Plan:
    """Messages that facts make visible, one row each, in the order of the facts.

    `rows`: topic, queue_id, op_version, ordinal, life, deliver_timestamp (for the schedule only),
    file (the number of the file in `files`), row (the number of the row in the file), fact (its
    number among the facts, in their order), sequence.
    """

    files: Sequence[PlanFile]
    rows: pa.Table

    def of_topic(self, topic: str, after: int) -> Plan:
        """Return the plan of the messages of one topic whose op_version is above a mark."""
        is_missing = pc.and_(
            pc.equal(self.rows["topic"], topic), pc.greater(self.rows["op_version"], after)
        )
        if pc.all(is_missing).as_py():
            return self
        return self.only(is_missing)

    def topics(self) -> set[str]:
        """Return the topics that get messages."""
        return set(pc.unique(self.rows["topic"]).to_pylist())

    def only(self, is_chosen: Any) -> Plan:
        """Return the plan with the rows for which `is_chosen` is true."""
        return replace(self, rows=self.rows.filter(is_chosen))

    def without(self, is_out: Flags) -> Plan:
        """Return the plan without the messages of these facts."""
        if not is_out.any():
            return self
        return self.only(pa.array(~is_out[integers(self.rows["fact"], 0)]))

    def used_files(self) -> list[PlanFile]:
        """Return the files that hold at least one of the messages."""
        return [self.files[number] for number in pc.unique(self.rows["file"]).to_pylist()]

    def with_used_files(self) -> Plan:
        """Return the plan without the files that hold none of the messages."""
        numbers, number = np.unique(integers(self.rows["file"], 0), return_inverse=True)
        if len(numbers) == len(self.files):
            return self
        place = self.rows.schema.get_field_index("file")
        column = pa.array(number.astype(np.int32))
        rows = self.rows.set_column(place, self.rows.schema.field(place), column)
        return Plan([self.files[number] for number in numbers.tolist()], rows)

    def size_bytes(self) -> int:
        """Return the size of the files that hold the bodies, of each as much as rows are used."""
        numbers, counts = np.unique(integers(self.rows["file"], 0), return_counts=True)
        files = [self.files[number].file for number in numbers.tolist()]
        return sum(
            file.size_bytes * min(count, rows) // rows
            for file, count in zip(files, counts.tolist(), strict=True)
            for rows in [file.num_records or count]
        )


class NumberedPlan(NamedTuple):
    """A plan, and the queue_offset of each of its messages."""

    plan: Plan
    offsets: Integers


class PayloadEngine(Protocol):
    """Copies the bodies of plans into new files of a topic; 0 commits."""

    def write(self, topic: Table, plans: Iterable[NumberedPlan], now_ms: int) -> list[NewFile]:
        """Write new files of `topic` with the messages of plans that follow each other."""
        ...


class DistributedEngine(PayloadEngine, Protocol):
    """An engine whose tasks run in other processes."""

    def slots(self, topic: Table) -> int:
        """Return how many tasks it makes by default, each where the topic can be written.

        Raises: EnvironmentProblemError, StorageError: they cannot be run.
        """
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the order of messages, from `begin` to before `end`.

    Attributes:
        rows: how many messages it has.
        topics: those that get some, each with the bytes of their bodies.
    """

    begin: Place
    end: Place
    rows: int
    topics: Mapping[str, int]

    @classmethod
    def of(cls, plan: Plan, begin: Place, end: Place) -> Self:
        """Return the piece of a plan."""
        return cls(begin, end, plan.rows.num_rows, _topics(plan))


# --- pieces ---------------------------------------------------------------------------------------


class Plans:
    """The messages that facts make visible, planned piece by piece.

    The plans of the first pieces are kept; the others are made again at each use. Safe for threads
    that do not use the tables otherwise.

    Attributes:
        facts: those that were planned, in the order of their claims.
        through: the op version up to which they are planned; None for all that were asked for.
        missing: transactions that are in no piece, because messages of them cannot be read.
        unfit: those of them whose messages are there, and no queue of a topic can take one.
    """

    def __init__(self, search: _Search, look: _Look, facts: pa.Table, through: int | None) -> None:
        """Keep what a look found of these facts."""
        self.facts, self.through = facts, through
        self._search, self._pieces = search, look.pieces
        self.missing, self.unfit = look.problems(facts)
        self._is_out = _are_among(facts["transaction_id"], self.missing)
        self._plans = [plan.without(self._is_out) for plan in look.plans]
        self._lock = threading.Lock()

    @property
    def is_whole(self) -> bool:
        """Whether all is planned already."""
        return len(self._plans) == len(self._pieces)

    def topics(self) -> list[str]:
        """Return the sorted names of the topics that get messages."""
        topics = {topic for plan in self._plans for topic in plan.topics()}
        return sorted(topics.union(*(piece.topics for piece in self._pieces[len(self._plans) :])))

    def size_bytes(self, topic: str) -> int:
        """Return how large the bodies for one topic are, about."""
        return sum(piece.topics.get(topic, 0) for piece in self._pieces)

    def of_topic(self, topic: str, after: int = -1) -> Iterator[Plan]:
        """Plan the messages of one topic whose op_version is above a mark, in their order.

        Each plan has at least one. Raises: as the search for messages. Commits: 0.
        """
        for number, piece in enumerate(self._pieces):
            if topic in piece.topics:
                plan = self._planned(number).of_topic(topic, after)
                if plan.rows.num_rows:
                    yield plan

    def first(self) -> Plan:
        """Return the plan of the first piece; an empty one if there is none."""
        return self._planned(0) if self._pieces else Plan([], _PLAN.empty_table())

    def owners(self, topic: str) -> set[str]:
        """Return the transactions with messages for a topic."""
        return {name for plan in self.of_topic(topic) for name in self.owners_in(plan)}

    def owners_in(self, plan: Plan) -> list[str]:
        """Return the transactions of the messages in a plan."""
        ids = self.facts["transaction_id"].take(pc.unique(plan.rows["fact"]))
        return list(pc.unique(ids).to_pylist())

    def has_replaced(self, source: PlanFile, problem: str) -> bool:
        """Tell whether another process replaced a file that could not be read."""
        with self._lock:
            unreadable = [UnreadableFile(source.file, None, None, problem)]
            return source.table.search.has_replaced(unreadable)

    def no_facts(self) -> Flags:
        """Return a flag for each fact, false for all."""
        return np.zeros(self.facts.num_rows, dtype=bool)

    def are_about(self, transaction_ids: Collection[str]) -> Flags:
        """Tell of each fact whether it is about one of these transactions."""
        return _are_among(self.facts["transaction_id"], transaction_ids)

    def _planned(self, number: int) -> Plan:
        if number < len(self._plans):
            return self._plans[number]
        piece = self._pieces[number]
        with self._lock:
            part = self._search.part(self.facts, piece.begin, piece.end)
        if (count := part.plan.rows.num_rows) != piece.rows:
            # Nothing may be passed over that was there when it was looked at.
            problem = f"{count:,} of {piece.rows:,} messages are there; trying again"
            raise StorageError("half", next((each.problem for each in part.unreadable), problem))
        return part.plan.without(self._is_out)


def _are_among(transaction_ids: pa.ChunkedArray, names: Collection[str]) -> Flags:
    if not names:
        return np.zeros(len(transaction_ids), dtype=bool)
    return flags(pc.is_in(transaction_ids, value_set=pa.array(list(names), pa.string())))


def plans_of(  # noqa: PLR0913 - the tables, and how much of them
    half: HalfLog,
    facts: pa.Table,
    schedule: ScheduleLog | None = None,
    given_up: Collection[str] = (),
    piece_rows: int | None = None,
    *,
    is_all: bool = False,
) -> Plans:
    """Plan the messages that COMMITTED, DISCARDED, EXPIRED and DELIVERED facts make visible.

    Args:
        half: holds the bodies; its handle must not be older than the facts.
        facts: SHOWN_COLUMNS, in any order.
        schedule: holds the bodies of DELIVERED messages; it is refreshed if there are any.
        given_up: transactions of which only the messages are planned that can be read.
        piece_rows: how many messages a piece has, about; None for all in one piece.
        is_all: plan all facts. Else a plan ends with the first piece, behind the last op version
            that is planned whole; it has at least one.

    Returns: the plans; transactions that cannot be read or written as a whole are `missing` there.

    Reads: half and the schedule, without bodies. Commits: 0.
    """
    facts = in_order(facts, "op_version", "ordinal")
    search = _Search(half, schedule, piece_rows)
    look = _Look(facts.num_rows, given_up)
    versions = integers(facts["op_version"], 0)
    begin = Place(0)
    while begin.fact < facts.num_rows:
        part = search.part(facts, begin)
        look.add(part, begin)
        begin = part.end
        if is_all or begin.fact == facts.num_rows:
            continue
        # The facts of the op version that is not planned whole are left to the next plan.
        if (first := int(np.searchsorted(versions, versions[begin.fact]))) > 0:
            look.cut(first)
            return Plans(search, look, facts.slice(0, first), int(versions[first]) - 1)
    return Plans(search, look, facts, None)


def make_plan(half: HalfLog, facts: pa.Table, schedule: ScheduleLog | None = None) -> Plan:
    """Plan as `plans_of`, in one piece; demand that each message is there that a queue can take.

    Raises:
        PayloadMissingError: a committed transaction has fewer halves than it was settled with, or
            a delivered message is in neither table. No message is skipped.
    """
    plans = plans_of(half, facts, schedule)
    lost = {name: problem for name, problem in plans.missing.items() if name not in plans.unfit}
    if lost:
        first, problem = next(iter(lost.items()))
        what = f"messages of {len(lost):,} committed transactions cannot be read"
        next_step = f"restore them, first those of {first} ({problem}); no message is skipped"
        raise PayloadMissingError("half", f"{what}; {next_step}")
    return plans.first()


class _Look:
    """What a look at all pieces finds: which topics get messages, and which transactions lack some.

    A transaction may reach over several pieces, so its messages are counted by fact.
    """

    def __init__(self, facts: int, given_up: Collection[str]) -> None:
        """Count nothing yet."""
        self.pieces: list[Piece] = []
        # Of the first pieces.
        self.plans: list[Plan] = []
        self._kept_rows = 0
        self._given_up = given_up
        self._messages = np.zeros(facts, dtype=np.int64)
        self._message_count = np.full(facts, -1, dtype=np.int64)
        self._unreadable: dict[str, UnreadableFile] = {}
        self._lost: dict[str, str] = {}
        self._unfit: dict[str, str] = {}

    def add(self, part: _Part, begin: Place) -> None:
        """Add a piece."""
        self._last = part.plan
        self._kept_rows += part.plan.rows.num_rows
        if self._kept_rows <= KEPT_ROWS or not self.pieces:
            self.plans.append(part.plan)
        self.pieces.append(Piece.of(part.plan, begin, part.end))
        self._messages += np.bincount(part.messages, minlength=len(self._messages))
        np.maximum.at(self._message_count, part.heads[0], part.heads[1])
        self._unreadable |= {file.file.path: file for file in part.unreadable}
        self._lost |= part.lost
        self._unfit |= part.unfit

    def cut(self, facts: int) -> None:
        """Leave all but the first facts out of the last piece, which begins with one of these."""
        plan = self._last.only(pc.less(self._last.rows["fact"], facts))
        self.pieces[-1] = Piece.of(plan, self.pieces[-1].begin, Place(facts))
        if len(self.plans) == len(self.pieces):
            self.plans[-1] = plan

    def problems(self, facts: pa.Table) -> tuple[dict[str, str], frozenset[str]]:
        """Find the transactions that lack messages.

        A dead letter need not be complete, but what an unreadable file may hold of it is waited
        for.

        Returns: the problem of each, and which of them hold a message that no queue can take.
        """
        ids, count = facts["transaction_id"].combine_chunks(), facts.num_rows
        is_short = self._messages[:count] != self._message_count[:count]
        if not (is_short.any() or self._lost or self._unfit):
            return {}, frozenset()
        is_short &= flags(pc.is_in(facts["state"], value_set=pa.array(SHOWN_STATES)))
        is_committed = flags(pc.equal(facts["state"], TransactionState.COMMITTED.value))
        short = dict.fromkeys(_names(ids, is_committed & is_short), "its halves are not there")
        for file in self._unreadable.values():
            short |= dict.fromkeys(_names(ids, is_short & file.covers(ids)), file.problem)
        others = {**self._lost, **self._unfit}
        names = set(ids.to_pylist()) if others else set()
        problems = {**short, **{name: text for name, text in others.items() if name in names}}
        missing = {name: text for name, text in problems.items() if name not in self._given_up}
        return missing, frozenset(self._unfit.keys() & names) - short.keys()


def _topics(plan: Plan) -> dict[str, int]:
    """Return the topics of a plan, each with the bytes of its bodies, about."""
    if not plan.rows.num_rows:
        return {}
    row_bytes = plan.size_bytes() / plan.rows.num_rows
    counts = pc.value_counts(plan.rows["topic"]).to_pylist()
    return {each["values"]: int(each["counts"] * row_bytes) for each in counts}


def merged(plans: Sequence[Plan]) -> Plan:
    """Join plans that follow each other; a file that several of them name is named once."""
    if len(plans) == 1:
        return plans[0]
    files: dict[tuple[int, str], tuple[int, PlanFile]] = {}
    tables = []
    for plan in plans:
        numbers = [
            files.setdefault((id(file.table), file.file.path), (len(files), file))[0]
            for file in plan.files
        ]
        of_rows = pa.array(numbers, pa.int32()).take(plan.rows["file"])
        column = plan.rows.schema.get_field_index("file")
        tables.append(plan.rows.set_column(column, plan.rows.field("file"), of_rows))
    return Plan([file for _, file in files.values()], pa.concat_tables(tables))


# --- the messages of a piece ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """One piece, planned.

    Attributes:
        end: the place behind it.
        messages: the fact of each message that a transaction is said to have.
        heads: the facts of the heads, and how many messages each names.
        unreadable: the files that could not be read.
        lost: transactions of which a delivered message is in neither table, and why.
        unfit: transactions with a message that no queue of a topic can take, and why.
    """

    plan: Plan
    end: Place
    messages: Integers
    heads: tuple[Integers, Integers]
    unreadable: Sequence[UnreadableFile]
    lost: Mapping[str, str]
    unfit: Mapping[str, str]


class _Search:
    """Finds the messages of facts in half and in the schedule. Not safe for several threads."""

    def __init__(self, half: HalfLog, schedule: ScheduleLog | None, piece_rows: int | None) -> None:
        """Read nothing yet."""
        self._half, self._schedule, self._piece_rows = half, schedule, piece_rows
        self._reaches: dict[str, Reach] = {}

    def part(self, facts: pa.Table, begin: Place, end: Place | None = None) -> _Part:
        """Plan the messages from `begin` to before `end`, or as many as a piece has.

        Args:
            facts: SHOWN_COLUMNS, in the order of their claims.
            begin: the first place.
            end: None for the end of a piece.
        """
        stop = end or Place(self._last_fact(facts, begin))
        count = stop.fact + (stop.sequence > FIRST) - begin.fact
        numbers = pa.array(np.arange(begin.fact, begin.fact + count))
        some = facts.slice(begin.fact, count).append_column("fact", numbers)
        shown = some.filter(pc.is_in(some["state"], value_set=pa.array(SHOWN_STATES)))
        rows = None if end else self._piece_rows
        selection = Selection(begin, stop, rows, row_schema(HALF, _HALF_COLUMNS))
        # The first piece learns of all facts, so that the next ones read no file again in vain.
        learns = begin == Place(0) and stop.fact == facts.num_rows
        messages = _messages_of(self._half.table, shown, selection, self._reaches, learns=learns)
        self._reaches |= messages.reaches
        is_here = pc.less(some["fact"], messages.end.fact)
        delivered = some.filter(pc.and_(is_here, pc.equal(some["state"], DELIVERED)))
        part = _part_of(self._half.table, messages, shown)
        if delivered.num_rows:
            part = self._with_deliveries(part, delivered)
        return replace(part, plan=part.plan.with_used_files())

    def _last_fact(self, facts: pa.Table, begin: Place) -> int:
        """Return the number of the fact before which a piece ends that begins here.

        A fact makes one message visible, or more; a delivery names them.
        """
        if self._piece_rows is None:
            return int(facts.num_rows)
        some = facts.slice(begin.fact, self._piece_rows)
        named = integers(pc.list_value_length(some["sequences"]), 1)
        count = int(np.searchsorted(np.cumsum(np.maximum(named, 1)), self._piece_rows, "right"))
        return begin.fact + max(1, count)

    def _with_deliveries(self, part: _Part, facts: pa.Table) -> _Part:
        """Add DELIVERED facts: from the schedule first, then from half what it lacks."""
        deliveries = _Deliveries(facts)
        sources: list[tuple[Table, Sequence[str], str]]
        sources = [(self._half.table, _HALF_COLUMNS, "real_queue_id")]
        if self._schedule is not None and self._schedule.refresh().is_there:
            sources.insert(0, (self._schedule.table, _SCHEDULE_COLUMNS, "queue_id"))
        plan = merged([part.plan, *(deliveries.planned(*source) for source in sources)])
        rows = in_order(plan.rows, "fact", "sequence")
        lost = deliveries.lost()
        unfit = {name: text for name, text in deliveries.unfit.items() if name in lost}
        return replace(
            part, plan=replace(plan, rows=rows), lost=lost, unfit={**part.unfit, **unfit}
        )


@dataclass(frozen=True, slots=True)
class _Messages:
    """Messages of some transactions, once for each fact that shows them.

    Attributes:
        files: all files that may hold them.
        rows: the messages, each with the number of its file and of its row in it.
        fact: of each message.
        end: the place before which they stand.
        reaches: what each file that was read holds of these facts, by its path.
    """

    files: Sequence[DataFile]
    rows: pa.Table
    fact: Integers
    unreadable: Sequence[UnreadableFile]
    end: Place
    reaches: Mapping[str, Reach]


def _messages_of(
    table: Table,
    facts: pa.Table,
    selection: Selection,
    reaches: Mapping[str, Reach],
    *,
    learns: bool,
) -> _Messages:
    """Read the halves that facts about whole transactions show.

    They are read again where an unreadable file was replaced. `reaches` tells more of files than
    their statistics do; with `learns` the result tells it of those that were read.
    """
    by_id, numbers = Groups.of(facts["transaction_id"]), integers(facts["fact"], 0)
    for _ in range(MOVED_ATTEMPTS):
        files, spans = spans_of(table, by_id, numbers, reaches)
        selection.begin_anew()
        unreadable = []
        seen = dict[str, Reach]()
        for rows in rows_of(table, spans, by_id.keys, _HALF_COLUMNS, selection):
            if isinstance(rows, UnreadableFile):
                unreadable.append(rows)
                continue
            # A transaction may have had many lives, each with all its messages.
            near = np.flatnonzero(selection.are_near(numbers))
            row, fact = equal_pairs(rows.place, by_id.place[near], len(by_id.keys))
            selection.add(rows.rows, row, numbers[near][fact])
            if learns and are_many(files):
                seen |= reaches_of(rows, files, by_id, numbers)
        if not unreadable or not table.search.has_replaced(unreadable):
            break
    selected = selection.selected()
    return _Messages(files, *selected, unreadable, selection.end, seen)


def _part_of(table: Table, messages: _Messages, facts: pa.Table) -> _Part:
    """Plan the messages that facts about whole transactions show."""
    rows, fact = messages.rows, messages.fact
    message_count = integers(rows["message_count"], -1)
    is_head = message_count >= 0
    is_message = flags(pc.is_valid(rows["real_topic"]))
    is_unfit = ~are_queues(rows["real_queue_id"]) & is_message
    row = np.searchsorted(integers(facts["fact"], 0), fact)
    unfit = _unfit(rows["real_queue_id"], facts["transaction_id"], row, is_unfit)
    chosen = is_message & ~is_unfit
    plan_rows = _ordered(only(rows, chosen), facts, row[chosen])
    return _Part(
        Plan([PlanFile(table, file) for file in messages.files], plan_rows),
        messages.end,
        fact[is_message],
        (fact[is_head], message_count[is_head]),
        messages.unreadable,
        {},
        unfit,
    )


def _unfit(
    queues: pa.ChunkedArray, ids: pa.ChunkedArray, place: Integers, is_unfit: Flags
) -> dict[str, str]:
    """Tell of each transaction with a message for a queue that no topic has, which one.

    Other programs write them; such a row would take the offsets of an honest one.
    """
    if not is_unfit.any():
        return {}
    owners = ids.take(pa.array(place[is_unfit])).to_pylist()
    numbers = queues.filter(pa.array(is_unfit)).to_pylist()
    problem = "a message of it is for queue {}, and a topic has queues from 0 to {}"
    return {
        owner: problem.format("null" if number is None else number, MAX_QUEUE_NUMS - 1)
        for owner, number in zip(owners, numbers, strict=True)
    }


def _names(ids: pa.Array, chosen: Flags) -> list[str]:
    return list(ids.filter(pa.array(chosen)).to_pylist())


def _ordered(halves: pa.Table, facts: pa.Table, fact_row: Integers) -> pa.Table:
    """Make a row of the plan for each message that becomes visible, in the order of the facts.

    A message may become visible twice: as a dead letter of a DISCARDED life, and by a later COMMIT.
    """
    sequence = integers(halves["sequence"], -1)
    if not are_in_order(fact_row, sequence):
        order = np.lexsort((sequence, fact_row))
        halves, fact_row = halves.take(pa.array(order)), fact_row[order]
    fact = pa.array(fact_row)
    topic, due = _topics_and_times(halves, facts, fact)
    version, ordinal, life, number = (
        facts[name].take(fact) for name in ("op_version", "ordinal", "life", "fact")
    )
    columns = [topic, halves["real_queue_id"], version, ordinal, life, due, halves["file"],
               halves["row"], number, halves["sequence"]]  # fmt: skip
    return pa.table(columns, names=_PLAN.names)


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


# --- deliveries -----------------------------------------------------------------------------------


class _Deliveries:
    """The messages that DELIVERED facts name, until each was found in one of the tables.

    Attributes:
        unfit: transactions with a message that no queue of a topic can take, and why.
    """

    def __init__(self, facts: pa.Table) -> None:
        """Look for all of them."""
        self._facts = facts
        self._fact, self._sequence = list_items(facts["sequences"])
        self._by_id = Groups.of(facts["transaction_id"])
        self._missing = np.arange(len(self._fact))
        self._unreadable: list[UnreadableFile] = []
        self.unfit: dict[str, str] = {}

    def planned(self, table: Table, columns: Sequence[str], queue_column: str) -> Plan:
        """Plan those that are missing yet and that a table has."""
        fact, sequence = self._fact[self._missing], self._sequence[self._missing]
        addresses = (self._by_id.place[fact], sequence)
        ids = self._by_id.keys if len(fact) else self._by_id.keys.slice(0, 0)
        files, rows, place = self._read(table, columns, ids, addresses)
        is_unfit = ~are_queues(rows[queue_column])
        self.unfit |= _unfit(rows[queue_column], self._by_id.keys, place, is_unfit)
        rows, place = only(rows, ~is_unfit), place[~is_unfit]
        row = find_pairs(addresses, (place, integers(rows["sequence"], -1)))
        is_there = row >= 0
        self._missing = self._missing[~is_there]
        plan_rows = _delivered_rows(
            rows.take(pa.array(row[is_there])), self._facts, fact[is_there], queue_column
        )
        return Plan([PlanFile(table, file) for file in files], plan_rows)

    def lost(self) -> dict[str, str]:
        """Tell of each transaction with a message that no table has, why."""
        ids = pc.unique(self._facts["transaction_id"].take(pa.array(self._fact[self._missing])))
        problems = dict.fromkeys(ids.to_pylist(), "a delivered message is not there")
        for file in self._unreadable:
            problems |= dict.fromkeys(_names(ids, file.covers(ids)), file.problem)
        return problems | {name: text for name, text in self.unfit.items() if name in problems}

    def _read(
        self, table: Table, columns: Sequence[str], ids: pa.Array, addresses: tuple[Any, Any]
    ) -> tuple[Sequence[DataFile], pa.Table, Integers]:
        """Read the messages with these addresses; again where an unreadable file was replaced."""
        for _ in range(MOVED_ATTEMPTS):
            files, spans = spans_of(table, Groups(ids, np.arange(len(ids))), np.arange(len(ids)))
            tables = [row_schema(table.schema, columns).empty_table()]
            places, unreadable = [np.arange(0, dtype=np.int64)], []
            for rows in rows_of(table, spans, ids, columns):
                if isinstance(rows, UnreadableFile):
                    unreadable.append(rows)
                    continue
                is_named = (
                    find_pairs((rows.place, integers(rows.rows["sequence"], -1)), addresses) >= 0
                )
                tables.append(only(rows.rows, is_named))
                places.append(rows.place[is_named])
            if not unreadable or not table.search.has_replaced(unreadable):
                break
        self._unreadable += unreadable
        return files, pa.concat_tables(tables), np.concatenate(places)


def _delivered_rows(
    messages: pa.Table, facts: pa.Table, fact: Integers, queue_column: str
) -> pa.Table:
    """Make the rows of a plan, one for each delivered message; `fact` is the row of its fact."""
    facts = facts.take(pa.array(fact))
    topic = messages[queue_column.replace("queue_id", "topic")]
    due = pa.nulls(messages.num_rows, MICROSECONDS_UTC)
    columns = [topic, messages[queue_column], facts["op_version"], facts["ordinal"], facts["life"],
               due, messages["file"], messages["row"], facts["fact"],
               messages["sequence"]]  # fmt: skip
    return pa.table(columns, names=_PLAN.names)
