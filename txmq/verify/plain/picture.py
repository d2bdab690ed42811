"""What the tables of a store should show, as the checker sees it; checks hold rows against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.verify.plain.fates import Fates, fates_of
from txmq.verify.plain.findings import Findings
from txmq.verify.plain.fold import COMMITTED
from txmq.verify.plain.halves import ABSENT, Flags, Halves, Integers, halves_of, positions
from txmq.verify.plain.tables import CLAIM_COLUMNS, FACT_COLUMNS, HALF_COLUMNS, PinnedStore

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

    @classmethod
    def of(cls, pinned: PinnedStore, *, drained: bool) -> Picture:
        """Read settled, op and half, and fold."""
        settled = pinned.settled.rows(FACT_COLUMNS)
        claims = pinned.op.appended(CLAIM_COLUMNS)
        halves = halves_of(pinned.half.rows(HALF_COLUMNS, content=True))
        fates = fates_of(claims, halves, settled, pinned.half, pinned.op.readable_from)
        without_claims = _without_claims(pinned, claims, halves, fates)
        topic_names = pc.unique(halves.rows["real_topic"].drop_null())
        topic_of = positions(halves.rows["real_topic"], topic_names)
        queue_of = integers(halves.rows["real_queue_id"])
        return cls(
            pinned, drained, Findings(), settled, claims, without_claims, halves, fates,
            topic_names, topic_of, queue_of,
        )  # fmt: skip

    @property
    def committed(self) -> Flags:
        """Messages that must become visible."""
        flags: Flags = self.fates.in_state(COMMITTED)[self.halves.transaction] & self.halves.carries
        return flags

    def number_of(self, topic: str) -> int:
        """The number of a topic, ABSENT where no half names it."""
        return int(positions(pa.chunked_array([[topic]]), self.topic_names)[0])

    def forgotten(self, transaction_ids: pa.ChunkedArray) -> Flags:
        """Rows without a half that retention explains."""
        absent = self.halves.numbers_of(transaction_ids) == ABSENT
        flags: Flags = absent & self.pinned.forgotten(transaction_ids).to_numpy()
        return flags

    def report(self, invariant: str, row_ids: RowIds, wrong: Flags, detail: str) -> None:
        """Every flagged row breaks a promise."""
        places = np.flatnonzero(wrong)
        if len(places):
            shown = row_ids(places[: self.findings.room(invariant)])
            self.findings.add(invariant, len(places), shown, detail)


def _without_claims(pinned: PinnedStore, claims: pa.Table, halves: Halves, fates: Fates) -> Flags:
    """Transactions with more live claims than can be read, or with facts older than those."""
    flags = np.zeros(len(halves.ids) + 1, dtype=bool)
    if pinned.op.readable_from == 0:
        return flags
    live = pinned.op.rows(["transaction_id"])
    counts = [_counts(rows["transaction_id"], halves) for rows in (live, claims)]
    flags[:-1] = counts[0] > counts[1]
    flags[fates.believed["transaction"].to_numpy()] = True
    return flags


def _counts(transaction_ids: pa.ChunkedArray, halves: Halves) -> Integers:
    numbers = halves.numbers_of(transaction_ids)
    return np.bincount(numbers[numbers != ABSENT], minlength=len(halves.ids))


def ids_in(column: pa.ChunkedArray | pa.Array) -> RowIds:
    """The values of a column are the ids."""
    return lambda places: [str(value) for value in column.take(pa.array(places)).to_pylist()]


def integers(column: pa.ChunkedArray) -> Integers:
    """A column as numbers; null is ABSENT."""
    result: Integers = pc.fill_null(column, ABSENT).to_numpy()
    return result
