"""Reads one topic queue by queue, strictly in the order of offsets, while its log grows.

Offsets have no gaps, so a row is returned only if it has the next offset. If a file or rows were
removed, the reader plans again from the newest version of the table, by offsets. So it does not
need to hold back VACUUM, compaction or the clean-up of the log.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np
import pyarrow.compute as pc

from txmq.clock import milliseconds
from txmq.columns import Integers
from txmq.consumer.followed import TopicCommit, topic_commit
from txmq.consumer.offsets import (
    NONE,
    POSITION_COLUMNS,
    UNREADABLE,
    end_offset,
    live_offsets,
    lowest_offset,
    may_hold,
    queue_count,
)
from txmq.consumer.part_rows import MessageMask, PartRows, Window
from txmq.delta.files import FilePart
from txmq.delta.log import CommitNews, commit_news
from txmq.delta.storage import Table
from txmq.errors import (
    MessagesExpiredError,
    OffsetOutOfRangeError,
    StorageError,
    StorageUnavailableError,
    StoreNotFoundError,
    TopicRestoredError,
)
from txmq.message.body_codec import BodyCodec
from txmq.message.received import MessageRows
from txmq.store.store import Store
from txmq.store.topic import OFFSET_MARK, REBUILD_MARK

# The reader reads larger files one row group at a time.
PLACE_COLUMNS = ("message_id", "store_timestamp")
LARGE_FILE_BYTES = 32 * 1024 * 1024
# A file that could not be read is not tried again sooner: each queue would wait for it.
FAILED_PAUSE_S = 1.0
Result = TypeVar("Result")


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
        self._commit: TopicCommit | None = None
        self._checked: set[TopicCommit] = set()

    # --- following the log ------------------------------------------------------------------

    @property
    def queue_count(self) -> int:
        """One more than the highest id of a queue that was seen with messages."""
        return 1 + max((queue for queue, end in self.ends.items() if end), default=NONE)

    def follow(self, *, closely: bool = False) -> bool:
        """Look, and return whether anything is new; where the topic cannot be read, keep `failure`.

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
            return self._found_table()
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
        """Notice a log that was cleaned or created anew, which `look` does not see.

        Raises: StorageError.
        """
        self._checked = set()
        if self._version == NONE:
            self._table.doubt_absence()
        elif not self._table.has_commit(self._version) or not self._is_same_table():
            self._forget_all()
            self.look()

    def _is_same_table(self) -> bool:
        """A table that was created anew at the same place has another id."""
        fresh = self._store.tables.table_at(f"topics/{self.topic}")
        return fresh.exists() and fresh.table_id == self._table.table_id

    def _found_table(self) -> bool:
        is_there = self._table.exists()
        if is_there:
            self._plan()
        return is_there

    def _follow(self, news: CommitNews) -> None:
        self._parts += sorted(news.added, key=lowest_offset)
        for name, number in news.marks.items():
            if name.startswith(OFFSET_MARK):
                self.ends[int(name.removeprefix(OFFSET_MARK))] = number

    def _plan(self) -> None:
        """Read all live files of the newest version, and the next offset of each queue."""
        try:
            self._table.refresh()
        except StoreNotFoundError:
            self._forget_all()
            return
        parts = sorted(self._table.parts(POSITION_COLUMNS), key=lowest_offset)
        queues = {*range(queue_count(self._table)), *self.ends}
        ends = {queue: end_offset(self._table, queue) for queue in queues}
        # All at once: after an error in between, the log would seem to be followed.
        self._version, self._parts, self._hints, self.ends = self._table.version, parts, {}, ends

    def _forget_all(self) -> None:
        self._table = self._store.tables.table_at(f"topics/{self.topic}")
        self._version = NONE
        self.ends, self._parts, self._hints = {}, [], {}
        self._commit, self._checked = None, set()
        self._rows.forget()

    # --- the history of the topic -----------------------------------------------------------

    def commit(self) -> TopicCommit | None:
        """The commit up to which the log was followed; None where it is not there any more.

        Costs one small file where the log has grown since the last call. Raises: StorageError.
        """
        if self._version == NONE:
            return None
        if self._commit is None or self._commit.version != self._version:
            self._commit = self._newest_commit()
        if self._commit is not None:
            self._checked.add(self._commit)
        return self._commit

    def _newest_commit(self) -> TopicCommit | None:
        try:
            return topic_commit(self._table, self._version)
        except (StorageError, OSError):
            # Offsets of other topics are committed with those of this one.
            if self._commit is None:
                raise
            return self._commit

    def check_follows(self, commit: TopicCommit, queue_id: int, offset: int) -> None:
        """Check that the topic has the commit that an offset is of; once for each commit.

        A commit that log clean-up has removed counts as one of the topic.

        Raises: TopicRestoredError, StorageError.
        """
        if commit in self._checked or self._version == NONE:
            return
        if self._version < commit.version:
            self._plan()
        kept = topic_commit(self._table, commit.version)
        if kept != commit and (kept is not None or self._version < commit.version):
            end, version = self._end(queue_id), commit.version
            raise TopicRestoredError(
                self.topic, queue_id, offset=offset, end_offset=end, version=version
            )
        self._checked.add(commit)

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
        """Messages of a queue from an offset on; None where the next one is not visible yet.

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

    def _end(self, queue_id: int) -> int:
        """The next offset of a queue; where no commit named it, a mark of the table has it."""
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
        """The run at an offset; None where it is not there, or a file was removed meanwhile."""
        for part in self._candidates(queue_id, offset):
            index = self._tried(part, partial(self._rows.index_of, self._table, part))
            if index is None:
                return None
            numbers = index.run(queue_id, offset)
            if numbers is not None:
                window = self._rows.window(self._table, part, int(numbers[0]))
                self._hints[queue_id] = part
                return None if window is None else self._run(window, numbers, offset)
        return None

    def _tried(self, part: FilePart, read: Callable[[], Result]) -> Result:
        """What a read of a file gives, or its last error where that was a moment ago."""
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
        """The parts that may hold an offset, first the part of the offsets before it."""
        last = self._hints.get(queue_id)
        parts = self._parts
        start = parts.index(last) if last in parts else 0
        for part in (*parts[start:], *parts[:start]):
            if may_hold(part, queue_id, offset):
                for group in self._split(part):
                    if may_hold(group, queue_id, offset):
                        yield group

    def _split(self, part: FilePart) -> Sequence[FilePart]:
        """The row groups of a large file; they replace it in the list of parts."""
        if not _is_to_split(part):
            return (part,)
        groups = self._tried(part, partial(self._table.row_groups, part, POSITION_COLUMNS))
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
        taken = MessageRows(window.taken(places), self._namespace, self._codec)
        return Run(taken, offsets.tolist(), next_offset)

    def places(self, queue_id: int, start: int, end: int) -> list[tuple[int, str, int]]:
        """Offset, id and store time (ms) of the messages of a range of offsets, in no order.

        Bodies are not read. Raises: StorageError.
        """
        self._plan()
        parts = (part for part in self._parts if may_hold(part, queue_id, start))
        files = {part.file.path: part.file for part in parts if lowest_offset(part) < end}
        rows = self._table.read([*files.values()], (*POSITION_COLUMNS, *PLACE_COLUMNS))
        offsets = rows["queue_offset"]
        is_in = pc.and_(pc.greater_equal(offsets, start), pc.less(offsets, end))
        chosen = rows.filter(pc.and_(is_in, pc.equal(rows["queue_id"], queue_id)))
        names = ("queue_offset", "message_id", "store_timestamp")
        numbers, ids, moments = (chosen[name].to_pylist() for name in names)
        return list(zip(numbers, ids, map(milliseconds, moments), strict=True))

    def row_bytes(self, queue_id: int, start: int, end: int) -> int:
        """The largest average size of a row in the files that may hold a range of offsets."""
        sizes = (
            part.file.size_bytes // max(part.file.num_records, 1)
            for part in self._parts
            if may_hold(part, queue_id, start) and lowest_offset(part) < end
        )
        return max(sizes, default=0)


def _is_to_split(part: FilePart) -> bool:
    return part.row_group is None and part.file.size_bytes > LARGE_FILE_BYTES
