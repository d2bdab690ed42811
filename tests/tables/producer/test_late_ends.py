"""Ends that come so late that retention has taken what was there before: the first end wins."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import pytest

from tests.kit.builders import GROUP, table_versions
from tests.kit.reading import bodies, log_rows
from tests.kit.steps import maintain
from txmq.errors import AlreadyResolvedError, TransactionForgottenError, TransactionNotFoundError
from txmq.message.lifecycle import ClaimKind, ClaimSource, TransactionState
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.publish.publisher import Publisher
from txmq.store.known import FORGOTTEN_BEFORE
from txmq.store.logs import EndReader
from txmq.store.op import OpRow
from txmq.store.settled import SettledLog
from txmq.store.store import Store
from txmq.testing import ManualClock, before_commit
from txmq.verify import verify

DAY_S = 86_400.0
COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK


@pytest.fixture
def clock() -> ManualClock:
    """Files carry the machine's time, so this is where the clock begins."""
    return ManualClock(now_ms=time.time_ns() // 1_000_000)


@pytest.fixture
def producer(store: Store, clock: ManualClock) -> TransactionProducer:
    return TransactionProducer(store, producer_group=GROUP, clock=clock)


def prepared(producer: TransactionProducer) -> Transaction:
    transaction = producer.begin_transaction()
    transaction.send(Message("order-paid", b"42"))
    transaction.prepare()
    return transaction


def rolled_back_by_the_check(store: Store, transaction_id: str) -> None:
    now_ms = time.time_ns() // 1_000_000
    row = OpRow(transaction_id, ClaimKind.ROLLBACK, GROUP, ClaimSource.CHECK, now_ms)
    store.tables.op_log().append([row], 0, app_id="check", number=1)


def forgotten(store: Store, days: float = 5.0) -> None:
    """Everything is published, then its days are over."""
    # What expires in the first round is a claim of that day.
    for ahead in (days, days + 7, days + 7):
        Publisher(store).run_once()
        maintain(store, days_ahead=ahead)
    assert log_rows(store, "half") == []
    assert log_rows(store, "op") == []


def retention_took(store: Store, *paths: str) -> None:
    """These logs lost all days up to now, and the register says so."""
    register, tomorrow = store.tables.register("maintenance"), datetime.now(UTC) + timedelta(days=1)
    value = {FORGOTTEN_BEFORE: tomorrow.date().isoformat()}
    register.swap(register.read(), value, 0)
    for path in paths:
        table = store.tables.table_at(path)
        table.writer.remove(table.files.all())


def test_commit_after_the_rollback_was_forgotten_is_refused(
    store: Store, producer: TransactionProducer, clock: ManualClock
) -> None:
    transaction = prepared(producer)
    rolled_back_by_the_check(store, transaction.id)
    forgotten(store)
    clock.advance(5 * DAY_S)

    with pytest.raises(TransactionForgottenError, match="retention"):
        transaction.commit()

    Publisher(store).run_once()
    assert store.topics() == []


def test_commit_after_the_expiry_was_forgotten_is_refused(
    store: Store, producer: TransactionProducer, clock: ManualClock
) -> None:
    transaction = prepared(producer)
    forgotten(store)
    clock.advance(20 * DAY_S)

    with pytest.raises(TransactionForgottenError):
        transaction.commit()

    assert transaction.state is None


def test_commit_that_slept_until_the_rollback_was_forgotten_is_refused(
    store: Store, producer: TransactionProducer
) -> None:
    transaction = prepared(producer)

    def meanwhile() -> None:
        rolled_back_by_the_check(store, transaction.id)
        forgotten(store)

    with before_commit(meanwhile, table="op"), pytest.raises(TransactionForgottenError):
        transaction.commit()

    Publisher(store).run_once()
    assert store.topics() == []


def test_commit_that_sleeps_after_it_read_the_claims_hears_what_retention_took(
    store: Store, producer: TransactionProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = prepared(producer)
    rolled_back_by_the_check(store, transaction.id)
    Publisher(store).run_once()
    contested = EndReader.contested

    def read_late(reader: EndReader, transaction_ids: Sequence[str]) -> list[str]:
        retention_took(store, "op", "half")
        return contested(reader, transaction_ids)

    monkeypatch.setattr(EndReader, "contested", read_late)
    with pytest.raises(AlreadyResolvedError):
        transaction.commit()


def test_commit_where_the_fact_alone_is_left_hears_it(
    store: Store, producer: TransactionProducer, clock: ManualClock
) -> None:
    transaction = prepared(producer)
    rolled_back_by_the_check(store, transaction.id)
    Publisher(store).run_once()
    retention_took(store, "half", "op")
    clock.advance(5 * DAY_S)

    with pytest.raises(AlreadyResolvedError) as raised:
        transaction.commit()

    assert (raised.value.resolution, raised.value.source) == ("ROLLED_BACK", "check")


@pytest.mark.parametrize("set_back_s", [2 * DAY_S, 30 * DAY_S])
def test_clock_that_was_set_back_does_not_make_an_old_transaction_young(
    store: Store, producer: TransactionProducer, clock: ManualClock, set_back_s: float
) -> None:
    clock.advance(set_back_s)
    transaction = prepared(producer)
    rolled_back_by_the_check(store, transaction.id)
    forgotten(store, days=set_back_s / DAY_S + 5)
    clock.advance(-set_back_s)

    with pytest.raises(TransactionForgottenError):
        transaction.commit()


def test_transaction_that_was_open_for_days_is_looked_up_whatever_the_clock_says(
    store: Store, producer: TransactionProducer
) -> None:
    transaction = prepared(producer)
    rolled_back_by_the_check(store, transaction.id)
    forgotten(store)

    # The clock stands still; this process has seen the time pass.
    transaction._prepared_s -= 5 * DAY_S
    with pytest.raises(TransactionForgottenError):
        transaction.commit()

    # A COMMIT that comes to nothing would look like a promise.
    assert log_rows(store, "op") == []
    assert verify(store.location).broken == ()


@pytest.mark.parametrize(
    ("first", "state"),
    [(COMMIT, TransactionState.COMMITTED), (ROLLBACK, TransactionState.ROLLED_BACK)],
)
def test_end_by_id_where_the_halves_are_gone_hears_the_end_that_stands(
    store: Store,
    producer: TransactionProducer,
    first: LocalTransactionState,
    state: TransactionState,
) -> None:
    transaction = prepared(producer)
    producer.end_transaction(transaction.id, first)
    Publisher(store).run_once()
    half = store.tables.table_at("half")
    half.writer.remove(half.files.all())
    before = table_versions(store)

    producer.end_transaction(transaction.id, first)
    with pytest.raises(AlreadyResolvedError) as raised:
        producer.end_transaction(transaction.id, ROLLBACK if first is COMMIT else COMMIT)

    assert raised.value.resolution == state.value
    assert table_versions(store) == before


def test_end_by_id_of_what_nobody_keeps_is_not_found(
    store: Store, producer: TransactionProducer
) -> None:
    transaction = prepared(producer)
    transaction.rollback()
    forgotten(store)

    with pytest.raises(TransactionNotFoundError):
        producer.end_transaction(transaction.id, COMMIT)


def test_late_commit_of_an_open_transaction_counts(
    store: Store, producer: TransactionProducer, clock: ManualClock
) -> None:
    transaction = prepared(producer)
    clock.advance(2 * DAY_S)

    transaction.commit()

    Publisher(store).run_once()
    assert bodies(store) == [b"42"]


def refuse(*_: object) -> None:
    problem = "a young end must not read this"
    raise AssertionError(problem)


@pytest.mark.parametrize("end", [Transaction.commit, Transaction.rollback])
def test_young_end_reads_the_op_log_alone(
    producer: TransactionProducer,
    monkeypatch: pytest.MonkeyPatch,
    end: Callable[[Transaction], None],
) -> None:
    transaction = prepared(producer)
    monkeypatch.setattr(SettledLog, "facts_of", refuse)
    monkeypatch.setattr("txmq.store.half.HalfLog.summaries", refuse)

    end(transaction)
