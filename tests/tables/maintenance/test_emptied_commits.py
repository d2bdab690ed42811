"""Commits that lost their content: maintenance does nothing that a restored file could not undo."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.kit.reading import bodies
from txmq.delta.actions import commit_path
from txmq.maintenance.service import Maintenance
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.testing import ManualClock

TOPIC = "order-paid"
DAYS_S = 2 * 86_400.0
LONG_S = 20_000.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store", Config(checkpoint_interval=5))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=time.time_ns() // 1_000_000)


def send(store: Store, clock: ManualClock, *texts: str) -> None:
    with TransactionProducer(store, producer_group="orders", clock=clock) as producer:
        for text in texts:
            producer.send(Message(TOPIC, text.encode()))


@pytest.mark.parametrize("left", [b"", b"\n"])
def test_no_checkpoint_is_made_behind_a_commit_that_lost_its_content(
    store: Store, clock: ManualClock, left: bytes
) -> None:
    send(store, clock, "one")
    file = Path(store.location, "half", commit_path(1))
    content = file.read_bytes()
    file.write_bytes(left)
    publisher = Publisher(store, clock=clock)
    publisher.run_once()
    send(store, clock, *map(str, range(20)))
    publisher.run_once()

    failed = Maintenance(store, clock=clock).run_once().failed
    assert commit_path(1) in failed["half"]
    assert "restore this file" in failed["half"]
    file.write_bytes(content)
    clock.advance(LONG_S)
    Publisher(store, clock=clock).run_once()

    assert b"one" in bodies(store, TOPIC)
    assert not Maintenance(store, clock=clock).run_once().failed


@pytest.mark.parametrize("log", ["op", "half"])
def test_files_that_a_commit_named_before_it_lost_its_content_are_no_leftovers(
    store: Store, clock: ManualClock, log: str
) -> None:
    send(store, clock, "one", "two")
    file = Path(store.location, log, commit_path(1))
    content = file.read_bytes()
    file.write_bytes(b"")
    clock.advance(DAYS_S)

    failed = Maintenance(store, clock=clock).run_once().failed
    assert "nothing was removed" in failed[log]
    file.write_bytes(content)
    Publisher(store, clock=clock).run_once()

    assert sorted(bodies(store, TOPIC)) == [b"one", b"two"]
