"""Messages that wait for their time, sorted by it; a few sorted parts, so that adding is cheap."""

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
MAX_PARTS = 32


@dataclass(slots=True)
class _Part:
    rows: pa.Table
    due_us: Integers
    taken: int = 0

    @property
    def left(self) -> pa.Table:
        return self.rows.slice(self.taken)


class DueMessages:
    """WAITING_COLUMNS of messages that are not due yet. Not safe for several threads."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._parts: list[_Part] = []

    def __len__(self) -> int:
        """How many wait."""
        return sum(part.rows.num_rows - part.taken for part in self._parts)

    def add(self, rows: pa.Table) -> None:
        """Messages in any order."""
        if rows.num_rows:
            self._parts.append(_part(rows))
        if len(self._parts) > MAX_PARTS:
            self._parts = [_part(pa.concat_tables([part.left for part in self._parts]))]

    def has_due(self, now_ms: int) -> bool:
        """Whether the time of any has come."""
        return any(part.due_us[part.taken] <= now_ms * 1000 for part in self._parts)

    def take_due(self, now_ms: int) -> pa.Table:
        """Those whose time has come, in its order; they do not wait any more."""
        due = [self._taken(part, now_ms * 1000) for part in self._parts]
        self._parts = [part for part in self._parts if part.taken < part.rows.num_rows]
        return ordered(pa.concat_tables([_EMPTY, *due]))

    def _taken(self, part: _Part, now_us: int) -> pa.Table:
        first, last = part.taken, int(np.searchsorted(part.due_us, now_us, side="right"))
        part.taken = max(first, last)
        return part.rows.slice(first, part.taken - first)


def ordered(rows: pa.Table) -> pa.Table:
    """In the order in which they are due; of one time, in the order of their commits."""
    by = ("deliver_timestamp", "op_version", "transaction_id", "sequence")
    return rows.sort_by([(name, "ascending") for name in by])


def deliver_claims(due: pa.Table, now_ms: int) -> pa.Table:
    """Rows of the op log, one for each run of messages of one transaction in rising sequence.

    So claims keep the order in which messages are due, and publishing keeps that of claims.
    """
    place = Groups.of(due["transaction_id"]).place
    sequence = integers(due["sequence"], 0)
    begins = np.flatnonzero(_begins_a_run(place, sequence))
    ends = np.append(begins, due.num_rows)
    first = due.take(pa.array(begins))
    now = timestamp(now_ms)
    given = {
        "transaction_id": first["transaction_id"],
        "kind": _same(ClaimKind.DELIVER.value, len(begins)),
        "sequences": pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(sequence)),
        "source": _same(ClaimSource.DELAY.value, len(begins)),
        "producer_group": first["producer_group"],
        "op_timestamp": pa.repeat(pa.scalar(now, MICROSECONDS_UTC), len(begins)),
        "store_date": pa.repeat(pa.scalar(now.date()), len(begins)),
    }
    columns = [given.get(field.name, pa.nulls(len(begins), field.type)) for field in OP.columns]
    return pa.table(columns, schema=OP.columns)


def chunks(rows: pa.Table, size: int) -> Iterator[pa.Table]:
    """The rows in their order, `size` at a time."""
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)


def _begins_a_run(
    place: Integers, sequence: Integers
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    begins = np.ones(len(place), dtype=bool)
    begins[1:] = (place[1:] != place[:-1]) | (sequence[1:] <= sequence[:-1])
    return begins


def _same(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), count)


def _part(rows: pa.Table) -> _Part:
    rows = rows.select(list(WAITING_COLUMNS))
    due_us = integers(rows["deliver_timestamp"].cast(pa.int64()), 0)
    order = np.argsort(due_us, kind="stable")
    return _Part(rows.take(pa.array(order)).combine_chunks(), due_us[order])


_EMPTY = pa.schema([SCHEDULE.columns.field(name) for name in WAITING_COLUMNS]).empty_table()
