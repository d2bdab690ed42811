"""Settles DELIVER and RECALL claims by vectorised code; mirrors `lifecycle.fold_deliveries`.

A claim names messages of one transaction. Of several claims about one message the first counts.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.clock import timestamp
from txmq.columns import (
    Flags,
    Groups,
    Integers,
    equal_pairs,
    find_pairs,
    first_of_each,
    flags,
    integers,
    list_items,
)
from txmq.delta.files import UnreadableFile
from txmq.delta.schemas import MICROSECONDS_UTC, SETTLED
from txmq.lifecycle import DELIVERY_STATES, DeliveryState, TransactionState
from txmq.store.half import HalfLog
from txmq.store.schedule import ScheduleLog, readable_delayed_messages
from txmq.store.settled import SettledLog
from txmq.store.store_clock import StoreClock

_KINDS = pa.array([kind.value for kind in DELIVERY_STATES])
_STATES = pa.array([state.value for state in DELIVERY_STATES.values()])
_COMMIT_COLUMNS = ["transaction_id", "state", "op_version", "ordinal", "life"]
NOT_FOUND = -1


@dataclass(frozen=True, slots=True)
class _Commits:
    """The COMMIT of each transaction, if there is one: its place in the op log and its life."""

    is_there: Flags
    op_version: Integers
    ordinal: Integers
    life: Integers


@dataclass(frozen=True, slots=True)
class _Named:
    """Messages that claims name: the claim's row, its transaction's number, the sequence."""

    claim: Integers
    place: Integers
    sequence: Integers

    def filter(self, kept: Flags | Integers) -> _Named:
        return _Named(self.claim[kept], self.place[kept], self.sequence[kept])


def is_about_delivery(claims: pa.Table) -> pa.ChunkedArray:
    """Whether each claim is DELIVER or RECALL."""
    return pc.is_in(claims["kind"], value_set=_KINDS)


def are_ended(messages: pa.Table, settled: SettledLog, through: int | None = None) -> Flags:
    """Whether each message is DELIVERED or RECALLED.

    Args:
        messages: transaction_id and sequence.
        settled: a pinned log.
        through: ignore the facts of claims above this version of the op log.

    Reads: settled. Commits: 0.
    """
    ids = pc.unique(messages["transaction_id"])
    facts = settled.deliveries_of(ids)
    if through is not None:
        facts = facts.filter(pc.less_equal(facts["op_version"], through))
    return _are_among(_addresses(messages, ids), facts, ids)


def _addresses(messages: pa.Table, ids: pa.Array) -> tuple[Integers, Integers]:
    """The number in `ids` of each message's transaction, and the sequence of each message."""
    place = integers(pc.index_in(messages["transaction_id"], value_set=ids), NOT_FOUND)
    return place, integers(messages["sequence"], NOT_FOUND)


def _are_among(addresses: tuple[Integers, Integers], deliveries: pa.Table, ids: pa.Array) -> Flags:
    """Whether each message is named by one of these facts."""
    row, sequence = list_items(deliveries["sequences"])
    place = integers(pc.index_in(deliveries["transaction_id"], value_set=ids), NOT_FOUND)[row]
    is_among: Flags = find_pairs(addresses, (place, sequence)) != NOT_FOUND
    return is_among


def settle_deliveries(
    claims: pa.Table,
    ends: pa.Table,
    logs: tuple[HalfLog, ScheduleLog | None, SettledLog],
    now_ms: int,
    given_up: Collection[str] = (),
) -> tuple[pa.Table, dict[str, str]]:
    """The facts, as SETTLED, of DELIVER and RECALL claims, and what cannot be decided.

    Args:
        claims: CLAIM_COLUMNS and `_commit_version`, of these two kinds only.
        ends: the facts about whole transactions of the same range of claims.
        logs: half, schedule and settled, pinned; half is not older than the range.
        now_ms: the settled_timestamp of the facts.
        given_up: transactions whose unreadable messages count as missing.

    Returns: the facts, and by transaction why its claims must wait: a file that may hold messages
        that they name cannot be read.

    Reads: half, the schedule, settled. Commits: 0.
    """
    if claims.num_rows == 0:
        return SETTLED.columns.empty_table(), {}
    half, schedule, settled = logs
    ids = pc.unique(claims["transaction_id"])
    messages, unreadable = readable_delayed_messages(half, schedule, ids)
    problems = _undecidable(claims, messages, unreadable, given_up)
    if problems:
        waiting = pa.array(list(problems), pa.string())
        claims, messages = (
            rows.filter(pc.invert(pc.is_in(rows["transaction_id"], value_set=waiting)))
            for rows in (claims, messages)
        )
    return _delivered(claims, messages, ends, settled, now_ms), problems


def _undecidable(
    claims: pa.Table,
    messages: pa.Table,
    unreadable: Sequence[UnreadableFile],
    given_up: Collection[str],
) -> dict[str, str]:
    """The transactions of which a claim names messages that only an unreadable file may hold."""
    problems: dict[str, str] = {}
    if not unreadable:
        return problems
    by_id = Groups.of(claims["transaction_id"])
    claim, sequence = list_items(claims["sequences"])
    row = find_pairs((by_id.place[claim], sequence), _addresses(messages, by_id.keys))
    lacks = flags(pc.is_null(claims["sequences"])).copy()
    lacks[claim[row == NOT_FOUND]] = True
    ids = pc.unique(claims["transaction_id"].filter(pa.array(lacks)))
    for file in unreadable:
        covered = ids.filter(pa.array(file.covers(ids))).to_pylist()
        problems |= {name: file.problem for name in covered if name not in given_up}
    return problems


