"""A queue stands still while it has messages and a member and its offset does not move."""

from __future__ import annotations

from dataclasses import replace

from txmq.consumer.lag import QueueLag
from txmq.ops.dashboard.snapshot import QueueKey, StillQueues

QUEUE = QueueLag("billing", "orders", 0, "", owner="one", next_offset=3, end_offset=9)
KEY = QueueKey("billing", "orders", 0, "")


def test_a_queue_stands_still_until_its_offset_moves() -> None:
    still = StillQueues()
    seen = [
        still.seen([queue], at_s)
        for queue, at_s in [
            (QUEUE, 10.0),
            (replace(QUEUE, end_offset=20), 25.0),
            (replace(QUEUE, owner="two"), 40.0),
            (replace(QUEUE, next_offset=4), 55.0),
            (replace(QUEUE, next_offset=4), 70.0),
        ]
    ]

    assert seen == [{KEY: 0.0}, {KEY: 15.0}, {KEY: 30.0}, {KEY: 0.0}, {KEY: 15.0}]


def test_a_queue_without_messages_or_member_stands_not_still() -> None:
    still = StillQueues()
    still.seen([QUEUE], 10.0)

    assert still.seen([replace(QUEUE, next_offset=9), replace(QUEUE, owner=None)], 20.0) == {}
    assert still.seen([QUEUE], 30.0) == {KEY: 0.0}
