"""Topics with a body schema, from a producer to every reader."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from deltalake import DeltaTable, write_deltalake

from tests.kit.bodies import ORDER, avro_body, field, json_body, record
from tests.kit.builders import GROUP, halves, op_row, table_versions, transaction_id
from tests.kit.reading import are_gap_free, publish, rows_of, topic_rows
from tests.oracle.checker import verify_by_spark
from txmq.errors import BodySchemaConflictError, BodySchemaError, InvalidBodyError, StorageError
from txmq.ground.fail_points import FailPoint, arm
from txmq.maintenance.compaction import compact
from txmq.maintenance.retention import Retention
from txmq.message.body_schema import BodySchema
from txmq.message.cloud_events import attributes_of, cloud_event
from txmq.message.lifecycle import ClaimKind
from txmq.message.message import LocalTransactionState, Message
from txmq.message.names import SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from txmq.message.trace_context import with_trace_context
from txmq.ops.admin.topics import Topics
from txmq.producer.producer import TransactionProducer
from txmq.publish.delay_service import DelayService
from txmq.publish.publisher import Publisher
from txmq.store import tables
from txmq.store.schemas import SCHEDULE, TOPIC
from txmq.store.store import Store
from txmq.store.topic import BODY_SCHEMA_PROPERTY, body_schema_in, set_body_schema
from txmq.store.topic_settings import TopicKind, TopicSettings
from txmq.testing import ManualClock
from txmq.verify import verify

ORDERS = "orders"
JSON = BodySchema.parse({"encoding": "json", "schema": ORDER})
AVRO = BodySchema.parse({"encoding": "avro", "schema": ORDER})
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
LOCAL = LocalTransactionState


def order(number: int, **changes: Any) -> dict[str, Any]:
    """An order as JSON has it."""
    values = {
        "order_number": number,
        "customer": f"customer {number}",
        "amount": "12.50",
        "ordered": "2026-01-31T12:00:00Z",
        "due": "2026-02-01",
        "lines": [{"item": "apple", "pieces": number}],
        "labels": {"colour": "red"},
    }
    return {**values, **changes}


def columns_of(number: int) -> dict[str, Any]:
    """What the columns of that order show."""
    return {
        "order_number": number,
        "customer": f"customer {number}",
        "amount": Decimal("12.50"),
        "ordered": NOON,
        "due": date(2026, 2, 1),
        "status": "NEW",
        "lines": [{"item": "apple", "pieces": number}],
        "labels": [("colour", "red")],
        "file": None,
    }


NULLS = dict.fromkeys(columns_of(0))


def body(number: int, **changes: Any) -> bytes:
    return json_body(**order(number, **changes))


def typed_values(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in JSON.columns.names}


@pytest.fixture
def typed(store: Store) -> Store:
    Topics(store).create(ORDERS, body=JSON.to_dict())
    return store


def kept_schema(store: Store) -> BodySchema | None:
    return body_schema_in(store.tables.table_at(f"topics/{ORDERS}"))


@pytest.fixture
def producer(typed: Store) -> TransactionProducer:
    return TransactionProducer(typed, producer_group=GROUP)


def commit(producer: TransactionProducer, *messages: Message) -> None:
    with producer.begin_transaction() as transaction:
        for message in messages:
            transaction.send(message)
        transaction.prepare()
        transaction.commit()


# --- what a typed topic shows ----------------------------------------------------------------


def test_bodies_appear_as_columns_behind_those_of_every_topic(
    typed: Store, producer: TransactionProducer
) -> None:
    commit(producer, *(Message(ORDERS, body(number), keys=str(number)) for number in range(3)))

    publish(typed)

    rows = topic_rows(typed, ORDERS)
    shown = {row["order_number"]: typed_values(row) for row in rows}
    assert shown == {number: columns_of(number) for number in range(3)}
    assert all(json.loads(row["body"])["order_number"] == row["order_number"] for row in rows)
    assert are_gap_free(rows)
    names = [field.name for field in DeltaTable(typed.topic_location(ORDERS)).schema().fields]
    assert names == [*TOPIC.columns.names, *JSON.columns.names]


def test_avro_bodies_appear_as_the_same_columns(store: Store) -> None:
    Topics(store).create(ORDERS, body=AVRO.to_dict())
    values = {**columns_of(7), "labels": {"colour": "red"}}

    commit(TransactionProducer(store, producer_group=GROUP),
           Message(ORDERS, avro_body(AVRO, **values)))  # fmt: skip
    publish(store)

    assert [typed_values(row) for row in topic_rows(store, ORDERS)] == [columns_of(7)]


def test_table_says_what_its_bodies_are(typed: Store) -> None:
    assert kept_schema(typed) == JSON
    properties = DeltaTable(typed.topic_location(ORDERS)).metadata().configuration
    assert BodySchema.parse(properties[BODY_SCHEMA_PROPERTY]) == JSON


def test_other_topics_of_the_same_transaction_stay_untyped(
    typed: Store, producer: TransactionProducer
) -> None:
    commit(producer, Message(ORDERS, body(1)), Message("stock", b"not JSON"))

    publish(typed)

    assert topic_rows(typed, "stock")[0].keys() == set(TOPIC.columns.names)
    assert topic_rows(typed, ORDERS)[0]["order_number"] == 1


def test_dead_letters_stay_untyped(typed: Store, producer: TransactionProducer) -> None:
    transaction = producer.begin_transaction()
    transaction.send(Message(ORDERS, body(1)))
    transaction.prepare()
    discard = replace(op_row(1, ClaimKind.DISCARD, life=0), transaction_id=transaction.id)
    typed.tables.op_log().append([discard], 0, app_id="test", number=1)

    publish(typed)

    (row,) = topic_rows(typed, TRANS_CHECK_MAX_TIME_TOPIC)
    assert row.keys() == set(TOPIC.columns.names)
    assert row["body"] == body(1)


def test_delayed_message_waits_untyped_and_arrives_typed(
    typed: Store, producer: TransactionProducer
) -> None:
    commit(producer, Message(ORDERS, body(1), deliver_timestamp=NOON))
    publish(typed)
    (waiting,) = rows_of(f"{typed.location}/topics/{SCHEDULE_TOPIC}")
    assert waiting.keys() == set(SCHEDULE.columns.names)
    assert topic_rows(typed, ORDERS) == []

    DelayService(typed).run_once()
    publish(typed)

    assert [typed_values(row) for row in topic_rows(typed, ORDERS)] == [columns_of(1)]


# --- bodies that do not have the schema -------------------------------------------------------


class Local:
    """A local transaction that must not be reached."""

    def __init__(self) -> None:
        self.was_run = False

    def execute_local_transaction(self, message: Any, argument: Any) -> Any:  # noqa: ARG002
        self.was_run = True
        return LOCAL.COMMIT

    def check_local_transaction(self, message: Any) -> Any:  # noqa: ARG002
        return LOCAL.COMMIT


def test_wrong_body_is_refused_before_a_byte_is_written(
    typed: Store, producer: TransactionProducer
) -> None:
    before = table_versions(typed)
    transaction = producer.begin_transaction()

    with pytest.raises(InvalidBodyError, match="topic 'orders': order_number is missing"):
        transaction.send(Message(ORDERS, b"{}"))

    assert table_versions(typed) == before
    transaction.send(Message(ORDERS, body(1)))
    transaction.prepare()
    transaction.commit()
    publish(typed)
    assert len(topic_rows(typed, ORDERS)) == 1


def test_wrong_body_never_reaches_the_local_transaction(typed: Store) -> None:
    local = Local()
    producer = TransactionProducer(typed, producer_group=GROUP, listener=local)
    before = table_versions(typed)

    with pytest.raises(InvalidBodyError, match="is not JSON"):
        producer.send_message_in_transaction(Message(ORDERS, b"a secret"))

    assert not local.was_run
    assert table_versions(typed) == before


def test_ordinary_messages_are_checked_in_every_form(
    typed: Store, producer: TransactionProducer
) -> None:
    good, wrong = Message(ORDERS, body(1)), Message(ORDERS, b"{}")
    before = table_versions(typed)

    for send in (producer.send, producer.send_async):
        for messages in (wrong, [good, wrong]):
            with pytest.raises(InvalidBodyError, match="order_number is missing"):
                send(messages)  # type: ignore[operator]

    assert table_versions(typed) == before
    producer.send([good])
    publish(typed)
    assert [row["order_number"] for row in topic_rows(typed, ORDERS)] == [1]


def test_producer_follows_a_topic_that_becomes_typed(store: Store) -> None:
    quick = Store.open(store.location, store.config.replace(topic_refresh_s=0.0))
    producer = TransactionProducer(quick, producer_group=GROUP)
    producer.begin_transaction().send(Message(ORDERS, b"any"))

    Topics(store).create(ORDERS, body=JSON.to_dict())

    with pytest.raises(InvalidBodyError):
        producer.begin_transaction().send(Message(ORDERS, b"any"))


def by_hand(store: Store, number: int, *messages: Message) -> None:
    """A committed transaction that another program wrote, past the producer's checks."""
    write_deltalake(f"{store.location}/half", halves(number, messages), mode="append")
    store.tables.op_log().append([op_row(number)], 0, app_id="test", number=number)


