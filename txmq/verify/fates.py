"""The checker's judgement: what each transaction came to, from its claims and its halves."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.verify.arrays import ABSENT, Flags, Integers, are_texts, changes, microseconds
from txmq.verify.fold import (
    COMMITTED,
    DELIVERIES,
    INCOMPLETE,
    KINDS,
    PENDING,
    ROLLED_BACK,
    SOURCES,
    STATES,
    SeenClaim,
    facts_of,
)
from txmq.verify.halves import Halves
from txmq.verify.tables import PinnedTable

FACT_KEY = ("transaction", "op_version", "ordinal", "state", "life")
# What the settled log may say: of a transaction, then of single messages of it.
SETTLED_STATES = (*STATES, *DELIVERIES.values())
STATE_NUMBERS = {name: number for number, name in enumerate(STATES)}
_PLAIN_ENDS = {"COMMIT": STATE_NUMBERS[COMMITTED], "ROLLBACK": STATE_NUMBERS[ROLLED_BACK]}
_REST_COLUMNS = ("check_times", "next_check_timestamp", "reason")
# A claim by hand may hold a time before the year 1 or after 9999, which no program could show.
_TIMES = ("op_timestamp", "next_check_timestamp")
_FIRST_US, _LAST_US = -62_135_596_800_000_000, 253_402_300_799_999_999
_TEXTS = ("transaction_id", "producer_group", "reason")
_ORDINAL_LIMIT = 1 << 31
Places = Mapping[int, Container[tuple[int, int]]]
Starts = Mapping[int, tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Fates:
    """Facts by the checker's own fold, and where each transaction stands at the end.

    Attributes:
        facts: FACT_KEY as integers (`state` is a place in STATES), sorted by them.
        believed: those of them that the settled log alone tells, for their claims are gone.
        state, op_version, ordinal, life: of the last fact of each transaction. One more entry
            stands at their end, so that ABSENT leads to no state at all.
        claims_without_half: claims about transactions that are not in the half log.
        claims_without_effect: claims that changed nothing; UNKNOWN, DELIVER and RECALL not counted.
    """

    facts: pa.Table
    believed: pa.Table
    state: Integers
    op_version: Integers
    ordinal: Integers
    life: Integers
    claims_without_half: int
    claims_without_effect: int

    def in_state(self, name: str) -> Flags:
        """Flag the transactions that stand there."""
        flags: Flags = self.state == STATE_NUMBERS[name]
        return flags

    def facts_in(self, name: str) -> pa.Table:
        """Return the facts that led to a state."""
        return self.facts.filter(pc.equal(self.facts["state"], STATE_NUMBERS[name]))


def fates_of(  # noqa: PLR0913, PLR0917 - each of them decides
    claims: pa.Table,
    halves: Halves,
    settled: pa.Table,
    half: PinnedTable,
    readable_from: int,
    commits: pa.Table,
) -> Fates:
    """Fold all claims from `readable_from` on, starting where the settled log stood before.

    `half` only excuses halves that were repaired after a COMMIT found them missing. `commits` are
    those of transactions that only the schedule still knows: transaction_id, op_version, life.
    """
    claims = readable(claims)
    numbers = halves.numbers_of(claims["transaction_id"])
    foreign = claims.num_rows - int((numbers != ABSENT).sum())
    # What the schedule stands for was committed, whatever claims are left.
    judged = (numbers != ABSENT) & ~np.append(halves.by_schedule, [False])[numbers]
    judged_claims = claims.filter(pa.array(judged))
    claims_of_group = of_right_group(judged_claims, numbers[judged], halves)
    changing_count = _changing(judged_claims).num_rows
    believed = _believed(settled, halves, readable_from)
    repaired, starts = _repaired(settled, halves, half), _starts(believed)
    plain, others = _split(claims_of_group, [*repaired, *starts])
    folded = _folded(others, halves, repaired, starts)
    facts = pa.concat_tables([believed, _plain_facts(plain, halves), folded])
    facts = facts.take(pa.array(_order(facts)))
    return Fates(
        facts,
        believed,
        *_with_commits(_last_facts(facts, len(halves.ids)), halves, commits),
        claims_without_half=foreign,
        claims_without_effect=changing_count - facts.num_rows + believed.num_rows,
    )


def readable(claims: pa.Table) -> pa.Table:
    """Leave out rows that txmq does not write."""
    is_ours = pc.and_(
        pc.is_in(claims["kind"], value_set=pa.array([*KINDS, *DELIVERIES, "UNKNOWN"])),
        pc.is_in(claims["source"], value_set=pa.array(SOURCES)),
    )
    for name in ("transaction_id", "ordinal", "producer_group"):
        is_ours = pc.and_(is_ours, pc.is_valid(claims[name]))
    for name in _TEXTS:
        is_ours = pc.and_(is_ours, are_texts(claims[name]))
    is_ours = pc.and_(is_ours, pc.greater_equal(claims["ordinal"], 0))
    is_ours = pc.and_(is_ours, pc.less(claims["ordinal"], _ORDINAL_LIMIT))
    for name in _TIMES:
        moments = pc.fill_null(claims[name].cast(pa.int64()), 0)
        is_time = pc.and_(pc.greater_equal(moments, _FIRST_US), pc.less_equal(moments, _LAST_US))
        is_ours = pc.and_(is_ours, is_time)
    return claims.filter(is_ours)


def of_right_group(claims: pa.Table, numbers: Integers, halves: Halves) -> pa.Table:
    """Keep claims in the name of the half's group and number their transactions."""
    groups = halves.groups.take(pa.array(numbers))
    numbered = claims.append_column("transaction", pa.array(numbers))
    return numbered.filter(pc.equal(claims["producer_group"], groups))


