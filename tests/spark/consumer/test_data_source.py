"""`format("txmq")` in Spark: frames, streams, joins, aggregates, groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality
from pyspark.errors import StreamingQueryException

from tests.kit.bodies import GIFTLESS, WITH_GIFT
from tests.kit.consumer_world import ConsumerWorld
from tests.kit.delay_world import TOPIC
from txmq.consumer.lag import lag_of_group
from txmq.message.message import Message
from txmq.ops.table_functions import register_table_functions
from txmq.spark.data_source import register_data_source
from txmq.spark.streams import Consumer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

STARTS = 6
Load = Callable[..., "DataFrame"]


@pytest.fixture
def world(tmp_path: Path, spark: Any) -> Any:
    register_data_source(spark)
    made = ConsumerWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def load(world: ConsumerWorld, spark: Any) -> Load:
    def loaded(topic: str = TOPIC, *, stream: bool = True, **options: str) -> DataFrame:
        reader = (spark.readStream if stream else spark.read).format("txmq")
        return reader.option("topic", topic).options(**options).load(world.store.location)

    return loaded


def run(writer: Any, folder: Path) -> Any:
    """All that is visible; the query.

    Spark waits ten seconds for the process of a source, which is not enough on each busy machine.
    """
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    for _ in range(STARTS):
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return query
    raise AssertionError("Spark cannot start Python in ten seconds")


def test_frame_has_the_rows_of_the_topic(world: ConsumerWorld, load: Load, spark: Any) -> None:
    world.fill(5)

    frame = load(stream=False)

    expected = Consumer(world.store, consumer_group="x").read(TOPIC, spark=spark)
    by_place = ("queue_id", "queue_offset")
    assert_df_equality(frame.orderBy(*by_place), expected.orderBy(*by_place), ignore_metadata=True)
    later = load(stream=False, startingOffsets='{"order-paid": {"0": 3}}', endingOffsets="latest")
    assert later.where("queue_id = 0").count() == 2


def test_stream_into_delta_is_a_member_of_its_group(
    world: ConsumerWorld, load: Load, spark: Any, tmp_path: Path
) -> None:
    world.fill(5)
    table = str(tmp_path / "table")

    def run_once() -> Any:
        rows = load(group="billing", maxMessagesPerTrigger="9").selectExpr("CAST(body AS STRING)")
        return run(rows.writeStream.format("delta").option("path", table), tmp_path)

    progress = run_once().recentProgress
    world.fill(1)
    run_once()

    assert [batch["numInputRows"] for batch in progress if batch["numInputRows"]] == [9, 9, 2]
    assert spark.read.format("delta").load(table).count() == 24
    assert sum(queue.lag for queue in lag_of_group(world.store, "billing")) == 0


def test_streams_are_joined_and_aggregated(
    world: ConsumerWorld, load: Load, spark: Any, tmp_path: Path
) -> None:
    world.topics.create("refunds", queue_nums=1)
    for topic in (TOPIC, "refunds"):
        world.producer.send([Message(topic, b"%d" % number) for number in range(6)])
    world.publisher.run_once()
    stored = "CAST(body AS STRING) AS id", "store_timestamp AS at"
    paid = load().selectExpr(*stored).withWatermark("at", "1 hour").alias("paid")
    back = load("refunds").selectExpr(*stored).withWatermark("at", "1 hour").alias("back")

    both = paid.join(back, "id").select("id")
    run(both.writeStream.format("delta").option("path", str(tmp_path / "both")), tmp_path)
    counts = paid.groupBy("id").count()
    name = counts.writeStream.format("memory").queryName("counts").outputMode("complete")
    run(name, tmp_path / "counts")

    assert spark.read.format("delta").load(str(tmp_path / "both")).count() == 6
    assert spark.table("counts").selectExpr("sum(count)").first()[0] == 6


def test_typed_topic_has_its_columns(world: ConsumerWorld, load: Load) -> None:
    world.topics.create("typed", body=GIFTLESS)
    world.send_to(0, '{"order": 7}', topic="typed")

    assert load("typed", stream=False).select("order").first()[0] == 7


def test_stream_that_runs_goes_on_when_bodies_get_a_field(
    world: ConsumerWorld, load: Load, spark: Any, tmp_path: Path
) -> None:
    world.topics.create("typed", body=GIFTLESS)
    world.send_to(0, '{"order": 1}', topic="typed")
    table, checkpoint = str(tmp_path / "table"), str(tmp_path / "checkpoint")

    def start() -> Any:
        writer = load("typed").drop("properties").writeStream.format("delta")
        options = {"path": table, "checkpointLocation": checkpoint, "mergeSchema": "true"}
        return writer.options(**options).trigger(processingTime="0 seconds").start()

    query = start()
    query.processAllAvailable()
    world.topics.alter("typed", body=WITH_GIFT)
    world.send_to(0, '{"order": 2, "gift": "a rose"}', topic="typed")
    query.processAllAvailable()
    query.stop()
    world.send_to(0, '{"order": 3, "gift": "a rose"}', topic="typed")
    again = start()
    again.processAllAvailable()
    again.stop()

    rows = spark.read.format("delta").load(table).select("order", "gift").orderBy("order").collect()
    # The one that ran has the columns that it began with.
    assert [tuple(row) for row in rows] == [(1, None), (2, None), (3, "a rose")]


def test_option_that_is_not_known_is_told(load: Load) -> None:
    with pytest.raises(Exception, match="option tpic is not one of"):
        load(stream=False, tpic="x")


# --- writing --------------------------------------------------------------------------------------


def test_frame_and_a_merge_are_one_transaction(
    world: ConsumerWorld, load: Load, spark: Any, tmp_path: Path
) -> None:
    orders = str(tmp_path / "orders")
    spark.range(3).write.format("delta").save(orders)
    paid = spark.range(3).selectExpr("id AS order_id", "'Köln' AS city")
    with world.producer.begin_transaction() as transaction:
        options = {**transaction.write_options("paid"), "keys": "order_id"}
        paid.write.format("txmq").options(**options).mode("append").save()
        transaction.prepare()
        with transaction.delta_sql(spark, orders) as sql:
            merge = f"MERGE INTO delta.`{orders}` AS o USING (SELECT 2L AS id) AS s ON o.id = s.id"
            sql(f"{merge} WHEN MATCHED THEN DELETE")
        transaction.commit()
    world.publisher.run_once()

    rows = load("paid", stream=False).selectExpr("keys", "CAST(body AS STRING) AS body").collect()
    assert spark.read.format("delta").load(orders).count() == 2
    assert sorted(map(tuple, rows)) == [
        (str(number), f'{{"order_id":{number},"city":"Köln"}}') for number in range(3)
    ]


def test_topic_of_a_frame_reads_back_as_its_columns(
    world: ConsumerWorld, load: Load, spark: Any
) -> None:
    frame = spark.sql(
        "SELECT id, CAST(id / 4 AS DECIMAL(9, 2)) AS total, DATE'2026-01-02' AS day, "
        "TIMESTAMP'2026-01-02 03:04:05.678901' AS at, MAP('a', ARRAY(id)) AS more, "
        "IF(id = 1, NULL, STRUCT(id AS a, 'x' AS b)) AS inner FROM RANGE(3)"
    )
    world.topics.create("typed", schema=frame.schema)

    frame.write.format("txmq").option("topic", "typed").mode("append").save(world.store.location)
    world.publisher.run_once()

    back = load("typed", stream=False).select(*frame.columns)
    expected = spark.createDataFrame(frame.collect(), back.schema)
    assert_df_equality(back.orderBy("id"), expected.orderBy("id"))


def test_rows_that_cannot_be_sent_are_told_by_the_write(world: ConsumerWorld, spark: Any) -> None:
    frame = spark.range(0, 4, 1, 2).selectExpr("IF(id = 3, NULL, 'x') AS body")

    with pytest.raises(Exception, match="body is null: 1 rows, first row 1 of partition 1"):
        frame.write.format("txmq").option("topic", "t").mode("append").save(world.store.location)


def test_stream_sends_each_batch_once_though_its_checkpoint_is_older(
    world: ConsumerWorld, load: Load, tmp_path: Path
) -> None:
    world.fill(5)

    def forward() -> Any:
        rows = load(maxMessagesPerTrigger="9").selectExpr("body", "keys")
        writer = rows.writeStream.format("txmq").option("topic", "copy")
        return run(writer.option("path", world.store.location), tmp_path)

    forward()
    commits = tmp_path / "checkpoint" / "commits"
    for path in [*commits.glob("*1"), *commits.glob(".*1.crc")]:
        path.unlink()
    forward()
    world.publisher.run_once()

    assert load("copy", stream=False).count() == 20


def test_functions_of_sql_show_what_the_commands_show(
    world: ConsumerWorld, load: Load, spark: Any, tmp_path: Path
) -> None:
    register_table_functions(spark)
    world.fill(1)
    rows = load(group="billing").selectExpr("CAST(body AS STRING)")
    run(rows.writeStream.format("delta").option("path", str(tmp_path / "table")), tmp_path)
    world.fill(1)
    open_one = world.producer.begin_transaction()
    open_one.send(Message(TOPIC, b"open"))
    open_one.prepare()
    place = world.store.location

    lag = spark.sql(f"SELECT sum(lag) FROM txmq_lag('{place}', 'billing')").first()[0]
    opened = spark.sql(f"SELECT transaction_id, state FROM txmq_open('{place}')").collect()
    life = spark.sql(f"SELECT stage FROM txmq_transaction('{place}', '{open_one.id}')").collect()

    assert lag == sum(queue.lag for queue in lag_of_group(world.store, "billing")) > 0
    assert [tuple(row) for row in opened] == [(open_one.id, "PENDING")]
    assert [row.stage for row in life] == ["half"]
