"""Delayed messages that wait for their due time, in memory and sorted by it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from txmq.clock import timestamp
from txmq.columns import Groups, Integers, integers
from txmq.delta.schemas import MICROSECONDS_UTC, OP, SCHEDULE
from txmq.lifecycle import ClaimKind, ClaimSource

WAITING_COLUMNS = (
    "transaction_id", "sequence", "producer_group", "op_version", "deliver_timestamp",
)  # fmt: skip
# Each `add` makes a part, which costs less than sorting all; above this number they are merged.
MAX_PARTS = 32


@dataclass(slots=True)
class _Part:
    """Rows sorted by their due time; the first `taken` of them do not wait any more."""

    rows: pa.Table
    due_us: Integers
    taken: int = 0

    @property
    def remaining(self) -> pa.Table:
        return self.rows.slice(self.taken)


class WaitingMessages:
    """WAITING_COLUMNS of messages that are not delivered yet. Not safe for several threads."""

    def __init__(self) -> None:
        """Hold no message."""
        self._parts: list[_Part] = []

    def __len__(self) -> int:
        """The number of waiting messages."""
        return sum(part.rows.num_rows - part.taken for part in self._parts)

    def add(self, rows: pa.Table) -> None:
        """Add messages, in any order."""
        if rows.num_rows:
            self._parts.append(_part(rows))
        if len(self._parts) > MAX_PARTS:
            self._parts = [_part(pa.concat_tables([part.remaining for part in self._parts]))]

    def has_due(self, now_ms: int) -> bool:
        """Whether any message is due."""
        return any(part.due_us[part.taken] <= now_ms * 1000 for part in self._parts)

    def take_due(self, now_ms: int) -> pa.Table:
        """Remove and return the messages that are due, in the order of their due times."""
        due = [self._taken(part, now_ms * 1000) for part in self._parts]
        self._parts = [part for part in self._parts if part.taken < part.rows.num_rows]
        return ordered(pa.concat_tables([_EMPTY, *due]))

    def _taken(self, part: _Part, now_us: int) -> pa.Table:
        first, last = part.taken, int(np.searchsorted(part.due_us, now_us, side="right"))
        part.taken = max(first, last)
        return part.rows.slice(first, part.taken - first)


def ordered(rows: pa.Table) -> pa.Table:
    """Sort messages by due time; messages with the same due time by their commits."""
    keys = ("deliver_timestamp", "op_version", "transaction_id", "sequence")
    return rows.sort_by([(name, "ascending") for name in keys])


def deliver_claims(due: pa.Table, now_ms: int) -> pa.Table:
    """DELIVER claims: one row of the op log for each run of messages of one transaction.

    Within a run the sequence rises. So the claims keep the order of the due times, and publishing
    keeps the order of the claims.
    """
    place = Groups.of(due["transaction_id"]).place
    sequence = integers(due["sequence"], 0)
    begins = np.flatnonzero(_begins_a_run(place, sequence))
    ends = np.append(begins, due.num_rows)
    first = due.take(pa.array(begins))
    now = timestamp(now_ms)
    values = {
        "transaction_id": first["transaction_id"],
        "kind": _repeated(ClaimKind.DELIVER.value, len(begins)),
        "sequences": pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(sequence)),
        "source": _repeated(ClaimSource.DELAY.value, len(begins)),
        "producer_group": first["producer_group"],
        "op_timestamp": pa.repeat(pa.scalar(now, MICROSECONDS_UTC), len(begins)),
        "store_date": pa.repeat(pa.scalar(now.date()), len(begins)),
    }
    columns = [values.get(field.name, pa.nulls(len(begins), field.type)) for field in OP.columns]
    return pa.table(columns, schema=OP.columns)


def chunks(rows: pa.Table, size: int) -> Iterator[pa.Table]:
    """The rows in slices of `size`."""
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)


def _begins_a_run(
    place: Integers, sequence: Integers
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether each row begins a run: another transaction, or no higher sequence."""
    begins = np.ones(len(place), dtype=bool)
    begins[1:] = (place[1:] != place[:-1]) | (sequence[1:] <= sequence[:-1])
    return begins


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), count)


def _part(rows: pa.Table) -> _Part:
    rows = rows.select(list(WAITING_COLUMNS))
    due_us = integers(rows["deliver_timestamp"].cast(pa.int64()), 0)
    order = np.argsort(due_us, kind="stable")
    return _Part(rows.take(pa.array(order)).combine_chunks(), due_us[order])


_EMPTY = pa.schema([SCHEDULE.columns.field(name) for name in WAITING_COLUMNS]).empty_table()
