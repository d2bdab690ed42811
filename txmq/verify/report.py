"""What the checkers found: promises by their I-number, and the rows that break them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from txmq.verify.business import INVARIANT, BusinessReport

# --- report:

SHOWN_ROWS = 100
# Longer than any pause of a service that works: a parked topic is tried again after 16 minutes.
OVERDUE_LIMIT_S = 1_800.0

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
    "I15": "delayed messages never come early",
    "I16": "content arrives as it was sent",
    "I17": "the logs are only appended to",
    "I18": "checks are disciplined",
    "I19": "dead letters are complete and exact",
    "I21": "marks only rise and agree with the rows",
    "I23": "every queue adds up and its offsets have no gaps",
    "I26": "what is read is what was committed",
    "I27": "no delayed message is long overdue",
    "I28": "no COMMIT of a producer comes to nothing",
    "I29": "no group is ahead of its topics",
}
# What no table can show; said in every report, never silently left out.
NOT_CHECKED: Mapping[str, str] = {
    "I6": "what a producer was told stands in no table",
    "I7": "what a producer was told stands in no table",
    "I8": "what a producer was told stands in no table",
    "I9": "no table says when a service was meant to run; txmq status shows the oldest half",
    "I12": "the user's own data are elsewhere; --business says where",
    "I20": "no table says when a queue was meant to move",
    "I22": "what a consumer saw stands in no table",
    "I24": "no table says when a fault ended",
    "I25": "metrics are not stored",
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

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "invariant": self.invariant,
            "promise": self.promise,
            "violation_count": self.violation_count,
            "violations": [
                {"row_id": violation.row_id, "detail": violation.detail}
                for violation in self.violations
            ],
        }


@dataclass(frozen=True, slots=True)
class Lateness:
    """How long after their time delayed messages were shown; their time is not before the COMMIT.

    Attributes:
        delivered: messages that are counted.
        p99_s: what 99 of 100 do not exceed, None without any.
        max_s: the longest.
        overdue_limit_s: what waits for longer after its time breaks I27.
    """

    delivered: int = 0
    p99_s: float | None = None
    max_s: float | None = None
    overdue_limit_s: float = OVERDUE_LIMIT_S


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of one verification of pinned versions.

    Attributes:
        versions: table to the version that was read.
        counts: how much was read and where the transactions stand.
        results: one for each checked invariant.
        unread: topic tables that this version cannot check yet.
        notes: what could be judged in part only, and why.
        business: what the local transactions say (I12), where it was asked for; a difference is
            the fault of a listener, a producer or an operator and never of txmq's.
        lateness: of delayed messages; late is no violation, long overdue is one (I27).
    """

    location: str
    drained: bool
    versions: Mapping[str, int]
    counts: Mapping[str, int]
    results: tuple[InvariantResult, ...]
    unread: tuple[str, ...]
    notes: tuple[str, ...]
    duration_s: float
    business: BusinessReport | None = None
    lateness: Lateness = field(default_factory=Lateness)

    @property
    def violation_count(self) -> int:
        """Of txmq's own promises, over all invariants."""
        return sum(result.violation_count for result in self.results)

    @property
    def is_clean(self) -> bool:
        """Whether every checked promise holds and the local transactions agree."""
        return self.is_txmq_clean and self.is_business_clean

    @property
    def is_txmq_clean(self) -> bool:
        """Whether txmq keeps its promises, whatever listeners and producers said."""
        return self.violation_count == 0

    @property
    def is_business_clean(self) -> bool:
        """Whether messages and local transactions agree, or nobody asked."""
        return self.business is None or self.business.is_clean

    @property
    def not_checked(self) -> dict[str, str]:
        """Promises that were not checked, and why."""
        if self.business is None:
            return dict(NOT_CHECKED)
        others = {name: why for name, why in NOT_CHECKED.items() if name != INVARIANT}
        unnamed = ", ".join(self.business.unnamed_groups)
        rule_notes = (
            {INVARIANT: f"for {unnamed}, which --business does not name"} if unnamed else {}
        )
        return {**others, **rule_notes}

    @property
    def broken(self) -> tuple[str, ...]:
        """The I-numbers that txmq itself does not keep."""
        return tuple(r.invariant for r in self.results if r.violation_count)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "location": self.location,
            "drained": self.drained,
            "is_clean": self.is_clean,
            "is_txmq_clean": self.is_txmq_clean,
            "is_business_clean": self.is_business_clean,
            "violation_count": self.violation_count,
            "versions": dict(self.versions),
            "counts": dict(self.counts),
            "invariants": [result.to_dict() for result in self.results],
            "lateness": asdict(self.lateness),
            "business": None if self.business is None else self.business.to_dict(),
            "not_checked": self.not_checked,
            "unread": list(self.unread),
            "notes": list(self.notes),
            "duration_s": round(self.duration_s, 3),
        }


# --- findings:


class Findings:
    """Violations by their I-number; those that are shown are sorted by their text and their row."""

    def __init__(self) -> None:
        """Begin with none."""
        self._counts = dict.fromkeys(PROMISES, 0)
        self._shown: dict[str, list[Violation]] = {name: [] for name in PROMISES}

    def add(self, invariant: str, count: int, row_ids: Sequence[str], detail: str) -> None:
        """Add `count` violations; `row_ids` names at least the first SHOWN_ROWS of them."""
        self._counts[invariant] += count
        shown = [Violation(invariant, row_id, detail) for row_id in row_ids[:SHOWN_ROWS]]
        # Sorted, so that the ranges in which a store is read do not show.
        together = sorted([*self._shown[invariant], *shown], key=_order)
        self._shown[invariant] = together[:SHOWN_ROWS]

    def results(self) -> tuple[InvariantResult, ...]:
        """One result for each invariant."""
        return tuple(
            InvariantResult(name, promise, self._counts[name], tuple(self._shown[name]))
            for name, promise in PROMISES.items()
        )


def _order(violation: Violation) -> tuple[str, str]:
    return violation.detail, violation.row_id
