# Databricks notebook source
# MAGIC %md
# MAGIC # MERGE into a Delta table and publish
# MAGIC We keep orders in our own Delta table. A message about a MERGE into it is published if and
# MAGIC only if the MERGE took place. Nobody has to write a listener: the MERGE carries a marker,
# MAGIC and the `DeltaListener` looks for it.
# MAGIC
# MAGIC On a cluster of Databricks: the bundle's wheel, a widget `folder`; see docs/databricks.md.
# MAGIC Not on serverless compute, which refuses the marker of a MERGE; not on S3, where delta-rs
# MAGIC and Databricks do not see each other's commits.
# MAGIC On a laptop: run this file with Python.

# COMMAND ----------

import json
import tempfile
import uuid
from contextlib import suppress

from txmq import (
    Broker,
    Config,
    DeltaListener,
    Message,
    Store,
    Transaction,
    TransactionProducer,
    verify,
)
from txmq.errors import LocalTransactionFencedError
from txmq.spark.session import local_session

try:
    spark  # noqa: B018 - Databricks gives one
except NameError:
    spark = local_session("merge-and-publish", for_minutes=True)

if "dbutils" in globals():
    folder = f"{dbutils.widgets.get('folder')}/{uuid.uuid4()}"  # noqa: F821
else:
    folder = tempfile.mkdtemp()
# By default the check asks after 6 seconds, and not about what a process that lives still works
# on. This notebook does not wait so long, and only plays that its process dies.
store = Store.create(
    f"{folder}/store", Config(transaction_timeout_s=0.001, transaction_renewal_max_s=0.0)
)
orders = f"{folder}/orders"
spark.createDataFrame([("1", "open")], "id string, status string").write.format("delta").save(
    orders
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The listener
# MAGIC The listener answers checks, and it tells the producer which table carries the marker.
# MAGIC On a laptop, let only one process write the table: on a local disk Spark's commits of two
# MAGIC processes can overwrite each other.

# COMMAND ----------

listener = DeltaListener(orders)
producer = TransactionProducer(store, producer_group="order-service", listener=listener)
broker = Broker(store, spark=spark, listeners={"order-service": listener})


def paid(order_id: str) -> Message:
    """Make the message about an order."""
    return Message("order-paid", json.dumps({"id": order_id}).encode(), keys=order_id)


def ask_about_all() -> tuple[int, int]:
    """Run the broker until nothing is open; return how many checks said COMMIT and ROLLBACK."""
    committed, rolled_back, is_open = 0, 0, True
    while is_open:
        checked = broker.run_once().checked
        committed += checked.checks.committed
        rolled_back += checked.checks.rolled_back
        is_open = checked.open_transactions > 0
    print(f"the check answered: {committed} committed, {rolled_back} rolled back")
    return committed, rolled_back


def merge(order_id: str, transaction: Transaction) -> None:
    """Run the local transaction: one statement that carries the marker of this transaction."""
    changes = spark.createDataFrame([(order_id, "paid")], "id string, status string")
    changes.createOrReplaceTempView("changes")
    with transaction.delta_sql(spark) as sql:
        sql(
            f"MERGE INTO delta.`{orders}` AS o USING changes AS c ON o.id = c.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )


# COMMAND ----------

# MAGIC %md
# MAGIC ## The usual case
# MAGIC Messages, `prepare()`, the MERGE, `commit()`.

# COMMAND ----------

with producer.begin_transaction() as transaction:
    transaction.send(paid("1"))
    transaction.prepare()
    merge("1", transaction)
    transaction.commit()

# COMMAND ----------

# MAGIC %md
# MAGIC ## The process dies between MERGE and commit
# MAGIC Order 2 is paid, and its process can no longer commit the message. The check finds the
# MAGIC marker in the table and answers COMMIT.

# COMMAND ----------

with suppress(RuntimeError), producer.begin_transaction() as transaction:
    transaction.send(paid("2"))
    transaction.prepare()
    merge("2", transaction)
    raise RuntimeError("here the process dies")

assert ask_about_all() == (1, 0)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The process is late
# MAGIC Order 3 is prepared, then its process stands still for so long that the check is first.
# MAGIC There is no marker, so the check puts a **fence** into the table before it answers ROLLBACK.
# MAGIC When the process goes on, Spark silently skips its write, and `commit()` raises an error.
# MAGIC
# MAGIC `DeltaListener(orders, rollback_after_s=600)` waits longer before it fences: choose a time
# MAGIC that is longer than any of your changes takes.

# COMMAND ----------

late = producer.begin_transaction()
late.send(paid("3"))
late.prepare()

assert ask_about_all() == (0, 1)

rows = spark.createDataFrame([("3", "paid")], "id string, status string")
rows.write.format("delta").mode("append").options(**late.delta_options()).save(orders)
try:
    late.commit()
except LocalTransactionFencedError as error:
    print(f"commit() said: {error}")
else:
    raise AssertionError("a late commit must be told")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Table and topic agree
# MAGIC Orders 1 and 2 are paid and published, order 3 is neither.

# COMMAND ----------

broker.run_once()
topic = spark.read.format("delta").load(store.topic_location("order-paid"))
in_table = spark.read.format("delta").load(orders).where("status = 'paid'")
topic.selectExpr("keys", "cast(body AS string) AS body").orderBy("keys").show()

published = sorted(row["keys"] for row in topic.collect())
assert published == sorted(row["id"] for row in in_table.collect()) == ["1", "2"]

report = verify(store.location)
print(f"{report.violation_count} violations")
assert report.is_clean
producer.close()
