"""Functions that handle a topic each, with bodies as models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit.consumer_world import BILLING, ConsumerWorld, wake
from tests.kit.delay_world import TOPIC
from tests.kit.reading import wait_until
from txmq.consumer.send_back import SendBack
from txmq.errors import ConfigError, InvalidNameError
from txmq.message.message import Message
from txmq.message.received import ReceivedMessage

OTHER = "stock-reserved"


@dataclass
class Order:
    order: int


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path, message_delay_level="1s 1s 1s")
    yield made
    made.close()


def send(world: ConsumerWorld, topic: str, value: object) -> None:
    world.producer.send(Message.json(topic, value))
    world.publisher.run_once()


def test_each_topic_has_its_function_and_its_model(world: ConsumerWorld) -> None:
    send(world, TOPIC, {"order": 42})
    send(world, OTHER, [1])
    consumer = world.consumer([TOPIC, OTHER])
    handled: list[Any] = []

    @consumer.on(TOPIC, model=Order)
    def bill(order: Order, message: ReceivedMessage) -> None:
        handled.append((order, message.topic))

    @consumer.on(OTHER)
    def reserve(message: ReceivedMessage) -> None:
        handled.append(message.json())

    assert consumer.run_once().consumed == 2
    assert sorted(handled, key=str) == [(Order(42), TOPIC), [1]]


def test_handlers_of_a_started_consumer_are_those_of_its_topics(world: ConsumerWorld) -> None:
    consumer = world.consumer()
    handled: list[Any] = []
    consumer.on(TOPIC)(lambda message: handled.append(message.json()))

    handle = consumer.start()
    send(world, TOPIC, 1)
    wait_until(lambda: handled == [1])
    handle.stop()


def test_body_that_does_not_fit_is_sent_back_and_those_behind_it_are_handled(
    world: ConsumerWorld,
) -> None:
    world.send_to(0, '{"order": "secret"}', "no json", '{"order": 7}')
    handled: list[Order] = []
    consumer = world.consumer()
    consumer.on(TOPIC, model=Order)(lambda order, _: handled.append(order))

    result = consumer.run_once()

    assert (result.consumed, result.sent_back, handled) == (3, 2, [Order(7)])
    assert all("secret" not in reason for _, reason, _ in world.sent_back.messages)


def test_message_that_comes_again_has_the_function_of_its_first_topic(world: ConsumerWorld) -> None:
    send(world, TOPIC, {"order": 42})
    consumer = world.consumer(sends_back=SendBack(world.store, BILLING, world.clock))
    seen: list[tuple[Order, str]] = []

    @consumer.on(TOPIC, model=Order)
    def fail_once(order: Order, message: ReceivedMessage) -> None:
        seen.append((order, message.topic))
        if len(seen) == 1:
            raise ValueError

    consumer.run_once()
    world.publisher.run_once()
    world.clock.advance(4)
    world.deliver()
    wake(consumer)
    consumer.run_once()

    assert [order for order, _ in seen] == [Order(42), Order(42)]
    assert seen[0][1] != seen[1][1]


def after_a_second(world: ConsumerWorld) -> None:
    """What was sent back has come again."""
    world.publisher.run_once()
    world.clock.advance(4)
    world.deliver()


def test_dead_letters_of_another_group_have_the_function_of_their_topic(tmp_path: Path) -> None:
    world = ConsumerWorld(tmp_path, message_delay_level="1s", max_reconsume_times=0)
    send(world, TOPIC, 42)
    world.consumer(sends_back=SendBack(world.store, BILLING, world.clock)).run_once(_fail)
    world.publisher.run_once()
    dead = f"DLQ_{BILLING}"
    consumer = world.consumer(dead, group="alarm")
    handled: list[tuple[Any, str]] = []
    consumer.on(dead)(lambda message: handled.append((message.json(), message.origin_topic)))

    assert consumer.run_once().sent_back == 0
    assert handled == [(42, TOPIC)]
    world.close()


def test_retry_of_a_topic_that_is_read_no_more_says_what_to_do(
    world: ConsumerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    send(world, OTHER, 1)
    sends_back = SendBack(world.store, BILLING, world.clock)
    with world.consumer([TOPIC, OTHER], sends_back=sends_back) as before:
        before.run_once(_fail)
    after_a_second(world)
    consumer = world.consumer(sends_back=sends_back)
    consumer.on(TOPIC)(lambda _: None)

    assert consumer.run_once().sent_back == 1
    assert f"no handler for '{OTHER}', of which a retry has come; read that topic" in caplog.text


def _fail(_: ReceivedMessage) -> None:
    raise ValueError


def test_names_of_a_namespace_are_those_of_its_users(world: ConsumerWorld) -> None:
    from txmq.producer.producer import TransactionProducer

    with TransactionProducer(
        world.store, producer_group="shop", namespace="eu", clock=world.clock
    ) as producer:
        producer.send(Message.json(TOPIC, 1))
    world.publisher.run_once()
    consumer = world.consumer(namespace="eu")
    handled: list[Any] = []
    consumer.on(TOPIC)(lambda message: handled.append(message.json()))

    consumer.run_once()

    assert handled == [1]


def test_topic_without_a_function_is_named_before_a_message_is_taken(world: ConsumerWorld) -> None:
    send(world, TOPIC, 1)
    consumer = world.consumer([TOPIC, OTHER])
    consumer.on(TOPIC)(lambda _: None)

    for run in (consumer.run_once, consumer.start):
        with pytest.raises(ConfigError, match=f"no handler for {OTHER}"):
            run()

    assert [message.json() for message in consumer.poll(5, 0)] == [1]


def test_topic_that_the_consumer_does_not_read_is_refused(world: ConsumerWorld) -> None:
    with pytest.raises((ConfigError, InvalidNameError), match=OTHER):
        world.consumer().on(OTHER)


def test_second_function_of_a_topic_is_refused(world: ConsumerWorld) -> None:
    consumer = world.consumer()
    consumer.on(TOPIC)(lambda _: None)

    with pytest.raises(ConfigError, match="has a handler already"):
        consumer.on(TOPIC)(lambda _: None)


@pytest.mark.parametrize("function", [5, lambda: None, lambda order: order])
def test_function_that_cannot_take_the_body_is_refused_at_once(
    world: ConsumerWorld, function: Any
) -> None:
    with pytest.raises(ConfigError):
        world.consumer().on(TOPIC, model=Order)(function)


def test_function_that_is_async_is_refused_at_once(world: ConsumerWorld) -> None:
    async def bill(order: Order, message: ReceivedMessage) -> None:
        """A call makes a coroutine, and nothing else."""

    with pytest.raises(ConfigError, match="async"):
        world.consumer().on(TOPIC, model=Order)(bill)


def test_what_is_no_model_is_refused_at_once(world: ConsumerWorld) -> None:
    with pytest.raises(ConfigError, match="no model"):
        world.consumer().on(TOPIC, model=5)(print)  # type: ignore[arg-type]
