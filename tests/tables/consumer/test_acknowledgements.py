"""A consumer that acknowledges each message for itself: what comes again, and to whom."""

from __future__ import annotations

import itertools
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.kit.consumer_world import BILLING, ConsumerWorld, bodies, offsets_of, wake
from tests.kit.delay_world import TOPIC
from tests.kit.kills import interrupted, interrupted_at
from tests.kit.reading import commits
from tests.tables.admin.test_rebuild_and_groups import skip
from tests.tables.consumer.test_restored_topics import forget_ends
from txmq.consumer.acknowledged import AcknowledgedPosition
from txmq.consumer.attempts import UNACKNOWLEDGED_MAX, Attempts, Span
from txmq.consumer.group import group_in
from txmq.consumer.group_reader import GroupReader
from txmq.consumer.group_rules import TopicQueue
from txmq.consumer.lag import lag_of_group
from txmq.consumer.pull import PullConsumer
from txmq.consumer.send_back import SendBack
from txmq.consumer.simple import SimpleConsumer
from txmq.errors import (
    ClosedError,
    ConfigError,
    ConsumerGroupConflictError,
    InboxError,
    InvalidReceiptError,
    StorageUnavailableError,
    TopicRestoredError,
)
from txmq.message.message import Message
from txmq.message.received import ReceivedMessage
from txmq.ops.admin.dead_letters import DeadLetters
from txmq.ops.backup.order import order_faults
from txmq.ops.backup.positions import sight_of
from txmq.publish.publisher import Publisher
from txmq.user_data.delta_inbox import DeltaInbox

QUEUE = TopicQueue(TOPIC, 0)
AGAIN_MAX, RECONSUME_MAX = 1, 3
LEASE_S = 10.0
_INTERRUPTED = ("txmq.consumer.acknowledged", "txmq.consumer.simple")


def world_of(folder: Path, **own: Any) -> ConsumerWorld:
    settings = {
        "max_reconsume_times": RECONSUME_MAX, "redeliver_in_place_max": AGAIN_MAX,
        "invisible_duration_s": 2.0, **own,
    }  # fmt: skip
    return ConsumerWorld(
        folder, queues=1, consumer_lease_s=LEASE_S, consumer_groups={BILLING: settings}
    )


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = world_of(tmp_path)
    yield made
    made.close()


