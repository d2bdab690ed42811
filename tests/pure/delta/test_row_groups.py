"""Rows of many small files become few row groups: none is lost, and memory is bounded."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as some

from txmq.delta.file_rows import TABLES_HELD, in_row_groups

Part = Sequence[int]
PARTS = some.lists(some.lists(some.integers(0, 9), max_size=5), max_size=600)
LIMITS = some.tuples(some.integers(1, 400), some.integers(1, 4_000))


def size(part: Part) -> tuple[int, int]:
    return len(part), 8 * len(part)


def rows_of(parts: Sequence[Part]) -> pa.Table:
    return pa.table({"number": pa.array([row for part in parts for row in part], pa.int64())})


@given(PARTS, LIMITS)
def test_all_rows_are_there_in_their_order(parts: list[list[int]], limits: tuple[int, int]) -> None:
    groups = list(in_row_groups(parts, rows_of, size, limits))

    rows = [row for group in groups for row in group["number"].to_pylist()]
    assert rows == [row for part in parts for row in part]


@given(PARTS, LIMITS)
def test_each_row_group_but_the_last_ends_with_the_part_that_makes_it_full(
    parts: list[list[int]], limits: tuple[int, int]
) -> None:
    groups = list(in_row_groups(parts, rows_of, size, limits))

    longest = max(map(len, parts), default=0)
    is_full = [group.num_rows >= min(limits[0], limits[1] / 8) for group in groups]
    assert all(is_full[:-1])
    for group in groups:
        assert group.num_rows < min(limits[0], limits[1] / 8) + longest


@given(PARTS, LIMITS)
def test_few_parts_are_held_and_the_size_of_each_is_asked_once(
    parts: list[list[int]], limits: tuple[int, int]
) -> None:
    held, asked = list[int](), list[int]()

    def joined(some_parts: Sequence[Part]) -> pa.Table:
        held.append(len(some_parts))
        return rows_of(some_parts)

    def noted(part: Part) -> tuple[int, int]:
        asked.append(1)
        return size(part)

    list(in_row_groups(parts, joined, noted, limits))

    assert max(held, default=0) <= TABLES_HELD
    assert (sum(held), len(asked)) == (len(parts), len(parts))
