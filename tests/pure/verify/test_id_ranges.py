"""Ranges of transaction ids hold every id once, the smallest first."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.verify import tables
from txmq.verify.tables import IdRange, id_extents

IDS = st.lists(st.none() | st.text("0123456789abcdef-é", max_size=3), min_size=1, max_size=30)


def parquet_of(ids: list[str | None], row_group_rows: int = 4) -> pq.ParquetFile:
    file = io.BytesIO()
    rows = pa.table({"transaction_id": pa.array(ids, pa.string())})
    pq.write_table(rows, file, row_group_size=row_group_rows)
    return pq.ParquetFile(file)


@given(ids=IDS, rows=st.integers(1, 12))
def test_every_id_is_in_one_range_and_in_a_row_group_that_meets_it(
    ids: list[str | None], rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "RANGE_ROWS", rows)
        patch.setattr(tables, "SAMPLE_ROWS", 2)
        extents = list(id_extents(parquet_of(ids)))
        ranges = tables.id_ranges(extents)

    held = [each.holds(pa.array(ids, pa.string())).to_pylist() for each in ranges]
    assert [sum(column) for column in zip(*held, strict=True)] == [1] * len(ids)
    for id_range, flags in zip(ranges, held, strict=True):
        met = {extent.row_group for extent in extents if id_range.meets(extent)}
        assert {place // 4 for place, is_held in enumerate(flags) if is_held} <= met


def test_range_is_about_as_large_as_it_should_be() -> None:
    ids = [f"{number:05}" for number in range(10_000)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "RANGE_ROWS", 2_500)
        patch.setattr(tables, "SAMPLE_ROWS", 100)
        ranges = tables.id_ranges(id_extents(parquet_of(ids, 1_000)))

    assert ranges == [
        IdRange(b"", b"02500"), IdRange(b"02500", b"05000"), IdRange(b"05000", b"07500"),
        IdRange(b"07500", None),
    ]  # fmt: skip


def test_large_transaction_is_not_cut() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "RANGE_ROWS", 3)
        patch.setattr(tables, "SAMPLE_ROWS", 1)
        ranges = tables.id_ranges(id_extents(parquet_of(["a", *["b"] * 9, "c"])))

    assert ranges == [IdRange(b"", b"b"), IdRange(b"b", b"c"), IdRange(b"c", None)]
