# Databricks notebook source
# MAGIC %md
# MAGIC # Consume, change, publish
# MAGIC A job reads a topic, keeps the total of each customer in its own Delta table and publishes
# MAGIC to another topic what has changed: each message of the first topic counts once in the table
# MAGIC and is told once in the second topic.
# MAGIC
# MAGIC On Databricks: `%pip install txmq`, and a volume as the location of the store.
# MAGIC On a laptop: run this file with Python.

# COMMAND ----------

import json
import tempfile

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from txmq import (
    BatchTransactions,
    Broker,
    Consumer,
    DeltaListener,
    Message,
    Store,
    Transaction,
    TransactionProducer,
    verify,
)
from txmq.local_spark.session import local_session

try:
    spark  # noqa: B018 - Databricks gives one
except NameError:
    spark = local_session("consume-change-publish", for_minutes=True)

folder = tempfile.mkdtemp()
store = Store.create(f"{folder}/store")
totals = f"{folder}/totals"
spark.createDataFrame([], "customer string, total long").write.format("delta").save(totals)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The first topic
# MAGIC Somebody sells, and says so.

# COMMAND ----------

listener = DeltaListener(totals)
broker = Broker(store, spark=spark, listeners={"totals": listener})
shop = TransactionProducer(store, producer_group="shop")


def sell(customer: str, amount: int) -> None:
    """One message; a real shop saves its order before `commit()`."""
    with shop.begin_transaction() as transaction:
        body = json.dumps({"customer": customer, "amount": amount}).encode()
        transaction.send(Message("order-paid", body, keys=customer))
        transaction.prepare()
        transaction.commit()


sell("Ada", 10)
sell("Bob", 20)
sell("Ada", 5)
broker.run_once()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The job in the middle
# MAGIC The same two functions as in [publish_from_foreach_batch](publish_from_foreach_batch.py):
# MAGIC what others hear, and our own change, here a MERGE. A message says what this batch added:
# MAGIC the new total is not known before the change, and messages are durable before it begins.

# COMMAND ----------

producer = TransactionProducer(store, producer_group="totals", listener=listener)
deaths = ["after the MERGE"]


def added(batch: DataFrame) -> DataFrame:
    """What a batch of messages adds to each customer's total."""
    order = F.from_json(F.col("body").cast("string"), "customer string, amount long")
    orders = batch.select(order.alias("order")).select("order.*")
    return orders.groupBy("customer").agg(F.sum("amount").alias("total"))


def tell(batch: DataFrame, transaction: Transaction) -> None:
    """A message for each customer whose total has changed."""
    columns = F.to_json(F.struct("customer", F.col("total").alias("added")))
    messages = added(batch).select(F.col("customer").alias("keys"), columns.alias("body"))
    transaction.send_dataframe(messages, topic="total-changed")


def add_up(batch: DataFrame, transaction: Transaction) -> None:
    """The local transaction: one MERGE, with the marker of this micro-batch on it."""
    added(batch).createOrReplaceTempView("added")
    # The views of a micro-batch are in a session of its own.
    with transaction.delta_sql(batch.sparkSession) as sql:
        sql(
            f"MERGE INTO delta.`{totals}` AS t USING added AS a ON t.customer = a.customer "
            "WHEN MATCHED THEN UPDATE SET total = t.total + a.total "
            "WHEN NOT MATCHED THEN INSERT *"
        )
    if deaths:
        raise RuntimeError(f"the job dies {deaths.pop()}")


adding = BatchTransactions(producer, query_name="totals", send=tell, change=add_up)
consumer = Consumer(store, consumer_group="totals")


def run_job() -> None:
    """What a scheduler starts, and starts again."""
    stream = consumer.read_stream("order-paid", spark=spark)
    checkpoint = consumer.checkpoint_location("order-paid")
    writer = adding.write_stream(stream).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


# COMMAND ----------

# MAGIC %md
# MAGIC ## It dies between MERGE and commit, and is started again
# MAGIC A MERGE that adds is not idempotent. The second run of the batch has the same marker, so
# MAGIC Spark skips it, and only `commit()` is left to do.

# COMMAND ----------

try:
    run_job()
except StreamingQueryException:
    print("the job died after the MERGE; starting it again")
run_job()

sell("Bob", 1)
broker.run_once()
run_job()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The totals, and what others heard

# COMMAND ----------

broker.run_once()
found = spark.read.format("delta").load(totals).orderBy("customer")
found.show()
assert [tuple(row) for row in found.collect()] == [("Ada", 15), ("Bob", 21)]

topic = spark.read.format("delta").load(store.topic_location("total-changed"))
heard = sorted(row["body"].decode() for row in topic.collect())
print("\n".join(heard))
assert [json.loads(body)["added"] for body in heard] == [15, 1, 20]

report = verify(store.location)
print(f"{report.violation_count} violations")
assert report.is_clean
producer.close()
shop.close()
