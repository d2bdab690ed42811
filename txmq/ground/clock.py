"""The one source of now; services take a clock so that tests need no sleep.

A service that decides what nobody can take back asks `txmq.store.store_clock` (decision 0031).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# It counts on while the machine sleeps; other systems than Linux have the monotonic clock alone.
_STEADY = getattr(time, "CLOCK_BOOTTIME", None)


class Clock(Protocol):
    """What a rule may ask about time."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""
        # Here and not by `_wall_ms`: each send asks four times.
        return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class AffineClock:
    """`start_ms` at the machine's time `wall_start_ms`, then `speed` seconds a second.

    Deadlines come from times that the store wrote by its own clock, so these go through `at` too.

    Example:
        >>> AffineClock(wall_start_ms=0, start_ms=1_000, speed=60.0).at(500)
        31000
    """

    wall_start_ms: int
    start_ms: int
    speed: float = 1.0

    @classmethod
    def from_now(cls, *, speed: float, ahead_ms: int = 0) -> AffineClock:
        """Make a clock of the machine's time, or `ahead_ms` more, which runs at `speed`."""
        wall_ms = _wall_ms()
        return cls(wall_ms, wall_ms + ahead_ms, speed)

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""
        return self.at(_wall_ms())

    def at(self, wall_ms: int) -> int:
        """Return what this clock shows at a time of the machine."""
        return self.start_ms + round((wall_ms - self.wall_start_ms) * self.speed)


AS_IT_IS = AffineClock(0, 0)


def clock_of_store(clock: Clock) -> Clock:
    """Return the clock that shows the store's times: `clock`, unless it names another one.

    A wrong clock of a test names the right one (`txmq.testing.WrongClock`).
    """
    other: Clock = getattr(clock, "of_store", clock)
    return other


def follows_storage(clock: Clock) -> bool:
    """Tell whether times of the storage are times of this clock; those of a ManualClock are not."""
    return isinstance(clock_of_store(clock), SystemClock | AffineClock)


def affine(clock: Clock) -> AffineClock:
    """Return the clock as a function of the machine's; one that is not affine changes no time."""
    of_store = clock_of_store(clock)
    return of_store if isinstance(of_store, AffineClock) else AS_IT_IS


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def elapsed_ms(clock: Clock | None = None) -> int:
    """Return milliseconds since some moment, for durations only: nobody can set what counts them.

    A `clock` of a test, or one that runs faster, is compared with itself.
    """
    if clock is not None and not isinstance(clock, SystemClock):
        return clock.now_ms()
    return (time.monotonic_ns() if _STEADY is None else time.clock_gettime_ns(_STEADY)) // 1_000_000


@lru_cache(maxsize=256)
def timestamp(now_ms: int) -> datetime:
    """Return the UTC time of a number of milliseconds; naive times never enter a table."""
    return _EPOCH + timedelta(milliseconds=now_ms)


def milliseconds(moment: datetime) -> int:
    """Return milliseconds since 1970-01-01 UTC of an aware time."""
    # Times of libraries, such as those of Airflow, subtract to what cannot be divided.
    since = datetime.__sub__(moment, _EPOCH)
    return round(since / timedelta(milliseconds=1))


def moment_problem(moment: datetime) -> str | None:
    """Say why a user's time is no time in UTC; None if it is one."""
    try:
        # A time zone may be anybody's code.
        is_aware = moment.utcoffset() is not None
        moment.astimezone(UTC)
    except OverflowError:
        return "is not in the years 1 to 9999 in UTC"
    except Exception as error:  # noqa: BLE001 - whatever the time zone raises
        return f"has a time zone whose offset cannot be computed ({type(error).__name__})"
    return None if is_aware else "has no time zone; write datetime(..., tzinfo=UTC)"
