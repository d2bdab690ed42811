"""Ctrl-C at a place of a consumer where it has messages that nobody has handled yet."""

from __future__ import annotations

import itertools
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from tests.kit.consumer_world import (
    ConsumerWorld,
    SentBack,
    bodies,
    drained,
    offsets_of,
    wake,
)
from tests.kit.delay_world import TOPIC
from tests.kit.kills import interrupted, interrupted_at
from tests.kit.reading import wait_until
from txmq.consumer import exclusive_use, pull
from txmq.consumer.push import Batch, _HangingLook
from txmq.consumer.reader import TopicReader
from txmq.consumer.send_back import FailedMessage
from txmq.consumer.taking import HandedMessages, MessageTaking
from txmq.message.received import ReceivedMessage

TIMEOUT_S = 1.0
SENT = ["0-0", "0-1", "0-2", "1-0", "1-1", "1-2"]
TAKING = [(HandedMessages, "take"), (MessageTaking, "_hand_out"), (MessageTaking, "_doubted")]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path, queues=2)
    made.fill(3, queues=2)
    yield made
    made.close()


@pytest.mark.parametrize(("owner", "name"), TAKING)
def test_messages_of_a_poll_that_is_interrupted_are_not_committed(
    world: ConsumerWorld, owner: type, name: str
) -> None:
    consumer = world.consumer()
    with pytest.raises(KeyboardInterrupt), interrupted(owner, name):
        consumer.poll(4, 0)
    consumer.commit()

    assert set(offsets_of(world).values()) == {0}
    assert sorted(bodies(drained(consumer))) == SENT


def test_poll_that_is_interrupted_leaves_what_the_caller_has_as_it_is(world: ConsumerWorld) -> None:
    consumer = world.consumer()
    in_hand = consumer.poll(4, 0)
    with pytest.raises(KeyboardInterrupt), interrupted(MessageTaking, "_doubted"):
        consumer.poll(4, 0)

    consumer.commit()
    assert sum(offsets_of(world).values()) == 4
    assert sorted(bodies(in_hand) + bodies(drained(consumer))) == SENT


@pytest.mark.parametrize(("owner", "name"), [*TAKING, (Batch, "__init__"), (_HangingLook, "begin")])
def test_messages_that_an_interrupt_keeps_from_the_handler_come_again(
    world: ConsumerWorld, owner: type, name: str
) -> None:
    consumer, handled = world.consumer(), list[str]()

    def handler(message: ReceivedMessage) -> None:
        handled.append(message.body.decode())

    with pytest.raises(KeyboardInterrupt), interrupted(owner, name):
        consumer.run_once(handler)
    consumer.run_once(handler)

    assert sorted(handled) == SENT


def test_message_of_a_commit_whose_look_was_interrupted_is_seen(world: ConsumerWorld) -> None:
    consumer = world.consumer()
    drained(consumer)
    world.send_to(0, "later")
    wake(consumer)

    with pytest.raises(KeyboardInterrupt), interrupted(TopicReader, "_add", before=True):
        consumer.poll(1, 0)
    wake(consumer)

    assert bodies(drained(consumer)) == ["later"]


# --- the use of a consumer ------------------------------------------------------------------------
STEPS_OF = (exclusive_use.__file__, pull.__file__)


def test_an_interrupt_at_any_step_of_a_call_leaves_the_consumer_to_the_next_one(
    world: ConsumerWorld,
) -> None:
    consumer = world.consumer()
    for place in itertools.count():
        was_interrupted = interrupted_at(place, lambda: consumer.poll(1, 0), STEPS_OF)
        # It would raise ConcurrentUseError.
        consumer.pause(TOPIC)
        if not was_interrupted:
            break
    assert place > 10


def test_an_interrupt_at_any_step_of_a_start_leaves_the_consumer_to_its_thread_or_to_all(
    world: ConsumerWorld,
) -> None:
    handled: list[str] = []

    def handler(message: ReceivedMessage) -> None:
        handled.append(message.body.decode())

    for place in itertools.count():
        consumer = world.consumer(member_id=f"member-{place}")
        was_interrupted = interrupted_at(place, partial(consumer.start, handler), STEPS_OF)
        consumer.close()
        if not was_interrupted:
            break
    assert place > 10


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals for threads")
def test_second_interrupt_while_a_call_is_given_up_waits_for_the_end_of_that(
    world: ConsumerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    came = 0

    def on_signal(*_: object) -> None:
        nonlocal came
        came += 1
        raise KeyboardInterrupt

    def interrupt(times: int) -> bool:
        # A signal that comes right before a wait for a lock does not end the wait.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return came >= times

    class SlowSentBack(SentBack):
        """The storage is slow: both interrupts come while a message is sent back."""

        def send_back_all(self, failed: Sequence[FailedMessage]) -> None:
            for times in (1, 2):
                wait_until(partial(interrupt, times))
                wait_until(is_main_back)
            super().send_back_all(failed)

    def is_main_back() -> bool:
        frame = sys._current_frames()[threading.main_thread().ident or 0]
        return frame.f_code.co_filename != __file__

    def handler(_: ReceivedMessage) -> None:
        world.clock.advance(TIMEOUT_S + 1)
        is_over.wait(60)

    is_over, sent_back = threading.Event(), SlowSentBack()
    consumer = world.consumer(consume_timeout_s=TIMEOUT_S, sends_back=sent_back)
    before = signal.signal(signal.SIGINT, on_signal)
    try:
        with pytest.raises(KeyboardInterrupt):
            consumer.run_once(handler)
    finally:
        signal.signal(signal.SIGINT, before)

    assert [record for record in caplog.records if record.name == "txmq.consumer.push"] == []
    (body, *_), *others = sent_back.messages
    assert (body.decode(), others) == ("0-0", [])
    left = [body for body in SENT if body != "0-0"]
    assert sorted(bodies(drained(consumer))) == left
