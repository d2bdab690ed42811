"""A group that keeps order: a message that fails is tried again in its place."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.consumer_world import BILLING, ConsumerWorld, bodies, offsets_of, wake
from tests.kit.delay_world import TOPIC
from tests.kit.kills import interrupted
from tests.kit.reading import topic_rows
from txmq.consumer.attempts import Attempts, Span
from txmq.consumer.group import group_in
from txmq.consumer.group_reader import GroupReader
from txmq.consumer.group_rules import ConsumeMode, TopicQueue
from txmq.consumer.handlers import ConsumeStatus
from txmq.consumer.pull import PullConsumer
from txmq.consumer.push import Batch
from txmq.consumer.send_back import SendBack
from txmq.errors import ConfigError, ConsumerGroupConflictError
from txmq.message.names import EFFECT_TABLES
from txmq.message.received import ReceivedMessage
from txmq.ops.admin.dead_letters import DeadLetters
from txmq.ops.admin.groups import ConsumerGroups
from txmq.store.store import Store
from txmq.user_data.delta_inbox import DeltaInbox

TRIES, SUSPEND_S = 3, 1.0
LEASE_S = 10.0


def world_of(folder: Path) -> ConsumerWorld:
    own = {
        "consume_message_orderly": True, "max_reconsume_times": TRIES,
        "suspend_current_queue_time_s": SUSPEND_S, "pull_batch_size": 4,
    }  # fmt: skip
    return ConsumerWorld(folder, queues=2, consumer_groups={BILLING: own})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = world_of(tmp_path)
    yield made
    made.close()


def member(world: ConsumerWorld, **more: Any) -> PullConsumer:
    return world.consumer(sends_back=SendBack(world.store, BILLING, world.clock), **more)


class Failing:
    """Fails on each of some bodies so many times, and notes what it is given."""

    def __init__(self, **failures: int) -> None:
        self.left = Counter({name.replace("_", "-"): times for name, times in failures.items()})
        self.given: list[tuple[str, int]] = []
        self.handled: list[str] = []

    def __call__(self, message: ReceivedMessage) -> ConsumeStatus:
        body = message.body.decode()
        self.given.append((body, message.reconsume_times))
        if self.left[body]:
            self.left[body] -= 1
            return ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        self.handled.append(body)
        return ConsumeStatus.SUCCESS


def try_often(world: ConsumerWorld, consumer: PullConsumer, handler: Any, times: int) -> None:
    """Handle what there is so often; the queue has rested each time."""
    for _ in range(times):
        consumer.run_once(handler)
        world.clock.advance(SUSPEND_S)


def of_queue(handled: list[str], queue_id: int) -> list[str]:
    return [body for body in handled if body.startswith(f"{queue_id}-")]


def test_message_that_fails_holds_its_queue_and_no_other(world: ConsumerWorld) -> None:
    world.fill(3, queues=2)
    consumer, handler = member(world), Failing(**{"0_1": 1})

    result = consumer.run_once(handler)

    assert of_queue(handler.handled, 0) == ["0-0"]
    assert of_queue(handler.handled, 1) == ["1-0", "1-1", "1-2"]
    assert (result.consumed, result.sent_back) == (5, 0)
    assert offsets_of(world, BILLING)[TopicQueue(TOPIC, 0)] == 1
    consumer.run_once(handler)
    assert len(handler.handled) == 4


def test_queue_rests_and_then_the_message_comes_again_with_its_tries(world: ConsumerWorld) -> None:
    world.fill(3, queues=1)
    consumer, handler = member(world), Failing(**{"0_1": 2})

    try_often(world, consumer, handler, 3)

    assert handler.given == [("0-0", 0), ("0-1", 0), ("0-1", 1), ("0-1", 2), ("0-2", 0)]
    assert handler.handled == ["0-0", "0-1", "0-2"]


def test_message_that_fails_too_often_is_a_dead_letter_and_the_next_one_comes(
    world: ConsumerWorld,
) -> None:
    world.fill(3, queues=1)
    consumer, handler = member(world), Failing(**{"0_1": 99})

    try_often(world, consumer, handler, TRIES + 1)

    assert [body for body, _ in handler.given].count("0-1") == TRIES + 1
    assert handler.handled == ["0-0", "0-2"]
    world.publisher.run_once()
    (letter,) = DeadLetters(world.store, BILLING, clock=world.clock).all()
    assert (letter.origin_topic, letter.reconsume_times) == (TOPIC, TRIES + 1)
    assert group_in(world.store, BILLING).read().attempts == {}


def test_tries_are_counted_for_whoever_comes_next(world: ConsumerWorld) -> None:
    world.fill(2, queues=1)
    handler = Failing(**{"0_0": 99})
    for _ in range(TRIES + 1):
        consumer = member(world)
        consumer.run_once(handler)
        consumer.close()

    assert [tries for body, tries in handler.given if body == "0-0"] == list(range(TRIES + 1))
    assert handler.handled == ["0-1"]


def test_member_that_is_gone_leaves_its_tries(world: ConsumerWorld) -> None:
    world.fill(2, queues=1)
    handler = Failing(**{"0_0": 1})
    gone = member(world)
    gone.run_once(handler)
    gone._reader._member._lease_renewal.stop()  # type: ignore[union-attr]
    other = member(world)
    wake(other)
    other.poll(1, 0)
    world.clock.advance(2 * LEASE_S)
    wake(other)

    other.run_once(handler)

    assert handler.given == [("0-0", 0), ("0-0", 1), ("0-1", 0)]


def test_seek_begins_the_tries_anew(world: ConsumerWorld) -> None:
    world.fill(2, queues=1)
    consumer, handler = member(world), Failing(**{"0_1": 1})
    consumer.run_once(handler)

    consumer.seek(TOPIC, 0, 0)
    world.clock.advance(SUSPEND_S)
    consumer.run_once(handler)

    assert handler.given[2:] == [("0-0", 0), ("0-1", 0)]


def test_handler_that_raises_is_tried_again_in_its_place(world: ConsumerWorld) -> None:
    world.fill(2, queues=1)
    consumer, seen = member(world), []

    def handler(message: ReceivedMessage) -> None:
        seen.append(message.body.decode())
        if len(seen) == 1:
            raise ValueError

    consumer.run_once(handler)
    world.clock.advance(SUSPEND_S)
    consumer.run_once(handler)

    assert seen == ["0-0", "0-0", "0-1"]


def test_nothing_is_sent_back_out_of_its_order(world: ConsumerWorld) -> None:
    world.fill(2, queues=1)
    consumer = member(world)
    (message, _) = consumer.poll(2, 0)

    with pytest.raises(ConfigError, match="keeps order"):
        consumer.send_back(message, reason="no")
    consumer.give_again([message])

    assert bodies(consumer.poll(2, 0)) == ["0-0", "0-1"]
    consumer.send_back(message, reason="no", delay_level=-1)


def test_members_agree_on_order(world: ConsumerWorld) -> None:
    member(world)
    plain = Store.open(world.store.location, world.store.config.replace(consumer_groups={}))

    with pytest.raises(ConsumerGroupConflictError, match="in order"):
        PullConsumer(plain, consumer_group=BILLING, topics=TOPIC, clock=world.clock)


def test_broadcasting_keeps_nothing_in_its_place(world: ConsumerWorld) -> None:
    world.fill(2, queues=1)
    consumer = member(world, mode=ConsumeMode.BROADCASTING, member_id="one")
    handler = Failing(**{"0_0": 1})

    consumer.run_once(handler)

    assert handler.given == [("0-0", 0), ("0-1", 0)]


STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(["run", "run", "run", "close", "die", "late"])),
    min_size=4, max_size=14,
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(
    steps=STEPS,
    failures=st.dictionaries(
        st.sampled_from([f"{q}_{n}" for q in range(2) for n in range(5)]),
        st.integers(1, TRIES + 1),
        max_size=3,
    ),
)
def test_no_message_is_given_before_an_earlier_one_of_its_queue_is_done(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str]], failures: dict[str, int]
) -> None:
    world = world_of(tmp_path_factory.mktemp("order"))
    world.fill(5, queues=2)
    handler, members = Failing(**failures), dict[int, PullConsumer]()
    for number, step in steps:
        if step == "close" and number in members:
            members.pop(number).close()
        elif step == "die" and number in members:
            members.pop(number)._reader._member._lease_renewal.stop()  # type: ignore[union-attr]
        elif step == "late":
            world.clock.advance(LEASE_S / 2)
        else:
            consumer = members.setdefault(number, members.get(number) or member(world))
            wake(consumer)
            consumer.run_once(handler)
        world.clock.advance(SUSPEND_S)
    last = member(world)
    for _ in range(4 * (TRIES + 1)):
        world.clock.advance(LEASE_S)
        for consumer in (*members.values(), last):
            wake(consumer)
            consumer.run_once(handler)

    by_queue: defaultdict[str, list[int]] = defaultdict(list)
    for body, _ in handler.given:
        queue, _, number = body.partition("-")
        by_queue[queue].append(int(number))
    # Never an earlier one after a later one: each is given until it is done.
    assert all(numbers == sorted(numbers) for numbers in by_queue.values())
    dead = {name.replace("_", "-") for name, times in failures.items() if times > TRIES}
    assert {*handler.handled} | dead == {f"{q}-{n}" for q in range(2) for n in range(5)}
    world.close()


def test_interrupt_while_tries_are_noted_loses_no_message(world: ConsumerWorld) -> None:
    world.fill(3, queues=1)
    consumer, handler = member(world), Failing(**{"0_1": 1})

    with pytest.raises(KeyboardInterrupt), interrupted(GroupReader, "tries"):
        consumer.run_once(handler)
    try_often(world, consumer, handler, 2)

    assert handler.handled == ["0-0", "0-1", "0-2"]


def test_failure_is_not_lost_by_an_interrupt(world: ConsumerWorld) -> None:
    world.fill(3, queues=1)
    consumer, handler = member(world), Failing(**{"0_1": 9})

    for owner, name in ((Batch, "_pass"), (GroupReader, "fail_in_place")):
        with (
            pytest.raises(KeyboardInterrupt),
            interrupted(owner, name, nth=2 if owner is Batch else 1),
        ):
            consumer.run_once(handler)
        world.clock.advance(SUSPEND_S)
    try_often(world, consumer, handler, 12)

    assert handler.handled == ["0-0", "0-2"]
    world.publisher.run_once()
    assert len(DeadLetters(world.store, BILLING, clock=world.clock).all()) == 1


@pytest.mark.parametrize("to", [1, 0])
def test_operator_who_resets_to_the_message_begins_its_tries_anew(
    world: ConsumerWorld, to: int
) -> None:
    world.fill(3, queues=1)
    consumer, handler = member(world), Failing(**{"0_1": 99})
    try_often(world, consumer, handler, TRIES)
    consumer.close()

    ConsumerGroups(world.store, clock=world.clock).reset_offsets(
        BILLING, TOPIC, {0: to}, apply=True
    )
    handler.given.clear()
    member(world).run_once(handler)

    assert ("0-1", 0) in handler.given


def test_seek_to_the_message_itself_serves_it_at_once_with_new_tries(world: ConsumerWorld) -> None:
    world.fill(3, queues=1)
    consumer, handler = member(world), Failing(**{"0_1": 99})
    consumer.run_once(handler)

    consumer.seek(TOPIC, 0, 1)
    consumer.run_once(handler)

    assert handler.given == [("0-0", 0), ("0-1", 0), ("0-1", 0)]


def test_dead_letter_by_hand_says_how_often_it_was_tried(world: ConsumerWorld) -> None:
    world.fill(1, queues=1)
    consumer, handler = member(world), Failing(**{"0_0": 99})
    try_often(world, consumer, handler, 2)
    (message,) = consumer.poll(1, 0)

    consumer.send_back(message, reason="no", delay_level=-1)

    world.publisher.run_once()
    (letter,) = DeadLetters(world.store, BILLING, clock=world.clock).all()
    assert letter.reconsume_times == 3


@pytest.mark.parametrize("count", [-5, 2**62])
def test_count_that_nobody_wrote_is_no_count(world: ConsumerWorld, count: int) -> None:
    wrong = Attempts(1, (Span(0, 1, count),))
    world.fill(2, queues=1)
    member(world).close()
    group = group_in(world.store, BILLING)
    group.change(lambda state: replace(state, attempts={TopicQueue(TOPIC, 0): wrong}), 0)
    handler = Failing()

    member(world).run_once(handler)

    assert 0 <= handler.given[0][1] <= 10_000
    assert handler.handled == ["0-0", "0-1"]


def test_effect_of_an_earlier_try_comes_once_also_from_the_dead_letters(
    world: ConsumerWorld, tmp_path: Path
) -> None:
    world.fill(2, queues=1)
    schema = pa.schema([("body", pa.string())])
    table = str(tmp_path / "bookings")
    DeltaTable.create(table, schema)
    inbox = DeltaInbox(BILLING, table)

    def handler(message: ReceivedMessage) -> None:
        rows = partial(pa.Table.from_pydict, schema=schema)
        inbox.apply([message], lambda new: rows({"body": [m.body.decode() for m in new]}))
        if message.body == b"0-0":
            raise ValueError

    consumer = member(world)
    try_often(world, consumer, handler, TRIES + 1)
    world.publisher.run_once()
    (letter,) = topic_rows(world.store, f"DLQ_{BILLING}")

    assert EFFECT_TABLES in dict(letter["properties"])
    assert sorted(DeltaTable(table).to_pyarrow_table()["body"].to_pylist()) == ["0-0", "0-1"]
