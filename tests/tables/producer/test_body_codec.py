"""Encrypted bodies from the producer to the consumer, with a broker that has no key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.builders import table_versions
from tests.kit.dead_world import CONSUMERS, DEAD, DeadWorld
from tests.kit.delay_world import TOPIC
from txmq.consumer.pull import PullConsumer
from txmq.errors import (
    BodyCodecError,
    ConfigError,
    DifferentMessagesError,
    InvalidBodyError,
    InvalidMessageError,
    MessageTooLargeError,
)
from txmq.message.codec import BODY_KEY_ID, AesGcmCodec
from txmq.message.message import LocalTransactionState, Message
from txmq.ops.admin.dead_letter_notes import Chosen
from txmq.ops.admin.dead_letters import ReplayTarget
from txmq.ops.admin.erasure import Erasure
from txmq.ops.admin.topics import Topics
from txmq.producer.awaitable import AsyncTransactionProducer
from txmq.producer.producer import TransactionProducer
from txmq.verify import verify

SECRET = b"SECRET body"
OLD = AesGcmCodec({"old": b"o" * 32})
BOTH = AesGcmCodec({"old": b"o" * 32, "new": b"n" * 32})
NEW = AesGcmCodec({"new": b"n" * 32})


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DeadWorld]:
    made = DeadWorld(tmp_path, max_message_size_bytes=1000, max_reconsume_times=1)
    yield made
    made.producer.close()


def producer(world: DeadWorld, codec: Any = OLD, **options: Any) -> TransactionProducer:
    return TransactionProducer(
        world.store, producer_group="shop", clock=world.clock, body_codec=codec, **options
    )


def bodies(world: DeadWorld, codec: Any, group: str = CONSUMERS, topic: str = TOPIC) -> list[bytes]:
    world.publisher.run_once()
    with PullConsumer(
        world.store, consumer_group=group, topics=topic, clock=world.clock, body_codec=codec
    ) as consumer:
        return [message.body for message in consumer.poll(max_messages=100, timeout_s=5)]


def secret_is_stored(world: DeadWorld) -> bool:
    paths = (path for path in Path(world.store.location).rglob("*") if path.is_file())
    return any(b"SECRET" in path.read_bytes() for path in paths)


class Listener:
    def __init__(self) -> None:
        self.seen: list[bytes] = []

    def execute_local_transaction(self, half: Any, _: object) -> LocalTransactionState:
        self.seen.append(half.body)
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, half: Any) -> LocalTransactionState:
        self.seen.append(half.body)
        return LocalTransactionState.COMMIT


def test_every_way_to_send_stores_encrypted_bodies_and_consumers_read_them(
    world: DeadWorld,
) -> None:
    listener = Listener()
    with producer(world, listener=listener) as sender:
        sender.send(Message(TOPIC, SECRET + b" 1"))
        sender.send([Message(TOPIC, SECRET + b" 2"), Message(TOPIC, SECRET + b" 3")])
        sender.send_async(Message(TOPIC, SECRET + b" 4")).result()
        with sender.begin_transaction() as transaction:
            transaction.send(Message(TOPIC, SECRET + b" 5"))
            transaction.prepare()
            transaction.commit()
        sender.send_message_in_transaction(Message(TOPIC, SECRET + b" 6"))
        sender.send_message_in_transaction_async(Message(TOPIC, SECRET + b" 7")).result()
        sender.send(Message(TOPIC, SECRET + b" 8", delay_s=5))

    async def awaited() -> None:
        made = AsyncTransactionProducer(
            world.store, producer_group="shop", clock=world.clock, body_codec=OLD
        )
        async with made as sender, sender.begin_transaction() as transaction:
            transaction.send(Message(TOPIC, SECRET + b" 9"))
            await transaction.prepare()
            await transaction.commit()

    asyncio.run(awaited())
    world.publisher.run_once()
    world.clock.advance(10)
    world.deliver()

    assert not secret_is_stored(world)
    assert sorted(bodies(world, OLD)) == [SECRET + b" %d" % number for number in range(1, 10)]
    # The code of the local transaction is the sender's own.
    assert listener.seen == [SECRET + b" 6", SECRET + b" 7"]
    assert {dict(row["properties"])[BODY_KEY_ID] for row in world.rows()} == {"old"}
    assert verify(world.store.location).is_clean


def test_consumer_without_a_codec_gets_the_stored_bytes(world: DeadWorld) -> None:
    with producer(world) as sender:
        sender.send(Message(TOPIC, SECRET))

    (stored,) = bodies(world, None)
    assert stored == world.rows()[0]["body"] != SECRET


def test_consumer_that_requires_encoded_bodies_refuses_a_plain_one_and_goes_on(
    world: DeadWorld,
) -> None:
    with producer(world, None) as plain, producer(world) as sender:
        plain.send(Message(TOPIC, b"forged"), queue_id=0)
        sender.send(Message(TOPIC, SECRET), queue_id=0)
    world.publisher.run_once()
    handled: list[bytes] = []
    with PullConsumer(
        world.store, consumer_group=CONSUMERS, topics=TOPIC, clock=world.clock, body_codec=OLD,
        require_encoded=True,
    ) as consumer:  # fmt: skip
        result = consumer.run_once(lambda message: handled.append(message.body))

    assert (handled, result.sent_back) == ([SECRET], 1)
    assert bodies(world, OLD, "readers") == [b"forged", SECRET]


def test_key_that_is_gone_fails_its_messages_alone_and_ends_in_the_dead_letters(
    world: DeadWorld,
) -> None:
    with producer(world, OLD) as one, producer(world, NEW) as other:
        for number in range(3):
            one.send(Message(TOPIC, SECRET))
            other.send(Message(TOPIC, b"%d" % number))
    world.publisher.run_once()
    handled: list[bytes] = []
    with PullConsumer(
        world.store, consumer_group=CONSUMERS, topics=TOPIC, clock=world.clock, body_codec=NEW
    ) as consumer:
        for _ in range(3):
            consumer.run_once(lambda message: handled.append(message.body))
            world.clock.advance(3600)
            world.publisher.run_once()
            world.deliver()

    assert sorted(handled) == [b"0", b"1", b"2"]
    letters = world.letters.all()
    assert len(letters) == 3
    assert {letter.reason for letter in letters} == {"BodyCodecError"}
    assert not secret_is_stored(world)
    # With the key again, they can be read where they are, and replayed either way.
    assert bodies(world, BOTH, "readers", DEAD) == [SECRET] * 3
    for target, topic in ((ReplayTarget.TOPIC, TOPIC), (ReplayTarget.RETRY, f"RETRY_{CONSUMERS}")):
        chosen = Chosen((letters[0 if target is ReplayTarget.TOPIC else 1].message_id,))
        world.letters.replay(chosen, reason="key is back", to=target, apply=True)
        assert SECRET in bodies(world, BOTH, f"after-{target.value}", topic)
    assert verify(world.store.location).is_clean


def test_replay_that_fails_again_can_still_be_read(world: DeadWorld) -> None:
    with producer(world) as sender:
        sender.send(Message(TOPIC, SECRET))
    world.publisher.run_once()
    bury_all(world, TOPIC)
    letter = world.letters.all()[0].message_id
    world.letters.replay(Chosen((letter,)), reason="try again", to=ReplayTarget.TOPIC, apply=True)
    world.publisher.run_once()
    bury_all(world, TOPIC)

    assert set(bodies(world, OLD, "readers", DEAD)) == {SECRET}
    assert len(world.letters.all()) > 1


def bury_all(world: DeadWorld, topic: str) -> None:
    """Whatever the topic shows now becomes a dead letter, by a group without a key."""
    for message in world.received(topic):
        world.send_back.send_back(message, reason="no key", delay_level=-1)
    world.publisher.run_once()


def keyed(world: DeadWorld, codec: Any, body: bytes) -> str:
    with producer(world, codec) as sender:
        moment = (world.now - timedelta(seconds=1)).replace(second=0, microsecond=0)
        transaction = sender.begin_transaction(idempotency_key="job-1", key_timestamp=moment)
        transaction.send(Message(TOPIC, body))
        transaction.prepare()
        transaction.commit()
        return transaction.id


def test_retry_with_a_key_joins_though_the_ring_has_turned(world: DeadWorld) -> None:
    first = keyed(world, OLD, SECRET)

    assert keyed(world, OLD, SECRET) == first
    assert keyed(world, BOTH, SECRET) == first
    assert keyed(world, NEW, SECRET) == first
    with pytest.raises(DifferentMessagesError, match="body") as told:
        keyed(world, BOTH, SECRET + b"!")
    assert "SECRET" not in str(told.value)
    assert bodies(world, OLD) == [SECRET]


def test_what_does_not_go_together_is_refused_before_a_byte_is_written(world: DeadWorld) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}
    Topics(world.store).create("typed", body={"encoding": "json", "schema": schema})
    with producer(world) as sender:
        transaction = sender.begin_transaction()
        before = table_versions(world.store)
        with pytest.raises(InvalidBodyError, match="columns, which a body codec would hide"):
            sender.send(Message("typed", b'{"a": "b"}'))
        with pytest.raises(MessageTooLargeError, match="encoded body bytes"):
            sender.send(Message(TOPIC, b"x" * 1000))
        with pytest.raises(InvalidMessageError, match="DataFrame"):
            transaction.send_dataframe(object(), topic=TOPIC)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="no BodyCodec"):
            producer(world, "aes")
        with pytest.raises(ConfigError, match="no BodyCodec"):
            PullConsumer(world.store, consumer_group="g", topics=TOPIC, body_codec=7)  # type: ignore[arg-type]

    assert table_versions(world.store) == before


def test_codec_that_breaks_for_one_message_harms_no_other(world: DeadWorld) -> None:
    class Picky:
        key_id = "picky"

        def encode(self, body: bytes, _: object) -> bytes:
            if body == b"bad":
                raise ValueError(body)
            return body[::-1]

        def decode(self, stored: bytes, _: object) -> bytes:
            return stored[::-1]

    with producer(world, Picky()) as sender:
        first = sender.send_async(Message(TOPIC, b"good"))
        with pytest.raises(BodyCodecError):
            sender.send_async(Message(TOPIC, b"bad"))
        with pytest.raises(BodyCodecError):
            sender.send(Message(TOPIC, b"bad"))
        first.result()

    assert bodies(world, Picky()) == [b"good"]


def test_erased_message_has_no_key_and_no_body(world: DeadWorld) -> None:
    with producer(world) as sender:
        sender.send(Message(TOPIC, SECRET, keys="customer-7"))
        sender.send(Message(TOPIC, b"kept"))
    world.publisher.run_once()
    Erasure(world.store, "customer-7", clock=world.clock).apply(reason="asked")

    assert bodies(world, OLD) == [b"kept"]
