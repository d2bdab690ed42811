"""Keys of claims change while a broker and producers restart, each by itself, in every order."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from tests.kit.forked import Forked, forked
from tests.kit.reading import bodies, wait_until
from txmq.errors import ConfigError
from txmq.message.message import Message
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.store.brokers import read_brokers
from txmq.store.set_aside import read_set_aside
from txmq.store.store import Store
from txmq.verify import verify

GROUP, VARIABLE = "orders", "ORDERS_CLAIM_KEY"
OLD, NEW = "0" * 64, "f" * 64
# As docs/security.md says it; nobody takes a step before all have taken the one before.
STEPS = (OLD, f"{OLD} {NEW}", f"{NEW} {OLD}", NEW)
# A step knows nothing of the one before: with these two each step is taken in each order.
ORDERS = [("broker", "producer"), ("producer", "broker")]


def opened(location: str, keys: str) -> Store:
    os.environ[VARIABLE] = keys
    store = Store.open(location)
    return store.with_settings(
        store.config.replace(claim_keys={GROUP: VARIABLE}, park_retry_interval_s=0.01)
    )


def serve(location: str, keys: str) -> None:
    """A broker, until SIGTERM."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with Broker(opened(location, keys)).start():
        ended.wait()


def sell(location: str, keys: str, body: str, acknowledged: str) -> None:
    """A producer: an ordinary message and a transaction; notes what it was told."""
    told = Path(acknowledged)
    with TransactionProducer(opened(location, keys), producer_group=GROUP) as producer:
        try:
            producer.send(Message("order-paid", f"{body} sent".encode()))
            told.write_text(f"{told.read_text()}{body} sent\n")
            with producer.begin_transaction() as transaction:
                transaction.send(Message("order-paid", f"{body} committed".encode()))
                transaction.prepare()
                transaction.commit()
            told.write_text(f"{told.read_text()}{body} committed\n")
        except ConfigError as error:
            told.write_text(f"{told.read_text()}refused\n")
            sys.stdout.write(str(error))


class World:
    """A store with a broker that is restarted with other keys, and producers beside it."""

    def __init__(self, folder: Path) -> None:
        self.location = Store.create(folder / "store").location
        self.told = folder / "told"
        self.told.write_text("")
        self.broker: Forked | None = None

    def serve(self, keys: str) -> None:
        self.stop()
        before = read_brokers(Store.open(self.location).tables).entries.keys()
        self.broker = forked(serve, self.location, keys)
        wait_until(
            lambda: bool(read_brokers(Store.open(self.location).tables).entries.keys() - {*before})
        )

    def stop(self) -> None:
        if self.broker is not None:
            self.broker.terminate()
            assert self.broker.wait(60) == 0, self.broker.complaint()
            self.broker = None

    def sell(self, keys: str, body: str) -> str:
        """Returns what the producer wrote."""
        producer = forked(sell, self.location, keys, body, str(self.told))
        assert producer.wait(60) == 0, producer.complaint()
        return producer.complaint()

    def check(self, keys: str) -> None:
        """Everything that was acknowledged is shown, once."""
        store = opened(self.location, keys)
        acknowledged = [line for line in self.told.read_text().split("\n") if " " in line]
        wait_until(lambda: len(bodies(store)) >= len(acknowledged))
        self.stop()
        Broker(store).run_once()
        assert sorted(bodies(store)) == sorted(line.encode() for line in acknowledged)
        assert not read_set_aside(store.tables).transactions


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.mark.parametrize("order", ORDERS, ids=" ".join)
def test_keys_change_in_three_steps_without_a_loss_or_a_refusal(
    world: World, order: tuple[str, ...]
) -> None:
    keys = {"broker": STEPS[0], "producer": STEPS[0]}
    try:
        world.serve(keys["broker"])
        world.sell(keys["producer"], "0")
        for step, after in enumerate(STEPS[1:], start=1):
            for who in order:
                keys[who] = after
                if who == "broker":
                    world.serve(after)
                world.sell(keys["producer"], f"{step} {who}")
        assert "refused" not in world.told.read_text()
        world.check(STEPS[-1])
    finally:
        world.stop()
    assert verify(world.location, claim_keys={GROUP: [OLD, NEW]}).is_clean


def test_a_producer_that_signs_by_a_key_that_the_broker_does_not_know_is_told_before_it_sends(
    world: World,
) -> None:
    try:
        world.serve(OLD)
        said = world.sell(f"{NEW} {OLD}", "too early")
        assert world.told.read_text() == "refused\n"
        assert "give every broker and producer both keys" in said
        assert NEW not in said
        world.serve(f"{OLD} {NEW}")
        world.sell(f"{NEW} {OLD}", "in time")
        world.check(f"{OLD} {NEW}")
    finally:
        world.stop()


@pytest.mark.parametrize(("sold_by", "served_by"), [(OLD, NEW), (NEW, OLD)], ids=["new", "old"])
def test_a_broker_that_does_not_know_the_key_of_what_was_sent_loses_nothing(
    world: World, sold_by: str, served_by: str
) -> None:
    """While it was sent no broker ran who could have told the producer."""
    world.sell(sold_by, "alone")
    try:
        world.serve(served_by)
        tables = opened(world.location, served_by).tables
        wait_until(lambda: len(read_set_aside(tables).transactions) == 2)
        world.serve(f"{OLD} {NEW}")
        world.check(f"{OLD} {NEW}")
    finally:
        world.stop()
