"""A program for spark-submit: a marked write with Delta's own log store for S3."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession

from txmq import Message, Store, TransactionProducer, TxmqError


def main(lake: str, way: str) -> dict[str, object]:
    """What the producer is told before anything is written."""
    spark = SparkSession.builder.getOrCreate()
    orders = f"{lake.replace('s3://', 's3a://')}/orders"
    spark.range(1).write.format("delta").save(orders)
    told: dict[str, object] = {"error": None}
    with TransactionProducer(Store.create(f"{lake}/store"), producer_group="orders") as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("order-paid", b"42"))
        transaction.prepare()
        try:
            if way == "options":
                transaction.delta_options(orders)
            else:
                with transaction.delta_sql(spark, orders) as sql:
                    sql(f"INSERT INTO delta.`{orders}` VALUES (2)")
        except TxmqError as error:
            told = {"error": type(error).__name__, "text": str(error)}
    return {**told, "rows": spark.read.format("delta").load(orders).count()}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))  # noqa: T201 - the test reads it
