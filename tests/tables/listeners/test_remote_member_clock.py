"""A producer that answers checks on a machine whose clock is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.check_world import COMMIT, GROUP, CheckWorld
from txmq.listeners.remote import requests_in
from txmq.producer.producer import TransactionProducer
from txmq.testing import WrongClock

HOUR_S = 3_600.0


@pytest.mark.parametrize("wrong_s", [-2 * HOUR_S, -HOUR_S, 0.0, 2 * HOUR_S])
def test_sign_of_life_has_the_time_of_the_store(tmp_path: Path, wrong_s: float) -> None:
    world = CheckWorld(tmp_path)
    clock = WrongClock(wrong_s, of_store=world.clock)
    listener = world.listener(COMMIT)

    with TransactionProducer(
        world.store, producer_group=GROUP, listener=listener, clock=clock
    ) as producer:
        producer.answer_checks()
        members = requests_in(world.store, GROUP).read().members

    assert list(members.values()) == [world.clock.now_ms()]
