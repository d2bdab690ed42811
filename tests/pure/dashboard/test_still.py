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


def looks(*offsets_by_look: dict[int, int], step_s: float = 100.0) -> dict[int, float]:
    """For how long each queue of one member is in trouble at the last of some looks."""
    still, seen = StillQueues(), {}
    for number, offsets in enumerate(offsets_by_look, 1):
        lags = [
            replace(QUEUE, queue_id=queue_id, next_offset=offset, end_offset=1_000)
            for queue_id, offset in offsets.items()
        ]
        seen = still.seen(lags, number * step_s)
    return {key.queue_id: age_s for key, age_s in seen.items()}


def test_queues_that_wait_for_their_turn_are_in_no_trouble() -> None:
    moving = ({0: 1, 1: 1, 2: 1}, {0: 2, 1: 1, 2: 1}, {0: 2, 1: 2, 2: 1}, {0: 2, 1: 2, 2: 2})

    assert looks(*moving) == {0: 0.0, 1: 0.0, 2: 0.0}


def test_all_queues_of_a_member_that_moves_none_are_in_trouble() -> None:
    assert looks({0: 1, 1: 1}, {0: 2, 1: 1}, {0: 2, 1: 1}, {0: 2, 1: 1}) == {0: 200.0, 1: 200.0}


def test_queues_that_their_member_passes_over_are_in_trouble() -> None:
    turns = [{0: number, 1: 1, 2: 1} for number in range(1, 7)]

    # Queue 0 has moved for the third time at the fourth look.
    assert looks(*turns) == {0: 0.0, 1: 200.0, 2: 200.0}


def test_member_beside_another_one_is_judged_by_its_own_queues() -> None:
    still = StillQueues()
    for at_s in (100.0, 200.0):
        lags = [QUEUE, replace(QUEUE, queue_id=1, owner="two", next_offset=int(at_s))]
        seen = still.seen([replace(lag, end_offset=1_000) for lag in lags], at_s)

    assert [seen[key] for key in sorted(seen)] == [100.0, 0.0]


def test_queue_that_is_stuck_beside_queues_that_keep_up_is_in_trouble() -> None:
    still, seen = StillQueues(), {}
    for number in range(1, 10):
        others = [
            replace(QUEUE, queue_id=queue_id, next_offset=10 * number,
                    end_offset=10 * number + (number % 2 == queue_id % 2))
            for queue_id in (1, 2)
        ]  # fmt: skip
        seen = still.seen([QUEUE, *others], number * 100.0)

    # The others have moved for the third time at the fourth look.
    assert seen[KEY] == 500.0


def test_queue_that_gets_messages_after_a_pause_is_in_no_trouble() -> None:
    still = StillQueues()
    for at_s in (100.0, 500.0):
        still.seen([replace(QUEUE, end_offset=QUEUE.next_offset)], at_s)

    assert still.seen([QUEUE], 900.0) == {KEY: 400.0}
    still.seen([replace(QUEUE, end_offset=QUEUE.next_offset)], 1_000.0)
    assert still.seen([QUEUE], 1_010.0) == {KEY: 10.0}


def test_a_queue_whose_messages_are_all_in_hands_stands_not_still() -> None:
    still = StillQueues()
    held = replace(QUEUE, acknowledged=2, unacknowledged=4)
    still.seen([held], 10.0)

    assert still.seen([held], 500.0) == {}
    # One more came, which nobody was handed out since.
    more = replace(held, end_offset=10)
    still.seen([more], 510.0)
    assert still.seen([more], 600.0) == {KEY: 100.0}
    # It goes on behind the hole.
    assert still.seen([replace(more, unacknowledged=5, end_offset=12)], 700.0) == {KEY: 0.0}
