"""Find the offsets of a topic: the first ones, the next ones, and those of a moment. Read-only."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow.compute as pc

from txmq.delta.files import FilePart, FileRange
from txmq.delta.table import Table
from txmq.errors import (
    ConfigError,
    MessagesExpiredError,
    OffsetOutOfRangeError,
    StorageError,
    shown,
)
from txmq.ground.clock import milliseconds, moment_problem, timestamp
from txmq.ground.columns import integers
from txmq.message.names import topic_in_namespace
from txmq.store.known import lost_by_others
from txmq.store.store import Store
from txmq.store.topic import OFFSET_MARK, TopicLog, queue_ends

OffsetsByTopic = Mapping[str, Mapping[int, int]]

POSITION_COLUMNS = ("queue_id", "queue_offset")
NONE = -1
# Why a queue or a topic cannot be read; the others are served meanwhile.
UNREADABLE = (MessagesExpiredError, OffsetOutOfRangeError, StorageError, OSError)


class ConsumeFromWhere(enum.Enum):
    """Where a new group begins (R106); a group that has offsets goes on at its offsets."""

    FIRST_OFFSET = "first"
    LAST_OFFSET = "last"
    TIMESTAMP = "timestamp"


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Where a group, a stream or a look at a topic begins.

    Attributes:
        where: the first or the last offset, or a moment.
        moment_ms: the moment, for ConsumeFromWhere.TIMESTAMP.
        offsets: offsets of queues by topic; queues without an entry begin at their first message.
        accepts_losses: whether a group may begin behind messages that another program removed.
    """

    where: ConsumeFromWhere
    moment_ms: int | None = None
    offsets: OffsetsByTopic | None = None
    accepts_losses: bool = False

    @classmethod
    def of(
        cls, from_where: ConsumeFromWhere | OffsetsByTopic, from_timestamp: datetime | None
    ) -> StartPoint:
        """Check the two arguments of a caller. Raises: ConfigError."""
        is_timed = from_where is ConsumeFromWhere.TIMESTAMP
        if is_timed != (from_timestamp is not None):
            problem = "from_timestamp and ConsumeFromWhere.TIMESTAMP need each other; pass both"
            raise ConfigError([problem])
        if isinstance(from_where, ConsumeFromWhere):
            return cls(from_where, None if from_timestamp is None else moment_ms(from_timestamp))
        if not isinstance(from_where, Mapping):
            problem = "from_where must be a ConsumeFromWhere or offsets by topic and queue"
            raise ConfigError([f"{problem}, not {shown(from_where)}"])
        return cls(ConsumeFromWhere.FIRST_OFFSET, offsets=_checked(from_where))

    def in_namespace(self, namespace: str | None) -> StartPoint:
        """Return the same start with stored names of topics instead of those of a namespace.

        Raises: InvalidNameError.
        """
        if self.offsets is None:
            return self
        offsets = {
            topic_in_namespace(topic, namespace): queues for topic, queues in self.offsets.items()
        }
        return replace(self, offsets=offsets)

    def check(self, store: Store, topics: Collection[str]) -> None:
        """Refuse offsets at which a new group cannot begin; 0 commits.

        Raises: ConfigError for a topic that the group does not read, OffsetOutOfRangeError.
        """
        for topic, queues in (self.offsets or {}).items():
            if topic not in topics:
                raise ConfigError([f"from_where names the topic {shown(topic)}, which is not read"])
            self.offsets_in(store, topic, queues)

    def offsets_in(
        self, store: Store, topic: str, queues: Iterable[int], *, refuses_losses: bool = False
    ) -> dict[int, int]:
        """Return the first offset to read of each queue of a topic; 0 commits.

        Raises: OffsetOutOfRangeError, StorageError; where it `refuses_losses` MessagesExpiredError,
            if another program removed messages and an offset may lie behind some of them.
        """
        queue_ids, offsets = list(queues), TopicOffsets(store, topic)
        if self.where is ConsumeFromWhere.LAST_OFFSET:
            return offsets.end(queue_ids)
        if self.moment_ms is not None:
            begins = offsets.at(queue_ids, self.moment_ms)
        else:
            begins = offsets.first(queue_ids)
        chosen = (self.offsets or {}).get(topic, {})
        if refuses_losses:
            others = {queue: begin for queue, begin in begins.items() if queue not in chosen}
            offsets.check_whole_before(others)
        ends = offsets.end(chosen)
        for queue, offset in chosen.items():
            check_offset(topic, queue, offset, begins.get(queue, 0), ends[queue])
        return {queue: chosen.get(queue, offset) for queue, offset in begins.items()}


