from __future__ import annotations

import errno
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from weakref import WeakKeyDictionary

import pytest
from deltalake import DeltaTable

from tests.kit.builders import GROUP, table_versions
from tests.kit.delay_world import DelayWorld
from tests.kit.reading import are_gap_free, bodies, commits, log_rows, publish, topic_rows
from txmq.errors import (
    AlreadyPreparedError,
    DifferentMessagesError,
    InvalidMessageError,
    InvalidNameError,
    SchemaMismatchError,
    StoreFullError,
    TopicConflictError,
)
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.publish.delay_service import DelayService
from txmq.spark import dataframe, executors
from txmq.store.store import Store
from txmq.testing import ManualClock, before_commit, failing_commits

PAID = Message("order-paid", b"paid")
OVERTAKE_S = 3.0
YEAR_1_US = -62_135_596_800_000_000
# As `cast(kafka_key AS string)` gives it, in one row of the second partition.
NO_UTF8 = "IF(id = 3, cast(unhex('736563726574ff80fe') AS string), 'ä')"


@pytest.fixture
def producer(store: Store) -> TransactionProducer:
    return TransactionProducer(store, producer_group=GROUP)


@pytest.fixture(params=["tasks", "this process"])
def writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes the files: tasks on executors, or this process where they cannot."""
    if request.param == "tasks":
        monkeypatch.setattr(dataframe, "files_of", None)
    else:
        monkeypatch.setattr(executors, "__version__", "0.0.1")
        monkeypatch.setattr(executors, "_LOOKS", WeakKeyDictionary())


def rows(spark: Any, count: int, *columns: str) -> Any:
    names = columns or ("encode(concat('body ', id), 'utf-8') AS body",)
    return spark.range(0, count, 1, 2).selectExpr(*names)


def prepared(producer: TransactionProducer, *frames: Any, topic: str = "order-paid") -> Transaction:
    transaction = producer.begin_transaction()
    for frame in frames:
        transaction.send_dataframe(frame, topic=topic)
    transaction.prepare()
    return transaction


def expected(count: int) -> list[bytes]:
    return sorted(b"body %d" % number for number in range(count))


def half_files(store: Store) -> set[str]:
    return {str(path) for path in Path(store.location, "half").rglob("*.parquet")}


# --- what arrives -----------------------------------------------------------------------------


@pytest.mark.usefixtures("writer")
def test_every_row_is_one_message_of_one_transaction(
    store: Store, producer: TransactionProducer, spark: Any
) -> None:
    prepared(producer, rows(spark, 100)).commit()
    publish(store)

    assert bodies(store) == expected(100)
    assert (commits(store, "half"), commits(store, "op")) == (1, 1)
    assert len({row["message_id"] for row in topic_rows(store)}) == 100
    assert are_gap_free(topic_rows(store))


def test_rolled_back_rows_stay_hidden(
    store: Store, producer: TransactionProducer, spark: Any
) -> None:
    prepared(producer, rows(spark, 3)).rollback()
    publish(store)

    assert store.topics() == []


@pytest.mark.usefixtures("writer")
def test_optional_columns_arrive(store: Store, producer: TransactionProducer, spark: Any) -> None:
    frame = rows(spark, 1, "'text' AS body", "'tag' AS tags", "'k1 k2' AS keys",
                 "'customer' AS sharding_key", "map('ä', 'ö') AS properties")  # fmt: skip

    prepared(producer, frame).commit()
    publish(store)

    [row] = topic_rows(store)
    assert (row["body"], row["tags"], row["keys"]) == (b"text", "tag", "k1 k2")
    assert (row["sharding_key"], row["properties"]) == ("customer", [("ä", "ö")])


def test_sharding_key_leads_to_the_queue_of_single_messages(
    store: Store, producer: TransactionProducer, spark: Any
) -> None:
    keys = [f"customer-{number}" for number in range(20)]
    frame = spark.createDataFrame([(key, key) for key in keys], "body string, sharding_key string")

    transaction = producer.begin_transaction()
    transaction.send_dataframe(frame, topic="order-paid")
    for key in keys:
        transaction.send(Message("order-paid", b"single", sharding_key=key))
    transaction.prepare()

    queues: dict[str, set[int]] = {}
    for row in log_rows(store, "half"):
        queues.setdefault(row["sharding_key"], set()).add(row["real_queue_id"])
    assert [len(queues[key]) for key in keys] == [1] * len(keys)


@pytest.mark.usefixtures("writer")
def test_messages_and_several_dataframes_share_one_fate(
    store: Store, producer: TransactionProducer, spark: Any
) -> None:
    transaction = producer.begin_transaction()
    transaction.send(PAID)
    transaction.send_dataframe(rows(spark, 10), topic="order-paid")
    transaction.send_dataframe(rows(spark, 20), topic="stock")
    transaction.prepare()
    assert store.tables.half_log().halves(transaction.id).found == 31  # type: ignore[union-attr]
    transaction.commit()
    publish(store)

    assert bodies(store) == sorted([*expected(10), b"paid"])
    assert bodies(store, "stock") == expected(20)
    assert commits(store, "half") == 1


def test_transaction_without_single_messages_has_a_head_of_its_own(
    store: Store, producer: TransactionProducer, spark: Any
) -> None:
    transaction = prepared(producer, rows(spark, 5))

    heads = [row for row in log_rows(store, "half") if row["sequence"] == 0]
    assert [(row["message_count"], row["real_topic"]) for row in heads] == [(5, None)]
    assert store.tables.half_log().halves(transaction.id).problem is None  # type: ignore[union-attr]


@pytest.mark.usefixtures("writer")
def test_dataframe_is_computed_once(
    store: Store, producer: TransactionProducer, spark: Any
) -> None:
    frame = rows(spark, 50, "encode(uuid(), 'utf-8') AS body")

    prepared(producer, frame).commit()
    publish(store)

    stored = sorted(row["body"] for row in log_rows(store, "half") if row["sequence"])
    assert bodies(store) == stored
    assert len(set(stored)) == 50


@pytest.mark.usefixtures("writer")
def test_files_of_the_half_log_tell_their_transaction(
    store: Store, producer: TransactionProducer, spark: Any
) -> None:
    transaction = prepared(producer, rows(spark, 5))

    actions = DeltaTable(f"{store.location}/half").get_add_actions(flatten=True)
    found = [actions[f"{bound}.transaction_id"].to_pylist() for bound in ("min", "max")]
    assert {one for bound in found for one in bound} == {transaction.id}


def test_executors_that_lacked_something_are_asked_again_after_ten_minutes(
    producer: TransactionProducer, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, written_here = ManualClock(), Mock(wraps=dataframe.files_of)
    monkeypatch.setattr(executors, "elapsed_ms", clock.now_ms)
    monkeypatch.setattr(dataframe, "files_of", written_here)
    with monkeypatch.context() as other_version:
        other_version.setattr(executors, "__version__", "0.0.1")
        prepared(producer, rows(spark, 3))
    clock.advance(599)
    prepared(producer, rows(spark, 3))
    assert written_here.call_count == 2

    clock.advance(1)
    prepared(producer, rows(spark, 3))

    assert written_here.call_count == 2


@pytest.mark.usefixtures("writer")
def test_rows_come_each_at_its_own_time(tmp_path: Path, spark: Any) -> None:
    world = DelayWorld(tmp_path)
    frame = rows(
        spark, 4, "concat('', id) AS body", "IF(id = 1, 10, IF(id = 0, 0, NULL)) AS delay_s",
        f"IF(id = 2, timestamp_seconds({world.in_s(20).timestamp()}), NULL) AS deliver_timestamp",
    )  # fmt: skip
    with world.producer.begin_transaction() as transaction:
        transaction.send_dataframe(frame, topic="order-paid")
        transaction.prepare()
        transaction.commit()
    world.publisher.run_once()

    assert sorted(world.visible()) == ["0", "3"]
    assert sorted(world.after(10)) == ["0", "1", "3"]
    assert sorted(world.after(10)) == ["0", "1", "2", "3"]
    world.producer.close()


# --- what is refused ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "fault"),
    [
        (["'a' AS tags"], "column body is missing"),
        (["id AS body"], "'body' is bigint"),
        (["'a' AS body", "1 AS tags"], "'tags' is int"),
        (["'a' AS body", "'b' AS more"], "'more' is not one of"),
        (["'a' AS body", "'b' AS body"], "appears twice"),
        (["'a' AS body", "map(1, 'b') AS properties"], "'properties' is map<int,string>"),
    ],
)
def test_other_columns_are_refused(
    producer: TransactionProducer, spark: Any, columns: list[str], fault: str
) -> None:
    with pytest.raises(SchemaMismatchError, match=fault):
        producer.begin_transaction().send_dataframe(rows(spark, 1, *columns), topic="order-paid")


def test_stream_is_refused(producer: TransactionProducer, spark: Any) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("string(value) AS body")

    with pytest.raises(SchemaMismatchError, match="stream"):
        producer.begin_transaction().send_dataframe(stream, topic="order-paid")


@pytest.mark.parametrize("frame", [None, [b"body"], "body"])
def test_what_is_no_dataframe_is_refused(producer: TransactionProducer, frame: Any) -> None:
    with pytest.raises(InvalidMessageError, match="must be a Spark DataFrame"):
        producer.begin_transaction().send_dataframe(frame, topic="order-paid")


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ("IF(id = 1, NULL, 'a') AS body", "body is null: 1 rows"),
        ("IF(id = 1, repeat('a', 101), 'a') AS body", "body above 100 bytes: 1 rows"),
        ("'a' AS body, IF(id = 1, -1, 5) AS delay_s", "delay_s below 0: 1 rows"),
        ("'a' AS body, IF(id = 1, 99999999, 5) AS delay_s", "timer_max_delay_s .3,456,000 s.: 1"),
        (
            "'a' AS body, IF(id = 1, timestamp'2999-01-01', now()) AS deliver_timestamp",
            "timer_max_delay_s .3,456,000 s.: 1 rows",
        ),
        ("'a' AS body, 1 AS delay_s, now() AS deliver_timestamp", "both delay_s and"),
        ("'a' AS body, IF(id < 2, 'a|b', 'a') AS tags", "tags with |: 2 rows"),
        ("'a' AS body, ' ' AS keys", "blank: 3 rows"),
        ("'a' AS body, map('a', repeat('b', 101)) AS properties", "properties above 100 bytes"),
        ("'a' AS body, map('a', CAST(NULL AS string)) AS properties", "without a value"),
        ("'a' AS body, map('KEYS', 'b') AS properties", "reserved"),
        ("'a' AS body, map('a', '') AS properties", "blank"),
        ("'a' AS body, concat('a', char(1)) AS tags", "control"),
    ],
)
@pytest.mark.usefixtures("writer")
def test_rows_that_cannot_be_messages_are_counted_and_nothing_stays(
    store: Store, spark: Any, column: str, problem: str
) -> None:
    config = store.config.replace(max_message_size_bytes=100, max_properties_size_bytes=100)
    producer = TransactionProducer(Store.open(store.location, config), producer_group=GROUP)
    before, frame = table_versions(store), rows(spark, 3, *_split(column))

    with pytest.raises(InvalidMessageError, match=problem.replace("|", r"\|")):
        prepared(producer, frame)

    assert table_versions(store) == before
    assert half_files(store) == set()


@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "Pacific/Kiritimati", "America/New_York"])
@pytest.mark.parametrize(("year_1_plus_us", "is_refused"), [(-1, True), (0, False)])
@pytest.mark.usefixtures("writer")
def test_time_that_python_does_not_have_is_refused_in_every_zone(  # noqa: PLR0913
    store: Store,
    producer: TransactionProducer,
    spark: Any,
    zone: str,
    year_1_plus_us: int,
    *,
    is_refused: bool,
) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        moment = f"timestamp_micros({YEAR_1_US + year_1_plus_us})"
        frame = rows(spark, 2, "'a' AS body", f"{moment} AS deliver_timestamp")
        if is_refused:
            with pytest.raises(InvalidMessageError, match=r"before year 1 in UTC: 2 rows"):
                prepared(producer, frame)
            return
        prepared(producer, frame).commit()
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)
    publish(store)
    DelayService(store).run_once()
    publish(store)
    assert bodies(store) == [b"a", b"a"]


def test_sentinel_of_another_program_is_refused_in_a_zone_east_of_utc(
    producer: TransactionProducer, spark: Any
) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        column = "timestamp'0001-01-01 00:00:00' AS deliver_timestamp"
        with pytest.raises(InvalidMessageError, match="before year 1"):
            prepared(producer, rows(spark, 1, "'a' AS body", column))
    finally:
        spark.conf.set("spark.sql.session.timeZone", before)


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (f"{NO_UTF8} AS keys", "keys, tags or sharding_key not valid UTF-8"),
        (f"{NO_UTF8} AS tags", "keys, tags or sharding_key not valid UTF-8"),
        (f"{NO_UTF8} AS sharding_key", "keys, tags or sharding_key not valid UTF-8"),
        (f"map('a', {NO_UTF8}) AS properties", "a property not valid UTF-8"),
        (f"map({NO_UTF8}, 'a') AS properties", "a property not valid UTF-8"),
    ],
)
@pytest.mark.usefixtures("writer")
def test_text_that_is_not_utf_8_is_refused_with_the_place_of_its_row(
    store: Store, producer: TransactionProducer, spark: Any, column: str, problem: str
) -> None:
    before = table_versions(store)

    with pytest.raises(InvalidMessageError) as told:
        prepared(producer, rows(spark, 4, "'a' AS body", column))

    assert f"{problem}: 1 rows, first row 1 of partition 1" in str(told.value)
    assert "secret" not in str(told.value)
    assert table_versions(store) == before


# --- with a key -----------------------------------------------------------------------------------


def keyed(producer: TransactionProducer, *frames: Any) -> Transaction:
    moment = datetime.now(UTC).replace(minute=0, second=0, microsecond=0)
    transaction = producer.begin_transaction(idempotency_key="a job", key_timestamp=moment)
    transaction.send(PAID)
    for frame in frames:
        transaction.send_dataframe(frame, topic="order-paid")
    return transaction


@pytest.mark.parametrize("partitions", [1, 3])
def test_retry_with_the_same_rows_joins_the_first_try(
    store: Store, producer: TransactionProducer, spark: Any, partitions: int
) -> None:
    keyed(producer, rows(spark, 20)).prepare()
    before, files = table_versions(store), half_files(store)

    again = keyed(producer, rows(spark, 20).repartition(partitions))
    again.prepare()

    assert (table_versions(store), half_files(store)) == (before, files)
    again.commit()
    publish(store)
    assert bodies(store) == sorted([*expected(20), b"paid"])


@pytest.mark.parametrize(
    ("count", "columns", "difference"),
    [
        (20, ["encode(concat('other ', id), 'utf-8') AS body"], "DataFrame 0: values of its rows"),
        (19, [], "DataFrame 0: 20 rows there, 19 here"),
    ],
)
def test_retry_with_other_rows_is_told(  # noqa: PLR0913, PLR0917
    store: Store,
    producer: TransactionProducer,
    spark: Any,
    count: int,
    columns: list[str],
    difference: str,
) -> None:
    keyed(producer, rows(spark, 20)).prepare()
    before, files = table_versions(store), half_files(store)

    with pytest.raises(DifferentMessagesError, match=difference):
        keyed(producer, rows(spark, count, *columns)).prepare()

    assert (table_versions(store), half_files(store)) == (before, files)


def test_two_tries_at_once_of_a_dataframe_are_one_transaction(
    store: Store, producer: TransactionProducer, spark: Any
) -> None:
    with TransactionProducer(store, producer_group=GROUP) as other:
        late, quick = keyed(producer, rows(spark, 5)), keyed(other, rows(spark, 5))
        with before_commit(quick.prepare, table="half"):
            late.prepare()
        late.commit()
        quick.commit()
    publish(store)

    assert bodies(store) == sorted([*expected(5), b"paid"])


def _split(columns: str) -> list[str]:
    body, *rest = columns.split(" AS body, ")
    given = [one for each in rest for one in each.split(" AS delay_s, ")]
    if len(given) > 1:
        given[0] += " AS delay_s"
    return [f"{body} AS body", *given] if given else [columns]


@pytest.mark.usefixtures("writer")
def test_empty_dataframe_is_no_transaction(
    store: Store, producer: TransactionProducer, spark: Any
) -> None:
    before = table_versions(store)

    with pytest.raises(InvalidMessageError, match="no message"):
        prepared(producer, rows(spark, 0))

    assert table_versions(store) == before


def test_empty_dataframe_beside_messages_adds_nothing(
    store: Store, producer: TransactionProducer, spark: Any
) -> None:
    transaction = producer.begin_transaction()
    transaction.send(PAID)
    transaction.send_dataframe(rows(spark, 0), topic="order-paid")
    transaction.prepare()
    transaction.commit()
    publish(store)

    assert bodies(store) == [b"paid"]


@pytest.mark.parametrize("topic", ["a/b", "", "RETRY_x"])
def test_topic_is_checked_at_once(producer: TransactionProducer, spark: Any, topic: str) -> None:
    with pytest.raises(InvalidNameError):
        producer.begin_transaction().send_dataframe(rows(spark, 1), topic=topic)


def test_topic_that_differs_in_case_alone_is_refused(
    producer: TransactionProducer, spark: Any
) -> None:
    transaction = producer.begin_transaction()
    transaction.send(PAID)

    with pytest.raises(TopicConflictError):
        transaction.send_dataframe(rows(spark, 1), topic="Order-Paid")


def test_prepared_transaction_takes_no_more_rows(producer: TransactionProducer, spark: Any) -> None:
    transaction = prepared(producer, rows(spark, 1))

    with pytest.raises(AlreadyPreparedError):
        transaction.send_dataframe(rows(spark, 1), topic="order-paid")


# --- commits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_commit", [False, True])
def test_commit_without_an_answer_is_made_once(
    store: Store, producer: TransactionProducer, spark: Any, *, after_commit: bool
) -> None:
    with failing_commits(1, table="half", after_commit=after_commit):
        transaction = prepared(producer, rows(spark, 5))
    transaction.commit()
    publish(store)

    assert commits(store, "half") == 1
    assert bodies(store) == expected(5)


@pytest.mark.parametrize("frame_is_first", [False, True])
def test_dataframe_and_messages_of_other_threads_do_not_answer_for_each_other(
    store: Store, producer: TransactionProducer, spark: Any, *, frame_is_first: bool
) -> None:
    with producer.begin_transaction() as single, producer.begin_transaction() as several:
        single.send(PAID)
        several.send_dataframe(rows(spark, 2), topic="order-paid")
        first, second = (several, single) if frame_is_first else (single, several)
        with before_commit(second.prepare, table="half"):
            first.prepare()
        single.commit()
        several.commit()
    publish(store)

    assert bodies(store) == sorted([*expected(2), b"paid"])


def _overtake(rival: threading.Thread) -> None:
    rival.start()
    # It may have to wait for the other; then this one goes first.
    rival.join(OVERTAKE_S)


def test_two_dataframes_at_once_are_both_durable(
    store: Store, producer: TransactionProducer, spark: Any
) -> None:
    with producer.begin_transaction() as one, producer.begin_transaction() as other:
        one.send_dataframe(rows(spark, 2), topic="order-paid")
        other.send_dataframe(rows(spark, 2), topic="order-paid")
        rival = threading.Thread(target=other.prepare)
        with before_commit(lambda: _overtake(rival), table="half"):
            one.prepare()
        rival.join()
        one.commit()
        other.commit()
    publish(store)

    assert bodies(store) == sorted(2 * expected(2))


@pytest.mark.usefixtures("writer")
def test_prepare_that_failed_may_be_tried_again(
    store: Store, producer: TransactionProducer, spark: Any
) -> None:
    transaction = producer.begin_transaction()
    transaction.send_dataframe(rows(spark, 5), topic="order-paid")
    full = OSError(errno.ENOSPC, "No space left")
    with failing_commits(1, error=full), pytest.raises(StoreFullError):
        transaction.prepare()

    transaction.prepare()
    transaction.commit()
    publish(store)

    assert bodies(store) == expected(5)


def test_keyed_commit_without_an_answer_keeps_the_files_that_it_added(
    store: Store, producer: TransactionProducer, spark: Any
) -> None:
    transaction = keyed(producer, rows(spark, 5))
    with failing_commits(1, table="half", after_commit=True):
        transaction.prepare()
    transaction.commit()
    publish(store)

    assert commits(store, "half") == 1
    assert bodies(store) == sorted([*expected(5), b"paid"])


@pytest.mark.usefixtures("writer")
def test_error_of_the_users_own_code_is_raised_as_it_is(
    store: Store, producer: TransactionProducer, spark: Any
) -> None:
    before, frame = (
        table_versions(store),
        rows(spark, 3, "string(raise_error('of the user')) AS body"),
    )

    with pytest.raises(Exception, match="of the user"):
        prepared(producer, frame)
    assert table_versions(store) == before
