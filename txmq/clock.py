"""The one source of now; services take a clock so that tests need no sleep."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """What a rule may ask about time."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        return time.time_ns() // 1_000_000


@lru_cache(maxsize=256)
def timestamp(now_ms: int) -> datetime:
    """The UTC time of a number of milliseconds; naive times never enter a table."""
    return _EPOCH + timedelta(milliseconds=now_ms)


def milliseconds(moment: datetime) -> int:
    """Milliseconds since 1970-01-01 UTC of an aware time."""
    return round((moment - _EPOCH) / timedelta(milliseconds=1))
