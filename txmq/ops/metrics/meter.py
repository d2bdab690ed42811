"""Counts a store from time to time, and keeps the last figures for whoever asks."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from txmq.consumer.lag import DamagedGroups, readable_lags
from txmq.ground.clock import Clock, SystemClock
from txmq.ground.handles import ThreadHandle, is_survivable
from txmq.ops.admin.status import Admin
from txmq.ops.broker_log import BrokerCounts
from txmq.ops.metrics.figures import Figure, FigureKind, Latencies, broker_figures, store_figures
from txmq.store.store import Store

logger = logging.getLogger(__name__)

INTERVAL_S = 15.0
# A count may take this part of the time at most, however large the store is.
COUNTING_PART = 0.05


class Watched(Protocol):
    """A broker, as far as its figures need it."""

    def counts(self) -> BrokerCounts:
        """What its services have done since they started."""
        ...

    def latencies(self) -> Latencies:
        """What its services have measured since they started."""
        ...

    def services(self) -> Mapping[str, bool]:
        """Whether each service runs; empty until all have started."""
        ...


@dataclass(frozen=True, slots=True)
class _Count:
    """The figures of one count of the tables."""

    figures: tuple[Figure, ...] = ()
    took_s: float = 0.0
    at_s: float = 0.0


class Meter:
    """Counts the tables of a store; what a broker did is added at each look.

    Safe for several threads: `count` in one of them, `figures` in any.

    Args:
        store: the store to count.
        broker: the broker whose own counts are shown beside; without it the store alone is.
        clock: the clock by which ages and lags are computed.
    """

    def __init__(
        self, store: Store, *, broker: Watched | None = None, clock: Clock | None = None
    ) -> None:
        """Count nothing yet."""
        self._store, self._broker, self._clock = store, broker, clock or SystemClock()
        self._lock = threading.Lock()
        self._count, self._failures = _Count(), 0
        self._damaged = DamagedGroups()

    @property
    def has_counted(self) -> bool:
        """Whether the last count succeeded."""
        with self._lock:
            return bool(self._count.figures) and not self._failures

    def count(self) -> float:
        """Count the tables once; returns how long it took, in seconds.

        Reads: as `Admin.status` and `ConsumerLag.of_all`. Commits: 0. A call that failed leaves the
        figures of the last one. Raises: StorageError.
        """
        begun_s = time.monotonic()
        try:
            status = Admin(self._store, clock=self._clock).status()
            lags = readable_lags(self._store, self._clock, self._damaged.of_a_look())
            figures = store_figures(status, lags, len(self._damaged.problems))
        except BaseException:
            with self._lock:
                self._failures += 1
            raise
        took_s = time.monotonic() - begun_s
        with self._lock:
            self._count = _Count(tuple(figures), took_s, status.at.timestamp())
            self._failures = 0
        return took_s

    def figures(self) -> list[Figure]:
        """The figures of the last count, and what the broker has done up to now."""
        with self._lock:
            count, failures = self._count, self._failures
        broker = self._broker
        of_broker = (
            broker_figures(broker.counts(), broker.latencies(), broker.services()) if broker else []
        )
        return [*of_broker, *count.figures, *_of_count(count, failures)]


def _of_count(count: _Count, failures: int) -> list[Figure]:
    values = {
        "txmq_count_timestamp_seconds": (count.at_s, "When the tables were counted last."),
        "txmq_count_duration_seconds": (count.took_s, "How long that took."),
        "txmq_count_failures": (failures, "Counts in a row that failed since then."),
    }
    return [
        Figure(name, FigureKind.GAUGE, description, (), {(): float(value)})
        for name, (value, description) in values.items()
    ]


class MeterHandle(ThreadHandle):
    """A thread that counts again and again; a count that fails is tried again."""

    def __init__(
        self,
        count: Callable[[], float],
        interval_s: float = INTERVAL_S,
        counted: Callable[[], None] | None = None,
    ) -> None:
        """Start it; `counted` is called after each count."""
        super().__init__("metrics", interval_s)
        self._count, self._least_s, self._counted = count, interval_s, counted
        self.begin()

    @property
    def pause_s(self) -> float:
        """How long it rests before the next count."""
        return self._interval_s

    def _turn(self) -> None:
        try:
            self._interval_s = max(self._least_s, self._count() / COUNTING_PART)
            if self._counted is not None:
                self._counted()
        except BaseException as error:
            if not is_survivable(error):
                raise
            logger.exception("the store could not be counted; the last figures stay")
