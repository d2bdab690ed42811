"""The workload whose classes Java archives: a broker, a transaction and two readers on Spark.

`python -m tests.kit.class_archive` submits it.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from txmq.message.message import LocalTransactionState, Message
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.spark.session import local_session
from txmq.spark.streams import Consumer
from txmq.store.store import Store

if TYPE_CHECKING:
    from txmq.listeners.protocol import HalfMessage

CHECKS_S = 5.0
_GROUP, _TOPIC = "archive", "archive"


class _Listener:
    def execute_local_transaction(self, _: HalfMessage, __: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, _: HalfMessage) -> LocalTransactionState:
        return LocalTransactionState.COMMIT


def main() -> None:
    """Use most of what txmq does on Spark, in a store at the path that is given."""
    store = Store.create(sys.argv[1])
    spark = local_session("txmq classes", for_minutes=True)
    handle = Broker(store, spark=spark, listeners={_GROUP: _Listener()}).start()
    with TransactionProducer(store, producer_group=_GROUP) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message(_TOPIC, b"seen"))
        bodies = spark.range(1).selectExpr("encode(cast(id AS string), 'utf-8') AS body")
        transaction.send_dataframe(bodies, topic=_TOPIC)
        transaction.prepare()
        transaction.commit()
        unanswered = producer.begin_transaction()
        unanswered.send(Message(_TOPIC, b"asked about"))
        unanswered.prepare()
    time.sleep(CHECKS_S)
    rows = Consumer(store, consumer_group=_GROUP).read_stream(_TOPIC, spark=spark)
    query = (
        rows.groupBy("queue_id").count()
        .writeStream.foreachBatch(lambda batch, _: batch.toArrow())
        .outputMode("update").trigger(availableNow=True)
        .option("checkpointLocation", f"{sys.argv[1]}-checkpoint").start()
    )  # fmt: skip
    query.awaitTermination()
    handle.stop()
    spark.stop()
