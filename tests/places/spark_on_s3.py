"""A program for spark-submit: all that txmq does with Spark, on a store in a bucket."""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import SparkSession

from tests.oracle.checker import verify_by_spark
from txmq import (
    Admin,
    Broker,
    Config,
    DeltaListener,
    Message,
    Operator,
    Publisher,
    RecheckJob,
    Store,
    TransactionProducer,
)
from txmq.spark.streams import Consumer

GROUP, TOPIC = "orders", "order-paid"
FRAME_ROWS = 1_000
_LIMIT_S = 120.0


def main(lake: str) -> dict[str, object]:
    """Each way once; the counts tell what came of it."""
    spark = SparkSession.builder.getOrCreate()
    store = Store.create(f"{lake}/store", Config(payload_engine="spark", transaction_timeout_s=1.0))
    orders = f"{lake.replace('s3://', 's3a://')}/orders"
    spark.sql(f"CREATE TABLE delta.`{orders}` (id BIGINT) USING delta")
    listener = DeltaListener(orders)
    with TransactionProducer(store, producer_group=GROUP, listener=listener) as producer:
        frame = spark.range(FRAME_ROWS).selectExpr("cast(id as string) AS body")
        with producer.begin_transaction() as transaction:
            transaction.send_dataframe(frame, topic=TOPIC)
            transaction.prepare()
            with transaction.delta_sql(spark, orders) as sql:
                sql(f"INSERT INTO delta.`{orders}` VALUES (1)")
            transaction.commit()
        asked = producer.begin_transaction()
        asked.send(Message(TOPIC, b"asked"))
        asked.prepare()
        options = asked.delta_options(orders)
        spark.range(2, 3).write.format("delta").mode("append").options(**options).save(orders)
        fenced = producer.begin_transaction()
        fenced.send(Message(TOPIC, b"fenced"))
        fenced.prepare()
    recheck = RecheckJob(store, listeners={GROUP: listener})
    deadline_s = time.monotonic() + _LIMIT_S
    while Operator(store).open_transactions() and time.monotonic() < deadline_s:
        recheck.run_once()
        Publisher(store, spark=spark).run_once()
    read = Consumer(store, consumer_group="billing").read(TOPIC, spark=spark).count()
    broker = Broker(store, spark=spark, listeners={GROUP: listener}).start()
    with TransactionProducer(store, producer_group=GROUP) as producer:
        producer.send(Message(TOPIC, b"by the broker"))
    streamed = _streamed(spark, store, FRAME_ROWS + 2)
    broker.stop()
    report = verify_by_spark(store.location.replace("s3://", "s3a://"), spark)
    states = {one.id: Admin(store).transaction(one.id).state.value for one in (asked, fenced)}
    return {
        "read": read,
        "streamed": streamed,
        "orders": spark.read.format("delta").load(orders).count(),
        "ends": [states[asked.id], states[fenced.id]],
        "violations": sum(one.violation_count for one in report.results),
    }


def _streamed(spark: SparkSession, store: Store, count: int) -> int:
    """Rows that a stream has read, with its checkpoint in the bucket."""
    consumer = Consumer(store, consumer_group="stream")
    rows = consumer.read_stream(TOPIC, spark=spark)
    place = consumer.checkpoint_location(TOPIC)
    writer = rows.writeStream.format("memory").queryName("seen").option("checkpointLocation", place)
    query = writer.start()
    deadline_s, seen = time.monotonic() + _LIMIT_S, 0
    while seen < count and time.monotonic() < deadline_s:
        query.processAllAvailable()
        seen = spark.table("seen").count()
    query.stop()
    return seen


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))  # noqa: T201 - the test reads it
