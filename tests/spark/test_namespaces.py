"""Tenants that share a store: the same names, and nobody sees the other (R94)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from tests.kit.reading import bodies, publish, rows_of, topic_rows
from tests.oracle.tables import NAME
from txmq.check.recheck import RecheckJob, all_listeners
from txmq.errors import (
    InvalidBodyError,
    InvalidMessageError,
    InvalidNameError,
    ProducerGroupMismatchError,
    TopicConflictError,
    TopicKindError,
    TopicNotFoundError,
)
from txmq.message.message import LocalTransactionState, Message
from txmq.message.names import TRACE_TOPIC
from txmq.ops.admin.messages import MessageQuery
from txmq.ops.admin.status import Admin
from txmq.ops.admin.topics import Topics
from txmq.ops.cli.app import app
from txmq.producer.producer import TransactionProducer
from txmq.producer.trace import TraceHook
from txmq.publish.delay_service import DelayService
from txmq.publish.publisher import Publisher
from txmq.spark.streams import Consumer
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.store.topic_settings import TopicKind
from txmq.testing import ManualClock
from txmq.verify import marker_places, verify

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from txmq.listeners.protocol import HalfMessage

COMMIT = LocalTransactionState.COMMIT


class Journal:
    """Answers COMMIT and remembers what it was asked."""

    def __init__(self) -> None:
        self.executed: list[HalfMessage] = []
        self.asked: list[HalfMessage] = []

    def execute_local_transaction(self, message: HalfMessage, argument: object) -> Any:
        self.executed.append(message)
        return argument

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        self.asked.append(message)
        return COMMIT


def sent(store: Store, namespace: str | None, body: bytes, **options: Any) -> str:
    with TransactionProducer(
        store, producer_group="orders", namespace=namespace, **options
    ) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("paid", body))
        transaction.prepare()
        transaction.commit()
        return transaction.id


def test_the_same_topic_of_two_tenants_is_two_topics(store: Store) -> None:
    for namespace in ("red", "blue", None):
        sent(store, namespace, f"of {namespace}".encode())

    publish(store)

    assert store.topics() == ["blue.paid", "paid", "red.paid"]
    assert bodies(store, "red.paid") == [b"of red"]
    assert bodies(store, "blue.paid") == [b"of blue"]
    assert bodies(store, "paid") == [b"of None"]
    assert verify(store.location).is_txmq_clean


def test_what_is_stored_carries_the_namespace(store: Store) -> None:
    sent(store, "red", b"1")

    publish(store)

    (half,) = rows_of(f"{store.location}/half")
    assert (half["producer_group"], half["real_topic"]) == ("red.orders", "red.paid")
    (claim,) = rows_of(f"{store.location}/op")
    assert claim["producer_group"] == "red.orders"
    (row,) = topic_rows(store, "red.paid")
    assert (row["producer_group"], row["topic"]) == ("red.orders", "red.paid")


def test_a_listener_that_executes_sees_its_own_names(store: Store) -> None:
    listener = Journal()
    with TransactionProducer(
        store, producer_group="orders", namespace="red", listener=listener
    ) as producer:
        producer.send_message_in_transaction(Message("paid", b"1"), COMMIT)

    (seen,) = listener.executed
    assert (seen.producer_group, seen.topic) == ("orders", "paid")


@pytest.mark.parametrize("name", ["red%orders", "red.orders"])
def test_the_check_finds_the_listener_of_a_tenant(store: Store, name: str) -> None:
    clock = ManualClock()
    left_open(store, clock, "red")
    left_open(store, clock, "blue")
    red, blue = Journal(), Journal()

    job = RecheckJob(
        store, listeners={name: red, "blue%orders": blue}, clock=later_than_files(clock)
    )
    assert job.run_once().checks.committed == 2

    for listener in (red, blue):
        (asked,) = listener.asked
        assert (asked.producer_group, asked.topic) == ("orders", "paid")
    publish(store)
    assert bodies(store, "red.paid") == [b"open in red"]
    assert bodies(store, "blue.paid") == [b"open in blue"]


def test_the_listener_of_the_bare_group_is_not_asked_about_tenants(store: Store) -> None:
    clock = ManualClock()
    left_open(store, clock, "red")
    bare = Journal()

    result = RecheckJob(store, listeners={"orders": bare}, clock=later_than_files(clock)).run_once()

    assert bare.asked == []
    assert result.checks.unheard_groups == {"red.orders"}


class SetJournal:
    """Answers for a set, and remembers the names that it saw."""

    def __init__(self) -> None:
        self.names: list[tuple[str, str]] = []

    def check_local_transactions_arrow(self, heads: Any) -> Any:
        for head in heads.to_pylist():
            self.names.append((head["producer_group"], head["topic"]))
        states = ["COMMIT"] * heads.num_rows
        return heads.select(["transaction_id"]).append_column("state", [states])


def test_a_set_listener_sees_its_own_names(store: Store) -> None:
    clock = ManualClock()
    left_open(store, clock, "red")
    listener = SetJournal()

    RecheckJob(store, listeners={"red%orders": listener}, clock=later_than_files(clock)).run_once()

    assert listener.names == [("orders", "paid")]


def test_live_producers_of_a_tenant_answer_its_checks(store: Store) -> None:
    clock = ManualClock()
    left_open(store, clock, "red")
    listener = Journal()
    with TransactionProducer(
        store, producer_group="orders", namespace="red", listener=listener
    ) as producer:
        producer.answer_checks()

        result = RecheckJob(store, clock=later_than_files(clock)).run_once()

    assert result.checks.committed == 1
    assert [half.topic for half in listener.asked] == ["paid"]


def test_a_producer_of_one_tenant_ends_no_transaction_of_another(store: Store) -> None:
    own_id = left_open(store, ManualClock(), "red")

    with (
        TransactionProducer(store, producer_group="orders", namespace="blue") as producer,
        pytest.raises(ProducerGroupMismatchError),
    ):
        producer.end_transaction(own_id, COMMIT)


def test_two_tenants_whose_names_differ_in_case_alone_share_no_topic(store: Store) -> None:
    sent(store, "red", b"1")
    publish(store)

    with pytest.raises(TopicConflictError):
        sent(store, "RED", b"2")


def test_an_idempotency_key_belongs_to_its_tenant(store: Store, clock: ManualClock) -> None:
    from txmq.ground.clock import timestamp

    ids = set()
    for namespace in ("red", "blue"):
        with TransactionProducer(
            store, producer_group="orders", namespace=namespace, clock=clock
        ) as producer:
            made = producer.begin_transaction(
                idempotency_key="job", key_timestamp=timestamp(clock.now_ms())
            )
            ids.add(made.id)

    assert len(ids) == 2


def test_consumers_of_two_tenants_share_no_place(store: Store) -> None:
    red = Consumer(store, consumer_group="billing", namespace="red")
    bare = Consumer(store, consumer_group="billing")

    assert red.checkpoint_location("paid") != bare.checkpoint_location("paid")
    assert red.checkpoint_location("paid").endswith("/consumers/red.billing/red.paid")
    assert red.checkpoint_location("RETRY_billing").endswith("/RETRY_red.billing")


def test_a_consumer_cannot_name_the_topic_of_another_tenant(store: Store) -> None:
    red = Consumer(store, consumer_group="billing", namespace="red")

    with pytest.raises(InvalidNameError):
        red.checkpoint_location("blue.paid")


def test_status_counts_topics_of_tenants(store: Store) -> None:
    sent(store, "red", b"1")
    publish(store)

    assert Admin(store).status().messages["red.paid"] == 1


def left_open(store: Store, clock: ManualClock, namespace: str) -> str:
    with TransactionProducer(
        store, producer_group="orders", namespace=namespace, clock=clock
    ) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("paid", f"open in {namespace}".encode()))
        transaction.prepare()
        return transaction.id


def later_than_files(clock: ManualClock) -> ManualClock:
    """Halves become due by the times of their files, which are the machine's."""
    from tests.kit.check_world import wall_ms

    return ManualClock(max(clock.now_ms(), wall_ms()) + 60_000)


