"""What belongs to its process says so where a function of Spark takes it along."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import pytest

from txmq.check.service import CheckService
from txmq.consumer.pull import PullConsumer
from txmq.listeners.delta import DeltaListener
from txmq.maintenance.service import Maintenance
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.publish.delay_service import DelayService
from txmq.publish.publisher import Publisher
from txmq.store.store import Store


def producer(store: Store) -> TransactionProducer:
    return TransactionProducer(store, producer_group="orders")


def transaction(store: Store) -> object:
    return producer(store).begin_transaction()


def consumer(store: Store) -> PullConsumer:
    return PullConsumer(store, consumer_group="billing", topics="order-paid")


def listener(store: Store) -> DeltaListener:
    return DeltaListener(f"{store.location}/orders")


@pytest.mark.parametrize(
    "made",
    [producer, transaction, consumer, listener, Publisher, CheckService, DelayService, Maintenance,
     Broker],
)  # fmt: skip
def test_what_belongs_to_its_process_says_so_when_it_is_pickled(
    store: Store, made: Callable[[Store], object]
) -> None:
    with pytest.raises(TypeError, match=r"is not pickled: .* Make one where it is used"):
        pickle.dumps(made(store))

    assert pickle.loads(pickle.dumps(store)).location == store.location  # noqa: S301
