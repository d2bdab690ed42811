"""What a notebook calls, under the rules of serverless compute (tests/places/serverless.py).

A Spark Connect server of its own process runs Spark; no Databricks is there.
"""

from __future__ import annotations

import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

from tests.kit.reading import wait_until
from tests.places.booked_batches import booked_twice
from tests.places.serverless import ServerlessRules, serverless_session
from txmq.check.recheck import RecheckJob
from txmq.errors import EnvironmentProblemError
from txmq.listeners.delta import DeltaListener
from txmq.message.message import Message
from txmq.ops.broker import Broker
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.spark.catalogs import CatalogTables
from txmq.spark.streams import Consumer
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.user_data.delta_inbox import DeltaInbox
from txmq.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROJECT = Path(__file__).parents[2]
GROUP, TOPIC = "orders", "order-paid"
PATIENCE_S = 120.0


@pytest.fixture
def rules() -> ServerlessRules:
    return ServerlessRules()


@pytest.fixture
def spark(
    connect_address: str, rules: ServerlessRules, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SparkSession]:
    # As in a process that can have no other session; PySpark's functions look at it.
    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    session = serverless_session(connect_address, rules)
    yield session
    session.stop()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store", Config(transaction_timeout_s=0.5))


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> str:
    place = str(tmp_path / "orders")
    spark.sql(f"CREATE TABLE delta.`{place}` (id BIGINT) USING delta").collect()
    return place


def sold(spark: SparkSession, store: Store, orders: str, *, commits: bool) -> str:
    """A local transaction that is marked as serverless compute allows: by options of a write."""
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message(TOPIC, b"one"))
        transaction.prepare()
        options = transaction.delta_options(orders)
        spark.range(1).write.format("delta").mode("append").options(**options).save(orders)
        if commits:
            transaction.commit()
        return transaction.id


def published(spark: SparkSession, store: Store) -> set[str]:
    rows = Consumer(store, consumer_group="all").read(TOPIC, spark=spark).collect()
    return {row["transaction_id"] for row in rows}


@pytest.mark.parametrize(
    "breaks",
    [
        lambda spark, _: spark.conf.set("spark.sql.parquet.outputTimestampType", "INT96"),
        lambda spark, _: spark.conf.get("spark.databricks.delta.write.txnAppId", None),
        lambda spark, _: spark.sql("SET spark.sql.adaptive.enabled = false"),
        lambda spark, _: spark.range(1).persist(),
        lambda spark, place: spark.readStream.format("rate").load().writeStream.format("delta")
        .option("checkpointLocation", f"{place}/checkpoint").start(f"{place}/rows"),
        lambda spark, place: spark.readStream.format("rate").load().writeStream.format("delta")
        .trigger(processingTime="1 second")
        .option("checkpointLocation", f"{place}/checkpoint").start(f"{place}/rows"),
    ],
)  # fmt: skip
def test_rules_refuse_what_serverless_compute_refuses(
    spark: SparkSession, rules: ServerlessRules, tmp_path: Path, breaks: Callable[..., Any]
) -> None:
    with pytest.raises(AnalysisException):
        breaks(spark, tmp_path)

    assert len(rules.refused) == 1


def test_frame_is_sent_and_published(spark: SparkSession, store: Store) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = producer.begin_transaction()
        rows = spark.range(1_000).selectExpr(
            "cast(id as string) body", "current_timestamp() as deliver_timestamp"
        )
        transaction.send_dataframe(rows, topic=TOPIC)
        transaction.prepare()
        transaction.commit()
    broker = Broker(store, spark=spark)

    wait_until(lambda: visible(broker, spark, store) == 1_000, PATIENCE_S, "all messages")

    assert verify(store.location).is_clean


def visible(broker: Broker, spark: SparkSession, store: Store) -> int:
    broker.run_once()
    if TOPIC not in store.topics():
        return 0
    return Consumer(store, consumer_group="all").read(TOPIC, spark=spark).count()


def test_tasks_of_spark_copy_messages_without_a_setting(
    spark: SparkSession, rules: ServerlessRules, tmp_path: Path
) -> None:
    # By its documents serverless compute lets no task reach the network; then this process copies.
    store = Store.create(tmp_path / "store", Config(payload_engine="spark"))
    with TransactionProducer(store, producer_group=GROUP) as producer:
        producer.send([Message(TOPIC, b"one")])

    Publisher(store, spark=spark).run_once()

    assert (len(published(spark, store)), rules.refused) == (1, [])


