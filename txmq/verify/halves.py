"""The checker's picture of the half log: which transactions there are and what each holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.message.ids import HEAD_SEQUENCE
from txmq.verify.arrays import ABSENT, DIGEST, Flags, Integers, changes, positions, ranks, taken
from txmq.verify.tables import HALF_COLUMNS

# An append that was made twice may differ in these.
_MAY_DIFFER = ("born_timestamp",)


@dataclass(frozen=True, slots=True)
class Halves:
    """Transactions and messages as columns; a message's number is its place in `rows`.

    Attributes:
        ids: the transactions, each once; its place is its number.
        rows: HALF_COLUMNS but the transaction_id, and DIGEST; one row for each (transaction,
            sequence), sorted by them.
        transaction: the transaction's number of each row.
        carries: rows that are messages; heads of DataFrame transactions are not.
        agreed: rows whose doubles, if any, hold the same.
        once: rows that have no double at all.
        delayed: messages that a COMMIT alone does not show.
        complete: transactions whose messages are all there and agree.
        disputed: transactions whose rows name several groups.
        by_schedule: transactions whose halves retention took; the schedule stands for them.
        groups: the producer group of each transaction.
    """

    ids: pa.Array
    rows: pa.Table
    transaction: Integers
    carries: Flags
    agreed: Flags
    once: Flags
    delayed: Flags
    complete: Flags
    disputed: Flags
    by_schedule: Flags
    groups: pa.Array
    doubled_rows: int
    sequences: Integers

    def numbers_of(self, transaction_ids: pa.ChunkedArray) -> Integers:
        """Return the number of each transaction; ABSENT without a half."""
        return positions(transaction_ids, self.ids)

    def owners(self, messages: Integers) -> Integers:
        """Return the transaction of each message's number; ABSENT stays ABSENT."""
        return np.append(self.transaction, ABSENT)[messages]

    def waits(self, messages: Integers) -> Flags:
        """Flag which of these messages are delayed; ABSENT is not."""
        flags: Flags = np.append(self.delayed, [False])[messages]
        return flags

    def find(self, transactions: Integers, sequences: Integers) -> Integers:
        """Return the message's number for each pair; ABSENT without such a half."""
        keys = self._keys(self.transaction, self.rows["sequence"].to_numpy())
        wanted = self._keys(transactions, sequences)
        if len(keys) == 0:
            return np.full(len(wanted), ABSENT)
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        known = (transactions != ABSENT) & np.isin(sequences, self.sequences)
        return np.where(known & (keys[place] == wanted), place, ABSENT)

    def _keys(self, transactions: Integers, sequences: Integers) -> Integers:
        # Sequences go up to 2**56 and more, so they are numbered before both become one integer.
        width = len(self.sequences) + 1
        return transactions * width + np.searchsorted(self.sequences, sequences)


def halves_of(rows: pa.Table, stand_ins: pa.Table) -> Halves:
    """Build the picture from all half rows with an address, doubles included.

    `stand_ins` are rows in place of halves that retention took.
    """
    if stand_ins.num_rows:
        rows = pa.concat_tables([rows, stand_ins])
    addressed = pc.and_(pc.is_valid(rows["transaction_id"]), pc.is_valid(rows["sequence"]))
    rows = taken(rows, np.flatnonzero(addressed))
    ids = pc.unique(rows["transaction_id"])
    ids = ids.take(pc.array_sort_indices(ids))
    numbers = positions(rows["transaction_id"], ids)
    sequences = rows["sequence"].to_numpy()
    order = np.lexsort((sequences, numbers))
    is_first = changes(numbers[order]) | changes(sequences[order])
    if not is_first.all():
        order = np.lexsort((*_ranks(rows), sequences, numbers))
    first_rows = order[is_first]
    # `ids` and `transaction` say whose they are.
    distinct = taken(rows.drop_columns(["transaction_id"]), first_rows)
    owner = numbers[first_rows]
    agreed, once = _doubles(rows, order, is_first)
    carries = pc.is_valid(distinct["real_topic"]).to_numpy()
    disputed, groups = _groups(rows, numbers, len(ids))
    counted = np.bincount(owner, weights=carries, minlength=len(ids)).astype(np.int64)
    conflicting = np.bincount(owner, weights=~agreed, minlength=len(ids)) > 0
    complete = (counted == _promised(distinct, owner, len(ids))) & ~conflicting & ~disputed
    by_schedule = np.zeros(len(ids), dtype=bool)
    by_schedule[positions(stand_ins["transaction_id"], ids)] = True
    return Halves(
        ids, distinct, owner, carries, agreed, once, carries & _delayed(distinct), complete,
        disputed, by_schedule, groups, rows.num_rows - distinct.num_rows, np.unique(sequences),
    )  # fmt: skip


def _delayed(rows: pa.Table) -> Flags:
    has_delay = pc.or_(pc.is_valid(rows["delay_s"]), pc.is_valid(rows["deliver_timestamp"]))
    flags: Flags = has_delay.to_numpy()
    return flags


def _doubles(rows: pa.Table, order: Integers, is_first: Flags) -> tuple[Flags, Flags]:
    """Flag the first rows whose doubles hold the same, and those that have no double."""
    key_numbers = np.cumsum(is_first) - 1
    agreed = np.ones(int(is_first.sum()), dtype=bool)
    doubled_keys = key_numbers[~is_first]
    doubles, originals = order[~is_first], order[is_first][doubled_keys]
    once = np.ones(len(agreed), dtype=bool)
    once[doubled_keys] = False
    compared = [name for name in (*HALF_COLUMNS, *DIGEST) if name not in _MAY_DIFFER]
    for name in compared:
        agreed[doubled_keys[_differs(rows[name], doubles, originals)]] = False
    return agreed, once


def _differs(column: pa.ChunkedArray, left: Integers, right: Integers) -> Flags:
    first, second = column.take(pa.array(left)), column.take(pa.array(right))
    equal = pc.fill_null(pc.equal(first, second), False)  # noqa: FBT003
    both_null = pc.and_(pc.is_null(first), pc.is_null(second))
    result: Flags = ~pc.or_(equal, both_null).to_numpy()
    return result


def _ranks(rows: pa.Table) -> list[Integers]:
    """Rank contradicting rows: the smallest counts, in whichever order files are read."""
    names = ("deliver_timestamp", "delay_s", "message_id", "real_queue_id", "real_topic")
    return [ranks(rows[name]) for name in names]


def _groups(rows: pa.Table, numbers: Integers, count: int) -> tuple[Flags, pa.Array]:
    """Flag transactions whose rows name several groups; return the smallest group of each."""
    group_of_rows = pc.fill_null(rows["producer_group"], "")
    names = pc.unique(group_of_rows)
    names = names.take(pc.array_sort_indices(names))
    group_of_row = positions(group_of_rows, names)
    first, last = np.full(count, len(names)), np.full(count, ABSENT)
    np.minimum.at(first, numbers, group_of_row)
    np.maximum.at(last, numbers, group_of_row)
    return first != last, names.take(pa.array(first))


def _promised(distinct: pa.Table, owner: Integers, count: int) -> Integers:
    """Return the message_count of each head; ABSENT without one."""
    promised = np.full(count, ABSENT, dtype=np.int64)
    heads = distinct["sequence"].to_numpy() == HEAD_SEQUENCE
    counts: Any = pc.fill_null(distinct["message_count"], ABSENT).to_numpy()
    promised[owner[heads]] = counts[heads]
    return promised
