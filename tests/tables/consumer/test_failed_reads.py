"""Queues that cannot be read for a while: what was taken from others before is not lost."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.consumer_world import (
    BILLING,
    ConsumerWorld,
    bodies,
    drained,
    offsets_of,
    taken_from,
)
from tests.kit.delay_world import TOPIC
from txmq.consumer.arguments import Subscription
from txmq.consumer.group_reader import GroupReader
from txmq.consumer.group_rules import ConsumeMode, TopicQueue
from txmq.consumer.offsets import ConsumeFromWhere
from txmq.consumer.reader import TopicReader
from txmq.errors import StoreFullError
from txmq.spark.members import RangeReader
from txmq.testing import failing_commits

OTHER = "stock-reserved"
SENT = {TOPIC: ["one", "two"], OTHER: ["three", "four"]}
FAILURES = [
    OSError(errno.EIO, "no answer"), MemoryError("no room"), KeyboardInterrupt("told to end")
]  # fmt: skip


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path, queues=1)
    for topic, texts in SENT.items():
        made.send_to(0, *texts, topic=topic)
    yield made
    made.close()


def fail_once(monkeypatch: pytest.MonkeyPatch, topic: str, failure: BaseException) -> None:
    read, failures = TopicReader.read, [failure]

    def read_or_fail(reader: TopicReader, *arguments: Any) -> Any:
        if failures and reader.topic == topic:
            raise failures.pop()
        return read(reader, *arguments)

    monkeypatch.setattr(TopicReader, "read", read_or_fail)


@pytest.mark.parametrize("failure", FAILURES, ids=repr)
@pytest.mark.parametrize("failing", SENT)
def test_messages_that_were_taken_before_a_read_failed_come_with_a_later_poll(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch, failure: BaseException, failing: str
) -> None:
    consumer = world.consumer(topics=[*SENT])
    fail_once(monkeypatch, failing, failure)

    with pytest.raises(type(failure)):
        drained(consumer)
    consumer.commit()

    assert sorted(bodies(drained(consumer))) == sorted(SENT[TOPIC] + SENT[OTHER])


def test_what_nobody_handled_is_handed_out_again_though_its_commit_failed(
    world: ConsumerWorld,
) -> None:
    subscription = Subscription.of(
        consumer_group=BILLING, topics=TOPIC, from_where=ConsumeFromWhere.FIRST_OFFSET,
        from_timestamp=None, mode=ConsumeMode.CLUSTERING, member_id=None, namespace=None,
    )  # fmt: skip
    reader = GroupReader(world.store, subscription, world.clock, world.sent_back)
    ranges = RangeReader(reader)
    taken = taken_from(ranges, 100)
    full = OSError(errno.ENOSPC, "no space")

    with failing_commits(1, error=full), pytest.raises(StoreFullError):
        ranges.commit({TopicQueue(TOPIC, 0): 1}, taken)
    world.send_to(0, "later")
    reader._looked_s = reader._member._looked_s = 0.0
    again = taken_from(ranges, 100)
    ranges.commit({queue: end for queue, _, end in again}, again)

    assert [(start, end) for _, start, end in again] == [(1, 3)]
    assert offsets_of(world)[TopicQueue(TOPIC, 0)] == 3
    reader.leave()
