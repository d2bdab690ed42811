"""Fixtures of the tests that delete groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.consumer_world import ConsumerWorld
from txmq import ConsumerGroups


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ConsumerWorld]:
    made = ConsumerWorld(tmp_path, queues=1, message_delay_level="1s 1s 1s")
    yield made
    made.close()


@pytest.fixture
def groups(world: ConsumerWorld) -> ConsumerGroups:
    return ConsumerGroups(world.store, clock=world.clock)
