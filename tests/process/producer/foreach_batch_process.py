"""A foreachBatch job to be killed: `python -m tests.process.producer.foreach_batch_process …`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import psutil

import txmq.testing  # noqa: F401 - arms the fail points
from txmq.listeners.delta import DeltaListener
from txmq.producer.producer import TransactionProducer
from txmq.spark.micro_batches import BatchTransactions
from txmq.spark.session import local_session
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from txmq.producer.transaction import Transaction

GROUP = "booking"
TOPIC = "payment-booked"
SCHEMA = "payment string, file string"


def tell(batch: DataFrame, transaction: Transaction) -> None:
    messages = batch.selectExpr("payment AS keys", "file AS tags", "payment AS body")
    transaction.send_dataframe(messages, topic=TOPIC)


def kill_all() -> None:
    """Kill this process, and Java, which is in its group."""
    os.killpg(0, signal.SIGKILL)


def kill_java() -> None:
    for process in psutil.Process().children(recursive=True):
        if process.name() == "java":
            process.kill()


KILLS = {"all": kill_all, "java": kill_java}


def main(location: str, folder: str, dies_after_s: str = "", who: str = "all") -> None:
    """Book payments, one file a micro-batch.

    Ends when all is done; or, with a time, `who` dies so long after its first batch began.
    """
    booked, began = f"{folder}/booked", threading.Event()
    for_ever = {"processingTime": "0 seconds"}
    trigger: dict[str, Any] = for_ever if dies_after_s else {"availableNow": True}

    def book(batch: DataFrame, transaction: Transaction) -> None:
        writer = batch.write.format("delta").mode("append")
        writer.options(**transaction.delta_options()).save(booked)

    def begin(batch: DataFrame, transaction: Transaction) -> None:
        if dies_after_s and not began.is_set():
            began.set()
            threading.Timer(float(dies_after_s), KILLS[who]).start()
        tell(batch, transaction)

    spark = local_session(for_minutes=True)
    payments = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    store, listener = Store.open(location), DeltaListener(booked)
    with TransactionProducer(store, producer_group=GROUP, listener=listener) as producer:
        booking = BatchTransactions(producer, query_name="booking", send=begin, change=book)
        writer = booking.write_stream(payments.json(f"{folder}/payments"))
        writer = writer.option("checkpointLocation", f"{folder}/checkpoint")
        writer.trigger(**trigger).start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
