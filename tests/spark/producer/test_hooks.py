"""Hooks where Spark takes part: DataFrames, and a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.kit.check_world import COMMIT, CheckWorld
from tests.tables.producer.test_hooks import Recorder
from txmq.errors import InvalidMessageError
from txmq.message.lifecycle import TransactionState
from txmq.message.message import Message
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from txmq.store.store import Store


def test_a_dataframe_is_told_by_its_topic(store: Store, spark: SparkSession) -> None:
    recorder = Recorder()
    rows = spark.createDataFrame([("1",), ("2",)], "body string")
    with TransactionProducer(
        store, producer_group="orders", namespace="red", hooks=[recorder]
    ) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("paid", b"0"))
        transaction.send_dataframe(rows, topic="bulk")
        transaction.prepare()
        transaction.commit()
    Broker(store).publisher.run_once()

    (after,), (end,) = recorder.after, recorder.ends
    assert after.dataframe_topics == ("bulk",)
    assert [one.topic for one in after.messages] == ["paid"]
    assert end.message_count is None
    assert store.topics() == ["red.bulk", "red.paid"]


def test_a_dataframe_that_is_refused_is_told_with_its_error(
    store: Store, spark: SparkSession
) -> None:
    recorder = Recorder()
    rows = spark.createDataFrame([(None,)], "body string")
    with TransactionProducer(store, producer_group="orders", hooks=[recorder]) as producer:
        transaction = producer.begin_transaction()
        transaction.send_dataframe(rows, topic="bulk")
        with pytest.raises(InvalidMessageError) as refused:
            transaction.prepare()

    (after,) = recorder.after
    assert after.error is refused.value


def test_a_broker_tells_of_the_ends_of_its_check(tmp_path: Path, spark: SparkSession) -> None:
    world = CheckWorld(tmp_path)
    (own_id,) = world.prepare()
    world.clock.advance(60)
    recorder = Recorder()
    listeners = {"orders": world.listener(COMMIT)}
    broker = Broker(
        world.store, spark=spark, listeners=listeners, clock=world.clock, hooks=[recorder]
    )

    broker.run_once()

    (end,) = recorder.ends
    assert (end.transaction_id, end.state) == (own_id, TransactionState.COMMITTED)
    assert end.from_check
