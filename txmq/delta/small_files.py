"""Rows of small data files that were just read: a round reads the same few files several times.

A data file never changes, so what was read of it stays true.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

# By its size and by its rows, for compression hides how large a few values are.
SMALL_BYTES, SMALL_ROWS = 64 * 1024, 64
# What one table keeps in memory. Arrow's own objects are ten times as large as one row is.
KEPT_BYTES, KEPT_FILES = 256 * 1024, 16


def is_small(size_bytes: int, rows: int) -> bool:
    """Whether reading all columns of a file costs as little as reading some of them."""
    return size_bytes <= SMALL_BYTES and rows <= SMALL_ROWS


class SmallFiles:
    """The rows of small files that were read or written last: few, and up to KEPT_BYTES of them.

    Attributes:
        is_on: whether anything is kept; a process may have a thousand tables open.
    """

    def __init__(self) -> None:
        """Keep nothing yet."""
        self.is_on = False
        self._rows: OrderedDict[str, tuple[pa.Table, int]] = OrderedDict()
        self._kept_bytes = 0

    def rows(self, path: str) -> pa.Table | None:
        """All stored columns of a file; None where it is not kept."""
        kept = self._rows.get(path)
        return kept and kept[0]

    def keep(self, path: str, rows: pa.Table, size_bytes: int) -> None:
        """Keep the rows of a file in the place of older ones; `size_bytes` is what they hold."""
        if not (self.is_on and is_small(size_bytes, rows.num_rows)) or path in self._rows:
            return
        self._rows[path] = (rows, size_bytes)
        self._kept_bytes += size_bytes
        while self._kept_bytes > KEPT_BYTES or len(self._rows) > KEPT_FILES:
            self._kept_bytes -= self._rows.popitem(last=False)[1][1]


def some_columns(rows: pa.Table, names: list[str]) -> pa.Table:
    """These columns, as far as the file has them."""
    stored = set(rows.column_names)
    return rows.select([name for name in names if name in stored])
