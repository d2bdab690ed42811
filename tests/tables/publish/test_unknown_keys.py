"""Claims that a key signed which a process does not know: set aside and told, never passed over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.check_world import JournalListener, wall_ms
from tests.kit.reading import bodies
from txmq.errors import ConfigError, StorageError
from txmq.ground.clock import timestamp
from txmq.message.lifecycle import ClaimKind, ClaimSource, TransactionState
from txmq.message.message import LocalTransactionState, Message
from txmq.message.reasons import GIVE_UP
from txmq.ops.admin.doctor import Doctor
from txmq.ops.admin.operator import Operator
from txmq.ops.admin.status import Admin
from txmq.ops.broker import Broker
from txmq.ops.brokers import Heartbeat
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.publish.publisher import Publisher
from txmq.store.brokers import BEAT_INTERVAL_MS, GONE_MS
from txmq.store.claim_writer import ClaimWriter
from txmq.store.config import Config
from txmq.store.op import OpRow, op_table
from txmq.store.set_aside import read_set_aside
from txmq.store.store import Store
from txmq.testing import ManualClock
from txmq.verify import verify

GROUP, VARIABLE = "orders", "ORDERS_CLAIM_KEY"
OLD, NEW = "0" * 64, "f" * 64
# The store as a process with these keys opens it.
Opened = Callable[[str], Store]


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Opened:
    Store.create(tmp_path / "store", Config(half_queues=1))

    def open_with(keys: str) -> Store:
        monkeypatch.setenv(VARIABLE, keys)
        store = Store.open(tmp_path / "store")
        return store.with_settings(store.config.replace(claim_keys={GROUP: VARIABLE}))

    return open_with


def prepared(store: Store, body: bytes = b"1", **values: object) -> Transaction:
    transaction = TransactionProducer(store, producer_group=GROUP).begin_transaction()
    transaction.send(Message("order-paid", body, **values))  # type: ignore[arg-type]
    transaction.prepare()
    return transaction


def claim(store: Store, transaction_id: str, kind: ClaimKind, **values: object) -> None:
    row = OpRow(transaction_id, kind, GROUP, ClaimSource.PRODUCER, wall_ms(), **values)  # type: ignore[arg-type]
    ClaimWriter(store.tables.op_log(), "test", 1).append([row])


def publish(store: Store) -> None:
    Publisher(store, clock=ManualClock()).run_once()


# --- the publisher --------------------------------------------------------------------------------


def test_a_message_that_an_unknown_key_committed_is_shown_when_the_key_is_known(
    opened: Opened,
) -> None:
    prepared(opened(NEW)).commit()
    TransactionProducer(opened(NEW), producer_group=GROUP).send(Message("order-paid", b"2"))

    publish(opened(OLD))
    assert bodies(opened(OLD)) == []
    assert len(read_set_aside(opened(OLD).tables).transactions) == 2

    publish(opened(f"{OLD} {NEW}"))
    assert sorted(bodies(opened(OLD))) == [b"1", b"2"]
    assert not read_set_aside(opened(OLD).tables).transactions
    assert verify(opened(OLD).location, claim_keys={GROUP: [OLD, NEW]}).is_clean


def test_other_transactions_go_on(opened: Opened) -> None:
    prepared(opened(NEW), b"unknown").commit()
    prepared(opened(OLD), b"known").commit()

    publish(opened(OLD))

    assert bodies(opened(OLD)) == [b"known"]


def test_the_end_of_an_unknown_key_stays_the_first(opened: Opened) -> None:
    transaction = prepared(opened(OLD))
    claim(opened(NEW), transaction.id, ClaimKind.ROLLBACK)
    claim(opened(OLD), transaction.id, ClaimKind.COMMIT)
    publish(opened(OLD))
    assert bodies(opened(OLD)) == []

    publish(opened(f"{OLD} {NEW}"))

    assert bodies(opened(OLD)) == []
    assert Admin(opened(OLD)).transaction(transaction.id).state is TransactionState.ROLLED_BACK


@pytest.mark.parametrize("rounds", [1, 2])
def test_an_end_of_an_unknown_key_after_the_end_holds_nothing_up(
    opened: Opened, rounds: int
) -> None:
    transaction = prepared(opened(OLD))
    transaction.commit()
    if rounds == 2:
        publish(opened(OLD))
    claim(opened(NEW), transaction.id, ClaimKind.ROLLBACK)
    publish(opened(OLD))

    assert bodies(opened(OLD)) == [b"1"]
    assert not read_set_aside(opened(OLD).tables).transactions


def test_a_delayed_message_that_an_unknown_key_recalled_is_not_delivered(opened: Opened) -> None:
    transaction = prepared(opened(OLD), delay_s=3_600)
    transaction.commit()
    publish(opened(OLD))
    claim(opened(NEW), transaction.id, ClaimKind.RECALL, sequences=(0,))
    claim(opened(OLD), transaction.id, ClaimKind.DELIVER, sequences=(0,))
    publish(opened(OLD))
    assert transaction.id in read_set_aside(opened(OLD).tables).transactions

    publish(opened(f"{NEW} {OLD}"))

    assert bodies(opened(OLD)) == []


def test_claims_after_one_of_an_unknown_key_wait_with_it_in_later_rounds(opened: Opened) -> None:
    transaction = prepared(opened(OLD))
    claim(opened(NEW), transaction.id, ClaimKind.COMMIT)
    publish(opened(OLD))
    claim(opened(OLD), transaction.id, ClaimKind.ROLLBACK)
    publish(opened(OLD))

    publish(opened(f"{OLD} {NEW}"))

    assert bodies(opened(OLD)) == [b"1"]


# --- who is told ----------------------------------------------------------------------------------


def test_doctor_and_status_name_the_key_that_is_not_known(opened: Opened) -> None:
    prepared(opened(NEW)).commit()
    publish(opened(OLD))

    (waiting,) = Admin(opened(OLD)).status().set_aside
    assert "signed by the key" in waiting.problem
    assert NEW not in waiting.problem
    findings = [
        finding
        for finding in Doctor(opened(OLD)).examine().findings
        if finding.where == "state/set_aside"
    ]
    assert "claim_keys" in findings[0].next_step


def test_a_caller_is_not_told_an_end_that_this_process_cannot_judge(opened: Opened) -> None:
    with TransactionProducer(opened(OLD), producer_group=GROUP) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message("order-paid", b"1"))
        transaction.prepare()
        claim(opened(NEW), transaction.id, ClaimKind.ROLLBACK)

        with pytest.raises(StorageError, match="give this process the old key and the new one"):
            transaction.commit()
        with pytest.raises(StorageError, match="cannot tell where transaction"):
            _ = transaction.state


def test_a_claim_of_an_unknown_key_fails_no_other_caller_of_its_commit(opened: Opened) -> None:
    with TransactionProducer(opened(OLD), producer_group=GROUP) as producer:
        transactions = []
        for body in (b"1", b"2"):
            transaction = producer.begin_transaction()
            transaction.send(Message("order-paid", body))
            transaction.prepare()
            transactions.append(transaction)
        claim(opened(NEW), transactions[0].id, ClaimKind.COMMIT)
        futures = [transaction.commit_async() for transaction in transactions]

        assert isinstance(futures[0].exception(), StorageError)
        assert futures[1].exception() is None


def test_nobody_is_asked_about_what_an_unknown_key_may_have_ended(
    opened: Opened, tmp_path: Path
) -> None:
    clock = ManualClock(wall_ms())
    transactions = [prepared(opened(OLD), body) for body in (b"1", b"2")]
    claim(opened(NEW), transactions[0].id, ClaimKind.COMMIT)
    clock.advance(100)
    listener = JournalListener(tmp_path / "asked", lambda _: LocalTransactionState.COMMIT)
    Broker(opened(OLD), clock=clock, listeners={GROUP: listener}).run_once()

    assert bodies(opened(OLD)) == [b"2"]


# --- brokers that do not know the key -------------------------------------------------------------


def beat(store: Store, clock: ManualClock) -> Heartbeat:
    heartbeat = Heartbeat(store.tables, clock, "its broker", ("publisher",))
    heartbeat.beat()
    return heartbeat


def send(producer: TransactionProducer) -> None:
    producer.send(Message("order-paid", b"1"))


def prepared_by(producer: TransactionProducer, **key: Any) -> Transaction:
    transaction = producer.begin_transaction(**key)
    transaction.send(Message("order-paid", b"1"))
    transaction.prepare()
    return transaction


WRITES: dict[str, Callable[[TransactionProducer, str], object]] = {
    "send": lambda producer, _: send(producer),
    "send_async": lambda producer, _: producer.send_async(Message("order-paid", b"1")),
    "prepare": lambda producer, _: prepared_by(producer),
    "prepare_keyed": lambda producer, _: prepared_by(
        producer, idempotency_key="1", key_timestamp=timestamp(wall_ms())
    ),
    "end_transaction": lambda producer, transaction_id: producer.end_transaction(
        transaction_id, LocalTransactionState.COMMIT
    ),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_producer_is_refused_while_a_running_broker_does_not_know_its_key(
    opened: Opened, write: Callable[[TransactionProducer, str], object]
) -> None:
    clock, transaction_id = ManualClock(wall_ms()), prepared(opened(OLD)).id
    beat(opened(OLD), clock)
    halves = opened(NEW).tables.half_log().table.refresh().version
    producer = TransactionProducer(opened(NEW), producer_group=GROUP, clock=clock)

    with pytest.raises(ConfigError, match="'its broker' knows") as error:
        write(producer, transaction_id)

    assert "both keys" in str(error.value)
    assert NEW not in str(error.value)
    assert opened(NEW).tables.half_log().table.refresh().version == halves
    beat(opened(f"{NEW} {OLD}"), clock)
    clock.advance(GONE_MS / 1000 + 1)
    write(producer, transaction_id)


def test_an_operator_is_refused_too(opened: Opened) -> None:
    clock = ManualClock(wall_ms())
    transaction = prepared(opened(OLD))
    beat(opened(OLD), clock)

    with pytest.raises(ConfigError, match="'its broker' knows"):
        Operator(opened(NEW), clock=clock).resolve(
            transaction.id, LocalTransactionState.COMMIT, reason="by hand", apply=True
        )


def test_brokers_that_cannot_harm_refuse_nobody(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(wall_ms())
    beat(opened(OLD), clock).end()
    beat(opened(OLD), clock)
    clock.advance(GONE_MS / 1000 + 1)
    without_keys = opened(OLD).with_settings(opened(OLD).config.replace(claim_keys={}))
    beat(without_keys, clock)
    believing: Any = {GROUP: {"variable": VARIABLE, "accept_unsigned": True}}
    beat(opened(OLD).with_settings(opened(OLD).config.replace(claim_keys=believing)), clock)
    beat(opened(f"{OLD} {NEW}"), clock)
    monkeypatch.setenv("OTHERS_KEY", OLD)
    of_others = opened(NEW).config.replace(claim_keys={"others": "OTHERS_KEY"})
    beat(opened(NEW).with_settings(of_others), clock)

    send(TransactionProducer(opened(NEW), producer_group=GROUP, clock=clock))


def test_what_brokers_say_is_read_again_after_a_heartbeat_and_not_for_each_send(
    opened: Opened,
) -> None:
    clock = ManualClock(wall_ms())
    producer = TransactionProducer(opened(NEW), producer_group=GROUP, clock=clock)
    send(producer)
    beat(opened(OLD), clock)
    send(producer)

    clock.advance(BEAT_INTERVAL_MS / 1000)

    with pytest.raises(ConfigError, match="'its broker' knows"):
        send(producer)


def test_what_brokers_say_of_themselves_may_be_damaged(opened: Opened) -> None:
    register = opened(OLD).tables.register("brokers", create=True)
    register.swap(register.read(), {"brokers": 5}, 0)

    send(TransactionProducer(opened(NEW), producer_group=GROUP))


# --- strangers and operators ----------------------------------------------------------------------


def signed_by_nobody(store: Store, transaction_id: str, kind: ClaimKind, signature: bytes) -> None:
    op = store.with_settings(store.config.replace(claim_keys={})).tables.op_log()
    row = OpRow(transaction_id, kind, GROUP, ClaimSource.OPERATOR, wall_ms(), reason=GIVE_UP)
    writer = ClaimWriter(op, "test", 1)
    rows = op_table([row], 0)
    place = rows.schema.get_field_index("signature")
    writer.append_table(rows.set_column(place, "signature", pa.array([signature], pa.binary())))


@pytest.mark.parametrize("length", [0, 32, 39, 41])
def test_what_is_no_signature_holds_nothing_up(opened: Opened, length: int) -> None:
    transaction = prepared(opened(OLD))
    signed_by_nobody(opened(OLD), transaction.id, ClaimKind.ROLLBACK, b"x" * length)
    transaction.commit()
    publish(opened(OLD))

    assert bodies(opened(OLD)) == [b"1"]


def test_a_stranger_cannot_give_up_what_waits_for_a_key(opened: Opened) -> None:
    transaction = prepared(opened(NEW))
    transaction.commit()
    signed_by_nobody(opened(OLD), transaction.id, ClaimKind.ROLLBACK, b"x" * 40)
    publish(opened(OLD))
    publish(opened(OLD))
    assert transaction.id in read_set_aside(opened(OLD).tables).transactions

    publish(opened(f"{OLD} {NEW}"))

    assert bodies(opened(OLD)) == [b"1"]


def test_an_operator_ends_what_waits_for_a_key_that_nobody_has(opened: Opened) -> None:
    transaction = prepared(opened(OLD))
    signed_by_nobody(opened(OLD), transaction.id, ClaimKind.ROLLBACK, b"x" * 40)
    claim(opened(OLD), transaction.id, ClaimKind.COMMIT)
    publish(opened(OLD))
    assert bodies(opened(OLD)) == []

    Operator(opened(OLD)).give_up(transaction.id, reason="no key of ours", apply=True)
    publish(opened(OLD))

    assert bodies(opened(OLD)) == [b"1"]
    assert not read_set_aside(opened(OLD).tables).transactions
