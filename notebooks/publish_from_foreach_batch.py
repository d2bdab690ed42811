# Databricks notebook source
# MAGIC %md
# MAGIC # Publish from foreachBatch
# MAGIC A streaming job books payments into its own Delta table and publishes a message for each
# MAGIC payment. Whenever the job dies, each micro-batch is booked once and its messages are visible
# MAGIC once.
# MAGIC
# MAGIC On a cluster of Databricks: the bundle's wheel, a widget `folder`; see docs/databricks.md.
# MAGIC Not on serverless compute, whose batches run in another process; and not on S3, where
# MAGIC delta-rs and Databricks do not see each other's commits.
# MAGIC On a laptop: run this file with Python.

# COMMAND ----------

import tempfile
import uuid

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
from txmq.spark.session import local_session

try:
    spark  # noqa: B018 - Databricks gives one
except NameError:
    spark = local_session("publish-from-foreach-batch", for_minutes=True)
    # The job below dies on purpose; a trace of Java would look like a fault.
    spark.sparkContext.setLogLevel("FATAL")

if "dbutils" in globals():
    folder = f"{dbutils.widgets.get('folder')}/{uuid.uuid4()}"  # noqa: F821
else:
    folder = tempfile.mkdtemp()
# By default the check asks after 6 seconds; this notebook does not wait so long.
store = Store.create(
    f"{folder}/store", Config(transaction_timeout_s=0.001, transaction_renewal_max_s=0.0)
)
incoming, booked = f"{folder}/incoming", f"{folder}/booked"
columns = "payment_id string, amount int"
spark.createDataFrame([], columns).write.format("delta").save(booked)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The job
# MAGIC The job has two functions: one sends the messages, the other one makes our own change.
# MAGIC `BatchTransactions` makes them one transaction for each micro-batch; the change carries the
# MAGIC marker of that transaction.

# COMMAND ----------

listener = DeltaListener(booked)
producer = TransactionProducer(store, producer_group="booking", listener=listener)
broker = Broker(store, spark=spark, listeners={"booking": listener})

deaths = ["before the write", "after the write"]


def die(moment: str) -> None:
    """Let the job die, once at each moment in `deaths`."""
    if moment in deaths:
        deaths.remove(moment)
        raise RuntimeError(f"the job dies {moment}")


def tell(batch: DataFrame, transaction: Transaction) -> None:
    """Send a message for each payment; the same messages whenever the batch runs again."""
    messages = batch.withColumn("keys", F.col("payment_id"))
    transaction.send_dataframe(messages, topic="payment-booked")


def book(batch: DataFrame, transaction: Transaction) -> None:
    """Run the local transaction: one write that carries the marker."""
    die("before the write")
    batch.write.format("delta").mode("append").options(**transaction.delta_options()).save(booked)
    die("after the write")


booking = BatchTransactions(producer, query_name="booking", send=tell, change=book)

# COMMAND ----------

# MAGIC %md
# MAGIC ## What happens when the job dies
# MAGIC Spark runs the last micro-batch again, with the same rows, number and time. The id of its
# MAGIC transaction is derived from number and time, so the second run finds the work of the first:
# MAGIC
# MAGIC | the first run died | the second run |
# MAGIC |---|---|
# MAGIC | before the messages were durable | does everything |
# MAGIC | after that, and the check has not asked | uses these messages, writes, calls `commit()` |
# MAGIC | after that, and the check rolled it back | is another transaction |
# MAGIC | after the write | Spark skips the write, because the marker is there; calls `commit()` |
# MAGIC | after `commit()`, or the check committed | has nothing to do |
# MAGIC
# MAGIC Give each job its own `query_name`, and keep the name as long as the checkpoint. A new
# MAGIC checkpoint reads everything again, and txmq takes that as new work. A batch that waited for
# MAGIC longer than `file_reserved_time_h` (72) is refused: nobody knows what became of it.

# COMMAND ----------


def receive(*payments: tuple[str, int]) -> None:
    """Store payments as one file, so that they become one micro-batch."""
    rows = spark.createDataFrame(list(payments), columns).coalesce(1)
    rows.write.format("delta").mode("append").save(incoming)


def run_job() -> None:
    """Run the job once; a scheduler starts it, and starts it again after a failure."""
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
# MAGIC ## Each payment is there once, in table and topic

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
