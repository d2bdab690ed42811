# Databricks notebook source
# MAGIC %md
# MAGIC # txmq in five minutes
# MAGIC A job changes its own table **and** publishes a message about it. The message becomes
# MAGIC visible if and only if the change took place.
# MAGIC
# MAGIC On Databricks, on a cluster or serverless: the bundle's wheel, a widget `folder` for an
# MAGIC external location, a widget `secrets` for a scope with credentials, a widget `credentials`
# MAGIC for who lends them instead. The bundle's job `quickstart` has all; see docs/databricks.md.
# MAGIC On S3, where Databricks commits by a service of its own, Spark puts the fence.
# MAGIC On a laptop: run this file with Python.

# COMMAND ----------

import os
import tempfile
import uuid
from contextlib import suppress

from txmq import (
    Broker,
    Config,
    Consumer,
    DeltaListener,
    Message,
    Store,
    Transaction,
    TransactionProducer,
    verify,
)
from txmq.job import export_secrets
from txmq.spark.session import local_session

try:
    spark  # noqa: B018 - Databricks gives one
except NameError:
    spark = local_session("quickstart", for_minutes=True)

if "dbutils" in globals():
    folder = f"{dbutils.widgets.get('folder')}/{uuid.uuid4()}"  # noqa: F821
    export_secrets(dbutils.widgets.get("secrets"), os.environ)  # noqa: F821
    os.environ["TXMQ_CREDENTIALS"] = dbutils.widgets.get("credentials")  # noqa: F821
else:
    folder = tempfile.mkdtemp()
# By default the check asks after 6 seconds, and not about what a process that lives still works
# on. This notebook does not wait so long, and only plays that its process dies.
store = Store.create(
    f"{folder}/store", Config(transaction_timeout_s=0.001, transaction_renewal_max_s=0.0)
)
orders = f"{folder}/orders"
spark.createDataFrame([], "order_id string").write.format("delta").save(orders)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The local transaction and the listener
# MAGIC Our own data is a Delta table of orders. A write carries the **marker** of its transaction.
# MAGIC If a producer dies before `commit()`, the listener looks for it: is the order there? If not,
# MAGIC it puts a **fence** in its place before it answers ROLLBACK, so that a write that is still
# MAGIC on its way changes nothing.

# COMMAND ----------

listener = DeltaListener(orders, spark=spark)
producer = TransactionProducer(store, producer_group="order-service", listener=listener)
broker = Broker(store, spark=spark, listeners={"order-service": listener})


def save_order(order_id: str, transaction: Transaction) -> None:
    """Run the local transaction: one row in our own table, with the marker."""
    row = spark.createDataFrame([(order_id,)], "order_id string")
    options = transaction.delta_options()
    row.write.format("delta").mode("append").options(**options).save(orders)


# COMMAND ----------

# MAGIC %md
# MAGIC ## Send
# MAGIC Order 42 goes its usual way, with messages for two topics. The process of order 43 dies
# MAGIC after the write, that of order 44 before it.

# COMMAND ----------

with producer.begin_transaction() as transaction:
    transaction.send(Message("order-paid", b"42", keys="order-42"))
    transaction.send(Message("stock-reserved", b"42", keys="order-42"))
    transaction.prepare()
    save_order("42", transaction)
    transaction.commit()

with suppress(RuntimeError), producer.begin_transaction() as transaction:
    transaction.send(Message("order-paid", b"43", keys="order-43"))
    transaction.prepare()
    save_order("43", transaction)
    raise RuntimeError("here the process dies")

with suppress(RuntimeError), producer.begin_transaction() as transaction:
    transaction.send(Message("order-paid", b"44", keys="order-44"))
    transaction.prepare()
    raise RuntimeError("here the process dies")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Publish and read
# MAGIC `broker.start()` runs until it is stopped; `run_once()` does what is due and returns. The
# MAGIC check commits the message about order 43 and rolls back that about order 44.

# COMMAND ----------

checks = broker.run_once().checked.checks
print(f"the check answered: {checks.committed} committed, {checks.rolled_back} rolled back")
assert (checks.committed, checks.rolled_back) == (1, 1)

seen = (
    Consumer(store, consumer_group="billing")
    .read_stream("order-paid", spark=spark)
    .selectExpr("keys", "cast(body AS string) AS body", "queue_id", "queue_offset")
)
query = (
    seen.writeStream.format("delta")
    .option("checkpointLocation", f"{folder}/checkpoint")
    .trigger(availableNow=True)
    .start(f"{folder}/seen")
)
query.awaitTermination()
found = spark.read.format("delta").load(f"{folder}/seen").orderBy("keys")
found.show()
assert [row["keys"] for row in found.collect()] == ["order-42", "order-43"]

# COMMAND ----------

# MAGIC %md
# MAGIC ## Check the result
# MAGIC `verify` checks all tables with code that it does not share with the broker.

# COMMAND ----------

report = verify(store.location)
print(f"{report.violation_count} violations")
assert report.is_clean
producer.close()
