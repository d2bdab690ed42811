"""The checker's own reading of DELIVER and RECALL: what became of each delayed message.

They change no transaction: it stays COMMITTED. Each message has a life of its own, and the first
claim that names it decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.verify.arrays import ABSENT, UNSAID, Flags, Integers, changes, microseconds
from txmq.verify.fates import (
    FACT_KEY,
    SETTLED_STATES,
    Fates,
    of_right_group,
    readable,
    settled_facts,
)
from txmq.verify.fold import COMMITTED, DELIVERED, DELIVERIES, RECALLED
from txmq.verify.halves import Halves

DELIVERED_NUMBER, RECALLED_NUMBER = map(SETTLED_STATES.index, (DELIVERED, RECALLED))
_DELAY_SERVICE = "delay"
_TIE_BREAKERS = ("kind", "source", "life", "check_times", "reason")
_REQUEST = ("transaction", "op_version", "ordinal", "state", "asked_us", "by_service", "sequences")


@dataclass(frozen=True, slots=True)
class Deliveries:
    """One entry for each message, and one more at the end for ABSENT.

    Attributes:
        facts: FACT_KEY and `sequence` as integers, one row for each message that has ended.
        state: DELIVERED_NUMBER, RECALLED_NUMBER, or ABSENT for what waits or was never delayed.
        op_version, ordinal: of the claim that decided.
        asked_us: the time in that claim; UNSAID where it can no longer be read.
        by_service: whether the delay service wrote that claim, as far as it can be read.
        claims_without_effect: claims that no message was waiting for.
    """

    facts: pa.Table
    state: Integers
    op_version: Integers
    ordinal: Integers
    asked_us: Integers
    by_service: Flags
    claims_without_effect: int

    def is_(self, number: int) -> Flags:
        """Flag the messages that ended so."""
        flags: Flags = self.state[:-1] == number
        return flags


def deliveries_of(
    claims: pa.Table, halves: Halves, fates: Fates, settled: pa.Table, readable_from: int
) -> Deliveries:
    """Fold the claims; the settled log speaks for those before `readable_from`."""
    claims = readable(claims)
    claims = claims.filter(pc.is_in(claims["kind"], value_set=pa.array(list(DELIVERIES))))
    numbers = halves.numbers_of(claims["transaction_id"])
    has_half = numbers != ABSENT
    with_half = claims.filter(pa.array(has_half))
    claims_of_group = of_right_group(with_half, numbers[has_half], halves)
    believed = _believed(settled, halves, readable_from)
    requests = pa.concat_tables([believed, _requests(claims_of_group)])
    claim, message = _winners(*_pairs(requests, halves, fates))
    columns = {name: requests[name].to_numpy()[claim] for name in _REQUEST if name != "sequences"}
    effective = len(np.unique(claim[claim >= believed.num_rows]))
    return Deliveries(
        _facts(columns, message, halves, fates),
        _by_message(columns["state"], message, halves, ABSENT),
        _by_message(columns["op_version"], message, halves, ABSENT),
        _by_message(columns["ordinal"], message, halves, ABSENT),
        _by_message(columns["asked_us"], message, halves, UNSAID),
        _by_message(columns["by_service"], message, halves, default=1) == 1,
        claims_without_effect=with_half.num_rows - effective,
    )


def _requests(own: pa.Table) -> pa.Table:
    """Return claims of the right group as _REQUEST, in their order."""
    own = own.take(pa.array(_order(own)))
    states = pa.array([SETTLED_STATES.index(state) for state in DELIVERIES.values()])
    kinds = pc.index_in(own["kind"], value_set=pa.array(list(DELIVERIES)))
    columns = [
        own["transaction"], own["_commit_version"], own["ordinal"], states.take(kinds),
        microseconds(own["op_timestamp"]),
        pc.equal(own["source"], _DELAY_SERVICE).cast(pa.int64()), own["sequences"],
    ]  # fmt: skip
    return pa.table(columns, names=list(_REQUEST))


def _order(own: pa.Table) -> Integers:
    version, ordinal = own["_commit_version"].to_numpy(), own["ordinal"].to_numpy()
    order: Integers = np.lexsort((ordinal, version))
    same = (np.diff(version[order]) == 0) & (np.diff(ordinal[order]) == 0)
    if same.any():
        # Two claims in one place are a writer's fault; every column makes their order the same.
        texts = [_text(row) for row in own.to_pylist()]
        keys = list(zip(version.tolist(), ordinal.tolist(), texts, strict=True))
        order = np.array(sorted(range(len(keys)), key=keys.__getitem__), dtype=np.int64)
    return order


def _text(row: dict[str, Any]) -> list[str]:
    named = row["sequences"]
    others = [str(row[name]) for name in _TIE_BREAKERS]
    return [*others, str(named if named is None else tuple(named))]


def _believed(settled: pa.Table, halves: Halves, readable_from: int) -> pa.Table:
    """Return what the settled log says of claims that are gone, as if it were those claims."""
    facts = settled_facts(settled, halves)
    is_old = pc.and_(
        pc.less(facts["op_version"], readable_from),
        pc.is_in(facts["state"], value_set=pa.array([DELIVERED_NUMBER, RECALLED_NUMBER])),
    )
    for name in ("transaction", "op_version"):
        is_old = pc.and_(is_old, pc.not_equal(facts[name], ABSENT))
    # Without any sequence a fact says nothing, and null would mean all of them.
    is_old = pc.and_(is_old, pc.is_valid(settled["sequences"]))
    old = facts.append_column("sequences", settled["sequences"]).filter(is_old)
    old = old.sort_by([(name, "ascending") for name in ("op_version", "ordinal", "state")])
    count = old.num_rows
    columns = [old[name] for name in _REQUEST[:4]]
    columns += [pa.array(np.full(count, UNSAID)), pa.array(np.ones(count, dtype=np.int64))]
    return pa.table([*columns, old["sequences"]], names=list(_REQUEST))


def _pairs(requests: pa.Table, halves: Halves, fates: Fates) -> tuple[Integers, Integers]:
    """Pair each claim with each delayed message of a committed transaction that it names."""
    transaction, version, ordinal = (requests[name].to_numpy() for name in _REQUEST[:3])
    claim, message = _named(requests, transaction, halves)
    whole_claim, whole_message = _unnamed(requests, transaction, halves)
    claim, message = np.append(claim, whole_claim), np.append(message, whole_message)
    ended, place = fates.op_version[transaction], fates.ordinal[transaction]
    after = (version > ended) | ((version == ended) & (ordinal > place))
    counts = (fates.in_state(COMMITTED)[transaction] & after)[claim] & (message != ABSENT)
    counts &= halves.waits(message)
    return claim[counts], message[counts]


def _named(requests: pa.Table, transaction: Integers, halves: Halves) -> tuple[Integers, Integers]:
    lists = requests["sequences"].combine_chunks()
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    claim = np.repeat(np.arange(len(lists)), lengths)
    sequences = pc.fill_null(pc.list_flatten(lists), ABSENT).to_numpy()
    return claim, halves.find(transaction[claim], sequences)


def _unnamed(
    requests: pa.Table, transaction: Integers, halves: Halves
) -> tuple[Integers, Integers]:
    """Pair claims that name no sequence with all delayed messages of their transaction."""
    whole = np.flatnonzero(pc.is_null(requests["sequences"]).to_numpy())
    delayed = np.flatnonzero(halves.delayed)
    claims = pa.table({"transaction": transaction[whole], "claim": whole})
    messages = pa.table({"transaction": halves.transaction[delayed], "message": delayed})
    pairs = claims.join(messages, "transaction", join_type="inner")
    return pairs["claim"].to_numpy(), pairs["message"].to_numpy()


def _winners(claim: Integers, message: Integers) -> tuple[Integers, Integers]:
    """Keep the first claim of each message."""
    order = np.lexsort((claim, message))
    claim, message = claim[order], message[order]
    is_first = changes(message)
    return claim[is_first], message[is_first]


def _facts(
    columns: dict[str, Integers], message: Integers, halves: Halves, fates: Fates
) -> pa.Table:
    life = fates.life[columns["transaction"]]
    sequence = halves.rows["sequence"].take(pa.array(message))
    values = {**columns, "life": life, "sequence": sequence}
    return pa.table({name: values[name] for name in (*FACT_KEY, "sequence")})


def _by_message(values: Integers, message: Integers, halves: Halves, default: int) -> Integers:
    by_message = np.full(halves.rows.num_rows + 1, default, dtype=np.int64)
    by_message[message] = values
    return by_message
