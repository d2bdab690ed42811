"""Reads the current standings of due transactions before their listeners are asked. Read-only.

So no transaction is asked after its end. The work is columnar: each rule is called once for each
distinct row (`columns.DistinctRows`). Only transactions with several competing claims are folded
one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.ground.columns import (
    DistinctRows,
    Flags,
    Groups,
    Integers,
    flags,
    integers,
    place_in_group,
)
from txmq.listeners.protocol import Reason
from txmq.message.lifecycle import (
    FINAL_STATES,
    PENDING,
    Claim,
    ClaimKind,
    Halves,
    Standing,
    TransactionState,
    fold,
)
from txmq.store.config import CheckSettings, Config
from txmq.store.logs import Logs
from txmq.store.schemas import MICROSECONDS_UTC
from txmq.store.settled import last_facts

# A transaction that cannot be asked is due again after 1, 2, 4… intervals, up to this.
MAX_BACKOFF_S = 600.0
_MAX_DOUBLINGS = 32
# A longer immunity is taken for an error; the timeout holds instead.
IMMUNITY_MAX_S = 1e9
# The fields of DueRow.
DUE = pa.schema(
    [
        pa.field("transaction_id", pa.string()),
        pa.field("producer_group", pa.string()),
        pa.field("deadline_ms", pa.int64()),
        pa.field("check_times", pa.int32()),
        pa.field("life", pa.int32()),
        pa.field("ordinary", pa.bool_()),
        pa.field("has_returned", pa.bool_()),
    ]
)
ARMING_KINDS = (ClaimKind.UNKNOWN.value, ClaimKind.RESUME.value)
# The fields of CheckStanding, and the reason why the last check brought no end.
STANDINGS = pa.schema(
    [
        pa.field("state", pa.string()),
        pa.field("life", pa.int32()),
        pa.field("check_times", pa.int32()),
        pa.field("next_check_ms", pa.int64()),
        pa.field("uncounted", pa.int32()),
        pa.field("must_be_asked", pa.bool_()),
        pa.field("reason", pa.string()),
    ]
)
_STATES = tuple(TransactionState)
_CODES = {state: code for code, state in enumerate(_STATES)}
_NAMES = pa.array([state.value for state in _STATES])
_FINAL = np.array([state in FINAL_STATES for state in _STATES])
_NONE_MS = np.iinfo(np.int64).min


def standing_of_row(row: Mapping[str, Any]) -> CheckStanding:
    """Read one row of STANDINGS, for the rules."""
    state, next_ms = TransactionState(row["state"]), row["next_check_ms"]
    standing = Standing(state, row["life"], row["check_times"], next_ms)
    return CheckStanding(standing, row["uncounted"], row["must_be_asked"])


@dataclass(slots=True)
class _Standings:
    """State and life of each transaction; filled step by step."""

    state: Integers
    life: Integers
    is_settled: Flags

    def set(self, places: Integers, standings: list[Standing]) -> None:
        self.state[places] = [_CODES[standing.state] for standing in standings]
        self.life[places] = [standing.life for standing in standings]

    def standing(self, place: int) -> Standing:
        return Standing(_STATES[self.state[place]], int(self.life[place]))


class StandingReader:
    """Reads settled standings, folds newer claims, counts the checks of the current life.

    Not safe for several threads.
    """

    def __init__(self, logs: Logs, config: Config) -> None:
        """Open nothing yet."""
        self._logs, self._config = logs, config

    def of(self, owners: pa.Table, clock_ms: int) -> pa.Table:
        """Read STANDINGS of the transactions of `owners`, in its order.

        Args:
            owners: transaction_id, each once, and producer_group.
            clock_ms: now; deadlines that were written by a clock ahead of it count as now.

        Reads: settled, op (the files that may hold these ids; the change feed only for
        transactions with several competing claims). Commits: 0.
        """
        return self._logs.consistent(lambda: self._read(owners, clock_ms))

    def _read(self, owners: pa.Table, clock_ms: int) -> pa.Table:
        self._logs.refresh_claims()
        ids = owners["transaction_id"].combine_chunks()
        facts = last_facts(self._logs.settled.facts_of(ids))
        return self.folded(owners, facts, self._logs.op.rows_about(ids), clock_ms)

    def unsettled(self, claims: pa.Table) -> pa.Table:
        """Read the claims beyond the settled mark, by transaction and kind.

        An older claim about a transaction without facts had no effect: it came before its half.
        """
        if not claims.num_rows:
            return claims
        settled, op = self._logs.settled, self._logs.op
        beyond = op.between(settled.mark, op.table.version)
        is_beyond = pc.is_in(_kind_key(claims), value_set=_kind_key(beyond))
        waiting = pc.unique(self._logs.set_aside().counted["transaction_id"])
        waits = pc.is_in(claims["transaction_id"], value_set=waiting)
        return claims.filter(pc.or_(is_beyond, waits))

    def folded(self, owners: pa.Table, facts: pa.Table, rows: pa.Table, clock_ms: int) -> pa.Table:
        """Fold as `of` does, from facts and claims that are read already."""
        ids = owners["transaction_id"].combine_chunks()
        claims = _placed(rows, ids, owners["producer_group"])
        standings = _settled(facts, ids)
        self._fold(standings, claims, ids)
        return _checked(standings, claims, clock_ms, self._config)

    def _fold(self, standings: _Standings, claims: pa.Table, ids: pa.Array) -> None:
        """Set states and lives. A COMMIT gives COMMITTED even if settle will find halves missing.

        Neither COMMITTED nor INCOMPLETE is asked, and an operator can act on INCOMPLETE only after
        it is settled.
        """
        ends = claims.filter(pc.not_equal(claims["kind"], ClaimKind.UNKNOWN.value))
        place = integers(ends["place"], 0)
        count = np.bincount(place, minlength=len(ids))
        is_open = ~_FINAL[standings.state[place]]
        # Only the change feed shows the order of several claims, and which are settled.
        is_contested = standings.is_settled[place] | (count[place] > 1)
        alone = self.unsettled(ends.filter(pa.array(is_open & ~is_contested)))
        standings.set(integers(alone["place"], 0), _folded_alone(alone))
        contested = np.unique(place[is_open & is_contested])
        if len(contested):
            groups = _groups_of(ends)
            self._fold_contested(standings, ids, contested, groups)

    def _fold_contested(
        self, standings: _Standings, ids: pa.Array, places: Integers, groups: dict[int, str]
    ) -> None:
        names = ids.take(pa.array(places)).to_pylist()
        claims, _ = self._logs.unsettled_claims(names)
        folded = [
            fold(claims[name], Halves(groups[place], 0, 0), standings.standing(place))[0]
            for name, place in zip(names, places.tolist(), strict=True)
        ]
        standings.set(places, folded)


def _kind_key(claims: pa.Table) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(claims["transaction_id"], claims["kind"], "/")


def _placed(rows: pa.Table, ids: pa.Array, groups: pa.ChunkedArray) -> pa.Table:
    """Select claims about `ids`, with the place of the transaction and its owner group."""
    place = pc.index_in(rows["transaction_id"], value_set=ids)
    rows = rows.append_column("place", place).filter(pc.is_valid(place))
    owner = groups.combine_chunks().take(rows["place"].combine_chunks())
    return rows.append_column("owner", owner)


def _settled(facts: pa.Table, ids: pa.Array) -> _Standings:
    row = pc.index_in(ids, value_set=facts["transaction_id"].combine_chunks())
    names = pc.fill_null(facts["state"].take(row), PENDING.state.value)
    codes = pc.index_in(names, value_set=_NAMES)
    life = integers(facts["life"].take(row), PENDING.life)
    return _Standings(integers(codes, 0).copy(), life.copy(), flags(pc.is_valid(row)))


def _folded_alone(claims: pa.Table) -> list[Standing]:
    """Fold each transaction that has a single claim."""
    distinct = DistinctRows.of(claims.select(["kind", "producer_group", "owner", "life"]))
    after = [_after(case) for case in distinct.rows.to_pylist()]
    return [after[place] for place in distinct.place.tolist()]


def _after(case: Mapping[str, Any]) -> Standing:
    kind, group = ClaimKind(case["kind"]), case["producer_group"]
    claim = Claim("", kind, group, op_version=0, ordinal=0, life=case["life"])
    return fold([claim], Halves(case["owner"], 0, 0))[0]


def _groups_of(claims: pa.Table) -> dict[int, str]:
    places, owners = claims["place"].to_pylist(), claims["owner"].to_pylist()
    return dict(zip(places, owners, strict=True))


def _checked(standings: _Standings, claims: pa.Table, clock_ms: int, config: Config) -> pa.Table:
    """Add the counted checks and the next check of the current life to STANDINGS.

    The highest `check_times` is the count, so a claim that was written twice counts once. The
    latest deadline holds.
    """
    armings = _armings(standings, claims)
    count = len(standings.state)
    place, times = integers(armings["place"], 0), integers(armings["check_times"], 0)
    check_times = np.zeros(count, dtype=np.int64)
    np.maximum.at(check_times, place, times)
    last = armings.filter(pa.array(times == check_times[place]))
    is_pending = standings.state == _CODES[TransactionState.PENDING]
    next_ms = np.where(is_pending, _next_checks_ms(last, count, clock_ms, config), _NONE_MS)
    unknowns = last.filter(pc.equal(last["kind"], ClaimKind.UNKNOWN.value))
    # A producer that lives for hours makes no later pause longer.
    unreached = unknowns.filter(pc.not_equal(_reasons(unknowns), Reason.PRODUCER_LIVES.value))
    unasked = np.bincount(integers(unreached["place"], 0), minlength=count) - (check_times > 0)
    columns = [
        _NAMES.take(pa.array(standings.state)),
        pa.array(standings.life),
        pa.array(check_times),
        pa.array(next_ms, mask=next_ms == _NONE_MS),
        pa.array(np.maximum(unasked, 0)),
        pa.array(_must_be_asked(armings, count, clock_ms, config)),
        _last_reasons(unknowns, count),
    ]
    return pa.table(dict(zip(STANDINGS.names, columns, strict=True))).cast(STANDINGS)


def _reasons(unknowns: pa.Table) -> pa.ChunkedArray:
    return pc.fill_null(unknowns["reason"], "")


def _armings(standings: _Standings, claims: pa.Table) -> pa.Table:
    """Select the UNKNOWN and RESUME claims of the own group and the current life."""
    life = pa.array(standings.life).take(claims["place"].combine_chunks())
    is_current = pc.and_(
        pc.equal(claims["producer_group"], claims["owner"]),
        pc.fill_null(pc.equal(claims["life"], life), False),  # noqa: FBT003
    )
    is_arming = pc.is_in(claims["kind"], value_set=pa.array(ARMING_KINDS))
    return claims.filter(pc.and_(is_current, is_arming))


def _must_be_asked(armings: pa.Table, count: int, clock_ms: int, config: Config) -> Flags:
    """Tell which were renewed for so long that they would expire before all their questions.

    Producers that renew one after the other, or settings that differ, keep to no other limit.
    """
    renewed = armings.filter(pc.equal(_reasons(armings), Reason.PRODUCER_LIVES.value))
    distinct = DistinctRows.of(renewed.select(["owner"]))
    owners = map(config.of_group, distinct.rows["owner"].to_pylist())
    reserved_s = config.file_reserved_time_h * 3600
    limits_s = (reserved_s - group.checks_s - group.producer_lease_s for group in owners)
    limits_ms = distinct.values((round(limit_s * 1000) for limit_s in limits_s), pa.int64())
    age_ms = pc.subtract(clock_ms, milliseconds_of(renewed["op_timestamp"]))
    is_late = pc.greater_equal(age_ms, limits_ms)
    must_be_asked = np.zeros(count, dtype=bool)
    must_be_asked[integers(renewed.filter(is_late)["place"], 0)] = True
    return must_be_asked


def _next_checks_ms(last: pa.Table, count: int, clock_ms: int, config: Config) -> Integers:
    """Find the latest deadline of each transaction; _NONE_MS if no claim has one."""
    timed = last.filter(pc.is_valid(last["next_check_timestamp"]))
    columns = {
        "next_ms": milliseconds_of(timed["next_check_timestamp"]),
        "armed_ms": milliseconds_of(timed["op_timestamp"]),
        "owner": timed["owner"],
    }
    distinct = DistinctRows.of(pa.table(columns))
    of_case_ms = [_next_check_ms(case, clock_ms, config) for case in distinct.rows.to_pylist()]
    of_claim_ms = np.array(of_case_ms, dtype=np.int64)[distinct.place]
    latest_ms = np.full(count, _NONE_MS, dtype=np.int64)
    np.maximum.at(latest_ms, integers(timed["place"], 0), of_claim_ms)
    return latest_ms


def _next_check_ms(case: Mapping[str, Any], clock_ms: int, config: Config) -> int:
    next_ms, armed_ms = int(case["next_ms"]), case["armed_ms"]
    if armed_ms is None:
        return next_ms
    settings = config.of_group(case["owner"])
    return believable_next_check_ms(next_ms, armed_ms, clock_ms, settings)


def _last_reasons(unknowns: pa.Table, count: int) -> pa.Array:
    """Find the reason of each transaction's newest UNKNOWN claim; null without a claim."""
    unknowns = unknowns.sort_by([("op_timestamp", "ascending")])
    newest = np.full(count, -1, dtype=np.int64)
    # If a place gets several values, numpy keeps the last.
    newest[integers(unknowns["place"], 0)] = np.arange(unknowns.num_rows)
    return unknowns["reason"].combine_chunks().take(pa.array(newest, mask=newest < 0))


