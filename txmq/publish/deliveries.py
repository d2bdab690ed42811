"""Settling claims about delayed messages by columns; mirrors `lifecycle.fold_deliveries`.

A claim names messages of one transaction, and of several claims about a message the first counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txmq.clock import timestamp
from txmq.columns import (
    Groups,
    Integers,
    equal_pairs,
    find_pairs,
    first_of_each,
    flags,
    integers,
    list_items,
)
from txmq.delta.schemas import MICROSECONDS_UTC, SETTLED
from txmq.lifecycle import DELIVERY_STATES, TransactionState
from txmq.store.half import HalfLog
from txmq.store.schedule import ScheduleLog, delayed_messages
from txmq.store.settled import SettledLog

_KINDS = pa.array([kind.value for kind in DELIVERY_STATES])
_STATES = pa.array([state.value for state in DELIVERY_STATES.values()])
_COMMIT_COLUMNS = ["transaction_id", "state", "op_version", "ordinal", "life"]
NOT_FOUND = -1


@dataclass(frozen=True, slots=True)
class _Commits:
    """The COMMIT of each transaction: its place in the order and its life; found or not."""

    is_there: npt.NDArray[np.bool_]
    op_version: Integers
    ordinal: Integers
    life: Integers


@dataclass(frozen=True, slots=True)
class _Named:
    """Messages that claims name: the claim's row number, its transaction, the sequence."""

    claim: Integers
    place: Integers
    sequence: Integers

    def filter(self, kept: npt.NDArray[np.bool_] | Integers) -> _Named:
        return _Named(self.claim[kept], self.place[kept], self.sequence[kept])


def is_about_delivery(claims: pa.Table) -> pa.ChunkedArray:
    """Which claims are DELIVER or RECALL."""
    return pc.is_in(claims["kind"], value_set=_KINDS)


def are_ended(
    messages: pa.Table, settled: SettledLog, through: int | None = None
) -> npt.NDArray[np.bool_]:
    """Which of `messages` (transaction_id, sequence) are DELIVERED or RECALLED.

    `through`: by claims up to this version of the op log only.
    """
    ids = pc.unique(messages["transaction_id"])
    facts = settled.deliveries_of(ids)
    if through is not None:
        facts = facts.filter(pc.less_equal(facts["op_version"], through))
    return _are_among(_addresses(messages, ids), facts, ids)


def _addresses(messages: pa.Table, ids: pa.Array) -> tuple[Integers, Integers]:
    """The number of each message's transaction in `ids`, and its sequence."""
    place = integers(pc.index_in(messages["transaction_id"], value_set=ids), NOT_FOUND)
    return place, integers(messages["sequence"], NOT_FOUND)


def _are_among(
    addresses: tuple[Integers, Integers], deliveries: pa.Table, ids: pa.Array
) -> npt.NDArray[np.bool_]:
    """Which messages are named by facts about delayed messages."""
    row, sequence = list_items(deliveries["sequences"])
    place = integers(pc.index_in(deliveries["transaction_id"], value_set=ids), NOT_FOUND)[row]
    is_among: npt.NDArray[np.bool_] = find_pairs(addresses, (place, sequence)) != NOT_FOUND
    return is_among


def settle_deliveries(
    claims: pa.Table,
    ends: pa.Table,
    logs: tuple[HalfLog, ScheduleLog | None, SettledLog],
    now_ms: int,
) -> pa.Table:
    """The facts, as SETTLED, that DELIVER and RECALL claims lead to.

    Args:
        claims: CLAIM_COLUMNS and `_commit_version`, of these two kinds only.
        ends: facts about transactions that come from the same range of claims.
        logs: half and settled as they are pinned; half not older than the range.
        now_ms: when it is settled.
    """
    if claims.num_rows == 0:
        return SETTLED.columns.empty_table()
    half, schedule, settled = logs
    by_id = Groups.of(claims["transaction_id"])
    messages = delayed_messages(half, schedule, by_id.keys)
    commits = _commits(by_id.keys, ends, settled)
    addresses = _addresses(messages, by_id.keys)
    named = _named(claims, by_id, addresses)
    at = find_pairs((named.place, named.sequence), addresses)
    groups = messages["producer_group"].take(pa.array(at, mask=at == NOT_FOUND))
    named = named.filter(_fits(named, claims, groups, commits))
    deliveries = settled.deliveries_of(by_id.keys)
    named = named.filter(~_are_among((named.place, named.sequence), deliveries, by_id.keys))
    return _facts(claims, _first(named, claims), commits, now_ms)


