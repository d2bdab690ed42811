"""What the tables of a store should show, as the checker sees it; checks hold rows against it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.verify.arrays import ABSENT, Flags, Integers, as_texts, integers, positions
from txmq.verify.deliveries import Deliveries, deliveries_of
from txmq.verify.fates import Fates, fates_of
from txmq.verify.fold import COMMITTED
from txmq.verify.halves import Halves, halves_of
from txmq.verify.report import SHOWN_ROWS, Findings
from txmq.verify.schedule import (
    asked_due_us,
    begun_us,
    commits_of,
    committed_us,
    due_us,
    schedule_rows,
    stand_ins,
)
from txmq.verify.store import PinnedStore
from txmq.verify.tables import CLAIM_COLUMNS, FACT_COLUMNS, HALF_COLUMNS

# Makes the ids of the few rows that are shown, from their places.
RowIds = Callable[[Integers], list[str]]


@dataclass(frozen=True, slots=True)
class Picture:
    """Halves, fates and settled rows of one pinned store.

    Attributes:
        claims: those whose place in the op log can still be read.
        without_claims: transactions with claims whose place cannot; one more entry at the end.
        topic_names: topics that halves name; its place is the topic's number.
        topic_of, queue_of: of each message; ABSENT for a head without payload.
        schedule: its rows with their content.
        committed_us: when the COMMIT of each transaction was settled, and one more at the end.
        asked_due_us: when each delayed message is due by its half.
        due_us: the same, by the schedule where the half alone cannot tell. Times are UNSAID where
            nobody tells them.
    """

    pinned: PinnedStore
    drained: bool
    findings: Findings
    settled: pa.Table
    claims: pa.Table
    without_claims: Flags
    halves: Halves
    fates: Fates
    topic_names: pa.Array
    topic_of: Integers
    queue_of: Integers
    deliveries: Deliveries
    schedule: pa.Table
    committed_us: Integers
    asked_due_us: Integers
    due_us: Integers

    @classmethod
    def of(cls, pinned: PinnedStore, findings: Findings, *, drained: bool) -> Picture:
        """Read the schedule, settled, op and half, and fold."""
        first = pinned.op.readable_from
        schedule = schedule_rows(pinned)
        settled = pinned.settled.rows(FACT_COLUMNS)
        claims = pinned.op.appended(CLAIM_COLUMNS)
        rows = pinned.half.rows(HALF_COLUMNS, content=True)
        commits = commits_of(schedule, rows, pinned)
        halves = halves_of(rows, stand_ins(schedule, rows, pinned))
        # Halves hold them once more, in another order.
        del rows
        fates = fates_of(claims, halves, settled, pinned.half, first, commits)
        without_claims = _without_claims(pinned, claims, halves, fates)
        topic_names = pc.unique(halves.rows["real_topic"].drop_null())
        topic_of = positions(halves.rows["real_topic"], topic_names)
        queue_of = integers(halves.rows["real_queue_id"])
        deliveries = deliveries_of(claims, halves, fates, settled, first)
        committed = committed_us(settled, halves, fates)
        begun = begun_us(settled, halves, fates)
        asked_due = asked_due_us(halves, begun, committed, schedule)
        return cls(
            pinned, drained, findings, settled, claims, without_claims, halves, fates,
            topic_names, topic_of, queue_of, deliveries, schedule, committed, asked_due,
            due_us(asked_due, schedule, halves),
        )  # fmt: skip

    @property
    def committed(self) -> Flags:
        """Messages of transactions whose COMMIT took effect."""
        flags: Flags = self.fates.in_state(COMMITTED)[self.halves.transaction] & self.halves.carries
        return flags

    def number_of(self, topic: str) -> int:
        """Return the number of a topic; ABSENT if no half names it."""
        return int(positions(pa.chunked_array([[topic]]), self.topic_names)[0])

    def forgotten(self, transaction_ids: pa.ChunkedArray) -> Flags:
        """Flag rows of transactions whose halves retention took."""
        numbers = self.halves.numbers_of(transaction_ids)
        absent = np.append(self.halves.by_schedule, [True])[numbers]
        flags: Flags = absent & self.pinned.forgotten(transaction_ids).to_numpy()
        return flags

    def set_aside(self) -> Integers:
        """Return the numbers of the transactions that are set aside."""
        return self._numbers(self.pinned.set_aside)

    def late(self) -> Integers:
        """Return the numbers of those, and of the transactions that were set aside once."""
        return self._numbers(self.pinned.late)

    def _numbers(self, names: Collection[str]) -> Integers:
        ids = pa.chunked_array([pa.array(sorted(names), pa.string())])
        numbers: Integers = self.halves.numbers_of(ids)
        in_range: Integers = numbers[numbers != ABSENT]
        return in_range

    def report(self, invariant: str, row_ids: RowIds, wrong: Flags, detail: str) -> None:
        """Report that every flagged row breaks a promise."""
        places = np.flatnonzero(wrong)
        if len(places):
            shown = row_ids(places[:SHOWN_ROWS])
            self.findings.add(invariant, len(places), shown, detail)


def _without_claims(pinned: PinnedStore, claims: pa.Table, halves: Halves, fates: Fates) -> Flags:
    """Flag transactions with more live claims than can be read, or with older facts."""
    flags = np.zeros(len(halves.ids) + 1, dtype=bool)
    if pinned.op.readable_from == 0:
        return flags
    live = pinned.op.rows(["transaction_id"])
    counts = [_counts(rows["transaction_id"], halves) for rows in (live, claims)]
    flags[:-1] = (counts[0] > counts[1]) & ~halves.by_schedule
    flags[fates.believed["transaction"].to_numpy()] = True
    return flags


def _counts(transaction_ids: pa.ChunkedArray, halves: Halves) -> Integers:
    numbers = halves.numbers_of(transaction_ids)
    return np.bincount(numbers[numbers != ABSENT], minlength=len(halves.ids))


# --- the ids of rows that are shown ------------------------------------------------------------


def ids_in(column: pa.ChunkedArray | pa.Array) -> RowIds:
    """Take the values of a column as ids."""
    return lambda places: as_texts(column.take(pa.array(places)))


def addresses_in(topic: str, rows: pa.Table) -> RowIds:
    """Take topic/queue/offset and the message_id of each row as ids."""
    return lambda places: addresses_of(topic, rows.take(pa.array(places)))


def addresses_of(topic: str, rows: pa.Table) -> list[str]:
    """Return topic/queue/offset and the message_id of each row."""
    queue, offset = (rows[key].cast(pa.string()) for key in ("queue_id", "queue_offset"))
    address = pc.binary_join_element_wise(
        pa.scalar(topic), queue, offset, "/", null_handling="replace", null_replacement="?"
    )
    named = pc.binary_join_element_wise(
        address, rows["message_id"], " ", null_handling="replace", null_replacement="?"
    )
    return as_texts(named)
