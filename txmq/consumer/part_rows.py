"""The rows of parts of data files: indexes by queue and offset, and decoded windows of rows.

Memory is bounded in bytes: a part that is larger than a window is decoded window by window, and
only some windows are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txmq.columns import Integers, integers
from txmq.consumer.offsets import NONE, POSITION_COLUMNS
from txmq.delta.files import FilePart
from txmq.delta.storage import Table
from txmq.message.erased import are_erased
from txmq.message.received import MESSAGE_COLUMNS

RUN_ROWS = 1024
# The reader reads the bodies of smaller files together with their offsets.
SMALL_FILE_BYTES = 16 * 1024 * 1024
WINDOW_BYTES = 32 * 1024 * 1024
KEPT_BYTES = 64 * 1024 * 1024
# At least so many windows are kept: queues may read in different ones.
KEPT_WINDOWS = 2
KEPT_INDEXES = 256
# Each one is an open file.
KEPT_CURSORS = 4


class MessageMask(Protocol):
    """Says which messages pass a filter; `parse_filter` makes it of an expression."""

    @property
    def text(self) -> str:
        """The text of the expression."""
        ...

    def mask(self, table: pa.Table) -> pa.Array:
        """One boolean for each row; the columns are MESSAGE_COLUMNS."""
        ...


@dataclass(frozen=True, slots=True)
class PartIndex:
    """The rows of a part of a file by queue and offset.

    Attributes:
        by_queue: for each queue its offsets, sorted, and the numbers of the rows that have them.
        order: the numbers of all rows, queue by queue.
    """

    by_queue: Mapping[int, tuple[Integers, Integers]]
    order: Integers

    @classmethod
    def of(cls, rows: pa.Table) -> PartIndex:
        """The index of rows with POSITION_COLUMNS, in the order of their file."""
        queue_ids, offsets = (integers(rows[name], NONE) for name in POSITION_COLUMNS)
        order = np.lexsort((offsets, queue_ids))
        names, first = np.unique(queue_ids[order], return_index=True)
        rows_by_queue = zip(names, np.split(order, first[1:]), strict=True)
        by_queue = {int(name): (offsets[numbers], numbers) for name, numbers in rows_by_queue}
        return cls(by_queue, order)

    def run(self, queue_id: int, offset: int) -> Integers | None:
        """The rows with consecutive offsets from `offset` on, at most RUN_ROWS; None if none."""
        if queue_id not in self.by_queue:
            return None
        offsets, rows = self.by_queue[queue_id]
        start = int(np.searchsorted(offsets, offset))
        next_offsets = offsets[start : start + RUN_ROWS]
        follows = next_offsets == np.arange(offset, offset + len(next_offsets))
        count = len(next_offsets) if follows.all() else int(np.argmin(follows))
        return rows[start : start + count] if count else None


@dataclass(frozen=True, slots=True, eq=False)
class Window:
    """Decoded rows of a part of a file.

    Attributes:
        start: the number of its first row in the part.
        rows: the rows with MESSAGE_COLUMNS.
        place: for each row of the part from `start` on its place in `rows`; None where they agree.
        passes: which of `rows` pass the filter and are not erased; None where all do.
        size_bytes: the memory that the rows take.
    """

    start: int
    rows: pa.Table
    place: Integers | None
    passes: npt.NDArray[np.bool_] | None
    size_bytes: int

    @classmethod
    def of(
        cls, start: int, rows: pa.Table, order: Integers | None, message_filter: MessageMask | None
    ) -> Window:
        """The window of some rows; with `order` queue by queue, so that a run is a view."""
        place = None
        if order is not None:
            place = np.empty(len(order), dtype=np.int64)
            place[order] = np.arange(len(order))
            rows = rows.take(pa.array(order))
        rows = rows.combine_chunks()
        passes = None
        if message_filter is not None:
            mask = pc.fill_null(message_filter.mask(rows), False)  # noqa: FBT003 - pyarrow's
            passes = mask.to_numpy(zero_copy_only=False).astype(bool)
        if (gone := are_erased(rows["properties"])) is not None:
            passes = ~gone if passes is None else passes & ~gone
        return cls(start, rows, place, passes, int(rows.nbytes))

    def places(self, numbers: Integers) -> Integers:
        """The places of the first of these rows of the part, as many as the window has."""
        inside = (numbers >= self.start) & (numbers < self.start + self.rows.num_rows)
        count = len(numbers) if inside.all() else int(np.argmin(inside))
        places = numbers[:count] - self.start
        return places if self.place is None else self.place[places]

    def taken(self, places: Integers) -> pa.Table:
        """Some rows: a view, or a copy where a view would keep a large window in memory."""
        is_small = self.size_bytes <= WINDOW_BYTES
        if is_small and len(places) and (np.diff(places) == 1).all():
            return self.rows.slice(int(places[0]), len(places))
        return self.rows.take(pa.array(places))


class _Cursor:
    """Decodes one part, window by window, from its first row on."""

    def __init__(self, windows: Iterator[tuple[pa.Table, bool]]) -> None:
        self._windows, self.next_row = windows, 0

    def next(self) -> tuple[int, pa.Table, bool] | None:
        """The number of the first row, the rows, whether they end the part; None at its end."""
        entry = next(self._windows, None)
        if entry is None:
            return None
        start, (rows, is_last) = self.next_row, entry
        self.next_row += rows.num_rows
        return start, rows, is_last


class PartRows:
    """Reads the rows of parts of the files of one table. Not safe for several threads."""

    def __init__(self, message_filter: MessageMask | None) -> None:
        """Nothing is read yet."""
        self._filter = message_filter
        self._indexes: OrderedDict[FilePart, PartIndex] = OrderedDict()
        self._windows: OrderedDict[tuple[FilePart, int], Window] = OrderedDict()
        self._cursors: OrderedDict[FilePart, _Cursor] = OrderedDict()

    @property
    def kept_bytes(self) -> int:
        """The memory that the kept windows take."""
        return sum(window.size_bytes for window in self._windows.values())

    def forget(self, parts: set[FilePart] | None = None) -> None:
        """Drop all rows but those of some parts; without `parts` also all indexes."""
        if parts is None:
            self._indexes.clear()
        kept = parts or set()
        for key in [key for key in self._windows if key[0] not in kept]:
            del self._windows[key]
        for part in self._cursors.keys() - kept:
            del self._cursors[part]

    def index_of(self, table: Table, part: FilePart) -> PartIndex | None:
        """The index of a part; None where its file is gone. Raises: StorageError."""
        if part not in self._indexes and part.file.size_bytes <= SMALL_FILE_BYTES:
            # It keeps the index of a part that fits into one window.
            self.window(table, part, 0)
        if part not in self._indexes:
            rows = table.read_part(part, POSITION_COLUMNS)
            if rows is None:
                return None
            self._keep_index(part, PartIndex.of(rows))
        self._indexes.move_to_end(part)
        return self._indexes[part]

    def window(self, table: Table, part: FilePart, number: int) -> Window | None:
        """The window with a row of a part; None where its file is gone. Raises: StorageError."""
        for key, window in self._windows.items():
            if key[0] is part and window.start <= number < window.start + window.rows.num_rows:
                self._windows.move_to_end(key)
                return window
        try:
            return self._decoded(table, part, number)
        except BaseException as error:
            # A cursor that has failed looks like one that is at its end.
            self._cursors.pop(part, None)
            if isinstance(error, FileNotFoundError):
                return None
            raise

    def _decoded(self, table: Table, part: FilePart, number: int) -> Window | None:
        cursor = self._cursor(table, part, number)
        while entry := cursor.next():
            start, rows, is_last = entry
            if number < cursor.next_row:
                return self._kept(part, start, rows, is_whole=is_last and not start)
        return None

    def _cursor(self, table: Table, part: FilePart, number: int) -> _Cursor:
        cursor = self._cursors.pop(part, None)
        if cursor is None or cursor.next_row > number:
            cursor = _Cursor(table.windows(part, MESSAGE_COLUMNS, WINDOW_BYTES))
        self._cursors[part] = cursor
        while len(self._cursors) > KEPT_CURSORS:
            self._cursors.popitem(last=False)
        return cursor

    def _kept(self, part: FilePart, start: int, rows: pa.Table, *, is_whole: bool) -> Window:
        order = None
        if is_whole:
            index = PartIndex.of(rows)
            self._keep_index(part, index)
            order = index.order
            del self._cursors[part]
        window = self._windows[part, start] = Window.of(start, rows, order, self._filter)
        size_bytes = self.kept_bytes
        while size_bytes > KEPT_BYTES and len(self._windows) > KEPT_WINDOWS:
            size_bytes -= self._windows.popitem(last=False)[1].size_bytes
        return window

    def _keep_index(self, part: FilePart, index: PartIndex) -> None:
        self._indexes[part] = index
        while len(self._indexes) > KEPT_INDEXES:
            self._indexes.popitem(last=False)
