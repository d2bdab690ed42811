"""Topics and logs have names in Spark's own catalog, and are read by them."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.stores import HandMadeStore
from txmq import Broker, CatalogTables, Store
from txmq.errors import CatalogError, ConfigError
from txmq.job import run_catalog_job
from txmq.message.message import Message
from txmq.ops.admin.status import Admin
from txmq.ops.admin.topics import Topics
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.spark.sql_views import SqlEngine, sql_views

GROUP = "orders"


@pytest.fixture
def schema(spark: Any) -> Iterator[str]:
    name = f"messages_{uuid.uuid4().hex}"
    spark.sql(f"CREATE SCHEMA {name}")
    yield name
    spark.sql(f"DROP SCHEMA {name} CASCADE")


def sent(store: Store, *bodies: bytes, topic: str = "order-paid") -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        for body in bodies:
            with producer.begin_transaction() as transaction:
                transaction.send(Message(topic, body))
                transaction.prepare()
                transaction.commit()
    Publisher(store).run_once()


@pytest.mark.parametrize("has_catalog_name", [False, True])
def test_topic_is_read_by_its_name(
    store: Store, spark: Any, schema: str, *, has_catalog_name: bool
) -> None:
    sent(store, b"1")
    catalog = f"spark_catalog.{schema}" if has_catalog_name else schema
    result = CatalogTables(store, spark=spark, catalog=catalog).run_once()
    sent(store, b"2")

    bodies = [row.body for row in spark.table(f"{catalog}.order_paid").collect()]

    assert sorted(map(bytes, bodies)) == [b"1", b"2"]
    assert set(result.made) == {"order_paid", "txmq_half", "txmq_op", "txmq_settled"}
    assert result.failed == {}


def test_new_topics_get_their_names_and_the_others_keep_theirs(
    store: Store, spark: Any, schema: str
) -> None:
    sent(store, b"1")
    tables = CatalogTables(store, spark=spark, catalog=schema)
    tables.run_once()
    sent(store, b"1", topic="other")

    assert tables.run_once().made == ("other",)
    assert tables.run_once().made == ()
    again = CatalogTables(store, spark=spark, catalog=schema).run_once()
    assert (again.made, again.failed) == ((), {})


def test_view_tells_the_state_of_each_transaction(store: Store, spark: Any, schema: str) -> None:
    sent(store, b"1")
    with TransactionProducer(store, producer_group=GROUP) as producer:
        waiting, rolled_back = producer.begin_transaction(), producer.begin_transaction()
        for transaction in (waiting, rolled_back):
            transaction.send(Message("order-paid", b"x"))
            transaction.prepare()
        rolled_back.rollback()
        producer.send(Message("order-paid", b"ordinary"))
    Publisher(store).run_once()
    CatalogTables(store, spark=spark, catalog=schema).run_once()

    rows = spark.table(f"{schema}.txmq_transactions").collect()

    states = {row.transaction_id: row.state for row in rows}
    assert len(rows) == 3
    assert states[waiting.id] == "PENDING"
    assert states[rolled_back.id] == "ROLLED_BACK"
    assert sorted(states.values()) == ["COMMITTED", "PENDING", "ROLLED_BACK"]
    assert {row.producer_group for row in rows} == {GROUP}


def test_views_say_what_the_status_says(clean: HandMadeStore, spark: Any, schema: str) -> None:
    store = Store.open(clean.location)
    assert CatalogTables(store, spark=spark, catalog=schema).run_once().failed == {}
    for statement in sql_views(store, SqlEngine.SPARK).values():
        spark.sql(statement)
    status = Admin(store).status()

    # One definition is behind both, so each is asked once.
    stuck = Counter(row.state for row in spark.table(f"{schema}.txmq_stuck").collect())
    assert (stuck["PENDING"], stuck["DISCARDED"]) == (status.open, status.discarded)
    assert stuck["INCOMPLETE"] == status.incomplete
    lags = spark.table("txmq_topic_lag").collect()
    visible = {row.topic: row.visible_messages for row in lags if row.visible_messages}
    assert visible == status.messages
    halves = {row.topic: row.half_messages for row in lags if row.half_messages}
    assert halves == status.half_messages
    assert spark.table(f"{schema}.txmq_dead_letters").count() == status.dead_letters > 0


def test_topic_that_was_deleted_does_not_lag(store: Store, spark: Any, schema: str) -> None:
    sent(store, b"1")
    sent(store, b"1", topic="gone")
    tables = CatalogTables(store, spark=spark, catalog=schema)
    tables.run_once()
    Topics(store).delete("gone", apply=True)
    tables.run_once()

    rows = spark.table(f"{schema}.txmq_topic_lag").collect()

    assert {row.topic: row.unpublished_messages for row in rows} == {"order-paid": 0}
    statements: list[str] = []
    tables._spark = SimpleNamespace(catalog=spark.catalog, sql=statements.append)
    tables.run_once()
    assert statements == [], "views are made again only where topics come or go"


def test_name_of_another_table_is_left_alone_and_told(
    store: Store, spark: Any, schema: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sent(store, b"1")
    other = tmp_path / "other"
    spark.range(1).write.format("delta").save(str(other))
    spark.catalog.createTable(f"{schema}.order_paid", path=str(other), source="delta")

    tables = CatalogTables(store, spark=spark, catalog=schema)
    results = [tables.run_once(), tables.run_once()]

    for result in results:
        assert result.failed.keys() == {"order_paid"}
        assert str(other) in result.failed["order_paid"]
    assert caplog.text.count("order_paid has no name") == 1
    assert spark.table(f"{schema}.order_paid").columns == ["id"]


def test_topic_that_begins_with_a_digit_has_a_name(store: Store, spark: Any, schema: str) -> None:
    sent(store, b"1", topic="2024-orders")

    assert CatalogTables(store, spark=spark, catalog=schema).run_once().failed == {}
    assert spark.table(f"{schema}.`2024_orders`").count() == 1


def test_schema_that_is_not_there_is_told_with_the_next_step(store: Store, spark: Any) -> None:
    with pytest.raises(CatalogError, match="CREATE SCHEMA nowhere"):
        CatalogTables(store, spark=spark, catalog="nowhere").run_once()


def test_broker_keeps_the_names(store: Store, spark: Any, schema: str) -> None:
    sent(store, b"1")

    Broker(store, spark=spark, catalog=schema).run_once()

    assert spark.catalog.tableExists(f"{schema}.order_paid")


def test_broker_without_a_session_refuses_a_catalog(store: Store) -> None:
    with pytest.raises(ConfigError, match="spark="):
        Broker(store, catalog="messages")


def test_job_gives_the_names_once(store: Store, spark: Any, schema: str) -> None:
    sent(store, b"1")

    assert run_catalog_job([store.location, schema, "--once"]) == 0
    assert spark.catalog.tableExists(f"{schema}.order_paid")