# --- Due rows ------------------------------------------------------------------------------------


def due_table(rows: Sequence[DueRow]) -> pa.Table:
    """Build DUE from due rows."""
    columns = zip(*map(astuple, rows), strict=True) if rows else [[] for _ in DUE]
    return pa.table(list(map(pa.array, columns, DUE.types)), DUE)


def due_row(row: dict[str, Any]) -> DueRow:
    """Read one row of DUE, for the rules."""
    return DueRow(**{name: row[name] for name in DUE.names})


def milliseconds_of(moments: Any) -> Any:
    """Convert times to milliseconds since 1970; Python cannot represent all of them."""
    microseconds = moments.cast(MICROSECONDS_UTC).cast(pa.int64()).cast(pa.float64(), safe=False)
    return pc.round(pc.divide(microseconds, 1000.0)).cast(pa.int64())


def rounds_of(dues: pa.Table, limit_of: Callable[[str], int]) -> Iterator[pa.Table]:
    """Split due rows into rounds, the most urgent first, with at most `limit_of(group)` of a group.

    So a group with many due rows takes more rounds, and takes no room from other groups.
    """
    ordered = dues.sort_by([("deadline_ms", "ascending"), ("transaction_id", "ascending")])
    groups = Groups.of(ordered["producer_group"])
    limits = np.array([limit_of(name) for name in groups.keys.to_pylist()], dtype=np.int64)
    round_of_row = place_in_group(ordered["producer_group"]) // limits[groups.place]
    for number in range(int(round_of_row.max(initial=-1)) + 1):
        yield ordered.filter(pa.array(round_of_row == number))


