"""A handler that is called by several threads: queues at the same time, each in its order."""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.consumer_world import BILLING, ConsumerWorld, drained, offsets_of
from tests.kit.delay_world import TOPIC
from tests.kit.reading import wait_until
from txmq.consumer.group_rules import TopicQueue
from txmq.consumer.handlers import ConsumeStatus
from txmq.consumer.pull import PullConsumer
from txmq.consumer.push import ConsumerHandle
from txmq.errors import ConfigError, ConsumeTimeoutError, EnvironmentProblemError
from txmq.message.received import ReceivedMessage
from txmq.ops.admin.groups import ConsumerGroups

QUEUES, TIMEOUT_S = 4, 5.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    own = {"consume_threads": 4, "pull_batch_size": 4}
    made = ConsumerWorld(tmp_path, queues=QUEUES, consumer_groups={BILLING: own})
    yield made
    made.close()


class Handler:
    """Notes what each queue was given; some messages wait until they may go on."""

    def __init__(self, *waits: str, fails: tuple[str, ...] = ()) -> None:
        self.given: dict[int, list[str]] = defaultdict(list)
        self.at_once: Counter[int] = Counter()
        self.overlaps: set[int] = set()
        self.waits, self.fails, self.go_on = set(waits), set(fails), threading.Event()
        self.waiting: set[str] = set()

    def __call__(self, message: ReceivedMessage) -> ConsumeStatus:
        body, queue_id = message.body.decode(), message.queue_id
        self.at_once[queue_id] += 1
        if self.at_once[queue_id] > 1:
            self.overlaps.add(queue_id)
        self.given[queue_id].append(body)
        if body in self.waits:
            self.waiting.add(body)
            self.go_on.wait(60)
        self.at_once[queue_id] -= 1
        return ConsumeStatus.RECONSUME_LATER if body in self.fails else ConsumeStatus.SUCCESS

    @property
    def count(self) -> int:
        return sum(map(len, self.given.values()))


def offsets(world: ConsumerWorld) -> list[int]:
    stored = offsets_of(world, BILLING)
    return [stored[TopicQueue(TOPIC, queue_id)] for queue_id in range(QUEUES)]


def test_queues_are_handled_at_the_same_time(world: ConsumerWorld) -> None:
    world.fill(1, queues=QUEUES)
    # Nobody passes it alone.
    together = threading.Barrier(QUEUES, timeout=60)

    handle = world.consumer().start(lambda _: together.wait() and None)
    wait_until(lambda: handle.total.consumed == QUEUES)
    handle.stop()

    assert (handle.exception, offsets(world)) == (None, [1] * QUEUES)


def test_each_message_is_handled_once_in_the_order_of_its_queue(world: ConsumerWorld) -> None:
    handler = Handler()
    handle = world.consumer().start(handler)
    for round_ in range(20):
        for queue_id in range(QUEUES):
            world.send_to(queue_id, *(f"{round_}.{n}" for n in range(queue_id + 1)))
    wait_until(lambda: handler.count == 20 * (1 + 2 + 3 + 4))
    handle.stop()

    expected = {
        queue_id: [f"{round_}.{n}" for round_ in range(20) for n in range(queue_id + 1)]
        for queue_id in range(QUEUES)
    }
    assert handler.given == expected
    assert not handler.overlaps
    assert offsets(world) == [20, 40, 60, 80]


def test_slow_message_holds_up_its_own_queue_alone(world: ConsumerWorld) -> None:
    world.fill(30, queues=QUEUES)
    handler = Handler("1-3")
    handle = world.consumer().start(handler)
    wait_until(lambda: handler.count == 3 * 30 + 4)
    assert handler.given[1] == ["1-0", "1-1", "1-2", "1-3"]
    handler.go_on.set()
    wait_until(lambda: handler.count == 4 * 30)
    handle.stop()

    assert offsets(world) == [30] * QUEUES


