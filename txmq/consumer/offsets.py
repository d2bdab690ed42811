"""Which offsets a topic has: its first ones, its next ones, and those of a moment. Reads only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow.compute as pc

from txmq.clock import timestamp
from txmq.columns import integers
from txmq.delta.storage import FilePart, Table
from txmq.store.store import Store
from txmq.store.topic import OFFSET_MARK

PLACE_COLUMNS = ("queue_id", "queue_offset")
NONE = -1


class TopicOffsets:
    """Looks at the newest version of a topic; a topic that is not there has none.

    Cost: one look at the log; `first` reads the places of the oldest files, `at` those of the
    files that are younger than the moment, and of one more.
    """

    def __init__(self, store: Store, topic: str) -> None:
        """Open the table where it is there."""
        table = store.table_at(f"topics/{topic}")
        self._table = table if table.exists() else None

    def queue_count(self) -> int:
        """One more than the highest queue that has messages."""
        return 0 if self._table is None else queue_count(self._table)

    def end(self, queues: Iterable[int]) -> dict[int, int]:
        """The offset that the next message of each queue gets; kept beyond retention."""
        table = self._table
        return {queue: 0 if table is None else end_offset(table, queue) for queue in queues}

    def first(self, queues: Iterable[int]) -> dict[int, int]:
        """The smallest offset of each queue that is there; the next one where none is."""
        ends = self.end(queues)
        if self._table is None:
            return ends
        wanted = {queue: 0 for queue, end in ends.items() if end}
        return {**ends, **live_offsets(self._table.parts(PLACE_COLUMNS), self._table, wanted)}

    def at(self, queues: Iterable[int], moment_ms: int) -> dict[int, int]:
        """The first offset of each queue that was stored at a moment or later; else the next."""
        ends = self.end(queues)
        if self._table is None:
            return ends
        found = _offsets_at(self._table, moment_ms)
        return {queue: found.get(queue, end) for queue, end in ends.items()}


def queue_count(table: Table) -> int:
    """One more than the highest queue that has messages in this version."""
    highest = (one.high for one in table.ranges("queue_id"))
    return 1 + max((high for high in highest if high is not None), default=NONE)


def end_offset(table: Table, queue_id: int) -> int:
    """The offset that the next message of a queue gets, as this version says it."""
    return table.mark(f"{OFFSET_MARK}{queue_id}") or 0


def live_offsets(
    parts: Iterable[FilePart], table: Table, wanted: Mapping[int, int]
) -> dict[int, int]:
    """For each queue the smallest offset from a given one on that is there, if any is."""
    found: dict[int, int] = {}
    for part in sorted(parts, key=lowest_offset):
        open_queues = [q for q in wanted if q not in found or found[q] > lowest_offset(part)]
        if not open_queues:
            break
        if not any(may_hold(part, queue, wanted[queue]) for queue in open_queues):
            continue
        for queue, offset in _smallest(table, part, open_queues, wanted).items():
            found[queue] = min(offset, found.get(queue, offset))
    return found


def _smallest(
    table: Table, part: FilePart, queues: Sequence[int], wanted: Mapping[int, int]
) -> dict[int, int]:
    rows = table.read([part.file], PLACE_COLUMNS)
    queue_ids, offsets = (integers(rows[name], NONE) for name in PLACE_COLUMNS)
    found = {}
    for queue in queues:
        own = offsets[(queue_ids == queue) & (offsets >= wanted[queue])]
        if len(own):
            found[queue] = int(own.min())
    return found


def lowest_offset(part: FilePart) -> int:
    """No row of the part has a smaller offset."""
    low = part.low.get("queue_offset")
    return 0 if low is None else int(low)


def may_hold(part: FilePart, queue_id: int, from_offset: int) -> bool:
    """Whether a part may have messages of a queue from an offset on; unknown bounds may."""
    low, high = part.low.get("queue_id"), part.high.get("queue_id")
    if (low is not None and queue_id < low) or (high is not None and queue_id > high):
        return False
    highest = part.high.get("queue_offset")
    return highest is None or bool(from_offset <= highest)


def _offsets_at(table: Table, moment_ms: int) -> dict[int, int]:
    """From the newest file back to the first that is all older: messages are stored in turn."""
    found: dict[int, int] = {}
    newest_first = sorted(
        table.ranges("op_version"), key=lambda one: (one.high is None, one.high or 0), reverse=True
    )
    for one in newest_first:
        rows = table.read([one.file], (*PLACE_COLUMNS, "store_timestamp"))
        rows = rows.filter(pc.greater_equal(rows["store_timestamp"], timestamp(moment_ms)))
        if not rows.num_rows and one.high is not None:
            break
        queue_ids, offsets = (integers(rows[name], NONE) for name in PLACE_COLUMNS)
        for queue in np.unique(queue_ids).tolist():
            lowest = int(offsets[queue_ids == queue].min())
            found[queue] = min(lowest, found.get(queue, lowest))
    return found