def test_foreign_body_is_shown_with_nulls_and_told_and_stops_nothing(
    typed: Store, caplog: pytest.LogCaptureFixture
) -> None:
    by_hand(typed, 1, Message(ORDERS, body(1)), Message(ORDERS, b"a secret"),
            Message(ORDERS, body(3)))  # fmt: skip

    with caplog.at_level(logging.WARNING, "txmq"):
        result = publish(typed)

    rows = topic_rows(typed, ORDERS)
    assert (result.published, result.parked) == (3, 0)
    assert [typed_values(row) for row in rows] == [columns_of(1), NULLS, columns_of(3)]
    assert rows[1]["body"] == b"a secret"
    assert f"the body of {transaction_id(1)}:1 does not have" in caplog.text
    assert "secret" not in caplog.text


def test_a_thousand_foreign_bodies_are_told_in_a_few_lines(
    typed: Store, caplog: pytest.LogCaptureFixture
) -> None:
    by_hand(typed, 1, *(Message(ORDERS, b"wrong") for _ in range(1_000)))

    publish(typed)

    assert len(topic_rows(typed, ORDERS)) == 1_000
    assert len(caplog.records) < 20
    assert "and 990 more bodies" in caplog.text


# --- making topics typed ----------------------------------------------------------------------


def test_making_the_table_of_a_typed_topic_again_changes_nothing(typed: Store) -> None:
    before = table_versions(typed)

    typed.tables.create_topic(ORDERS)

    assert table_versions(typed) == before
    assert kept_schema(typed) == JSON


