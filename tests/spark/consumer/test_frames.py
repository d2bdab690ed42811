"""Members of a group whose handler gets DataFrames: ranges, filters, failures, other members."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.delay_world import DelayWorld
from tests.kit.reading import publish, wait_until
from txmq.consumer.handlers import ConsumeStatus
from txmq.consumer.pull import PullConsumer
from txmq.consumer.push import ConsumeResult
from txmq.errors import EnvironmentProblemError, MessagesExpiredError
from txmq.message.message import Message
from txmq.ops.admin.erasure import Erasure
from txmq.ops.admin.groups import ConsumerGroups
from txmq.producer.producer import TransactionProducer
from txmq.spark.members import RangeReader, SparkBatches, TopicFrames
from txmq.spark.streams import ConsumeFromWhere, Consumer
from txmq.store.store import Store
from txmq.store.topic import remove_messages

TOPIC, GROUP = "order-paid", "billing"


class Seen:
    """A handler that keeps the bodies of each batch; bad ones make it fail."""

    def __init__(self, *bad: bytes) -> None:
        self.bad, self.batches = set(bad), list[list[bytes]]()

    def __call__(self, rows: Any) -> None:
        bodies = sorted(bytes(row["body"]) for row in rows.select("body").collect())
        if self.bad & set(bodies):
            problem = "no such order"
            raise ValueError(problem)
        self.batches.append(bodies)

    @property
    def bodies(self) -> list[bytes]:
        return sorted(body for batch in self.batches for body in batch)


def send(store: Store, *bodies: bytes, topic: str = TOPIC, **kwargs: Any) -> None:
    with TransactionProducer(store, producer_group="orders-service") as producer:
        producer.send([Message(topic, body, **kwargs) for body in bodies])
    publish(store)


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%03d" % number for number in range(first, first + count)]


Subscribe = Callable[..., SparkBatches]


@pytest.fixture
def subscribe(store: Store, spark: Any) -> Iterator[Subscribe]:
    made: list[SparkBatches] = []

    def subscribed(handler: Any, topics: Any = TOPIC, **options: Any) -> SparkBatches:
        consumer = Consumer(store, consumer_group=GROUP)
        made.append(consumer.subscribe(topics, handler, spark=spark, **options))
        return made[-1]

    yield subscribed
    for batches in made:
        batches.close()


def test_all_that_is_visible_comes_once(store: Store, subscribe: Subscribe) -> None:
    send(store, *numbered(30))
    seen = Seen()
    batches = subscribe(seen)

    assert batches.run_once() == ConsumeResult(consumed=30)
    assert seen.bodies == numbered(30)
    assert batches.run_once() == ConsumeResult()


def test_batches_are_no_larger_than_asked_for(store: Store, subscribe: Subscribe) -> None:
    send(store, *numbered(25))
    seen = Seen()
    subscribe(seen, max_messages=10).run_once()

    assert [len(batch) for batch in seen.batches] == [10, 10, 5]
    assert seen.bodies == numbered(25)


def test_group_goes_on_where_a_pull_member_stopped(store: Store, subscribe: Subscribe) -> None:
    send(store, *numbered(10))
    with PullConsumer(store, consumer_group=GROUP, topics=TOPIC) as pull:
        first = sorted(message.body for message in pull.poll(4))
        pull.commit()
    seen = Seen()
    subscribe(seen).run_once()

    assert sorted([*first, *seen.bodies]) == numbered(10)


def test_spark_and_pull_members_share_the_queues(store: Store, subscribe: Subscribe) -> None:
    seen = Seen()
    batches = subscribe(seen)
    with PullConsumer(store, consumer_group=GROUP, topics=TOPIC) as pull:
        batches.run_once()
        pull.poll(1, timeout_s=0.5)
        batches.run_once()
        send(store, *numbered(40))
        pulled = [message.body for message in pull.poll(100, timeout_s=5.0)]
        batches.run_once()

        assert pulled
        assert seen.bodies
        assert sorted([*pulled, *seen.bodies]) == numbered(40)


def test_filter_is_a_column_and_what_it_holds_back_is_consumed(
    store: Store, subscribe: Subscribe
) -> None:
    send(store, b"paid", tags="paid")
    send(store, b"lost", tags="lost")
    seen = Seen()
    batches = subscribe(seen, {TOPIC: "paid || sent"})

    assert batches.run_once().consumed == 2
    assert seen.bodies == [b"paid"]


def test_erased_messages_are_passed_over_by_batches_streams_and_tables(
    store: Store, subscribe: Subscribe, spark: Any, tmp_path: Path
) -> None:
    send(store, b"kept", properties={"a": "b"})
    send(store, b"of a person", keys="customer-7")
    consumer = Consumer(store, consumer_group=GROUP)
    stream, seen = consumer.read_stream(TOPIC, spark=spark), Seen()
    batches = subscribe(seen)
    Erasure(store, "customer-7").apply(reason="asked")

    assert batches.run_once().consumed == 2
    assert [bytes(row["body"]) for row in consumer.read(TOPIC, spark=spark).collect()] == [b"kept"]
    query = (
        stream.writeStream.foreachBatch(lambda rows, _: seen(rows))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert seen.bodies == [b"kept", b"kept"]


def test_several_topics_come_in_one_dataframe(store: Store, subscribe: Subscribe) -> None:
    send(store, b"1")
    send(store, b"2", topic="order-sent")
    seen = Seen()
    subscribe(seen, [TOPIC, "order-sent"]).run_once()

    assert seen.batches == [[b"1", b"2"]]


def test_bad_message_is_sent_back_and_holds_up_nobody(store: Store, subscribe: Subscribe) -> None:
    send(store, *numbered(16))
    seen = Seen(b"005")
    result = subscribe(seen).run_once()

    assert result == ConsumeResult(consumed=16, sent_back=1)
    assert seen.bodies == [body for body in numbered(16) if body != b"005"]


def test_what_was_left_while_a_lease_was_over_comes_again(
    store: Store, subscribe: Subscribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(store, *numbered(16))
    for looks in (2, 3):
        seen = Seen(b"005")
        batches = subscribe(seen)
        answers = iter([True] * looks + [False])
        monkeypatch.setattr(RangeReader, "is_owned", lambda *_, own=answers: next(own, True))
        batches.run_once()
        batches.close()
        ConsumerGroups(store).reset_offsets(GROUP, TOPIC, ConsumeFromWhere.FIRST_OFFSET, apply=True)

        assert seen.bodies == [body for body in numbered(16) if body != b"005"]


def test_table_that_opens_while_a_queue_is_lost_is_not_handed_over(
    store: Store, subscribe: Subscribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(store, *numbered(4))
    seen = Seen()
    batches = subscribe(seen)
    dataframe, lost = TopicFrames.dataframe, list[bool]()

    def slow(*arguments: Any) -> Any:
        lost.append(True)
        return dataframe(*arguments)

    monkeypatch.setattr(TopicFrames, "dataframe", slow)
    monkeypatch.setattr(RangeReader, "is_owned", lambda *_: not lost)

    assert batches.run_batch() == ConsumeResult()
    assert seen.batches == []


def test_message_that_was_sent_back_comes_again(tmp_path: Path, spark: Any) -> None:
    world = DelayWorld(tmp_path)
    world.producer.send(Message(TOPIC, b"1"))
    world.publisher.run_once()
    seen = Seen(b"1")
    consumer = Consumer(world.store, consumer_group=GROUP)
    with consumer.subscribe(TOPIC, seen, spark=spark) as batches:
        assert batches.run_once().sent_back == 1
        seen.bad.clear()
        world.publisher.run_once()
        world.clock.advance(3600)
        world.service.run_once()
        world.publisher.run_once()
        batches.run_once()
    world.producer.close()

    assert seen.bodies == [b"1"]


def test_reconsume_later_is_a_failure_too(store: Store, subscribe: Subscribe) -> None:
    send(store, b"1", b"2")
    batches = subscribe(lambda _: ConsumeStatus.RECONSUME_LATER)

    assert batches.run_once() == ConsumeResult(consumed=2, sent_back=2)


def test_handler_that_always_fails_ends_the_run_and_its_messages_come_again(
    store: Store, subscribe: Subscribe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txmq.spark.members.FAILURES_MAX", 3)
    send(store, *numbered(64))
    seen = Seen(*numbered(64))
    batches = subscribe(seen)
    with pytest.raises(ValueError, match="no such order"):
        batches.run_once()
    seen.bad.clear()
    batches.run_once()

    assert seen.bodies == numbered(64)


def test_what_retention_took_is_told_when_all_else_is_read(
    store: Store, subscribe: Subscribe
) -> None:
    send(store, *numbered(4))
    seen = Seen()
    batches = subscribe(seen)
    table = store.tables.table_at(f"topics/{TOPIC}")
    remove_messages(table, table.files.all(), before=0, begin=table.version)
    send(store, *numbered(1, first=90), topic=TOPIC)
    with pytest.raises(MessagesExpiredError) as raised:
        batches.run_once()

    assert raised.value.missed >= 1


def test_member_whose_session_passes_over_lost_files_takes_nothing(
    store: Store, subscribe: Subscribe, spark: Any
) -> None:
    send(store, *numbered(3))
    seen = Seen()
    member = subscribe(seen)
    spark.conf.set("spark.sql.files.ignoreMissingFiles", "true")
    try:
        with pytest.raises(EnvironmentProblemError, match="ignoreMissingFiles"):
            member.run_once()
    finally:
        spark.conf.unset("spark.sql.files.ignoreMissingFiles")

    assert not seen.bodies
    assert member.run_once() == ConsumeResult(3)
    assert seen.bodies == numbered(3)


def test_it_runs_until_it_is_stopped(store: Store, subscribe: Subscribe) -> None:
    seen = Seen()
    handle = subscribe(seen).start()
    send(store, *numbered(5))
    wait_until(lambda: seen.bodies == numbered(5))
    handle.stop()

    assert handle.exception is None
    assert handle.total.consumed == 5


def test_new_group_may_begin_at_the_end(store: Store, subscribe: Subscribe) -> None:
    send(store, b"old")
    seen = Seen()
    batches = subscribe(seen, from_where=ConsumeFromWhere.LAST_OFFSET)
    send(store, b"new")
    batches.run_once()

    assert seen.bodies == [b"new"]