def test_nothing_behind_a_message_in_work_is_committed(world: ConsumerWorld) -> None:
    world.fill(8, queues=QUEUES)
    handler, consumer = Handler("1-3"), world.consumer()
    handle = consumer.start(handler)
    wait_until(lambda: handler.count == 3 * 8 + 4 and "1-3" in handler.waiting)

    # As when the lease is renewed on the way.
    consumer._reader._committed_s = -1e9
    world.send_to(0, "one more")
    wait_until(lambda: offsets(world)[0] == 9)

    assert offsets(world)[1] <= 3
    handler.go_on.set()
    wait_until(lambda: handler.count == 4 * 8 + 1)
    handle.stop()
    assert offsets(world) == [9, 8, 8, 8]


def test_message_that_fails_is_sent_back_before_the_next_of_its_queue(
    world: ConsumerWorld,
) -> None:
    world.fill(6, queues=QUEUES)
    fails = tuple(f"{queue_id}-2" for queue_id in range(QUEUES))
    handler = Handler(fails=fails)
    handle = world.consumer().start(handler)
    wait_until(lambda: handler.count == 6 * QUEUES)
    handle.stop()

    assert sorted(body.decode() for body, _, _ in world.sent_back.messages) == sorted(fails)
    assert handle.total.sent_back == QUEUES
    assert offsets(world) == [6] * QUEUES


def test_call_that_hangs_is_given_up_and_all_queues_go_on(world: ConsumerWorld) -> None:
    world.fill(3, queues=QUEUES)
    handler = Handler("0-0", "2-1")
    handle = world.consumer(consume_timeout_s=TIMEOUT_S).start(handler)
    wait_until(lambda: handler.waiting == {"0-0", "2-1"})
    wait_until(lambda: handler.count == 3 + 3 + 1 + 2)
    world.clock.advance(TIMEOUT_S + 1)
    wait_until(lambda: handler.count == 3 * QUEUES)
    handle.stop()
    handler.go_on.set()

    assert sorted(body for body, _, _ in world.sent_back.messages) == [b"0-0", b"2-1"]
    assert (handle.exception, handle.total.sent_back) == (None, 2)
    assert offsets(world) == [3] * QUEUES


def test_stop_waits_for_all_calls_and_loses_nothing(world: ConsumerWorld) -> None:
    world.fill(5, queues=QUEUES)
    handler = Handler(*(f"{queue_id}-1" for queue_id in range(QUEUES)))
    consumer = world.consumer()
    handle = consumer.start(handler)
    wait_until(lambda: len(handler.waiting) == QUEUES)
    stopping = threading.Thread(target=handle.stop)
    stopping.start()
    wait_until(handle._stopping.is_set)
    assert handle.is_alive
    handler.go_on.set()
    stopping.join(60)

    assert not handle.is_alive
    assert handler.given == {q: [f"{q}-0", f"{q}-1"] for q in range(QUEUES)}
    assert offsets(world) == [2] * QUEUES
    # The consumer is its owner's again.
    assert len(drained(consumer)) == 3 * QUEUES


def test_failure_of_one_thread_ends_all_and_leaves_the_group(world: ConsumerWorld) -> None:
    world.fill(40, queues=QUEUES)
    given = Counter[bytes]()

    def exits(message: ReceivedMessage) -> None:
        given[message.body] += 1
        if message.body == b"2-1":
            raise SystemExit

    handle = world.consumer().start(exits)
    wait_until(lambda: not handle.is_alive)

    assert isinstance(handle.exception, SystemExit)
    rest = Counter(message.body for message in drained(world.consumer()))
    assert rest[b"2-1"] == 1
    assert len(given + rest) == 40 * QUEUES
    assert (given & rest).total() == 1


