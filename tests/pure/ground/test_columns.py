from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.foreign_input import column_of
from txmq.ground.columns import DistinctRows, equal_pairs, in_order, only, sound_rows

values = st.tuples(
    st.sampled_from(["a", "b", None]), st.integers(0, 3) | st.none(), st.booleans() | st.none()
)


def table(rows: list[tuple[object, ...]]) -> pa.Table:
    kinds = (pa.string(), pa.int64(), pa.bool_())
    columns = [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]
    return pa.table(columns, ["text", "number", "flag"])


@given(st.lists(values, max_size=40))
def test_each_row_is_one_of_the_distinct_rows_and_these_are_there_once(
    rows: list[tuple[object, ...]],
) -> None:
    distinct = DistinctRows.of(table(rows))
    found = [tuple(case.values()) for case in distinct.rows.to_pylist()]

    assert [found[place] for place in distinct.place.tolist()] == rows
    assert len(found) == len(set(rows))


def test_value_of_each_distinct_row_is_given_to_all_its_rows() -> None:
    distinct = DistinctRows.of(table([("a", 1, True), ("b", 1, True), ("a", 1, True)]))

    found = distinct.values(
        (case["text"].upper() for case in distinct.rows.to_pylist()), pa.string()
    )

    assert found.to_pylist() == ["A", "B", "A"]


def test_many_columns_of_many_values_do_not_overflow() -> None:
    rows = pa.table(
        {str(name): [name * number for number in range(2_000)] for name in range(1, 12)}
    )

    assert DistinctRows.of(rows).rows.num_rows == 2_000


small = st.lists(st.integers(0, 5), max_size=12)


@given(small, small)
def test_each_pair_of_equal_values_is_found_once(left: list[int], right: list[int]) -> None:
    here, there = equal_pairs(np.array(left, np.int64), np.array(right, np.int64), 6)

    wanted = [(row, other) for row, a in enumerate(left) for other, b in enumerate(right) if a == b]
    assert list(zip(here.tolist(), there.tolist(), strict=True)) == wanted


pairs_of_numbers = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12)


@given(pairs_of_numbers | pairs_of_numbers.map(sorted))
def test_rows_are_brought_in_order(pairs: list[tuple[int, int]]) -> None:
    rows = pa.table(
        {
            "major": pa.array([major for major, _ in pairs], pa.int64()),
            "minor": pa.array([minor for _, minor in pairs], pa.int64()),
        }
    )

    found = in_order(rows, "major", "minor")

    assert [tuple(row.values()) for row in found.to_pylist()] == sorted(pairs)


@given(st.lists(st.booleans(), max_size=5))
def test_only_the_chosen_rows_are_left(chosen: list[bool]) -> None:
    rows = pa.table({"number": pa.array(range(len(chosen)), pa.int64())})

    found = only(rows, np.array(chosen, dtype=bool))

    assert found["number"].to_pylist() == [at for at, is_here in enumerate(chosen) if is_here]


def test_a_row_that_txmq_cannot_have_written_is_left_out() -> None:
    rows = foreign_rows(
        {},
        {"text": None},
        {"text": b"\xff"},
        {"number": -1},
        {"number": 7},
        {"time": 2**63 - 1},
        {"time": -(2**63)},
        {"list": [0, None]},
        {"optional": b"\xff"},
        {"optional": None, "time": None, "list": None, "number": None},
    )

    sound = sound_rows(rows, ("text",), {"number": 7})

    assert sound["row"].to_pylist() == [0, 9]


def test_rows_that_are_all_sound_are_not_copied() -> None:
    rows = foreign_rows({}, {"number": 6})

    assert sound_rows(rows, ("text",), {"number": 7}) is rows


def foreign_rows(*changes: dict[str, Any]) -> pa.Table:
    kinds = {
        "text": pa.string(), "number": pa.int64(), "time": pa.timestamp("us", "UTC"),
        "list": pa.list_(pa.int64()), "optional": pa.string(),
    }  # fmt: skip
    plain = {"text": b"a", "number": 0, "time": 0, "list": [0], "optional": b""}
    rows = [
        pa.table({name: column_of({**plain, **odd}[name], kind) for name, kind in kinds.items()})
        for odd in changes
    ]
    numbers = pa.array(range(len(rows)), pa.int64())
    return pa.concat_tables(rows).append_column("row", numbers).combine_chunks()
