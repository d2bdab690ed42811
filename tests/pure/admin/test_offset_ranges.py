"""Sets of offsets as ranges: what plain Python sets say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from txmq.ops.admin.dead_letter_notes import OffsetRanges

offsets = st.lists(st.integers(0, 30), max_size=20)
several = st.lists(offsets, max_size=5)


def made_of(parts: list[list[int]]) -> OffsetRanges:
    found = OffsetRanges()
    for part in parts:
        found = found.with_offsets(np.array(part, dtype=np.int64))
    return found


@given(several)
def test_it_holds_what_was_put_in(parts: list[list[int]]) -> None:
    everything = {offset for part in parts for offset in part}
    asked = np.arange(-1, 33)

    assert made_of(parts).holding(asked).tolist() == [one in everything for one in asked.tolist()]


@given(several)
def test_it_is_as_few_ranges_as_can_be(parts: list[list[int]]) -> None:
    found = made_of(parts)

    assert all(
        end < following
        for (_, end), (following, _) in zip(found.ranges, found.ranges[1:], strict=False)
    )
    assert OffsetRanges.from_value(found.to_value()) == found


@given(several, st.integers(0, 31))
def test_end_is_the_first_that_is_not_in_it(parts: list[list[int]], start: int) -> None:
    everything = {offset for part in parts for offset in part}

    assert made_of(parts).end_of(start) == next(n for n in range(start, 99) if n not in everything)