def _believed(settled: pa.Table, halves: Halves, readable_from: int) -> pa.Table:
    """Return facts of known transactions whose claims are gone, each once and sorted."""
    facts = settled_facts(settled, halves)
    is_old = pc.less(facts["op_version"], readable_from)
    for name in ("transaction", "state", "op_version"):
        is_old = pc.and_(is_old, pc.not_equal(facts[name], ABSENT))
    is_old = pc.and_(is_old, pc.less(facts["state"], len(STATES)))
    old = facts.filter(is_old).group_by(list(FACT_KEY)).aggregate([])
    old = old.filter(pa.array(~halves.by_schedule[old["transaction"].to_numpy()]))
    return old.take(pa.array(_order(old)))


def settled_facts(settled: pa.Table, halves: Halves) -> pa.Table:
    """Read the settled log as FACT_KEY; `transaction` and `state` are ABSENT if unknown.

    `state` is a place in SETTLED_STATES.
    """
    states = pc.index_in(settled["state"], value_set=pa.array(SETTLED_STATES))
    columns = {
        "transaction": halves.numbers_of(settled["transaction_id"]),
        "op_version": pc.fill_null(settled["op_version"], ABSENT).to_numpy(),
        "ordinal": pc.fill_null(settled["ordinal"], ABSENT).to_numpy(),
        "state": pc.fill_null(states, ABSENT).to_numpy().astype(np.int64),
        "life": pc.fill_null(settled["life"], ABSENT).to_numpy(),
    }
    return pa.table({name: columns[name] for name in FACT_KEY})


