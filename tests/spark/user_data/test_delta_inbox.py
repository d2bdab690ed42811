"""Micro-batches of Spark with an inbox in their table: a batch that comes again has one effect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.kit.delay_world import TOPIC, DelayWorld
from tests.kit.fenced_by_spark import PLACES, SparkOrders, place
from tests.kit.reading import rows_of
from txmq.errors import InboxError, UnsupportedPlaceError
from txmq.spark import marked_table
from txmq.spark.columns import digest_of
from txmq.spark.streams import Consumer
from txmq.user_data.delta_inbox import DeltaInbox

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@pytest.fixture
def location(tmp_path: Path, spark: SparkSession) -> str:
    place = str(tmp_path / "bookings")
    spark.createDataFrame([], "id STRING, amount INT").write.format("delta").save(place)
    return place


def batch(spark: SparkSession, *names: str) -> DataFrame:
    return spark.createDataFrame([(name, 1) for name in names], "id STRING, amount INT")


def booked(location: str) -> list[str]:
    return sorted(row["id"] for row in rows_of(location))


def write(inbox: DeltaInbox, location: str, rows: DataFrame, batch_id: int) -> None:
    options = inbox.batch_options(batch_id, checkpoint="june")
    rows.write.format("delta").mode("append").options(**options).save(location)


def test_batch_that_comes_again_is_skipped(spark: SparkSession, location: str) -> None:
    inbox = DeltaInbox("billing", location)
    for batch_id, name in [(0, "a"), (0, "a"), (1, "b"), (1, "b")]:
        write(inbox, location, batch(spark, name), batch_id)

    assert booked(location) == ["a", "b"]
    assert inbox.is_done(1, checkpoint="june")
    with pytest.raises(InboxError, match="another name"):
        write(inbox, location, batch(spark, "c"), 0)


def test_merge_that_comes_again_is_skipped(spark: SparkSession, location: str) -> None:
    inbox = DeltaInbox("billing", location)
    statement = (
        f"MERGE INTO delta.`{location}` AS t USING {{rows}} AS s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET amount = t.amount + s.amount WHEN NOT MATCHED THEN INSERT *"
    )
    for batch_id in (0, 0, 1, 1):
        batch(spark, "a").createOrReplaceTempView("batch_rows")
        with inbox.batch_sql(spark, batch_id, checkpoint="june") as sql:
            sql(statement.format(rows="batch_rows"))

    assert [(row["id"], row["amount"]) for row in rows_of(location)] == [("a", 2)]
    assert spark.conf.get("spark.databricks.delta.write.txnAppId", None) is None


def test_second_statement_of_a_batch_is_refused(spark: SparkSession, location: str) -> None:
    inbox = DeltaInbox("billing", location)
    with (
        pytest.raises(InboxError, match="one statement"),
        inbox.batch_sql(spark, 0, checkpoint="june") as sql,
    ):
        sql(f"INSERT INTO delta.`{location}` VALUES ('a', 1)")
        sql(f"INSERT INTO delta.`{location}` VALUES ('b', 1)")

    assert booked(location) == ["a"]


def test_statement_of_a_batch_with_other_rows_is_refused(
    spark: SparkSession, location: str
) -> None:
    inbox = DeltaInbox("billing", location)

    def insert(*names: str) -> None:
        rows = batch(spark, *names)
        rows.createOrReplaceTempView("batch_rows")
        with inbox.batch_sql(spark, 0, checkpoint="june", rows=rows) as sql:
            sql(f"INSERT INTO delta.`{location}` SELECT * FROM batch_rows")

    insert("a", "b")
    insert("b", "a")
    with pytest.raises(InboxError, match=r"batch 0 is done with other rows .* 2 rows .* 3 rows"):
        insert("a", "b", "c")

    assert booked(location) == ["a", "b"]


def test_rows_of_any_columns_have_a_digest_that_no_order_changes(spark: SparkSession) -> None:
    rows = spark.sql(
        "SELECT id AS `a``b.c`, map('k', id) AS properties, array(id) AS many, NULL AS none, "
        "CAST(CAST(id AS STRING) AS BINARY) AS body FROM range(5)"
    )

    digest = digest_of(rows)

    assert digest == digest_of(rows.repartition(3)) == digest_of(rows.orderBy(rows.many.desc()))
    assert digest != digest_of(rows.limit(4))
    assert digest_of(rows.limit(0)) == "0 rows 0"


def test_stream_that_died_after_its_write_books_once(
    tmp_path: Path, spark: SparkSession, location: str
) -> None:
    world = DelayWorld(tmp_path)
    world.send("a", "b")
    inbox, died = DeltaInbox("billing", location), []

    def book(rows: DataFrame, batch_id: int) -> None:
        options = inbox.batch_options(batch_id, checkpoint="june")
        bookings = rows.selectExpr("CAST(body AS STRING) AS id", "1 AS amount")
        bookings.write.format("delta").mode("append").options(**options).save(location)
        if not died:
            died.append(batch_id)
            raise ZeroDivisionError

    consumer = Consumer(world.store, consumer_group="billing")

    def run() -> None:
        stream = consumer.read_stream(TOPIC, spark=spark).writeStream.foreachBatch(book)
        stream = stream.option("checkpointLocation", consumer.checkpoint_location(TOPIC))
        stream.trigger(availableNow=True).start().awaitTermination(120)

    with pytest.raises(StreamingQueryException, match="ZeroDivisionError"):
        run()
    world.send("c")
    run()

    assert died == [0]
    assert booked(location) == ["a", "b", "c"]
    done = [inbox.is_done(number, checkpoint="june") for number in range(3)]
    assert done == [True, True, False]
    world.producer.close()


# --- tables that only Spark can open --------------------------------------------------------------


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> SparkOrders:
    return place(spark, "name", tmp_path)


def pay(
    inbox: DeltaInbox, orders: SparkOrders, batch_id: int, *ids: int, name: str = "june"
) -> None:
    """Run a batch that appends paid orders, and names its rows."""
    rows = orders.spark.createDataFrame(
        [(number, "paid") for number in ids], "id LONG, status STRING"
    )
    options = inbox.batch_options(batch_id, checkpoint=name, rows=rows)
    orders.save(rows.write.format("delta").mode("append").options(**options))


def paid(orders: SparkOrders) -> list[int]:
    return [number for number, status in orders.rows() if status == "paid"]


@pytest.mark.parametrize("where", PLACES)
def test_in_each_place_a_batch_that_comes_again_has_one_effect(
    where: str, spark: SparkSession, tmp_path: Path
) -> None:
    orders = place(spark, where, tmp_path)
    inbox = DeltaInbox("billing", orders.location, spark=spark)
    for batch_id, number in [(0, 11), (0, 11), (1, 12), (1, 12)]:
        pay(inbox, orders, batch_id, number)
    for batch_id in (2, 2):
        with inbox.batch_sql(spark, batch_id, checkpoint="june") as sql:
            sql(f"MERGE INTO {orders.sql_name} AS o USING (SELECT 1L AS id) AS c ON o.id = c.id "
                "WHEN MATCHED THEN UPDATE SET status = concat(o.status, '+')")  # fmt: skip

    assert orders.rows() == [(1, "open+"), (2, "open"), (11, "paid"), (12, "paid")]
    assert [inbox.is_done(number, checkpoint="june") for number in (2, 3)] == [True, False]
    assert not inbox.is_done(0, checkpoint="july")
    with pytest.raises(InboxError, match=r"batch 1 comes after batch 2.*another name"):
        pay(inbox, orders, 1, 12)


def test_batch_of_a_named_table_with_other_rows_is_refused(orders: SparkOrders) -> None:
    inbox = DeltaInbox("billing", orders.location, spark=orders.spark)
    pay(inbox, orders, 0, 11, 12)
    pay(inbox, orders, 0, 12, 11)

    with pytest.raises(InboxError, match=r"batch 0 is done with other rows .* 2 rows .* 1 rows"):
        pay(inbox, orders, 0, 13)

    pay(inbox, orders, 0, 13, name="july")
    assert paid(orders) == [11, 12, 13]


def test_restore_of_a_named_table_is_told_until_the_checkpoint_has_another_name(
    orders: SparkOrders,
) -> None:
    inbox = DeltaInbox("billing", orders.location, spark=orders.spark)
    pay(inbox, orders, 0, 11)
    pay(inbox, orders, 0, 21, name="other")
    version = inbox.batch_options(1, checkpoint="june") and len(orders.history) - 1
    pay(inbox, orders, 1, 12)
    orders.spark.sql(f"RESTORE TABLE {orders.sql_name} TO VERSION AS OF {version}")

    for batch_id in (1, 2):
        with pytest.raises(InboxError, match=r"RESTORE to version 3; .*another name"):
            pay(inbox, orders, batch_id, 12)
    pay(inbox, orders, 1, 22, name="other")
    pay(inbox, orders, 1, 12, name="june again")

    assert paid(orders) == [11, 12, 21, 22]


def test_mark_behind_many_commits_of_others_is_found(
    orders: SparkOrders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(marked_table, "HISTORY_STEPS", (1, 3, None))
    inbox = DeltaInbox("billing", orders.location, spark=orders.spark)
    pay(inbox, orders, 7, 11)
    for number in range(100, 104):
        orders.save(orders.paid(number).write.format("delta").mode("append"))

    assert inbox.is_done(7, checkpoint="june")
    with pytest.raises(InboxError, match="other rows"):
        pay(inbox, orders, 7, 12)


def test_members_cannot_use_marks_that_spark_reads(orders: SparkOrders) -> None:
    inbox = DeltaInbox("billing", orders.location, spark=orders.spark)

    for use in (lambda: inbox.fresh([]), inbox.follow_restore):
        with pytest.raises(InboxError, match=r"batch_options\(\) or batch_sql\(\)"):
            use()
    with pytest.raises(UnsupportedPlaceError, match=r"DeltaInbox .*spark="):
        DeltaInbox("billing", orders.location)
