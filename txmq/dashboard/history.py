"""What the page has seen since it began to look: a ring of samples, so its memory has an end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from txmq.dashboard.charts import LEAST, Point
from txmq.histogram import NO_DURATIONS, Histogram
from txmq.metrics.figures import capped

# An hour of counts each 15 seconds; of single topics and groups five minutes.
SAMPLES_MAX = 240
NAMED_MAX = 20


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


class History:
    """The newest samples; safe for several threads."""

    def __init__(self) -> None:
        """Nothing is seen yet."""
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def add(self, sample: Sample) -> None:
        """Keep one more; names of topics and groups are kept for NAMED_MAX samples only."""
        kept = replace(sample, messages=_capped(sample.messages), lags=_capped(sample.lags))
        with self._lock:
            self._samples.append(kept)
            if len(self._samples) > NAMED_MAX:
                place = len(self._samples) - NAMED_MAX - 1
                old = self._samples[place]
                total = {"": old.lag} if old.lags else {}
                self._samples[place] = replace(old, messages={}, lags=total)

    def samples(self) -> list[Sample]:
        """All that are kept, oldest first."""
        with self._lock:
            return list(self._samples)


def values(samples: Sequence[Sample], value: Value) -> list[Point]:
    """A value of each sample."""
    return [(sample.at_s, value(sample)) for sample in samples]


def rates(samples: Sequence[Sample], value: Value) -> list[Point]:
    """How much a count grew in a second, at each sample but the first.

    A count that fell, because retention took rows or a table was restored, did not grow.
    """
    points: list[Point] = []
    for before, after in pairwise(samples):
        first, last = value(before), value(after)
        took_s = after.at_s - before.at_s
        known = first is not None and last is not None and took_s > 0
        points.append((after.at_s, max(0.0, (last - first) / took_s) if known else None))  # type: ignore[operator]
    return points


def named(samples: Sequence[Sample]) -> Sequence[Sample]:
    """The samples that still tell topics and groups apart."""
    return samples[-NAMED_MAX:]


def topic_rate(samples: Sequence[Sample], topic: str) -> float | None:
    """Messages a second over the samples that know topics; None before the second one."""
    known = [sample for sample in named(samples) if topic in sample.messages]
    if len(known) < LEAST:
        return None
    took_s = known[-1].at_s - known[0].at_s
    grown = known[-1].messages[topic] - known[0].messages[topic]
    return max(0.0, grown / took_s) if took_s > 0 else None


def _capped(counts: Mapping[str, int]) -> dict[str, int]:
    samples = capped({(name,): float(number) for name, number in counts.items()})
    return {name: int(number) for (name,), number in samples.items()}
