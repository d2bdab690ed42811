from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from txmq.columns import DistinctRows

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
