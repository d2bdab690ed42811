"""I12, apart from txmq's own promises: what the local transactions say, and whose fault it is."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

INVARIANT = "I12"
PROMISE = "messages are visible if and only if the local transaction took place"


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
        """In words, with the name of whose fault it is."""
        place = f"{self.source or '?'}, op {self.op_version}/{self.ordinal}"
        return f"{_WORDS[self.problem]}: {_WHOSE[self.fault]} ({place})"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
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
        """Plain values, for JSON."""
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
        """Plain values, for JSON."""
        return {
            "invariant": INVARIANT,
            "promise": PROMISE,
            "is_clean": self.is_clean,
            "violation_count": self.violation_count,
            "faults": {fault.value: count for fault, count in self.fault_counts.items()},
            "groups": [result.to_dict() for result in self.results],
            "unnamed_groups": list(self.unnamed_groups),
        }
