"""Sets of offsets that mostly follow one another, as few pairs of numbers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OffsetRanges:
    """Ranges from a first offset to the one after the last, in order and without touching."""

    ranges: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_value(cls, value: Iterable[Sequence[int]]) -> OffsetRanges:
        """What `to_value` made."""
        return cls(tuple((int(first), int(end)) for first, end in value))

    def to_value(self) -> list[list[int]]:
        """Plain values, for JSON."""
        return [list(each) for each in self.ranges]

    def with_offsets(self, offsets: Offsets) -> OffsetRanges:
        """These and others, in any order."""
        if not len(offsets):
            return self
        ordered = np.unique(offsets)
        begins = np.flatnonzero(np.diff(ordered, prepend=ordered[0] - 2) > 1)
        ends = np.append(begins[1:], len(ordered)) - 1
        runs = zip(ordered[begins].tolist(), (ordered[ends] + 1).tolist(), strict=True)
        return OffsetRanges(_merged(sorted([*self.ranges, *runs])))

    def holding(self, offsets: Offsets) -> npt.NDArray[np.bool_]:
        """Which of `offsets` are in it."""
        if not self.ranges:
            return np.zeros(len(offsets), dtype=np.bool_)
        first, end = np.array(self.ranges, dtype=np.int64).T
        place = np.searchsorted(first, offsets, side="right") - 1
        found: npt.NDArray[np.bool_] = (place >= 0) & (offsets < end[place])
        return found

    def end_of(self, offset: int) -> int:
        """The first offset from `offset` on that is not in it."""
        return next((end for first, end in self.ranges if first <= offset < end), offset)


def _merged(ranges: Sequence[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged = [ranges[0]]
    for first, end in ranges[1:]:
        last_first, last_end = merged[-1]
        if first <= last_end:
            merged[-1] = (last_first, max(end, last_end))
        else:
            merged.append((first, end))
    return tuple(merged)
