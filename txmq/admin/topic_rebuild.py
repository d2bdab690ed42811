"""A topic as it is and as half and settled say it should be: what a rebuild would change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txmq.admin.rebuild_sources import expected_rows, shown_rows
from txmq.columns import Integers, first_of_each, integers
from txmq.delta.parquet import NewFile, write_file
from txmq.delta.storage import Table
from txmq.errors import TopicNotRebuiltError
from txmq.maintenance.topic_retention import topic_begins
from txmq.publish.arrow_engine import ArrowEngine
from txmq.publish.plan import Plan
from txmq.publish.progress import Progress
from txmq.store.settled import NOTHING
from txmq.store.store import Store
from txmq.store.topic import offsets_in_order

# Readers and retention skip whole files.
FILE_ROWS = 200_000
NONE = -1
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class TopicRebuild:
    """What a rebuild changes, or has changed.

    Attributes:
        op_version: the topic is complete up to here, then.
        rows: how many messages it shows, then.
        missing: messages that it should show and does not.
        extra: rows that nothing stands for: doubled ones, or from nowhere.
        different: messages with another content or another offset than they should have.
        kept: messages that only the topic itself holds: their halves are gone by retention.
        unpublished: messages that the publisher has not shown yet, which is no fault.
        marks_differ: the mark or a next offset is wrong.
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
    is_written: bool = False

    @property
    def is_needed(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.missing or self.extra or self.different or self.marks_differ)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self) | {"is_needed": self.is_needed}


