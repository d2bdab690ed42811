"""The fixtures of txmq.testing, as a user's tests use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from txmq import Config, ConsumeStatus, LocalTransactionState, Message, TransactionProducer, verify
from txmq.errors import StorageError
from txmq.testing import SteppedBroker, failing_commits

pytest_plugins = ["txmq.testing.fixtures"]

TOPIC = "order-paid"


class Books:
    """Answers for local transactions: what it is told, and UNKNOWN else."""

    def __init__(self) -> None:
        self.answers: list[LocalTransactionState] = []
        self.asked = 0

    def execute_local_transaction(self, *_: object) -> LocalTransactionState:
        return LocalTransactionState.UNKNOWN

    def check_local_transaction(self, _: object) -> LocalTransactionState:
        self.asked += 1
        return self.answers.pop() if self.answers else LocalTransactionState.UNKNOWN


@pytest.fixture
def books() -> Books:
    return Books()


@pytest.fixture
def txmq_listeners(books: Books) -> Mapping[str, Any]:
    return {"orders": books, "txmq-tests": books}


@pytest.fixture
def txmq_config() -> Config:
    return Config(max_reconsume_times=2, transaction_check_max=3)


def bodies(messages: Any) -> list[bytes]:
    return [message.body for message in messages]


def prepared(producer: TransactionProducer, body: bytes = b"42") -> Any:
    """Prepare a transaction without an end."""
    transaction = producer.begin_transaction()
    transaction.send(Message(TOPIC, body))
    transaction.prepare()
    return transaction


def test_what_is_committed_is_published_in_its_order(
    txmq_producer: Any, txmq_published: Any
) -> None:
    first, second = prepared(txmq_producer, b"1"), prepared(txmq_producer, b"2")
    assert txmq_published(TOPIC) == []

    second.commit()
    assert bodies(txmq_published(TOPIC)) == [b"2"]
    first.commit()

    assert bodies(txmq_published(TOPIC)) == [b"2", b"1"]
    assert txmq_published("nothing-yet") == []


def test_delayed_message_waits_for_its_time(
    txmq_producer: Any, txmq_published: Any, txmq_broker: SteppedBroker
) -> None:
    txmq_producer.send(Message(TOPIC, b"later", delay_s=3_600))

    txmq_broker.run_for(3_599)
    assert txmq_published(TOPIC) == []
    assert txmq_broker.run_for(1).delivered == 1

    assert bodies(txmq_published(TOPIC)) == [b"later"]


def test_time_that_passes_asks_the_listener_again_and_again(
    txmq_producer: Any, txmq_published: Any, txmq_broker: SteppedBroker, books: Books
) -> None:
    prepared(txmq_producer)
    books.answers = [LocalTransactionState.COMMIT, LocalTransactionState.UNKNOWN]

    done = txmq_broker.run_for(600)

    assert (done.asked, done.unknown, done.committed, books.asked) == (2, 1, 1, 2)
    assert bodies(txmq_published(TOPIC)) == [b"42"]


def test_transaction_that_nobody_answers_for_is_discarded(
    txmq_producer: Any, txmq_published: Any, txmq_broker: SteppedBroker, books: Books
) -> None:
    prepared(txmq_producer)

    assert txmq_broker.run_for(86_400).discarded == 1
    assert books.asked == 3
    assert txmq_published(TOPIC) == []


def test_time_that_passes_without_a_listener_ends(
    txmq_store: Any, txmq_clock: Any, txmq_broker: SteppedBroker
) -> None:
    with TransactionProducer(txmq_store, producer_group="alone", clock=txmq_clock) as producer:
        prepared(producer)
        before_ms = txmq_clock.now_ms()
        done = txmq_broker.run_for(3_600)

    assert txmq_clock.now_ms() - before_ms == 3_600_000
    assert done.committed == done.rolled_back == 0


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_time_that_cannot_pass_is_refused(txmq_broker: SteppedBroker, seconds: float) -> None:
    with pytest.raises(ValueError, match="from 0 on"):
        txmq_broker.run_for(seconds)


def test_failed_messages_end_among_the_dead_letters(
    txmq_producer: Any, txmq_consumer: Any, txmq_broker: SteppedBroker, txmq_dead_letters: Any
) -> None:
    txmq_producer.send(Message(TOPIC, b"bad", keys="order-7"))
    txmq_broker.run()
    consumer = txmq_consumer("billing", TOPIC)

    for _ in range(3):
        assert txmq_dead_letters("billing") == ()
        assert consumer.run_once(lambda _: ConsumeStatus.RECONSUME_LATER).sent_back == 1
        txmq_broker.run_for(7_200)

    (letter,) = txmq_dead_letters("billing")
    assert (letter.keys, letter.origin_topic, letter.reconsume_times) == ("order-7", TOPIC, 3)


def test_lost_answer_of_a_commit_leaves_one_message(
    txmq_store: Any, txmq_producer: Any, txmq_published: Any
) -> None:
    transaction = prepared(txmq_producer)
    with failing_commits(1, table="op", error=OSError("no answer"), after_commit=True) as failed:
        transaction.commit()

    assert len(failed) == 1
    assert bodies(txmq_published(TOPIC)) == [b"42"]
    assert verify(txmq_store.location).is_clean


def test_commit_that_fails_is_made_up_for_by_the_check(
    txmq_producer: Any, txmq_published: Any, txmq_broker: SteppedBroker, books: Books
) -> None:
    transaction = prepared(txmq_producer)
    with failing_commits(100, table="op", error=OSError("no disk")), pytest.raises(StorageError):
        transaction.commit()
    assert txmq_published(TOPIC) == []

    books.answers = [LocalTransactionState.COMMIT]
    txmq_broker.run_for(60)

    assert bodies(txmq_published(TOPIC)) == [b"42"]


def test_services_that_find_work_for_ever_are_stopped(
    txmq_producer: Any, txmq_broker: SteppedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txmq.testing.stepped_broker.ROUNDS_MAX", 1)
    txmq_producer.send(Message(TOPIC, b"1"))

    with pytest.raises(RuntimeError, match="not done after 1 rounds"):
        txmq_broker.run()
