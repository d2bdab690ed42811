"""Clocks of tests: one that stands still, and one that is wrong."""

from __future__ import annotations

from txmq.ground.clock import Clock, SystemClock

START_MS = 1_767_225_600_000  # 2026-01-01 00:00:00 UTC


class ManualClock:
    """A clock for tests: time stands still until `advance`.

    Example:
        >>> clock = ManualClock(now_ms=1_000)
        >>> clock.advance(2.5)
        >>> clock.now_ms()
        3500
    """

    def __init__(self, now_ms: int = START_MS) -> None:
        """Start at `now_ms`."""
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""
        return self._now_ms

    def advance(self, seconds: float) -> None:
        """Move the clock forward; a negative number sets it back."""
        self._now_ms += round(seconds * 1000)


class WrongClock:
    """The clock of a machine that is wrong, beside a store whose time is right.

    Services deliver, expire and remove by the store's time, so they do not follow this clock.

    Attributes:
        ahead_s: how far it is ahead; a negative number sets it behind.
        of_store: the clock of the store.

    Example:
        >>> clock = ManualClock(now_ms=1_000)
        >>> WrongClock(3600, of_store=clock).now_ms()
        3601000
    """

    def __init__(self, ahead_s: float, *, of_store: Clock | None = None) -> None:
        """Keep both; without `of_store` this machine's own clock is the right one."""
        self.ahead_s = ahead_s
        self.of_store: Clock = of_store or SystemClock()

    def now_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC."""
        return self.of_store.now_ms() + round(self.ahead_s * 1000)