# --- ordinary and asynchronous sends ----------------------------------------------------------


def test_ordinary_messages_stay_in_their_namespace(store: Store) -> None:
    with TransactionProducer(store, producer_group="orders", namespace="red") as producer:
        producer.send([Message("paid", b"1"), Message("paid", b"2")])

    publish(store)

    assert store.topics() == ["red.paid"]
    assert bodies(store, "red.paid") == [b"1", b"2"]


def test_asynchronous_transactions_stay_in_their_namespace(store: Store) -> None:
    listener = Journal()
    with TransactionProducer(
        store, producer_group="orders", namespace="red", listener=listener
    ) as producer:
        producer.send_message_in_transaction_async(Message("paid", b"1"), COMMIT).result(30)

    publish(store)

    (seen,) = listener.executed
    assert (seen.producer_group, seen.topic) == ("orders", "paid")
    assert bodies(store, "red.paid") == [b"1"]


def test_a_delayed_message_of_a_tenant_becomes_visible_in_its_topic(
    store: Store, clock: ManualClock
) -> None:
    with TransactionProducer(
        store, producer_group="orders", namespace="red", clock=clock
    ) as producer:
        producer.send(Message("paid", b"later", delay_s=1))
    Publisher(store, clock=clock).run_once()
    clock.advance(2)

    DelayService(store, clock=clock).run_once()
    Publisher(store, clock=clock).run_once()

    assert bodies(store, "red.paid") == [b"later"]
    assert verify(store.location).is_txmq_clean


