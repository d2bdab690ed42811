"""A batch that a client books in its own loop, over Spark Connect."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.spark.micro_batches import BatchTransactions
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def booked_twice(spark: SparkSession, store: Store, orders: str, group: str, topic: str) -> None:
    """The same batch of five orders twice, as after a failure; then what it committed is published.

    Args:
        orders: the place of a table with the ids of orders.
    """

    def tell(batch: DataFrame, transaction: Any) -> None:
        transaction.send_dataframe(batch.selectExpr("cast(id as string) body"), topic=topic)

    def book(batch: DataFrame, transaction: Any) -> None:
        options = transaction.delta_options(orders)
        batch.write.format("delta").mode("append").options(**options).save(orders)

    moment = datetime.now(UTC)
    with TransactionProducer(store, producer_group=group) as producer:
        batches = BatchTransactions(producer, query_name="booking", send=tell, change=book)
        for _ in range(2):
            batches.run(spark.range(5), 1, moment)
    Publisher(store, spark=spark).run_once()
