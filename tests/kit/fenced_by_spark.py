"""A table that Spark marks and fences, in the places where Spark writes tables; races about it.

A race is one marked write and one question about it, both at once. Each has a row of its own, so
that after many races the rows tell which writes took effect.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from threading import Barrier
from typing import TYPE_CHECKING, Any

from txmq.errors import LocalTransactionFencedError
from txmq.message.ids import new_transaction_id
from txmq.spark.marked_table import SparkMarkedTable, quoted
from txmq.user_data.local_transaction import LocalTransaction
from txmq.user_data.markers import DONE, FENCED

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

# What Databricks gives a table by default, and more.
USUAL = {
    "delta.enableRowTracking": "true",
    "delta.enableInCommitTimestamps": "true",
    "delta.enableDeletionVectors": "true",
}
# Delta writes it, and no list of txmq has it.
UNKNOWN = {"delta.feature.materializePartitionColumns": "supported"}
MANAGED = {"delta.feature.catalogManaged": "supported"}
PLACES = {"path": UNKNOWN, "name": {}, "usual": USUAL, "managed": MANAGED}


@dataclass(frozen=True)
class SparkOrders:
    """Orders, all open, in a table that Spark alone reads and writes."""

    spark: SparkSession
    location: str

    @property
    def sql_name(self) -> str:
        return quoted(self.location)

    def create(self, properties: dict[str, str], ids: int = 2) -> SparkOrders:
        pairs = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        self.spark.sql(
            f"CREATE TABLE {self.sql_name} (id BIGINT, status STRING) USING delta"
            + (f" TBLPROPERTIES ({pairs})" if pairs else "")
        )
        self.spark.sql(
            f"INSERT INTO {self.sql_name} SELECT id + 1, 'open' FROM range(0, {ids}, 1, 1)"
        )
        return self

    def rows(self) -> list[tuple[int, str]]:
        return sorted(
            (row["id"], row["status"]) for row in self.spark.table(self.sql_name).collect()
        )

    @property
    def history(self) -> list[tuple[str, str | None]]:
        """The operation and the userMetadata of each commit, the newest first."""
        found = self.spark.sql(f"DESCRIBE HISTORY {self.sql_name}").collect()
        return [(row["operation"], row["userMetadata"]) for row in found]

    def paid(self, number: int) -> DataFrame:
        return self.spark.range(number, number + 1, 1, 1).selectExpr("id", "'paid' AS status")

    def save(self, writer: Any) -> None:
        if self.location.count("/"):
            writer.save(self.location)
        else:
            writer.saveAsTable(self.location)


def place(spark: SparkSession, name: str, folder: Path, ids: int = 2) -> SparkOrders:
    """A new table in one of PLACES."""
    if name == "managed":
        manage_tables(spark)
    if name == "path":
        location = str(folder / "orders")
    else:
        spark.sql("CREATE DATABASE IF NOT EXISTS sales")
        # The warehouse is shared by all tests of a process.
        location = f"sales.orders_{new_transaction_id(time.time_ns() // 1_000_000)[-12:]}"
    return SparkOrders(spark, location).create(dict(PLACES[name]), ids)


def manage_tables(spark: SparkSession) -> None:
    """Let Delta's own coordinator in memory stand for a catalog that manages the commits."""
    java = spark._jvm
    java.java.lang.System.setProperty("spark.testing", "true")
    commits = java.org.apache.spark.sql.delta.coordinatedcommits
    provider = getattr(commits, "CatalogOwnedCommitCoordinatorProvider$").__getattr__("MODULE$")
    if provider.getBuilder("spark_catalog").isEmpty():
        provider.registerBuilder("spark_catalog", commits.InMemoryCommitCoordinatorBuilder(3))


# --- writes: each changes order `number` alone ----------------------------------------------------


def append(orders: SparkOrders, local: LocalTransaction, number: int) -> None:
    writer = orders.paid(number + 1_000).write.format("delta").mode("append")
    orders.save(writer.options(**local.delta_options(orders.location)))


def overwrite(orders: SparkOrders, local: LocalTransaction, number: int) -> None:
    writer = orders.paid(number).write.format("delta").mode("overwrite")
    writer.option("replaceWhere", f"id = {number}")
    orders.save(writer.options(**local.delta_options(orders.location)))


def insert(orders: SparkOrders, local: LocalTransaction, number: int) -> None:
    with local.delta_sql(orders.spark, orders.location) as sql:
        sql(f"INSERT INTO {orders.sql_name} VALUES ({number + 1_000}, 'paid')")


