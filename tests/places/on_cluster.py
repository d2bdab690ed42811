"""A program for spark-submit on a cluster: sends a DataFrame, or verifies the store."""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession

from txmq import Store, Topics, TransactionProducer, register_data_source
from txmq.spark.streams import Consumer

TOPIC, TYPED, COPY = "order-paid", "order-typed", "order-copy"
_FIELDS = [{"name": "order", "type": "long"}]
ORDER = {
    "encoding": "json",
    "schema": {"type": "record", "name": "OrderPaid", "fields": _FIELDS},
}


def send(spark: SparkSession, store: Store, rows: int) -> dict[str, object]:
    """One transaction of so many messages."""
    body = "concat('{\"order\": ', cast(id as string), '}') AS body"
    return _sent(store, spark.range(0, rows, 1, 8).selectExpr(body), TOPIC)


def write(spark: SparkSession, store: Store, rows: int) -> dict[str, object]:
    """As `send`, by `format("txmq")`."""
    register_data_source(spark)
    body = "concat('{\"order\": ', cast(id as string), '}') AS body"
    writer = spark.range(0, rows, 1, 8).selectExpr(body).write.format("txmq")
    writer.option("topic", TOPIC).mode("append").save(store.location)
    return {"written": rows}


def forward(spark: SparkSession, store: Store, rows: int) -> dict[str, object]:
    """A stream by `format("txmq")`, as a member of a group, into another topic in ten batches."""
    register_data_source(spark)
    stream = spark.readStream.format("txmq").option("topic", TOPIC).option("group", "forward")
    stream = stream.option("maxMessagesPerTrigger", max(1, rows // 10))
    query = (
        stream.load(store.location)
        .selectExpr(
            "body", "CAST(queue_offset AS STRING) AS keys", "STRING(queue_id) AS sharding_key"
        )
        .writeStream.format("txmq")
        .options(topic=COPY, path=store.location)
        .option("checkpointLocation", f"{store.location}-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return {"batches": len(query.recentProgress)}


def send_typed(spark: SparkSession, store: Store, rows: int) -> dict[str, object]:
    """To a typed topic: executors look at each body, so they need txmq."""
    Topics(store).create(TYPED, body=ORDER)
    body = "concat('{\"order\": ', cast(id as string), '}') AS body"
    return _sent(store, spark.range(0, rows, 1, 4).selectExpr(body), TYPED)


def _sent(store: Store, frame: DataFrame, topic: str) -> dict[str, object]:
    with (
        TransactionProducer(store, producer_group="orders") as producer,
        producer.begin_transaction() as transaction,
    ):
        transaction.send_dataframe(frame, topic=topic)
        transaction.prepare()
        transaction.commit()
    return {"sent": transaction.id}


def check(spark: SparkSession, store: Store, rows: int) -> dict[str, object]:
    """What the executors count, and what verify finds."""
    from tests.oracle.checker import verify_by_spark

    report = verify_by_spark(store.location.replace("s3://", "s3a://"), spark)
    read = Consumer(store, consumer_group="check").read(TOPIC, spark=spark)
    distinct = read.selectExpr("count(*) AS all", "count(DISTINCT body) AS bodies").first()
    register_data_source(spark)
    by_format = spark.read.format("txmq").option("topic", TOPIC).load(store.location)
    return {
        "violations": sum(one.violation_count for one in report.results),
        "rows": distinct["all"] if distinct else 0,
        "bodies": distinct["bodies"] if distinct else 0,
        "by_format": by_format.select("body").distinct().count(),
        "expected": rows,
    }


if __name__ == "__main__":
    _, work, location, count = sys.argv
    works = {
        "send": send, "send-typed": send_typed, "check": check, "write": write, "forward": forward
    }  # fmt: skip
    session = SparkSession.builder.getOrCreate()
    sys.stdout.write(json.dumps(works[work](session, Store.open(location), int(count))) + "\n")
    session.stop()
