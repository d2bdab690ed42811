"""What a notebook calls, over Spark Connect: a server of its own process runs Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.reading import wait_until
from tests.oracle.checker import verify_by_spark
from tests.places.booked_batches import booked_twice
from txmq.check.recheck import RecheckJob
from txmq.errors import EnvironmentProblemError
from txmq.listeners.delta import DeltaListener
from txmq.message.message import Message
from txmq.ops.broker import Broker
from txmq.ops.table_functions import register_table_functions
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.spark.data_source import register_data_source
from txmq.spark.micro_batches import BatchTransactions
from txmq.spark.session import active_session
from txmq.spark.streams import Consumer
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUP, TOPIC = "orders", "order-paid"
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def spark(connect_address: str) -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    session = SparkSession.builder.remote(connect_address).getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store", Config(transaction_timeout_s=0.5))


def sold(spark: SparkSession, store: Store, orders: str, *, commits: bool = True) -> str:
    """A local transaction with its message; without an end where the producer is lost."""
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message(TOPIC, b"one"))
        transaction.prepare()
        with transaction.delta_sql(spark, orders) as sql:
            sql(f"INSERT INTO delta.`{orders}` VALUES (1)")
        if commits:
            transaction.commit()
        return transaction.id


@pytest.fixture
def orders(spark: SparkSession, tmp_path: Path) -> str:
    place = str(tmp_path / "orders")
    spark.sql(f"CREATE TABLE delta.`{place}` (id BIGINT) USING delta").collect()
    return place


def test_active_session_is_that_of_connect(spark: SparkSession) -> None:
    assert active_session() is spark


@pytest.mark.parametrize("engine", ["arrow", "spark"])
def test_frame_is_sent_and_published(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    store = Store.create(tmp_path / "store", Config(payload_engine=engine))
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = producer.begin_transaction()
        transaction.send_dataframe(
            spark.range(1_000).selectExpr("cast(id as string) body"), topic=TOPIC
        )
        transaction.prepare()
        transaction.commit()

    assert Publisher(store, spark=spark).run_once().published == 1_000
    assert Consumer(store, consumer_group="billing").read(TOPIC, spark=spark).count() == 1_000


def test_transaction_without_an_end_is_asked_about_by_the_recheck_job(
    spark: SparkSession, store: Store, orders: str
) -> None:
    lost = sold(spark, store, orders, commits=False)
    recheck = RecheckJob(store, listeners={GROUP: DeltaListener(orders)}, spark=spark)

    wait_until(lambda: recheck.run_once().checks.committed == 1, PATIENCE_S, "the answer")
    Publisher(store, spark=spark).run_once()

    assert verify(store.location).is_clean
    rows = Consumer(store, consumer_group="billing").read(TOPIC, spark=spark).collect()
    assert [row["transaction_id"] for row in rows] == [lost]


def test_broker_publishes_and_asks(spark: SparkSession, store: Store, orders: str) -> None:
    # Before there is a broker: a check that is faster would fence the write off.
    ids = {sold(spark, store, orders), sold(spark, store, orders, commits=False)}
    broker = Broker(store, spark=spark, listeners={GROUP: DeltaListener(orders)}).start()
    wait_until(lambda: published(store) == ids, PATIENCE_S, "both messages")
    broker.stop()

    assert broker.exception is None
    assert verify(store.location).is_clean
    report = verify_by_spark(store.location, spark)
    assert [one for one in report.results if one.violation_count] == []


def published(store: Store) -> set[str]:
    if TOPIC not in store.topics():
        return set()
    table = store.tables.table_at(f"topics/{TOPIC}")
    return set(
        table.rows.read(table.files.all(), ("transaction_id",))["transaction_id"].to_pylist()
    )


def test_stream_of_a_topic_is_read_until_its_end(spark: SparkSession, store: Store) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        producer.send([Message(TOPIC, b"%d" % number) for number in range(10)])
    Publisher(store, spark=spark).run_once()
    consumer = Consumer(store, consumer_group="stream")
    place = f"{store.location}-seen"
    query = (
        consumer.read_stream(TOPIC, spark=spark)
        .writeStream.option("checkpointLocation", consumer.checkpoint_location(TOPIC))
        .trigger(availableNow=True)
        .format("delta")
        .start(place)
    )

    query.awaitTermination()

    assert spark.read.format("delta").load(place).count() == 10


def test_topic_is_read_by_its_format(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    register_data_source(spark)
    with TransactionProducer(store, producer_group=GROUP) as producer:
        producer.send([Message(TOPIC, b"%d" % number) for number in range(20)])
    Publisher(store).run_once()
    options = {"topic": TOPIC, "group": "billing", "maxMessagesPerTrigger": "8"}

    stream = spark.readStream.format("txmq").options(**options).load(store.location)
    query = (
        stream.writeStream.format("delta")
        .option("path", str(tmp_path / "sink"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(int(PATIENCE_S))

    frame = spark.read.format("txmq").option("topic", TOPIC).load(store.location)
    sink = spark.read.format("delta").load(str(tmp_path / "sink"))
    assert frame.count() == sink.select("body").distinct().count() == 20


def test_topic_is_written_by_its_format(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    register_data_source(spark)
    register_table_functions(spark)
    rows = spark.range(20).selectExpr("id", "id * 2 AS twice")
    frame = rows.write.format("txmq").option("topic", TOPIC).option("keys", "id")
    frame.mode("append").save(store.location)
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = producer.begin_transaction()
        rows.write.format("txmq").options(**transaction.write_options(TOPIC)).mode("append").save()
        transaction.prepare()
        opened = spark.sql(f"SELECT transaction_id FROM txmq_open('{store.location}')").collect()
        transaction.commit()
    Publisher(store).run_once()

    stream = spark.readStream.format("txmq").option("topic", TOPIC).load(store.location)
    query = (
        stream.select("body")
        .writeStream.format("txmq")
        .options(topic="copy", path=store.location)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(int(PATIENCE_S))
    Publisher(store).run_once()

    assert [row.transaction_id for row in opened] == [transaction.id]
    copies = spark.read.format("txmq").option("topic", "copy").load(store.location)
    assert copies.count() == 40


def test_member_on_spark_hands_out_each_message(spark: SparkSession, store: Store) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        producer.send([Message(TOPIC, b"%d" % number) for number in range(10)])
    Publisher(store, spark=spark).run_once()
    seen: list[int] = []

    def count(rows: DataFrame) -> None:
        seen.append(rows.count())

    subscription = Consumer(store, consumer_group="billing").subscribe(TOPIC, count, spark=spark)
    subscription.run_once()

    assert sum(seen) == 10


def test_stream_of_batch_transactions_is_refused_with_the_way_out(
    spark: SparkSession, store: Store
) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        batches = BatchTransactions(
            producer, query_name="booking", send=lambda *_: None, change=lambda *_: None
        )
        with pytest.raises(EnvironmentProblemError, match=r"Spark Connect .* call run\(batch"):
            batches.write_stream(spark.readStream.format("rate").load())


def test_batch_that_is_run_in_a_loop_of_the_client_counts_once(
    spark: SparkSession, store: Store, orders: str
) -> None:
    booked_twice(spark, store, orders, GROUP, TOPIC)

    assert spark.read.format("delta").load(orders).count() == 5
    assert len(published(store)) == 1
