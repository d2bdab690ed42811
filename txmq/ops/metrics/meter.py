"""Counts a store from time to time, and keeps the last figures for whoever asks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Generic, Protocol, TypeVar

from txmq.consumer.lag import DamagedGroups, GroupLag, QueueLag, readable_groups
from txmq.ground.clock import Clock, SystemClock
from txmq.ground.handles import ThreadHandle, is_survivable
from txmq.ops.admin.status import Admin, Status
from txmq.ops.broker_log import BrokerCounts
from txmq.ops.metrics.figures import Figure, FigureKind, Latencies, broker_figures, store_figures
from txmq.store.store import Store

logger = logging.getLogger(__name__)

INTERVAL_S = 15.0
# A count may take this part of the time at most, however large the store is.
COUNTING_PART = 0.05

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class StoreLook:
    """The status of a store and the lag of its consumer groups, read at one count.

    Attributes:
        damaged: why a consumer group cannot be read, by its name.
    """

    status: Status
    groups: tuple[GroupLag, ...]
    damaged: Mapping[str, str]

    @property
    def lags(self) -> tuple[QueueLag, ...]:
        """The queues of all groups that can be read."""
        return tuple(queue for group in self.groups for queue in group.queues)


@dataclass(frozen=True, slots=True)
class Count(Generic[Result]):
    """The result of the last count that succeeded, and the failures since.

    Attributes:
        result: None before the first count.
        took_s: how long the count took.
        at_s: the time of the count, in seconds since 1970.
        failures: how many counts in a row have failed since then.
        failure: the error of the newest count; None if it succeeded.
    """

    result: Result | None = None
    took_s: float = 0.0
    at_s: float = 0.0
    failures: int = 0
    failure: str | None = None


class StoreCount(Generic[Result]):
    """Counts a store when it is told to; a subclass makes its result of each look.

    Safe for several threads: `count` in one of them, everything else in any.

    Args:
        store: the store to count.
        clock: the clock by which ages and lags are computed.
    """

    def __init__(self, store: Store, clock: Clock | None = None) -> None:
        """Count nothing yet."""
        self._store, self._clock = store, clock or SystemClock()
        self._damaged = DamagedGroups()
        # Replaced as a whole, so that each reader sees one count.
        self._count: Count[Result] = Count()

    def count(self) -> float:
        """Count the tables once; return how long it took, in seconds.

        Reads: as `Admin.status` and `ConsumerLag.of_all`, and what `_result` reads. Commits: 0. A
        call that failed leaves the result of the last one. Raises: StorageError.
        """
        begun_s = time.monotonic()
        try:
            status = Admin(self._store, clock=self._clock).status()
            groups = readable_groups(self._store, self._clock, self._damaged.of_a_look())
            result = self._result(StoreLook(status, tuple(groups), self._damaged.problems))
        except BaseException as error:
            failures, problem = self._count.failures + 1, f"{type(error).__name__}: {error}"
            self._count = replace(self._count, failures=failures, failure=problem)
            raise
        took_s = time.monotonic() - begun_s
        self._count = Count(result, took_s, status.at.timestamp())
        return took_s

    def _result(self, look: StoreLook) -> Result:
        """Make the result of one look; what it reads counts as part of the count."""
        raise NotImplementedError


class Watched(Protocol):
    """A broker, as far as its figures need it."""

    def counts(self) -> BrokerCounts:
        """Return what its services have done since they started."""
        ...

    def latencies(self) -> Latencies:
        """Return what its services have measured since they started."""
        ...

    def services(self) -> Mapping[str, bool]:
        """Tell for each service whether it runs; empty until all have started."""
        ...


class Meter(StoreCount[tuple[Figure, ...]]):
    """Counts the tables of a store; what a broker did is added at each look.

    Args:
        store: the store to count.
        broker: the broker whose own counts are shown beside; without it the store alone is.
        clock: the clock by which ages and lags are computed.
    """

    def __init__(
        self, store: Store, *, broker: Watched | None = None, clock: Clock | None = None
    ) -> None:
        """Count nothing yet."""
        super().__init__(store, clock)
        self._broker = broker

    @property
    def has_counted(self) -> bool:
        """Whether the last count succeeded."""
        count = self._count
        return count.result is not None and not count.failures

    def figures(self) -> list[Figure]:
        """Return the figures of the last count, and what the broker has done up to now."""
        count, broker = self._count, self._broker
        of_broker = (
            broker_figures(broker.counts(), broker.latencies(), broker.services()) if broker else []
        )
        return [*of_broker, *(count.result or ()), *_figures_of_count(count)]

    def _result(self, look: StoreLook) -> tuple[Figure, ...]:
        return tuple(store_figures(look.status, look.lags, len(look.damaged)))


def _figures_of_count(count: Count[tuple[Figure, ...]]) -> list[Figure]:
    values = {
        "txmq_count_timestamp_seconds": (count.at_s, "When the tables were counted last."),
        "txmq_count_duration_seconds": (count.took_s, "How long that took."),
        "txmq_count_failures": (count.failures, "Counts in a row that failed since then."),
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