def test_marked_write_is_found_by_the_recheck_job(
    spark: SparkSession, store: Store, orders: str, rules: ServerlessRules
) -> None:
    ids = {sold(spark, store, orders, commits=each) for each in (True, False)}
    recheck = RecheckJob(store, listeners={GROUP: DeltaListener(orders)}, spark=spark)

    wait_until(lambda: recheck.run_once().checks.committed == 1, PATIENCE_S, "the answer")
    Publisher(store).run_once()

    assert published(spark, store) == ids
    assert verify(store.location).is_clean
    assert rules.refused == []


def test_statement_that_needs_a_setting_is_refused_with_the_way_out(
    spark: SparkSession, store: Store, orders: str
) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message(TOPIC, b"one"))
        transaction.prepare()
        refused = pytest.raises(EnvironmentProblemError, match=r"txnAppId.*delta_options\(\)")
        with refused, transaction.delta_sql(spark, orders) as sql:
            sql(f"INSERT INTO delta.`{orders}` VALUES (1)")
        transaction.rollback()

    inbox = DeltaInbox("billing", orders)
    refused = pytest.raises(EnvironmentProblemError, match=r"txnAppId.*batch_options\(\)")
    with refused, inbox.batch_sql(spark, 1, checkpoint="orders"):
        pass
    assert spark.read.format("delta").load(orders).count() == 0


def test_broker_runs_by_threads_and_consumers_read(
    spark: SparkSession, store: Store, orders: str, rules: ServerlessRules, tmp_path: Path
) -> None:
    ids = {sold(spark, store, orders, commits=each) for each in (True, False)}
    listeners = {GROUP: DeltaListener(orders)}
    # The publisher asks whether it may use the engine of Spark.
    broker = Broker(store.with_settings(Config(payload_engine="arrow", transaction_timeout_s=0.5)),
                    spark=spark, listeners=listeners).start()  # fmt: skip
    wait_until(
        lambda: TOPIC in store.topics() and published(spark, store) == ids, PATIENCE_S, "both"
    )
    broker.stop()
    assert broker.exception is None

    seen: list[int] = []
    consumer = Consumer(store, consumer_group="billing")

    def count(rows: DataFrame) -> None:
        seen.append(rows.count())

    consumer.subscribe(TOPIC, count, spark=spark).run_once()
    assert sum(seen) == 2

    stream = Consumer(store, consumer_group="stream")
    place = str(tmp_path / "seen")
    query = (
        stream.read_stream(TOPIC, spark=spark)
        .writeStream.option("checkpointLocation", stream.checkpoint_location(TOPIC))
        .trigger(availableNow=True)
        .format("delta")
        .start(place)
    )
    query.awaitTermination()
    assert spark.read.format("delta").load(place).count() == 2
    assert rules.refused == []


def test_batch_in_a_loop_of_the_client_counts_once(
    spark: SparkSession, store: Store, orders: str
) -> None:
    booked_twice(spark, store, orders, GROUP, TOPIC)

    assert spark.read.format("delta").load(orders).count() == 5
    assert len(published(spark, store)) == 1


def test_topics_get_names_in_the_catalog(
    spark: SparkSession, store: Store, rules: ServerlessRules
) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        producer.send([Message(TOPIC, b"one")])
    Publisher(store).run_once()
    spark.sql("CREATE SCHEMA serverless").collect()
    try:
        CatalogTables(store, spark=spark, catalog="serverless").run_once()

        assert spark.table("serverless.order_paid").count() == 1
    finally:
        spark.sql("DROP SCHEMA serverless CASCADE").collect()
    assert rules.refused == []


def test_notebook_quickstart_runs_as_it_stands(
    spark: SparkSession, rules: ServerlessRules, capsys: pytest.CaptureFixture[str]
) -> None:
    runpy.run_path(str(PROJECT / "notebooks" / "quickstart.py"), {"spark": spark}, "__main__")

    said = capsys.readouterr().out
    assert "order-43" in said
    assert "0 violations" in said
    assert rules.refused == []
