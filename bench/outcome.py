"""What a measurement came to: every sample, the medians, their ratio and the bar it has to take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, TypeVar

BARE = "bare stream"
Sample = TypeVar("Sample")


@dataclass(frozen=True, slots=True)
class Bar:
    """A bound of the ratio to the bare stream, or of the value itself where there is no ratio."""

    bound: float
    at_most: bool

    def is_taken_by(self, value: float) -> bool:
        """Whether `value` is on the right side."""
        return value <= self.bound if self.at_most else value >= self.bound

    def __str__(self) -> str:
        """As the table shows it."""
        return f"{'at most' if self.at_most else 'at least'} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One line of the table: `ours` beside `bare`, each with its samples."""

    part: str
    measure: str
    unit: str
    ours: Sequence[float]
    bare: Sequence[float] = ()
    bar: Bar | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """The median of ours by that of the bare stream."""
        return median(self.ours) / median(self.bare) if self.bare else None

    @property
    def passed(self) -> bool | None:
        """Whether the bar is taken; None where there is none."""
        if self.bar is None:
            return None
        return self.bar.is_taken_by(median(self.ours) if self.ratio is None else self.ratio)

    def to_dict(self) -> dict[str, Any]:
        """As the result file keeps it."""
        return {
            "part": self.part,
            "measure": self.measure,
            "unit": self.unit,
            "median": median(self.ours),
            "samples": list(self.ours),
            "bare_median": median(self.bare) if self.bare else None,
            "bare_samples": list(self.bare),
            "ratio": self.ratio,
            "bar": None if self.bar is None else str(self.bar),
            "passed": self.passed,
            "facts": dict(self.facts),
        }


def alternate(sides: Mapping[str, Callable[[], Sample]], rounds: int) -> dict[str, list[Sample]]:
    """Measure every side once a round, in turned order every second round."""
    samples: dict[str, list[Sample]] = {name: [] for name in sides}
    for number in range(rounds):
        names = list(sides) if number % 2 == 0 else list(sides)[::-1]
        for name in names:
            samples[name].append(sides[name]())
    return samples


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
