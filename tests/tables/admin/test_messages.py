"""Where a message is: by its id, by a key, by its transaction (R92)."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from tests.kit.builders import table_versions
from tests.kit.reading import publish
from tests.kit.stores import START, HandMadeStore, Op, Settled, halves, transaction_id
from txmq.delta.file_rows import FileRows
from txmq.errors import (
    InvalidNameError,
    MessageNotFoundError,
    TopicNotFoundError,
    TransactionNotFoundError,
)
from txmq.ground.clock import timestamp
from txmq.message.lifecycle import DeliveryState, TransactionState
from txmq.message.message import Message
from txmq.message.names import SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from txmq.ops.admin.messages import MessageQuery
from txmq.producer.producer import TransactionProducer
from txmq.producer.trace import TraceHook, TraceType
from txmq.store.store import Store
from txmq.testing import START_MS, ManualClock


@pytest.fixture
def made(clean: HandMadeStore) -> HandMadeStore:
    return clean


def query(made: HandMadeStore) -> MessageQuery:
    return MessageQuery(made.store)


def id_of(number: int, sequence: int = 0) -> str:
    return f"{transaction_id(number)}:{sequence}"


# --- by id --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("number", "where", "state"),
    [
        (1, "visible", TransactionState.COMMITTED),
        (2, "rolled back", TransactionState.ROLLED_BACK),
        (3, "half", TransactionState.PENDING),
        (6, "discarded", TransactionState.DISCARDED),
        (7, "visible", TransactionState.COMMITTED),
        (8, "incomplete", TransactionState.INCOMPLETE),
        (9, "rolled back", TransactionState.ROLLED_BACK),
        (10, "visible", TransactionState.COMMITTED),
    ],
)
def test_a_message_is_found_wherever_it_is(
    made: HandMadeStore, number: int, where: str, state: TransactionState
) -> None:
    found = query(made).by_id(id_of(number))

    assert (found.where, found.state) == (where, state)
    assert found.message_id == id_of(number)
    assert found.topic == "orders"
    assert found.producer_group == "group"
    assert found.keys == f"key-{number}"
    assert found.is_half
    assert found.ordinary is False


def test_its_place_in_its_topic_is_told(made: HandMadeStore) -> None:
    found = query(made).by_id(id_of(1, 1))

    (place,) = found.places
    assert (place.topic, place.queue_id, place.queue_offset) == ("stock", 0, 0)
    assert place.store_timestamp == START
    assert found.dead_letters == ()


def test_dead_letters_are_told_beside_the_place(made: HandMadeStore) -> None:
    found = query(made).by_id(id_of(7))

    (dead,), (place,) = found.dead_letters, found.places
    assert (dead.topic, dead.life) == (TRANS_CHECK_MAX_TIME_TOPIC, 0)
    assert (place.topic, place.life) == ("orders", 1)


def test_a_half_that_was_written_twice_is_one_message(made: HandMadeStore) -> None:
    assert len(query(made).by_transaction(transaction_id(10))) == 1


def test_a_message_whose_half_was_removed_is_found_in_its_topic(made: HandMadeStore) -> None:
    made.remove("half", "true")

    found = query(made).by_id(id_of(1, 1), with_body=True)

    assert (found.where, found.is_half, found.ordinary) == ("visible", False, None)
    assert found.state is TransactionState.COMMITTED
    assert found.topic == "stock"
    assert found.body == b"body-1-1"


def test_a_message_of_which_its_topic_alone_is_left_was_committed(made: HandMadeStore) -> None:
    for path in ("half", "op", "settled"):
        made.remove(path, "true")

    found = query(made).by_id(id_of(1))

    assert (found.where, found.state) == ("visible", TransactionState.COMMITTED)
    assert found.source is None


def test_a_claim_that_is_not_settled_yet_counts(made: HandMadeStore) -> None:
    made.claim(Op(3, "COMMIT"))

    found = query(made).by_id(id_of(3))

    assert found.where == "committed, not published yet"
    assert (found.state, found.source) == (TransactionState.COMMITTED, "producer")


def test_a_body_is_read_only_on_request(made: HandMadeStore) -> None:
    found = query(made).by_id(id_of(1))
    with_body = query(made).by_id(id_of(1), with_body=True)

    assert found.body is None
    assert with_body.body == b"body-1-0"
    assert "body-1-0" not in repr(with_body)


def test_looking_writes_nothing(made: HandMadeStore) -> None:
    versions = table_versions(made.store)

    query(made).by_id(id_of(1))
    query(made).by_key("key-1")
    query(made).by_transaction(transaction_id(1))

    assert table_versions(made.store) == versions


@pytest.mark.parametrize("sequence", [2, 99])
def test_a_place_that_a_transaction_does_not_have_is_not_found(
    made: HandMadeStore, sequence: int
) -> None:
    with pytest.raises(MessageNotFoundError):
        query(made).by_id(id_of(1, sequence))


def test_a_transaction_that_is_not_there_is_not_found(made: HandMadeStore) -> None:
    with pytest.raises(MessageNotFoundError):
        query(made).by_id(id_of(500))
    with pytest.raises(TransactionNotFoundError):
        query(made).by_transaction(transaction_id(500))


@pytest.mark.parametrize("bad", ["", "x", "x:0", f"{transaction_id(1)}", f"{id_of(1)}x", None, 1])
def test_what_is_no_id_is_refused(made: HandMadeStore, bad: Any) -> None:
    with pytest.raises(TransactionNotFoundError):
        query(made).by_id(bad)


# --- by transaction -------------------------------------------------------------------------------


def test_all_messages_of_a_transaction_are_found_in_their_order(made: HandMadeStore) -> None:
    found = query(made).by_transaction(transaction_id(1))

    assert [one.message_id for one in found] == [id_of(1, 0), id_of(1, 1)]
    assert [one.topic for one in found] == ["orders", "stock"]


def test_of_a_large_transaction_the_first_messages_are_found(made: HandMadeStore) -> None:
    (found,) = query(made).by_transaction(transaction_id(1), max_count=1)

    assert found.message_id == id_of(1, 0)


# --- by key --------------------------------------------------------------------------------------


def with_keys(made: HandMadeStore, number: int, keys: str | None, op_version: int) -> None:
    (half,) = halves(number, "orders")
    made.publish("orders", type(half)(number, 0, changes={"keys": keys}), op_version=op_version)


def test_messages_are_found_by_one_of_their_keys_newest_first(made: HandMadeStore) -> None:
    with_keys(made, 21, "order-1 customer-9", 10)
    with_keys(made, 22, "customer-9", 11)
    with_keys(made, 23, "customer-99 order-customer-9", 12)

    found = query(made).by_key("customer-9", topic="orders")

    assert [one.message_id for one in found] == [id_of(22), id_of(21)]


@pytest.mark.parametrize("key", ["", "\ud800", 5, None, b"key"])
def test_what_no_message_may_have_as_its_key_is_refused(made: HandMadeStore, key: Any) -> None:
    with pytest.raises(InvalidNameError, match="one key"):
        query(made).by_key(key)


@pytest.mark.parametrize("key", ["customer", "9", "order-1 ", "%", "order-."])
def test_a_part_of_a_key_is_no_key(made: HandMadeStore, key: str) -> None:
    with_keys(made, 21, "order-1 customer-9", 10)

    if " " in key:
        with pytest.raises(InvalidNameError):
            query(made).by_key(key)
    else:
        assert query(made).by_key(key) == ()


def test_only_so_many_are_found_and_they_are_the_newest(made: HandMadeStore) -> None:
    for number in range(30, 36):
        with_keys(made, number, "same", number)

    found = query(made).by_key("same", topic="orders", max_count=2)

    assert [one.message_id for one in found] == [id_of(35), id_of(34)]


def test_old_files_are_not_read_when_enough_is_found(
    made: HandMadeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30, 40):
        with_keys(made, number, "same", number)
    read: list[tuple[str, ...]] = []
    original = FileRows.read

    def noted(table: Any, files: Any, columns: Any) -> Any:
        if "keys" in columns and len(columns) < 6:
            read.append(tuple(columns))
        return original(table, files, columns)

    monkeypatch.setattr(FileRows, "read", noted)

    query(made).by_key("same", topic="orders", max_count=1)

    assert len(read) <= 2
    assert all("body" not in columns for columns in read)


def test_without_a_topic_all_of_them_are_looked_through(made: HandMadeStore) -> None:
    found = query(made).by_key("key-1")

    assert {one.topic for one in found} == {"orders", "stock"}


def test_a_message_in_two_tables_is_found_once(made: HandMadeStore) -> None:
    (found,) = query(made).by_key("key-7")

    assert len(found.places) == len(found.dead_letters) == 1


def test_a_topic_that_is_not_there_is_an_error(made: HandMadeStore) -> None:
    with pytest.raises(TopicNotFoundError):
        query(made).by_key("key-1", topic="nothing")
    with pytest.raises(InvalidNameError):
        query(made).by_key("key-1", topic="../half")


# --- real messages --------------------------------------------------------------------------------


def test_an_ordinary_message_is_told_as_such(store: Store) -> None:
    with TransactionProducer(store, producer_group="orders") as producer:
        (own_id,) = producer.send(Message("paid", b"1")).message_ids

    found = MessageQuery(store).by_id(own_id)

    assert (found.ordinary, found.where) == (True, "committed, not published yet")


def test_a_delayed_message_is_scheduled_until_its_time(store: Store, clock: ManualClock) -> None:
    due = timestamp(START_MS) + timedelta(hours=1)
    with TransactionProducer(store, producer_group="orders", clock=clock) as producer:
        (own_id,) = producer.send(Message("paid", b"1", deliver_timestamp=due)).message_ids
        publish(store)

        found = MessageQuery(store).by_id(own_id)
        assert (found.where, found.delivery) == ("scheduled", DeliveryState.SCHEDULED)
        assert found.due == due
        assert found.places == ()

        producer.recall(own_id)
        publish(store)

    found = MessageQuery(store).by_id(own_id)
    assert (found.where, found.delivery) == ("recalled", DeliveryState.RECALLED)


def test_a_delayed_message_is_found_by_its_key_in_the_schedule(store: Store) -> None:
    with TransactionProducer(store, producer_group="orders") as producer:
        producer.send(Message("paid", b"1", keys="order-1", delay_s=3600))
        publish(store)

    (found,) = MessageQuery(store).by_key("order-1")

    assert found.where == "scheduled"
    assert found.delay_s == 3600
    assert MessageQuery(store).by_key("order-1", topic=SCHEDULE_TOPIC) == (found,)


def test_the_trace_of_a_message_is_told_with_it(store: Store) -> None:
    with (
        TraceHook(store) as trace,
        TransactionProducer(store, producer_group="orders", hooks=[trace]) as producer,
    ):
        ids = []
        for _ in range(2):
            transaction = producer.begin_transaction()
            transaction.send(Message("paid", b"1"))
            transaction.prepare()
            transaction.rollback()
            ids.append(transaction.id)
    publish(store)

    found = MessageQuery(store).by_id(f"{ids[0]}:0")

    assert [one.trace_type for one in found.trace] == [TraceType.PUB, TraceType.END_TRANSACTION]
    assert {one.transaction_id for one in found.trace} == {ids[0]}
    assert found.trace[1].state is TransactionState.ROLLED_BACK


def test_rows_by_hand_in_the_trace_topic_do_no_harm(made: HandMadeStore) -> None:
    keys = {"keys": transaction_id(1), "body": b"no record"}
    (half,) = halves(50, "RMQ_SYS_TRACE_TOPIC")
    made.publish("RMQ_SYS_TRACE_TOPIC", type(half)(50, 0, changes=keys), op_version=9)

    assert query(made).by_id(id_of(1)).trace == ()


def test_a_message_is_plain_values_for_json(made: HandMadeStore) -> None:
    found = query(made).by_id(id_of(7), with_body=True)

    values = json.loads(json.dumps(found.to_dict()))

    assert values["where"] == "visible"
    assert values["state"] == "COMMITTED"
    assert values["body"] == "body-7-0"
    assert values["places"][0]["topic"] == "orders"
    assert "body" not in query(made).by_id(id_of(7)).to_dict()


def test_a_body_that_is_no_text_is_in_base64(store: Store) -> None:
    with TransactionProducer(store, producer_group="orders") as producer:
        (own_id,) = producer.send(Message("paid", b"\xff\x00")).message_ids

    values = MessageQuery(store).by_id(own_id, with_body=True).to_dict()

    assert values["body_base64"] == "/wA="


def test_settled_facts_decide_where_the_claims_are_gone(made: HandMadeStore) -> None:
    made.prepare(*halves(60, "orders"))
    made.settle(Settled(60, "DISCARDED", 20), mark=20)

    assert query(made).by_id(id_of(60)).state is TransactionState.DISCARDED


@pytest.mark.parametrize("topic", ["../half", "a.b.c", "", "never-made"])
def test_a_half_by_hand_may_name_any_topic(made: HandMadeStore, topic: str) -> None:
    (half,) = halves(61, "orders")
    made.prepare(type(half)(61, 0, topic=topic, message_count=1))

    found = query(made).by_id(id_of(61))

    assert (found.topic, found.where) == (topic, "half")