FROM_THE_BEGINNING = StartPoint(ConsumeFromWhere.FIRST_OFFSET)


def _checked(offsets: Mapping[str, Any]) -> OffsetsByTopic:
    faults = [
        f"offsets of {shown(topic)} must be whole numbers by queue_id"
        for topic, queues in offsets.items()
        if not isinstance(queues, Mapping)
        or any(type(number) is not int or number < 0 for pair in queues.items() for number in pair)
    ]
    if faults:
        raise ConfigError(faults)
    return offsets


def moment_ms(moment: object) -> int:
    """Return the milliseconds of a time with a time zone. Raises: ConfigError."""
    if not isinstance(moment, datetime):
        problem = "a moment must be a datetime with a time zone, such as datetime(..., tzinfo=UTC)"
        raise ConfigError([problem])
    wrong = moment_problem(moment)
    if wrong is not None:
        raise ConfigError([f"a moment {wrong}"])
    return milliseconds(moment)


def check_offset(topic: str, queue_id: int, offset: object, first: int, end: int) -> None:
    """Raise OffsetOutOfRangeError for a value that cannot be the next offset of a queue."""
    if type(offset) is not int or not first <= offset <= end:
        raise OffsetOutOfRangeError(
            topic, queue_id, offset=offset, first_offset=first, end_offset=end
        )


class TopicOffsets:
    """The offsets of the newest version of a topic; a topic without a table has none.

    Not safe for several threads; 0 commits. Cost: one look at the log. `first` also reads the
    offsets of the oldest files, `at` those of the files after the moment and of one file before.
    """

    def __init__(self, store: Store, topic: str) -> None:
        """Open the table if it exists. Raises: InvalidNameError, StorageError."""
        self._store, self._topic = store, topic
        table = store.tables.table_at(f"topics/{topic}")
        self._table = table if table.exists() else None

    def queue_count(self) -> int:
        """Return one more than the highest queue that has got messages."""
        return 0 if self._table is None else 1 + max(ends_of(self._table), default=NONE)

    def end(self, queues: Iterable[int]) -> dict[int, int]:
        """Return the offset that the next message of each queue will get; retention keeps it."""
        table = self._table
        return {queue: 0 if table is None else end_offset(table, queue) for queue in queues}

    def first(self, queues: Iterable[int]) -> dict[int, int]:
        """Return the smallest offset of each queue that is kept; the next one of an empty queue."""
        ends = self.end(queues)
        if self._table is None:
            return ends
        starts = {queue: 0 for queue, end in ends.items() if end}
        live = live_offsets(self._table.files.parts(POSITION_COLUMNS), self._table, starts)
        # A row of another program may have any offset.
        return {queue: min(end, live.get(queue, end)) for queue, end in ends.items()}

    def at(self, queues: Iterable[int], moment_ms: int) -> dict[int, int]:
        """Return the first offset of each queue that was stored at a moment or later.

        A queue without such a message gets its next offset.
        """
        ends = self.end(queues)
        if self._table is None:
            return ends
        offsets = _offsets_at(self._table, moment_ms)
        return {queue: offsets.get(queue, end) for queue, end in ends.items()}

    def check_whole_before(self, offsets: Mapping[int, int]) -> None:
        """Check that no other program may have removed the message before each of these offsets.

        Raises: MessagesExpiredError for the first queue of which it may.
        """
        table = self._table
        lost = 0 if table is None else lost_by_others(self._store, TopicLog(self._topic, table, ""))
        if table is None or not lost:
            return
        before = {queue: offset - 1 for queue, offset in offsets.items() if offset}
        live = live_offsets(table.files.parts(POSITION_COLUMNS), table, before)
        for queue in sorted(before):
            if live.get(queue) != before[queue]:
                first = offsets[queue]
                raise MessagesExpiredError(
                    self._topic, queue, next_offset=0, first_offset=first, missed=first, lost=lost
                )


