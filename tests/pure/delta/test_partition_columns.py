"""Rows are parted by the values of their partition columns, whatever quick way finds one part."""

from __future__ import annotations

from datetime import date

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from txmq.delta.files import FEW_ROWS, partition_columns

DAYS = st.none() | st.sampled_from([date(2026, 1, 1), date(2026, 1, 2)])
ROWS = st.lists(st.tuples(st.sampled_from([0, 1, 256]), DAYS), min_size=1, max_size=3)
SCHEMA = pa.schema({"queue_id": pa.int32(), "day": pa.date32(), "number": pa.int64()})


@given(ROWS, st.sampled_from([1, FEW_ROWS + 1]), st.integers(0, 2))
def test_each_row_is_in_the_part_of_its_values(
    rows: list[tuple[int, date | None]], times: int, cut: int
) -> None:
    repeated = [row for row in rows for _ in range(times)]
    queues, days = map(list, zip(*repeated, strict=True))
    table = pa.table([queues, days, list(range(len(repeated)))], schema=SCHEMA).slice(cut)

    parts = list(partition_columns(table, ("queue_id", "day")))

    found = {
        number: (values["queue_id"], values["day"])
        for values, part in parts
        for number in part["number"].to_pylist()
    }
    assert found == {
        number: (str(queue), None if day is None else str(day))
        for number, (queue, day) in enumerate(repeated)
        if number >= cut
    }
    assert len(parts) == len(set(found.values()))
