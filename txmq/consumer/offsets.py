"""Which offsets a topic has: its first ones, its next ones, and those of a moment. Reads only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow.compute as pc

from txmq.clock import milliseconds, timestamp
from txmq.columns import integers
from txmq.consumer.rules import ConsumeFromWhere
from txmq.delta.files import FilePart
from txmq.delta.storage import Table
from txmq.errors import ConfigError, OffsetOutOfRangeError, shown
from txmq.store.store import Store
from txmq.store.topic import OFFSET_MARK

OffsetsByTopic = Mapping[str, Mapping[int, int]]

POSITION_COLUMNS = ("queue_id", "queue_offset")
NONE = -1


class TopicOffsets:
    """Looks at the newest version of a topic; a topic that is not there has none.

    Cost: one look at the log; `first` reads the places of the oldest files, `at` those of the
    files that are younger than the moment, and of one more.
    """

    def __init__(self, store: Store, topic: str) -> None:
        """Open the table where it is there."""
        table = store.table_at(f"topics/{topic}")
        self._table = table if table.exists() else None

    def queue_count(self) -> int:
        """One more than the highest queue that has messages."""
        return 0 if self._table is None else queue_count(self._table)

    def end(self, queues: Iterable[int]) -> dict[int, int]:
        """The offset that the next message of each queue gets; kept beyond retention."""
        table = self._table
        return {queue: 0 if table is None else end_offset(table, queue) for queue in queues}

    def first(self, queues: Iterable[int]) -> dict[int, int]:
        """The smallest offset of each queue that is there; the next one where none is."""
        ends = self.end(queues)
        if self._table is None:
            return ends
        wanted = {queue: 0 for queue, end in ends.items() if end}
        return {**ends, **live_offsets(self._table.parts(POSITION_COLUMNS), self._table, wanted)}

    def at(self, queues: Iterable[int], moment_ms: int) -> dict[int, int]:
        """The first offset of each queue that was stored at a moment or later; else the next."""
        ends = self.end(queues)
        if self._table is None:
            return ends
        found = _offsets_at(self._table, moment_ms)
        return {queue: found.get(queue, end) for queue, end in ends.items()}


def queue_count(table: Table) -> int:
    """One more than the highest queue that has messages in this version."""
    highest = (one.high for one in table.ranges("queue_id"))
    return 1 + max((high for high in highest if high is not None), default=NONE)


def end_offset(table: Table, queue_id: int) -> int:
    """The offset that the next message of a queue gets, as this version says it."""
    return table.mark(f"{OFFSET_MARK}{queue_id}") or 0


def live_offsets(
    parts: Iterable[FilePart], table: Table, wanted: Mapping[int, int]
) -> dict[int, int]:
    """For each queue the smallest offset from a given one on that is there, if any is."""
    found: dict[int, int] = {}
    for part in sorted(parts, key=lowest_offset):
        open_queues = [q for q in wanted if q not in found or found[q] > lowest_offset(part)]
        if not open_queues:
            break
        if not any(may_hold(part, queue, wanted[queue]) for queue in open_queues):
            continue
        for queue, offset in _smallest(table, part, open_queues, wanted).items():
            found[queue] = min(offset, found.get(queue, offset))
    return found


def _smallest(
    table: Table, part: FilePart, queues: Sequence[int], wanted: Mapping[int, int]
) -> dict[int, int]:
    rows = table.read([part.file], POSITION_COLUMNS)
    queue_ids, offsets = (integers(rows[name], NONE) for name in POSITION_COLUMNS)
    found = {}
    for queue in queues:
        own = offsets[(queue_ids == queue) & (offsets >= wanted[queue])]
        if len(own):
            found[queue] = int(own.min())
    return found


def lowest_offset(part: FilePart) -> int:
    """No row of the part has a smaller offset."""
    low = part.low.get("queue_offset")
    return 0 if low is None else int(low)


def may_hold(part: FilePart, queue_id: int, from_offset: int) -> bool:
    """Whether a part may have messages of a queue from an offset on; unknown bounds may."""
    low, high = part.low.get("queue_id"), part.high.get("queue_id")
    if (low is not None and queue_id < low) or (high is not None and queue_id > high):
        return False
    highest = part.high.get("queue_offset")
    return highest is None or bool(from_offset <= highest)


def _offsets_at(table: Table, moment_ms: int) -> dict[int, int]:
    """From the newest file back to the first that is all older: messages are stored in turn."""
    found: dict[int, int] = {}
    newest_first = sorted(
        table.ranges("op_version"), key=lambda one: (one.high is None, one.high or 0), reverse=True
    )
    for one in newest_first:
        rows = table.read([one.file], (*POSITION_COLUMNS, "store_timestamp"))
        rows = rows.filter(pc.greater_equal(rows["store_timestamp"], timestamp(moment_ms)))
        if not rows.num_rows and one.high is not None:
            break
        queue_ids, offsets = (integers(rows[name], NONE) for name in POSITION_COLUMNS)
        for queue in np.unique(queue_ids).tolist():
            lowest = int(offsets[queue_ids == queue].min())
            found[queue] = min(lowest, found.get(queue, lowest))
    return found


@dataclass(frozen=True, slots=True)
class StartPoint:
    """Where to begin: `where`, with its moment, or `offsets` of queues by topic.

    Queues that `offsets` does not name begin at their first message.
    """

    where: ConsumeFromWhere
    moment_ms: int | None = None
    offsets: OffsetsByTopic | None = None

    @classmethod
    def of(
        cls, from_where: ConsumeFromWhere | OffsetsByTopic, from_timestamp: datetime | None
    ) -> StartPoint:
        """What a caller passed. Raises: ConfigError."""
        is_timed = from_where is ConsumeFromWhere.TIMESTAMP
        if is_timed != (from_timestamp is not None):
            problem = "from_timestamp belongs to ConsumeFromWhere.TIMESTAMP, and it to the other"
            raise ConfigError([problem])
        if isinstance(from_where, ConsumeFromWhere):
            return cls(from_where, None if from_timestamp is None else moment_ms(from_timestamp))
        if not isinstance(from_where, Mapping):
            problem = "from_where must be a ConsumeFromWhere or offsets by topic and queue"
            raise ConfigError([f"{problem}, not {shown(from_where)}"])
        return cls(ConsumeFromWhere.FIRST_OFFSET, offsets=_checked(from_where))

    def check(self, store: Store, topics: Collection[str]) -> None:
        """Raise ConfigError or OffsetOutOfRangeError for offsets that no new group can begin at."""
        for topic, own in (self.offsets or {}).items():
            if topic not in topics:
                raise ConfigError([f"from_where names the topic {shown(topic)}, which is not read"])
            self.offsets_in(store, topic, own)

    def offsets_in(self, store: Store, topic: str, queues: Iterable[int]) -> dict[int, int]:
        """The first offset to read of each queue. Raises: OffsetOutOfRangeError, StorageError."""
        wanted, known = list(queues), TopicOffsets(store, topic)
        if self.moment_ms is not None:
            return known.at(wanted, self.moment_ms)
        if self.where is ConsumeFromWhere.LAST_OFFSET:
            return known.end(wanted)
        first = known.first(wanted)
        given = (self.offsets or {}).get(topic, {})
        ends = known.end(given)
        for queue, offset in given.items():
            check_offset(topic, queue, offset, first.get(queue, 0), ends[queue])
        return {queue: given.get(queue, offset) for queue, offset in first.items()}


def check_offset(topic: str, queue_id: int, offset: object, first: int, end: int) -> None:
    """Raise OffsetOutOfRangeError for what cannot be the next offset of a queue."""
    if type(offset) is not int or not first <= offset <= end:
        raise OffsetOutOfRangeError(
            topic, queue_id, offset=offset, first_offset=first, end_offset=end
        )


def moment_ms(moment: object) -> int:
    """Milliseconds of an aware time. Raises: ConfigError."""
    if not isinstance(moment, datetime) or moment.utcoffset() is None:
        problem = "a moment must be a datetime with a time zone, such as datetime(..., tzinfo=UTC)"
        raise ConfigError([problem])
    return milliseconds(moment)


def _is_mapping(value: object) -> bool:
    return isinstance(value, Mapping)


def _checked(offsets: OffsetsByTopic) -> OffsetsByTopic:
    faults = [
        f"offsets of {shown(topic)} must be whole numbers by queue_id"
        for topic, own in offsets.items()
        if not _is_mapping(own)
        or any(type(number) is not int or number < 0 for pair in own.items() for number in pair)
    ]
    if faults:
        raise ConfigError(faults)
    return offsets


FROM_THE_BEGINNING = StartPoint(ConsumeFromWhere.FIRST_OFFSET)
