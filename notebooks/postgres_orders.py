# Databricks notebook source
# MAGIC %md
# MAGIC # A Postgres order service that publishes
# MAGIC Orders are kept in Postgres. A message about an order is published if and only if the
# MAGIC database transaction of the order was committed. No Spark is needed.
# MAGIC
# MAGIC Set the environment variable `ORDERS_DATABASE_URL`, such as
# MAGIC `postgresql://user:password@host:5432/orders`; in Databricks, take it from a secret. The
# MAGIC notebook makes two tables there if they are missing, `txmq_marker` and
# MAGIC `txmq_example_orders`.
# MAGIC Install txmq (docs/install.md) and `psycopg[binary]`, and run this file with Python.

# COMMAND ----------

import os
import tempfile
import uuid
from contextlib import suppress

import psycopg
import pyarrow.parquet as pq
from deltalake import DeltaTable

from txmq import (
    Broker,
    Config,
    DatabaseListener,
    Message,
    Store,
    Transaction,
    TransactionProducer,
    verify,
)
from txmq.errors import LocalTransactionFencedError

database_url = os.environ.get("ORDERS_DATABASE_URL")
if not database_url:
    raise SystemExit(
        "Set ORDERS_DATABASE_URL to the URL of a Postgres database, such as"
        " postgresql://user:password@host:5432/orders, then run this again."
    )

folder = tempfile.mkdtemp()
# By default the check asks after 6 seconds, and not about what a process that lives still works
# on. This notebook does not wait so long, and only plays that its process dies.
store = Store.create(
    f"{folder}/store", Config(transaction_timeout_s=0.001, transaction_renewal_max_s=0.0)
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The listener
# MAGIC The database transaction that changes the orders also writes a marker row. The
# MAGIC `DatabaseListener` looks for this row.

# COMMAND ----------


def connect() -> psycopg.Connection:
    """Open a connection to the database of orders."""
    return psycopg.connect(database_url)


listener = DatabaseListener(connect)
listener.create_marker_table()
with connect() as connection:
    connection.execute(
        "CREATE TABLE IF NOT EXISTS txmq_example_orders (id text PRIMARY KEY, amount integer)"
    )

producer = TransactionProducer(store, producer_group="order-service", listener=listener)
broker = Broker(store, listeners={"order-service": listener})

# COMMAND ----------

# MAGIC %md
# MAGIC ## The order service
# MAGIC `transaction.database(connection)` writes the marker row first; leaving the block of the
# MAGIC connection commits marker and order together.

# COMMAND ----------


def prepared(order_id: str) -> Transaction:
    """Begin a transaction whose message is durable, but not visible."""
    transaction = producer.begin_transaction()
    transaction.send(Message("order-placed", order_id.encode(), keys=order_id))
    transaction.prepare()
    return transaction


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


def place(order_id: str, amount: int, transaction: Transaction) -> None:
    """Run the local transaction."""
    with connect() as connection, transaction.database(connection):
        connection.execute("INSERT INTO txmq_example_orders VALUES (%s, %s)", [order_id, amount])


# COMMAND ----------

# MAGIC %md
# MAGIC ## Four cases
# MAGIC 1. The usual case.
# MAGIC 2. The process dies after the database has committed.
# MAGIC 3. The database transaction fails.
# MAGIC 4. The process is so late that the check is first. It meets the **fence**: a row that the
# MAGIC    check wrote in the place of the marker before it answered ROLLBACK.

# COMMAND ----------

run = uuid.uuid4().hex[:8]

usual = prepared(f"{run}-usual")
place(f"{run}-usual", 10, usual)
usual.commit()

dies = prepared(f"{run}-dies")
place(f"{run}-dies", 20, dies)
# Here the process dies.

fails = prepared(f"{run}-fails")
with suppress(psycopg.errors.UniqueViolation):
    place(f"{run}-usual", 30, fails)
# Here the process dies too.

late = prepared(f"{run}-late")
assert ask_about_all() == (1, 2)
try:
    place(f"{run}-late", 40, late)
except LocalTransactionFencedError as error:
    print(f"the late one was told: {error}")
else:
    raise AssertionError("a late local transaction must be refused")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Database and topic agree

# COMMAND ----------

broker.run_once()
# Not to_pyarrow_table(): of deltalake 1.6.6 it may abort Python at its exit.
topic = pq.read_table(DeltaTable(store.topic_location("order-placed")).file_uris())
published = sorted(topic["keys"].to_pylist())
with connect() as connection:
    found = connection.execute(
        "SELECT id FROM txmq_example_orders WHERE id LIKE %s ORDER BY id", [f"{run}-%"]
    )
    placed = [row[0] for row in found]
print("in the database:", placed)
print("published:      ", published)
assert published == placed == [f"{run}-dies", f"{run}-usual"]

report = verify(store.location)
print(f"{report.violation_count} violations")
assert report.is_clean
producer.close()
