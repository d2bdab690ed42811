from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.reading import bodies, log_rows, rows_of, wait_until
from txmq.errors import ListenerError
from txmq.listeners.protocol import HalfMessage
from txmq.message.message import LocalTransactionState, Message
from txmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.ops.broker import Broker, BrokerHandle, run_until_signal
from txmq.producer.producer import TransactionProducer
from txmq.store.config import Config
from txmq.store.store import Store

GROUP = "orders-service"
AT_ONCE = {
    "transaction_timeout_s": 0.001,
    "transaction_renewal_max_s": 0.0,
    "transaction_check_interval_s": 0.001,
    "check_trigger_interval_s": 0.5,
    "publish_drain_s": 0.5,
}


class Answers:
    def __init__(self, answer: LocalTransactionState) -> None:
        self.answer = answer

    def execute_local_transaction(self, message: HalfMessage, argument: object) -> Any:
        raise NotImplementedError

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:  # noqa: ARG002
        return self.answer


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store", Config(**AT_ONCE, transaction_check_max=2))


def send(store: Store, body: bytes, *, commit: bool) -> None:
    with TransactionProducer(store, producer_group=GROUP) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("order-paid", body))
        transaction.prepare()
        if commit:
            transaction.commit()


def work(store: Store, answer: LocalTransactionState) -> None:
    """A scheduled broker runs again and again, until something is settled."""
    broker = Broker(store, listeners={GROUP: Answers(answer)})
    wait_until(lambda: broker.run_once().published.settled > 0)


# --- run_once -----------------------------------------------------------------------------------


def test_answer_of_a_check_is_published_by_the_same_call(store: Store) -> None:
    send(store, b"sent", commit=True)
    send(store, b"forgotten", commit=False)
    broker = Broker(store, listeners={GROUP: Answers(LocalTransactionState.COMMIT)})

    wait_until(lambda: broker.run_once().checked.checks.asked > 0)

    assert bodies(store) == [b"forgotten", b"sent"]


def test_transaction_that_nobody_knows_becomes_a_dead_letter(store: Store) -> None:
    send(store, b"forgotten", commit=False)

    work(store, LocalTransactionState.UNKNOWN)

    assert bodies(store, TRANS_CHECK_MAX_TIME_TOPIC) == [b"forgotten"]
    kinds = sorted(row["kind"] for row in log_rows(store, "op"))
    assert kinds == ["DISCARD", "UNKNOWN", "UNKNOWN"]


def test_refused_transaction_is_never_visible(store: Store) -> None:
    send(store, b"forgotten", commit=False)

    work(store, LocalTransactionState.ROLLBACK)

    assert store.topics() == []


def test_result_says_what_was_published_and_checked(store: Store) -> None:
    send(store, b"sent", commit=True)

    result = Broker(store).run_once()

    assert (result.published.published, result.checked.open_transactions) == (1, 0)


def test_what_cannot_answer_is_refused_at_once(store: Store) -> None:
    with pytest.raises(ListenerError):
        Broker(store, listeners={GROUP: object()})  # type: ignore[dict-item]


# --- start ---------------------------------------------------------------------------------------


@pytest.fixture
def handle(store: Store, spark: Any) -> Iterator[BrokerHandle]:
    listeners = {GROUP: Answers(LocalTransactionState.COMMIT)}
    handle = Broker(store, spark=spark, listeners=listeners).start()
    yield handle
    handle.stop()


def test_started_broker_publishes_and_asks(store: Store, handle: BrokerHandle) -> None:
    send(store, b"sent", commit=True)
    send(store, b"forgotten", commit=False)

    wait_until(lambda: bodies(store) == [b"forgotten", b"sent"])

    assert handle.is_alive
    assert handle.exception is None


def test_stopped_broker_leaves_no_query_behind(
    store: Store, handle: BrokerHandle, spark: Any
) -> None:
    handle.stop()

    assert not handle.is_alive
    assert spark.streams.active == []
    assert rows_of(f"{store.location}/topics/order-paid") == []


def test_end_of_a_block_stops_the_services(store: Store) -> None:
    with Broker(store).start() as handle:
        is_alive = handle.is_alive

    assert is_alive
    assert not handle.is_alive


def test_log_of_a_broker_says_who_is_asked(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    listeners = {
        "orders": Answers(LocalTransactionState.COMMIT),
        "tenant%orders": Answers(LocalTransactionState.COMMIT),
    }
    with caplog.at_level(logging.INFO), Broker(store, listeners=listeners).start():
        pass

    assert "listeners: orders=Answers, tenant%orders=Answers" in caplog.text


def test_wait_ends_when_told_to(handle: BrokerHandle) -> None:
    stopping = threading.Event()
    threading.Timer(0.1, stopping.set).start()

    handle.wait(stopping)

    assert not handle.is_alive


class Service:
    """A service as the broker sees it."""

    def __init__(self, failure: BaseException | None = None) -> None:
        self.exception = failure
        self.is_alive = failure is None

    def stop(self) -> None:
        self.is_alive = False


def test_one_service_that_fails_stops_all_and_is_told() -> None:
    healthy, failed = Service(), Service(RuntimeError("broken"))
    handle = BrokerHandle({"publisher": healthy, "check service": failed})

    with pytest.raises(RuntimeError, match="broken"):
        handle.wait()

    assert not healthy.is_alive


def test_check_service_that_cannot_start_leaves_no_publisher_behind(
    store: Store, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = Broker(store, spark=spark)

    def fail(**_: bool) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(broker.check_service, "start", fail)

    with pytest.raises(RuntimeError, match="broken"):
        broker.start()
    assert spark.streams.active == []


def test_signal_stops_the_services_and_handlers_are_restored() -> None:
    import os
    import signal

    service = Service()
    before = signal.getsignal(signal.SIGTERM)

    def start() -> BrokerHandle:
        os.kill(os.getpid(), signal.SIGTERM)
        return BrokerHandle({"publisher": service})

    run_until_signal(start)

    assert not service.is_alive
    assert signal.getsignal(signal.SIGTERM) is before
