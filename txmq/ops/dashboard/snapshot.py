"""Counts a store for the dashboard: the last snapshot, and a history of samples for charts.

Pages show what the last count saw and read nothing for it.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from txmq.check.open_transactions import open_transactions
from txmq.consumer.lag import QueueLag
from txmq.ground.clock import Clock
from txmq.ground.columns import times_ms
from txmq.ground.histogram import NO_DURATIONS, Histogram
from txmq.ops.admin.groups import GroupSummary, summary_of
from txmq.ops.admin.status import Status
from txmq.ops.dashboard.rendering import LEAST, Point
from txmq.ops.metrics.figures import capped
from txmq.ops.metrics.meter import StoreCount, StoreLook
from txmq.publish.progress import end_latency
from txmq.publish.settle import are_ended
from txmq.store.settled import NOTHING

if TYPE_CHECKING:
    from txmq.store.store import Store
    from txmq.store.topic_settings import RegisteredTopics


# Of more than these the oldest, or those that are due first, are listed.
OPEN_MAX = 10_000
DELAYED_MAX = 1_000
DELAYED_COLUMNS = ("transaction_id", "sequence", "topic", "deliver_timestamp")
_FACTS = ("transaction_id", "state", "op_version", "op_timestamp", "settled_timestamp")
# An hour of counts each 15 seconds; of single topics and groups five minutes.
SAMPLES_MAX = 240
NAMED_MAX = 20


class QueueKey(NamedTuple):
    """One queue as one consumer group reads it."""

    group: str
    topic: str
    queue_id: int
    reader: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one count saw.

    Attributes:
        open_rows: the oldest OPEN_MAX transactions without a final end.
        states: how many there are in all, by their state.
        delayed: DELAYED_COLUMNS of the messages that are due first.
        damaged: why a consumer group cannot be read, by its name.
        still_s: for how long each queue with messages has had a member that does not move it.
    """

    status: Status
    lags: tuple[QueueLag, ...]
    groups: tuple[GroupSummary, ...]
    topics: RegisteredTopics
    open_rows: pa.Table
    states: Mapping[str, int]
    delayed: pa.Table
    damaged: Mapping[str, str] = field(default_factory=dict)
    still_s: Mapping[QueueKey, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Sample:
    """What one count of a store saw.

    Attributes:
        messages: visible messages, by topic.
        lags: messages that are not consumed, by consumer group.
        end_latency: from halves to ends, of the facts since the sample before.
        settle_latency: from claims to facts, of the same.
    """

    at_s: float
    committed: int = 0
    rolled_back: int = 0
    open: int = 0
    publish_lag_s: float = 0.0
    scheduled: int = 0
    messages: Mapping[str, int] = field(default_factory=dict)
    lags: Mapping[str, int] = field(default_factory=dict)
    end_latency: Histogram = NO_DURATIONS
    settle_latency: Histogram = NO_DURATIONS

    @property
    def lag(self) -> int:
        """Messages that are not consumed, of all groups."""
        return sum(self.lags.values())


Value = Callable[[Sample], float | None]


class Counting(StoreCount[Snapshot]):
    """Counts a store when it is told to, and keeps the last count and a history of all.

    A count reads besides: the list of open transactions; of the schedule the days that are due
    first; new facts.

    Args:
        store: the store to count.
        clock: the clock by which ages and lags are computed.
    """

    def __init__(self, store: Store, clock: Clock | None = None) -> None:
        """Count nothing yet."""
        super().__init__(store, clock)
        self._still = StillQueues()
        self._settled: int | None = None
        self.history = History()

    @property
    def last(self) -> Snapshot | None:
        """The last count; None before the first."""
        return self._count.result

    @property
    def took_s(self) -> float:
        """How long the last count took."""
        return self._count.took_s

    @property
    def failure(self) -> str | None:
        """Why the newest count failed, if it did; the one before it is shown meanwhile."""
        return self._count.failure

    def _result(self, look: StoreLook) -> Snapshot:
        rows = open_transactions(self._store, clock=self._clock)
        snapshot = Snapshot(
            look.status,
            look.lags,
            tuple(summary_of(group, self._clock) for group in look.groups),
            self._store.tables.topic_register().read(),
            rows.slice(0, OPEN_MAX).combine_chunks(),
            counts_of(rows["state"]),
            self._delayed(),
            look.damaged,
            self._still.seen(look.lags, look.status.at.timestamp()),
        )
        self.history.add(_sample(snapshot, *self._latencies()))
        return snapshot

    def _latencies(self) -> tuple[Histogram, Histogram]:
        """Measure the facts since the last count: from half to end, and from claim to fact.

        The first count measures nothing.
        """
        settled = self._store.tables.logs().settled
        before, self._settled = self._settled, settled.mark
        if before is None or settled.mark <= before:
            return NO_DURATIONS, NO_DURATIONS
        facts = settled.between(before, settled.mark, _FACTS)
        timed = facts.filter(pc.is_valid(facts["op_timestamp"]))
        took_ms = times_ms(timed["settled_timestamp"]) - times_ms(timed["op_timestamp"])
        return end_latency(timed), Histogram.of(took_ms)

    def _delayed(self) -> pa.Table:
        """Read the messages that are due first, day by day until there are enough."""
        logs = self._store.tables.logs()
        schedule, settled = logs.schedule.refresh(), logs.settled
        columns = [schedule.table.schema.columns.field(name) for name in DELAYED_COLUMNS]
        rows = pa.schema(columns).empty_table()
        for day in sorted(schedule.due_dates()):
            of_day, _ = schedule.readable(day, NOTHING, DELAYED_COLUMNS)
            waiting = of_day.filter(pa.array(~are_ended(of_day, settled)))
            rows = pa.concat_tables([rows, waiting])
            if rows.num_rows >= DELAYED_MAX:
                break
        return rows.sort_by("deliver_timestamp").slice(0, DELAYED_MAX).combine_chunks()


class History:
    """The newest samples; safe for several threads."""

    def __init__(self) -> None:
        """Keep no sample yet."""
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def add(self, sample: Sample) -> None:
        """Keep one more; names of topics and groups are kept for NAMED_MAX samples only."""
        newest = replace(sample, messages=_capped(sample.messages), lags=_capped(sample.lags))
        with self._lock:
            self._samples.append(newest)
            if len(self._samples) > NAMED_MAX:
                place = len(self._samples) - NAMED_MAX - 1
                old = self._samples[place]
                total = {"": old.lag} if old.lags else {}
                self._samples[place] = replace(old, messages={}, lags=total)

    def samples(self) -> list[Sample]:
        """Return all samples that are kept, oldest first."""
        with self._lock:
            return list(self._samples)


class _Standing(NamedTuple):
    """Where a queue stands.

    Attributes:
        owner: its member.
        offset: the next one that it hands out.
        since_s: since when it has had messages, and stood there.
        moved_s: when it was seen to move the last three times, newest first; 0 if never.
        passed_s: when it was seen first that its member had passed it over since then, if it has.
    """

    owner: str
    offset: int
    since_s: float
    moved_s: tuple[float, float, float] = (0.0, 0.0, 0.0)
    passed_s: float | None = None

    def seen(self, queue: QueueLag, owner: str, at_s: float) -> _Standing:
        """Return where the queue stands now."""
        if queue.handed_offset != self.offset:
            return _Standing(owner, queue.handed_offset, at_s, (at_s, *self.moved_s[:2]))
        since_s = self.since_s if _has_fresh(queue) else at_s
        passed_s = self.passed_s if _has_fresh(queue) and owner == self.owner else None
        return self._replace(owner=owner, since_s=since_s, passed_s=passed_s)


def _has_fresh(queue: QueueLag) -> bool:
    """Tell whether messages wait that nobody was handed out."""
    return queue.end_offset > queue.handed_offset


class StillQueues:
    """Remembers of the last count alone where each queue stood. Not safe for several threads.

    A member serves its queues in turn, so a queue that does not move is no trouble while others do.
    It is one if none of the member's queues moves, or if the member passes it over: another one has
    moved three times meanwhile, two of which may be of one turn.
    """

    def __init__(self) -> None:
        """Remember no queue yet."""
        self._standing: dict[QueueKey, _Standing] = {}

    def seen(self, lags: Sequence[QueueLag], at_s: float) -> dict[QueueKey, float]:
        """Note where the queues stand; return for how long each one has been in trouble.

        Only queues with a member are noted, and only those with messages can be in trouble.
        """
        by_member: defaultdict[tuple[str, str], dict[QueueKey, _Standing]] = defaultdict(dict)
        waiting: set[QueueKey] = set()
        for queue in lags:
            if queue.owner is not None:
                key = QueueKey(queue.group, queue.topic, queue.queue_id, queue.reader)
                before = self._standing.get(key, _Standing(queue.owner, queue.handed_offset, at_s))
                by_member[queue.group, queue.owner][key] = before.seen(queue, queue.owner, at_s)
                if _has_fresh(queue):
                    waiting.add(key)
        still_s: dict[QueueKey, float] = {}
        self._standing = {}
        for queues in by_member.values():
            newest_s = max(standing.moved_s[0] for standing in queues.values())
            third_s = max(standing.moved_s[2] for standing in queues.values())
            for key, standing in queues.items():
                passed_s = standing.passed_s
                if passed_s is None and standing.since_s < third_s:
                    passed_s = at_s
                self._standing[key] = standing._replace(passed_s=passed_s)
                quiet_s = max(standing.since_s, newest_s)
                if key in waiting:
                    begin_s = quiet_s if passed_s is None else min(quiet_s, passed_s)
                    still_s[key] = max(0.0, at_s - begin_s)
        return still_s


def _sample(snapshot: Snapshot, ends: Histogram, settles: Histogram) -> Sample:
    status = snapshot.status
    return Sample(
        at_s=status.at.timestamp(),
        committed=status.committed,
        rolled_back=status.rolled_back,
        open=status.open,
        publish_lag_s=status.published.seconds,
        scheduled=status.scheduled,
        messages=status.messages,
        lags=_by_group(snapshot.lags),
        end_latency=ends,
        settle_latency=settles,
    )


def _by_group(lags: Sequence[QueueLag]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for queue in lags:
        counts[queue.group] += queue.lag
    return dict(counts)


def counts_of(values: pa.ChunkedArray) -> dict[str, int]:
    """Count how often each value is there, without a Python object for each row."""
    return {row["values"]: row["counts"] for row in pc.value_counts(values).to_pylist()}


def values(samples: Sequence[Sample], value: Value) -> list[Point]:
    """Return a value of each sample as points of a line."""
    return [(sample.at_s, value(sample)) for sample in samples]


def rates(samples: Sequence[Sample], value: Value) -> list[Point]:
    """Return how much a count grew in a second, at each sample but the first.

    A count that fell, because retention took rows or a table was restored, did not grow.
    """
    points: list[Point] = []
    for before, after in pairwise(samples):
        first, last = value(before), value(after)
        took_s = after.at_s - before.at_s
        has_rate = first is not None and last is not None and took_s > 0
        points.append((after.at_s, max(0.0, (last - first) / took_s) if has_rate else None))  # type: ignore[operator]
    return points


def named(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the samples that still tell topics and groups apart."""
    return samples[-NAMED_MAX:]


def topic_rate(samples: Sequence[Sample], topic: str) -> float | None:
    """Return messages a second over the samples that know the topic; None before the second one."""
    with_topic = [sample for sample in named(samples) if topic in sample.messages]
    if len(with_topic) < LEAST:
        return None
    first, last = with_topic[0], with_topic[-1]
    took_s = last.at_s - first.at_s
    grown = last.messages[topic] - first.messages[topic]
    return max(0.0, grown / took_s) if took_s > 0 else None


def _capped(counts: Mapping[str, int]) -> dict[str, int]:
    samples = capped({(name,): float(number) for name, number in counts.items()})
    return {name: int(number) for (name,), number in samples.items()}
