"""Read one topic queue by queue, strictly in the order of offsets, while its log grows.

Offsets have no gaps, so a row is returned only if it has the next offset. If a file or rows were
removed, the reader plans again from the newest version of the table, by offsets. So it does not
need to hold back VACUUM, compaction or the clean-up of the log.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txmq.consumer.group_rules import TopicCommit
from txmq.consumer.offsets import (
    NONE,
    POSITION_COLUMNS,
    UNREADABLE,
    end_offset,
    ends_of,
    live_offsets,
    lowest_offset,
    may_hold,
)
from txmq.delta.files import FilePart
from txmq.delta.folder import TableFolder
from txmq.delta.log_files import CommitNews, commit_news, fingerprint_of
from txmq.delta.table import Table
from txmq.errors import (
    MessagesExpiredError,
    OffsetOutOfRangeError,
    StorageError,
    StorageUnavailableError,
    StoreNotFoundError,
    TopicRestoredError,
)
from txmq.ground.clock import milliseconds
from txmq.ground.columns import Integers, integers, sound_rows
from txmq.message.codec import BodyCodec, are_erased
from txmq.message.received import MESSAGE_COLUMNS, MessageRows
from txmq.store.known import lost_by_others
from txmq.store.store import Store
from txmq.store.topic import (
    REBUILD_MARK,
    MovedOffsets,
    TopicLog,
    moved_offsets,
    queue_ends,
)

RUN_ROWS = 1024
# The bodies of smaller files are read together with their offsets.
SMALL_FILE_BYTES = 16 * 1024 * 1024
# Larger files are read one row group at a time.
LARGE_FILE_BYTES = 32 * 1024 * 1024
WINDOW_BYTES = 32 * 1024 * 1024
KEPT_BYTES = 64 * 1024 * 1024
# At least so many windows are kept: queues may read in different ones.
KEPT_WINDOWS = 2
KEPT_INDEXES = 256
# Each one is an open file.
KEPT_CURSORS = 4
# A file that could not be read is not tried again sooner: each queue would wait for it.
FAILED_PAUSE_S = 1.0
PLACE_COLUMNS = ("message_id", "store_timestamp")
Result = TypeVar("Result")


class MessageMask(Protocol):
    """Says which messages pass a filter; `parse_filter` makes one of an expression."""

    @property
    def text(self) -> str:
        """The text of the expression."""
        ...

    def mask(self, table: pa.Table) -> pa.Array:
        """Return one boolean for each row; the columns are MESSAGE_COLUMNS."""
        ...


@dataclass(frozen=True, slots=True)
class Run:
    """Messages of one queue with consecutive offsets.

    Attributes:
        rows: the messages that pass the filter.
        offsets: the offsets of these messages.
        next_offset: the offset after the run; messages that did not pass count as consumed.
    """

    rows: MessageRows
    offsets: list[int]
    next_offset: int


class TopicReader:
    """Reads one topic, which may not exist yet. Not safe for several threads; 0 commits.

    Attributes:
        topic: the stored name of the topic.
        ends: the next offset of each queue, as far as `look` has followed the log.
        commit: the commit up to which the log was followed; None if it is not there any more.
        failure: why `follow` could not follow the log the last time.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        *,
        message_filter: MessageMask | None = None,
        namespace: str | None = None,
        codec: BodyCodec | None = None,
    ) -> None:
        """Open nothing yet; messages show names of `namespace` without it."""
        self.topic = topic
        self.ends: dict[int, int] = {}
        self.failure: Exception | None = None
        self._store, self._namespace, self._codec = store, namespace, codec
        self._table: Table = store.tables.table_at(f"topics/{topic}")
        self._version = NONE
        self._parts: list[FilePart] = []
        self._hints: dict[int, FilePart] = {}
        self._rows = PartRows(message_filter)
        self._failed: dict[str, tuple[float, StorageError]] = {}
        self.commit: TopicCommit | None = None
        self._moved = MovedOffsets(0, {})
        self._checked: set[TopicCommit] = set()

    @property
    def table(self) -> Table:
        """The table of the topic, at the version that was planned last."""
        return self._table

    @property
    def parts(self) -> Sequence[FilePart]:
        """The files that hold what nobody has forgotten yet, or row groups of large ones."""
        return self._parts

    # --- following the log ------------------------------------------------------------------

    @property
    def queue_count(self) -> int:
        """One more than the highest id of a queue that was seen with messages."""
        return 1 + max((queue for queue, end in self.ends.items() if end), default=NONE)

    def follow(self, *, closely: bool = False) -> bool:
        """Look, and return whether anything is new; keep `failure` if the topic cannot be read.

        Raises: StorageUnavailableError: other topics would wait for the storage as long.
        """
        had_failed, self.failure = self.failure is not None, None
        try:
            if closely:
                self.look_closely()
                return had_failed
            return self.look() or had_failed
        except StorageUnavailableError:
            raise
        except UNREADABLE as error:
            self.failure = error
            return True

    def look(self) -> bool:
        """Follow the log of the topic, and return whether it has grown.

        Without news it costs one look for one file name. Raises: StorageError.
        """
        if self._version == NONE:
            is_there = self._table.exists()
            if is_there:
                self._plan()
            return is_there
        is_new = False
        while self._table.folder.has_commit(self._version + 1):
            is_new = True
            news = commit_news(self._table.folder, self._version + 1)
            if news is None or news.has_removed or REBUILD_MARK in news.marks:
                self._plan()
                break
            self._add(news)
            self.commit = _commit_of(self._version + 1, news.sha256)
            # Last: what an interrupt keeps from being added is added by the next look.
            self._version += 1
        return is_new

    def look_closely(self) -> None:
        """Notice a log that was cleaned or created anew, which `look` does not see.

        Raises: StorageError.
        """
        self._checked = set()
        if self._version == NONE:
            self._table.log.doubt_absence()
        elif not self._table.folder.has_commit(self._version) or not self._is_same_table():
            self._forget_all()
            self.look()

    def _is_same_table(self) -> bool:
        # A table that was created anew at the same place has another id.
        fresh = self._store.tables.table_at(f"topics/{self.topic}")
        return fresh.exists() and fresh.log.table_id == self._table.log.table_id

    def _add(self, news: CommitNews) -> None:
        self._parts += sorted(news.added, key=lowest_offset)
        self.ends |= queue_ends(news.marks)

    def _plan(self) -> None:
        """Read all live files of the newest version, and the next offset of each queue."""
        try:
            self._table.refresh()
        except StoreNotFoundError:
            self._forget_all()
            return
        parts = sorted(self._table.files.parts(POSITION_COLUMNS), key=lowest_offset)
        ends = {**dict.fromkeys(self.ends, 0), **ends_of(self._table)}
        version, moved = self._table.version, moved_offsets(self._table)
        # All at once: after an error in between, the log would seem to be followed.
        self.commit = topic_commit(self._table.folder, version)
        self._version, self._parts, self._hints, self.ends = version, parts, {}, ends
        self._moved = moved

    def _forget_all(self) -> None:
        self._table = self._store.tables.table_at(f"topics/{self.topic}")
        self._version = NONE
        self.ends, self._parts, self._hints = {}, [], {}
        self.commit, self._checked = None, set()
        self._rows.forget()

    def forget_before(self, offsets: Mapping[int, int]) -> None:
        """Drop the files and rows before these offsets of queues; a later `read` finds them."""
        unread = {q: offset for q, offset in offsets.items() if offset < self.ends.get(q, 0)}
        self._parts = [
            part
            for part in self._parts
            if any(may_hold(part, queue, offset) for queue, offset in unread.items())
        ]
        self._hints = {}
        self._rows.forget(set(self._parts))

    # --- reading ----------------------------------------------------------------------------

    def read(self, queue_id: int, offset: int) -> Run | None:
        """Read messages of a queue from an offset on; None if the next one is not visible yet.

        Raises:
            MessagesExpiredError: retention removed the message at this offset.
            OffsetOutOfRangeError: the offset lies beyond the end of the queue.
            StorageError: the table cannot be read.
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

    def places(self, queue_id: int, start: int, end: int) -> list[tuple[int, str, int]]:
        """Return offset, id and store time (ms) of the messages of a range of offsets, in no order.

        Bodies are not read. Raises: StorageError.
        """
        self._plan()
        parts = (part for part in self._parts if may_hold(part, queue_id, start, end))
        files = {part.file.path: part.file for part in parts}
        rows = self._table.rows.read([*files.values()], (*POSITION_COLUMNS, *PLACE_COLUMNS))
        offsets = rows["queue_offset"]
        is_in = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
        chosen = rows.filter(pc.and_(is_in, pc.equal(rows["queue_id"], queue_id)))
        names = ("queue_offset", *PLACE_COLUMNS)
        chosen = sound_rows(chosen, names)
        numbers, ids, moments = (chosen[name].to_pylist() for name in names)
        return list(zip(numbers, ids, map(milliseconds, moments), strict=True))

    def row_bytes(self, queue_id: int, start: int, end: int) -> int:
        """Return the largest average row size of the files that may hold a range of offsets."""
        sizes = (
            part.file.size_bytes // max(part.file.num_records, 1)
            for part in self._parts
            if may_hold(part, queue_id, start, end)
        )
        return max(sizes, default=0)

    def _end(self, queue_id: int) -> int:
        """Return the next offset of a queue; if no commit named it, a mark of the table has it."""
        if queue_id not in self.ends and self._version != NONE:
            self.ends[queue_id] = end_offset(self._table, queue_id)
        return self.ends.get(queue_id, 0)

    def _beyond(self, queue_id: int, offset: int) -> Run | None:
        """Read beyond the known end: another member may have seen a newer version."""
        self.look_closely()
        if self._version != NONE or self.look():
            self._plan()
        end = self._end(queue_id)
        if offset <= end:
            return self.read(queue_id, offset)
        raise OffsetOutOfRangeError(
            self.topic, queue_id, offset=offset, first_offset=0, end_offset=end
        )

    def _find(self, queue_id: int, offset: int) -> Run | None:
        """Find the run at an offset; None if it is not there, or a file was removed meanwhile."""
        for part in self._candidates(queue_id, offset):
            index = self._unless_failed(part, partial(self._rows.index_of, self._table, part))
            if index is None:
                return None
            numbers = index.run(queue_id, offset)
            if numbers is not None:
                window = self._rows.window(self._table, part, int(numbers[0]))
                self._hints[queue_id] = part
                return None if window is None else self._run(window, numbers, offset)
        return None

    def _unless_failed(self, part: FilePart, read: Callable[[], Result]) -> Result:
        """Read a file; re-raise its last error if it failed less than FAILED_PAUSE_S ago."""
        path = part.file.path
        failed = self._failed.get(path)
        if failed is not None and time.monotonic() - failed[0] < FAILED_PAUSE_S:
            raise failed[1]
        try:
            result = read()
        except StorageError as error:
            self._failed[path] = time.monotonic(), error
            raise
        self._failed.pop(path, None)
        return result

    def _candidates(self, queue_id: int, offset: int) -> Iterator[FilePart]:
        """Yield the parts that may hold an offset, first the part of the offsets before it."""
        last = self._hints.get(queue_id)
        parts = self._parts
        start = parts.index(last) if last in parts else 0
        for part in (*parts[start:], *parts[:start]):
            if may_hold(part, queue_id, offset):
                for group in self._split(part):
                    if may_hold(group, queue_id, offset):
                        yield group

    def _split(self, part: FilePart) -> Sequence[FilePart]:
        """Return the row groups of a large file; they replace it in the list of parts."""
        if part.row_group is not None or part.file.size_bytes <= LARGE_FILE_BYTES:
            return (part,)
        groups = self._unless_failed(
            part, partial(self._table.rows.row_groups, part, POSITION_COLUMNS)
        )
        if groups is None:
            return (part,)
        number = self._parts.index(part)
        self._parts = [*self._parts[:number], *groups, *self._parts[number + 1 :]]
        return groups

    def _run(self, window: Window, numbers: Integers, offset: int) -> Run:
        places = window.places(numbers)
        next_offset = offset + len(places)
        offsets = np.arange(offset, next_offset)
        if window.passes is not None:
            chosen = window.passes[places]
            places, offsets = places[chosen], offsets[chosen]
        rows = MessageRows(window.take(places), self._namespace, self._codec)
        return Run(rows, offsets.tolist(), next_offset)

    def _check_not_expired(self, queue_id: int, offset: int) -> None:
        end = self.ends.get(queue_id, 0)
        if self._version == NONE or offset >= end:
            return
        parts = self._table.files.parts(POSITION_COLUMNS)
        # A row of another program may have any offset.
        first = min(end, live_offsets(parts, self._table, {queue_id: offset}).get(queue_id, end))
        if first > offset:
            lost = lost_by_others(self._store, TopicLog(self.topic, self._table, ""))
            raise MessagesExpiredError(
                self.topic, queue_id,
                next_offset=offset, first_offset=first, missed=first - offset, lost=lost,
            )  # fmt: skip

    # --- the history of the topic -----------------------------------------------------------

    def has_moved_since(self, commit: TopicCommit) -> bool:
        """Tell whether a rebuild after a commit has given offsets to other messages."""
        return commit.version < self._moved.version

    def check_follows(self, commit: TopicCommit, queue_id: int, offset: int) -> None:
        """Check that an offset is the one that it was in the commit that it is of.

        The topic must have that commit, which is looked up once, and no rebuild after it may have
        given offsets before this one to other messages. A commit that log clean-up has removed
        counts as one of the topic.

        Raises: TopicRestoredError, StorageError.
        """
        # Nothing lies before the first offset.
        if self._version == NONE or not offset:
            return
        has_moved = self._moved.are_passed(queue_id, offset, commit.version)
        if has_moved or not self._has(commit):
            end, version = self._end(queue_id), commit.version
            raise TopicRestoredError(
                self.topic, queue_id,
                offset=offset, end_offset=end, version=version, is_rebuilt=has_moved,
            )  # fmt: skip

    def _has(self, commit: TopicCommit) -> bool:
        """Tell whether the log has a commit; once found, it is not looked up again."""
        if commit in self._checked or commit == self.commit:
            return True
        if self._version < commit.version:
            self._plan()
        in_log = topic_commit(self._table.folder, commit.version)
        if in_log != commit and (in_log is not None or self._version < commit.version):
            return False
        self._checked.add(commit)
        return True


def topic_commit(table: TableFolder, version: int) -> TopicCommit | None:
    """Return a commit as it stands in the log; None if it is not there, as after log clean-up."""
    content = table.commit_bytes(version)
    if content is None:
        return None
    return _commit_of(version, hashlib.sha256(content).hexdigest())


def _commit_of(version: int, sha256: str) -> TopicCommit:
    return TopicCommit(version, fingerprint_of(sha256))


# --- rows of files


class PartRows:
    """Reads the rows of parts of the files of one table. Not safe for several threads."""

    def __init__(self, message_filter: MessageMask | None) -> None:
        """Read nothing yet."""
        self._filter = message_filter
        self._indexes: OrderedDict[FilePart, PartIndex] = OrderedDict()
        self._windows: OrderedDict[tuple[FilePart, int], Window] = OrderedDict()
        self._cursors: OrderedDict[FilePart, _Cursor] = OrderedDict()

    @property
    def kept_bytes(self) -> int:
        """The memory that the kept windows take."""
        return sum(window.size_bytes for window in self._windows.values())

    def forget(self, parts: set[FilePart] | None = None) -> None:
        """Drop all rows but those of some parts; without `parts` also all indexes."""
        if parts is None:
            self._indexes.clear()
        wanted = parts or set()
        for key in [key for key in self._windows if key[0] not in wanted]:
            del self._windows[key]
        for part in self._cursors.keys() - wanted:
            del self._cursors[part]

    def index_of(self, table: Table, part: FilePart) -> PartIndex | None:
        """Return the index of a part; None if its file is gone. Raises: StorageError."""
        if part not in self._indexes and part.file.size_bytes <= SMALL_FILE_BYTES:
            # This keeps the index of a part that fits into one window.
            self.window(table, part, 0)
        if part not in self._indexes:
            rows = table.rows.read_part(part, POSITION_COLUMNS)
            if rows is None:
                return None
            self._keep_index(part, PartIndex.of(rows))
        self._indexes.move_to_end(part)
        return self._indexes[part]

    def window(self, table: Table, part: FilePart, number: int) -> Window | None:
        """Return the window with this row of a part; None if its file is gone.

        Raises: StorageError.
        """
        for key, window in self._windows.items():
            if key[0] is part and window.start <= number < window.start + window.rows.num_rows:
                self._windows.move_to_end(key)
                return window
        try:
            return self._decode(table, part, number)
        except BaseException as error:
            # A cursor that has failed looks like one that is at its end.
            self._cursors.pop(part, None)
            if isinstance(error, FileNotFoundError):
                return None
            raise

    def _decode(self, table: Table, part: FilePart, number: int) -> Window | None:
        cursor = self._cursor(table, part, number)
        while entry := cursor.next():
            start, rows, is_last = entry
            if number < cursor.next_row:
                return self._keep(part, start, rows, is_whole=is_last and not start)
        return None

    def _cursor(self, table: Table, part: FilePart, number: int) -> _Cursor:
        cursor = self._cursors.pop(part, None)
        if cursor is None or cursor.next_row > number:
            cursor = _Cursor(table.rows.windows(part, MESSAGE_COLUMNS, WINDOW_BYTES))
        self._cursors[part] = cursor
        while len(self._cursors) > KEPT_CURSORS:
            self._cursors.popitem(last=False)
        return cursor

    def _keep(self, part: FilePart, start: int, rows: pa.Table, *, is_whole: bool) -> Window:
        order = None
        if is_whole:
            index = PartIndex.of(rows)
            self._keep_index(part, index)
            order = index.order
            del self._cursors[part]
        window = self._windows[part, start] = Window.of(start, rows, order, self._filter)
        size_bytes = self.kept_bytes
        while size_bytes > KEPT_BYTES and len(self._windows) > KEPT_WINDOWS:
            size_bytes -= self._windows.popitem(last=False)[1].size_bytes
        return window

    def _keep_index(self, part: FilePart, index: PartIndex) -> None:
        self._indexes[part] = index
        while len(self._indexes) > KEPT_INDEXES:
            self._indexes.popitem(last=False)


@dataclass(frozen=True, slots=True)
class PartIndex:
    """The rows of a part of a file by queue and offset.

    Attributes:
        by_queue: for each queue its offsets, sorted, and the numbers of the rows that have them.
        order: the numbers of all rows, queue by queue.
    """

    by_queue: Mapping[int, tuple[Integers, Integers]]
    order: Integers

    @classmethod
    def of(cls, rows: pa.Table) -> PartIndex:
        """Index rows with POSITION_COLUMNS, in the order of their file."""
        queue_ids, offsets = (integers(rows[name], NONE) for name in POSITION_COLUMNS)
        order = np.lexsort((offsets, queue_ids))
        names, first = np.unique(queue_ids[order], return_index=True)
        rows_by_queue = zip(names, np.split(order, first[1:]), strict=True)
        by_queue = {int(name): (offsets[numbers], numbers) for name, numbers in rows_by_queue}
        return cls(by_queue, order)

    def run(self, queue_id: int, offset: int) -> Integers | None:
        """Find the rows with consecutive offsets from `offset` on, at most RUN_ROWS; else None."""
        if queue_id not in self.by_queue:
            return None
        offsets, rows = self.by_queue[queue_id]
        start = int(np.searchsorted(offsets, offset))
        next_offsets = offsets[start : start + RUN_ROWS]
        follows = next_offsets == np.arange(offset, offset + len(next_offsets))
        count = len(next_offsets) if follows.all() else int(np.argmin(follows))
        return rows[start : start + count] if count else None


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Decoded rows of a part of a file.

    Attributes:
        start: the number of its first row in the part.
        rows: the rows with MESSAGE_COLUMNS.
        place: for each row of the part from `start` on its place in `rows`; None if they agree.
        passes: which of `rows` pass the filter and are not erased; None if all do.
        size_bytes: the memory that the rows take.
    """

    start: int
    rows: pa.Table
    place: Integers | None
    passes: npt.NDArray[np.bool_] | None
    size_bytes: int

    @classmethod
    def of(
        cls, start: int, rows: pa.Table, order: Integers | None, message_filter: MessageMask | None
    ) -> Window:
        """Make a window of some rows; `order` sorts them by queue, so that a run is a view."""
        place = None
        if order is not None:
            place = np.empty(len(order), dtype=np.int64)
            place[order] = np.arange(len(order))
            rows = rows.take(pa.array(order))
        rows = rows.combine_chunks()
        passes = None
        if message_filter is not None:
            mask = pc.fill_null(message_filter.mask(rows), False)  # noqa: FBT003 - pyarrow's
            passes = mask.to_numpy(zero_copy_only=False).astype(bool)
        if (gone := are_erased(rows["properties"])) is not None:
            passes = ~gone if passes is None else passes & ~gone
        return cls(start, rows, place, passes, int(rows.nbytes))

    def places(self, numbers: Integers) -> Integers:
        """Return the places of the first of these rows of the part, as many as the window has."""
        inside = (numbers >= self.start) & (numbers < self.start + self.rows.num_rows)
        count = len(numbers) if inside.all() else int(np.argmin(inside))
        places = numbers[:count] - self.start
        return places if self.place is None else self.place[places]

    def take(self, places: Integers) -> pa.Table:
        """Return some rows: a view, or a copy if a view would keep a large window in memory."""
        is_small = self.size_bytes <= WINDOW_BYTES
        if is_small and len(places) and (np.diff(places) == 1).all():
            return self.rows.slice(int(places[0]), len(places))
        return self.rows.take(pa.array(places))


class _Cursor:
    """Decodes one part, window by window, from its first row on."""

    def __init__(self, windows: Iterator[tuple[pa.Table, bool]]) -> None:
        self._windows, self.next_row = windows, 0

    def next(self) -> tuple[int, pa.Table, bool] | None:
        """Decode a window: number of its first row, rows, whether they end the part; else None."""
        entry = next(self._windows, None)
        if entry is None:
            return None
        start, (rows, is_last) = self.next_row, entry
        self.next_row += rows.num_rows
        return start, rows, is_last