def _commits(ids: pa.Array, ends: pa.Table, settled: SettledLog) -> _Commits:
    known = settled.facts_of(ids).select(_COMMIT_COLUMNS)
    found = pa.concat_tables([known, ends.select(_COMMIT_COLUMNS)])
    found = found.filter(pc.equal(found["state"], TransactionState.COMMITTED.value))
    place = integers(
        pc.index_in(ids, value_set=found["transaction_id"].combine_chunks()), NOT_FOUND
    )
    taken = found.take(pa.array(place, mask=place == NOT_FOUND))
    return _Commits(
        place != NOT_FOUND,
        integers(taken["op_version"], 0),
        integers(taken["ordinal"], 0),
        integers(taken["life"], 0),
    )


def _named(claims: pa.Table, by_id: Groups, addresses: tuple[Integers, Integers]) -> _Named:
    """Each message that each claim names; a claim without sequences names all of them."""
    listed, sequence = list_items(claims["sequences"])
    some = _Named(listed, by_id.place[listed], sequence)
    for_all = np.flatnonzero(flags(pc.is_null(claims["sequences"])))
    owner, every_sequence = addresses
    claim, message = equal_pairs(by_id.place[for_all], owner, len(by_id.keys))
    every = _Named(for_all[claim], owner[message], every_sequence[message])
    return _Named(
        np.concatenate([some.claim, every.claim]),
        np.concatenate([some.place, every.place]),
        np.concatenate([some.sequence, every.sequence]),
    )


def _fits(
    named: _Named, claims: pa.Table, groups: pa.ChunkedArray, commits: _Commits
) -> npt.NDArray[np.bool_]:
    """Whether the message is a delayed one of the claim's group, committed before the claim.

    `groups` are those of the delayed messages that are named; null where it is none.
    """
    same = pc.equal(claims["producer_group"].take(pa.array(named.claim)), groups)
    version = integers(claims["_commit_version"], 0)[named.claim]
    ordinal = integers(claims["ordinal"], 0)[named.claim]
    committed = commits.op_version[named.place]
    is_later = (version > committed) | (
        (version == committed) & (ordinal > commits.ordinal[named.place])
    )
    is_own = flags(pc.fill_null(same, False))  # noqa: FBT003
    fits: npt.NDArray[np.bool_] = is_own & is_later & commits.is_there[named.place]
    return fits


def _first(named: _Named, claims: pa.Table) -> _Named:
    """Of each message the first claim, in the order of claims."""
    version, ordinal = integers(claims["_commit_version"], 0), integers(claims["ordinal"], 0)
    order = np.lexsort((ordinal[named.claim], version[named.claim]))
    ordered = named.filter(order)
    return ordered.filter(first_of_each(ordered.place, ordered.sequence))


def _facts(claims: pa.Table, named: _Named, commits: _Commits, now_ms: int) -> pa.Table:
    """One row a claim, with the messages for which it counted."""
    named = named.filter(np.lexsort((named.sequence, named.claim)))
    rows, begins = np.unique(named.claim, return_index=True)
    ends = np.append(begins, len(named.claim))
    took = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(named.sequence))
    chosen = claims.take(pa.array(rows))
    now = pa.scalar(timestamp(now_ms), MICROSECONDS_UTC)
    columns = {
        **{name: chosen[name] for name in SETTLED.columns.names if name in claims.column_names},
        "state": _STATES.take(pc.index_in(chosen["kind"], value_set=_KINDS).combine_chunks()),
        "sequences": took,
        "op_version": chosen["_commit_version"],
        "settled_timestamp": pa.repeat(now, len(rows)),
        "life": pa.array(commits.life[named.place[begins]], pa.int32()),
        "store_date": pa.repeat(pa.scalar(timestamp(now_ms).date()), len(rows)),
    }
    return pa.table([columns[name] for name in SETTLED.columns.names], schema=SETTLED.columns)
