# Databricks notebook source
# MAGIC %md
# MAGIC # Consume, change, publish
# MAGIC A job reads a topic, keeps the total of each customer in its own Delta table and publishes
# MAGIC the changes to a second topic. Each message of the first topic counts once in the table and
# MAGIC is published once to the second topic.
# MAGIC
# MAGIC On a cluster of Databricks: the bundle's wheel, a widget `folder`; see docs/databricks.md.
# MAGIC Not on serverless compute, whose batches run in another process; and not on S3, where
# MAGIC delta-rs and Databricks do not see each other's commits.
# MAGIC On a laptop: run this file with Python.

# COMMAND ----------

import json
import tempfile
import uuid

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
from txmq.spark.session import local_session

try:
    spark  # noqa: B018 - Databricks gives one
except NameError:
    spark = local_session("consume-change-publish", for_minutes=True)
    # The job below dies on purpose; a trace of Java would look like a fault.
    spark.sparkContext.setLogLevel("FATAL")

if "dbutils" in globals():
    folder = f"{dbutils.widgets.get('folder')}/{uuid.uuid4()}"  # noqa: F821
else:
    folder = tempfile.mkdtemp()
store = Store.create(f"{folder}/store")
totals = f"{folder}/totals"
spark.createDataFrame([], "customer string, total long").write.format("delta").save(totals)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The first topic
# MAGIC A shop sells and publishes a message for each sale.

# COMMAND ----------

listener = DeltaListener(totals)
broker = Broker(store, spark=spark, listeners={"totals": listener})
shop = TransactionProducer(store, producer_group="shop")


def sell(customer: str, amount: int) -> None:
    """Send one message; a real shop saves its order before `commit()`."""
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
# MAGIC The job has the same two functions as in
# MAGIC [publish_from_foreach_batch](publish_from_foreach_batch.py): one sends the messages, the
# MAGIC other one makes our own change, here a MERGE. A message says what this batch added to a
# MAGIC total. It cannot say the new total: messages are durable before the change begins.

# COMMAND ----------

producer = TransactionProducer(store, producer_group="totals", listener=listener)
deaths = ["after the MERGE"]


def added(batch: DataFrame) -> DataFrame:
    """Sum up what a batch of messages adds to each customer's total."""
    order = F.from_json(F.col("body").cast("string"), "customer string, amount long")
    orders = batch.select(order.alias("order")).select("order.*")
    return orders.groupBy("customer").agg(F.sum("amount").alias("total"))


def tell(batch: DataFrame, transaction: Transaction) -> None:
    """Send a message for each customer whose total changes."""
    messages = added(batch).select("customer", F.col("total").alias("added"))
    messages = messages.withColumn("keys", F.col("customer"))
    transaction.send_dataframe(messages, topic="total-changed")


def add_up(batch: DataFrame, transaction: Transaction) -> None:
    """Run the local transaction: one MERGE that carries the marker of this micro-batch."""
    added(batch).createOrReplaceTempView("added")
    # A micro-batch has its own session, and the views are in it.
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
    """Run the job once; a scheduler starts it, and starts it again after a failure."""
    stream = consumer.read_stream("order-paid", spark=spark)
    checkpoint = consumer.checkpoint_location("order-paid")
    writer = adding.write_stream(stream).option("checkpointLocation", checkpoint)
    writer.trigger(availableNow=True).start().awaitTermination()


# COMMAND ----------

# MAGIC %md
# MAGIC ## The job dies between MERGE and commit, and is started again
# MAGIC A MERGE that adds is not idempotent. The second run of the batch has the same marker, so
# MAGIC Spark skips the MERGE, and only `commit()` is left to do.

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
# MAGIC ## The totals, and the published messages

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
