"""What a rebuild of a topic would change: its rows beside the messages that it should show."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.files import DataFile, FileRange
from txmq.errors import StorageError, TopicNotRebuiltError
from txmq.ground.columns import Flags, Integers, first_of_each, flags, integers, python_values
from txmq.ground.results import plain
from txmq.maintenance.retention import topic_begins
from txmq.publish.engines import copied
from txmq.publish.plan import BATCH_ROWS, DELIVERED, NumberedPlan, Plan, make_plan
from txmq.publish.progress import PublishProgress
from txmq.store.half import HalfLog
from txmq.store.known import kept_since_ms, maintenance_value
from txmq.store.schemas import TOPIC
from txmq.store.settled import NOTHING, ScheduleLog
from txmq.store.store import Store
from txmq.store.topic import MovedOffsets, TopicLog, moved_offsets, offsets_in_order

logger = logging.getLogger(__name__)
# A rebuild counts offsets again, and keeps the time at which a row was stored.
_NOT_CONTENT = ("queue_offset", "store_timestamp")
_DIGESTED = tuple(name for name in TOPIC.columns.names if name not in _NOT_CONTENT)
_SHOWN = ("queue_id", "queue_offset", "op_version", "sequence", "store_timestamp")
# The number of no row, for example of a message that the topic does not show.
NONE = -1


@dataclass(frozen=True, slots=True)
class TopicRebuild:
    """What a rebuild changes, or has changed.

    Attributes:
        op_version: after the rebuild the topic is complete up to this version of the op log.
        rows: how many messages the topic shows after the rebuild.
        missing: messages that the topic should show and does not.
        extra: rows that belong to no message: duplicates, or rows of unknown origin.
        different: messages with a wrong content or a wrong offset.
        kept: messages that only the topic itself still holds: retention has taken their halves.
        unpublished: messages that the publisher has not shown yet, which is no fault.
        marks_differ: whether the mark or a next offset is wrong, or the topic was further once.
        groups: consumer groups under which offsets would move, or of whose dead letters notes
            would; a rebuild refuses, or puts them back by force. After it those that went back,
            also those that read the old order while it slept.
        is_written: false in a dry run, and where nothing is wrong.
    """

    topic: str
    op_version: int
    rows: int
    missing: int
    extra: int
    different: int
    kept: int
    unpublished: int
    marks_differ: bool
    groups: tuple[str, ...] = ()
    is_written: bool = False

    @property
    def is_needed(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.missing or self.extra or self.different or self.marks_differ)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**plain(self), "is_needed": self.is_needed}


class TopicComparison:
    """Compares the rows of a topic with the messages that it should show by half and settled.

    The rows after a rebuild are numbered: first the rows of the plan in `expected`, then `kept`.

    Attributes:
        match: for each row of the plan the row of `shown` that shows it, or NONE.
        kept: rows of `shown` that only the topic itself still holds.
        offsets: the queue offset of each row after a rebuild, by its number.
        next_offsets: the next offset of each queue after a rebuild.
        begin: the op version up to which retention may have removed messages; None where it
            removed none.
    """

    def __init__(self, store: Store, topic: str) -> None:
        """Read and compare; 0 commits.

        The topic is pinned before the facts are read: facts are only ever added, so those that
        are read afterwards explain every row of the pinned version.
        """
        op = store.tables.op_log().table
        register = store.tables.register("publisher", PublishProgress)
        progress = PublishProgress.from_value(register.read().value, op)
        self._published = _published_up_to(progress, topic)
        self.known_end = progress.ends.get(topic)
        self.log = store.tables.topic_log(topic, op.log.table_id)
        self.log.table.refresh()
        self.op_table_id = op.log.table_id
        self.begin = topic_begins(store).get(topic)
        self._after = NOTHING if self.begin is None else self.begin
        self.expected = expected_rows(store, op.log.table_id, topic, self._after)
        self.shown = shown_rows(self.log, self.expected.first_kept_id)
        self.match = self._matched()
        self.kept, self._extra = self._kept_and_extra(store)
        self._rows = self._ordered()
        self._base = self._bases()
        self.offsets, self.next_offsets = self._numbered()

    # --- the result -----------------------------------------------------------------------------

    def result(self) -> TopicRebuild:
        """Tell how the rows differ from the messages that the topic should show."""
        is_shown = self.match != NONE
        unpublished = ~is_shown & self._is_unpublished()
        return TopicRebuild(
            self.log.name,
            self.expected.op_version,
            rows=len(self._rows),
            missing=int((~is_shown & ~unpublished).sum()),
            extra=self._extra,
            different=self._different(is_shown),
            kept=len(self.kept),
            unpublished=int(unpublished.sum()),
            marks_differ=self._marks_differ(unpublished),
        )

    def _is_unpublished(self) -> Flags:
        versions = integers(self.expected.plan.rows["op_version"], 0)
        # A parked topic is behind the publisher; one that another publisher wrote may be ahead.
        return versions > max(self._published, self.log.mark)

    def _different(self, is_shown: Flags) -> int:
        present = self._present_offsets()
        moved = (present != NONE) & (present != self.offsets)
        matched = self.match[is_shown]
        changed = np.zeros(len(present), dtype=bool)
        changed[: len(is_shown)][is_shown] = (
            self.expected.digests[is_shown] != self.shown.digests[matched]
        )
        return int((moved | changed).sum())

    def _marks_differ(self, unpublished: Flags) -> bool:
        if self.known_end is not None and self.log.end.is_behind(self.known_end):
            return True
        mark, shown = self.log.mark, self.shown.op_version[self.match[self.match != NONE]]
        if mark > self.expected.op_version or (len(shown) and mark < shown.max()):
            return True
        later = integers(self.expected.plan.rows["queue_id"], 0)[unpublished]
        right = {
            queue: offset - int((later == queue).sum())
            for queue, offset in self.next_offsets.items()
        }
        return self.log.next_offsets(list(right)) != right

    @property
    def moved_from(self) -> dict[int, int]:
        """The first offset of each queue that a rebuild gives to another message, if any."""
        present, queues = self._present_offsets(), self._queues()
        moved = (present != NONE) & (present != self.offsets)
        first = np.minimum(present, self.offsets)
        begin = {int(q): int(first[moved & (queues == q)].min()) for q in np.unique(queues[moved])}
        for queue, end in self.log.next_offsets(list(self.next_offsets)).items():
            # The next messages would get offsets that groups have passed already.
            if self.next_offsets[queue] < end:
                begin[queue] = min(begin.get(queue, end), self.next_offsets[queue])
        return begin

    @property
    def moved_before(self) -> MovedOffsets:
        """What the rebuilds before this one moved."""
        return moved_offsets(self.log.table)

    @property
    def row_count(self) -> int:
        """How many messages the topic shows after a rebuild."""
        return len(self._rows)

    # --- which rows stay ------------------------------------------------------------------------

    def _matched(self) -> Integers:
        """Find the row that shows each expected message; of duplicates the one that is right."""
        place = self._places()
        is_same = self._is_same(place)
        # Of rows that are right the first one stays, so that no offset moves without need.
        order = np.lexsort((self.shown.queue_offset, ~is_same, place))
        order = order[place[order] != NONE]
        first = order[first_of_each(place[order], np.zeros(len(order), dtype=np.int64))]
        match = np.full(len(self.expected.keys), NONE, dtype=np.int64)
        match[place[first]] = first
        return match

    def _places(self) -> Integers:
        return integers(pc.index_in(self.shown.keys, value_set=self.expected.keys), NONE)

    def _is_same(self, place: Integers) -> Flags:
        if not len(self.expected.digests):
            return np.zeros(len(place), dtype=bool)
        is_equal = np.equal(self.expected.digests[place], self.shown.digests)
        is_same: Flags = np.logical_and(is_equal, place != NONE)
        return is_same

    def _kept_and_extra(self, store: Store) -> tuple[Integers, int]:
        """Find the rows that only the topic still holds, and count the rows to remove."""
        shown = self.shown
        rest = np.flatnonzero(self._places() == NONE)
        ids = shown.transaction_ids.take(pa.array(rest))
        half = store.tables.half_log().table
        halves = half.search.rows_of(
            "transaction_id", pc.unique(ids).drop_null(), ("transaction_id",)
        )
        has_half = integers(pc.index_in(ids, value_set=pc.unique(halves["transaction_id"])), NONE)
        is_old = shown.op_version[rest] <= self._after
        forgotten = self.expected.is_forgotten(ids)
        kept = rest[np.where(has_half == NONE, forgotten, is_old)]
        kept = kept[shown.op_version[kept] <= self.expected.op_version]
        kept = self._without_duplicates(kept)
        matched = int((self.match != NONE).sum())
        return kept, len(shown.keys) - matched - len(kept)

    def _without_duplicates(self, kept: Integers) -> Integers:
        """Find the first row of each message. Raises: TopicNotRebuiltError if its rows differ."""
        keys = self.shown.keys.take(pa.array(kept))
        place = integers(pc.index_in(keys, value_set=pc.unique(keys)), NONE)
        is_first = first_of_each(place, np.zeros(len(place), dtype=np.int64))
        contents = first_of_each(place, self.shown.digests[kept])
        if contents.sum() > is_first.sum():
            problem = "holds several contents of a message whose half is gone; none is proven"
            raise TopicNotRebuiltError(self.log.name, problem)
        return kept[is_first]

    # --- order and offsets ----------------------------------------------------------------------

    def _ordered(self) -> Integers:
        """Sort the numbers of all rows by the order of their claims."""
        plan, shown, kept = self.expected.plan.rows, self.shown, self.kept
        ordinals = np.concatenate([integers(plan["ordinal"], 0), self._kept_ordinals()])
        # The rows of the plan are in order already.
        last = np.concatenate([np.arange(plan.num_rows), shown.sequence[kept]])
        return np.lexsort((last, ordinals, self._versions()))

    def _kept_ordinals(self) -> Integers:
        """Find the ordinals of kept rows: of their facts, else before all, in present order."""
        gone, shown = self.expected.gone, self.shown
        claims = _claim_keys(gone["transaction_id"], gone["op_version"])
        ids = shown.transaction_ids.take(pa.array(self.kept))
        kept_claims = _claim_keys(ids, pa.array(shown.op_version[self.kept]))
        fact = integers(pc.index_in(kept_claims, value_set=claims), NONE)
        before_all = shown.queue_offset[self.kept] - (1 << 62)
        if not gone.num_rows:
            return before_all
        return np.where(fact == NONE, before_all, integers(gone["ordinal"], 0)[fact])

    def _queues(self) -> Integers:
        """Return the queue of each row."""
        queues = integers(self.expected.plan.rows["queue_id"], 0)
        return np.concatenate([queues, self.shown.queue_id[self.kept]])

    def _present_offsets(self) -> Integers:
        """Return the offset that each row has now, or NONE."""
        shown, match = self.shown.queue_offset, self.match
        offsets = shown[match] if len(shown) else match
        return np.concatenate([np.where(match == NONE, NONE, offsets), shown[self.kept]])

    def _versions(self) -> Integers:
        """Return the op version of the claim that made each row visible."""
        versions = integers(self.expected.plan.rows["op_version"], 0)
        return np.concatenate([versions, self.shown.op_version[self.kept]])

    def _counted(self) -> Integers:
        """List rows that get a new offset, in order; rows before `begin` keep the one they have."""
        return self._rows[self._versions()[self._rows] > self._after]

    def _bases(self) -> dict[int, int]:
        """Find the offset of the first counted row of each queue."""
        rows = self._counted()
        queues = self._queues()[rows]
        places, _ = offsets_in_order(pa.chunked_array([pa.array(queues)]), {})
        present = self._present_offsets()[rows]
        shift, is_present = present - places, present != NONE
        return {
            int(queue): self._base_of(int(queue), shift[(queues == queue) & is_present])
            for queue in np.unique(queues)
        }

    def _base_of(self, queue: int, shifts: Integers) -> int:
        if self.begin is not None:
            if not len(shifts):
                return self._base_before_end(queue)
            values, counts = np.unique(shifts, return_counts=True)
            return max(0, int(values[counts.argmax()]))
        # A message that is missing from a queue shifts all later ones, up to the last.
        if self.expected.first_kept_id is not None and len(shifts) and shifts[-1] > 0:
            problem = (
                f"misses {int(shifts[-1]):,} messages of queue {queue}, and nothing holds them "
                "any more: retention has taken their halves; restore the topic, or give them up "
                "(--apply --give-up)"
            )
            raise TopicNotRebuiltError(self.log.name, problem)
        return 0

    def _base_before_end(self, queue: int) -> int:
        """Find the offset of a queue's first counted row where the topic shows none of them.

        They were the last ones before its next offset, so nothing that groups have read moves.
        """
        rows = self._counted()
        was_shown = (self._queues()[rows] == queue) & (self._versions()[rows] <= self.log.mark)
        return max(0, self.log.next_offsets([queue])[queue] - int(was_shown.sum()))

    def _numbered(self) -> tuple[Integers, dict[int, int]]:
        """Return the offset of each row by its number, and the next offset of each queue."""
        rows = self._counted()
        queues = pa.chunked_array([pa.array(self._queues()[rows])])
        counted, ends = offsets_in_order(queues, self._base)
        offsets = self._present_offsets()
        offsets[rows] = counted
        queues_shown = {int(queue) for queue in np.unique(self.shown.queue_id)}
        rest = (
            self.log.next_offsets(sorted(queues_shown - ends.keys()))
            if self.begin is not None
            else {}
        )
        return offsets, {**dict.fromkeys(queues_shown, 0), **rest, **ends}


def _published_up_to(progress: PublishProgress, topic: str) -> int:
    """Return the op version up to which the publisher says that it has published to the topic."""
    parked = progress.parked.get(topic)
    return progress.low_water_version if parked is None else parked.from_version


def _claim_keys(ids: Any, versions: Any) -> pa.Array:
    texts = [pc.fill_null(ids, "null"), versions.cast(pa.string())]
    joined = pc.binary_join_element_wise(*texts, "/")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


# --- what is read ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Expected:
    """The messages that a topic should show, in their order.

    Attributes:
        op_version: the messages are complete up to this version of the op log.
        plan: where the bodies are, and the order of the messages.
        keys, digests: one for each row of the plan.
        gone: facts about transactions whose halves retention has taken.
        first_kept_id: retention may have taken transactions with smaller ids; None where it took
            none.
    """

    op_version: int
    plan: Plan
    keys: pa.Array
    digests: Integers
    gone: pa.Table
    first_kept_id: str | None

    def is_forgotten(self, transaction_ids: Any) -> Any:
        """Tell of each of these transactions whether retention may have taken it."""
        if self.first_kept_id is None:
            return np.zeros(len(transaction_ids), dtype=bool)
        is_older = pc.less(transaction_ids, self.first_kept_id)
        return pc.fill_null(is_older, False).to_numpy(zero_copy_only=False)  # noqa: FBT003


def expected_rows(store: Store, op_table_id: str, topic: str, after: int) -> Expected:
    """Read the messages that a topic shows after an op version by settled and half; 0 commits.

    Raises: PayloadMissingError where halves are missing that retention did not take.
    """
    settled, half = store.tables.settled_log(op_table_id), store.tables.half_log()
    mark = settled.mark
    facts = settled.to_show(after, mark)
    half.table.refresh()
    # Read after half: retention writes down what it takes before it takes it.
    first_kept_id = _first_kept_id(store)
    schedule = store.tables.schedule_log()
    present, gone = _split(half, schedule, facts, first_kept_id)
    plan = make_plan(half, present, schedule).of_topic(topic, after)
    keys, digests = _digests_of(plan)
    return Expected(mark, plan, keys, digests, gone, first_kept_id)


def _first_kept_id(store: Store) -> str | None:
    since_ms = kept_since_ms(maintenance_value(store))
    if since_ms is None:
        return None
    digits = f"{since_ms:012x}"
    return f"{digits[:8]}-{digits[8:]}"


def _split(
    half: HalfLog, schedule: ScheduleLog, facts: pa.Table, first_kept_id: str | None
) -> tuple[pa.Table, pa.Table]:
    """Split facts into those whose payload is there, and those whose halves retention took."""
    if first_kept_id is None:
        return facts, facts.slice(0, 0)
    ids = pc.unique(facts["transaction_id"])
    old = ids.filter(pc.less(ids, first_kept_id))
    halves = half.table.search.rows_of("transaction_id", old, ("transaction_id",))["transaction_id"]
    gone = old.filter(pc.invert(pc.is_in(old, value_set=pc.unique(halves))))
    is_gone = flags(pc.is_in(facts["transaction_id"], value_set=gone))
    is_gone &= ~_is_scheduled(schedule, facts, gone)
    return facts.filter(pa.array(~is_gone)), facts.filter(pa.array(is_gone))


def _is_scheduled(schedule: ScheduleLog, facts: pa.Table, gone: pa.Array) -> Flags:
    """Find facts that deliver messages which the schedule holds though their halves are gone."""
    delivered = flags(pc.equal(facts["state"], DELIVERED))
    numbers = np.flatnonzero(delivered)
    messages = schedule.refresh().messages_of(gone).select(["transaction_id", "sequence"])
    held = set(zip(*(messages[name].to_pylist() for name in messages.column_names), strict=True))
    is_held = np.zeros(facts.num_rows, dtype=bool)
    for number, fact in zip(numbers, facts.filter(pa.array(delivered)).to_pylist(), strict=True):
        transaction_id, sequences = fact["transaction_id"], fact["sequences"]
        is_held[number] = all((transaction_id, sequence) in held for sequence in sequences)
    return is_held


def _digests_of(plan: Plan) -> tuple[pa.Array, Integers]:
    """Return the keys and digests of the rows of a plan, in its order."""
    count = plan.rows.num_rows
    # Bodies come in the order of the files, so each row carries its place in the plan.
    numbered = NumberedPlan(plan, np.arange(count))
    digests = np.zeros(count, dtype=np.int64)
    places: list[Integers] = []
    keys: list[pa.Array] = []
    for rows in copied([numbered], TOPIC.columns, 0):
        place = integers(rows["queue_offset"], -1)
        digests[place] = digests_of(rows)
        places.append(place)
        keys.append(keys_of(rows))
    order = np.argsort(np.concatenate([np.arange(0), *places]), kind="stable")
    all_keys = pa.concat_arrays([pa.array([], pa.string()), *keys])
    return all_keys.take(pa.array(order)), digests


@dataclass(frozen=True, slots=True)
class Shown:
    """The rows that a topic shows, in any order.

    Attributes:
        files: the files that could be read.
        file, row: the place of each row: the number of its file in `files`, and its number in it.
    """

    files: Sequence[DataFile]
    file: Integers
    row: Integers
    transaction_ids: pa.Array
    keys: pa.Array
    digests: Integers
    queue_id: Integers
    queue_offset: Integers
    op_version: Integers
    sequence: Integers
    store_timestamp: pa.Array


def shown_rows(
    log: TopicLog, first_kept_id: str | None, skip: Container[str] = frozenset()
) -> Shown:
    """Read the rows of a topic's pinned version, without the files in `skip`; 0 commits.

    The rows of a file that cannot be read count as missing.

    Raises: TopicNotRebuiltError where the halves of an unreadable file may be gone too.
    """
    files: list[DataFile] = []
    tables: list[pa.Table] = []
    ranges = log.table.files.ranges("transaction_id")
    for span in (span for span in ranges if span.file.path not in skip):
        of_file = _shown_file_if_readable(log, span, len(files), first_kept_id)
        if of_file is not None:
            files.append(span.file)
            tables.append(of_file)
    rows = pa.concat_tables([_no_rows(), *tables]).combine_chunks()
    return Shown(
        files,
        file=integers(rows["file"], -1),
        row=integers(rows["row"], -1),
        transaction_ids=_array(rows["transaction_id"]),
        keys=_array(rows["key"]),
        digests=integers(rows["digest"], 0),
        queue_id=integers(rows["queue_id"], 0),
        queue_offset=integers(rows["queue_offset"], -1),
        op_version=integers(rows["op_version"], 0),
        sequence=integers(rows["sequence"], -1),
        store_timestamp=_array(rows["store_timestamp"]),
    )


def _shown_file_if_readable(
    log: TopicLog, span: FileRange, number: int, first_kept_id: str | None
) -> pa.Table | None:
    try:
        return _shown_file(log, span.file, number)
    except (OSError, StorageError, pa.ArrowException) as error:
        path = span.file.path
        if first_kept_id is not None and (span.low is None or span.low < first_kept_id):
            problem = f"has a file that cannot be read ({path}), and the halves of its messages"
            raise TopicNotRebuiltError(log.name, f"{problem} are gone") from error
        logger.warning("topic %s: %s cannot be read", log.name, path)
        return None


def _shown_file(log: TopicLog, file: DataFile, number: int) -> pa.Table:
    tables, start = [_no_rows()], 0
    for batch in log.table.rows.batches(file, TOPIC.columns.names, BATCH_ROWS):
        rows = pa.table(batch)
        count = rows.num_rows
        columns = {
            "file": pa.array(np.full(count, number, dtype=np.int64)),
            "row": pa.array(np.arange(start, start + count)),
            "transaction_id": rows["transaction_id"],
            "key": keys_of(rows),
            "digest": pa.array(digests_of(rows)),
            **{name: rows[name] for name in _SHOWN},
        }
        tables.append(pa.table(columns).cast(_no_rows().schema))
        start += count
    return pa.concat_tables(tables)


def _no_rows() -> pa.Table:
    numbers = [(name, pa.int64()) for name in ("file", "row")]
    texts = [(name, pa.string()) for name in ("transaction_id", "key")]
    shown = [(name, pa.int64()) for name in ("digest", *_SHOWN[:4])]
    stored = ("store_timestamp", TOPIC.columns.field("store_timestamp").type)
    return pa.schema([*numbers, *texts, *shown, stored]).empty_table()


def keys_of(rows: pa.Table) -> pa.Array:
    """Make a key of each message and its life; a null in a damaged row becomes the word null."""
    texts = [rows[name].cast(pa.string()) for name in ("transaction_id", "sequence", "life")]
    joined = pc.binary_join_element_wise(*(pc.fill_null(text, "null") for text in texts), "/")
    return _array(joined)


def digests_of(rows: pa.Table) -> Integers:
    """Hash the content of each row; comparable within this process only."""
    columns = [_hashable(rows[name]) for name in _DIGESTED]
    digests = (hash(values) for values in zip(*columns, strict=True))
    return np.fromiter(digests, np.int64, rows.num_rows)


def _hashable(column: pa.ChunkedArray) -> Iterator[Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_map(column.type):
        return (None if value is None else tuple(value) for value in python_values(column))
    return iter(python_values(column))


def _array(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