@pytest.fixture
def ordered(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = world_of(tmp_path, consume_message_orderly=True)
    yield made
    made.close()


def member(world: ConsumerWorld, **more: Any) -> SimpleConsumer:
    made = SimpleConsumer(
        world.store, consumer_group=BILLING, topics=TOPIC, clock=world.clock,
        sends_back=SendBack(world.store, BILLING, world.clock), **more,
    )  # fmt: skip
    world.consumers.append(made)  # type: ignore[arg-type] - to be closed
    return made


def received(consumer: SimpleConsumer, count: int = 32, **more: Any) -> list[ReceivedMessage]:
    return consumer.receive(count, timeout_s=0, **more)


def fall_silent(consumer: SimpleConsumer) -> None:
    """As a member that is killed: it never says another word to the group."""
    consumer._reader._member._lease_renewal.stop()
    consumer._use.close()


def know_the_group(consumer: SimpleConsumer) -> None:
    """Let the next call see who joined, and not only some milliseconds later."""
    wake(consumer)  # type: ignore[arg-type] - a member as others
    consumer._reader._member._next_group_look_s = 0.0


def taken_over(world: ConsumerWorld) -> tuple[SimpleConsumer, list[ReceivedMessage]]:
    """A member that sees all others silent for a lease, and what it receives then."""
    heir, messages = member(world), list[ReceivedMessage]()
    for _ in range(5):
        know_the_group(heir)
        messages += received(heir, invisible_duration_s=100)
        world.clock.advance(LEASE_S / 4)
    return heir, messages


def deliver(world: ConsumerWorld) -> None:
    """Have retries come whose time is over."""
    world.publisher.run_once()
    world.deliver()
    world.publisher.run_once()


def offset(world: ConsumerWorld) -> int:
    return offsets_of(world, BILLING)[QUEUE]


def attempts(world: ConsumerWorld) -> Attempts | None:
    return group_in(world.store, BILLING).read().attempts.get(QUEUE)


# --- acknowledging --------------------------------------------------------------------------------


def test_message_that_is_acknowledged_does_not_come_again(world: ConsumerWorld) -> None:
    world.fill(4, queues=1)
    consumer = member(world)
    messages = received(consumer)
    for message in messages:
        consumer.ack(message)
    world.clock.advance(3)

    assert received(consumer) == []
    assert offset(world) == 4
    assert attempts(world) is None


def test_message_in_hand_is_invisible_until_its_time_is_over(world: ConsumerWorld) -> None:
    world.fill(2, queues=1)
    consumer = member(world)
    assert bodies(received(consumer)) == ["0-0", "0-1"]
    world.clock.advance(1.9)
    assert received(consumer) == []
    world.clock.advance(0.2)

    again = received(consumer)

    assert bodies(again) == ["0-0", "0-1"]
    assert [message.reconsume_times for message in again] == [1, 1]


def test_only_what_is_not_acknowledged_comes_again_and_before_what_is_fresh(
    world: ConsumerWorld,
) -> None:
    world.fill(6, queues=1)
    consumer = member(world)
    for message in received(consumer, 4):
        if message.queue_offset % 2:
            consumer.ack(message)
    world.clock.advance(3)

    assert bodies(received(consumer)) == ["0-0", "0-2", "0-4", "0-5"]
    assert offset(world) == 0
    assert attempts(world) == Attempts(6, (Span(0, 1, 2), Span(2, 3, 2), Span(4, 6, 1)))


def test_acknowledgement_is_durable_with_the_next_commit(world: ConsumerWorld) -> None:
    world.fill(2, queues=1)
    consumer = member(world)
    first, second = received(consumer)
    consumer.ack(second)
    assert attempts(world) == Attempts(2, (Span(0, 2, 1),))
    assert consumer.commit() == frozenset()
    assert attempts(world) == Attempts(2, (Span(0, 1, 1),))
    consumer.ack(first)
    assert received(consumer) == []
    assert offset(world) == 2


def test_nothing_new_costs_no_commit(world: ConsumerWorld) -> None:
    world.fill(2, queues=1)
    consumer = member(world)
    received(consumer)
    before = commits(world.store, f"state/group_{BILLING}")

    consumer.commit()
    received(consumer)

    assert commits(world.store, f"state/group_{BILLING}") == before


def test_late_acknowledgement_after_the_message_came_again_is_refused(
    world: ConsumerWorld,
) -> None:
    world.fill(1, queues=1)
    consumer = member(world)
    (first,) = received(consumer)
    world.clock.advance(3)
    (second,) = received(consumer)

    with pytest.raises(InvalidReceiptError, match="offset 0"):
        consumer.ack(first)

    consumer.ack(second)
    with pytest.raises(InvalidReceiptError):
        consumer.ack(second)


def test_late_acknowledgement_before_anybody_has_it_again_counts(world: ConsumerWorld) -> None:
    world.fill(1, queues=1)
    consumer = member(world)
    (message,) = received(consumer)
    world.clock.advance(3)

    consumer.ack(message)

    assert received(consumer) == []
    assert offset(world) == 1


def test_message_of_another_consumer_has_no_receipt(world: ConsumerWorld) -> None:
    world.fill(1, queues=1)
    (message,) = received(member(world))
    other = SimpleConsumer(world.store, consumer_group="others", topics=TOPIC, clock=world.clock)
    with other:
        (own,) = received(other)
        with pytest.raises(InvalidReceiptError):
            other.ack(message)
        other.ack(own)


def test_failed_message_comes_at_once_or_later_as_asked(world: ConsumerWorld) -> None:
    world.fill(3, queues=1)
    consumer = member(world)
    first, second, third = received(consumer)
    consumer.change_invisible_duration(first, 0)
    consumer.change_invisible_duration(third, 8)

    assert bodies(received(consumer)) == ["0-0"]
    world.clock.advance(3)
    assert bodies(received(consumer)) == ["0-1"]
    consumer.ack(third)
    with pytest.raises(InvalidReceiptError):
        consumer.change_invisible_duration(second, 8)


@pytest.mark.parametrize("wrong", [-1, 43_201, "10", True, float("nan"), float("inf")])
def test_wrong_invisible_time_is_refused(world: ConsumerWorld, wrong: Any) -> None:
    world.fill(1, queues=1)
    consumer = member(world)
    with pytest.raises(ConfigError, match="invisible_duration_s"):
        consumer.receive(1, wrong, 0)
    (message,) = received(consumer)
    with pytest.raises(ConfigError, match="invisible_duration_s"):
        consumer.change_invisible_duration(message, wrong)


def test_closed_consumer_refuses_all_calls(world: ConsumerWorld) -> None:
    world.fill(1, queues=1)
    consumer = member(world)
    (message,) = received(consumer)
    consumer.close()
    consumer.close()

    for call in (lambda: consumer.ack(message), consumer.commit, lambda: received(consumer)):
        with pytest.raises(ClosedError):
            call()


# --- holes ----------------------------------------------------------------------------------------


def test_hole_becomes_a_retry_and_the_offset_moves_on(world: ConsumerWorld) -> None:
    world.fill(3, queues=1)
    consumer = member(world)
    given: Counter[str] = Counter()
    for _ in range(4):
        for message in received(consumer):
            given[message.body.decode()] += 1
            if message.body != b"0-1":
                consumer.ack(message)
        world.clock.advance(2.1)

    assert given == {"0-0": 1, "0-1": 1 + AGAIN_MAX, "0-2": 1}
    assert (offset(world), attempts(world)) == (3, None)
    world.publisher.run_once()
    world.clock.advance(60)
    deliver(world)
    know_the_group(consumer)
    (retry,) = received(consumer)
    assert (retry.body, retry.origin_topic) == (b"0-1", TOPIC)
    assert retry.reconsume_times == 1 + AGAIN_MAX


def test_message_that_is_never_acknowledged_is_a_dead_letter(world: ConsumerWorld) -> None:
    world.fill(1, queues=1)
    consumer, given = member(world), 0
    for _ in range(8):
        know_the_group(consumer)
        given += len(received(consumer))
        world.publisher.run_once()
        world.clock.advance(1000)
        deliver(world)

    (letter,) = DeadLetters(world.store, BILLING, clock=world.clock).all()
    assert given == RECONSUME_MAX + 1
    assert (letter.origin_topic, letter.reconsume_times) == (TOPIC, RECONSUME_MAX + 1)


def test_so_many_messages_of_a_queue_are_in_hands_and_no_more(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.fill(UNACKNOWLEDGED_MAX + 5, queues=1)
    consumer = member(world)
    messages = received(consumer, 5_000)
    assert len(messages) == UNACKNOWLEDGED_MAX
    assert received(consumer) == []

    for message in messages[10:13]:
        consumer.ack(message)

    assert [m.queue_offset for m in received(consumer)] == [1000, 1001, 1002]
    world.close()


# --- members --------------------------------------------------------------------------------------


def test_member_that_is_killed_leaves_its_acknowledgements_and_its_counts(
    world: ConsumerWorld,
) -> None:
    world.fill(5, queues=1)
    lost = member(world)
    for message in received(lost, 4):
        if message.queue_offset in (1, 3):
            lost.ack(message)
    lost.commit()
    fall_silent(lost)

    _, again = taken_over(world)

    assert [(m.body, m.reconsume_times) for m in again] == [
        (b"0-0", 1), (b"0-2", 1), (b"0-4", 0),
    ]  # fmt: skip


def test_message_that_kills_each_member_is_counted_and_leaves(world: ConsumerWorld) -> None:
    world.fill(1, queues=1)
    given = 0
    for _ in range(AGAIN_MAX + 3):
        victim, messages = taken_over(world)
        given += len(messages)
        fall_silent(victim)

    assert given == 1 + AGAIN_MAX
    assert offset(world) == 1


def test_member_that_leaves_gives_its_messages_up_at_once(world: ConsumerWorld) -> None:
    world.fill(3, queues=1)
    leaver = member(world)
    messages = received(leaver)
    heir = member(world)
    assert received(heir) == []
    leaver.ack(messages[1])

    leaver.close()
    know_the_group(heir)

    assert bodies(received(heir)) == ["0-0", "0-2"]


def test_member_that_slept_through_its_lease_is_told(world: ConsumerWorld) -> None:
    world.fill(2, queues=1)
    sleeper = member(world)
    first, second = received(sleeper)
    sleeper.ack(first)
    sleeper._reader._member._lease_renewal.stop()
    assert bodies(taken_over(world)[1]) == ["0-0", "0-1"]

    with pytest.raises(InvalidReceiptError):
        sleeper.ack(second)
    # What it acknowledged and did not commit comes again.
    assert sleeper.commit() == {QUEUE}
    assert sleeper.commit() == frozenset()
    assert attempts(world) == Attempts(2, (Span(0, 2, 2),))


@pytest.mark.parametrize("which", [(0, 1), (0,), (1,)])
@pytest.mark.parametrize("looks", [True, False])
def test_acknowledgement_that_came_too_late_to_be_durable_is_told(
    world: ConsumerWorld,
    which: tuple[int, ...],
    looks: bool,  # noqa: FBT001 - a parameter
) -> None:
    world.fill(2, queues=1)
    sleeper = member(world)
    messages = received(sleeper, invisible_duration_s=100)
    for number in which:
        sleeper.ack(messages[number])
    sleeper._reader._member._lease_renewal.stop()
    assert bodies(taken_over(world)[1]) == ["0-0", "0-1"]
    if looks:
        know_the_group(sleeper)
        assert received(sleeper) == []

    assert sleeper.commit() == {QUEUE}
    assert offset(world) == 0


def test_queue_with_messages_in_hands_is_given_up_once_they_are_over(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    world.topics.create("wide", queue_nums=3)
    for queue_id in range(3):
        world.send_to(queue_id, "a", "b", topic="wide")
    first = SimpleConsumer(
        world.store, consumer_group=BILLING, topics="wide", clock=world.clock,
    )  # fmt: skip
    messages = received(first)
    assert len(messages) == 6
    second = SimpleConsumer(
        world.store, consumer_group=BILLING, topics="wide", clock=world.clock,
    )  # fmt: skip
    world.clock.advance(1)
    for consumer in (first, second) * 2:
        know_the_group(consumer)
        assert received(consumer) == []

    for message in messages:
        if message.body == b"a":
            first.ack(message)
    world.clock.advance(1.5)
    given: dict[SimpleConsumer, list[ReceivedMessage]] = {first: [], second: []}
    for consumer in (first, second) * 4:
        know_the_group(consumer)
        given[consumer] += received(consumer)

    assert [bodies(given[first]), bodies(given[second])] == [["b", "b"], ["b"]]
    first.close()
    second.close()
    world.close()


def test_members_of_a_group_all_acknowledge_or_none_does(world: ConsumerWorld) -> None:
    member(world)
    with pytest.raises(ConsumerGroupConflictError, match="acknowledged"):
        PullConsumer(world.store, consumer_group=BILLING, topics=TOPIC, clock=world.clock)


def test_group_that_commits_offsets_afterwards_begins_at_the_lowest_hole(
    world: ConsumerWorld,
) -> None:
    world.fill(3, queues=1)
    consumer = member(world)
    messages = received(consumer)
    consumer.ack(messages[1])
    consumer.close()

    assert bodies(world.consumer().poll(8, 0)) == ["0-0", "0-1", "0-2"]
    assert attempts(world) is None


def test_seek_forgets_what_was_handed_out(world: ConsumerWorld) -> None:
    world.fill(4, queues=1)
    consumer = member(world)
    messages = received(consumer)
    consumer.ack(messages[0])
    consumer.seek(TOPIC, 0, 1)

    with pytest.raises(InvalidReceiptError):
        consumer.ack(messages[2])

    again = received(consumer)
    assert [(m.body, m.reconsume_times) for m in again] == [
        (b"0-1", 0), (b"0-2", 0), (b"0-3", 0),
    ]  # fmt: skip
    assert attempts(world) == Attempts(4, (Span(1, 4, 1),))


def test_queue_that_is_paused_hands_out_nothing_again(world: ConsumerWorld) -> None:
    world.fill(1, queues=1)
    consumer = member(world)
    received(consumer)
    world.clock.advance(3)
    consumer.pause(TOPIC)
    assert received(consumer) == []
    consumer.resume(TOPIC)
    assert bodies(received(consumer)) == ["0-0"]


def test_lag_counts_what_is_not_acknowledged(world: ConsumerWorld) -> None:
    world.fill(5, queues=1)
    consumer = member(world)
    for message in received(consumer, 4):
        if message.queue_offset:
            consumer.ack(message)
    consumer.commit()

    (lag,) = [at for at in lag_of_group(world.store, BILLING, world.clock) if at.topic == TOPIC]

    assert (lag.next_offset, lag.end_offset, lag.lag) == (0, 5, 2)
    assert (lag.acknowledged, lag.unacknowledged, lag.handed_offset) == (3, 1, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        Attempts(9, (Span(0, 4, 0),)), Attempts(2, (Span(0, 4, 1),)), Attempts(4, (Span(3, 1, 1),)),
        Attempts(8, (Span(0, 2, 1), Span(1, 3, 1))), Attempts(4, (Span(1, 2, 1),)),
        Attempts(4, ()), Attempts(2**60, (Span(-5, 2, 1),)), Attempts(1, (Span(0, 1, 2**40),)),
    ],
)  # fmt: skip
def test_attempts_that_nobody_counted_only_have_messages_come_again(
    world: ConsumerWorld, wrong: Attempts
) -> None:
    world.fill(3, queues=1)
    member(world).close()
    group = group_in(world.store, BILLING)
    group.change(lambda state: replace(state, attempts={QUEUE: wrong}), 0)

    assert bodies(received(member(world))) == ["0-0", "0-1", "0-2"]


# --- order ----------------------------------------------------------------------------------------


def test_in_order_nothing_is_handed_out_behind_what_is_in_hands(ordered: ConsumerWorld) -> None:
    ordered.fill(5, queues=1)
    consumer = member(ordered)
    first, second = received(consumer, 2)
    assert received(consumer) == []
    consumer.ack(first)
    assert received(consumer) == []
    consumer.change_invisible_duration(second, 0)

    assert [m.queue_offset for m in received(consumer, 2)] == [1]
    assert received(consumer, 2) == []


def test_in_order_a_message_stays_in_its_place_until_it_is_a_dead_letter(
    ordered: ConsumerWorld,
) -> None:
    ordered.fill(2, queues=1)
    consumer, given = member(ordered), list[tuple[bytes, int]]()
    for _ in range(RECONSUME_MAX + 2):
        for message in received(consumer, 1):
            given.append((message.body, message.reconsume_times))
            if message.body == b"0-1":
                consumer.ack(message)
        ordered.clock.advance(2.1)
        consumer.commit()

    assert given == [(b"0-0", n) for n in range(RECONSUME_MAX + 1)] + [(b"0-1", 0)]
    ordered.publisher.run_once()
    (letter,) = DeadLetters(ordered.store, BILLING, clock=ordered.clock).all()
    assert letter.reconsume_times == RECONSUME_MAX + 1


# --- errors and interrupts ------------------------------------------------------------------------


def test_commit_that_fails_hands_nothing_out_and_loses_nothing(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.fill(3, queues=1)
    consumer = member(world)
    with monkeypatch.context() as patch:
        patch.setattr(GroupReader, "commit", _fails)
        with pytest.raises(StorageUnavailableError):
            received(consumer)

    again = received(consumer)
    assert [(m.body, m.reconsume_times) for m in again] == [
        (b"0-0", 0), (b"0-1", 0), (b"0-2", 0),
    ]  # fmt: skip


def _fails(*_: object) -> None:
    raise StorageUnavailableError("state", OSError("the storage is away"))


@pytest.mark.parametrize(
    ("owner", "step"),
    [
        (GroupReader, "commit"), (GroupReader, "is_owned"), (GroupReader, "work_on"),
        (AcknowledgedPosition, "take"), (AcknowledgedPosition, "receive_until"),
        (GroupReader, "note_received"),
    ],
)  # fmt: skip
def test_interrupt_while_messages_are_received_loses_none(
    world: ConsumerWorld, owner: type, step: str
) -> None:
    world.fill(4, queues=1)
    consumer = member(world)
    with pytest.raises(KeyboardInterrupt), interrupted(owner, step):
        received(consumer)

    world.clock.advance(3)
    assert bodies(received(consumer)) == ["0-0", "0-1", "0-2", "0-3"]


def test_threads_acknowledge_while_another_one_waits(world: ConsumerWorld) -> None:
    world.fill(64, queues=1)
    consumer, stopping = member(world), threading.Event()
    with ThreadPoolExecutor(8) as threads:
        waiting = [threads.submit(consumer.receive, 8, 60, 60, stopping) for _ in range(4)]
        messages = [message for each in waiting for message in each.result()]
        idle = threads.submit(consumer.receive, 64, 60, 60, stopping)
        rest = idle.result()
        idle = threads.submit(consumer.receive, 64, 60, 60, stopping)
        list(threads.map(consumer.ack, [*messages, *rest]))
        stopping.set()
        assert idle.result() == []

    assert len(messages) + len(rest) == 64
    consumer.commit()
    assert offset(world) == 64


@pytest.mark.parametrize("part", range(4))
def test_interrupt_at_any_step_of_a_receive_loses_none(tmp_path: Path, part: int) -> None:
    files = {sys.modules[name].__file__ or "" for name in _INTERRUPTED}
    for place in itertools.count(part, 4):
        world = world_of(tmp_path / str(place), redeliver_in_place_max=9)
        world.fill(2, queues=1)
        consumer = member(world)
        received(consumer)
        world.send_to(0, "0-2")
        world.clock.advance(3)
        know_the_group(consumer)
        is_interrupted = interrupted_at(place, partial(received, consumer), files)
        given: set[str] = set()
        for _ in range(3):
            world.clock.advance(3)
            know_the_group(consumer)
            for message in received(consumer):
                consumer.ack(message)
                given.add(message.body.decode())
        consumer.commit()
        assert (given, offset(world)) == ({"0-0", "0-1", "0-2"}, 3), place
        world.close()
        if not is_interrupted:
            break
    assert place > 20


# --- what others do -------------------------------------------------------------------------------


@pytest.mark.parametrize("are_held", [True, False])
def test_commit_gives_up_no_queue_whose_messages_are_in_hands(
    tmp_path: Path,
    are_held: bool,  # noqa: FBT001 - a parameter
) -> None:
    world = world_of(tmp_path)
    world.topics.create("wide", queue_nums=4)
    for queue_id in range(4):
        world.send_to(queue_id, "a", "b", topic="wide")
    names = {"consumer_group": BILLING, "topics": "wide", "clock": world.clock}
    first = SimpleConsumer(world.store, **names)
    messages = received(first, invisible_duration_s=60)
    second = SimpleConsumer(world.store, **names)
    for message in messages[: 1 if are_held else None]:
        first.ack(message)
    first.commit()
    for _ in range(4):
        know_the_group(second)
        assert received(second) == []

    for message in messages[1:] if are_held else []:
        first.ack(message)
    assert first.commit() == frozenset()
    first.close()
    second.close()
    world.close()


def test_lease_lives_as_long_as_messages_are_in_hands(tmp_path: Path) -> None:
    world = world_of(tmp_path, consume_timeout_s=0.01)
    world.fill(2, queues=1)
    consumer = member(world)
    messages = received(consumer, invisible_duration_s=3600)
    consumer.ack(messages[0])
    consumer.commit()
    held = consumer._reader._member
    assert held._works_until_s > time.monotonic() + 3000
    consumer.ack(messages[1])
    received(consumer)
    assert held._works_until_s <= time.monotonic() + 1
    world.close()


def test_message_that_cannot_be_sent_back_holds_up_no_other(tmp_path: Path) -> None:
    world = world_of(tmp_path, redeliver_in_place_max=0)
    world.send_to(0, "bad")
    world.sent_back.failing = 99
    consumer = SimpleConsumer(
        world.store, consumer_group=BILLING, topics=TOPIC, clock=world.clock,
        sends_back=world.sent_back,
    )  # fmt: skip
    received(consumer)
    world.clock.advance(3)
    world.send_to(0, "good")
    know_the_group(consumer)
    with pytest.raises(OSError, match="no disk"):
        received(consumer)
    assert bodies(received(consumer)) == ["good"]
    with pytest.raises(OSError, match="no disk"):
        received(consumer)

    world.sent_back.failing = 0
    assert received(consumer) == []
    assert [body for body, _, _ in world.sent_back.messages] == [b"bad"]
    consumer.close()
    world.close()


def test_topic_that_went_back_is_told_though_only_what_is_behind_the_offset_was_read(
    world: ConsumerWorld,
) -> None:
    world.send_to(0, "a")
    folder = Path(world.store.location, "topics", TOPIC)
    shutil.copytree(folder, folder.with_name("copy"))
    world.send_to(0, "b", "c")
    consumer = member(world)
    for message in received(consumer)[1:]:
        consumer.ack(message)
    consumer.close()
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)

    found = order_faults(sight_of(world.store.tables))
    assert any("its next offset in queue 0 is 3" in str(fault) for fault in found)
    forget_ends(world.store)
    Publisher(world.store, clock=world.clock).run_once()
    world.producer.send([Message(TOPIC, body) for body in (b"d", b"e", b"f")], queue_id=0)
    Publisher(world.store, clock=world.clock).run_once()
    with pytest.raises(TopicRestoredError):
        received(member(world))


def test_rebuild_of_what_lies_behind_all_attempts_leaves_the_group(world: ConsumerWorld) -> None:
    world.send_to(0, *(f"m{n}" for n in range(6)))
    skip(world, "m2", "m3")
    consumer = member(world)
    messages = received(consumer, 2)
    consumer.ack(messages[1])
    consumer.close()
    before = attempts(world)

    world.topics.rebuild(TOPIC, apply=True)

    assert attempts(world) == before == Attempts(2, (Span(0, 1, 1),))


def test_inbox_that_rests_on_order_refuses_them(world: ConsumerWorld, tmp_path: Path) -> None:
    world.fill(1, queues=1)
    table = str(tmp_path / "bookings")
    DeltaTable.create(table, pa.schema([("body", pa.string())]))
    (message,) = received(member(world))

    with pytest.raises(InboxError, match="SimpleConsumer"):
        DeltaInbox(BILLING, table).apply([message], lambda _: None)


def test_foreign_argument_is_refused(world: ConsumerWorld) -> None:
    consumer = member(world)
    for wrong in (None, "x", 5, object()):
        with pytest.raises(ConfigError, match="message must be"):
            consumer.ack(wrong)  # type: ignore[arg-type] - of callers without types
