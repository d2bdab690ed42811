"""How rows are named in a report: by an id, or by topic/queue/offset and message_id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.verify.plain.arrays import Integers, integers
from txmq.verify.plain.tables import PinnedTable

# Makes the ids of the few rows that are shown, from their places.
RowIds = Callable[[Integers], list[str]]
_COLUMNS = ("queue_id", "queue_offset", "message_id")


def ids_in(column: pa.ChunkedArray | pa.Array) -> RowIds:
    """The values of a column are the ids."""
    return lambda places: [str(value) for value in column.take(pa.array(places)).to_pylist()]


def addresses_in(topic: str, rows: pa.Table) -> RowIds:
    """topic/queue/offset and the message_id of each row are the ids."""
    return lambda places: _addresses(topic, rows.take(pa.array(places)))


@dataclass(frozen=True, slots=True)
class TopicAddresses:
    """Names rows of a topic whose message_id was not kept; reads the topic once more for them.

    Attributes:
        queue, offset: of all rows of the topic, sorted by them.
    """

    topic: str
    table: PinnedTable
    queue: Integers
    offset: Integers

    def row_ids(self, places: Integers) -> list[str]:
        """As `addresses_in`."""
        rows = self._rows_at(self.queue[places], self.offset[places])
        return [rows[self._key(place)][self._equal_before(place)] for place in places.tolist()]

    def _rows_at(self, queues: Integers, offsets: Integers) -> dict[tuple[int, int], list[str]]:
        """The addresses of all rows in these places, those of the smaller message_id first."""
        rows: dict[tuple[int, int], list[tuple[str, str]]] = defaultdict(list)
        for batch in self.table.batches(_COLUMNS):
            queue, offset = integers(batch["queue_id"]), integers(batch["queue_offset"])
            near = np.flatnonzero(np.isin(queue, queues) & np.isin(offset, offsets))
            shown = pa.Table.from_batches([batch.take(pa.array(near))])
            named = zip(
                pc.fill_null(shown["message_id"], "").to_pylist(), _addresses(self.topic, shown),
                strict=True,
            )  # fmt: skip
            for key, name in zip(zip(queue[near], offset[near], strict=True), named, strict=True):
                rows[key].append(name)
        return {key: [address for _, address in sorted(names)] for key, names in rows.items()}

    def _key(self, place: int) -> tuple[int, int]:
        return int(self.queue[place]), int(self.offset[place])

    def _equal_before(self, place: int) -> int:
        first = place
        while first and self._key(first - 1) == self._key(place):
            first -= 1
        return place - first


def _addresses(topic: str, rows: pa.Table) -> list[str]:
    queue, offset = (rows[key].cast(pa.string()) for key in ("queue_id", "queue_offset"))
    address = pc.binary_join_element_wise(
        pa.scalar(topic), queue, offset, "/", null_handling="replace", null_replacement="?"
    )
    named = pc.binary_join_element_wise(
        address, rows["message_id"], " ", null_handling="replace", null_replacement="?"
    )
    return [str(row_id) for row_id in named.to_pylist()]