def test_a_delayed_message_is_recalled_by_its_tenant_alone(store: Store) -> None:
    with TransactionProducer(store, producer_group="orders", namespace="red") as red:
        (own_id,) = red.send(Message("paid", b"later", delay_s=60)).message_ids
        with (
            TransactionProducer(store, producer_group="orders", namespace="blue") as blue,
            pytest.raises(ProducerGroupMismatchError),
        ):
            blue.recall(own_id)

        red.recall(own_id)


def test_a_selector_of_queues_sees_the_topic_as_it_was_written(store: Store) -> None:
    seen = []

    def first(message: Message, _: int) -> int:
        seen.append(message.topic)
        return 0

    with TransactionProducer(store, producer_group="orders", namespace="red") as producer:
        producer.send(Message("paid", b"1"), queue_selector=first)

    assert seen == ["paid"]


# --- Spark ------------------------------------------------------------------------------------


def test_a_consumer_of_a_tenant_reads_its_own_topic_by_its_own_names(
    store: Store, spark: SparkSession, tmp_path: Path
) -> None:
    for namespace in ("red", "blue"):
        sent(store, namespace, f"of {namespace}".encode())
    publish(store)
    red = Consumer(store, consumer_group="billing", namespace="red")
    target = str(tmp_path / "read")

    stream = red.read_stream("paid", spark=spark)
    query = (
        stream.writeStream.format("delta")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(target)
    )
    query.awaitTermination()

    (row,) = rows_of(target)
    assert (row["body"], row["topic"], row["producer_group"]) == (b"of red", "paid", "orders")
    assert list(row) == stream.columns


def test_both_engines_read_the_topics_of_tenants(store: Store) -> None:
    for namespace in ("red", "blue"):
        sent(store, namespace, b"1")
    publish(store)

    report = verify(store.location)

    assert report.is_txmq_clean
    assert report.unread == ()
    # The engine of Spark takes half a minute; which names it reads is said by this.
    assert all(NAME.fullmatch(topic) for topic in store.topics())


# --- settings and commands --------------------------------------------------------------------


def test_settings_name_the_listener_of_a_tenant() -> None:
    config = Config(listeners={"red%orders": {"class": "txmq:DeltaListener", "table": "/lake/t"}})

    assert list(all_listeners(config, None)) == ["red.orders"]


def test_a_listener_that_is_passed_in_goes_before_that_of_the_settings() -> None:
    config = Config(listeners={"red%orders": {"class": "txmq:DeltaListener", "table": "/lake/t"}})
    own = Journal()

    assert all_listeners(config, {"red%orders": own}) == {"red.orders": own}


