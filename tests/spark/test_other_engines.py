"""Topics are plain Delta tables: DuckDB and polars show the rows that Spark shows.

DuckDB reads Delta by an extension that it fetches from its own site. Without one it reads the
Parquet files of the version that delta-rs names, which is all that a topic needs.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import duckdb
import polars as pl
import pytest
from deltalake import DeltaTable

from tests.kit.bodies import ORDER, field, json_body
from tests.kit.builders import GROUP
from txmq.message.body_schema import BodySchema
from txmq.message.message import Message
from txmq.ops.admin.topics import Topics
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.schemas import TOPIC
from txmq.store.store import Store

ORDERS = "orders"
MORE = [field("paid", ["null", "boolean"]), field("weight", ["null", "double"]),
        field("photo", ["null", "bytes"])]  # fmt: skip
SCHEMA = BodySchema.parse(
    {"encoding": "json", "schema": {**ORDER, "fields": [*ORDER["fields"], *MORE]}}
)
Rows = list[dict[str, Any]]


def bodies() -> list[bytes]:
    order = {"order_number": 1, "customer": "žluťoučký 🐎", "amount": "-0.05",
             "ordered": "1969-12-31T23:59:59.999999Z"}  # fmt: skip
    return [
        json_body(**order),
        json_body(**{**order, "order_number": -(2**63), "amount": 9_999_999_999.99,
                     "ordered": "0001-01-01T00:00:00Z", "due": "9999-12-31", "status": "PAID"}),
        json_body(**{**order, "order_number": 2**63 - 1, "due": "1582-10-14",
                     "ordered": "9999-12-31T23:59:59.999999Z", "paid": True, "weight": 1e-300,
                     "photo": "AP8=", "file": "", "labels": {"b": "1", "a": ""},
                     "lines": [{"item": "a", "pieces": 1}, {"item": "", "pieces": -1}]}),
    ]  # fmt: skip


def messages(contents: list[bytes]) -> list[Message]:
    some = {"tags": "tag", "keys": ["a", "b"], "properties": {"b": "1", "a": "ž"}}
    return [
        Message(ORDERS, content, sharding_key=f"key {number}", **(some if number % 2 else {}))
        for number, content in enumerate(contents)
    ]


def published(store: Store, contents: list[bytes]) -> str:
    """Two commits of two transactions; the second file is written after the first was read."""
    producer, publisher = TransactionProducer(store, producer_group=GROUP), Publisher(store)
    for part in (messages(contents), messages(contents[:1])):
        with producer.begin_transaction() as transaction:
            for message in part:
                transaction.send(message)
            transaction.prepare()
            transaction.commit()
        publisher.run_once()
    return store.topic_location(ORDERS)


@pytest.fixture(params=["untyped", "typed"])
def location(request: pytest.FixtureRequest, store: Store) -> str:
    if request.param == "untyped":
        return published(store, [b"", b"\x00\xff", "🐎".encode()])
    Topics(store).create(ORDERS, body=SCHEMA.to_dict())
    return published(store, bodies())


# --- one form of rows for all engines --------------------------------------------------------


def plain(value: Any) -> Any:
    """The same value from every engine: bytes, maps as mappings, times in UTC."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if isinstance(value, list):
        return [plain(each) for each in value]
    return {k: plain(v) for k, v in value.items()} if isinstance(value, dict) else value


def in_order(rows: Rows) -> Rows:
    """Columns that are maps are told apart from structs by their names alone."""
    maps = ("properties", "labels")
    shown = [
        {name: as_map(value) if name in maps else plain(value) for name, value in row.items()}
        for row in rows
    ]
    return sorted(shown, key=lambda row: (row["queue_id"], row["queue_offset"]))


def as_map(value: Any) -> Any:
    """A map as mapping: engines give mappings, pairs, or structs of key and value."""
    if value is None or isinstance(value, dict):
        return value
    pairs = [(each["key"], each["value"]) if isinstance(each, dict) else each for each in value]
    return dict(pairs)


def by_spark(spark: Any, location: str) -> Rows:
    rows = spark.read.format("delta").load(location)
    # As text, for Python's Spark shows times by the machine's zone, and not those of year 1.
    moments = [name for name, kind in rows.dtypes if kind == "timestamp"]
    for name in moments:
        rows = rows.withColumn(name, rows[name].cast("string"))
    found = [row.asDict(recursive=True) for row in rows.collect()]
    return in_order([{**row, **{name: moment(row[name]) for name in moments}} for row in found])


def moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text).replace(tzinfo=UTC)


def by_duckdb(location: str) -> Rows:
    files = DeltaTable(location).file_uris()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        # Files of one version may lack columns that are null in all their rows.
        found = connection.execute("SELECT * FROM read_parquet(?, union_by_name = true)", [files])
        names = [column[0] for column in found.description or ()]
        return in_order([dict(zip(names, row, strict=True)) for row in found.fetchall()])


def by_duckdb_over_arrow(location: str) -> Rows:
    topic = DeltaTable(location).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("topic", topic)
        found = connection.execute("SELECT * FROM topic")
        names = [column[0] for column in found.description or ()]
        return in_order([dict(zip(names, row, strict=True)) for row in found.fetchall()])


def by_polars(location: str) -> Rows:
    return in_order(pl.read_delta(location).to_dicts())


def by_lazy_polars(location: str) -> Rows:
    return in_order(pl.scan_delta(location).collect().to_dicts())


ENGINES = [by_duckdb, by_duckdb_over_arrow, by_polars, by_lazy_polars]


@pytest.mark.parametrize("read", ENGINES, ids=lambda read: read.__name__)
def test_rows_are_those_of_spark(location: str, spark: Any, read: Callable[[str], Rows]) -> None:
    expected = by_spark(spark, location)

    assert len(expected) == 4
    assert read(location) == expected


def test_columns_have_the_same_names_in_every_engine(location: str, spark: Any) -> None:
    names = spark.read.format("delta").load(location).columns

    assert names[: len(TOPIC.columns)] == TOPIC.columns.names
    assert pl.scan_delta(location).collect_schema().names() == names
    assert list(by_duckdb(location)[0]) == names


def test_typed_columns_are_computed_with_in_every_engine(store: Store, spark: Any) -> None:
    Topics(store).create(ORDERS, body=SCHEMA.to_dict())
    location = published(store, bodies())
    rows = spark.read.format("delta").load(location)

    by_sql = "SELECT sum(amount), sum(len(lines)) FROM read_parquet(?) WHERE status = 'NEW'"
    with duckdb.connect() as connection:
        found = connection.execute(by_sql, [DeltaTable(location).file_uris()]).fetchone()
    in_spark = rows.where("status = 'NEW'").selectExpr("sum(amount)", "sum(size(lines))").collect()
    in_polars = (
        pl.scan_delta(location)
        .filter(pl.col("status") == "NEW")
        .select(pl.col("amount").sum(), pl.col("lines").list.len().sum())
        .collect()
        .row(0)
    )

    assert found == in_polars == tuple(in_spark[0])
