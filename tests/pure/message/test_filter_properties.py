"""The Arrow mask of any filter is what plain Python says of each message."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.filters import Row, Written, expressions, row_lists, table_of
from txmq.errors import InvalidFilterError
from txmq.message.filter import parse_filter

words = st.sampled_from(
    ["sql:", "a", "=", "<>", ">", "1", "'x'", "(", ")", "AND", "OR", "NOT", "IN", "BETWEEN", "IS",
     "NULL", "TRUE", ",", "-", "||", "|", "*", "'", '"', "\x00", ";", "--", " "]
)  # fmt: skip


@given(expressions, row_lists)
def test_mask_is_what_python_says(written: Written, rows: list[Row]) -> None:
    mask = parse_filter(f"sql:{written.text}").mask(table_of(rows))

    assert mask.to_pylist() == [written.truth(row) is True for row in rows]


@given(expressions)
def test_text_of_a_filter_is_read_again_as_the_same(written: Written) -> None:
    once = parse_filter(f"sql: {written.text} ")

    assert parse_filter(once.text) == once


@given(expressions, row_lists, row_lists)
def test_mask_does_not_depend_on_how_rows_are_cut(
    written: Written, first: list[Row], second: list[Row]
) -> None:
    parts = [table_of(first), table_of(second)]
    wanted = parse_filter(f"sql:{written.text}")

    together = wanted.mask(pa.concat_tables(parts)).to_pylist()

    assert together == [flag for part in parts for flag in wanted.mask(part).to_pylist()]
    assert together[1:] == wanted.mask(pa.concat_tables(parts).slice(1)).to_pylist()


@given(st.one_of(st.text(), st.lists(words).map("".join), st.lists(words).map(" ".join)))
def test_any_text_is_a_filter_or_is_refused_with_its_place(text: str) -> None:
    error = refusal_of(text)

    if error is not None:
        assert 0 <= error.position <= len(text)
        assert str(error).isprintable()


def refusal_of(text: str) -> InvalidFilterError | None:
    try:
        parse_filter(text)
    except InvalidFilterError as error:
        return error
    return None