def _repaired(
    settled: pa.Table, halves: Halves, half: PinnedTable
) -> dict[int, set[tuple[int, int]]]:
    """Find places where a COMMIT found halves missing that were appended after it was settled.

    Whoever says INCOMPLETE must be able to show that the halves came later; otherwise a whole
    transaction could be hidden behind that word. What is no longer in the log is believed.
    """
    rows = settled.filter(pc.equal(settled["state"], INCOMPLETE))
    numbers = halves.numbers_of(rows["transaction_id"])
    doubtful = numbers != ABSENT
    doubtful[doubtful] = halves.complete[numbers[doubtful]]
    if not doubtful.any():
        return {}
    newest = _newest_commits(half, halves, numbers[doubtful])
    excused: dict[int, set[tuple[int, int]]] = {}
    settled_at = (microseconds(rows["settled_timestamp"]) // 1000).tolist()
    unknown = np.inf if half.readable_from else -np.inf
    for row, number, moment in zip(rows.to_pylist(), numbers.tolist(), settled_at, strict=True):
        if newest.get(number, unknown) > moment:
            excused.setdefault(number, set()).add((row["op_version"], row["ordinal"]))
    return excused


def _newest_commits(half: PinnedTable, halves: Halves, numbers: Integers) -> dict[int, int]:
    """Find when the last row of each of these transactions was appended, in milliseconds."""
    rows = half.appended(["transaction_id", "_commit_version"])
    transactions = halves.numbers_of(rows["transaction_id"])
    wanted = np.isin(transactions, numbers)
    versions: Any = rows["_commit_version"].to_numpy()
    newest: dict[int, int] = {}
    for number, version in zip(
        transactions[wanted].tolist(), versions[wanted].tolist(), strict=True
    ):
        moment = half.history.commits[version].moment_ms
        newest[number] = max(moment, newest.get(number, moment))
    return newest


def _starts(believed: pa.Table) -> dict[int, tuple[str, int]]:
    """Return state and life of each transaction before its first readable claim."""
    # Sorted, so the last one of a transaction stays.
    return {row["transaction"]: (STATES[row["state"]], row["life"]) for row in believed.to_pylist()}


def _split(claims: pa.Table, special: list[int]) -> tuple[pa.Table, pa.Table]:
    """Separate a first and only COMMIT or ROLLBACK, judged by columns, from what is folded."""
    claims = _changing(claims)
    numbers = claims["transaction"].to_numpy()
    counts = np.bincount(numbers, minlength=1)
    is_end = pc.is_in(claims["kind"], value_set=pa.array(list(_PLAIN_ENDS))).to_numpy()
    is_first_life = (pc.fill_null(claims["life"], 0).to_numpy()) == 0
    is_plain = is_end & is_first_life & (counts[numbers] == 1) & ~np.isin(numbers, special)
    return claims.filter(pa.array(is_plain)), claims.filter(pa.array(~is_plain))


def _plain_facts(claims: pa.Table, halves: Halves) -> pa.Table:
    numbers = claims["transaction"].to_numpy()
    commits = pc.equal(claims["kind"], "COMMIT").to_numpy()
    ends = np.where(halves.complete[numbers], _PLAIN_ENDS["COMMIT"], STATE_NUMBERS[INCOMPLETE])
    states = np.where(commits, ends, _PLAIN_ENDS["ROLLBACK"]).astype(np.int64)
    lives = np.zeros(len(numbers), dtype=np.int64)
    columns = [numbers, claims["_commit_version"], claims["ordinal"], states, lives]
    return pa.table(columns, names=list(FACT_KEY))


def _folded(claims: pa.Table, halves: Halves, repaired: Places, starts: Starts) -> pa.Table:
    fact_rows: list[tuple[int, int, int, int, int]] = []
    for number, claims_of_one in _by_transaction(claims):
        facts = facts_of(
            claims_of_one,
            halves.groups[number].as_py(),
            complete=bool(halves.complete[number]),
            incomplete_at=repaired.get(number, ()),
            start=starts.get(number, (PENDING, 0)),
        )
        fact_rows += [
            (number, f.op_version, f.ordinal, STATE_NUMBERS[f.state], f.life) for f in facts
        ]
    columns = zip(*fact_rows, strict=True) if fact_rows else [[]] * len(FACT_KEY)
    return pa.table([pa.array(c, pa.int64()) for c in columns], names=list(FACT_KEY))


def _by_transaction(claims: pa.Table) -> Iterator[tuple[int, list[SeenClaim]]]:
    grouped: dict[int, list[SeenClaim]] = {}
    for row in claims.to_pylist():
        rest = tuple(str(row[name]) for name in _REST_COLUMNS)
        claim = SeenClaim(
            row["_commit_version"], row["ordinal"], row["kind"], row["producer_group"],
            row["source"], row["life"], rest,
        )  # fmt: skip
        grouped.setdefault(row["transaction"], []).append(claim)
    yield from grouped.items()


def _order(facts: pa.Table) -> Integers:
    # Stable, so two facts of one place keep the order in which they were folded.
    order: Integers = np.lexsort(
        tuple(facts[name].to_numpy() for name in ("ordinal", "op_version", "transaction"))
    )
    return order


def _last_facts(facts: pa.Table, count: int) -> dict[str, Integers]:
    empty = {"state": STATE_NUMBERS[PENDING], "op_version": ABSENT, "ordinal": ABSENT, "life": 0}
    numbers = facts["transaction"].to_numpy()
    is_last = np.append(changes(numbers)[1:], np.ones(len(numbers[:1]), dtype=bool))
    last = {name: np.full(count + 1, value, dtype=np.int64) for name, value in empty.items()}
    for name, values in last.items():
        values[numbers[is_last]] = facts[name].to_numpy()[is_last]
    last["state"][count] = ABSENT
    return last


def _with_commits(
    last: dict[str, Integers], halves: Halves, commits: pa.Table
) -> tuple[Integers, Integers, Integers, Integers]:
    """Mark as committed whom the schedule stands for; where in its commit nobody can tell."""
    numbers = halves.numbers_of(commits["transaction_id"])
    last["state"][numbers] = STATE_NUMBERS[COMMITTED]
    for name in ("op_version", "life"):
        last[name][numbers] = commits[name].to_numpy()
    return last["state"], last["op_version"], last["ordinal"], last["life"]


def _changing(claims: pa.Table) -> pa.Table:
    return claims.filter(pc.is_in(claims["kind"], value_set=pa.array(KINDS)))
