"""I12, apart from txmq's own promises: what the local transactions say, and whose fault it is."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txmq.errors import ConfigError

# --- business:

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


# --- business_markers:

MARKER_TABLE = "txmq_marker"
FORMS = "GROUP=delta:LOCATION or GROUP=database:VARIABLE or GROUP=database:VARIABLE:TABLE"
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*([.%][A-Za-z0-9][A-Za-z0-9_-]*)?", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?", re.ASCII)
_CREDENTIALS = re.compile(r"(?<=://)[^/@]*:[^/@]*@|[?#].*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DeltaMarkers:
    """The Delta table whose commits carry the markers.

    Attributes:
        location: a path or a URI.
        storage_options: for delta-rs; without them credentials come from the environment.
    """

    location: str
    storage_options: Mapping[str, str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raise ConfigError without a location."""
        if not self.location:
            raise ConfigError(["business: a Delta table without a location"])

    def __str__(self) -> str:
        """As it may be shown: without user, password and signature."""
        is_uri = "://" in self.location
        return f"delta:{_CREDENTIALS.sub('', self.location) if is_uri else self.location}"


@dataclass(frozen=True, slots=True)
class DatabaseMarkers:
    """The table of a database that holds the markers.

    Attributes:
        variable: the environment variable that holds the database's URL, as SQLAlchemy takes it.
        table: its name, with a schema and a dot in front at most.
    """

    variable: str
    table: str = MARKER_TABLE

    def __post_init__(self) -> None:
        """Raise ConfigError; what was given is not shown, for it may be the URL itself."""
        if _VARIABLE.fullmatch(self.variable) is None:
            raise ConfigError(["business: give the name of an environment variable, not its value"])
        if _TABLE.fullmatch(self.table) is None:
            rule = "letters, digits and _, with a schema and a dot in front at most"
            raise ConfigError([f"business: the marker table's name must be {rule}"])

    def __str__(self) -> str:
        """As it may be shown."""
        return f"database:{self.variable}:{self.table}"


MarkerPlace = DeltaMarkers | DatabaseMarkers


def marker_places(texts: Iterable[str]) -> dict[str, MarkerPlace]:
    """What the command line says, by producer group; each text has one of FORMS.

    Raises: ConfigError.
    """
    places: dict[str, MarkerPlace] = {}
    for text in texts:
        group, place = _parsed(text)
        if group in places:
            raise ConfigError([f"--business: group {group} is named twice"])
        places[group] = place
    return places


def _parsed(text: str) -> tuple[str, MarkerPlace]:
    group, _, place = text.partition("=")
    kind, _, rest = place.partition(":")
    # What has another form is not shown: it may be a URL with a password.
    if _GROUP.fullmatch(group) and rest and kind == "delta":
        return _stored(group), DeltaMarkers(rest)
    if _GROUP.fullmatch(group) and rest and kind == "database":
        variable, _, table = rest.partition(":")
        return _stored(group), DatabaseMarkers(variable, table or MARKER_TABLE)
    raise ConfigError([f"--business: say {FORMS}"])


def _stored(group: str) -> str:
    """`tenant%group` is stored with a dot."""
    return group.replace("%", ".")