class RebuildPicture:
    """A topic as it is and as it should be.

    Rows are numbered: those of `expected` first, then those of `kept`, numbers of rows of `shown`.
    """

    def __init__(self, store: Store, topic: str) -> None:
        """The topic is read first: facts, which can only be more, explain what it shows."""
        op = store.tables.op_log().table
        self._done = _done(
            Progress.from_value(store.tables.register("publisher").read().value, op), topic
        )
        self.log = store.tables.topic_log(topic, op.table_id)
        self.log.table.refresh()
        self.op_table_id = op.table_id
        self.begin = topic_begins(store).get(topic)
        self._after = NOTHING if self.begin is None else self.begin
        self.expected = expected_rows(store, op.table_id, topic, self._after)
        self.shown = shown_rows(self.log, self.expected.first_kept_id)
        self._match = self._matched()
        self._kept, self._extra = self._kept_and_extra(store)
        self._rows = self._ordered()
        self._base = self._bases()
        self._offsets, self.next_offsets = self._numbered()

    # --- what is to be there --------------------------------------------------------------------

    def _matched(self) -> Integers:
        """For each expected message the row that shows it; of several, the one that is right."""
        place = self._places()
        is_same = self._is_same(place)
        order = np.lexsort((~is_same, place))
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
        is_same = np.equal(self.expected.digests[place], self.shown.digests)
        found: Flags = np.logical_and(is_same, place != NONE)
        return found

    def _kept_and_extra(self, store: Store) -> tuple[Integers, int]:
        """Rows that only the topic holds, and how many rows go."""
        shown = self.shown
        rest = np.flatnonzero(self._places() == NONE)
        ids = shown.transaction_ids.take(pa.array(rest))
        half = store.tables.half_log().table
        there = half.rows_of("transaction_id", pc.unique(ids).drop_null(), ("transaction_id",))
        has_half = integers(pc.index_in(ids, value_set=pc.unique(there["transaction_id"])), NONE)
        is_old = shown.op_version[rest] <= self._after
        forgotten = self.expected.is_forgotten(ids)
        kept = rest[np.where(has_half == NONE, forgotten, is_old)]
        kept = kept[shown.op_version[kept] <= self.expected.op_version]
        kept = self._once(kept)
        matched = int((self._match != NONE).sum())
        return kept, len(shown.keys) - matched - len(kept)

    def _once(self, kept: Integers) -> Integers:
        """The first row of each message. Raises: TopicNotRebuiltError where its rows differ."""
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
        """Numbers of all rows in the order of their claims."""
        plan, shown, kept = self.expected.plan.rows, self.shown, self._kept
        ordinals = np.concatenate([integers(plan["ordinal"], 0), self._kept_ordinals()])
        # Rows of the plan are in order already.
        last = np.concatenate([np.arange(plan.num_rows), shown.sequence[kept]])
        return np.lexsort((last, ordinals, self._versions()))

    def _kept_ordinals(self) -> Integers:
        """By the facts where these are left, else as they stood."""
        gone, shown = self.expected.gone, self.shown
        claims = _claim_keys(gone["transaction_id"], gone["op_version"])
        ids = shown.transaction_ids.take(pa.array(self._kept))
        own = _claim_keys(ids, pa.array(shown.op_version[self._kept]))
        at = integers(pc.index_in(own, value_set=claims), NONE)
        before_all = shown.queue_offset[self._kept] - (1 << 62)
        if not gone.num_rows:
            return before_all
        return np.where(at == NONE, before_all, integers(gone["ordinal"], 0)[at])

    def _queues(self) -> Integers:
        """The queue of each row."""
        queues = integers(self.expected.plan.rows["queue_id"], 0)
        return np.concatenate([queues, self.shown.queue_id[self._kept]])

    def _stood(self) -> Integers:
        """The offset that each row has now, or NONE."""
        shown, match = self.shown.queue_offset, self._match
        found = shown[match] if len(shown) else match
        return np.concatenate([np.where(match == NONE, NONE, found), shown[self._kept]])

    def _versions(self) -> Integers:
        """The claim that each row follows from."""
        versions = integers(self.expected.plan.rows["op_version"], 0)
        return np.concatenate([versions, self.shown.op_version[self._kept]])

    def _counted(self) -> Integers:
        """Rows that are counted, in order; those before the begin keep the offset they have."""
        return self._rows[self._versions()[self._rows] > self._after]

    def _bases(self) -> dict[int, int]:
        """The offset of the first counted row of each queue."""
        rows = self._counted()
        queues = self._queues()[rows]
        places, _ = offsets_in_order(pa.chunked_array([pa.array(queues)]), {})
        stood = self._stood()[rows]
        shift, was_there = stood - places, stood != NONE
        return {
            int(queue): self._base_of(int(queue), shift[(queues == queue) & was_there])
            for queue in np.unique(queues)
        }

    def _base_of(self, queue: int, shifts: Integers) -> int:
        if self.begin is not None:
            if not len(shifts):
                return self.log.next_offsets([queue])[queue]
            values, counts = np.unique(shifts, return_counts=True)
            return max(0, int(values[counts.argmax()]))
        # A message that is gone from a queue moves all that follow, up to the last one.
        if self.expected.first_kept_id is not None and len(shifts) and shifts[-1] > 0:
            problem = (
                f"misses {int(shifts[-1]):,} messages of queue {queue}, and nothing holds them "
                "any more: retention has taken their halves"
            )
            raise TopicNotRebuiltError(self.log.name, problem)
        return 0

    def _numbered(self) -> tuple[Integers, dict[int, int]]:
        """The offset of each row by its number, and the next one of each queue."""
        rows = self._counted()
        queues = pa.chunked_array([pa.array(self._queues()[rows])])
        found, after = offsets_in_order(queues, self._base)
        offsets = self._stood()
        offsets[rows] = found
        seen = {int(queue) for queue in np.unique(self.shown.queue_id)}
        left = self.log.next_offsets(sorted(seen - after.keys())) if self.begin is not None else {}
        return offsets, {**dict.fromkeys(seen, 0), **left, **after}

    # --- the result -----------------------------------------------------------------------------

    def result(self) -> TopicRebuild:
        """How both differ."""
        is_shown = self._match != NONE
        unpublished = ~is_shown & self._is_unpublished()
        return TopicRebuild(
            self.log.name,
            self.expected.op_version,
            rows=len(self._rows),
            missing=int((~is_shown & ~unpublished).sum()),
            extra=self._extra,
            different=self._different(is_shown),
            kept=len(self._kept),
            unpublished=int(unpublished.sum()),
            marks_differ=self._marks_differ(unpublished),
        )

    def _is_unpublished(self) -> Flags:
        versions = integers(self.expected.plan.rows["op_version"], 0)
        # A parked topic is behind, and one that another publisher wrote may be ahead.
        return versions > max(self._done, self.log.mark)

    def _different(self, is_shown: Flags) -> int:
        stood = self._stood()
        moved = (stood != NONE) & (stood != self._offsets)
        matched = self._match[is_shown]
        changed = np.zeros(len(stood), dtype=bool)
        changed[: len(is_shown)][is_shown] = (
            self.expected.digests[is_shown] != self.shown.digests[matched]
        )
        return int((moved | changed).sum())

    def _marks_differ(self, unpublished: Flags) -> bool:
        mark, shown = self.log.mark, self.shown.op_version[self._match[self._match != NONE]]
        if mark > self.expected.op_version or (len(shown) and mark < shown.max()):
            return True
        later = integers(self.expected.plan.rows["queue_id"], 0)[unpublished]
        now = {queue: at - int((later == queue).sum()) for queue, at in self.next_offsets.items()}
        return self.log.next_offsets(list(now)) != now

    # --- writing --------------------------------------------------------------------------------

    @property
    def row_count(self) -> int:
        """How many messages the topic shows, then."""
        return len(self._rows)

    def files(self, now_ms: int) -> Iterator[NewFile]:
        """Write the rows that are to be there into new files; 0 commits."""
        at = pa.array(self._match, mask=np.equal(self._match, NONE))
        times = self.shown.store_timestamp.take(at)
        plan, table = self.expected.plan, self.log.table
        yield from expected_files(table, plan, self._offsets[: len(at)], times, now_ms)
        yield from self._kept_files()

    def _kept_files(self) -> Iterator[NewFile]:
        table = self.log.table
        for start in range(0, len(self._kept), FILE_ROWS):
            chosen = np.arange(start, min(start + FILE_ROWS, len(self._kept)))
            parts, statistics = self._kept_rows(chosen), table.schema.statistics_columns
            yield write_file(parts, table.columns, table.filesystem, statistics)

    def _kept_rows(self, chosen: Integers) -> Iterator[pa.Table]:
        """Rows of the topic with their new offsets, one file of it at a time."""
        shown, table = self.shown, self.log.table
        rows = self._kept[chosen]
        offsets = self._offsets[len(self.expected.keys) + chosen]
        for number in np.unique(shown.file[rows]):
            own = np.flatnonzero(shown.file[rows] == number)
            whole = table.read([shown.files[number]], table.columns.names)
            part = whole.take(pa.array(shown.row[rows[own]]))
            at = part.schema.get_field_index("queue_offset")
            yield part.set_column(at, part.schema.field(at), pa.array(offsets[own]))


def expected_files(
    table: Table, plan: Plan, offsets: Integers, times: pa.Array, now_ms: int
) -> Iterator[NewFile]:
    """Write the messages of a plan into new files of a topic; 0 commits.

    `times` has when each was stored before; null is `now_ms`.
    """
    rows = plan.rows.append_column("store_timestamp", times)
    for start in range(0, rows.num_rows, FILE_ROWS):
        part = Plan(plan.files, rows.slice(start, FILE_ROWS))
        own = pa.array(offsets[start : start + part.rows.num_rows])
        yield from ArrowEngine().write(table, part, own, now_ms)


def _done(progress: Progress, topic: str) -> int:
    """Up to here the publisher says that the topic has its messages."""
    parked = progress.parked.get(topic)
    return progress.low_water_version if parked is None else parked.from_version


def _claim_keys(ids: Any, versions: Any) -> pa.Array:
    texts = [pc.fill_null(ids, "null"), versions.cast(pa.string())]
    joined = pc.binary_join_element_wise(*texts, "/")
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined
