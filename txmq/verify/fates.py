"""The checker's judgement: what each transaction came to, from its claims and its halves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.verify.fold import (
    COMMITTED,
    INCOMPLETE,
    KINDS,
    PENDING,
    ROLLED_BACK,
    SOURCES,
    STATES,
    SeenClaim,
    facts_of,
)
from txmq.verify.halves import ABSENT, Flags, Halves, Integers
from txmq.verify.tables import PinnedTable, microseconds

FACT_KEY = ("transaction", "op_version", "ordinal", "state", "life")
_STATE_NUMBERS = {name: number for number, name in enumerate(STATES)}
_PLAIN_ENDS = {"COMMIT": _STATE_NUMBERS[COMMITTED], "ROLLBACK": _STATE_NUMBERS[ROLLED_BACK]}
_REST_COLUMNS = ("check_times", "next_check_timestamp", "reason")


@dataclass(frozen=True, slots=True)
class Fates:
    """Facts by the checker's own fold, and where each transaction stands at the end.

    Attributes:
        facts: FACT_KEY as integers (`state` is a place in STATES), sorted by them.
        state, op_version, life: of the last fact of each transaction. One more entry stands at
            their end, so that ABSENT leads to no state at all.
        claims_without_half: claims about transactions that are not in the half log.
        claims_without_effect: claims that changed nothing, UNKNOWN not counted.
    """

    facts: pa.Table
    state: Integers
    op_version: Integers
    life: Integers
    claims_without_half: int
    claims_without_effect: int

    def in_state(self, name: str) -> Flags:
        """The transactions that stand there."""
        flags: Flags = self.state == _STATE_NUMBERS[name]
        return flags

    def facts_in(self, name: str) -> pa.Table:
        """The facts that led to a state."""
        return self.facts.filter(pc.equal(self.facts["state"], _STATE_NUMBERS[name]))


def fates_of(claims: pa.Table, halves: Halves, settled: pa.Table, half: PinnedTable) -> Fates:
    """Fold all claims; `settled` and `half` only excuse halves that were repaired later."""
    claims = _readable(claims)
    numbers = halves.numbers_of(claims["transaction_id"])
    known = claims.filter(pa.array(numbers != ABSENT))
    own = _of_right_group(known, numbers[numbers != ABSENT], halves)
    repaired = _repaired(settled, halves, half)
    plain, others = _split(own, repaired)
    facts = pa.concat_tables([_plain_facts(plain, halves), _folded(others, halves, repaired)])
    facts = facts.take(pa.array(_order(facts)))
    return Fates(
        facts,
        *_last_facts(facts, len(halves.ids)),
        claims_without_half=claims.num_rows - known.num_rows,
        claims_without_effect=known.num_rows - facts.num_rows,
    )


def settled_facts(settled: pa.Table, halves: Halves) -> pa.Table:
    """The settled log as FACT_KEY; `transaction` is ABSENT without a half, `state` if unknown."""
    columns = {
        "transaction": halves.numbers_of(settled["transaction_id"]),
        "op_version": settled["op_version"].to_numpy(),
        "ordinal": settled["ordinal"].to_numpy(),
        "state": pc.fill_null(pc.index_in(settled["state"], value_set=pa.array(STATES)), ABSENT)
        .to_numpy().astype(np.int64),
        "life": pc.fill_null(settled["life"], ABSENT).to_numpy(),
    }  # fmt: skip
    return pa.table({name: columns[name] for name in FACT_KEY})


def missing_facts(wanted: pa.Table, found: pa.Table) -> pa.Table:
    """Facts of `wanted` that are not in `found`."""
    keys = list(FACT_KEY)
    return wanted.join(found.select(keys), keys=keys, join_type="left anti")


# --- helpers ------------------------------------------------------------------------------------


def _readable(claims: pa.Table) -> pa.Table:
    """Without rows that txmq does not write and those that change no state."""
    kept = pc.and_(
        pc.is_in(claims["kind"], value_set=pa.array(KINDS)),
        pc.is_in(claims["source"], value_set=pa.array(SOURCES)),
    )
    for name in ("transaction_id", "ordinal", "producer_group"):
        kept = pc.and_(kept, pc.is_valid(claims[name]))
    return claims.filter(kept)


def _of_right_group(claims: pa.Table, numbers: Integers, halves: Halves) -> pa.Table:
    """Claims of the half's group with the number of their transaction."""
    groups = halves.groups.take(pa.array(numbers))
    numbered = claims.append_column("transaction", pa.array(numbers))
    return numbered.filter(pc.equal(claims["producer_group"], groups))


def _split(
    claims: pa.Table, repaired: dict[int, set[tuple[int, int]]]
) -> tuple[pa.Table, pa.Table]:
    """A first and only COMMIT or ROLLBACK is judged by columns, everything else by the fold."""
    numbers = claims["transaction"].to_numpy()
    counts = np.bincount(numbers, minlength=1)
    is_end = pc.is_in(claims["kind"], value_set=pa.array(list(_PLAIN_ENDS))).to_numpy()
    is_plain = is_end & (counts[numbers] == 1) & ~np.isin(numbers, list(repaired))
    return claims.filter(pa.array(is_plain)), claims.filter(pa.array(~is_plain))


def _plain_facts(claims: pa.Table, halves: Halves) -> pa.Table:
    numbers = claims["transaction"].to_numpy()
    commits = pc.equal(claims["kind"], "COMMIT").to_numpy()
    ends = np.where(halves.complete[numbers], _PLAIN_ENDS["COMMIT"], _STATE_NUMBERS[INCOMPLETE])
    states = np.where(commits, ends, _PLAIN_ENDS["ROLLBACK"]).astype(np.int64)
    lives = np.zeros(len(numbers), dtype=np.int64)
    columns = [numbers, claims["_commit_version"], claims["ordinal"], states, lives]
    return pa.table(columns, names=list(FACT_KEY))


def _folded(
    claims: pa.Table, halves: Halves, repaired: dict[int, set[tuple[int, int]]]
) -> pa.Table:
    found: list[tuple[int, int, int, int, int]] = []
    for number, own in _by_transaction(claims):
        facts = facts_of(
            own,
            halves.groups[number].as_py(),
            complete=bool(halves.complete[number]),
            incomplete_at=repaired.get(number, ()),
        )
        found += [(number, f.op_version, f.ordinal, _STATE_NUMBERS[f.state], f.life) for f in facts]
    columns = zip(*found, strict=True) if found else [[]] * len(FACT_KEY)
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


def _last_facts(facts: pa.Table, count: int) -> tuple[Integers, Integers, Integers]:
    state = np.append(np.full(count, _STATE_NUMBERS[PENDING]), ABSENT)
    op_version = np.full(count + 1, ABSENT, dtype=np.int64)
    life = np.zeros(count + 1, dtype=np.int64)
    numbers = facts["transaction"].to_numpy()
    is_last = np.append(numbers[1:] != numbers[:-1], np.ones(len(numbers[:1]), dtype=bool))
    state[numbers[is_last]] = facts["state"].to_numpy()[is_last]
    op_version[numbers[is_last]] = facts["op_version"].to_numpy()[is_last]
    life[numbers[is_last]] = facts["life"].to_numpy()[is_last]
    return state, op_version, life


def _order(facts: pa.Table) -> Integers:
    # Stable, so two facts of one place keep the order in which they were folded.
    order: Integers = np.lexsort(
        tuple(facts[name].to_numpy() for name in ("ordinal", "op_version", "transaction"))
    )
    return order


def _repaired(
    settled: pa.Table, halves: Halves, half: PinnedTable
) -> dict[int, set[tuple[int, int]]]:
    """Places where a COMMIT found halves missing that were appended after it was settled.

    Whoever says INCOMPLETE must be able to show that the halves came later; otherwise a whole
    transaction could be hidden behind that word.
    """
    rows = settled.filter(pc.equal(settled["state"], INCOMPLETE))
    numbers = halves.numbers_of(rows["transaction_id"])
    doubtful = numbers != ABSENT
    doubtful[doubtful] = halves.complete[numbers[doubtful]]
    if not doubtful.any():
        return {}
    newest = _newest_commits(half, halves, numbers[doubtful])
    excused: dict[int, set[tuple[int, int]]] = {}
    settled_at = microseconds(rows["settled_timestamp"]).tolist()
    for row, number, moment in zip(rows.to_pylist(), numbers.tolist(), settled_at, strict=True):
        if newest.get(number, moment) > moment:
            excused.setdefault(number, set()).add((row["op_version"], row["ordinal"]))
    return excused


def _newest_commits(half: PinnedTable, halves: Halves, numbers: Integers) -> dict[int, int]:
    """When the last row of each of these transactions was appended, in microseconds."""
    commits = half.appended(["transaction_id", "_commit_timestamp"])
    found = halves.numbers_of(commits["transaction_id"])
    wanted = np.isin(found, numbers)
    moments: Any = microseconds(commits["_commit_timestamp"])
    newest: dict[int, int] = {}
    for number, moment in zip(found[wanted].tolist(), moments[wanted].tolist(), strict=True):
        newest[number] = max(moment, newest.get(number, moment))
    return newest
