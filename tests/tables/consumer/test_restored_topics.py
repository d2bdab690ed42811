"""A topic that was restored alone from an older copy, or made anew, under a group that read it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.consumer_world import BILLING, ConsumerWorld, bodies, drained
from tests.kit.delay_world import TOPIC
from txmq.consumer.arguments import Subscription
from txmq.consumer.group_reader import GroupReader
from txmq.consumer.group_rules import ConsumeMode
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.consumer.pull import PullConsumer
from txmq.errors import OffsetOutOfRangeError, TopicRestoredError
from txmq.maintenance.service import Maintenance
from txmq.ops.admin.groups import ConsumerGroups
from txmq.publish.publisher import Publisher
from txmq.spark.members import RangeReader
from txmq.store.store import Store

OTHER = "order-sent"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path, queues=1)
    made.send_to(0, "a")
    yield made
    made.close()


def read_and_restored(world: ConsumerWorld, mode: ConsumeMode = ConsumeMode.CLUSTERING) -> None:
    """A group reads two messages that the copy of the topic does not have."""
    folder = Path(world.store.location, "topics", TOPIC)
    shutil.copytree(folder, folder.with_name("copy"))
    world.send_to(0, "b", "c")
    with world.consumer(mode=mode, member_id="one") as consumer:
        assert bodies(drained(consumer)) == ["a", "b", "c"]
        consumer.commit()
    shutil.rmtree(folder)
    folder.with_name("copy").rename(folder)
    forget_ends(world.store)
    world.publisher = Publisher(world.store, clock=world.clock)


def read_while_it_is_restored(world: ConsumerWorld) -> None:
    """A member commits after the topic became an older copy, which has grown as far again."""
    folder = Path(world.store.location, "topics", TOPIC)
    shutil.copytree(folder, folder.with_name("copy"))
    world.send_to(0, "b", "c")
    with world.consumer() as consumer:
        assert bodies(consumer.poll(3, timeout_s=0)) == ["a", "b", "c"]
        shutil.rmtree(folder)
        folder.with_name("copy").rename(folder)
        forget_ends(world.store)
        world.publisher = Publisher(world.store, clock=world.clock)
        world.send_to(0, "d", "e")
        consumer.commit()


def forget_ends(store: Store) -> None:
    """As a version of txmq kept its progress whose publishers did not notice an older copy."""
    register = store.tables.register("publisher")
    kept = register.read()
    register.swap(kept, {**kept.value, "ends": {}}, 0)


def told(consumer: PullConsumer) -> TopicRestoredError:
    with pytest.raises(TopicRestoredError) as raised:
        consumer.poll(timeout_s=0)
    return raised.value


@pytest.mark.parametrize("mode", ConsumeMode)
@pytest.mark.parametrize("later", ["d", "de", "def"])
def test_a_member_is_told_that_the_topic_is_an_older_copy_however_far_it_has_grown(
    world: ConsumerWorld, mode: ConsumeMode, later: str
) -> None:
    read_and_restored(world, mode)
    world.send_to(0, *later)

    error = told(world.consumer(mode=mode, member_id="one"))

    assert (error.topic, error.queue_id, error.offset) == (TOPIC, 0, 3)
    assert error.end_offset == 1 + len(later)
    assert "txmq offsets reset" in str(error)


def test_an_offset_is_of_the_commit_in_which_it_was_read(world: ConsumerWorld) -> None:
    """Not of the one that stands at its place when the member commits."""
    read_while_it_is_restored(world)

    told(world.consumer())


def test_a_member_that_takes_ranges_is_told_too(world: ConsumerWorld) -> None:
    read_and_restored(world)
    world.send_to(0, "d", "e", "f")
    subscription = Subscription.of(
        consumer_group=BILLING, topics=TOPIC, from_where=ConsumeFromWhere.FIRST_OFFSET,
        from_timestamp=None, mode=ConsumeMode.CLUSTERING, member_id=None, namespace=None,
    )  # fmt: skip
    reader = GroupReader(world.store, subscription, world.clock, world.sent_back)

    with pytest.raises(TopicRestoredError):
        RangeReader(reader).take(100)
    reader.leave()


def test_nothing_of_the_copy_is_committed_before_somebody_says_where_to_go_on(
    world: ConsumerWorld,
) -> None:
    read_and_restored(world)
    world.send_to(0, "d", "e", "f")
    for _ in range(2):
        with world.consumer() as consumer:
            told(consumer)
            consumer.commit()

    groups = ConsumerGroups(world.store, clock=world.clock)
    groups.reset_offsets(BILLING, TOPIC, {0: 1}, apply=True)

    with world.consumer() as consumer:
        assert bodies(drained(consumer)) == ["d", "e", "f"]
        consumer.commit()
    with world.consumer() as consumer:
        world.send_to(0, "g")
        assert bodies(drained(consumer)) == ["g"]


def test_seek_says_where_to_go_on(world: ConsumerWorld) -> None:
    read_and_restored(world)
    world.send_to(0, "d", "e", "f")
    consumer = world.consumer()
    told(consumer)

    consumer.seek(TOPIC, 0, 1)

    assert bodies(drained(consumer)) == ["d", "e", "f"]


def test_other_topics_are_served_beside_a_restored_one(world: ConsumerWorld) -> None:
    read_and_restored(world)
    world.send_to(0, "x", topic=OTHER)
    consumer = world.consumer([TOPIC, OTHER])

    told(consumer)

    assert bodies(consumer.poll(timeout_s=0)) == ["x"]


def test_a_topic_that_is_compacted_cleaned_or_rebuilt_is_still_the_same(
    world: ConsumerWorld,
) -> None:
    with world.consumer() as consumer:
        drained(consumer)
        consumer.commit()
    for number in range(30):
        world.send_to(0, str(number))
    world.topics.rebuild(TOPIC, apply=True)
    Maintenance(world.store, clock=world.clock).run_once()

    assert len(drained(world.consumer())) == 30


def test_an_older_topic_that_has_not_grown_is_told_under_a_running_member(
    world: ConsumerWorld,
) -> None:
    world.send_to(0, "b")
    folder = Path(world.store.location, "topics", TOPIC)
    consumer = world.consumer()
    drained(consumer)
    consumer.commit()
    for path in folder.glob("_delta_log/*2.json"):
        path.unlink()
    consumer._reader._looked_closely_s = -1e9

    with pytest.raises((TopicRestoredError, OffsetOutOfRangeError)):
        for _ in range(2):
            consumer._reader._looked_s = 0.0
            consumer.poll(timeout_s=0)
