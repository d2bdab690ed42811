"""Compare the ends of transactions with the markers of their local transactions (I12).

A difference is no fault of txmq's: it published what its listener, its producer or its operator
said. So it is told apart, with the name of whose fault it is.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import ConfigError, shown
from txmq.verify.arrays import Flags, Integers, microseconds
from txmq.verify.declared_markers import DatabaseMarkers, DeltaMarkers, MarkerPlace
from txmq.verify.fates import readable
from txmq.verify.fold import COMMITTED, DISCARDED, EXPIRED, INCOMPLETE, PENDING, ROLLED_BACK, STATES
from txmq.verify.halves import Halves
from txmq.verify.markers import DONE, FENCED, UNMARKED, DatabaseMarkerTable, DeltaMarkerLog, Markers
from txmq.verify.picture import Picture
from txmq.verify.report import (
    FAULT_OF_SOURCE,
    SHOWN_ROWS,
    BusinessReport,
    BusinessResult,
    BusinessViolation,
    Fault,
    Problem,
)
from txmq.verify.store import PinnedStore, is_schedule

# Clocks of producers differ, so a marker that is nearly old enough may be forgotten too.
RETENTION_MARGIN_S = 3_600.0
_SHOWN_GROUPS = 10
_CLAIM_COLUMNS = ["transaction_id", "ordinal", "kind", "source", "producer_group"]
_FACT_COLUMNS = ["transaction_id", "op_version", "ordinal", "state", "source", "producer_group"]
_KIND_OF_STATE = {COMMITTED: "COMMIT", ROLLED_BACK: "ROLLBACK", EXPIRED: "EXPIRE"}
# Of a transaction: the place of the claim that ended it and what it asked for.
_End = tuple[str, int, int, str]


class Business:
    """The markers of several groups, opened after the store was pinned.

    So whatever end the store shows, its marker was there before: a running producer gives no
    false alarm.
    """

    def __init__(self, places: Mapping[str, MarkerPlace], pinned: PinnedStore) -> None:
        """Open them all.

        Raises: StorageError, EnvironmentProblemError; ConfigError, also for a group that the store
            lacks.
        """
        if not isinstance(places, Mapping):
            problem = "business must be a mapping from producer group to markers"
            raise ConfigError([f"{problem}, not {shown(places)}"])
        self._markers = {group: _opened(group, place) for group, place in places.items()}
        _refuse_unknown(places, pinned)
        self._totals = {group: _GroupTotals(group, str(place)) for group, place in places.items()}
        self._groups: set[str] = set()

    def compare(self, picture: Picture) -> None:
        """Judge each group in one range of transactions. Raises: StorageError."""
        transactional = _transactional(picture.halves)
        settled = picture.pinned.settled.rows(_FACT_COLUMNS)
        for group, markers in self._markers.items():
            transactions = _Group(picture, settled, group, transactional)
            transactions.compare(markers, self._totals[group])
        self._groups |= _names(picture.halves.groups.filter(pa.array(transactional)))

    def report(self) -> BusinessReport:
        """Return what all ranges came to."""
        results = tuple(totals.result() for totals in self._totals.values())
        return BusinessReport(results, tuple(sorted(self._groups - {*self._totals, ""})))


def _opened(group: str, place: MarkerPlace) -> Markers:
    match place:
        case DeltaMarkers():
            return DeltaMarkerLog(place)
        case DatabaseMarkers():
            return DatabaseMarkerTable(place)
    raise ConfigError([f"business: give DeltaMarkers or DatabaseMarkers for group {group}"])


@dataclass(frozen=True, slots=True)
class _Seen:
    """The markers of the judged transactions; `is_lost` where a missing one may be forgotten."""

    outcome: Integers
    is_lost: Flags

    def is_(self, outcome: int) -> Flags:
        flags: Flags = self.outcome == outcome
        return flags & ~self.is_lost


class _GroupTotals:
    """What the ranges of a store come to for one producer group."""

    def __init__(self, group: str, place: str) -> None:
        self._group, self._place = group, place
        self._counts: Counter[str] = Counter()
        self._faults: Counter[Fault] = Counter()
        self._shown: dict[Problem, list[BusinessViolation]] = {problem: [] for problem in Problem}

    def add(self, counts: Mapping[str, int], violations: Sequence[BusinessViolation]) -> None:
        self._counts.update(counts)
        self._faults.update(violation.fault for violation in violations)
        for violation in violations:
            shown = self._shown[violation.problem]
            if len(shown) < SHOWN_ROWS:
                shown.append(violation)

    def result(self) -> BusinessResult:
        faults = {fault: self._faults[fault] for fault in Fault if self._faults[fault]}
        shown = [violation for violations in self._shown.values() for violation in violations]
        counts = dict(self._counts)
        return BusinessResult(self._group, self._place, counts, faults, tuple(shown[:SHOWN_ROWS]))


class _Group:
    """The transactions of one producer group; those that retention may have taken are left out."""

    def __init__(
        self, picture: Picture, settled: pa.Table, group: str, transactional: Flags
    ) -> None:
        halves = picture.halves
        self._picture, self._group = picture, group
        self._settled = settled.filter(pc.equal(settled["producer_group"], group))
        is_own = np.asarray(pc.equal(halves.groups, group)) & transactional
        forgotten = picture.pinned.forgotten(pa.chunked_array([halves.ids])).to_numpy()
        self._numbers: Integers = np.flatnonzero(is_own & ~forgotten)
        self._forgotten_count = int((is_own & forgotten).sum()) + self._count_taken()

    def compare(self, markers: Markers, totals: _GroupTotals) -> None:
        """Read the markers and judge."""
        ids = self._ids(self._numbers)
        outcomes = markers.outcomes(ids)
        outcome = np.array([outcomes.get(key, UNMARKED) for key in ids], dtype=np.int64)
        is_lost = (outcome == UNMARKED) & self._is_old(markers.retention_s)
        seen = _Seen(outcome, is_lost)
        totals.add(self._counts(seen), self._violations(seen))

    def _violations(self, seen: _Seen) -> list[BusinessViolation]:
        committed, rolled_back, expired = map(self._in_state, (COMMITTED, ROLLED_BACK, EXPIRED))
        wrong = {
            Problem.PUBLISHED_WITHOUT_MARKER: committed & seen.is_(UNMARKED),
            Problem.PUBLISHED_THOUGH_FENCED: committed & seen.is_(FENCED),
            Problem.ROLLED_BACK_THOUGH_DONE: rolled_back & seen.is_(DONE),
            Problem.EXPIRED_THOUGH_DONE: expired & seen.is_(DONE),
        }
        ends = self._ends(self._numbers[np.logical_or.reduce(list(wrong.values()))])
        sources = self._sources([end[0] for end in ends.values()])
        return [
            _violation(problem, ends[number], sources.get(ends[number]))
            for problem, flags in wrong.items()
            for number in self._numbers[flags].tolist()
        ]

    def _counts(self, seen: _Seen) -> dict[str, int]:
        done = seen.is_(DONE)
        is_open = self._in_state(PENDING) | self._in_state(INCOMPLETE)
        return {
            "transactions": len(self._numbers),
            "done": int(done.sum()),
            "fenced": int(seen.is_(FENCED).sum()),
            "unmarked": int(seen.is_(UNMARKED).sum()),
            "done_and_open": int((done & is_open).sum()),
            "done_and_discarded": int((done & self._in_state(DISCARDED)).sum()),
            "not_judged_marker_may_be_forgotten": int(seen.is_lost.sum()),
            "not_judged_older_than_the_store_keeps": self._forgotten_count,
        }

    def _in_state(self, name: str) -> Flags:
        return self._picture.fates.in_state(name)[self._numbers]

    def _ids(self, numbers: Integers) -> list[str]:
        ids: list[str] = self._picture.halves.ids.take(pa.array(numbers)).to_pylist()
        return ids

    def _is_old(self, retention_s: float | None) -> Flags:
        """Flag transactions whose marker the table may have forgotten since the halves."""
        if retention_s is None:
            return np.zeros(len(self._numbers), dtype=bool)
        age_us = time.time() * 1e6 - _born_us(self._picture.halves)[self._numbers]
        flags: Flags = age_us > (retention_s - RETENTION_MARGIN_S) * 1e6
        return flags

    def _count_taken(self) -> int:
        """Count the transactions that only the settled log still knows."""
        ids = self._settled["transaction_id"]
        taken = ids.filter(pa.array(self._picture.forgotten(ids)))
        return len(pc.unique(taken))

    # --- who ended it --------------------------------------------------------------------------

    def _ends(self, numbers: Integers) -> dict[int, _End]:
        facts = self._picture.fates.facts
        facts_of_ends = facts.filter(pc.is_in(facts["transaction"], value_set=pa.array(numbers)))
        # Sorted, so the last one of a transaction stays.
        last = {row["transaction"]: row for row in facts_of_ends.to_pylist()}
        ids = self._ids(np.array([*last], dtype=np.int64))
        return {
            number: (name, row["op_version"], row["ordinal"], _KIND_OF_STATE[STATES[row["state"]]])
            for name, (number, row) in zip(ids, last.items(), strict=True)
        }

    def _sources(self, transaction_ids: Sequence[str]) -> dict[_End, str]:
        """Find who asked for each end: by the claims, or by the settled log if those are gone."""
        wanted = pa.array(transaction_ids, pa.string())
        sources: dict[_End, str] = {}
        for row in _of(self._settled, wanted).to_pylist():
            kind = _KIND_OF_STATE.get(row["state"])
            if kind and row["source"]:
                end = (row["transaction_id"], row["op_version"], row["ordinal"], kind)
                sources[end] = row["source"]
        for row in self._claims(wanted).to_pylist():
            end = (row["transaction_id"], row["_commit_version"], row["ordinal"], row["kind"])
            sources[end] = row["source"]
        return sources

    def _claims(self, wanted: pa.Array) -> pa.Table:
        claims = _of(readable(self._picture.claims), wanted)
        claims = claims.select([*_CLAIM_COLUMNS, "_commit_version"])
        own = claims.filter(pc.equal(claims["producer_group"], self._group))
        # Of two in one place, which is a writer's fault, the fold takes the smaller source.
        return own.sort_by([("source", "descending")])


def _of(rows: pa.Table, wanted: pa.Array) -> pa.Table:
    return rows.filter(pc.is_in(rows["transaction_id"], value_set=wanted))


def _violation(problem: Problem, end: _End, source: str | None) -> BusinessViolation:
    fault = FAULT_OF_SOURCE.get(source or "", Fault.UNKNOWN)
    return BusinessViolation(end[0], problem, fault, source, end[1], end[2])


def _transactional(halves: Halves) -> Flags:
    """Flag transactions with a local one: no ordinary messages, not disputed, with their halves."""
    ordinary = pc.fill_null(halves.rows["ordinary"], False).to_numpy()  # noqa: FBT003
    count = np.bincount(halves.transaction, weights=ordinary, minlength=len(halves.ids))
    flags: Flags = (count == 0) & ~halves.disputed & ~halves.by_schedule
    return flags


def _born_us(halves: Halves) -> Integers:
    """Return when the first half of each transaction was made, by its producer's clock."""
    first = np.full(len(halves.ids), np.iinfo(np.int64).max)
    np.minimum.at(first, halves.transaction, microseconds(halves.rows["born_timestamp"]))
    return first


def _names(groups: pa.Array) -> set[str]:
    return {name for name in pc.unique(groups).to_pylist() if name is not None}


def _refuse_unknown(places: Mapping[str, MarkerPlace], pinned: PinnedStore) -> None:
    """Raise ConfigError for groups that the store lacks: a misspelt one would stay clean."""
    groups = _groups_in(pinned)
    shown = ", ".join(sorted(groups)[:_SHOWN_GROUPS]) or "none"
    faults = [
        f"business: no transaction of group {group} is in the store; its groups: {shown}"
        for group in places
        if group not in groups
    ]
    if faults:
        raise ConfigError(faults)


def _groups_in(pinned: PinnedStore) -> set[str]:
    schedule = [table for name, table in pinned.topics.items() if is_schedule(name)]
    return {
        name
        for table in (pinned.half, pinned.settled, *schedule)
        for batch in table.batches(["producer_group"])
        for name in _names(batch["producer_group"])
    }
