"""Numbers, times and texts as the page shows them. Pure."""

from __future__ import annotations

from datetime import UTC, datetime

# What was not measured, or is not there.
NOTHING = "–"  # noqa: RUF001 - a dash of people
_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_SIZES = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
KIB = 1024
# Below it a tenth counts.
EXACT_S = 10
SELDOM, WHOLE = 0.1, 100


def moment(at: datetime | None) -> str:
    """A time of a day, in UTC and saying so."""
    return NOTHING if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def clock_time(at_s: float) -> str:
    """The time of day of seconds since 1970, in UTC and saying so."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%H:%M:%S UTC")


def duration(seconds: float | None) -> str:
    """A length of time with its two largest units: 3 d 4 h, 42 s, 27 ms."""
    if seconds is None:
        return NOTHING
    if seconds < 1:
        return "0 s" if seconds <= 0 else f"{max(1, round(seconds * 1000))} ms"
    if seconds < EXACT_S:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    place = next(place for place, (size, _) in enumerate(_STEPS) if whole >= size)
    (size, unit), *smaller = _STEPS[place:]
    text = f"{whole // size} {unit}"
    if smaller and (rest := whole % size // smaller[0][0]):
        text += f" {rest} {smaller[0][1]}"
    return text


def count(number: int | None) -> str:
    """A whole number with commas."""
    return NOTHING if number is None else f"{number:,}"


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number and what it counts: 1 message, 2 messages."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def rate(per_s: float | None) -> str:
    """How often in a second; seldom things in a minute or an hour."""
    if per_s is None:
        return NOTHING
    if per_s <= 0:
        return "0/s"
    if per_s >= SELDOM:
        return f"{_three_digits(per_s)}/s"
    if per_s * 60 >= SELDOM:
        return f"{_three_digits(per_s * 60)}/min"
    return f"{_three_digits(per_s * 3600)}/h"


def size(size_bytes: int) -> str:
    """Bytes with a unit of 1024."""
    value, place = float(size_bytes), 0
    while value >= KIB and place < len(_SIZES) - 1:
        value, place = value / KIB, place + 1
    return f"{size_bytes} B" if place == 0 else f"{value:.1f} {_SIZES[place]}"


def hours(reserved_h: float | None) -> str:
    """How long messages are kept."""
    return "for ever" if reserved_h is None else duration(reserved_h * 3600)


def _three_digits(value: float) -> str:
    return f"{value:,.0f}" if value >= WHOLE else f"{value:.3g}"