def _delivered(
    claims: pa.Table, messages: pa.Table, ends: pa.Table, settled: SettledLog, now_ms: int
) -> pa.Table:
    if claims.num_rows == 0:
        return SETTLED.columns.empty_table()
    by_id = Groups.of(claims["transaction_id"])
    commits = _commits(by_id.keys, ends, settled)
    addresses = _addresses(messages, by_id.keys)
    named = _named(claims, by_id, addresses)
    row = find_pairs((named.place, named.sequence), addresses)
    groups = messages["producer_group"].take(pa.array(row, mask=row == NOT_FOUND))
    named = named.filter(_fits(named, claims, groups, commits))
    deliveries = settled.deliveries_of(by_id.keys)
    named = named.filter(~_are_among((named.place, named.sequence), deliveries, by_id.keys))
    return _facts(claims, _first(named, claims), commits, now_ms)


def _commits(ids: pa.Array, ends: pa.Table, settled: SettledLog) -> _Commits:
    earlier = settled.facts_of(ids).select(_COMMIT_COLUMNS)
    facts = pa.concat_tables([earlier, ends.select(_COMMIT_COLUMNS)])
    facts = facts.filter(pc.equal(facts["state"], TransactionState.COMMITTED.value))
    row = integers(pc.index_in(ids, value_set=facts["transaction_id"].combine_chunks()), NOT_FOUND)
    by_id = facts.take(pa.array(row, mask=row == NOT_FOUND))
    return _Commits(
        row != NOT_FOUND,
        integers(by_id["op_version"], 0),
        integers(by_id["ordinal"], 0),
        integers(by_id["life"], 0),
    )


def _named(claims: pa.Table, by_id: Groups, addresses: tuple[Integers, Integers]) -> _Named:
    """Each message that each claim names; a claim without sequences names all delayed messages."""
    claim, sequence = list_items(claims["sequences"])
    by_sequence = _Named(claim, by_id.place[claim], sequence)
    without = np.flatnonzero(flags(pc.is_null(claims["sequences"])))
    place, sequence = addresses
    claim, message = equal_pairs(by_id.place[without], place, len(by_id.keys))
    of_all = _Named(without[claim], place[message], sequence[message])
    return _Named(
        np.concatenate([by_sequence.claim, of_all.claim]),
        np.concatenate([by_sequence.place, of_all.place]),
        np.concatenate([by_sequence.sequence, of_all.sequence]),
    )


def _fits(named: _Named, claims: pa.Table, groups: pa.ChunkedArray, commits: _Commits) -> Flags:
    """Whether each named message is delayed, of the claim's group, and committed before the claim.

    `groups` are the producer groups of the named messages; null for a message that is not delayed.
    """
    same_group = pc.equal(claims["producer_group"].take(pa.array(named.claim)), groups)
    version = integers(claims["_commit_version"], 0)[named.claim]
    ordinal = integers(claims["ordinal"], 0)[named.claim]
    committed = commits.op_version[named.place]
    is_later = (version > committed) | (
        (version == committed) & (ordinal > commits.ordinal[named.place])
    )
    is_same_group = flags(pc.fill_null(same_group, False))  # noqa: FBT003
    fits: Flags = is_same_group & is_later & commits.is_there[named.place]
    return fits


def _first(named: _Named, claims: pa.Table) -> _Named:
    """Keep the first claim about each message, in the order of the claims."""
    version, ordinal = integers(claims["_commit_version"], 0), integers(claims["ordinal"], 0)
    order = np.lexsort((ordinal[named.claim], version[named.claim]))
    ordered = named.filter(order)
    return ordered.filter(first_of_each(ordered.place, ordered.sequence))


def _facts(claims: pa.Table, named: _Named, commits: _Commits, now_ms: int) -> pa.Table:
    """One fact for each claim that took effect, with the messages for which it did."""
    named = named.filter(np.lexsort((named.sequence, named.claim)))
    rows, begins = np.unique(named.claim, return_index=True)
    ends = np.append(begins, len(named.claim))
    sequences = pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(named.sequence))
    claims = claims.take(pa.array(rows))
    now = pa.scalar(timestamp(now_ms), MICROSECONDS_UTC)
    columns = {
        **{name: claims[name] for name in SETTLED.columns.names if name in claims.column_names},
        "state": _STATES.take(pc.index_in(claims["kind"], value_set=_KINDS).combine_chunks()),
        "sequences": sequences,
        "op_version": claims["_commit_version"],
        "settled_timestamp": pa.repeat(now, len(rows)),
        "life": pa.array(commits.life[named.place[begins]], pa.int32()),
        "store_date": pa.repeat(pa.scalar(timestamp(now_ms).date()), len(rows)),
    }
    return pa.table([columns[name] for name in SETTLED.columns.names], schema=SETTLED.columns)


def reach_deliveries(clock: StoreClock, facts: pa.Table) -> None:
    """Let the clock reach the times of deliveries: that of their service may be a little ahead."""
    is_delivered = pc.equal(facts["state"], DeliveryState.DELIVERED.value)
    newest_us = pc.max(facts.filter(is_delivered)["op_timestamp"].cast(pa.int64())).as_py()
    if newest_us is not None:
        clock.not_beyond(-(-newest_us // 1000))