@pytest.mark.parametrize("group", ["red%orders", "red.orders"])
def test_markers_of_a_tenant_are_compared_by_its_stored_name(group: str) -> None:
    assert list(marker_places([f"{group}=delta:/lake/orders"])) == ["red.orders"]


@pytest.mark.parametrize("group", ["red%orders", "red.orders"])
def test_commands_show_and_take_names_as_rocketmq_writes_them(store: Store, group: str) -> None:
    sent(store, "red", b"1")
    left_open(store, ManualClock(), "red")
    left_open(store, ManualClock(), "blue")
    publish(store)

    status = CliRunner().invoke(app, ["status", store.location])
    listed = CliRunner().invoke(app, ["open", store.location, "--group", group])

    assert "red%paid" in status.stdout
    assert "red%orders" in listed.stdout
    assert "blue%orders" not in listed.stdout


# --- settings of topics -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["red%paid", "red.paid"])
def test_an_operator_makes_and_alters_the_topic_of_a_tenant(store: Store, name: str) -> None:
    topics = Topics(store)
    topics.create(name, kind=TopicKind.TRANSACTION, queue_nums=2)
    topics.create("paid", queue_nums=5)

    with (
        TransactionProducer(store, producer_group="orders", namespace="red") as producer,
        pytest.raises(TopicKindError, match=r"red\.paid"),
    ):
        producer.send(Message("paid", b"1"))
    sent(store, "red", b"1")
    publish(store)

    assert bodies(store, "red.paid") == [b"1"]
    assert topics.describe(name).summary.settings.queue_nums == 2
    assert topics.alter(name, queue_nums=3).queue_nums == 3
    listed = CliRunner().invoke(app, ["topics", "list", store.location])
    assert "red%paid" in listed.stdout


@pytest.mark.parametrize("name", ["RETRY_red.x", "red.RETRY_x", "red%con", "a%b%c", ".paid", 1])
def test_an_operator_makes_no_topic_of_a_reserved_or_bad_name(store: Store, name: Any) -> None:
    with pytest.raises(InvalidNameError):
        Topics(store).create(name)


def test_a_queue_of_a_tenant_is_chosen_among_its_own(store: Store) -> None:
    Topics(store).create("red%paid", queue_nums=2)
    with TransactionProducer(store, producer_group="orders", namespace="red") as producer:
        producer.send(Message("paid", b"1"), queue_id=1)
        with pytest.raises(InvalidMessageError, match="queue_id"):
            producer.send(Message("paid", b"1"), queue_id=2)


def test_topics_of_txmq_itself_are_made_where_others_are_not(store: Store) -> None:
    store.config = store.config.replace(auto_create_topic_enable=False)
    Topics(store).create("paid")
    with (
        TraceHook(store) as trace,
        TransactionProducer(store, producer_group="orders", hooks=[trace]) as producer,
    ):
        producer.send(Message("paid", b"1"))
        with pytest.raises(TopicNotFoundError):
            producer.send(Message("unknown", b"1"))
    publish(store)

    assert trace.dropped == 0
    assert len(topic_rows(store, TRACE_TOPIC)) == 1


def test_a_typed_topic_of_a_tenant_checks_its_own_bodies(store: Store) -> None:
    field = {"name": "order_number", "type": "long"}
    schema = {"type": "record", "name": "Paid", "fields": [field]}
    Topics(store).create("red%paid", body={"encoding": "json", "schema": schema})
    with TransactionProducer(store, producer_group="orders", namespace="red") as producer:
        with pytest.raises(InvalidBodyError):
            producer.send(Message("paid", b"{}"))
        (own_id,) = producer.send(Message("paid", b'{"order_number": 7}')).message_ids
    sent(store, None, b"any bytes")
    publish(store)

    (row,) = topic_rows(store, "red.paid")
    assert row["order_number"] == 7
    assert MessageQuery(store).by_id(own_id, with_body=True).body == b'{"order_number": 7}'
    assert bodies(store, "paid") == [b"any bytes"]