# --- Rules for one row ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DueRow:
    """A transaction whose deadline passed, as the deadline join or the recheck read it.

    `check_times` and `life` come from the row that armed it (a head: 0 and 0). `has_returned` says
    that its group could not be asked and now has a listener, so that its pause is over.
    """

    transaction_id: str
    producer_group: str
    deadline_ms: int
    check_times: int = 0
    life: int = 0
    ordinary: bool = False
    has_returned: bool = False


@dataclass(frozen=True, slots=True)
class CheckStanding:
    """The current standing, and how often the transaction was re-armed since its last check.

    `must_be_asked` says that it was renewed for as long as it may be before it expires.
    """

    standing: Standing = PENDING
    uncounted: int = 0
    must_be_asked: bool = False


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask the listener; `check_times` questions were counted before."""

    check_times: int


@dataclass(frozen=True, slots=True)
class Discard:
    """Discard: the transaction was asked `transaction_check_max` times (R61)."""


@dataclass(frozen=True, slots=True)
class RollBack:
    """Roll back an ordinary message without a COMMIT: it was never acknowledged, so ask nobody."""


@dataclass(frozen=True, slots=True)
class Rearm:
    """Set a deadline again: the clock was set back, or the producer still works on it."""

    next_check_timestamp_ms: int
    reason: Reason = Reason.NOT_DUE


@dataclass(frozen=True, slots=True)
class Drop:
    """Do nothing: the transaction has an end, or another claim arms it and would be doubled."""


Decision = Ask | Discard | RollBack | Rearm | Drop


def decide(
    due: DueRow,
    now: CheckStanding,
    clock_ms: int,
    settings: CheckSettings,
    renewed_ms: int = 0,
) -> Decision:
    """Decide about a due row.

    Args:
        due: the row.
        now: the current standing of its transaction.
        clock_ms: the clock value by which it is due.
        settings: of its producer group.
        renewed_ms: until then nobody is asked, because its producer lives and works on it.
    """
    standing = now.standing
    is_of_the_past = (due.life, due.check_times) != (standing.life, standing.check_times)
    if standing.state is not TransactionState.PENDING or is_of_the_past:
        return Drop()
    next_check_ms = standing.next_check_timestamp_ms
    if next_check_ms is None:
        next_check_ms = due.deadline_ms
    if next_check_ms > clock_ms and not due.has_returned:
        return Rearm(next_check_ms) if next_check_ms == due.deadline_ms else Drop()
    if due.ordinary:
        return RollBack()
    if renewed_ms > clock_ms and not now.must_be_asked:
        return Rearm(renewed_ms, Reason.PRODUCER_LIVES)
    if standing.check_times >= settings.transaction_check_max:
        return Discard()
    return Ask(standing.check_times)


def next_check_ms(clock_ms: int, settings: CheckSettings) -> int:
    """Return the next check after a counted question (R53)."""
    return clock_ms + round(settings.transaction_check_interval_s * 1000)


def next_try_ms(clock_ms: int, uncounted: int, settings: CheckSettings) -> int:
    """Return the next try after a question that could not be asked; the pause grows."""
    interval_s = settings.transaction_check_interval_s
    pause_s = interval_s * (1 << min(uncounted, _MAX_DOUBLINGS))
    return clock_ms + round(min(pause_s, max(interval_s, MAX_BACKOFF_S)) * 1000)


def believable_next_check_ms(
    next_check_timestamp_ms: int, armed_ms: int, clock_ms: int, settings: CheckSettings
) -> int:
    """Return the next check as written, or now if its writer's clock was ahead.

    Otherwise a clock that was wrong by a year would delay the check of a transaction by a year.
    """
    ahead_ms = armed_ms - clock_ms
    if ahead_ms > settings.transaction_check_interval_s * 1000:
        return min(next_check_timestamp_ms, clock_ms)
    return next_check_timestamp_ms
