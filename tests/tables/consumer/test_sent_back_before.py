"""Messages that were sent back, and whose member died before the commit of the offset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.consumer_world import (
    BILLING,
    ConsumerWorld,
    bodies,
    drained,
    taken_from,
)
from tests.kit.delay_world import TOPIC
from txmq.consumer.arguments import Subscription
from txmq.consumer.group_reader import GroupReader
from txmq.consumer.group_rules import ConsumeMode
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.consumer.pull import PullConsumer
from txmq.consumer.send_back import SendBack
from txmq.errors import StorageError
from txmq.message.received import ReceivedMessage
from txmq.spark.members import RangeReader
from txmq.testing import failing_commits

RETRY_S = 60


class Refusing:
    """A handler that fails once on some bodies, and keeps what it handled."""

    def __init__(self, *failing: str) -> None:
        self.failing, self.handled = set(failing), list[str]()

    def __call__(self, message: ReceivedMessage) -> None:
        body = message.body.decode()
        if body in self.failing:
            self.failing.remove(body)
            raise ValueError
        self.handled.append(body)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path, queues=1)
    made.send_to(0, "a", "b", "c", "d")
    yield made
    made.close()


def sends_back(world: ConsumerWorld) -> SendBack:
    return SendBack(world.store, BILLING, world.clock)


def member(world: ConsumerWorld, **more: Any) -> PullConsumer:
    return world.consumer(sends_back=sends_back(world), **more)


def without_commit(world: ConsumerWorld, handler: Refusing) -> None:
    """A member whose last commit fails, and which is no more."""
    first = member(world, member_id="first")
    failing = failing_commits(99, error=OSError("gone"), table=f"group_{BILLING}")
    with failing, pytest.raises(StorageError):
        first.run_once(handler)
    first.close()


def retried(world: ConsumerWorld, consumer: PullConsumer) -> list[str]:
    """What is handled once the retries have come."""
    handler = Refusing()
    world.publisher.run_once()
    world.clock.advance(RETRY_S)
    world.deliver()
    world.publisher.run_once()
    consumer.run_once(handler)
    return sorted(handler.handled)


@pytest.mark.parametrize("failing", ["a", "b", "ad", "abcd"])
def test_what_was_sent_back_before_the_member_died_is_handed_out_as_its_retry_alone(
    world: ConsumerWorld, failing: str
) -> None:
    without_commit(world, Refusing(*failing))

    second, again = member(world, member_id="second"), Refusing()
    second.run_once(again)

    assert again.handled == sorted({*"abcd"} - {*failing})
    assert retried(world, second) == sorted(failing)
    assert [lag.lag for lag in second.lag() if lag.topic == TOPIC] == [0]


def test_a_message_whose_sending_back_lost_its_answer_is_handed_out_as_its_retry_alone(
    world: ConsumerWorld,
) -> None:
    consumer, handler = member(world), Refusing("b")
    with failing_commits(1, error=OSError("gone"), after_commit=True, table="op"):
        try:
            consumer.run_once(handler)
        except StorageError:
            consumer.run_once(handler)

    assert sorted(handler.handled) == ["a", "c", "d"]
    assert retried(world, consumer) == ["b"]


def test_a_message_that_a_caller_sent_back_is_not_polled_again(world: ConsumerWorld) -> None:
    first = member(world)
    first.send_back(first.poll(timeout_s=0)[1], reason="no customer")
    first.close()

    assert bodies(drained(member(world))) == ["a", "c", "d"]


def test_a_message_with_a_retry_that_has_no_commit_is_handed_out_again(
    world: ConsumerWorld,
) -> None:
    first = member(world)
    message = first.poll(timeout_s=0)[1]
    with failing_commits(99, error=OSError("gone"), table="op"), pytest.raises(StorageError):
        first.send_back(message, reason="no customer")
    first.close()

    assert bodies(drained(member(world))) == ["a", "b", "c", "d"]


def test_a_group_that_goes_back_on_purpose_gets_what_it_sent_back(world: ConsumerWorld) -> None:
    consumer = member(world)
    consumer.run_once(Refusing("b"))
    consumer.seek(TOPIC, 0, 0)

    again = Refusing()
    consumer.run_once(again)

    assert again.handled == ["a", "b", "c", "d"]


@pytest.mark.parametrize(("sent_back", "looks"), [("", []), ("a", [4])])
def test_the_halves_are_looked_at_only_where_a_message_may_have_been_sent_back_before(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch, sent_back: str, looks: list[int]
) -> None:
    """In a group that has sent something back, and up to where its topic was when it began."""
    without_commit(world, Refusing(*sent_back))
    asked: list[int] = []
    look = SendBack.are_sent_back

    def counted(sender: SendBack, messages: Any) -> list[bool]:
        asked.append(len(messages))
        return look(sender, messages)

    monkeypatch.setattr(SendBack, "are_sent_back", counted)
    consumer, handler = member(world), Refusing()
    consumer.run_once(handler)
    world.send_to(0, "e", "f")
    consumer.run_once(handler)

    assert (handler.handled, asked) == ([*"abcdef".removeprefix(sent_back)], looks)


@pytest.mark.parametrize(
    ("failing", "ranges"),
    [("a", [(1, 4)]), ("b", [(0, 1), (2, 4)]), ("ad", [(1, 3)]), ("abcd", [])],
)
def test_ranges_leave_out_what_was_sent_back(
    world: ConsumerWorld, failing: str, ranges: list[tuple[int, int]]
) -> None:
    without_commit(world, Refusing(*failing))
    subscription = Subscription.of(
        consumer_group=BILLING, topics=TOPIC, from_where=ConsumeFromWhere.FIRST_OFFSET,
        from_timestamp=None, mode=ConsumeMode.CLUSTERING, member_id=None, namespace=None,
    )  # fmt: skip
    reader = GroupReader(world.store, subscription, world.clock, sends_back(world))
    taken = []
    while offsets := taken_from(RangeReader(reader), 100):
        taken += [(start, end) for _, start, end in offsets]
    reader.leave()

    assert taken == ranges
