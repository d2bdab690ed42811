"""A member goes round its queues: none waits for the whole backlog of another one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.consumer_world import (
    BILLING,
    ConsumerWorld,
    bodies,
    fail,
    offsets_of,
    retrying_consumer,
    taken_from,
)
from tests.kit.delay_world import TOPIC
from tests.kit.kills import interrupted
from txmq.consumer.exclusive_use import ExclusiveUse
from txmq.consumer.group import group_in
from txmq.consumer.group_reader import GroupReader
from txmq.consumer.group_rules import TopicQueue
from txmq.consumer.taking import MessageTaking, QueuePositions
from txmq.errors import ConcurrentUseError, OffsetOutOfRangeError
from txmq.message.message import Message
from txmq.message.received import MessageRows, ReceivedMessage
from txmq.spark.members import RangeReader

BATCH, TURN_S = 4, 1.0


def world_of(folder: Path, *, queues: int = 4, turn_s: float = TURN_S) -> ConsumerWorld:
    own = {"pull_batch_size": BATCH, "consume_turn_s": turn_s}
    return ConsumerWorld(folder, queues=queues, consumer_groups={BILLING: own})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = world_of(tmp_path)
    yield made
    made.close()


class Slow:
    """A handler that takes its time on the clock of the world."""

    def __init__(self, world: ConsumerWorld, takes_s: float) -> None:
        self.queues: list[int] = []
        self.messages: list[ReceivedMessage] = []
        self._clock, self._takes_s = world.clock, takes_s

    def __call__(self, message: ReceivedMessage) -> None:
        self.queues.append(message.queue_id)
        self.messages.append(message)
        self._clock.advance(self._takes_s)


def test_queue_has_so_many_messages_in_a_turn(world: ConsumerWorld) -> None:
    world.fill(10)
    handler = Slow(world, 0.0)

    world.consumer().run_once(handler)

    runs = [len(list(run)) for _, run in groupby(handler.queues)]
    assert runs == [4] * 8 + [2] * 4
    assert sorted({*handler.queues[:16]}) == [0, 1, 2, 3]


def test_slow_handler_is_given_each_queue_before_one_comes_again(tmp_path: Path) -> None:
    world = world_of(tmp_path, queues=16, turn_s=0.1)
    world.fill(3, queues=16)
    handler = Slow(world, 0.12)

    world.consumer().run_once(handler)

    rounds = [handler.queues[start : start + 16] for start in (0, 16, 32)]
    assert [sorted(one) for one in rounds] == [list(range(16))] * 3
    assert bodies(m for m in handler.messages if m.queue_id == 5) == ["5-0", "5-1", "5-2"]
    world.close()


def test_turn_ends_with_the_call_in_which_its_time_is_over(world: ConsumerWorld) -> None:
    world.fill(4, queues=2)
    handler = Slow(world, 0.4)

    world.consumer().run_once(handler)

    assert handler.queues in ([0, 0, 0, 1, 1, 1, 0, 1], [1, 1, 1, 0, 0, 0, 1, 0])


def test_retries_have_a_turn_beside_fresh_messages(world: ConsumerWorld) -> None:
    world.fill(1, queues=1)
    consumer = retrying_consumer(world)
    consumer.run_once(fail)
    world.fill(40)
    world.clock.advance(11)
    world.deliver()
    handler = Slow(world, 0.0)

    consumer.run_once(handler)

    names = [message.topic for message in handler.messages]
    assert names.index(f"RETRY_{BILLING}") <= 4 * BATCH
    assert len(names) == 161


def test_what_waits_for_its_next_turn_is_not_committed(world: ConsumerWorld) -> None:
    world.fill(3)
    consumer = world.consumer()
    handler = Slow(world, 1.2)

    def interrupted(message: ReceivedMessage) -> None:
        handler(message)
        if len(handler.queues) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        consumer.run_once(interrupted)

    # Four were handled; the fifth was interrupted, and is not.
    assert sum(offsets_of(world, BILLING).values()) == 4
    again = Slow(world, 0.0)
    consumer.run_once(again)
    assert len(again.queues) == 8


@settings(max_examples=20, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    takes_s=st.sampled_from([0.0, 0.3, 0.6, 1.2]),
    turn_s=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_each_message_is_handled_once_in_the_order_of_its_queue(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], takes_s: float, turn_s: float
) -> None:
    world = world_of(tmp_path_factory.mktemp("turns"), turn_s=turn_s)
    for queue_id, size in enumerate(sizes):
        if size:
            world.send_to(queue_id, *(f"{queue_id}-{n}" for n in range(size)))
    handler = Slow(world, takes_s)

    world.consumer().run_once(handler)

    for queue_id, size in enumerate(sizes):
        of_queue = [m.queue_offset for m in handler.messages if m.queue_id == queue_id]
        assert of_queue == list(range(size))
    longest = max(1, min(BATCH, -(-turn_s // takes_s) if takes_s else BATCH))
    others_wait = sum(size > 0 for size in sizes) > 1
    first_run = len(list(next(groupby(handler.queues), (0, []))[1]))
    assert not others_wait or first_run <= longest
    world.close()


def test_polls_of_a_few_messages_reach_every_queue(world: ConsumerWorld) -> None:
    world.fill(10)
    consumer = world.consumer()

    queues = [consumer.poll(3, 0)[0].queue_id for _ in range(4)]

    assert sorted(queues) == [0, 1, 2, 3]


def test_poll_serves_first_what_it_did_not_look_at(world: ConsumerWorld) -> None:
    world.fill(2, queues=3)
    consumer = world.consumer()
    seen = {message.queue_id for message in consumer.poll(4, 0)}
    (left,) = {0, 1, 2} - seen
    for queue_id in seen:
        world.send_to(queue_id, "more")

    assert consumer.poll(1, 0)[0].queue_id in {left, 3} - {3}
    assert TopicQueue(TOPIC, left) in consumer.assignment


def test_queue_that_cannot_be_read_keeps_no_other_one_from_its_turn(world: ConsumerWorld) -> None:
    world.fill(12, queues=3)
    world.consumer().close()
    bad = TopicQueue(TOPIC, 1)
    group_in(world.store, BILLING).change(
        lambda state: replace(state, offsets={"": {**state.offsets[""], bad: 999}}), 0
    )
    consumer, queues = world.consumer(), set[int]()

    for _ in range(12):
        with suppress(OffsetOutOfRangeError):
            queues |= {message.queue_id for message in consumer.poll(4, 0)}

    assert queues == {0, 2}


def test_large_message_has_its_turn_before_small_ones_come_again(tmp_path: Path) -> None:
    world = ConsumerWorld(tmp_path, queues=2, consume_batch_bytes=100_000)
    world.send_to(0, *["a" * 2_000] * 200)
    world.send_to(1, "b" * 60_000)
    handler = Slow(world, 0.0)

    world.consumer().run_once(handler)

    assert handler.queues.index(1) < 100
    world.close()


def test_range_that_has_no_room_comes_first_the_next_time(world: ConsumerWorld) -> None:
    for queue_id in (0, 1):
        batch = [Message(TOPIC, os.urandom(1_000)) for _ in range(100)]
        world.producer.send(batch, queue_id=queue_id)
    world.publisher.run_once()
    ranges, queues = RangeReader(world.consumer()._reader), set[int]()

    for _ in range(2):
        taken = taken_from(ranges, 10_000, 35_500)
        queues |= {offsets.queue.queue_id for offsets in taken}

    assert queues == {0, 1}


@pytest.mark.parametrize("name", ["servable", "is_owned", "begin", "_fresh", "messages", "turn"])
def test_interrupt_while_messages_are_handed_out_loses_none(
    world: ConsumerWorld, name: str
) -> None:
    world.fill(6, queues=2)
    consumer, handler = world.consumer(), Slow(world, 0.0)
    owners = (GroupReader, GroupReader, MessageTaking, MessageTaking, MessageRows, QueuePositions)
    names = ["servable", "is_owned", "begin", "_fresh", "messages", "turn"]

    with pytest.raises(KeyboardInterrupt), interrupted(owners[names.index(name)], name):
        consumer.run_once(handler)
    consumer.run_once(handler)

    assert {*bodies(handler.messages)} == {f"{q}-{n}" for q in range(2) for n in range(6)}


def test_what_was_committed_is_not_given_again(world: ConsumerWorld) -> None:
    world.fill(3, queues=1)
    consumer = world.consumer()
    messages = consumer.poll(3, 0)
    consumer.commit()

    consumer.give_again(messages)

    assert consumer.poll(3, 0) == []


def test_poll_that_is_refused_takes_nothing_from_the_thread_that_has_the_consumer(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill(3, queues=1)
    consumer = world.consumer()

    def other_thread_is_faster(_: ExclusiveUse) -> None:
        assert len(consumer._reader.take(3)) == 3
        raise ConcurrentUseError

    with monkeypatch.context() as patch, pytest.raises(ConcurrentUseError):
        patch.setattr(ExclusiveUse, "begin", other_thread_is_faster)
        consumer.poll(1, 0)

    assert consumer.poll(3, 0) == []