def test_topic_with_messages_cannot_become_typed(store: Store) -> None:
    commit(TransactionProducer(store, producer_group=GROUP), Message(ORDERS, body(1)))
    publish(store)
    before = table_versions(store)

    with pytest.raises(BodySchemaConflictError, match="has messages"):
        Topics(store).alter(ORDERS, body=JSON.to_dict())

    assert table_versions(store) == before


def test_topic_without_messages_becomes_typed(store: Store) -> None:
    Topics(store).create(ORDERS)

    Topics(store).alter(ORDERS, body=JSON.to_dict())
    commit(TransactionProducer(store, producer_group=GROUP), Message(ORDERS, body(1)))
    publish(store)

    assert [typed_values(row) for row in topic_rows(store, ORDERS)] == [columns_of(1)]


@pytest.mark.parametrize("other", [AVRO.to_dict(), None], ids=["avro", "untyped"])
def test_body_schema_of_a_topic_with_messages_stays(
    typed: Store, producer: TransactionProducer, other: Any
) -> None:
    commit(producer, Message(ORDERS, body(1)))
    publish(typed)
    before = table_versions(typed)

    with pytest.raises(BodySchemaConflictError, match="its body schema cannot change"):
        Topics(typed).alter(ORDERS, body=other)
    Topics(typed).alter(ORDERS, body=JSON.to_dict(), queue_nums=9)

    after = table_versions(typed)
    assert {path for path in after if after[path] != before[path]} == {"state/topics"}


def test_table_is_made_typed_by_the_publisher_where_the_operator_was_killed(store: Store) -> None:
    settings = TopicSettings(TopicKind.UNSPECIFIED, 4, None, JSON.to_dict())
    register = store.tables.topic_register(create=True)
    register.swap(register.read().with_settings(ORDERS, settings), 0)
    commit(TransactionProducer(store, producer_group=GROUP), Message(ORDERS, body(1)))

    publish(store)

    assert [typed_values(row) for row in topic_rows(store, ORDERS)] == [columns_of(1)]