def test_storage_that_is_away_is_told_once_a_moment_and_nothing_is_lost(
    world: ConsumerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.fill(4, queues=QUEUES)
    world.sent_back.failing = 2
    handler = Handler(fails=("3-1",))
    with caplog.at_level(logging.ERROR, logger="txmq.consumer.push"):
        handle = world.consumer().start(handler)
        wait_until(lambda: bool(world.sent_back.messages))
        wait_until(lambda: all(handler.given[q][-1:] == [f"{q}-3"] for q in range(QUEUES)))
        handle.stop()

    assert [body for body, _, _ in world.sent_back.messages] == [b"3-1"]
    for queue_id in range(3):
        assert handler.given[queue_id] == [f"{queue_id}-{n}" for n in range(4)]
    assert offsets(world) == [4] * QUEUES
    assert len(caplog.records) == 2


def test_in_order_a_message_that_fails_holds_its_queue_alone(tmp_path: Path) -> None:
    own = {
        "consume_threads": 4, "consume_message_orderly": True, "suspend_current_queue_time_s": 0.0,
    }  # fmt: skip
    world = ConsumerWorld(tmp_path, queues=QUEUES, consumer_groups={BILLING: own})
    world.fill(10, queues=QUEUES)
    handled: dict[int, list[bytes]] = defaultdict(list)
    chance = random.Random(3)

    def handle(message: ReceivedMessage) -> ConsumeStatus:
        if chance.random() < 0.2:
            return ConsumeStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        handled[message.queue_id].append(message.body)
        return ConsumeStatus.SUCCESS

    running = world.consumer().start(handle)
    wait_until(lambda: sum(map(len, handled.values())) == 10 * QUEUES)
    running.stop()

    assert handled == {q: [b"%d-%d" % (q, n) for n in range(10)] for q in range(QUEUES)}
    assert world.sent_back.messages == []
    world.close()


def test_queues_move_to_a_member_that_joins_while_threads_work(world: ConsumerWorld) -> None:
    handler, other_handler = Handler(), Handler()
    first = world.consumer()
    running = first.start(handler)
    world.fill(20, queues=QUEUES)
    second = world.consumer()
    other = second.start(other_handler)
    wait_until(lambda: len(second.assignment) > 1)
    for queue_id in range(QUEUES):
        world.send_to(queue_id, *(f"{queue_id}-{n}" for n in range(20, 40)))
    wait_until(lambda: handler.count + other_handler.count >= 40 * QUEUES)
    running.stop()
    other.stop()

    for queue_id in range(QUEUES):
        given = [*handler.given[queue_id], *other_handler.given[queue_id]]
        assert set(given) == {f"{queue_id}-{n}" for n in range(40)}
    assert offsets(world) == [40] * QUEUES


@pytest.mark.parametrize("wrong", [0, -1, 1_001, 2.0, True, "4"])
def test_wrong_number_of_threads_is_refused(world: ConsumerWorld, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="consume_threads"):
        world.consumer(consume_threads=wrong)


def test_argument_comes_before_the_setting(world: ConsumerWorld) -> None:
    world.fill(2, queues=QUEUES)
    threads: set[str] = set()
    handle = world.consumer(consume_threads=1).start(
        lambda _: threads.add(threading.current_thread().name) or None
    )
    wait_until(lambda: handle.total.consumed == 2 * QUEUES)
    handle.stop()

    assert len(threads) == 1


def test_consumer_whose_handlers_hang_too_often_ends(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txmq.consumer.push.HANGING_MAX", 1)
    world.fill(2, queues=QUEUES)
    handler = Handler(*(f"{queue_id}-0" for queue_id in range(QUEUES)))
    handle = world.consumer(consume_timeout_s=TIMEOUT_S).start(handler)
    wait_until(lambda: len(handler.waiting) == QUEUES)
    world.clock.advance(TIMEOUT_S + 1)
    wait_until(lambda: not handle.is_alive)

    assert isinstance(handle.exception, ConsumeTimeoutError)
    handler.go_on.set()


# --- what others do meanwhile ---------------------------------------------------------------------


def lose_and_get_again(world: ConsumerWorld, consumer: PullConsumer, offset: int) -> None:
    """As where others had queue 0 meanwhile, and handled all up to an offset."""
    queue = TopicQueue(TOPIC, 0)
    before = consumer._reader.epochs_of([queue])
    groups = ConsumerGroups(world.store, clock=world.clock)
    groups.reset_offsets(BILLING, TOPIC, {0: offset}, apply=True, force=True)
    wait_until(lambda: consumer._reader.epochs_of([queue]) not in (before, {}))


@pytest.mark.parametrize("is_orderly", [True, False])
def test_messages_of_a_queue_that_was_lost_and_came_back_are_left_to_who_had_it(
    tmp_path: Path,
    is_orderly: bool,  # noqa: FBT001 - a parameter
) -> None:
    own = {"consume_threads": 2, "consume_message_orderly": is_orderly}
    world = ConsumerWorld(tmp_path, queues=1, consumer_groups={BILLING: own})
    world.fill(8, queues=1)
    handler = Handler("0-2")
    consumer = world.consumer()
    handle = consumer.start(handler)
    wait_until(lambda: handler.waiting == {"0-2"})
    # Others take the queue, handle all, and leave.
    lose_and_get_again(world, consumer, 8)
    world.send_to(0, "0-8")
    handler.go_on.set()
    wait_until(lambda: handler.given[0][-1:] == ["0-8"])
    handle.stop()

    assert handler.given[0] == ["0-0", "0-1", "0-2", "0-8"]
    assert (offsets_of(world, BILLING)[TopicQueue(TOPIC, 0)], handle.exception) == (9, None)
    world.close()


def test_failure_of_a_queue_that_was_lost_and_came_back_sends_nothing_back(
    world: ConsumerWorld,
) -> None:
    world.send_to(0, "0-0", "0-1")
    handler = Handler("0-0", fails=("0-0", "0-1"))
    consumer = world.consumer()
    handle = consumer.start(handler)
    wait_until(lambda: handler.waiting == {"0-0"})
    lose_and_get_again(world, consumer, 2)
    handler.go_on.set()
    handle.stop()

    assert world.sent_back.messages == []
    assert offsets(world)[0] == 2


@pytest.mark.parametrize("threads", [1, 2])
def test_consumer_ends_where_no_thread_can_take_over(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    world.fill(2, queues=QUEUES)
    waits = [f"{queue_id}-0" for queue_id in range(threads)]
    handler = Handler(*waits)
    consumer = world.consumer(consume_timeout_s=TIMEOUT_S, consume_threads=threads)
    handle = consumer.start(handler)
    wait_until(lambda: handler.waiting == set(waits))
    start = threading.Thread.start

    def fails(thread: threading.Thread) -> None:
        if "hanging" not in thread.name and "on-error" not in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fails)
        world.clock.advance(TIMEOUT_S + 1)
        wait_until(lambda: not handle.is_alive)
        wait_until(lambda: len(world.sent_back.messages) == threads)
    handle.stop()
    handler.go_on.set()

    assert isinstance(handle.exception, EnvironmentProblemError)
    wait_until(lambda: consumer._use._token is None)
    consumer.close()


def test_one_stall_of_all_threads_does_not_end_the_consumer(world: ConsumerWorld) -> None:
    world.fill(1, queues=QUEUES)
    handler = Handler(*(f"{queue_id}-0" for queue_id in range(QUEUES)))
    handle = world.consumer(consume_timeout_s=TIMEOUT_S, consume_threads=24).start(handler)
    wait_until(lambda: len(handler.waiting) == QUEUES)
    world.clock.advance(TIMEOUT_S + 1)
    wait_until(lambda: len(world.sent_back.messages) == QUEUES)
    handler.go_on.set()
    world.fill(2, queues=QUEUES)
    wait_until(lambda: handler.count == 3 * QUEUES)
    handle.stop()

    assert handle.exception is None


def test_threads_share_the_bytes_of_a_batch(tmp_path: Path) -> None:
    own = {BILLING: {"consume_threads": QUEUES}}
    world = ConsumerWorld(
        tmp_path, queues=QUEUES, consumer_groups=own, consume_batch_bytes=400_000,
        max_message_size_bytes=100_000,
    )  # fmt: skip
    for queue_id in range(QUEUES):
        world.send_to(queue_id, *(f"{queue_id}-{n}".ljust(40_000) for n in range(8)))
    consumer, sizes = world.consumer(), list[int]()
    take = consumer._reader.take

    def measured(*arguments: Any, **more: Any) -> Any:
        messages = take(*arguments, **more)
        sizes.append(sum(len(message.body) for _, message in messages))
        return messages

    consumer._reader.take = measured  # type: ignore[method-assign]
    handle = consumer.start(lambda _: None)
    wait_until(lambda: handle.total.consumed == 8 * QUEUES)
    handle.stop()

    assert max(sizes) <= 400_000 // QUEUES
    world.close()


def test_what_was_handled_before_an_error_is_counted(world: ConsumerWorld) -> None:
    world.send_to(0, "a", "b", "c", "d")
    world.sent_back.failing = 1
    handler = Handler(fails=("b",))
    handle = world.consumer(consume_threads=1).start(handler)
    wait_until(lambda: bool(world.sent_back.messages) and handler.given[0][-1] == "d")
    handle.stop()

    assert handle.total.consumed == len(handler.given[0])


def test_handler_may_stop_its_consumer(world: ConsumerWorld) -> None:
    world.fill(3, queues=QUEUES)
    handles: list[Any] = []
    ready = threading.Event()

    def handle(message: ReceivedMessage) -> None:
        ready.wait(60)
        if message.body == b"1-0":
            handles[0].stop()

    handles.append(world.consumer().start(handle))
    ready.set()
    wait_until(lambda: not handles[0].is_alive)

    assert handles[0].exception is None
    assert world.sent_back.messages == []
    assert offsets(world)[1] == 1


def test_what_others_handled_is_committed_though_one_call_takes_long(
    world: ConsumerWorld,
) -> None:
    world.fill(4, queues=QUEUES)
    handler = Handler("2-0")
    handle = world.consumer().start(handler)
    wait_until(lambda: handler.count == 3 * 4 + 1)
    handle._stopping.set()
    wait_until(lambda: offsets(world) == [4, 4, 0, 4])
    assert handle.is_alive
    handler.go_on.set()
    handle.stop()

    assert offsets(world) == [4, 4, 1, 4]


def test_thread_that_takes_over_and_ends_at_once_ends_the_consumer(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txmq.consumer.push.HANGING_MAX", 1)
    add_thread = ConsumerHandle._add_thread

    def adds(handle: ConsumerHandle, *arguments: Any, **more: Any) -> bool:
        is_any_left = add_thread(handle, *arguments, **more)
        # Where the thread that it follows is forgotten by a later step, it ends before that.
        wait_until(lambda: len(handle._threads) <= 1)
        return is_any_left

    monkeypatch.setattr(ConsumerHandle, "_add_thread", adds)
    world.send_to(0, "hangs", "behind it")
    handler = Handler("hangs")
    consumer = world.consumer(consume_timeout_s=TIMEOUT_S, consume_threads=1)
    handle = consumer.start(handler)
    wait_until(lambda: handler.waiting == {"hangs"})
    world.clock.advance(TIMEOUT_S + 1)
    wait_until(lambda: not handle.is_alive)

    assert isinstance(handle.exception, ConsumeTimeoutError)
    assert [m.body for m in drained(world.consumer())] == [b"behind it"]
    handler.go_on.set()
