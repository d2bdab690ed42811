"""The examples of docs/consumers.md do what the page says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import pytest
from chispa import assert_df_equality
from delta.tables import DeltaTable

from tests.kit.databases import missing, running_postgres
from tests.kit.reading import publish
from txmq import (
    Broker,
    Consumer,
    DatabaseInbox,
    Message,
    PullConsumer,
    TransactionProducer,
    inbox_table_ddl,
)
from txmq.store.store import Store

PAGE = Path(__file__).parents[3] / "docs" / "consumers.md"
TOPIC = "order-paid"


def example(begins_with: str) -> str:
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (one,) = [text for text in found if text.startswith(begins_with)]
    return str(one)


@pytest.fixture
def filled(store: Store) -> Store:
    with TransactionProducer(store, producer_group="shop") as producer:
        for number in range(6):
            tags = "card" if number % 3 else "cash"
            producer.send(Message(TOPIC, b"paid", keys=f"order-{number}", tags=tags))
    publish(store)
    return store


def ran(begins_with: str, **names: Any) -> dict[str, Any]:
    exec(example(begins_with), names)  # noqa: S102 - our own page
    return names


def test_count_with_a_spark_stream(filled: Store, spark: Any, tmp_path: Path) -> None:
    ran(
        "consumer = Consumer", Consumer=Consumer, store=filled, spark=spark,
        checkpoint=str(tmp_path / "checkpoint"),
    )  # fmt: skip

    expected = spark.createDataFrame([("card", 4), ("cash", 2)], "tags STRING, count LONG NOT NULL")
    counts = spark.sql("SELECT tags, count FROM paid_by_tag")
    assert_df_equality(counts, expected, ignore_row_order=True, ignore_metadata=True)


def test_function_for_a_topic_gets_the_body_as_a_model(store: Store) -> None:
    ledger: dict[str, float] = {}

    ran(
        "@dataclass", dataclass=dataclass, TransactionProducer=TransactionProducer, store=store,
        Message=Message, PullConsumer=PullConsumer, broker=Broker(store), ledger=ledger,
        __name__=__name__,
    )  # fmt: skip

    assert ledger == {"order-42": 9.5}


def test_merge_in_foreach_batch_books_once(filled: Store, spark: Any, tmp_path: Path) -> None:
    bookings = str(tmp_path / "bookings")
    spark.createDataFrame([], "message_id STRING, keys STRING").write.format("delta").save(bookings)
    for attempt in range(2):
        # The second one has lost its checkpoint.
        ran(
            "def book", Consumer=Consumer, DeltaTable=DeltaTable, store=filled, spark=spark,
            bookings=bookings, checkpoint=str(tmp_path / f"checkpoint-{attempt}"),
        )  # fmt: skip

    expected = spark.createDataFrame([(f"order-{number}",) for number in range(6)], "keys STRING")
    booked = spark.read.format("delta").load(bookings).select("keys")
    assert_df_equality(booked, expected, ignore_row_order=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    if problem := missing("postgresql"):
        pytest.skip(problem)
    with running_postgres() as running:
        yield running


def test_service_with_an_inbox_bills_once(filled: Store, server: Any) -> None:
    def connect() -> Any:
        return server.connect()

    with connect() as connection:
        connection.execute(inbox_table_ddl("postgresql"))
        connection.execute("CREATE TABLE bills (order_key TEXT)")
    names = ran(
        "inbox = DatabaseInbox", DatabaseInbox=DatabaseInbox, PullConsumer=PullConsumer,
        store=filled, connect=connect,
    )  # fmt: skip
    with PullConsumer(filled, consumer_group="again", topics=TOPIC) as consumer:
        # As another member would after a kill: the same messages once more.
        assert consumer.run_once(names["handle"]).consumed == 6

    assert names["result"].consumed == 6
    with connect() as connection:
        bills = connection.execute("SELECT order_key FROM bills ORDER BY 1").fetchall()
    assert bills == [(f"order-{number}",) for number in range(6)]


def test_duckdb_counts(filled: Store) -> None:
    names = ran(
        "topic = duckdb", duckdb=duckdb, DeltaTable=deltalake.DeltaTable,
        location=filled.topic_location(TOPIC),
    )  # fmt: skip

    assert names["paid"] == [("card", 4), ("cash", 2)]