def merge(orders: SparkOrders, local: LocalTransaction, number: int) -> None:
    with local.delta_sql(orders.spark, orders.location) as sql:
        sql(
            f"MERGE INTO {orders.sql_name} AS o USING (SELECT {number}L AS id, 'paid' AS status) "
            "AS c ON o.id = c.id WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )


def update(orders: SparkOrders, local: LocalTransaction, number: int) -> None:
    with local.delta_sql(orders.spark, orders.location) as sql:
        sql(f"UPDATE {orders.sql_name} SET status = 'paid' WHERE id = {number}")


def delete(orders: SparkOrders, local: LocalTransaction, number: int) -> None:
    with local.delta_sql(orders.spark, orders.location) as sql:
        sql(f"DELETE FROM {orders.sql_name} WHERE id = {number}")


Write = Callable[[SparkOrders, LocalTransaction, int], None]
BY_OPTIONS: dict[str, Write] = {"append": append, "overwrite": overwrite}
WRITES: dict[str, Write] = {
    **BY_OPTIONS, "INSERT": insert, "MERGE": merge, "UPDATE": update, "DELETE": delete,
}  # fmt: skip


def took_effect(name: str, rows: dict[int, str], number: int) -> bool:
    if name in ("append", "INSERT"):
        return number + 1_000 in rows
    return number not in rows if name == "DELETE" else rows[number] == "paid"


# --- races ----------------------------------------------------------------------------------------


@dataclass
class Races:
    """What became of races of writes with questions.

    Attributes:
        told: how the losers among the writers heard of it.
        disagreements: races whose writer, listener and rows do not say the same.
    """

    writes_won: int = 0
    fences_won: int = 0
    told: Counter[str] = field(default_factory=Counter)
    disagreements: list[str] = field(default_factory=list)


FORGETS = 0.8


class Pace:
    """How long writes and questions take here, so that both are on their way at once."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._lasted_s: dict[str, float] = {}

    @contextmanager
    def measured(self, name: str) -> Iterator[None]:
        begun_s = time.monotonic()
        try:
            yield
        finally:
            # A write that is passed over is short, and says nothing of the next one.
            lasted_s, before_s = time.monotonic() - begun_s, self._lasted_s.get(name, 0.0)
            self._lasted_s[name] = max(lasted_s, before_s * FORGETS)

    def late_s(self, write: str) -> float:
        """By how much the question begins after the write, or before it if this is negative."""
        asking_s, writing_s = (self._lasted_s.get(name, 2.0) for name in ("asks", write))
        return self._random.uniform(-asking_s / 2, writing_s)


def race(orders: SparkOrders, writes: dict[str, Write], count: int, seed: int = 0) -> Races:
    """Run races one after the other, each with its own order, and compare all with the rows."""
    races, said, pace = Races(), [], Pace(seed)
    names = list(writes)
    for number in range(1, count + 1):
        name = names[number % len(names)]
        said.append((name, number, *_one(orders, name, writes[name], number, pace)))
    rows = dict(orders.rows())
    for name, number, writer, mark in said:
        is_there = took_effect(name, rows, number)
        races.writes_won += is_there
        races.fences_won += mark == FENCED
        if writer != DONE:
            races.told[str(writer)] += 1
        if (writer == DONE, mark == DONE) != (is_there, is_there) or mark not in (DONE, FENCED):
            races.disagreements.append(f"{name} {number}: {writer}, {mark}, {is_there}")
    return races


def _one(
    orders: SparkOrders, name: str, write: Write, number: int, pace: Pace
) -> tuple[Any, int | None]:
    """What the writer heard, and the mark that the listener found or wrote."""
    transaction_id = new_transaction_id(time.time_ns() // 1_000_000)
    local, start, late_s = LocalTransaction(transaction_id), Barrier(2), pace.late_s(name)

    def writes() -> object:
        start.wait()
        time.sleep(max(0.0, -late_s))
        try:
            with pace.measured(name):
                write(orders, local, number)
                local.confirm()
        except LocalTransactionFencedError:
            return "LocalTransactionFencedError"
        except Exception as error:
            if "ConcurrentTransaction" not in f"{type(error).__name__} {error}":
                raise
            return "ConcurrentTransactionException"
        return DONE

    def asks() -> int | None:
        start.wait()
        time.sleep(max(0.0, late_s))
        marked = SparkMarkedTable(orders.spark, "orders", orders.location)
        born_ms = {transaction_id: time.time_ns() // 1_000_000}
        with pace.measured("asks"):
            return marked.outcomes(born_ms, [transaction_id])[transaction_id].mark

    with ThreadPoolExecutor(2) as pool:
        writer, asker = pool.submit(writes), pool.submit(asks)
        return writer.result(), asker.result()
