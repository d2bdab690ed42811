"""Statistics of rows in memory are those that a reader of the file's footer would make."""

from __future__ import annotations

import datetime as dt
import json

import pyarrow as pa
import pyarrow.fs as pa_fs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txmq.delta.parquet import FEW_ROWS, LONGEST_BOUND_BYTES, described, small_file, stats_of_rows

TEXTS = st.none() | st.text(max_size=4) | st.just("é") | st.just("\U0001f600")
NUMBERS = st.none() | st.integers(-(2**63), 2**63 - 1)
SCHEMA = pa.schema({"text": pa.string(), "number": pa.int64(), "body": pa.binary()})
COLUMNS = ("text", "number")


def _of_a_footer(rows: pa.Table, columns: tuple[str, ...]) -> object:
    _, content = small_file(rows, columns, {})
    filesystem, _ = pa_fs.FileSystem.from_uri("mock:///")
    with filesystem.open_output_stream("file") as file:
        file.write(content)
    return json.loads(described("file", filesystem, columns, {}).stats_json)


@given(st.lists(st.tuples(TEXTS, NUMBERS), min_size=1, max_size=20))
def test_integers_and_texts_are_described_as_by_the_footer(
    values: list[tuple[str | None, int | None]],
) -> None:
    texts, numbers = map(list, zip(*values, strict=True))
    rows = pa.table([texts, numbers, [b""] * len(values)], schema=SCHEMA)
    stats = stats_of_rows(rows, COLUMNS)
    assert stats is not None
    assert json.loads(stats) == _of_a_footer(rows, COLUMNS)


@pytest.mark.parametrize("length", [LONGEST_BOUND_BYTES, LONGEST_BOUND_BYTES + 1])
def test_of_a_long_text_as_much_is_said_as_by_the_footer(length: int) -> None:
    rows = pa.table([["x" * length], [1], [b""]], schema=SCHEMA)
    stats = stats_of_rows(rows, COLUMNS)
    assert stats is not None
    assert json.loads(stats) == _of_a_footer(rows, COLUMNS)


def test_other_columns_are_left_to_the_footer() -> None:
    rows = pa.table({"time": [dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]})
    assert stats_of_rows(rows, ("time",)) is None
    assert stats_of_rows(rows, ()) is not None


def test_many_rows_are_described_as_by_the_footer() -> None:
    texts = [None if n % 7 == 0 else str(n * 7919 % 10_007) for n in range(FEW_ROWS + 1)]
    rows = pa.table([texts, list(range(len(texts))), [b""] * len(texts)], schema=SCHEMA)
    stats = stats_of_rows(rows, COLUMNS)
    assert stats is not None
    assert json.loads(stats) == _of_a_footer(rows, COLUMNS)
