"""Where a consumer group begins in a topic that it has no offsets of (R106). Reads only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from txmq.clock import milliseconds
from txmq.consumer.offsets import TopicOffsets
from txmq.consumer.rules import ConsumeFromWhere
from txmq.errors import ConfigError, OffsetOutOfRangeError, shown
from txmq.store.store import Store

OffsetsByTopic = Mapping[str, Mapping[int, int]]


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


FROM_THE_BEGINNING = StartPoint(ConsumeFromWhere.FIRST_OFFSET)


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
