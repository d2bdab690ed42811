"""Counts and lengths of time as people read them."""

from __future__ import annotations

_STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
# Below it a tenth of a second counts.
EXACT_S = 10


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number and what it counts: 1 message, 2 messages."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def duration(seconds: float) -> str:
    """Return a length of time with its two largest units: 3 d 4 h, 42 s, 27 ms."""
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
