"""A store is replaced by an older copy under a live producer: nobody is told what is not there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.reading import bodies
from txmq.errors import SourceRestoredError, TxmqError
from txmq.ground.clock import timestamp
from txmq.ground.fail_points import FailPoint, arm
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.publish.publisher import Publisher
from txmq.store.store import Store
from txmq.testing import ManualClock

NOW_MS = 1_767_225_600_000
KEY = {"idempotency_key": "7", "key_timestamp": timestamp(NOW_MS)}


class World:
    """A store with an older copy of it, and a producer that lives on."""

    def __init__(self, folder: Path, *, has_ended_some: bool) -> None:
        self.store = Store.create(folder / "store")
        self.copy = folder / "copy"
        shutil.copytree(self.store.location, self.copy)
        self.producer = TransactionProducer(
            self.store, producer_group="orders", clock=ManualClock(NOW_MS)
        )
        if has_ended_some:
            self.prepared(b"earlier").commit()

    def prepared(self, body: bytes = b"1", **key: Any) -> Transaction:
        transaction = self.producer.begin_transaction(**key)
        transaction.send(Message("order-paid", body))
        transaction.prepare()
        return transaction

    def be_copied(self) -> None:
        """Take another copy, with the times of its files."""
        shutil.rmtree(self.copy)
        shutil.copytree(self.store.location, self.copy)

    def go_back(self) -> None:
        shutil.rmtree(self.store.location)
        shutil.copytree(self.copy, self.store.location)

    def shown(self) -> list[bytes]:
        Publisher(Store.open(self.store.location)).run_once()
        return bodies(self.store)


@pytest.fixture(params=[False, True], ids=["first end", "later end"])
def world(tmp_path: Path, request: pytest.FixtureRequest) -> World:
    return World(tmp_path, has_ended_some=request.param)


def twice(transaction: Transaction) -> None:
    with pytest.raises(SourceRestoredError):
        transaction.commit()
    transaction.commit()


ENDS: dict[str, Callable[[Transaction], object]] = {
    "commit": lambda transaction: transaction.commit(),
    "commit_async": lambda transaction: transaction.commit_async().result(),
    "commit twice": twice,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("key", [{}, KEY], ids=["without a key", "with a key"])
def test_commit_after_the_store_went_back_says_so(
    world: World, end: Callable[[Transaction], object], key: dict[str, Any]
) -> None:
    transaction = world.prepared(**key)
    world.go_back()

    with pytest.raises(SourceRestoredError, match="the store went back to an older copy"):
        end(transaction)

    assert world.shown() == []


def test_commit_says_so_when_others_have_written_since(world: World) -> None:
    transaction = world.prepared()
    world.go_back()
    with TransactionProducer(world.store, producer_group="orders") as other:
        for number in range(4):
            other.send(Message("order-paid", b"other %d" % number))

    with pytest.raises(SourceRestoredError):
        transaction.commit()


def test_commit_says_so_where_the_copy_has_the_same_op_log(world: World) -> None:
    world.prepared(b"earlier").commit()
    world.be_copied()
    transaction = world.prepared()
    world.go_back()

    with pytest.raises(SourceRestoredError):
        transaction.commit()


def test_one_that_was_prepared_since_is_committed(world: World) -> None:
    lost = world.prepared(b"lost")
    world.go_back()
    transaction = world.prepared(b"new")
    transaction.commit()

    assert world.shown() == [b"new"]
    with pytest.raises(SourceRestoredError):
        lost.commit()


def test_of_those_that_share_a_commit_only_the_lost_are_told(world: World) -> None:
    lost = world.prepared(b"lost")
    world.go_back()
    new = world.prepared(b"new")
    futures = [transaction.commit_async() for transaction in (lost, new)]

    assert isinstance(futures[0].exception(), SourceRestoredError)
    assert futures[1].exception() is None


def test_rollback_after_the_store_went_back_is_as_good_as_done(world: World) -> None:
    transaction = world.prepared()
    world.go_back()

    transaction.rollback()

    assert world.shown() == []


SENDS: dict[str, Callable[[TransactionProducer], object]] = {
    "send": lambda producer: producer.send(Message("order-paid", b"1")),
    "send_async": lambda producer: producer.send_async(Message("order-paid", b"1")).result(),
}


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
def test_ordinary_message_whose_half_went_away_before_its_commit_is_not_acknowledged(
    world: World, send: Callable[[TransactionProducer], object]
) -> None:
    def strike(point: FailPoint) -> None:
        if point is FailPoint.END_READY:
            disarm()
            world.go_back()

    disarm = arm(strike)
    with pytest.raises(SourceRestoredError, match="went back to an older copy"):
        send(world.producer)

    assert world.shown() == []


def test_recall_after_the_store_went_back_is_refused(world: World) -> None:
    transaction = world.producer.begin_transaction()
    message_id = transaction.send(Message("order-paid", b"1", delay_s=3_600))
    transaction.prepare()
    transaction.commit()
    world.go_back()

    with pytest.raises(TxmqError):
        world.producer.recall(message_id)


def test_a_process_that_ends_its_own_reads_no_half(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look at a file name tells that the half log did not go back."""
    transactions = [world.prepared() for _ in range(2)]
    monkeypatch.setattr("txmq.store.logs.EndReader.without_halves", lambda *_: pytest.fail("read"))

    for transaction in transactions:
        transaction.commit()
