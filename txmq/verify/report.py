"""The reports: promises by their I-number, and what breaks them; local transactions beside them."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from typing import Any

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
    "I30": "the open set that is kept has all open transactions",
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
INVARIANT = "I12"
PROMISE = "messages are visible if and only if the local transaction took place"


# --- local transactions ------------------------------------------------------------------------


class Fault(enum.StrEnum):
    """Who brought about the end that does not agree with the local transaction."""

    LISTENER = "listener"
    PRODUCER = "producer"
    OPERATOR = "operator"
    # Nobody ended it before it was older than file_reserved_time_h.
    RETENTION = "retention"
    UNKNOWN = "unknown"


class Problem(enum.StrEnum):
    """How messages and local transaction disagree."""

    PUBLISHED_WITHOUT_MARKER = "PUBLISHED_WITHOUT_MARKER"
    PUBLISHED_THOUGH_FENCED = "PUBLISHED_THOUGH_FENCED"
    ROLLED_BACK_THOUGH_DONE = "ROLLED_BACK_THOUGH_DONE"
    EXPIRED_THOUGH_DONE = "EXPIRED_THOUGH_DONE"


# What the end was asked by; a remote member answers for its listener, as check or recheck.
FAULT_OF_SOURCE: Mapping[str, Fault] = {
    "producer": Fault.PRODUCER,
    "check": Fault.LISTENER,
    "recheck": Fault.LISTENER,
    "operator": Fault.OPERATOR,
    "maintenance": Fault.RETENTION,
}
_WORDS: Mapping[Problem, str] = {
    Problem.PUBLISHED_WITHOUT_MARKER: "is published, but no local transaction left its marker",
    Problem.PUBLISHED_THOUGH_FENCED: "is published, but its local transaction was fenced off",
    Problem.ROLLED_BACK_THOUGH_DONE: "is rolled back, but its local transaction took place",
    Problem.EXPIRED_THOUGH_DONE: "expired, but its local transaction took place",
}
_WHOSE: Mapping[Fault, str] = {
    Fault.LISTENER: "the listener's fault",
    Fault.PRODUCER: "the producer's fault",
    Fault.OPERATOR: "the operator's fault",
    Fault.RETENTION: "nobody ended it in time",
    Fault.UNKNOWN: "it is not known who ended it",
}


@dataclass(frozen=True, slots=True)
class BusinessViolation:
    """One transaction whose messages and local transaction disagree.

    Attributes:
        source: of the claim that ended it, as the op log has it; None where that is gone.
        op_version, ordinal: that claim's place.
    """

    transaction_id: str
    problem: Problem
    fault: Fault
    source: str | None
    op_version: int
    ordinal: int

    @property
    def detail(self) -> str:
        """Words for it, with the name of whose fault it is."""
        place = f"{self.source or '?'}, op {self.op_version}/{self.ordinal}"
        return f"{_WORDS[self.problem]}: {_WHOSE[self.fault]} ({place})"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "transaction_id": self.transaction_id,
            "problem": self.problem.value,
            "fault": self.fault.value,
            "source": self.source,
            "op_version": self.op_version,
            "ordinal": self.ordinal,
            "detail": self.detail,
        }


@dataclass(frozen=True, slots=True)
class BusinessResult:
    """One producer group beside its markers.

    Attributes:
        place: where the markers are, without any secret.
        counts: transactions, done, fenced and unmarked ones; what is done and still open, or
            discarded (no violation, its end may come); what was not judged, and why.
        fault_counts: violations by whose fault they are.
        violations: the first SHOWN_ROWS of them.
    """

    producer_group: str
    place: str
    counts: Mapping[str, int]
    fault_counts: Mapping[Fault, int]
    violations: tuple[BusinessViolation, ...]

    @property
    def violation_count(self) -> int:
        """Over all faults."""
        return sum(self.fault_counts.values())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "producer_group": self.producer_group,
            "place": self.place,
            "counts": dict(self.counts),
            "violation_count": self.violation_count,
            "faults": {fault.value: count for fault, count in self.fault_counts.items()},
            "violations": [violation.to_dict() for violation in self.violations],
        }


@dataclass(frozen=True, slots=True)
class BusinessReport:
    """I12 of the groups whose markers were named.

    Attributes:
        unnamed_groups: groups of the store with transactions that nobody compared.
    """

    results: tuple[BusinessResult, ...]
    unnamed_groups: tuple[str, ...]

    @property
    def violation_count(self) -> int:
        """Over all groups."""
        return sum(result.violation_count for result in self.results)

    @property
    def is_clean(self) -> bool:
        """Whether messages and local transactions agree."""
        return self.violation_count == 0

    @property
    def fault_counts(self) -> dict[Fault, int]:
        """Violations by whose fault they are, over all groups."""
        counts = {
            fault: sum(result.fault_counts.get(fault, 0) for result in self.results)
            for fault in Fault
        }
        return {fault: count for fault, count in counts.items() if count}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "invariant": INVARIANT,
            "promise": PROMISE,
            "is_clean": self.is_clean,
            "violation_count": self.violation_count,
            "faults": {fault.value: count for fault, count in self.fault_counts.items()},
            "groups": [result.to_dict() for result in self.results],
            "unnamed_groups": list(self.unnamed_groups),
        }


# --- txmq's own promises -----------------------------------------------------------------------


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
        """Return plain values, for JSON."""
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
        """Return plain values, for JSON."""
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

    def has(self, beginnings: tuple[str, ...]) -> bool:
        """Tell whether a violation is shown whose text begins so."""
        shown = chain.from_iterable(self._shown.values())
        return any(violation.detail.startswith(beginnings) for violation in shown)

    def results(self) -> tuple[InvariantResult, ...]:
        """Return one result for each invariant."""
        return tuple(
            InvariantResult(name, promise, self._counts[name], tuple(self._shown[name]))
            for name, promise in PROMISES.items()
        )


def _order(violation: Violation) -> tuple[str, str]:
    return violation.detail, violation.row_id
