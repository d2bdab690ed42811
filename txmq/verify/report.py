"""What the checker found: promises by their I-number, and the rows that break them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

SHOWN_ROWS = 100

# The I-numbers are explained in docs/invariants.md.
PROMISES: Mapping[str, str] = {
    "I1": "no committed message is lost",
    "I2": "no rolled-back message is visible",
    "I3": "every message is visible once, every dead letter is there once",
    "I4": "nothing comes from nowhere",
    "I5": "nothing is visible before its COMMIT",
    "I10": "the first end wins, for good",
    "I11": "every message has one fate",
    "I13": "the messages of a transaction share their fate",
    "I14": "a queue is in the order of the ends",
    "I16": "content arrives as it was sent",
    "I19": "dead letters are complete and exact",
    "I21": "marks agree with the rows",
    "I23": "every queue adds up and its offsets have no gaps",
}


@dataclass(frozen=True, slots=True)
class Violation:
    """One row, message or transaction that breaks a promise; bodies are never in it."""

    invariant: str
    row_id: str
    detail: str


@dataclass(frozen=True, slots=True)
class InvariantResult:
    """One promise: how many rows break it, and the first SHOWN_ROWS of them."""

    invariant: str
    promise: str
    violation_count: int
    violations: tuple[Violation, ...]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of one verification of pinned versions.

    Attributes:
        versions: table to the version that was read.
        counts: how much was read and where the transactions stand.
        results: one for each checked invariant.
        unread: topic tables that this version cannot check yet.
    """

    location: str
    drained: bool
    versions: Mapping[str, int]
    counts: Mapping[str, int]
    results: tuple[InvariantResult, ...]
    unread: tuple[str, ...]
    duration_s: float

    @property
    def violation_count(self) -> int:
        """Over all invariants."""
        return sum(result.violation_count for result in self.results)

    @property
    def is_clean(self) -> bool:
        """Whether every checked promise holds."""
        return self.violation_count == 0

    @property
    def broken(self) -> tuple[str, ...]:
        """The I-numbers that do not hold."""
        return tuple(r.invariant for r in self.results if r.violation_count)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "location": self.location,
            "drained": self.drained,
            "is_clean": self.is_clean,
            "violation_count": self.violation_count,
            "versions": dict(self.versions),
            "counts": dict(self.counts),
            "invariants": [_result_dict(result) for result in self.results],
            "unread": list(self.unread),
            "duration_s": round(self.duration_s, 3),
        }


class Findings:
    """Collects violations; keeps the number of all and the ids of the first."""

    def __init__(self) -> None:
        """Begin with none."""
        self._counts = dict.fromkeys(PROMISES, 0)
        self._shown: dict[str, list[Violation]] = {name: [] for name in PROMISES}

    def room(self, invariant: str) -> int:
        """How many more ids of this invariant are worth making."""
        return SHOWN_ROWS - len(self._shown[invariant])

    def add(self, invariant: str, count: int, row_ids: Iterable[str], detail: str) -> None:
        """Add `count` violations, of which `row_ids` names the first."""
        self._counts[invariant] += count
        shown = self._shown[invariant]
        room = self.room(invariant)
        shown.extend(Violation(invariant, row_id, detail) for row_id in list(row_ids)[:room])

    def results(self) -> tuple[InvariantResult, ...]:
        """One result for each invariant."""
        return tuple(
            InvariantResult(name, promise, self._counts[name], tuple(self._shown[name]))
            for name, promise in PROMISES.items()
        )


def _result_dict(result: InvariantResult) -> dict[str, Any]:
    return {
        "invariant": result.invariant,
        "promise": result.promise,
        "violation_count": result.violation_count,
        "violations": [
            {"row_id": violation.row_id, "detail": violation.detail}
            for violation in result.violations
        ],
    }
