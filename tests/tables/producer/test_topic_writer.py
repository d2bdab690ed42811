"""What `format("txmq")` writes: a frame at once, each micro-batch of a stream once."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import LongType, StructField, StructType

from tests.kit.builders import GROUP, table_versions
from tests.kit.reading import bodies, commits, log_rows, publish, topic_rows
from tests.kit.written_stream import QUERY, Written
from txmq.errors import (
    AlreadyPreparedError,
    AlreadyResolvedError,
    CheckpointMismatchError,
    ClosedError,
    ConfigError,
    DifferentMessagesError,
    EnvironmentProblemError,
    FilesSweptError,
    InvalidBodyError,
    InvalidMessageError,
    InvalidNameError,
    NotPreparedError,
    ProducerGroupMismatchError,
    SchemaMismatchError,
    SendForbiddenError,
    SourceRestoredError,
    StorageError,
    TopicChangedError,
    TopicKindError,
    TransactionForgottenError,
    TransactionNotFoundError,
)
from txmq.ground.fail_points import FailPoint
from txmq.listeners.hooks import CheckForbiddenHook
from txmq.maintenance.orphans import sweep
from txmq.maintenance.service import Maintenance
from txmq.message.codec import AesGcmCodec
from txmq.message.lifecycle import TransactionState
from txmq.message.message import LocalTransactionState, Message
from txmq.ops.admin.topics import Topics
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.spark import topic_writer
from txmq.spark.data_source import DEFAULT_GROUP, TxmqDataSource
from txmq.store.store import Store
from txmq.store.topic_settings import TopicKind
from txmq.testing import ManualClock, arm_fail_points, before_commit, failing_commits
from txmq.verify import verify

TOPIC = "order-paid"
OTHER_QUERY = "b7f3b4c8-0000-4000-8000-000000000002"


@pytest.fixture
def frame(store: Store) -> Written:
    return Written({"path": store.location, "topic": TOPIC})


@pytest.fixture
def stream(store: Store) -> Written:
    return Written({"path": store.location, "topic": TOPIC}, QUERY)


@pytest.fixture
def producer(store: Store) -> Iterator[TransactionProducer]:
    with TransactionProducer(store, producer_group=GROUP) as made:
        yield made


def half_files(store: Store) -> set[str]:
    return {str(path) for path in Path(store.location, "half").rglob("*.parquet")}


def shown(store: Store) -> list[bytes]:
    """The bodies that are visible; everything about them is right."""
    publish(store)
    assert verify(store.location).is_clean
    return bodies(store)


def rolled_back(store: Store, transaction_id: str, group: str = DEFAULT_GROUP) -> None:
    with TransactionProducer(store, producer_group=group) as producer:
        producer.end_transaction(transaction_id, LocalTransactionState.ROLLBACK)


def transactions(store: Store) -> list[str]:
    heads = [row for row in log_rows(store, "half") if row["sequence"] == 0]
    return [row["transaction_id"] for row in sorted(heads, key=lambda row: row["transaction_id"])]


# --- a frame --------------------------------------------------------------------------------------


def test_rows_of_all_tasks_are_one_ordinary_transaction(store: Store, frame: Written) -> None:
    frame.save(["a", "b", "c"], [], ["d"])

    assert shown(store) == [b"a", b"b", b"c", b"d"]
    assert (commits(store, "half"), commits(store, "op")) == (1, 1)
    [head] = [row for row in log_rows(store, "half") if row["sequence"] == 0]
    assert (head["message_count"], head["ordinary"], head["producer_group"]) == (4, True, "spark")
    assert len({row["message_id"] for row in topic_rows(store)}) == 4


def test_columns_of_a_message_arrive(store: Store, frame: Written) -> None:
    frame.schema = pa.schema(
        [
            ("body", pa.binary()), ("tags", pa.string()), ("keys", pa.large_string()),
            ("sharding_key", pa.string()), ("properties", pa.map_(pa.string(), pa.string())),
        ]
    )  # fmt: skip
    frame.save(
        [{"body": b"x", "tags": "t", "keys": "k", "sharding_key": "c", "properties": [("a", "b")]}]
    )

    publish(store)
    [row] = topic_rows(store)
    names = ("body", "tags", "keys", "sharding_key", "properties")
    assert [row[name] for name in names] == [b"x", "t", "k", "c", [("a", "b")]]


def test_rows_that_cannot_be_messages_are_counted_and_nothing_stays(
    store: Store, frame: Written
) -> None:
    before = table_versions(store)

    with pytest.raises(InvalidMessageError, match="2 rows, first row 1 of partition 1"):
        frame.save(["a"], ["b", None, None])

    assert (table_versions(store), half_files(store)) == (before, set())


def test_job_that_fails_sends_nothing(store: Store, frame: Written) -> None:
    before = table_versions(store)
    messages = frame.tasks(["a"], ["b"])

    frame.writer().abort([*messages, None])

    assert table_versions(store) == before


@pytest.mark.parametrize("table", ["half", "op"])
def test_commit_that_failed_may_have_landed_and_keeps_its_files(
    store: Store, stream: Written, table: str
) -> None:
    messages = stream.tasks(["a"])
    point = FailPoint.FRAMES_COMMITTED if table == "half" else FailPoint.END_COMMITTED
    disarm = arm_fail_points(f"{point}=raise")
    with pytest.raises(OSError, match="fail point"):
        stream.writer().commit(messages, 0)
    disarm()
    stream.writer().abort(messages, 0)

    stream.run(0, ["a"])

    assert shown(store) == [b"a"]


def test_frame_without_rows_sends_nothing(store: Store, frame: Written) -> None:
    before = table_versions(store)

    frame.save([], [])
    frame.save()

    assert table_versions(store) == before


def test_commit_without_an_answer_sends_once(store: Store, frame: Written) -> None:
    with failing_commits(1, table="half", after_commit=True):
        frame.save(["a"])
    with failing_commits(1, table="op", after_commit=True):
        frame.save(["b"])

    assert shown(store) == [b"a", b"b"]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"topics": TOPIC}, "option topics is not one of"),
        ({"topic": ""}, "option topic is missing"),
        ({"path": ""}, "option path is missing"),
        ({"startingOffsets": "latest"}, "option startingoffsets is not one of"),
        ({"checkImmunityTime": "soon"}, "checkImmunityTime must be seconds"),
    ],
)
def test_options_are_checked(frame: Written, options: dict[str, str], fault: str) -> None:
    frame.options |= options

    with pytest.raises(ConfigError, match=fault):
        frame.writer()


def test_overwrite_is_refused(frame: Written) -> None:
    with pytest.raises(ConfigError, match="mode append"):
        TxmqDataSource(frame.options).writer(None, True)  # type: ignore[arg-type]  # noqa: FBT003


@pytest.mark.parametrize("topic", ["a/b", "RETRY_x"])
def test_names_are_checked(frame: Written, topic: str) -> None:
    frame.options["topic"] = topic
    with pytest.raises(InvalidNameError):
        frame.writer()

    frame.options |= {"topic": TOPIC, "producerGroup": topic}
    with pytest.raises(InvalidNameError):
        frame.writer()


def test_columns_are_checked_before_a_task_runs(frame: Written) -> None:
    frame.schema = pa.schema([("body", pa.int64()), ("more", pa.string())])

    with pytest.raises(SchemaMismatchError) as told:
        frame.writer()
    assert "'more' is not one of" in str(told.value)
    assert "'body' is bigint" in str(told.value)


def test_namespace_is_that_of_topic_and_group(store: Store, frame: Written) -> None:
    frame.options |= {"namespace": "shop", "producerGroup": "orders"}
    frame.save(["a"])

    publish(store)
    assert store.topics() == ["shop.order-paid"]
    assert {row["producer_group"] for row in log_rows(store, "half")} == {"shop.orders"}


def test_topic_of_transactions_takes_no_frame_that_is_sent_by_itself(
    store: Store, frame: Written, producer: TransactionProducer
) -> None:
    Topics(store).create(TOPIC, kind=TopicKind.TRANSACTION)

    with pytest.raises(TopicKindError):
        frame.writer()
    Written(producer.begin_transaction().write_options(TOPIC)).writer()


def test_bodies_of_a_typed_topic_are_checked_by_the_tasks(store: Store, frame: Written) -> None:
    fields = [{"name": "id", "type": "long"}]
    schema = {"type": "record", "name": "Order", "fields": fields}
    Topics(store).create(TOPIC, body={"encoding": "json", "schema": schema})

    with pytest.raises(InvalidBodyError, match="1 rows, first row 1 of partition 0"):
        frame.save(['{"id": 1}', '{"id": "x"}'])
    frame.save(['{"id": 1}'])

    assert shown(store) == [b'{"id": 1}']


# --- columns --------------------------------------------------------------------------------------

ORDER = pa.schema([("order_id", pa.int64()), ("city", pa.string()), ("total", pa.float64())])
PAID = {"order_id": 7, "city": "Köln", "total": 1.5}


def test_columns_are_packed_as_one_object(store: Store, frame: Written) -> None:
    frame.schema, frame.options["keys"] = ORDER, "order_id"
    frame.options |= {"tags": "city", "shardingKey": "order_id"}

    frame.save([PAID, {"order_id": 8, "city": None, "total": None}])

    publish(store)
    rows = sorted(topic_rows(store), key=lambda row: row["keys"])
    assert [json.loads(row["body"]) for row in rows] == [PAID, {"order_id": 8}]
    named = [(row["keys"], row["tags"], row["sharding_key"]) for row in rows]
    assert named == [("7", "Köln", "7"), ("8", None, "8")]


def test_typed_topic_of_a_frame_reads_back_as_its_columns(store: Store, frame: Written) -> None:
    Topics(store).create(TOPIC, schema=from_arrow_schema(ORDER))
    frame.schema = ORDER

    frame.save([PAID])

    publish(store)
    assert verify(store.location).is_clean
    [row] = topic_rows(store)
    assert {name: row[name] for name in PAID} == PAID


@pytest.mark.parametrize(
    ("columns", "options", "fault"),
    [
        ({"order_id": pa.int64()}, {}, "'city' is missing, which the topic's schema needs"),
        ({"order_id": pa.int64(), "town": pa.string()}, {}, "'town' is not a field of the topic"),
        ({"order_id": pa.int64(), "city": pa.string()}, {"keys": "id"}, "'id', which an option"),
        ({"order_id": pa.int64(), "city": pa.float64()}, {"tags": "city"}, "'city' is double"),
        ({"body": pa.string(), "keys": pa.string()}, {"keys": "body"}, "'keys' is there"),
        ({"place": pa.string()}, {}, "'place' must have another name"),
        ({"tags": pa.string()}, {}, "column body is missing"),
    ],
)
def test_columns_that_do_not_fit_are_named(
    store: Store, frame: Written, columns: dict[str, Any], options: dict[str, str], fault: str
) -> None:
    fields = [{"name": "order_id", "type": "long"}, {"name": "city", "type": "string"}]
    record = {"type": "record", "name": "Order", "fields": fields}
    Topics(store).create(TOPIC, body={"encoding": "json", "schema": record})
    frame.schema, frame.options = pa.schema(list(columns.items())), {**frame.options, **options}

    with pytest.raises(SchemaMismatchError, match=fault):
        frame.writer()


def test_values_that_no_body_can_hold_are_counted(store: Store, frame: Written) -> None:
    before = table_versions(store)
    frame.schema = ORDER

    with pytest.raises(InvalidMessageError, match="cannot hold, such as NaN: 2 rows, first row 1"):
        frame.save([PAID, {**PAID, "total": math.nan}, {**PAID, "total": math.inf}])
    assert table_versions(store) == before


def test_column_beside_a_body_may_be_named_for_a_field_alone(store: Store, frame: Written) -> None:
    frame.schema = pa.schema([("body", pa.string()), ("id", pa.int32()), ("wait", pa.int64())])
    frame.options |= {"keys": "id", "delaySeconds": "wait"}

    frame.save([{"body": "x", "id": 4, "wait": 0}])

    publish(store)
    [row] = topic_rows(store)
    assert (row["keys"], row["body"]) == ("4", b"x")


# --- a stream -------------------------------------------------------------------------------------


def test_each_batch_is_sent_once_however_often_it_runs(store: Store, stream: Written) -> None:
    stream.run(0, ["a"], ["b"])
    files = half_files(store)
    stream.run(0, ["a"], ["b"])
    assert half_files(store) == files
    stream.run(1, ["c"])
    stream.run(1, ["c"])

    assert shown(store) == [b"a", b"b", b"c"]
    assert (commits(store, "half"), commits(store, "op")) == (2, 2)


def test_batch_that_died_before_its_end_is_ended_by_the_next_run(
    store: Store, stream: Written
) -> None:
    with failing_commits(10_000, table="op"), pytest.raises(StorageError):
        stream.run(0, ["a"])
    files = half_files(store)

    stream.run(0, ["a"])

    assert shown(store) == [b"a"]
    assert (commits(store, "half"), half_files(store)) == (1, files)


@pytest.mark.parametrize("table", ["half", "op"])
def test_commit_of_a_batch_without_an_answer_counts_once(
    store: Store, stream: Written, table: str
) -> None:
    with failing_commits(1, table=table, after_commit=True):
        stream.run(0, ["a"])
    stream.run(0, ["a"])

    assert shown(store) == [b"a"]


def test_batch_that_the_check_rolled_back_is_sent_by_its_next_run(
    store: Store, stream: Written
) -> None:
    with failing_commits(10_000, table="op"), pytest.raises(StorageError):
        stream.run(0, ["a"])
    rolled_back(store, transactions(store)[0])

    stream.run(0, ["a"])
    stream.run(0, ["a"])

    assert shown(store) == [b"a"]


def test_end_that_lost_against_the_check_is_told_and_the_next_run_sends(
    store: Store, stream: Written
) -> None:
    def overtaken() -> None:
        rolled_back(store, transactions(store)[0])

    with before_commit(overtaken, table="op"), pytest.raises(AlreadyResolvedError):
        stream.run(0, ["a"])
    stream.run(0, ["a"])

    assert shown(store) == [b"a"]


def test_two_processes_that_run_one_batch_send_it_once(store: Store, stream: Written) -> None:
    with before_commit(lambda: stream.run(0, ["a"]), table="half"):
        stream.run(0, ["a"])

    assert shown(store) == [b"a"]


def test_older_run_that_wakes_up_after_the_next_batch_is_refused(
    store: Store, stream: Written
) -> None:
    stream.run(0, ["a"])

    def overtaken() -> None:
        stream.run(1, ["b"])
        stream.run(2, ["c"])

    with (
        before_commit(overtaken, table="half"),
        pytest.raises(CheckpointMismatchError, match="batch 1 and has sent batch 2"),
    ):
        stream.run(1, ["b"])

    assert shown(store) == [b"a", b"b", b"c"]


def test_checkpoint_that_is_older_is_told(store: Store, stream: Written) -> None:
    for batch, body in enumerate(["a", "b", "c"]):
        stream.run(batch, [body])
    before = table_versions(store)

    with pytest.raises(CheckpointMismatchError, match="runs batch 1 and has sent batch 2"):
        stream.run(1, ["b"])
    with pytest.raises(CheckpointMismatchError, match="1 rows there, 2 here"):
        stream.run(2, ["c", "d"])
    with pytest.raises(CheckpointMismatchError, match="values of its rows"):
        stream.run(2, ["late"])
    with pytest.raises(CheckpointMismatchError, match="0 here"):
        stream.run(2, [])

    assert table_versions(store) == before


def test_rows_that_may_differ_are_not_compared(store: Store, stream: Written) -> None:
    stream.options["rowsMayDiffer"] = "true"
    stream.run(0, ["a"])
    stream.run(0, ["b", "c"])

    assert shown(store) == [b"a"]


def test_batch_that_another_group_left_open_is_told(store: Store, stream: Written) -> None:
    with failing_commits(10_000, table="op"), pytest.raises(StorageError):
        stream.run(0, ["a"])
    stream.options["producerGroup"] = "billing"

    with pytest.raises(ProducerGroupMismatchError, match="belongs to group 'spark'"):
        stream.run(0, ["a"])
    del stream.options["producerGroup"]
    stream.run(0, ["a"])

    assert shown(store) == [b"a"]


def test_task_of_which_spark_says_nothing_is_an_error(store: Store, stream: Written) -> None:
    before = table_versions(store)
    messages = [*stream.tasks(["a"]), None]

    with pytest.raises(EnvironmentProblemError, match="continuous"):
        stream.writer().commit(messages, 0)
    assert table_versions(store) == before


def test_name_of_a_query_is_no_option_of_ours(store: Store, stream: Written) -> None:
    stream.options["queryName"] = "forward"
    stream.run(0, ["a"])

    assert shown(store) == [b"a"]


def test_half_that_another_program_set_back_is_told_as_what_it_is(
    store: Store, stream: Written
) -> None:
    before = DeltaTable(f"{store.location}/half").version()
    with failing_commits(10_000, table="op"), pytest.raises(StorageError):
        stream.run(0, ["a"])
    DeltaTable(f"{store.location}/half").restore(before)

    with pytest.raises(SourceRestoredError):
        stream.run(0, ["a"])
    publish(store)
    stream.run(0, ["a"])
    publish(store)

    assert bodies(store) == [b"a"]


@pytest.mark.parametrize("kind", ["batch", "transaction"])
def test_files_that_maintenance_took_are_told_as_such(
    store: Store, stream: Written, producer: TransactionProducer, kind: str
) -> None:
    written = stream
    if kind == "transaction":
        written = Written(producer.begin_transaction().write_options(TOPIC))
    messages = written.tasks(["a"])
    sweep(store.tables.table_at("half"), lambda _: True)

    with pytest.raises(FilesSweptError):
        written.writer().commit(messages, *([0] if kind == "batch" else []))
    stream.run(0, ["a"])
    assert shown(store) == [b"a"]


def test_batches_without_rows_send_nothing(store: Store, stream: Written) -> None:
    stream.run(0, [])
    stream.run(1)
    stream.run(2, ["a"])

    assert shown(store) == [b"a"]
    assert commits(store, "half") == 1


def test_queries_count_each_for_itself(store: Store, stream: Written) -> None:
    other = Written(stream.options, OTHER_QUERY)
    stream.run(0, ["a"])
    other.run(0, ["b"])
    stream.run(0, ["a"])
    other.run(0, ["b"])

    assert shown(store) == [b"a", b"b"]


def test_batch_with_a_row_that_cannot_be_a_message_sends_nothing(
    store: Store, stream: Written
) -> None:
    before = table_versions(store)

    with pytest.raises(InvalidMessageError, match="body is null"):
        stream.run(0, ["a", None])

    assert (table_versions(store), half_files(store)) == (before, set())
    stream.run(0, ["a"])
    assert shown(store) == [b"a"]


def test_batch_whose_end_retention_took_is_told(
    store: Store, stream: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(now_ms=time.time_ns() // 1_000_000)
    monkeypatch.setattr(topic_writer, "SystemClock", lambda: clock)
    with failing_commits(10_000, table="op"), pytest.raises(StorageError):
        stream.run(0, ["a"])
    rolled_back(store, transactions(store)[0])
    Publisher(store, clock=clock).run_once()
    clock.advance(8 * 86_400.0)
    assert Maintenance(store, clock=clock).run_once().retained.half_days

    with pytest.raises(TransactionForgottenError):
        stream.run(0, ["a"])


def test_tasks_of_two_plans_are_refused(store: Store, stream: Written) -> None:
    before = table_versions(store)
    messages = [*stream.tasks(["a"]), *stream.tasks(["b"])]

    with pytest.raises(StorageError, match="several plans"):
        stream.writer().commit(messages, 0)
    assert table_versions(store) == before


def test_stream_joins_no_transaction(stream: Written, producer: TransactionProducer) -> None:
    stream.options = producer.begin_transaction().write_options(TOPIC)

    with pytest.raises(ConfigError, match="of DataFrames alone"):
        stream.writer()


# --- in a transaction of a producer ---------------------------------------------------------------


def test_rows_that_spark_wrote_are_the_messages_of_a_transaction(
    store: Store, producer: TransactionProducer
) -> None:
    with producer.begin_transaction() as transaction:
        Written(transaction.write_options(TOPIC)).save(["a"], ["b"])
        transaction.prepare()
        assert transaction.state is TransactionState.PENDING
        publish(store)
        assert store.topics() == []
        transaction.commit()

    assert shown(store) == [b"a", b"b"]
    assert commits(store, "half") == 1
    [head] = [row for row in log_rows(store, "half") if row["sequence"] == 0]
    assert (head["ordinary"], head["producer_group"]) == (False, GROUP)


def test_transaction_is_not_prepared_by_the_write_alone(producer: TransactionProducer) -> None:
    transaction = producer.begin_transaction()
    Written(transaction.write_options(TOPIC)).save(["a"])

    with pytest.raises(NotPreparedError):
        transaction.commit()


def test_prepare_without_a_write_is_refused(store: Store, producer: TransactionProducer) -> None:
    transaction = producer.begin_transaction()
    options = transaction.write_options(TOPIC)

    with pytest.raises(InvalidMessageError, match="has no message"):
        transaction.prepare()
    Written(options).save(["a"])
    transaction.prepare()
    transaction.commit()

    assert shown(store) == [b"a"]


def test_rows_are_rolled_back_before_and_after_prepare(
    store: Store, producer: TransactionProducer
) -> None:
    for is_prepared in (False, True):
        with producer.begin_transaction() as transaction:
            Written(transaction.write_options(TOPIC)).save(["a"])
            if is_prepared:
                transaction.prepare()
            transaction.rollback()
        assert transaction.state is TransactionState.ROLLED_BACK
    with producer.begin_transaction() as transaction:
        transaction.write_options(TOPIC)
        transaction.rollback()

    publish(store)
    assert store.topics() == []


def test_write_that_is_tried_again_joins_the_first(
    store: Store, producer: TransactionProducer
) -> None:
    transaction = producer.begin_transaction()
    written = Written(transaction.write_options(TOPIC))
    written.save(["a", "b"])
    files = half_files(store)
    written.save(["b"], ["a"])
    assert half_files(store) == files
    with pytest.raises(DifferentMessagesError, match="2 rows there, 1 here"):
        written.save(["c"])
    transaction.prepare()
    transaction.commit()

    assert shown(store) == [b"a", b"b"]


def test_transaction_takes_either_rows_of_spark_or_its_own_messages(
    producer: TransactionProducer,
) -> None:
    of_spark, own = producer.begin_transaction(), producer.begin_transaction()
    of_spark.write_options(TOPIC)
    own.send(Message(TOPIC, b"x"))

    with pytest.raises(InvalidMessageError, match="and no others"):
        of_spark.send(Message(TOPIC, b"x"))
    with pytest.raises(InvalidMessageError, match="has messages already"):
        own.write_options(TOPIC)
    own.prepare()
    with pytest.raises(AlreadyPreparedError):
        own.write_options(TOPIC)
    own.rollback()


def test_work_with_a_key_continues_the_write_of_its_first_try(
    store: Store, producer: TransactionProducer
) -> None:
    moment = datetime.now(UTC)
    for _ in range(2):
        transaction = producer.begin_transaction(idempotency_key="job", key_timestamp=moment)
        Written(transaction.write_options(TOPIC)).save(["a"])
        transaction.prepare()
    transaction.commit()
    again = producer.begin_transaction(idempotency_key="job", key_timestamp=moment)
    assert again.state is TransactionState.COMMITTED
    Written(again.write_options(TOPIC)).save(["a"])
    again.prepare()
    again.commit()

    assert shown(store) == [b"a"]


def test_end_that_was_first_is_told_at_prepare(store: Store, producer: TransactionProducer) -> None:
    transaction = producer.begin_transaction()
    Written(transaction.write_options(TOPIC)).save(["a"])
    rolled_back(store, transaction.id, GROUP)

    with pytest.raises(AlreadyResolvedError):
        transaction.prepare()


def test_try_that_wrote_nothing_ends_nothing_of_another_try(
    store: Store, producer: TransactionProducer
) -> None:
    moment = datetime.now(UTC)
    first, second = (
        producer.begin_transaction(idempotency_key="job", key_timestamp=moment) for _ in range(2)
    )
    Written(first.write_options(TOPIC)).save(["a"])
    first.prepare()
    second.write_options(TOPIC)
    second.rollback()
    first.commit()

    assert shown(store) == [b"a"]


def test_halves_of_another_group_are_not_prepared(
    store: Store, producer: TransactionProducer
) -> None:
    transaction = producer.begin_transaction()
    Written({**transaction.write_options(TOPIC), "producerGroup": "other"}).save(["a"])

    with pytest.raises(ProducerGroupMismatchError):
        transaction.prepare()
    publish(store)
    assert store.topics() == []


def test_closed_producer_prepares_nothing(store: Store) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction, late = producer.begin_transaction(), producer.begin_transaction()
        Written(transaction.write_options(TOPIC)).save(["a"])

    with pytest.raises(ClosedError):
        transaction.prepare()
    with pytest.raises(ClosedError):
        late.write_options(TOPIC)


def test_rows_that_met_a_new_schema_are_rolled_back(
    store: Store, producer: TransactionProducer
) -> None:
    transaction = producer.begin_transaction()
    written = Written(transaction.write_options(TOPIC))
    messages = written.tasks(["no JSON"])
    schema = StructType([StructField("id", LongType())])
    writer = written.writer()

    with (
        before_commit(lambda: Topics(store).create(TOPIC, schema=schema), table="half"),
        pytest.raises(TopicChangedError),
    ):
        writer.commit(messages)
    with pytest.raises(AlreadyResolvedError):
        transaction.prepare()


@pytest.mark.parametrize("immunity_s", [0.1 + 0.2, 3600 / 7, 1e-5, 0, 1])
def test_any_time_before_the_first_check_goes_with_the_write(
    store: Store, producer: TransactionProducer, immunity_s: float
) -> None:
    transaction = producer.begin_transaction(check_immunity_time_s=immunity_s)
    Written(transaction.write_options(TOPIC)).save(["a"])

    [head] = [row for row in log_rows(store, "half") if row["sequence"] == 0]
    assert head["check_immunity_time_s"] == max(immunity_s, store.config.transaction_timeout_s)


def test_time_before_the_first_check_is_bounded(frame: Written) -> None:
    frame.options["checkImmunityTime"] = "999999999"

    with pytest.raises(InvalidMessageError, match="file_reserved_time_h"):
        frame.writer()


def test_hook_of_the_producer_may_refuse_the_rows(store: Store) -> None:
    class Refusing(CheckForbiddenHook):
        def check_forbidden(self, context: Any) -> None:
            assert context.dataframe_topics == (TOPIC,)
            raise PermissionError

    with TransactionProducer(store, producer_group=GROUP, hooks=[Refusing()]) as producer:
        transaction = producer.begin_transaction()
        Written(transaction.write_options(TOPIC)).save(["a"])
        with pytest.raises(SendForbiddenError):
            transaction.prepare()
        transaction.rollback()
    assert transaction.state is TransactionState.ROLLED_BACK


def test_producer_that_encodes_bodies_hands_no_rows_to_spark(store: Store) -> None:
    codec = AesGcmCodec({"key": b"k" * 32})
    with (
        TransactionProducer(store, producer_group=GROUP, body_codec=codec) as producer,
        pytest.raises(InvalidMessageError, match="no body codec"),
    ):
        producer.begin_transaction().write_options(TOPIC)


def test_time_before_the_first_check_goes_with_the_write(
    store: Store, producer: TransactionProducer
) -> None:
    transaction = producer.begin_transaction(check_immunity_time_s=1_000.0)
    Written(transaction.write_options(TOPIC)).save(["a"])

    [head] = [row for row in log_rows(store, "half") if row["sequence"] == 0]
    assert head["check_immunity_time_s"] == 1_000.0


@pytest.mark.parametrize("transaction", ["", "soon", "b7f3b4c8-0000-4000-8000-00000000000g"])
def test_transaction_that_is_none_is_refused(frame: Written, transaction: str) -> None:
    frame.options["transaction"] = transaction

    with pytest.raises(TransactionNotFoundError):
        frame.writer()
