"""Topics as operators see them, and what a producer makes of their settings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.bodies import GIFTLESS, ORDER, WITH_GIFT
from tests.kit.builders import table_versions
from tests.kit.reading import bodies, log_rows, topic_rows, wait_until
from txmq.errors import (
    ConfigError,
    InvalidMessageError,
    InvalidNameError,
    TopicConflictError,
    TopicExistsError,
    TopicInUseError,
    TopicKindError,
    TopicNotFoundError,
)
from txmq.ground.clock import timestamp
from txmq.ground.fail_points import FailPoint, arm
from txmq.maintenance.service import Maintenance
from txmq.message.message import Message
from txmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.ops.admin.topics import Topics
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.store.topic import body_schema_in, set_body_schema
from txmq.store.topic_settings import TopicKind, TopicSettings
from txmq.testing import START_MS, ManualClock, before_commit, failing_commits
from txmq.verify import verify

GROUP, TOPIC = "orders", "order-paid"
ORDERS = {"encoding": "json", "schema": ORDER}
NEVER_S = 1e9


@pytest.fixture
def topics(store: Store) -> Topics:
    return Topics(store)


@pytest.fixture
def producer(store: Store) -> Iterator[TransactionProducer]:
    with TransactionProducer(store, producer_group=GROUP) as made:
        yield made


def prepared(producer: TransactionProducer, *messages: Message) -> Transaction:
    transaction = producer.begin_transaction()
    for message in messages:
        transaction.send(message)
    transaction.prepare()
    return transaction


def send(producer: TransactionProducer, count: int = 1, topic: str = TOPIC) -> None:
    for number in range(count):
        prepared(producer, Message(topic, b"%d" % number)).commit()


def publish(store: Store) -> None:
    Publisher(store).run_once()


# --- create --------------------------------------------------------------------------------------


def test_created_topic_has_its_table_at_once(store: Store, topics: Topics) -> None:
    settings = topics.create(TOPIC, kind=TopicKind.TRANSACTION, queue_nums=3, reserved_time_h=24)

    assert settings == TopicSettings(TopicKind.TRANSACTION, 3, 24)
    assert store.topics() == [TOPIC]
    assert topic_rows(store, TOPIC) == []
    assert Topics(Store.open(store.location)).describe(TOPIC).summary.settings == settings


def test_topic_without_a_number_of_queues_has_the_default_of_the_store(topics: Topics) -> None:
    assert topics.create(TOPIC).queue_nums == Config().default_topic_queue_nums


def test_store_that_was_never_asked_for_settings_has_no_table_for_them(store: Store) -> None:
    assert "state/topics" not in store.tables.table_paths()
    assert Topics(store).all() == ()


def test_topic_that_is_there_is_not_created_again(
    store: Store, topics: Topics, producer: TransactionProducer
) -> None:
    topics.create(TOPIC)
    send(producer, topic="by-its-message")
    publish(store)
    before = table_versions(store)

    for name in (TOPIC, "by-its-message"):
        with pytest.raises(TopicExistsError, match="alter it"):
            topics.create(name)
    assert table_versions(store) == before


@pytest.mark.parametrize("name", ["ORDER-PAID", "By-its-message"])
def test_names_that_differ_only_in_case_are_refused(
    store: Store, topics: Topics, producer: TransactionProducer, name: str
) -> None:
    topics.create(TOPIC)
    send(producer, topic="by-its-message")
    publish(store)

    with pytest.raises(TopicConflictError, match="differs only in case"):
        topics.create(name)


@pytest.mark.parametrize(
    "name", [TRANS_CHECK_MAX_TIME_TOPIC, "RETRY_group", "SCHEDULE_TOPIC_XXXX", "rmq_sys_x"]
)
def test_system_topics_are_neither_created_nor_altered_nor_deleted(
    store: Store, topics: Topics, name: str
) -> None:
    before = table_versions(store)

    for call in (topics.create, topics.alter, topics.delete):
        with pytest.raises(InvalidNameError, match="reserved"):
            call(name)
    assert table_versions(store) == before


@pytest.mark.parametrize("name", ["", "a/b", "../a", "a" * 128, "_delta_log", None, 5])
def test_bad_names_are_refused_by_every_call(topics: Topics, name: str) -> None:
    calls = (topics.create, topics.alter, topics.delete, topics.describe, topics.rebuild)
    for call in calls:
        with pytest.raises(InvalidNameError):
            call(name)


def test_settings_that_cannot_be_kept_are_refused_before_anything_is_written(
    store: Store, topics: Topics
) -> None:
    before = table_versions(store)

    with pytest.raises(ConfigError, match="queue_nums"):
        topics.create(TOPIC, queue_nums=0)
    assert table_versions(store) == before


def test_two_operators_at_once_keep_both_their_topics(store: Store, topics: Topics) -> None:
    topics.create("first")

    with before_commit(lambda: Topics(store).create("other"), table="topics"):
        topics.create(TOPIC)

    assert store.topics() == ["first", TOPIC, "other"]
    assert all(one.is_registered for one in topics.all())


# --- alter ---------------------------------------------------------------------------------------


def test_altered_settings_leave_the_others_as_they_are(topics: Topics) -> None:
    topics.create(TOPIC, kind=TopicKind.FIFO, queue_nums=2, reserved_time_h=5, body=ORDERS)

    assert topics.alter(TOPIC, queue_nums=4) == TopicSettings(TopicKind.FIFO, 4, 5, ORDERS)
    assert topics.alter(TOPIC, reserved_time_h=None, body=None) == TopicSettings(TopicKind.FIFO, 4)
    assert topics.alter(TOPIC, kind=TopicKind.NORMAL) == TopicSettings(TopicKind.NORMAL, 4)


def test_fewer_queues_need_force(topics: Topics) -> None:
    topics.create(TOPIC, queue_nums=4)

    with pytest.raises(ConfigError, match="stay in queues that get no new ones"):
        topics.alter(TOPIC, queue_nums=2)
    assert topics.alter(TOPIC, queue_nums=2, force=True).queue_nums == 2


def test_topic_that_its_first_message_made_can_be_altered(
    store: Store, topics: Topics, producer: TransactionProducer
) -> None:
    send(producer)
    publish(store)

    assert topics.alter(TOPIC, queue_nums=9).queue_nums == 9
    assert topics.describe(TOPIC).summary.is_registered


def test_unknown_topics_are_told(topics: Topics) -> None:
    for call in (topics.alter, topics.delete, topics.describe, topics.rebuild):
        with pytest.raises(TopicNotFoundError, match="txmq topics list"):
            call(TOPIC)


# --- list and describe ---------------------------------------------------------------------------


def test_description_tells_size_queues_and_times(tmp_path: Path) -> None:
    clock = ManualClock()
    store = Store.create(tmp_path / "store")
    topics = Topics(store)
    topics.create(TOPIC, queue_nums=2)
    publisher = Publisher(store, clock=clock)
    with TransactionProducer(store, producer_group=GROUP) as producer:
        for _ in range(3):
            send(producer)
            publisher.run_once()
            clock.advance(60)

    found = topics.describe(TOPIC)

    assert (found.summary.rows, found.files) == (3, 3)
    assert found.summary.size_bytes > 0
    assert found.next_offsets == {0: 2, 1: 1}
    assert (found.oldest, found.newest) == (timestamp(START_MS), timestamp(START_MS + 120_000))
    assert (found.begin, found.parked) == (None, None)
    assert found.op_version == max(row["op_version"] for row in log_rows(store, "settled"))
    assert found.to_dict()["next_offsets"] == {"0": 2, "1": 1}


def test_empty_topic_can_be_described(topics: Topics) -> None:
    topics.create(TOPIC, queue_nums=1)

    found = topics.describe(TOPIC)

    assert (found.oldest, found.newest, found.op_version) == (None, None, -1)
    assert found.next_offsets == {0: 0}


def test_parked_topic_says_why(store: Store, topics: Topics, producer: TransactionProducer) -> None:
    send(producer)
    with failing_commits(1, table=TOPIC, error=OSError("gone")):
        publish(store)

    found = topics.describe(TOPIC)

    assert found.parked is not None
    assert "gone" in found.parked.reason
    assert found.summary.is_parked


def test_list_shows_all_by_name(
    store: Store, topics: Topics, producer: TransactionProducer
) -> None:
    topics.create("b")
    send(producer, topic="a")
    store.tables.create_topic(TRANS_CHECK_MAX_TIME_TOPIC)
    publish(store)

    found = {one.topic: (one.rows, one.is_registered, one.is_system) for one in topics.all()}

    assert found == {
        "a": (1, False, False),
        "b": (0, True, False),
        TRANS_CHECK_MAX_TIME_TOPIC: (0, False, True),
    }


# --- delete --------------------------------------------------------------------------------------


def test_deletion_is_dry_unless_applied(
    store: Store, topics: Topics, producer: TransactionProducer
) -> None:
    send(producer, 3)
    publish(store)
    before = table_versions(store)

    found = topics.delete(TOPIC)

    assert (found.rows, found.is_written) == (3, False)
    assert table_versions(store) == before


def test_deleted_topic_is_gone_and_nothing_is_missed(
    store: Store, topics: Topics, producer: TransactionProducer
) -> None:
    topics.create(TOPIC, queue_nums=2)
    send(producer, 3)
    publish(store)

    assert topics.delete(TOPIC, apply=True).is_written

    assert store.topics() == []
    assert topics.all() == ()
    assert topic_rows(store, TOPIC) == []
    assert list(Path(store.location, "topics", TOPIC).glob("*.parquet")) == []
    with pytest.raises(TopicNotFoundError):
        topics.describe(TOPIC)


@pytest.mark.parametrize("is_registered", [True, False])
def test_deleted_topic_can_be_made_anew(
    store: Store, topics: Topics, producer: TransactionProducer, *, is_registered: bool
) -> None:
    send(producer, 3)
    publish(store)
    topics.delete(TOPIC, apply=True)
    if is_registered:
        topics.create(TOPIC)

    send(producer, 2)
    publish(store)

    assert store.topics() == [TOPIC]
    assert bodies(store, TOPIC) == [b"0", b"1"]
    # Offsets go on, so no reader takes a new message for an old one.
    assert sorted(row["queue_offset"] for row in topic_rows(store, TOPIC)) == [0, 0]
    assert {row["queue_id"] for row in topic_rows(store, TOPIC)} == {3, 4}


def test_publisher_that_holds_a_deleted_topic_goes_on_with_it(
    store: Store, topics: Topics, producer: TransactionProducer
) -> None:
    publisher = Publisher(store)
    send(producer, 3)
    publisher.run_once()
    topics.delete(TOPIC, apply=True)

    send(producer, 2)
    publisher.run_once()

    assert bodies(store, TOPIC) == [b"0", b"1"]
    assert store.topics() == [TOPIC]


def test_topic_with_an_open_transaction_is_not_deleted(
    store: Store, topics: Topics, producer: TransactionProducer
) -> None:
    send(producer)
    open_one = prepared(producer, Message("other", b""), Message(TOPIC, b"open"))
    publish(store)
    before = table_versions(store)

    with pytest.raises(TopicInUseError, match=open_one.id) as refused:
        topics.delete(TOPIC, apply=True)
    assert refused.value.count == 1
    assert table_versions(store) == before

    open_one.rollback()
    publish(store)
    assert topics.delete(TOPIC, apply=True).rows == 1


def test_topic_with_an_unpublished_message_is_not_deleted(
    topics: Topics, producer: TransactionProducer
) -> None:
    topics.create(TOPIC)
    send(producer)

    with pytest.raises(TopicInUseError, match="let the publisher catch up"):
        topics.delete(TOPIC, apply=True)


def test_message_that_comes_while_its_topic_is_deleted_is_not_lost(
    store: Store, topics: Topics, producer: TransactionProducer
) -> None:
    publisher = Publisher(store)
    send(producer, 3)
    publisher.run_once()

    def late() -> None:
        prepared(producer, Message(TOPIC, b"late")).commit()
        publisher.run_once()

    with before_commit(late, table=TOPIC):
        topics.delete(TOPIC, apply=True)

    assert bodies(store, TOPIC) == [b"late"]
    assert store.topics() == [TOPIC]


@pytest.mark.parametrize("is_made_anew", [True, False])
def test_verify_misses_nothing_of_a_deleted_topic(
    store: Store, topics: Topics, producer: TransactionProducer, *, is_made_anew: bool
) -> None:
    send(producer, 5)
    send(producer, 2, topic="other")
    publish(store)
    topics.delete(TOPIC, apply=True)
    if is_made_anew:
        send(producer, 12)
        publish(store)

    assert [one for one in verify(store.location).results if one.violation_count] == []


def test_killed_deletion_is_done_again(
    store: Store, topics: Topics, producer: TransactionProducer
) -> None:
    send(producer, 3)
    publish(store)
    with (
        failing_commits(1, table=TOPIC, error=KeyboardInterrupt()),
        pytest.raises(KeyboardInterrupt),
    ):
        topics.delete(TOPIC, apply=True)
    assert len(topic_rows(store, TOPIC)) == 3

    assert topics.delete(TOPIC, apply=True).is_written
    assert store.topics() == []


def test_topic_that_is_deleted_during_a_rebuild_stays_deleted(
    store: Store, topics: Topics, producer: TransactionProducer
) -> None:
    send(producer, 3)
    publish(store)
    table = store.tables.table_at(f"topics/{TOPIC}")
    table.writer.remove(table.files.all())

    def deletes(point: FailPoint) -> None:
        if point is FailPoint.PAYLOAD_WRITTEN:
            assert topics.delete(TOPIC, apply=True).is_written

    disarm = arm(deletes)
    try:
        topics.rebuild(TOPIC, apply=True)
    finally:
        disarm()

    assert topic_rows(store, TOPIC) == []
    assert store.topics() == []
    assert verify(store.location).is_clean


def test_topic_that_is_deleted_while_it_gets_a_field_has_none(
    store: Store, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.create("typed", body=GIFTLESS)

    def overtaken(*arguments: Any) -> None:
        monkeypatch.undo()
        topics.delete("typed", apply=True)
        set_body_schema(*arguments)

    monkeypatch.setattr("txmq.ops.admin.topics.set_body_schema", overtaken)
    with pytest.raises(TopicNotFoundError):
        topics.alter("typed", body=WITH_GIFT)

    assert body_schema_in(store.tables.table_at("topics/typed")) is None


def test_maintenance_looks_after_what_is_left_of_a_deleted_topic(
    store: Store, topics: Topics, producer: TransactionProducer
) -> None:
    send(producer, 3)
    publish(store)
    topics.delete(TOPIC, apply=True)

    assert f"topics/{TOPIC}" in store.tables.table_paths()
    assert "state/topics" in store.tables.table_paths()
    assert not Maintenance(store).run_once().failed


# --- at send -------------------------------------------------------------------------------------


def test_messages_go_to_the_queues_of_their_topic(
    store: Store, topics: Topics, producer: TransactionProducer
) -> None:
    topics.create(TOPIC, queue_nums=2)
    sent = [Message(TOPIC, b"", sharding_key=f"key-{number}") for number in range(20)]
    prepared(producer, *[Message(TOPIC, b"")] * 5, *sent).commit()
    publish(store)

    assert {row["queue_id"] for row in topic_rows(store, TOPIC)} == {0, 1}


@pytest.mark.parametrize("kind", [TopicKind.NORMAL, TopicKind.FIFO, TopicKind.DELAY])
def test_transaction_is_refused_by_topics_of_other_kinds(
    store: Store, topics: Topics, producer: TransactionProducer, kind: TopicKind
) -> None:
    topics.create(TOPIC, kind=kind)
    before = table_versions(store)
    transaction = producer.begin_transaction()

    with pytest.raises(TopicKindError, match="of kind TRANSACTION or UNSPECIFIED"):
        transaction.send(Message(TOPIC, b"", sharding_key="key"))
    transaction.rollback()
    assert table_versions(store) == before


def test_transaction_is_taken_by_its_own_kind(
    topics: Topics, producer: TransactionProducer
) -> None:
    topics.create(TOPIC, kind=TopicKind.TRANSACTION)

    prepared(producer, Message(TOPIC, b"", sharding_key="key", delay_level=1)).rollback()


# a message as it is sent without a transaction, and the one kind that takes it
ORDINARY = [
    ({}, TopicKind.NORMAL),
    ({"sharding_key": "key"}, TopicKind.FIFO),
    ({"delay_s": 5}, TopicKind.DELAY),
    ({"delay_level": 3}, TopicKind.DELAY),
    ({"delay_s": 5, "sharding_key": "key"}, TopicKind.DELAY),
]


@pytest.mark.parametrize(("fields", "fitting"), ORDINARY)
def test_ordinary_messages_fit_one_kind_each(
    store: Store,
    topics: Topics,
    producer: TransactionProducer,
    fields: dict[str, Any],
    fitting: TopicKind,
) -> None:
    for kind in TopicKind:
        topics.create(kind.value, kind=kind)
    before = table_versions(store)

    for kind in set(TopicKind) - {fitting, TopicKind.UNSPECIFIED}:
        with pytest.raises(TopicKindError, match=f"of kind {fitting}"):
            producer.send(Message(kind.value, b"", **fields))
        with pytest.raises(TopicKindError):
            producer.send_async(Message(kind.value, b"", **fields))
    assert table_versions(store) == before
    producer.send(Message(fitting.value, b"", **fields))
    producer.send(Message(TopicKind.UNSPECIFIED.value, b"", **fields))


def test_chosen_queue_must_be_one_of_the_topic(
    topics: Topics, producer: TransactionProducer
) -> None:
    topics.create(TOPIC, queue_nums=2)

    producer.send(Message(TOPIC, b""), queue_id=1)
    producer.send(Message(TOPIC, b""), queue_selector=lambda _, count: count - 1)
    with pytest.raises(InvalidMessageError, match="from 0 to 1"):
        producer.send(Message(TOPIC, b""), queue_id=2)


def test_topic_with_a_message_that_waits_is_not_deleted(
    store: Store, topics: Topics, producer: TransactionProducer
) -> None:
    waits = producer.send(Message(TOPIC, b"", delay_s=3600))
    publish(store)
    topics.create(TOPIC)

    with pytest.raises(TopicInUseError):
        topics.delete(TOPIC, apply=True)

    producer.recall(waits.message_ids[0])
    publish(store)
    assert topics.delete(TOPIC, apply=True).is_written


def test_what_is_refused_was_looked_up_just_now(tmp_path: Path) -> None:
    config = Config(topic_refresh_s=NEVER_S)
    store = Store.create(tmp_path / "store", config)
    topics = Topics(store)
    topics.create(TOPIC, kind=TopicKind.FIFO)
    with TransactionProducer(store, producer_group=GROUP) as producer:
        with pytest.raises(TopicKindError):
            producer.begin_transaction().send(Message(TOPIC, b""))
        topics.alter(TOPIC, kind=TopicKind.TRANSACTION)
        prepared(producer, Message(TOPIC, b"")).rollback()


def test_producer_follows_a_change_after_a_while(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store", Config(topic_refresh_s=0.05))
    topics = Topics(store)
    topics.create(TOPIC)
    with TransactionProducer(store, producer_group=GROUP) as producer:
        prepared(producer, Message(TOPIC, b"")).rollback()
        topics.alter(TOPIC, kind=TopicKind.FIFO)

        def is_refused() -> bool:
            try:
                producer.begin_transaction().send(Message(TOPIC, b""))
            except TopicKindError:
                return True
            return False

        wait_until(is_refused)


@pytest.fixture
def strict(tmp_path: Path) -> Store:
    config = Config(auto_create_topic_enable=False, topic_refresh_s=NEVER_S)
    return Store.create(tmp_path / "strict", config)


def test_unknown_topic_is_refused_where_topics_are_made_by_operators(strict: Store) -> None:
    before = table_versions(strict)
    with TransactionProducer(strict, producer_group=GROUP) as producer:
        with (
            pytest.raises(TopicNotFoundError, match="auto_create_topic_enable"),
            producer.begin_transaction() as transaction,
        ):
            transaction.send(Message(TOPIC, b""))
        assert table_versions(strict) == before

        Topics(strict).create(TOPIC)
        send(producer)
    publish(strict)
    assert len(topic_rows(strict, TOPIC)) == 1


def test_topic_that_is_there_without_settings_is_known(strict: Store) -> None:
    strict.tables.create_topic(TOPIC)

    with TransactionProducer(strict, producer_group=GROUP) as producer:
        send(producer)
        with pytest.raises(TopicConflictError):
            producer.begin_transaction().send(Message(TOPIC.upper(), b""))


def test_misspelt_name_that_was_refused_does_not_hide_the_right_one(strict: Store) -> None:
    with TransactionProducer(strict, producer_group=GROUP) as producer:
        with pytest.raises(TopicNotFoundError):
            producer.begin_transaction().send(Message(TOPIC.upper(), b""))
        Topics(strict).create(TOPIC)
        send(producer)


def test_deleted_topic_is_unknown_again(strict: Store) -> None:
    topics = Topics(strict)
    topics.create(TOPIC)
    with TransactionProducer(strict, producer_group=GROUP) as producer:
        send(producer)
        publish(strict)
    topics.delete(TOPIC, apply=True)

    with (
        TransactionProducer(strict, producer_group=GROUP) as producer,
        pytest.raises(TopicNotFoundError),
    ):
        producer.begin_transaction().send(Message(TOPIC, b""))