def test_deleted_topic_may_have_other_bodies(typed: Store, producer: TransactionProducer) -> None:
    commit(producer, Message(ORDERS, body(1)))
    publish(typed)
    topics = Topics(typed)
    topics.delete(ORDERS, apply=True)
    assert kept_schema(typed) is None
    other = {"encoding": "json", "schema": record(field("order_number", "string"))}

    with pytest.raises(StorageError, match="other columns of the names order_number"):
        topics.create(ORDERS, body=other)
    more = record(field("order_number", "long"), field("new", "int"))
    topics.create(ORDERS, body={"encoding": "json", "schema": more})
    commit(TransactionProducer(typed, producer_group=GROUP),
           Message(ORDERS, b'{"order_number": 1, "new": 2}'))  # fmt: skip
    publish(typed)

    (row,) = topic_rows(typed, ORDERS)
    assert (row["order_number"], row["new"], row["customer"]) == (1, 2, None)


def without_time(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "store_timestamp": None} for row in rows]


def test_rebuilt_topic_has_its_columns_again(store: Store) -> None:
    # Not before the times of files, by which retention goes.
    clock = ManualClock(time.time_ns() // 1_000_000)
    Topics(store).create(ORDERS, body=JSON.to_dict())
    producer = TransactionProducer(store, producer_group=GROUP, clock=clock)
    publisher = Publisher(store, clock=clock)
    commit(producer, Message(ORDERS, body(0)))
    publisher.run_once()
    clock.advance(5 * 86_400)
    Retention(store, clock).run()
    commit(producer, *(Message(ORDERS, body(number)) for number in (1, 2)))
    publisher.run_once()
    before = topic_rows(store, ORDERS)
    DeltaTable(store.topic_location(ORDERS)).delete("order_number = 1")

    rebuilt = Topics(store, clock=clock).rebuild(ORDERS, apply=True)

    assert (rebuilt.missing, rebuilt.kept) == (1, 1)
    assert without_time(topic_rows(store, ORDERS)) == without_time(before)


def test_property_that_another_program_broke_parks_the_topic(
    typed: Store, producer: TransactionProducer
) -> None:
    commit(producer, Message(ORDERS, body(1)), Message("stock", b"1"))
    table = DeltaTable(typed.topic_location(ORDERS))
    table.alter.set_table_properties({BODY_SCHEMA_PROPERTY: "{}"}, raise_if_not_exists=False)

    result = publish(typed)

    assert (result.published, result.parked) == (1, 1)
    with pytest.raises(BodySchemaError):
        kept_schema(typed)


# --- schemas that get wider -------------------------------------------------------------------

WIDER = record(*ORDER["fields"], field("gift", ["null", "string"]), name="Order")


def widened(store: Store, encoding: str = "json") -> None:
    Topics(store).alter(ORDERS, body={"encoding": encoding, "schema": WIDER})


def gifts(store: Store) -> list[tuple[int, str | None]]:
    return [(row["order_number"], row.get("gift")) for row in topic_rows(store, ORDERS)]


def test_topic_with_messages_gets_a_field_that_may_be_null(
    typed: Store, producer: TransactionProducer
) -> None:
    publisher = Publisher(typed)
    commit(producer, Message(ORDERS, body(0)))
    publisher.run_once()
    waits = producer.begin_transaction()
    waits.send(Message(ORDERS, body(1)))
    waits.prepare()

    widened(typed)

    # A producer that knows the earlier schema alone sends on, and learns the new one.
    commit(producer, Message(ORDERS, body(2)))
    waits.commit()
    commit(producer, Message(ORDERS, body(3, gift="a rose")))
    publisher.run_once()
    assert sorted(gifts(typed)) == [(0, None), (1, None), (2, None), (3, "a rose")]
    assert all(result.violation_count == 0 for result in verify(typed.location).results)


def test_bodies_of_avro_before_and_after_a_new_field_are_columns(store: Store) -> None:
    Topics(store).create(ORDERS, body=AVRO.to_dict())
    producer = TransactionProducer(store, producer_group=GROUP)
    after = BodySchema.parse({"encoding": "avro", "schema": WIDER})
    values = {**columns_of(7), "labels": {"colour": "red"}}
    publisher = Publisher(store)

    widened(store, "avro")
    commit(producer, Message(ORDERS, avro_body(AVRO, **values)))
    commit(producer, Message(ORDERS, avro_body(after, **values, gift="a rose")))
    publisher.run_once()

    assert gifts(store) == [(7, None), (7, "a rose")]


@pytest.mark.parametrize("point", [FailPoint.PAYLOAD_WRITTEN, FailPoint.TOPIC_COMMITTED])
def test_publisher_that_a_new_field_overtakes_shows_it(
    typed: Store, producer: TransactionProducer, point: FailPoint
) -> None:
    publisher = Publisher(typed)
    commit(producer, Message(ORDERS, body(0)))
    publisher.run_once()
    commit(producer, Message(ORDERS, body(1)))
    steps: list[FailPoint] = []

    def widen_and_send(step: FailPoint) -> None:
        if step is point and not steps:
            steps.append(step)
            widened(typed)
            commit(producer, Message(ORDERS, body(2, gift="a rose")))

    disarm = arm(widen_and_send)
    try:
        publisher.run_once()
    finally:
        disarm()
    publisher.run_once()

    assert steps == [point]
    assert sorted(gifts(typed)) == [(0, None), (1, None), (2, "a rose")]


def test_topic_with_old_and_new_fields_is_compacted_and_rebuilt(
    typed: Store, producer: TransactionProducer
) -> None:
    publisher = Publisher(typed)
    for number in range(4):
        if number == 2:
            widened(typed)
        commit(producer, Message(ORDERS, body(number, **({"gift": "g"} if number > 1 else {}))))
        publisher.run_once()
    table = typed.tables.table_at(f"topics/{ORDERS}")

    compact(table, 1 << 20)
    DeltaTable(typed.topic_location(ORDERS)).delete("order_number = 3")
    Topics(typed).rebuild(ORDERS, apply=True)

    assert sorted(gifts(typed)) == [(0, None), (1, None), (2, "g"), (3, "g")]
    assert all(result.violation_count == 0 for result in verify(typed.location).results)


@pytest.mark.parametrize("narrow", ["create_topic", "alter"])
def test_operator_who_comes_late_takes_no_field_away(
    typed: Store, producer: TransactionProducer, monkeypatch: pytest.MonkeyPatch, narrow: str
) -> None:
    real, calls = tables.set_body_schema, list[str]()

    def overtaken(*arguments: Any, **options: Any) -> None:
        if not calls:
            calls.append("alter")
            widened(typed)
        real(*arguments, **options)

    monkeypatch.setattr(tables, "set_body_schema", overtaken)
    if narrow == "alter":
        Topics(typed).alter(ORDERS, body={**JSON.to_dict(), "schema": {**ORDER, "name": "Same"}})
    else:
        typed.tables.create_topic(ORDERS)
    commit(producer, Message(ORDERS, body(0, gift="a rose")))
    publish(typed)

    assert gifts(typed) == [(0, "a rose")]


def test_operator_who_was_killed_before_the_settings_widens_again(
    typed: Store, producer: TransactionProducer
) -> None:
    commit(producer, Message(ORDERS, body(0)))
    publish(typed)
    wider = BodySchema.parse({"encoding": "json", "schema": WIDER})
    set_body_schema(typed.tables.table_at(f"topics/{ORDERS}"), ORDERS, lambda: wider)

    commit(producer, Message(ORDERS, body(1)))
    publish(typed)
    other = record(*ORDER["fields"], field("other", ["null", "string"]), name="Order")
    with pytest.raises(BodySchemaConflictError, match="gift is missing"):
        Topics(typed).alter(ORDERS, body={**JSON.to_dict(), "schema": other})
    Topics(typed).alter(ORDERS, body=JSON.to_dict(), queue_nums=9)
    assert kept_schema(typed) == wider
    widened(typed)
    commit(producer, Message(ORDERS, body(2, gift="a rose")))
    publish(typed)

    assert sorted(gifts(typed)) == [(0, None), (1, None), (2, "a rose")]


# --- services over typed topics ---------------------------------------------------------------


def test_compaction_keeps_the_columns(typed: Store, producer: TransactionProducer) -> None:
    publisher = Publisher(typed)
    for number in range(9):
        commit(producer, Message(ORDERS, body(number)))
        publisher.run_once()
    before = topic_rows(typed, ORDERS)

    compacted = compact(typed.tables.table_at(f"topics/{ORDERS}"), 1 << 20)

    assert compacted.files_after < compacted.files_before
    assert topic_rows(typed, ORDERS) == before
    assert sorted(row["order_number"] for row in before) == list(range(9))


def test_verify_finds_nothing_wrong_and_finds_a_changed_body(
    typed: Store, producer: TransactionProducer, quick: Any
) -> None:
    commit(producer, *(Message(ORDERS, body(number)) for number in range(3)))
    publish(typed)

    assert verify(typed.location).is_clean
    DeltaTable(typed.topic_location(ORDERS)).update(
        updates={"tags": "'x'"}, predicate="order_number = 1"
    )

    found = verify(typed.location).broken
    assert "I16" in found
    assert set(verify_by_spark(typed.location, quick).broken) == set(found)


def test_spark_reads_and_streams_the_columns(
    typed: Store, producer: TransactionProducer, spark: Any, tmp_path: Path
) -> None:
    commit(producer, *(Message(ORDERS, body(number)) for number in range(3)))
    Publisher(typed, spark=spark).run_once()
    location = typed.topic_location(ORDERS)

    rows = spark.read.format("delta").load(location).where("lines[0].pieces >= 1")
    query = (
        spark.readStream.format("delta").load(location)
        .writeStream.format("delta").option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True).start(str(tmp_path / "copy"))
    )  # fmt: skip
    query.awaitTermination()

    orders = rows.selectExpr("order_number", "amount", "ordered", "due", "labels['colour'] colour")
    expected = [
        (number, Decimal("12.50"), NOON.replace(tzinfo=None), date(2026, 2, 1), "red")
        for number in (1, 2)
    ]
    assert_df_equality(
        orders, spark.createDataFrame(expected, orders.schema), ignore_row_order=True
    )
    topic = spark.read.format("delta").load(location)
    assert topic.columns == [*TOPIC.columns.names, *JSON.columns.names]
    copied = spark.read.format("delta").load(str(tmp_path / "copy"))
    assert copied.count() == 3
    # Maps have no order, so that Spark cannot sort by them.
    plain = [name for name, kind in topic.dtypes if not kind.startswith("map")]
    assert_df_equality(copied.select(plain), topic.select(plain), ignore_row_order=True)


