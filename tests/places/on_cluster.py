"""A program for spark-submit on a cluster: sends a DataFrame, or verifies the store."""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession

from txmq import Store, Topics, TransactionProducer, register_data_source
from txmq.spark.streams import Consumer

TOPIC, TYPED = "order-paid", "order-typed"
_FIELDS = [{"name": "order", "type": "long"}]
ORDER = {
    "encoding": "json",
    "schema": {"type": "record", "name": "OrderPaid", "fields": _FIELDS},
}


def send(spark: SparkSession, store: Store, rows: int) -> dict[str, object]:
    """One transaction of so many messages."""
    body = "concat('{\"order\": ', cast(id as string), '}') AS body"
    return _sent(store, spark.range(0, rows, 1, 8).selectExpr(body), TOPIC)


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
    works = {"send": send, "send-typed": send_typed, "check": check}
    session = SparkSession.builder.getOrCreate()
    sys.stdout.write(json.dumps(works[work](session, Store.open(location), int(count))) + "\n")
    session.stop()
