"""A topic that is read-only: sends are refused by name, and everything else goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.builders import table_versions
from tests.kit.consumer_world import BILLING, ConsumerWorld, bodies, drained
from tests.kit.delay_world import TOPIC
from txmq import DeadLetters, Message, TransactionProducer
from txmq.consumer.send_back import SendBack
from txmq.errors import ConfigError, TopicReadOnlyError
from txmq.ops.admin.dead_letter_notes import Chosen
from txmq.ops.admin.dead_letters import ReplayTarget
from txmq.store.topic_settings import TopicKind, TopicSettings


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path, queues=1)
    yield made
    made.close()


def test_send_is_refused_before_a_byte_is_written(world: ConsumerWorld) -> None:
    world.send_to(0, "before")
    world.topics.alter(TOPIC, is_read_only=True)
    versions = table_versions(world.store)

    with TransactionProducer(world.store, producer_group="shop") as producer:
        with pytest.raises(TopicReadOnlyError, match=r"order-paid.*--writable"):
            producer.send(Message(TOPIC, b"no"))
        with pytest.raises(TopicReadOnlyError), producer.begin_transaction() as transaction:
            transaction.send(Message(TOPIC, b"no"))
        producer.send(Message("other", b"yes"))
        assert [v for v in versions if versions[v] != table_versions(world.store)[v]] != []

        world.topics.alter(TOPIC, is_read_only=False)
        # Before it refuses, a producer looks whether the topic takes messages again.
        producer.send(Message(TOPIC, b"after"))
    world.publisher.run_once()
    assert bodies(drained(world.consumer())) == ["before", "after"]


def test_refusal_alone_commits_nothing(world: ConsumerWorld) -> None:
    world.topics.create(TOPIC)
    world.topics.alter(TOPIC, is_read_only=True)
    versions = table_versions(world.store)

    with TransactionProducer(world.store, producer_group="shop") as producer:
        with pytest.raises(TopicReadOnlyError):
            producer.send([Message(TOPIC, b"1"), Message(TOPIC, b"2")])
        with pytest.raises(TopicReadOnlyError), producer.begin_transaction() as transaction:
            transaction.send(Message("other", b"1"))
            transaction.send(Message(TOPIC, b"2"))

    assert table_versions(world.store) == versions


def test_what_was_prepared_or_delayed_before_is_published_and_retries_go_on(
    world: ConsumerWorld,
) -> None:
    world.topics.create(TOPIC)
    world.send("delayed", delay_s=60)
    with world.producer.begin_transaction() as transaction:
        transaction.send(Message(TOPIC, b"prepared"))
        transaction.prepare()
        world.topics.alter(TOPIC, is_read_only=True)
        transaction.commit()
    world.after(61)

    member = world.consumer(sends_back=SendBack(world.store, BILLING, world.clock))
    messages = drained(member)
    assert sorted(bodies(messages)) == ["delayed", "prepared"]
    member.send_back(messages[0], reason="later", delay_level=1)
    member.commit()
    world.publisher.run_once()
    world.after(60)
    assert len(drained(member)) == 1


def test_replay_to_a_read_only_topic_is_refused(world: ConsumerWorld) -> None:
    world.send_to(0, "a")
    member = world.consumer(sends_back=SendBack(world.store, BILLING, world.clock))
    (message,) = drained(member)
    member.send_back(message, reason="never", delay_level=-1)
    world.publisher.run_once()
    world.topics.alter(TOPIC, is_read_only=True)
    letters = DeadLetters(world.store, BILLING, clock=world.clock)

    with pytest.raises(TopicReadOnlyError):
        letters.replay(Chosen(everything=True), reason="again", to=ReplayTarget.TOPIC, apply=True)
    assert letters.replay(Chosen(everything=True), reason="again", apply=True)


def test_other_settings_stay_and_old_values_are_read(world: ConsumerWorld) -> None:
    world.topics.create(TOPIC, kind=TopicKind.NORMAL, queue_nums=3, reserved_time_h=5.0)

    assert world.topics.alter(TOPIC, is_read_only=True).is_read_only
    settings = world.topics.alter(TOPIC, queue_nums=4)

    assert settings == TopicSettings(TopicKind.NORMAL, 4, 5.0, None, is_read_only=True)
    assert world.topics.describe(TOPIC).summary.settings == settings
    old = {"kind": "NORMAL", "queue_nums": 3}
    assert not TopicSettings.from_value(TOPIC, old).is_read_only
    assert "is_read_only" not in TopicSettings(TopicKind.NORMAL, 3).to_value()
    with pytest.raises(ConfigError, match="is_read_only must be true or false"):
        world.topics.alter(TOPIC, is_read_only="yes")  # type: ignore[arg-type]
