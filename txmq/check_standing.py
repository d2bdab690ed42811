"""Folding once more: where transactions stand right before they are asked. Reads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.check_rules import CheckStanding, believable_next_check_ms
from txmq.clock import milliseconds
from txmq.config import Config
from txmq.lifecycle import (
    FINAL_STATES,
    PENDING,
    Claim,
    ClaimKind,
    Halves,
    Standing,
    TransactionState,
    fold,
)
from txmq.op_log import OpLog, claims_of_table
from txmq.settled_log import SettledLog
from txmq.store import Store

ARMING_KINDS = (ClaimKind.UNKNOWN.value, ClaimKind.RESUME.value)


@dataclass(frozen=True, slots=True)
class _Arming:
    """An UNKNOWN or RESUME row: it says when its transaction is due, and after how many checks."""

    check_times: int
    next_check_ms: int | None
    is_resume: bool


class CheckStandings:
    """Settled standings, the claims after them, and the counted checks of the current life.

    Not safe for several threads.
    """

    def __init__(self, store: Store, config: Config | None = None) -> None:
        """Handles of our own."""
        self.op: OpLog = store.op_log()
        self._config = config or store.config
        self.settled: SettledLog = store.settled_log(self.op.table.table_id)

    def of(self, groups: Mapping[str, str], clock_ms: int) -> dict[str, CheckStanding]:
        """The standing of each transaction in `groups` (transaction to producer group).

        Reads: settled, op (files that may hold these ids; the change feed only for those that
        several claims contend for). Commits: 0.
        """
        self.refresh()
        ids = pa.array(groups, pa.string())
        settled = self.settled.standings(ids)
        return self.folded(groups, settled, self.op.rows_about(ids), clock_ms)

    def refresh(self) -> None:
        """Move to what is there now; settled first, so that its mark is not beyond the claims."""
        self.settled.table.refresh()
        self.op.table.refresh()

    def folded(
        self,
        groups: Mapping[str, str],
        settled: Mapping[str, Standing],
        rows: pa.Table,
        clock_ms: int,
    ) -> dict[str, CheckStanding]:
        """As `of`, from settled standings and all claims that were read already."""
        standings = self._states(groups, settled, rows)
        return _checked(standings, groups, rows, clock_ms, self._config)

    def _states(
        self, groups: Mapping[str, str], settled: Mapping[str, Standing], rows: pa.Table
    ) -> dict[str, Standing]:
        """States and lives. A COMMIT folds to COMMITTED even where settle finds halves missing.

        Both are not asked, and what follows an INCOMPLETE only comes after it was settled.
        """
        standings = {key: settled.get(key, PENDING) for key in groups}
        claims = self._new_claims(settled, rows)
        for key, contending in claims.items():
            halves = Halves(groups[key], 0, 0)
            standings[key], _ = fold(contending, halves, standings[key])
        return standings

    def _new_claims(
        self, settled: Mapping[str, Standing], rows: pa.Table
    ) -> dict[str, list[Claim]]:
        """Claims that may have changed the state since it was settled, by transaction."""
        unknown = pc.equal(rows["kind"], ClaimKind.UNKNOWN.value)
        ends = rows.filter(pc.invert(unknown))
        claims: dict[str, list[Claim]] = {}
        for claim in claims_of_table(ends.append_column("_commit_version", _no_version(ends))):
            if settled.get(claim.transaction_id, PENDING).state not in FINAL_STATES:
                claims.setdefault(claim.transaction_id, []).append(claim)
        contested = [key for key, several in claims.items() if len(several) > 1 or key in settled]
        if contested:
            # Only the change feed knows their order, and which of them are settled already.
            mark, version = self.settled.mark, self.op.table.version
            claims.update(self.op.claims_between(mark, version, contested))
        return claims


def _checked(
    standings: Mapping[str, Standing],
    groups: Mapping[str, str],
    rows: pa.Table,
    clock_ms: int,
    config: Config,
) -> dict[str, CheckStanding]:
    """The standings with the counted checks and the next check of their life."""
    arming = rows.filter(pc.is_in(rows["kind"], value_set=pa.array(ARMING_KINDS)))
    by_id: dict[str, list[_Arming]] = {}
    for row in arming.to_pylist():
        key = str(row["transaction_id"])
        if row["producer_group"] == groups[key] and row["life"] == standings[key].life:
            by_id.setdefault(key, []).append(_arming(row, clock_ms, config))
    return {key: _with_checks(standing, by_id.get(key, ())) for key, standing in standings.items()}


def _with_checks(standing: Standing, armings: Sequence[_Arming]) -> CheckStanding:
    """Rows count by their number, so one written twice counts once; the latest deadline holds."""
    if not armings:
        return CheckStanding(standing)
    check_times = max(arming.check_times for arming in armings)
    last = [arming for arming in armings if arming.check_times == check_times]
    standing = replace(standing, check_times=check_times)
    if standing.state is TransactionState.PENDING:
        deadlines = [arming.next_check_ms for arming in last if arming.next_check_ms is not None]
        standing = replace(standing, next_check_timestamp_ms=max(deadlines, default=None))
    unasked = sum(not arming.is_resume for arming in last) - (check_times > 0)
    return CheckStanding(standing, unasked)


def _arming(row: Mapping[str, Any], clock_ms: int, config: Config) -> _Arming:
    next_check, armed = row["next_check_timestamp"], row["op_timestamp"]
    next_check_ms = None if next_check is None else milliseconds(next_check)
    if next_check_ms is not None and armed is not None:
        armed_ms = milliseconds(armed)
        next_check_ms = believable_next_check_ms(next_check_ms, armed_ms, clock_ms, config)
    is_resume = row["kind"] == ClaimKind.RESUME.value
    return _Arming(row["check_times"] or 0, next_check_ms, is_resume)


def _no_version(rows: pa.Table) -> pa.Array:
    return pa.array([0] * rows.num_rows, pa.int64())
