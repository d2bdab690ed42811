"""How often a message was sent back is a number that txmq wrote, or nothing."""

from __future__ import annotations

import pytest

from txmq.message.names import RECONSUME_TIMES
from txmq.message.received import sent_back_times


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
