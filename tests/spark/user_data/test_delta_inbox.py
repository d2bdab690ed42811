"""Micro-batches of Spark with an inbox in their table: a batch that comes again has one effect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException

from tests.kit.delay_world import TOPIC, DelayWorld
from tests.kit.reading import rows_of
from txmq.errors import InboxError
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
