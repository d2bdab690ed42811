from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.kit.reading import publish
from txmq.errors import (
    CheckpointCorruptError,
    CheckpointMismatchError,
    ConfigError,
    EnvironmentProblemError,
    InvalidFilterError,
    InvalidNameError,
    ReaderOvertakenError,
    TopicNotFoundError,
)
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.spark.streams import ConsumeFromWhere, Consumer
from txmq.store.store import Store

TOPIC = "order-paid"


def send(store: Store, *contents: bytes, commit: bool = True) -> None:
    with TransactionProducer(store, producer_group="orders-service") as producer:
        for body in contents:
            transaction = producer.begin_transaction()
            transaction.send(Message(TOPIC, body, tags="paid", properties={"a": "b"}))
            transaction.prepare()
            if commit:
                transaction.commit()
    publish(store)


def consumed(stream: Any, checkpoint: Path | str) -> list[bytes]:
    """What the stream holds now that this checkpoint has not seen."""
    seen: list[bytes] = []
    query = (
        stream.writeStream.foreachBatch(
            lambda batch, _: seen.extend(bytes(row["body"]) for row in batch.collect())
        )
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(seen)


def stream_of(store: Store, spark: Any, **options: Any) -> Any:
    return Consumer(store, consumer_group="billing").read_stream(TOPIC, spark=spark, **options)


def test_topic_is_a_plain_delta_stream(store: Store, spark: Any, tmp_path: Path) -> None:
    send(store, b"1")
    send(store, b"pending", commit=False)

    stream = spark.readStream.format("delta").load(store.topic_location(TOPIC))

    assert consumed(stream, tmp_path / "checkpoint") == [b"1"]


def test_group_goes_on_where_it_was(store: Store, spark: Any, tmp_path: Path) -> None:
    send(store, b"1", b"2")
    assert consumed(stream_of(store, spark), tmp_path / "checkpoint") == [b"1", b"2"]

    send(store, b"3")

    assert consumed(stream_of(store, spark), tmp_path / "checkpoint") == [b"3"]


def test_each_group_has_its_own_place(store: Store, spark: Any) -> None:
    send(store, b"1")

    for group in ("billing", "shipping"):
        consumer = Consumer(store, consumer_group=group)
        stream = consumer.read_stream(TOPIC, spark=spark)
        assert consumed(stream, consumer.checkpoint_location(TOPIC)) == [b"1"]


def test_new_group_may_begin_with_what_comes(store: Store, spark: Any, tmp_path: Path) -> None:
    send(store, b"old")
    seen: list[bytes] = []
    stream = stream_of(store, spark, from_where=ConsumeFromWhere.LAST_OFFSET)
    query = (
        stream.writeStream.foreachBatch(
            lambda batch, _: seen.extend(bytes(row["body"]) for row in batch.collect())
        )
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.processAllAvailable()

    send(store, b"new")
    query.processAllAvailable()
    query.stop()

    assert seen == [b"new"]


def test_compaction_and_removed_rows_are_no_news(store: Store, spark: Any, tmp_path: Path) -> None:
    for number in range(4):
        send(store, b"%d" % number)
    assert len(consumed(stream_of(store, spark), tmp_path / "checkpoint")) == 4

    send(store, b"new")
    DeltaTable(store.topic_location(TOPIC)).optimize.compact()
    # Another program that removes messages parks the topic: nothing new could come behind it.
    DeltaTable(store.topic_location(TOPIC)).delete("queue_offset = 0")

    assert consumed(stream_of(store, spark), tmp_path / "checkpoint") == [b"new"]


def test_rows_have_all_that_was_sent(store: Store, spark: Any) -> None:
    send(store, b"1")

    [row] = spark.read.format("delta").load(store.topic_location(TOPIC)).collect()

    assert (row["tags"], row["properties"], row["topic"]) == ("paid", {"a": "b"}, TOPIC)
    assert row["message_id"] == f"{row['transaction_id']}:0"


def test_topic_before_its_first_message_is_told(store: Store, spark: Any) -> None:
    send(store, b"pending", commit=False)

    with pytest.raises(TopicNotFoundError, match="first message that was committed"):
        stream_of(store, spark)


@pytest.mark.parametrize("group", ["", "a b", "../x", None, 7])
def test_name_of_the_group_is_checked(store: Store, group: Any) -> None:
    with pytest.raises(InvalidNameError):
        Consumer(store, consumer_group=group)


@pytest.mark.parametrize("topic", ["../half", "", "a/b"])
def test_name_of_the_topic_is_checked(store: Store, spark: Any, topic: str) -> None:
    consumer = Consumer(store, consumer_group="billing")

    with pytest.raises(InvalidNameError):
        consumer.read_stream(topic, spark=spark)
    with pytest.raises(InvalidNameError):
        consumer.checkpoint_location(topic)


def test_stream_of_several_topics_has_a_filter_for_each(
    store: Store, spark: Any, tmp_path: Path
) -> None:
    send(store, b"1")
    with TransactionProducer(store, producer_group="orders-service") as producer:
        producer.send(
            [Message("order-sent", b"2", tags="a"), Message("order-sent", b"3", tags="b")]
        )
    publish(store)
    consumer = Consumer(store, consumer_group="billing")
    topics = {TOPIC: "*", "order-sent": "sql:TAGS = 'b'"}
    stream = consumer.read_stream(topics, spark=spark)

    assert consumed(stream, tmp_path / "checkpoint") == [b"1", b"3"]


def test_new_checkpoint_may_begin_at_an_offset_or_a_moment(
    store: Store, spark: Any, tmp_path: Path
) -> None:
    with TransactionProducer(store, producer_group="orders-service") as producer:
        producer.send([Message(TOPIC, b"%d" % number) for number in range(3)], queue_id=0)
    publish(store)
    by_offset = stream_of(store, spark, from_where={TOPIC: {0: 2}})
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    by_moment = stream_of(
        store, spark, from_where=ConsumeFromWhere.TIMESTAMP, from_timestamp=long_ago
    )
    later = stream_of(
        store, spark, from_where=ConsumeFromWhere.TIMESTAMP,
        from_timestamp=long_ago.replace(year=2200),
    )  # fmt: skip

    assert consumed(by_offset, tmp_path / "offset") == [b"2"]
    assert consumed(by_moment, tmp_path / "moment") == [b"0", b"1", b"2"]
    assert consumed(later, tmp_path / "later") == []


def test_checkpoint_has_no_place_at_the_last_offset_before_its_first_message(
    store: Store, spark: Any, tmp_path: Path
) -> None:
    send(store, b"old")

    def at_the_end() -> list[bytes]:
        stream = stream_of(store, spark, from_where=ConsumeFromWhere.LAST_OFFSET)
        return consumed(stream, tmp_path / "end")

    def since(moment: datetime) -> list[bytes]:
        stream = stream_of(
            store, spark, from_where=ConsumeFromWhere.TIMESTAMP, from_timestamp=moment
        )
        return consumed(stream, tmp_path / "moment")

    (old,) = Consumer(store, consumer_group="billing").read(TOPIC, spark=spark).collect()
    made = old["store_timestamp"].astimezone(UTC) + timedelta(milliseconds=1)
    assert at_the_end() == since(made) == []

    send(store, b"between")

    assert at_the_end() == []
    assert since(made) == [b"between"]


def test_moment_is_a_filter_at_each_start(store: Store, spark: Any, tmp_path: Path) -> None:
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)

    def since(moment: datetime) -> list[bytes]:
        stream = stream_of(
            store, spark, from_where=ConsumeFromWhere.TIMESTAMP, from_timestamp=moment
        )
        return consumed(stream, tmp_path / "checkpoint")

    send(store, b"1")
    assert since(long_ago) == [b"1"]
    send(store, b"2")
    assert since(long_ago.replace(year=2200)) == []
    send(store, b"3")

    assert since(long_ago) == [b"3"]


@pytest.mark.parametrize("text", ["a || ", "sql:1 = ", "sql:a = '", "a\x00", "sql:" + "(" * 5000])
def test_bad_filter_never_reaches_spark(store: Store, spark: Any, text: str) -> None:
    send(store, b"1")
    with pytest.raises(InvalidFilterError):
        Consumer(store, consumer_group="billing").read_stream({TOPIC: text}, spark=spark)


def started(consumer: Consumer, topic: str, spark: Any, checkpoint: Path) -> Any:
    return (
        consumer.read_stream(topic, spark=spark)
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )


def test_what_stops_a_stream_is_an_error_of_ours(store: Store, spark: Any, tmp_path: Path) -> None:
    consumer, checkpoint = Consumer(store, consumer_group="billing"), tmp_path / "checkpoint"
    send(store, b"1")
    with TransactionProducer(store, producer_group="orders-service") as producer:
        producer.send(Message("order-sent", b"2"))
    publish(store)
    assert consumer.wait(started(consumer, TOPIC, spark, checkpoint))
    with pytest.raises(CheckpointMismatchError):
        consumer.wait(started(consumer, "order-sent", spark, checkpoint))
    (checkpoint / "metadata").unlink()
    with pytest.raises(CheckpointCorruptError), consumer.stream_errors():
        started(consumer, TOPIC, spark, checkpoint)


@pytest.mark.parametrize("setting", ["ignoreMissingFiles", "ignoreCorruptFiles"])
def test_session_that_passes_over_lost_files_reads_no_topic(
    store: Store, spark: Any, setting: str
) -> None:
    send(store, b"1")
    consumer = Consumer(store, consumer_group="billing")
    spark.conf.set(f"spark.sql.files.{setting}", "true")
    try:
        for read in (consumer.read_stream, consumer.read):
            with pytest.raises(EnvironmentProblemError, match=setting):
                read(TOPIC, spark=spark)
    finally:
        spark.conf.unset(f"spark.sql.files.{setting}")


def test_stream_that_clean_up_overtook_says_so(store: Store, spark: Any, tmp_path: Path) -> None:
    consumer, checkpoint = Consumer(store, consumer_group="billing"), tmp_path / "checkpoint"
    send(store, b"1")
    consumer.wait(started(consumer, TOPIC, spark, checkpoint))
    for number in range(3):
        send(store, b"%d" % number)
    table = store.tables.table_at(f"topics/{TOPIC}")
    table.writer.checkpoint()
    for version in range(1, table.version):
        Path(table.location, "_delta_log", f"{version:020}.json").unlink()
    with pytest.raises(ReaderOvertakenError, match="new checkpoint"):
        consumer.wait(started(consumer, TOPIC, spark, checkpoint))


def test_topic_is_read_as_it_was(store: Store, spark: Any) -> None:
    consumer = Consumer(store, consumer_group="billing")
    send(store, b"1")
    then = store.tables.table_at(f"topics/{TOPIC}").version
    send(store, b"2")

    def bodies_of(**moment: Any) -> list[bytes]:
        rows = consumer.read({TOPIC: "paid"}, spark=spark, **moment).collect()
        return sorted(bytes(row["body"]) for row in rows)

    assert bodies_of() == [b"1", b"2"]
    assert bodies_of(version=then) == [b"1"]
    assert bodies_of(as_of=datetime.now(UTC)) == [b"1", b"2"]
    for bad in ({"version": -1}, {"as_of": datetime(2020, 1, 1)}, {"version": 1, "as_of": 1}):  # noqa: DTZ001
        with pytest.raises(ConfigError):
            bodies_of(**bad)
