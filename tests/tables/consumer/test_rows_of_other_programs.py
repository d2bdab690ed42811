"""A number that another program wrote becomes no size: a topic has the queues of its publishers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kit.consumer_world import BILLING, ConsumerWorld, bodies, drained, wake
from tests.kit.delay_world import TOPIC
from tests.kit.planted import Vandal
from txmq.consumer.group import group_in, state_of, value_of
from txmq.consumer.group_rules import GroupState
from txmq.consumer.offsets import TopicOffsets
from txmq.message.ids import new_transaction_id
from txmq.store.schemas import TOPIC as SCHEMA
from txmq.store.topic import queue_ends
from txmq.testing import published_messages

QUEUES = 2


@pytest.mark.parametrize("queue", [100_000, 2**31 - 1, -1, None])
def test_a_row_for_a_queue_that_no_topic_has_adds_no_queue_to_a_group(
    tmp_path: Path, queue: int | None
) -> None:
    world = ConsumerWorld(tmp_path, queues=QUEUES)
    world.fill(1, queues=QUEUES)
    consumer = world.consumer()
    seen = bodies(drained(consumer))
    vandal = Vandal(world.store.location)
    row = vandal.rows(f"topics/{TOPIC}")[0]
    odd = {**row, "transaction_id": new_transaction_id(0), "queue_id": queue}
    vandal.append(f"topics/{TOPIC}", SCHEMA, [odd], {f"txmq-offset/{queue}": 1})
    world.fill(1, queues=QUEUES)
    wake(consumer)

    assert sorted([*seen, *bodies(drained(consumer))]) == ["0-0", "0-0", "1-0", "1-0"]
    assert bodies(drained(world.consumer(group="late"))) != []
    assert group_in(world.store, BILLING).read().queues[TOPIC] == QUEUES
    assert TopicOffsets(world.store, TOPIC).queue_count() == QUEUES
    assert len(published_messages(world.store, TOPIC)) == 4
    assert sorted(world.topics.describe(TOPIC).next_offsets) == [0, 1]
    world.close()


def test_a_group_that_an_earlier_txmq_gave_too_many_queues_has_as_many_as_a_topic_can_have() -> (
    None
):
    value = json.loads(json.dumps(value_of(GroupState(queues={TOPIC: 2**31 - 1, "other": 3}))))

    assert state_of(value).queues == {TOPIC: 4096, "other": 3}


def test_marks_that_name_no_queue_have_no_end() -> None:
    odd = ("None", "-1", "", "4096", "01", "9" * 5_000, "\u0663", "1 ")
    marks = {f"txmq-offset/{queue}": 1 for queue in odd}

    assert queue_ends({**marks, "txmq-offset/0": 7, "txmq-offset/4095": 8, "other": 9}) == {
        0: 7, 4095: 8,
    }  # fmt: skip
