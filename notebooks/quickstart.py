# Databricks notebook source
# MAGIC %md
# MAGIC # txmq in five minutes
# MAGIC A job changes its own table **and** publishes a message about it. The message becomes
# MAGIC visible if and only if the change took place.
# MAGIC
# MAGIC On Databricks, on a cluster or serverless: `%pip install txmq`, a widget `folder` for an
# MAGIC external location, a widget `secrets` for a scope with credentials. See docs/databricks.md.
# MAGIC On a laptop: run this file with Python.

# COMMAND ----------

import os
import tempfile
import uuid

from pyspark.sql import functions as F  # noqa: N812

from txmq import (
    Broker,
    Consumer,
    HalfMessage,
    LocalTransactionState,
    Message,
    Store,
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
else:
    folder = tempfile.mkdtemp()
store = Store.create(f"{folder}/store")
orders = f"{folder}/orders"

# COMMAND ----------

# MAGIC %md
# MAGIC ## The local transaction and the listener
# MAGIC Our own data is a Delta table of orders. If a producer dies between the local transaction
# MAGIC and `commit()`, the listener answers the question: is the order there or not?

# COMMAND ----------


def save_order(order_id: str, transaction_id: str) -> None:
    """Run the local transaction: one row in our own table."""
    row = spark.createDataFrame(
        [(order_id, transaction_id)], "order_id string, transaction_id string"
    )
    row.write.format("delta").mode("append").save(orders)


class OrderListener:
    """Answers from the orders table."""

    def execute_local_transaction(
        self, message: HalfMessage, argument: object
    ) -> LocalTransactionState:
        """Pay; send_message_in_transaction calls this when the half message is durable."""
        save_order(str(argument), message.transaction_id)
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        """Answer; the check service calls this when no end came."""
        rows = spark.read.format("delta").load(orders)
        found = rows.filter(F.col("transaction_id") == message.transaction_id).count()
        return LocalTransactionState.COMMIT if found else LocalTransactionState.ROLLBACK


listener = OrderListener()
producer = TransactionProducer(store, producer_group="order-service", listener=listener)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Send
# MAGIC Either one call as in RocketMQ, or a block with many messages for many topics.

# COMMAND ----------

result = producer.send_message_in_transaction(Message("order-paid", b"42", keys="order-42"), "42")

with producer.begin_transaction() as transaction:
    transaction.send(Message("order-paid", b"43", keys="order-43"))
    transaction.send(Message("stock-reserved", b"43", keys="order-43"))
    transaction.prepare()
    save_order("43", transaction.id)
    transaction.commit()

with producer.begin_transaction() as transaction:
    transaction.send(Message("order-paid", b"44", keys="order-44"))
    transaction.prepare()
    transaction.rollback()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Publish and read
# MAGIC `Broker(...).start()` runs until it is stopped; `run_once()` does what is due and returns.

# COMMAND ----------

print(Broker(store, spark=spark, listeners={"order-service": listener}).run_once())

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
spark.read.format("delta").load(f"{folder}/seen").orderBy("keys").show()

# COMMAND ----------

# MAGIC %md
# MAGIC ## Check the result
# MAGIC `verify` checks all tables with code that it does not share with the broker.

# COMMAND ----------

report = verify(store.location)
print(f"{report.violation_count} violations")
assert report.is_clean
producer.close()
