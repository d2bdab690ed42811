"""Consumer groups with settings of their own: tries before a dead letter, time for a handler."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.consumer_world import ConsumerWorld
from tests.kit.delay_world import TOPIC
from txmq import ConsumeStatus, DeadLetters, Store
from txmq.consumer.pull import PullConsumer
from txmq.consumer.send_back import SendBack

OWN: dict[str, Any] = {"strict": {"max_reconsume_times": 0}, "quick": {"consume_timeout_s": 0.05}}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path, queues=1, consumer_groups=OWN, max_reconsume_times=1)
    yield made
    made.close()


def test_group_has_its_own_number_of_tries_and_others_that_of_the_store(
    world: ConsumerWorld,
) -> None:
    # As another process opens it: the store keeps the settings.
    store = Store.open(world.store.location)
    world.send_to(0, "a")
    dead: dict[str, int] = {}

    for group in ("strict", "other"):
        sends_back = SendBack(store, group, world.clock)
        member = PullConsumer(
            store, consumer_group=group, topics=TOPIC, clock=world.clock, sends_back=sends_back
        )
        member.run_once(lambda _: ConsumeStatus.RECONSUME_LATER)
        member.close()
        world.publisher.run_once()
        dead[group] = DeadLetters(store, group).count()

    assert dead == {"strict": 1, "other": 0}


def test_group_has_its_own_time_for_a_handler(world: ConsumerWorld) -> None:
    consumers = {name: world.consumer(group=name) for name in ("quick", "other")}

    assert {name: one._settings.consume_timeout_s for name, one in consumers.items()} == {
        "quick": 0.05, "other": world.store.config.consume_timeout_s,
    }  # fmt: skip
    assert world.consumer(group="quick", consume_timeout_s=7)._settings.consume_timeout_s == 7
