"""Ranges of offsets that a member without messages takes, commits and hands out again; no Spark."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.consumer_world import BILLING, QUEUES, ConsumerWorld, offsets_of, taken_from
from tests.kit.delay_world import TOPIC
from tests.kit.kills import interrupted
from txmq.consumer.arguments import Subscription
from txmq.consumer.group_reader import GroupReader
from txmq.consumer.group_rules import Commits, ConsumeMode, Followed, TopicQueue
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.errors import QueueNotOwnedError, StoreFullError
from txmq.spark.members import OffsetRange, RangeReader, SparkBatches, count_messages, split_in_two
from txmq.testing import failing_commits


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def reader(world: ConsumerWorld) -> Iterator[GroupReader]:
    world.fill(3)
    subscription = Subscription.of(
        consumer_group=BILLING, topics=TOPIC, from_where=ConsumeFromWhere.FIRST_OFFSET,
        from_timestamp=None, mode=ConsumeMode.CLUSTERING, member_id=None, namespace=None,
    )  # fmt: skip
    made = GroupReader(world.store, subscription, world.clock, world.sent_back)
    yield made
    made.leave()


def look_again(reader: GroupReader) -> None:
    reader._looked_s = reader._member._looked_s = 0.0


def everything() -> list[OffsetRange]:
    return [OffsetRange(TopicQueue(TOPIC, queue), 0, 3) for queue in range(QUEUES)]


def test_both_parts_of_split_ranges_keep_each_queue_in_order() -> None:
    one, two = TopicQueue("a", 0), TopicQueue("a", 1)
    first, second = split_in_two([OffsetRange(one, 0, 3), OffsetRange(two, 5, 8)])

    assert first == [OffsetRange(one, 0, 3)]
    assert second == [OffsetRange(two, 5, 8)]
    assert split_in_two([OffsetRange(one, 4, 7)]) == (
        [OffsetRange(one, 4, 5)], [OffsetRange(one, 5, 7)]
    )  # fmt: skip


def test_all_that_is_visible_is_taken_once(reader: GroupReader) -> None:
    ranges = RangeReader(reader)

    assert sorted(taken_from(ranges, 100)) == everything()
    assert taken_from(ranges, 100) == []


def test_no_more_is_taken_than_is_asked_for(reader: GroupReader) -> None:
    ranges = RangeReader(reader)

    assert [count_messages(taken_from(ranges, 5)) for _ in range(4)] == [5, 5, 2, 0]


def test_rest_of_a_range_is_handed_out_again(world: ConsumerWorld, reader: GroupReader) -> None:
    ranges, queue = RangeReader(reader), TopicQueue(TOPIC, 1)
    taken = taken_from(ranges, 100)
    handled = {offsets.queue: 3 for offsets in taken} | {queue: 1}

    ranges.commit(handled, taken)

    assert offsets_of(world)[queue] == 1
    assert taken_from(ranges, 100) == [OffsetRange(queue, 1, 3)]


def test_ranges_that_an_interrupt_keeps_from_the_handler_come_again(
    reader: GroupReader,
) -> None:
    seen: list[OffsetRange] = []

    class Offsets:
        def check_session(self) -> None:
            pass

        def dataframe(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
            return ranges

    batches = SparkBatches(RangeReader(reader), Offsets(), seen.extend, 100)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt), interrupted(GroupReader, "hand_out", nth=2):
        batches.run_batch()
    batches.run_once()

    assert sorted(seen) == everything()


def test_rest_of_a_batch_is_handed_out_again_where_a_full_disk_keeps_it_from_being_committed(
    world: ConsumerWorld, reader: GroupReader
) -> None:
    seen: list[OffsetRange] = []
    poison = {TopicQueue(TOPIC, 2)}

    class Offsets:
        def check_session(self) -> None:
            pass

        def dataframe(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
            return ranges

    def handler(ranges: list[OffsetRange]) -> None:
        if any(queue in poison for queue, _, _ in ranges):
            raise ValueError("not now")
        seen.extend(ranges)

    batches = SparkBatches(RangeReader(reader), Offsets(), handler, 100)  # type: ignore[arg-type]
    world.sent_back.failing = 1_000
    with (
        failing_commits(1_000, error=OSError(errno.ENOSPC, "No space left on device")),
        pytest.raises(StoreFullError),
    ):
        batches.run_batch()
    world.sent_back.failing = 0
    poison.clear()
    world.send_to(0, "later")
    look_again(reader)
    batches.run_once()

    handled = {(queue, at) for queue, start, end in seen for at in range(start, end)}
    assert handled == {
        (TopicQueue(TOPIC, queue), at) for queue in range(QUEUES) for at in range(3)
    } | {(TopicQueue(TOPIC, 0), 3)}


def test_ranges_that_are_taken_when_the_lease_ends_are_taken_again(
    world: ConsumerWorld, reader: GroupReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges, end_offset = RangeReader(reader), GroupReader.end_offset

    def slow(*arguments: object) -> int:
        world.clock.advance(world.store.config.consumer_lease_s + 0.1)
        return end_offset(*arguments)  # type: ignore[arg-type]

    with monkeypatch.context() as patched:
        patched.setattr(GroupReader, "end_offset", slow)
        assert taken_from(ranges, 100) == []
    look_again(reader)

    assert sorted(taken_from(ranges, 100)) == everything()


def test_seek_moves_all_queues_but_those_that_are_refused(
    reader: GroupReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    ranges = RangeReader(reader)
    taken = taken_from(ranges, 100)
    ranges.commit({offsets.queue: offsets.end for offsets in taken}, taken)
    lost, member = TopicQueue(TOPIC, 0), reader._member
    swap = member.seek

    def refusing(offsets: Commits, seen_in: Followed) -> frozenset[TopicQueue]:
        held = {queue: at for queue, at in offsets.items() if queue != lost}
        return swap(held, seen_in) | {lost}

    monkeypatch.setattr(member, "seek", refusing)
    with pytest.raises(QueueNotOwnedError):
        reader.seek({TopicQueue(TOPIC, queue): 1 for queue in range(QUEUES)})

    assert sorted(taken_from(ranges, 100)) == [
        OffsetRange(TopicQueue(TOPIC, queue), 1, 3) for queue in range(1, QUEUES)
    ]
