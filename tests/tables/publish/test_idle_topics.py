"""A topic that went back to an older copy is told though nobody writes it."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.delay_world import TOPIC, DelayWorld
from tests.kit.reading import bodies
from txmq.errors import StorageError
from txmq.message.names import SCHEDULE_TOPIC
from txmq.ops.admin.topics import Topics
from txmq.publish import round as idle_topics
from txmq.publish.publisher import Publisher
from txmq.publish.topic_writer import TopicWriter

RETRY_S = 30.0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DelayWorld]:
    made = DelayWorld(tmp_path, park_retry_interval_s=RETRY_S)
    yield made
    made.producer.close()


@pytest.fixture(autouse=True)
def always_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_topics, "INTERVAL_S", 0.0)


def folder(world: DelayWorld, topic: str) -> Path:
    return Path(world.store.location, "topics", topic)


def parked(world: DelayWorld) -> dict[str, str]:
    topics = world.store.tables.register("publisher").read().value["parked"]
    return {name: topic["reason"] for name, topic in topics.items()}


def go_back(world: DelayWorld, topic: str, copy: Path) -> None:
    shutil.rmtree(folder(world, topic))
    shutil.copytree(copy, folder(world, topic))


def looked(world: DelayWorld, *, by_a_new_one: bool) -> None:
    """One topic each round, the turn of all of them."""
    if by_a_new_one:
        world.publisher = Publisher(world.store, clock=world.clock)
    for _ in range(len(list(Path(world.store.location, "topics").iterdir())) + 1):
        world.publisher.run_once()


@pytest.mark.parametrize("by_a_new_one", [False, True])
def test_topic_that_went_back_is_told_before_the_next_message(
    world: DelayWorld, tmp_path: Path, *, by_a_new_one: bool
) -> None:
    world.send("1")
    copy = Path(shutil.copytree(folder(world, TOPIC), tmp_path / "copy"))
    world.send("2")
    world.send("other", topic="other")
    go_back(world, TOPIC, copy)

    looked(world, by_a_new_one=by_a_new_one)

    assert "had 2 messages" in parked(world)[TOPIC]
    assert parked(world).keys() == {TOPIC}
    Topics(world.store, clock=world.clock).rebuild(TOPIC, apply=True)
    world.clock.advance(2 * RETRY_S)
    looked(world, by_a_new_one=False)
    assert parked(world) == {}
    assert bodies(world.store, TOPIC) == [b"1", b"2"]


@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("by_a_new_one", [False, True])
def test_delayed_messages_of_a_schedule_that_went_back_are_delivered(
    world: DelayWorld, tmp_path: Path, *, by_a_new_one: bool, is_gone: bool
) -> None:
    world.send("soon", delay_s=60)
    copy = Path(shutil.copytree(folder(world, SCHEDULE_TOPIC), tmp_path / "copy"))
    world.send("later", delay_s=90)
    world.deliver()
    if is_gone:
        shutil.rmtree(folder(world, SCHEDULE_TOPIC))
    else:
        go_back(world, SCHEDULE_TOPIC, copy)

    looked(world, by_a_new_one=by_a_new_one)

    assert parked(world).keys() == {SCHEDULE_TOPIC}
    Topics(world.store, clock=world.clock).rebuild(SCHEDULE_TOPIC, apply=True)
    world.clock.advance(2 * RETRY_S)
    looked(world, by_a_new_one=False)
    assert parked(world) == {}
    assert world.after(120) == ["soon", "later"]


def test_look_that_fails_parks_nobody(
    world: DelayWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.send("1")

    def broken(*_: object) -> None:
        raise StorageError(TOPIC, "Input/output error")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(TopicWriter, "check", broken)
        looked(world, by_a_new_one=True)

    assert "Input/output error" in caplog.text
    assert parked(world) == {}


def test_start_looks_at_a_few_topics_and_goes_on_in_turns(
    world: DelayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"topic-{number:02}" for number in range(6)]
    for name in names:
        world.send("1", topic=name)
    seen: list[str] = []
    monkeypatch.setattr(idle_topics, "FIRST_TOPICS", 2)
    world.publisher = Publisher(world.store, clock=world.clock)
    writer = world.publisher._rounds()._topics
    monkeypatch.setattr(writer, "check", seen.append)

    for _ in range(5):
        world.publisher.run_once()

    assert seen == names
