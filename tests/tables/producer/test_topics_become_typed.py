"""A topic that becomes typed takes no other body any more, from producers that run already too."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.kit.bodies import field, json_body, json_schema
from tests.kit.builders import table_versions
from tests.kit.commits import after_commit
from tests.kit.reading import bodies, log_rows, publish
from txmq.errors import InvalidBodyError, StorageError, TopicChangedError, TopicInUseError
from txmq.message.message import LocalTransactionState, Message
from txmq.ops.admin.topics import Topics
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.testing import before_commit, failing_commits

GROUP, TOPIC = "orders-service", "order-paid"
SCHEMA = json_schema(field("number", "long")).to_dict()
GOOD, BAD = Message(TOPIC, json_body(number=7)), Message(TOPIC, b"a secret")
NEVER_S = 1e9
MOMENT = datetime.now(UTC)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store", Config(topic_refresh_s=NEVER_S))


@pytest.fixture
def producer(store: Store) -> TransactionProducer:
    """One that has sent to the topic before."""
    made = TransactionProducer(store, producer_group=GROUP)
    begun(made, BAD).prepare()
    for row in log_rows(store, "half"):
        made.end_transaction(row["transaction_id"], LocalTransactionState.ROLLBACK)
    publish(store)
    return made


def begun(producer: TransactionProducer, *messages: Message) -> Transaction:
    transaction = producer.begin_transaction()
    for message in messages:
        transaction.send(message)
    return transaction


def typed(store: Store) -> None:
    Topics(store).create(TOPIC, body=SCHEMA)


SENDS: dict[str, Callable[[TransactionProducer], object]] = {
    "transaction": lambda producer: begun(producer, GOOD, BAD).prepare(),
    "send": lambda producer: producer.send(BAD),
    "batch": lambda producer: producer.send([GOOD, BAD]),
    "async": lambda producer: producer.send_async(BAD).result(60),
}


@pytest.mark.parametrize("send", SENDS)
def test_running_producer_is_refused_at_once_and_nothing_is_written(
    store: Store, producer: TransactionProducer, send: str
) -> None:
    typed(store)
    before = table_versions(store)

    with pytest.raises(InvalidBodyError, match="does not match the schema") as told:
        SENDS[send](producer)

    assert "secret" not in str(told.value)
    assert table_versions(store) == before
    producer.send(GOOD)
    publish(store)
    assert bodies(store) == [GOOD.body]


def test_message_that_was_accepted_before_is_refused_at_its_commit(
    store: Store, producer: TransactionProducer
) -> None:
    accepted = begun(producer, BAD)
    typed(store)
    # Another message makes the producer read the settings.
    producer.send(GOOD)

    with pytest.raises(InvalidBodyError):
        accepted.prepare()


@pytest.mark.parametrize("send", SENDS)
def test_half_that_a_new_schema_overtakes_is_rolled_back_and_told(
    store: Store, producer: TransactionProducer, send: str
) -> None:
    with before_commit(lambda: typed(store), table="half"), pytest.raises(TopicChangedError):
        SENDS[send](producer)

    publish(store)
    assert {row["state"] for row in log_rows(store, "settled")} == {"ROLLED_BACK"}


def test_bad_body_fails_alone(store: Store, producer: TransactionProducer) -> None:
    typed(store)
    futures = [producer.send_async(message) for message in (GOOD, BAD, GOOD)]

    answers = [future.exception(60) for future in futures]

    assert [type(answer) for answer in answers] == [type(None), InvalidBodyError, type(None)]


def test_topic_that_an_open_transaction_names_does_not_become_typed(
    store: Store, producer: TransactionProducer
) -> None:
    transaction = begun(producer, BAD)
    transaction.prepare()

    with pytest.raises(TopicInUseError):
        typed(store)

    assert store.tables.topic_register().read().settings == {}
    transaction.rollback()
    publish(store)
    typed(store)


def test_transaction_that_is_faster_than_the_new_schema_keeps_its_topic(
    store: Store, producer: TransactionProducer
) -> None:
    other = begun(producer, BAD)
    Topics(store).create("another")

    with before_commit(other.prepare, table="topics"), pytest.raises(TopicInUseError):
        typed(store)

    assert TOPIC not in store.tables.topic_register().read().settings
    other.commit()
    publish(store)
    assert bodies(store) == [BAD.body]


# --- with an idempotency key ----------------------------------------------------------------------


def keyed(producer: TransactionProducer, *messages: Message) -> Transaction:
    transaction = producer.begin_transaction(idempotency_key="7", key_timestamp=MOMENT)
    for message in messages:
        transaction.send(message)
    return transaction


@pytest.mark.parametrize("is_lost", [False, True], ids=["answered", "lost answer"])
def test_keyed_half_that_a_new_schema_overtakes_is_told_and_left_to_the_check(
    store: Store, producer: TransactionProducer, *, is_lost: bool
) -> None:
    error, claims = StorageError("half", "gave no answer"), log_rows(store, "op")
    with (
        before_commit(lambda: typed(store), table="half"),
        failing_commits(int(is_lost), error=error, after_commit=True, table="half"),
        pytest.raises(TopicChangedError) as told,
    ):
        keyed(producer, BAD).prepare()

    assert log_rows(store, "op") == claims
    producer.end_transaction(told.value.transaction_id, LocalTransactionState.ROLLBACK)
    publish(store)
    assert {row["state"] for row in log_rows(store, "settled")} == {"ROLLED_BACK"}


def test_a_try_that_joins_one_which_never_looked_is_told_and_ends_nothing(
    store: Store, producer: TransactionProducer
) -> None:
    """The first try died, as it were, between its commit and its look at the schema."""
    with before_commit(lambda: typed(store), table="half"), patched_after():
        keyed(producer, BAD).prepare()
    again, claims = keyed(producer, BAD), log_rows(store, "op")

    with pytest.raises(TopicChangedError):
        again.prepare()

    assert log_rows(store, "op") == claims


def test_a_try_that_sees_a_schema_which_is_taken_back_leaves_the_other_try_its_end(
    store: Store, producer: TransactionProducer
) -> None:
    """The other try was acknowledged before the schema, and its local transaction runs."""
    Topics(store).create("another")
    first = keyed(producer, BAD)

    def join(again: Transaction) -> None:
        with pytest.raises(TopicChangedError):
            again.prepare()

    with ExitStack() as stack:

        def prepare_and_begin_again() -> None:
            first.prepare()
            again = keyed(TransactionProducer(store, producer_group=GROUP), BAD)
            stack.enter_context(after_commit(lambda: join(again)))

        with (
            before_commit(prepare_and_begin_again, table="topics"),
            pytest.raises(TopicInUseError),
        ):
            typed(store)

    first.commit()
    publish(store)
    assert bodies(store) == [BAD.body]


def patched_after() -> AbstractContextManager[object]:
    return patch("txmq.producer.body_check.BodyWatch.after", lambda *_: {})
