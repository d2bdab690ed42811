"""Rows of one topic table, each beside the message that it shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.verify.plain.addresses import RowIds, addresses_in
from txmq.verify.plain.arrays import ABSENT, Flags, Integers, integers, ranks, taken
from txmq.verify.plain.picture import Picture
from txmq.verify.plain.schedule import messages_of
from txmq.verify.plain.store import is_dead_letters, is_schedule
from txmq.verify.plain.tables import TOPIC_COLUMNS

ADDRESS = ("transaction_id", "sequence", "life")


@dataclass(frozen=True, slots=True)
class PlacedRows:
    """The rows of a table in the order of its queues.

    Attributes:
        rows: all their columns but the transaction_id.
        place: the number of the message of each row, ABSENT without one.
        known: rows that show a message.
        forgotten: rows whose halves retention took.
        forgotten_rows: ADDRESS of those, in any order.
        numbers: the transaction of each known row, ABSENT for the others.
        late: rows of transactions that were set aside; they have no place in the order.
        by_schedule: known rows of messages that only the schedule still holds.
    """

    name: str
    rows: pa.Table
    place: Integers
    known: Flags
    forgotten: Flags
    forgotten_rows: pa.Table
    numbers: Integers
    by_schedule: Flags
    late: Flags

    @classmethod
    def of(cls, name: str, picture: Picture) -> PlacedRows:
        """Read a table; its content becomes digests."""
        rows, halves = _read(name, picture), picture.halves
        order = _queue_order(rows)
        place = messages_of(rows, halves)
        known = np.append(halves.carries, [False])[place]
        by_schedule = np.append(halves.by_schedule, [False])[halves.owners(place)]
        if is_dead_letters(name):
            # The schedule tells nothing of an earlier life.
            known &= ~by_schedule
        forgotten = ~known & picture.forgotten(rows["transaction_id"])
        forgotten_rows = rows.select(list(ADDRESS)).filter(pa.array(forgotten))
        late_ids = pa.array(sorted(picture.pinned.late), pa.string())
        late = pc.is_in(rows["transaction_id"], value_set=late_ids).to_numpy()
        # From here on `numbers` says whose they are.
        rows = taken(rows.drop_columns(["transaction_id"]), order)
        numbers = np.where(known, halves.owners(place), ABSENT)
        return cls(
            name, rows, place[order], known[order], forgotten[order], forgotten_rows,
            numbers[order], (known & by_schedule)[order], late[order],
        )  # fmt: skip

    @property
    def row_ids(self) -> RowIds:
        """Makes topic/queue/offset and the message_id of a row, for the few rows that are shown."""
        return addresses_in(self.name, self.rows)

    def column(self, name: str) -> Integers:
        """A column as numbers; null is ABSENT."""
        return integers(self.rows[name])


def _read(name: str, picture: Picture) -> pa.Table:
    # The schedule is in memory already: the picture needs it.
    if is_schedule(name):
        return picture.schedule
    return picture.pinned.topics[name].rows(TOPIC_COLUMNS, content=True)


def _queue_order(rows: pa.Table) -> Integers:
    """By queue and offset; of equal ones by message, so that every reader names the same one."""
    queues, offsets = integers(rows["queue_id"]), integers(rows["queue_offset"])
    order: Integers = np.lexsort((offsets, queues))
    same = (np.diff(offsets[order]) == 0) & (np.diff(queues[order]) == 0)
    if same.any():
        order = np.lexsort((ranks(rows["message_id"]), offsets, queues))
    return order
