# Databricks notebook source
# MAGIC %md
# MAGIC # Publish from foreachBatch
# MAGIC A streaming job books payments into its own Delta table and publishes a message for each.
# MAGIC Whenever it dies, each micro-batch is booked once and its messages are visible once.
# MAGIC
# MAGIC On Databricks: `%pip install txmq`, and a volume as the location of the store.
# MAGIC On a laptop: run this file with Python.

# COMMAND ----------

import tempfile

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from txmq import (
    BatchTransactions,
    Broker,
    Config,
    DeltaListener,
    Store,
    Transaction,
    TransactionProducer,
    verify,
)
from txmq.local_spark.session import local_session

try:
    spark  # noqa: B018 - Databricks gives one
except NameError:
    spark = local_session("publish-from-foreach-batch", for_minutes=True)

folder = tempfile.mkdtemp()
# The check asks after 6 seconds by default; here nobody wants to wait.
store = Store.create(f"{folder}/store", Config(transaction_timeout_s=0.001))
incoming, booked = f"{folder}/incoming", f"{folder}/booked"
columns = "payment_id string, amount int"
spark.createDataFrame([], columns).write.format("delta").save(booked)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The job
# MAGIC Two functions: what others hear, and our own change. `BatchTransactions` makes them one
# MAGIC transaction for each micro-batch; the change carries the marker of that transaction.

# COMMAND ----------

listener = DeltaListener(booked)
producer = TransactionProducer(store, producer_group="booking", listener=listener)
broker = Broker(store, spark=spark, listeners={"booking": listener})

deaths = ["before the write", "after the write"]


def die(moment: str) -> None:
    """Twice in this notebook the job dies."""
    if moment in deaths:
        deaths.remove(moment)
        raise RuntimeError(f"the job dies {moment}")


def tell(batch: DataFrame, transaction: Transaction) -> None:
    """A message for each payment; the same ones whenever the batch runs again."""
    messages = batch.select(
        F.col("payment_id").alias("keys"), F.to_json(F.struct(*batch.columns)).alias("body")
    )
    transaction.send_dataframe(messages, topic="payment-booked")


def book(batch: DataFrame, transaction: Transaction) -> None:
    """The local transaction: one write, with the marker on it."""
    die("before the write")
    batch.write.format("delta").mode("append").options(**transaction.delta_options()).save(booked)
    die("after the write")


booking = BatchTransactions(producer, query_name="booking", send=tell, change=book)

# COMMAND ----------

# MAGIC %md
# MAGIC ## What happens when it dies
# MAGIC Spark runs the last micro-batch again, with the same rows, number and time. From number and
# MAGIC time comes the id of its transaction, so the second run finds what the first one did:
# MAGIC
# MAGIC | it died | the second run |
# MAGIC |---|---|
# MAGIC | before the messages were durable | does everything |
# MAGIC | then, and nobody asked yet | uses these messages, writes, `commit()` |
# MAGIC | then, and the check rolled it back | is another transaction |
# MAGIC | after the write | Spark skips it, for its marker is there; `commit()` |
# MAGIC | after `commit()`, or answered by the check | has nothing to do |
# MAGIC
# MAGIC Give each job a `query_name` of its own, and keep it with the checkpoint. A new checkpoint
# MAGIC reads everything again, and that is new work. A batch that waited for longer than
# MAGIC `file_reserved_time_h` (72) is refused: nobody knows any more what became of it.

# COMMAND ----------


def receive(*payments: tuple[str, int]) -> None:
    """Payments come in: one file, and so one micro-batch."""
    rows = spark.createDataFrame(list(payments), columns).coalesce(1)
    rows.write.format("delta").mode("append").save(incoming)


def run_job() -> None:
    """What a scheduler starts, and starts again."""
    stream = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(incoming)
    writer = booking.write_stream(stream).option("checkpointLocation", f"{folder}/checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()


receive(("1", 10), ("2", 20))
receive(("3", 30))
receive(("4", 40), ("5", 50))

for start in range(3):
    try:
        run_job()
        print(f"start {start}: all is booked")
    except StreamingQueryException:
        checks = broker.run_once().checked.checks
        print(f"start {start}: died; the check answered: {checks.committed} committed, "
              f"{checks.rolled_back} rolled back")  # fmt: skip

# COMMAND ----------

# MAGIC %md
# MAGIC ## Each payment once, in table and topic

# COMMAND ----------

broker.run_once()
topic = spark.read.format("delta").load(store.topic_location("payment-booked"))
topic.selectExpr("keys", "cast(body AS string) AS body", "transaction_id").orderBy("keys").show()

in_topic = sorted(row["keys"] for row in topic.collect())
in_table = sorted(row["payment_id"] for row in spark.read.format("delta").load(booked).collect())
print("booked:   ", in_table)
print("published:", in_topic)
assert in_topic == in_table == ["1", "2", "3", "4", "5"]
batches = topic.select("transaction_id").distinct().count()
print(f"{batches} micro-batches")

report = verify(store.location)
print(f"{report.violation_count} violations")
assert report.is_clean
producer.close()
