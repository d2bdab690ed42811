"""How long things took, as counts by fixed bounds: sums of them stay right, averages would not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from txmq.ground.results import Plain

# From the time of one commit to a day.
BOUNDS_S = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0, 3600.0, 43200.0,
    86400.0,
)  # fmt: skip
_NONE = (0,) * (len(BOUNDS_S) + 1)


@dataclass(frozen=True, slots=True)
class Histogram(Plain):
    """Durations, counted.

    Attributes:
        counts: how many were above the bound before and at most BOUNDS_S[i] seconds; the last
            count is of those above all bounds.
        sum_s: the sum of all durations.
    """

    counts: tuple[int, ...] = _NONE
    sum_s: float = 0.0

    @classmethod
    def of(cls, durations_ms: npt.ArrayLike) -> Histogram:
        """Count durations; one below zero, by clocks that differ, counts as zero."""
        durations_s = np.maximum(np.asarray(durations_ms, np.float64), 0.0) / 1000
        places = np.searchsorted(BOUNDS_S, durations_s)
        counts = np.bincount(places, minlength=len(_NONE))
        return cls(tuple(counts.tolist()), float(durations_s.sum()))

    @property
    def total(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)

    def quantile(self, part: float) -> float | None:
        """Return the duration in seconds that this part of all stays below; None if there is none.

        Between two bounds it is drawn as a line, as Prometheus does; above all bounds it is the
        last bound.

        Args:
            part: such as 0.99.
        """
        if not self.total:
            return None
        wanted, below, low_s = part * self.total, 0, 0.0
        for bound_s, count in zip(BOUNDS_S, self.counts, strict=False):
            if count and below + count >= wanted:
                return low_s + (bound_s - low_s) * max(0.0, wanted - below) / count
            below, low_s = below + count, bound_s
        return BOUNDS_S[-1]

    def __add__(self, other: Histogram) -> Histogram:
        """Add both together."""
        pairs = zip(self.counts, other.counts, strict=True)
        return Histogram(tuple(map(sum, pairs)), self.sum_s + other.sum_s)


NO_DURATIONS = Histogram()