def ends_of(table: Table) -> dict[int, int]:
    """Return the next offset of each queue that has got messages up to this version."""
    return queue_ends(table.log.marks(OFFSET_MARK))


def end_offset(table: Table, queue_id: int) -> int:
    """Return the offset that the next message of a queue gets after this version of the table."""
    return table.log.mark(f"{OFFSET_MARK}{queue_id}") or 0


def live_offsets(
    parts: Iterable[FilePart], table: Table, starts: Mapping[int, int]
) -> dict[int, int]:
    """Find the smallest offset of each queue that is kept, from a start of the queue on.

    A queue without such an offset has no entry.
    """
    lowest: dict[int, int] = {}
    for part in sorted(parts, key=lowest_offset):
        open_queues = [q for q in starts if q not in lowest or lowest[q] > lowest_offset(part)]
        if not open_queues:
            break
        if not any(may_hold(part, queue, starts[queue]) for queue in open_queues):
            continue
        for queue, offset in _lowest_of(table, part, open_queues, starts).items():
            lowest[queue] = min(offset, lowest.get(queue, offset))
    return lowest


def _lowest_of(
    table: Table, part: FilePart, queues: Sequence[int], starts: Mapping[int, int]
) -> dict[int, int]:
    rows = table.rows.read([part.file], POSITION_COLUMNS)
    queue_ids, offsets = (integers(rows[name], NONE) for name in POSITION_COLUMNS)
    lowest = {}
    for queue in queues:
        candidates = offsets[(queue_ids == queue) & (offsets >= starts[queue])]
        if len(candidates):
            lowest[queue] = int(candidates.min())
    return lowest


def lowest_offset(part: FilePart) -> int:
    """Return a lower bound of the offsets in a part of a file, by its statistics."""
    low = part.low.get("queue_offset")
    return 0 if low is None else int(low)


def may_hold(part: FilePart, queue_id: int, from_offset: int, before: int | None = None) -> bool:
    """Tell whether a part may hold messages of a queue from an offset on; true without bounds.

    With `before` only of those before that offset.
    """
    low, high = part.low.get("queue_id"), part.high.get("queue_id")
    if (low is not None and queue_id < low) or (high is not None and queue_id > high):
        return False
    if before is not None and lowest_offset(part) >= before:
        return False
    highest = part.high.get("queue_offset")
    return highest is None or bool(from_offset <= highest)


def _offsets_at(table: Table, moment_ms: int) -> dict[int, int]:
    """Find the smallest offset of each queue that was stored at a moment or later.

    Reads from the newest file back to the first file whose messages are all older: the publisher
    stores messages in the order of time.
    """
    lowest: dict[int, int] = {}
    for span in sorted(table.files.ranges("op_version"), key=_age, reverse=True):
        rows = table.rows.read([span.file], (*POSITION_COLUMNS, "store_timestamp"))
        rows = rows.filter(pc.greater_equal(rows["store_timestamp"], timestamp(moment_ms)))
        if not rows.num_rows and span.high is not None:
            break
        queue_ids, offsets = (integers(rows[name], NONE) for name in POSITION_COLUMNS)
        for queue in np.unique(queue_ids).tolist():
            offset = int(offsets[queue_ids == queue].min())
            lowest[queue] = min(offset, lowest.get(queue, offset))
    return lowest


def _age(span: FileRange) -> tuple[bool, int]:
    # A file without statistics may be the newest.
    return span.high is None, span.high or 0
