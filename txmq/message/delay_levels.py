"""Delay levels: a table of delays, from which a message names one by number (R97)."""

from __future__ import annotations

import enum
import re

# RocketMQ's messageDelayLevel.
DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
MAX_DELAY_S = 100 * 366 * 86_400
_LEVEL = re.compile(r"([1-9][0-9]{0,9})([smhd])", re.ASCII)
_UNIT_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class DelayLevel(enum.IntEnum):
    """The 18 levels of RocketMQ's table, the default of `message_delay_level` (R97).

    In a store with another `message_delay_level` the numbers mean the delays of that setting.

    Example:
        >>> Message("reminder", b"42", delay_level=DelayLevel.AFTER_10M)
    """

    AFTER_1S = 1
    AFTER_5S = 2
    AFTER_10S = 3
    AFTER_30S = 4
    AFTER_1M = 5
    AFTER_2M = 6
    AFTER_3M = 7
    AFTER_4M = 8
    AFTER_5M = 9
    AFTER_6M = 10
    AFTER_7M = 11
    AFTER_8M = 12
    AFTER_9M = 13
    AFTER_10M = 14
    AFTER_20M = 15
    AFTER_30M = 16
    AFTER_1H = 17
    AFTER_2H = 18


def level_seconds(table: str) -> tuple[int, ...]:
    """Return the delays of a table such as `1s 5s 1m 2h 1d`, in seconds, level 1 first.

    Raises: ValueError if the table is empty, or holds a text that is not a level.
    """
    texts = table.split()
    if not texts:
        message = "names no level; write for example 1s 5s 1m 2h"
        raise ValueError(message)
    return tuple(map(_seconds, texts))


def delay_s_of(level: int, levels: tuple[int, ...]) -> int | None:
    """Return the delay of a level; None for level 0; a level above the last is the last (R97)."""
    return levels[min(level, len(levels)) - 1] if level else None


def _seconds(text: str) -> int:
    match = _LEVEL.fullmatch(text)
    if match is None:
        message = f"has {text!r}, which is not a level; write a number and s, m, h or d"
        raise ValueError(message)
    seconds = int(match[1]) * _UNIT_S[match[2]]
    if seconds > MAX_DELAY_S:
        message = f"has {text!r}, which is above the limit of {MAX_DELAY_S:,} s"
        raise ValueError(message)
    return seconds
