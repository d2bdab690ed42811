"""Ranges of transaction ids, so that memory holds the rows of one range and not of a store."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# Of all tables together; a message alone in its transaction has a row in each of four tables.
RANGE_ROWS = 500_000
# Every so many rows of a row group one id is kept, to tell where ranges begin.
SAMPLE_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class IdRange:
    """Transactions with an id from `first` on and before `end`; a row without id counts as ""."""

    first: str = ""
    end: str | None = None

    @property
    def is_everything(self) -> bool:
        """Whether no row is outside."""
        return not self.first and self.end is None

    def holds(self, ids: pa.Array) -> pa.Array:
        """Which ids are inside."""
        inside = pc.greater_equal(ids, self.first)
        if self.end is not None:
            inside = pc.and_(inside, pc.less(ids, self.end))
        return pc.fill_null(inside, not self.first)

    def meets(self, extent: IdExtent) -> bool:
        """Whether rows of a row group may be inside."""
        return self.first <= extent.largest and (self.end is None or extent.smallest < self.end)


@dataclass(frozen=True, slots=True)
class IdExtent:
    """The transaction ids of one row group of a data file; "" stands for a row without id.

    Attributes:
        row_group: its place in the file.
        sample: one id for every SAMPLE_ROWS rows.
        sample_rows: the rows that each id of the sample stands for.
    """

    row_group: int
    smallest: str
    largest: str
    sample: Sequence[str]
    sample_rows: float


def id_extents(parquet: Any) -> Iterator[IdExtent]:
    """The extents of an open Parquet file; an empty row group has none."""
    if "transaction_id" not in parquet.schema_arrow.names:
        return
    for row_group in range(parquet.num_row_groups):
        column = parquet.read_row_group(row_group, columns=["transaction_id"])["transaction_id"]
        if len(column):
            ids = pc.fill_null(column.cast(pa.string()), "")
            sample = ids.take(pa.array(range(0, len(ids), SAMPLE_ROWS))).to_pylist()
            ends = pc.min_max(ids).as_py()
            yield IdExtent(row_group, ends["min"], ends["max"], sample, len(ids) / len(sample))


def id_ranges(extents: Iterable[IdExtent]) -> list[IdRange]:
    """Ranges of about RANGE_ROWS rows that together hold every id, the smallest ids first."""
    starts = list(_starts(extents))
    return [IdRange(first, end) for first, end in zip(["", *starts], [*starts, None], strict=True)]


def _starts(extents: Iterable[IdExtent]) -> Iterator[str]:
    """Where each range but the first begins; a transaction is never cut."""
    sample = sorted((name, extent.sample_rows) for extent in extents for name in extent.sample)
    rows, first = 0.0, sample[0][0] if sample else ""
    for name, sample_rows in sample:
        if rows >= RANGE_ROWS and name != first:
            yield name
            rows, first = 0.0, name
        rows += sample_rows