def test_tasks_of_spark_fill_the_columns_of_typed_topics(
    typed: Store, producer: TransactionProducer, spark: Any
) -> None:
    commit(producer, Message(ORDERS, body(1)), Message("stock", b"1"))
    store = Store.open(typed.location, typed.config.replace(payload_engine="spark"))

    assert Publisher(store, spark=spark).run_once().published == 2

    assert [typed_values(row) for row in topic_rows(typed, ORDERS)] == [columns_of(1)]


# --- DataFrames -------------------------------------------------------------------------------


def frame(spark: Any, *bodies: bytes | None) -> Any:
    return spark.createDataFrame([(body,) for body in bodies], "body binary")


def test_rows_of_a_dataframe_are_checked_where_they_are(
    typed: Store, producer: TransactionProducer, spark: Any
) -> None:
    with producer.begin_transaction() as transaction:
        transaction.send_dataframe(frame(spark, body(1), body(2)), topic=ORDERS)
        transaction.prepare()
        transaction.commit()

    publish(typed)

    assert sorted(row["order_number"] for row in topic_rows(typed, ORDERS)) == [1, 2]


def test_dataframe_with_wrong_bodies_is_refused_and_leaves_nothing(
    typed: Store, producer: TransactionProducer, spark: Any
) -> None:
    before = table_versions(typed)
    files = set(Path(typed.location, "half").rglob("*.parquet"))
    transaction = producer.begin_transaction()
    transaction.send_dataframe(frame(spark, body(1), b"a secret", b"{}", None), topic=ORDERS)

    with pytest.raises(InvalidBodyError) as caught:
        transaction.prepare()

    assert "body is null: 1 rows" in str(caught.value)
    assert "body without the schema of its topic: 2 rows" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert table_versions(typed) == before
    assert set(Path(typed.location, "half").rglob("*.parquet")) == files


# --- CloudEvents and traces -------------------------------------------------------------------


def test_events_and_traces_arrive_in_the_properties(
    typed: Store, producer: TransactionProducer, spark: Any
) -> None:
    parent = f"00-{'1' * 32}-{'2' * 16}-01"
    event = cloud_event(ORDERS, id="7", source="/shop", type="order.paid", data=body(7))
    commit(producer, with_trace_context(event, parent))

    publish(typed)

    (row,) = topic_rows(typed, ORDERS)
    (spark_row,) = spark.read.format("delta").load(typed.topic_location(ORDERS)).collect()
    assert attributes_of(row) == attributes_of(spark_row) == attributes_of(event)
    assert dict(row["properties"])["traceparent"] == parent
    assert row["order_number"] == 7
