"""Reading one topic queue by queue, strictly in the order of offsets, as its log grows.

Offsets have no gaps, so a row is handed out only if it is the next one. Where a file is gone, or
rows were taken away, the reader plans again from the newest version, by offsets: it needs no hold
on VACUUM, on compaction or on the clean-up of the log.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txmq.columns import Integers, integers
from txmq.consumer.offsets import (
    NONE,
    POSITION_COLUMNS,
    end_offset,
    live_offsets,
    lowest_offset,
    may_hold,
    queue_count,
)
from txmq.delta.files import FilePart
from txmq.delta.log import CommitNews, commit_news
from txmq.delta.storage import Table
from txmq.errors import MessagesExpiredError, OffsetOutOfRangeError, StoreNotFoundError
from txmq.message.received import MESSAGE_COLUMNS, MessageRows
from txmq.store.store import Store
from txmq.store.topic import OFFSET_MARK, REBUILD_MARK

RUN_ROWS = 1024
# Larger files are read one row group at a time.
LARGE_FILE_BYTES = 32 * 1024 * 1024
# Up to here the bodies are read together with the offsets.
SMALL_FILE_BYTES = 16 * 1024 * 1024
KEPT_BYTES = 64 * 1024 * 1024
# Queues may stand in different ones.
KEPT_PARTS = 2
KEPT_INDEXES = 256


class MessageMask(Protocol):
    """Which messages a consumer wants; `message_filter` makes them of expressions."""

    @property
    def text(self) -> str:
        """The expression."""
        ...

    def mask(self, table: pa.Table) -> pa.Array:
        """One boolean for each row of MESSAGE_COLUMNS."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """Messages of one queue that follow each other.

    Attributes:
        rows: those that pass the filter.
        offsets: theirs.
        next_offset: the first after the run; what did not pass counts as consumed.
    """

    rows: MessageRows
    offsets: list[int]
    next_offset: int


@dataclass(frozen=True, slots=True)
class _PartIndex:
    """For each queue the offsets in a part of a file, sorted, and the rows that have them."""

    by_queue: Mapping[int, tuple[Integers, Integers]]

    @classmethod
    def of(cls, rows: pa.Table) -> _PartIndex:
        queue_ids, offsets = (integers(rows[name], NONE) for name in POSITION_COLUMNS)
        order = np.lexsort((offsets, queue_ids))
        names, first = np.unique(queue_ids[order], return_index=True)
        parts = np.split(order, first[1:])
        return cls({int(name): (offsets[own], own) for name, own in zip(names, parts, strict=True)})

    def run(self, queue_id: int, offset: int) -> Integers | None:
        """Rows with the offsets from this one on, as far as they follow each other."""
        if queue_id not in self.by_queue:
            return None
        offsets, rows = self.by_queue[queue_id]
        start = int(np.searchsorted(offsets, offset))
        own = offsets[start : start + RUN_ROWS]
        follows = own == np.arange(offset, offset + len(own))
        count = len(own) if follows.all() else int(np.argmin(follows))
        return rows[start : start + count] if count else None


@dataclass(frozen=True, slots=True)
class _Decoded:
    """All columns of a part, and which of its rows pass the filter; None: all of them."""

    rows: pa.Table
    passes: npt.NDArray[np.bool_] | None
    size_bytes: int

    @classmethod
    def of(cls, rows: pa.Table, message_filter: MessageMask | None) -> _Decoded:
        passes = None
        if message_filter is not None:
            mask = pc.fill_null(message_filter.mask(rows), False)  # noqa: FBT003 - pyarrow's
            passes = mask.to_numpy(zero_copy_only=False).astype(bool)
        return cls(rows, passes, int(rows.nbytes))


class TopicReader:
    """Follows one topic, which may not be there yet. Not safe for several threads; 0 commits."""

    def __init__(
        self,
        store: Store,
        topic: str,
        *,
        message_filter: MessageMask | None = None,
        namespace: str | None = None,
    ) -> None:
        """Open nothing yet; names in `namespace` are shown without it."""
        self.topic = topic
        self.ends: dict[int, int] = {}
        self._store, self._filter, self._namespace = store, message_filter, namespace
        self._table: Table = store.table_at(f"topics/{topic}")
        self._version, self._is_surely_absent = NONE, False
        self._parts: list[FilePart] = []
        self._hints: dict[int, FilePart] = {}
        self._indexes: OrderedDict[FilePart, _PartIndex] = OrderedDict()
        self._decoded: OrderedDict[FilePart, _Decoded] = OrderedDict()

    # --- following the log ------------------------------------------------------------------

    @property
    def queue_count(self) -> int:
        """One more than the highest queue that has ever been seen to have messages."""
        return 1 + max((queue for queue, end in self.ends.items() if end), default=NONE)

    def look(self) -> bool:
        """Whether there is news: one look at one file name if not."""
        if self._version == NONE:
            return self._looked_for_table()
        is_new = False
        while self._table.has_commit(self._version + 1):
            is_new = True
            news = commit_news(self._table, self._version + 1)
            if news is None or news.has_removed or REBUILD_MARK in news.marks:
                self._plan()
                break
            self._version += 1
            self._follow(news)
        return is_new

    def look_closely(self) -> None:
        """Find what one file name does not tell: a log that was cleaned, or made anew."""
        if self._version == NONE:
            self._is_surely_absent = False
        elif not self._table.has_commit(self._version) or not self._is_same_table():
            self._forget_all()
            self.look()

    def _is_same_table(self) -> bool:
        """A table that was made anew at the same place has another id."""
        fresh = self._store.table_at(f"topics/{self.topic}")
        return fresh.exists() and fresh.table_id == self._table.table_id

    def _looked_for_table(self) -> bool:
        # The first commit of an old table may have been cleaned away, but not of one made since.
        if self._is_surely_absent and not self._table.has_commit(0):
            return False
        self._is_surely_absent = not self._table.exists()
        if not self._is_surely_absent:
            self._plan()
        return not self._is_surely_absent

    def _follow(self, news: CommitNews) -> None:
        self._parts += sorted(news.added, key=lowest_offset)
        for name, number in news.marks.items():
            if name.startswith(OFFSET_MARK):
                self.ends[int(name.removeprefix(OFFSET_MARK))] = number

    def _plan(self) -> None:
        """All live files of the newest version, and the next offset of each queue."""
        try:
            self._table.refresh()
        except StoreNotFoundError:
            self._forget_all()
            return
        self._version = self._table.version
        self._parts = sorted(self._table.parts(POSITION_COLUMNS), key=lowest_offset)
        self._hints = {}
        queues = {*range(queue_count(self._table)), *self.ends}
        self.ends = {queue: end_offset(self._table, queue) for queue in queues}

    def _forget_all(self) -> None:
        self._table = self._store.table_at(f"topics/{self.topic}")
        self._version, self._is_surely_absent = NONE, False
        self.ends, self._parts, self._hints = {}, [], {}
        self._indexes.clear()
        self._decoded.clear()

    def forget_before(self, offsets: Mapping[int, int]) -> None:
        """Drop what a reader of these queues has behind it; it can still be found again."""
        wanted = {q: offset for q, offset in offsets.items() if offset < self.ends.get(q, 0)}
        self._parts = [
            part
            for part in self._parts
            if any(may_hold(part, queue, offset) for queue, offset in wanted.items())
        ]
        self._hints = {}
        for part in self._decoded.keys() - set(self._parts):
            del self._decoded[part]

    # --- reading ----------------------------------------------------------------------------

    def read(self, queue_id: int, offset: int) -> Run | None:
        """Messages of a queue from an offset on; None where the next one is not there yet.

        Raises: MessagesExpiredError where retention took it, OffsetOutOfRangeError, StorageError.
        """
        end = self._end(queue_id)
        if offset == end:
            return None
        if offset > end:
            return self._beyond(queue_id, offset)
        run = self._find(queue_id, offset)
        if run is None:
            self._plan()
            run = self._find(queue_id, offset)
        if run is None:
            self._check_not_expired(queue_id, offset)
        return run

    def _end(self, queue_id: int) -> int:
        """The next offset; of a queue without a file, the table alone knows it."""
        if queue_id not in self.ends and self._version != NONE:
            self.ends[queue_id] = end_offset(self._table, queue_id)
        return self.ends.get(queue_id, 0)

    def _beyond(self, queue_id: int, offset: int) -> Run | None:
        """Another member may have read what we have not seen, or retention has left nothing."""
        self.look_closely()
        if self._version != NONE or self.look():
            self._plan()
        end = self._end(queue_id)
        if offset <= end:
            return self.read(queue_id, offset)
        raise OffsetOutOfRangeError(
            self.topic, queue_id, offset=offset, first_offset=0, end_offset=end
        )

    def _check_not_expired(self, queue_id: int, offset: int) -> None:
        end = self.ends.get(queue_id, 0)
        if self._version == NONE or offset >= end:
            return
        parts = self._table.parts(POSITION_COLUMNS)
        first = live_offsets(parts, self._table, {queue_id: offset}).get(queue_id, end)
        if first > offset:
            raise MessagesExpiredError(
                self.topic, queue_id,
                next_offset=offset, first_offset=first, missed=first - offset,
            )  # fmt: skip

    def _find(self, queue_id: int, offset: int) -> Run | None:
        """None also where a file is gone, so that nothing is concluded from what is left."""
        for part in self._candidates(queue_id, offset):
            places = self._index_of(part)
            if places is None:
                return None
            rows = places.run(queue_id, offset)
            if rows is not None:
                decoded = self._decoded_of(part)
                self._hints[queue_id] = part
                return None if decoded is None else self._run(decoded, rows, offset)
        return None

    def _candidates(self, queue_id: int, offset: int) -> Iterator[FilePart]:
        """Parts that may hold an offset, from the one on that held the offsets before it."""
        known = self._hints.get(queue_id)
        parts = self._parts
        start = parts.index(known) if known in parts else 0
        for part in (*parts[start:], *parts[:start]):
            if may_hold(part, queue_id, offset):
                for each in self._split(part):
                    if may_hold(each, queue_id, offset):
                        yield each

    def _split(self, part: FilePart) -> Sequence[FilePart]:
        """The row groups of a large file, in its place from now on."""
        if not _is_to_split(part):
            return (part,)
        groups = self._table.row_groups(part, POSITION_COLUMNS)
        if groups is None:
            return (part,)
        number = self._parts.index(part)
        self._parts = [*self._parts[:number], *groups, *self._parts[number + 1 :]]
        return groups

    def _run(self, decoded: _Decoded, rows: Integers, offset: int) -> Run:
        next_offset = offset + len(rows)
        offsets = np.arange(offset, next_offset)
        if decoded.passes is not None:
            chosen = decoded.passes[rows]
            rows, offsets = rows[chosen], offsets[chosen]
        taken = MessageRows(_taken(decoded, rows), self._namespace)
        return Run(taken, offsets.tolist(), next_offset)

    # --- what was read before ---------------------------------------------------------------

    def _index_of(self, part: FilePart) -> _PartIndex | None:
        found = self._indexes.get(part)
        if found is None:
            rows = self._rows_with_positions(part)
            if rows is None:
                return None
            found = self._indexes[part] = _PartIndex.of(rows)
            while len(self._indexes) > KEPT_INDEXES:
                self._indexes.popitem(last=False)
        self._indexes.move_to_end(part)
        return found

    def _rows_with_positions(self, part: FilePart) -> pa.Table | None:
        if part.file.size_bytes > SMALL_FILE_BYTES:
            return self._table.read_part(part, POSITION_COLUMNS)
        decoded = self._decoded_of(part)
        return None if decoded is None else decoded.rows

    def _decoded_of(self, part: FilePart) -> _Decoded | None:
        found = self._decoded.get(part)
        if found is None:
            rows = self._table.read_part(part, MESSAGE_COLUMNS)
            if rows is None:
                return None
            found = self._decoded[part] = _Decoded.of(_in_order(part, rows), self._filter)
            self._let_go()
        self._decoded.move_to_end(part)
        return found

    def _let_go(self) -> None:
        size_bytes = sum(each.size_bytes for each in self._decoded.values())
        while size_bytes > KEPT_BYTES and len(self._decoded) > KEPT_PARTS:
            size_bytes -= self._decoded.popitem(last=False)[1].size_bytes


def _is_to_split(part: FilePart) -> bool:
    return part.row_group is None and part.file.size_bytes > LARGE_FILE_BYTES


def _in_order(part: FilePart, rows: pa.Table) -> pa.Table:
    """Rows of a small part queue by queue, so that each run of it is a view."""
    if part.file.size_bytes > SMALL_FILE_BYTES:
        return rows.combine_chunks()
    queue_ids, offsets = (integers(rows[name], NONE) for name in POSITION_COLUMNS)
    return rows.take(pa.array(np.lexsort((offsets, queue_ids)))).combine_chunks()


def _taken(decoded: _Decoded, rows: Integers) -> pa.Table:
    """Some rows; copied where a view would keep much more in memory."""
    if decoded.size_bytes <= LARGE_FILE_BYTES and len(rows) and (np.diff(rows) == 1).all():
        return decoded.rows.slice(int(rows[0]), len(rows))
    return decoded.rows.take(pa.array(rows))
