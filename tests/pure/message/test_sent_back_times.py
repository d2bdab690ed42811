"""Numbers in properties are those that txmq wrote, or nothing."""

from __future__ import annotations

import pytest

from txmq.message.names import (
    FIRST_PLACES,
    ORIGIN_QUEUE_ID,
    ORIGIN_QUEUE_OFFSET,
    RECONSUME_TIMES,
)
from txmq.message.received import first_places, origin_place, sent_back_times


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("0", 0),
        ("16", 16),
        ("", None),
        ("-1", None),
        ("1.5", None),
        ("٣", None),
        ("9" * 5000, None),
    ],
)
def test_only_a_count_is_a_count(text: str, times: int | None) -> None:
    assert sent_back_times({RECONSUME_TIMES: text}) == times
    assert sent_back_times({}) is None


@pytest.mark.parametrize(
    ("queue", "offset", "place"),
    [
        ("3", "70000000000", (3, 70_000_000_000)),
        ("", "1", None),
        ("1", "-1", None),
        ("\u0663", "1", None),
        ("9" * 5000, "1", None),
        ("1", "9" * 5000, None),
    ],
)
def test_only_a_place_is_a_place(queue: str, offset: str, place: tuple[int, int] | None) -> None:
    first = {} if place is None else {"billing": place}
    assert origin_place({ORIGIN_QUEUE_ID: queue, ORIGIN_QUEUE_OFFSET: offset}) == place
    assert first_places({FIRST_PLACES: f"billing/{queue}/{offset}"}) == first
