"""A retried job is the same transaction: what its second try finds, does and is told."""

from __future__ import annotations

import errno
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.builders import GROUP, table_versions
from tests.kit.reading import bodies, delta_rs, log_rows
from txmq.errors import (
    AlreadyResolvedError,
    DifferentMessagesError,
    IncompleteTransactionError,
    InvalidMessageError,
    StoreFullError,
)
from txmq.message.ids import (
    REPLAY,
    SEND_BACK,
    IdempotencyKey,
    check_transaction_id,
    keyed_transaction_id,
    transaction_time_ms,
)
from txmq.message.lifecycle import ClaimKind, ClaimSource, TransactionState
from txmq.message.message import LocalTransactionState, Message
from txmq.producer import once
from txmq.producer.producer import Transaction, TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.op import OpRow
from txmq.store.schemas import HALF
from txmq.store.store import Store
from txmq.testing import START_MS, ManualClock, before_commit, failing_commits
from txmq.verify import verify

KEY = "orders of hour 7"
FAR_EAST = timezone(timedelta(hours=23))


@pytest.fixture
def producer(store: Store, clock: ManualClock) -> TransactionProducer:
    return TransactionProducer(store, producer_group=GROUP, clock=clock)


def begun(producer: TransactionProducer, *bodies: bytes, key: str = KEY) -> Transaction:
    moment = datetime.fromtimestamp(producer.clock.now_ms() // 3_600_000 * 3_600, UTC)
    transaction = producer.begin_transaction(idempotency_key=key, key_timestamp=moment)
    for body in bodies or (b"42",):
        transaction.send(Message("order-paid", body))
    return transaction


def prepared(producer: TransactionProducer, *bodies: bytes, key: str = KEY) -> Transaction:
    transaction = begun(producer, *bodies, key=key)
    transaction.prepare()
    return transaction


def keyed(producer: TransactionProducer, *messages: Message) -> Transaction:
    moment = datetime.fromtimestamp(producer.clock.now_ms() // 3_600_000 * 3_600, UTC)
    transaction = producer.begin_transaction(idempotency_key=KEY, key_timestamp=moment)
    for message in messages:
        transaction.send(message)
    return transaction


def shown(store: Store) -> list[bytes]:
    Publisher(store).run_once()
    assert verify(store.location).is_clean
    topics = store.topics()
    return sorted(bodies(store)) if "order-paid" in topics else []


# --- the id ------------------------------------------------------------------------------------


@given(st.text(min_size=1), st.text(min_size=1), st.integers(0, 2**47), st.integers(0, 9))
def test_id_has_the_time_of_the_key_in_front(
    group: str, key: str, time_ms: int, attempt: int
) -> None:
    made = IdempotencyKey(key, time_ms).transaction_id(group, attempt)

    assert check_transaction_id(made) == made
    assert transaction_time_ms(made) == time_ms


def test_id_tells_groups_keys_times_and_attempts_apart() -> None:
    ids = {
        IdempotencyKey(key, time_ms).transaction_id(group, attempt)
        for key in ("a", "b")
        for time_ms in (START_MS, START_MS + 1)
        for group in ("g", "h")
        for attempt in (0, 1)
    }

    assert len(ids) == 16


@given(st.text(min_size=1), st.sampled_from([SEND_BACK, REPLAY]), st.text(), st.integers(0, 9))
def test_no_key_of_a_producer_has_the_id_of_what_a_consumer_group_sends(
    group: str, begin: str, rest: str, attempt: int
) -> None:
    key = IdempotencyKey(begin + rest, START_MS)
    sent_back = keyed_transaction_id(group, key.key, START_MS, attempt)

    assert key.transaction_id(group, attempt) != sent_back
    assert key.transaction_ids(group, attempt)[1:] == (sent_back,)


# --- the second try ----------------------------------------------------------------------------


def test_second_try_uses_the_halves_of_the_first(
    store: Store, producer: TransactionProducer
) -> None:
    first = prepared(producer)
    before = table_versions(store)

    second = prepared(producer)

    assert second.id == first.id
    assert table_versions(store) == before
    second.commit()
    assert shown(store) == [b"42"]


@pytest.mark.parametrize("is_published", [False, True])
def test_job_that_is_done_is_run_again_and_does_nothing(
    store: Store, producer: TransactionProducer, *, is_published: bool
) -> None:
    prepared(producer).commit()
    if is_published:
        Publisher(store).run_once()
    before = table_versions(store)
    again = begun(producer)

    assert again.state is TransactionState.COMMITTED
    again.prepare()
    again.commit()

    assert table_versions(store) == before
    assert shown(store) == [b"42"]


def test_state_is_that_of_all_tries(producer: TransactionProducer) -> None:
    first, unkeyed = begun(producer), producer.begin_transaction()
    assert first.state is None
    assert unkeyed.state is None

    first.prepare()
    assert first.state is begun(producer).state is TransactionState.PENDING

    first.rollback()
    assert first.state is TransactionState.ROLLED_BACK
    assert begun(producer).state is None


def test_end_that_stands_is_asked_for_again_and_writes_nothing(
    store: Store, producer: TransactionProducer
) -> None:
    for end in (Transaction.commit, Transaction.rollback):
        transaction = producer.begin_transaction()
        transaction.send(Message("order-paid", b"42"))
        transaction.prepare()
        end(transaction)
        before = table_versions(store)
        end(transaction)
        assert table_versions(store) == before


@pytest.mark.parametrize("is_settled", [False, True])
def test_after_a_rollback_the_next_attempt_has_an_id_of_its_own(
    store: Store, producer: TransactionProducer, *, is_settled: bool
) -> None:
    first = prepared(producer, b"first")
    first.rollback()
    if is_settled:
        Publisher(store).run_once()

    second = prepared(producer, b"second")

    assert second.id != first.id
    second.commit()
    assert shown(store) == [b"second"]


def test_attempts_go_on_after_several_rollbacks(
    store: Store, producer: TransactionProducer
) -> None:
    ids = []
    for _ in range(3):
        transaction = prepared(producer)
        ids.append(transaction.id)
        transaction.rollback()

    prepared(producer, b"at last").commit()

    assert len(set(ids)) == 3
    assert shown(store) == [b"at last"]


def test_rollback_between_begin_and_prepare_is_told(producer: TransactionProducer) -> None:
    first = prepared(producer)
    second = begun(producer)
    first.rollback()

    with pytest.raises(AlreadyResolvedError) as told:
        second.prepare()

    assert told.value.resolution == "ROLLED_BACK"


def test_discarded_work_waits_for_an_operator(
    store: Store, producer: TransactionProducer, clock: ManualClock
) -> None:
    first = prepared(producer)
    row = OpRow(first.id, ClaimKind.DISCARD, GROUP, ClaimSource.CHECK, clock.now_ms(), life=0)
    store.tables.op_log().append([row], 0, app_id="check", number=1)

    with pytest.raises(AlreadyResolvedError) as told:
        begun(producer).prepare()

    assert told.value.resolution == "DISCARDED"


def test_retry_after_lost_halves_is_told(store: Store, producer: TransactionProducer) -> None:
    first = prepared(producer, b"one", b"two")
    half = store.tables.half_log().table
    delta_rs(half.folder).delete("sequence = 1")

    with pytest.raises(IncompleteTransactionError) as told:
        begun(producer, b"one", b"two").prepare()

    assert (told.value.transaction_id, told.value.found) == (first.id, 1)


def test_other_keys_and_groups_are_other_transactions(
    store: Store, producer: TransactionProducer, clock: ManualClock
) -> None:
    other_group = TransactionProducer(store, producer_group="other", clock=clock)

    ids = {
        prepared(producer).id,
        prepared(producer, key="orders of hour 8").id,
        prepared(other_group).id,
    }

    assert len(ids) == 3


def test_tries_of_two_processes_at_once_show_one_set_of_messages(
    store: Store, clock: ManualClock
) -> None:
    producers = [TransactionProducer(store, producer_group=GROUP, clock=clock) for _ in range(4)]
    # Queues that are given in turn would differ between the tries.
    prepared(producers[0], b"other", key="other").rollback()

    def work(producer: TransactionProducer) -> str:
        try:
            prepared(producer, b"one", b"two", b"three").commit()
        except AlreadyResolvedError as error:
            return error.resolution
        return "COMMITTED"

    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(work, producers))

    assert ends == ["COMMITTED"] * 4
    assert sorted(shown(store)) == [b"one", b"three", b"two"]


# --- tries that meet, tries that differ -----------------------------------------------------------


def test_two_tries_at_once_whose_bodies_differ_are_one_transaction(
    store: Store, producer: TransactionProducer, clock: ManualClock
) -> None:
    other = TransactionProducer(store, producer_group=GROUP, clock=clock)
    late, quick = begun(producer, b"at 7:00:00"), begun(other, b"at 7:00:01")

    with (
        before_commit(quick.prepare, table="half"),
        pytest.raises(DifferentMessagesError) as told,
    ):
        late.prepare()
    quick.commit()

    assert (told.value.key, told.value.state) == (KEY, "PENDING")
    assert told.value.differences == ("message 0: body",)
    assert "7:00" not in str(told.value)
    assert shown(store) == [b"at 7:00:01"]


def test_two_equal_tries_at_once_are_both_told_the_truth(
    store: Store, producer: TransactionProducer, clock: ManualClock
) -> None:
    other = TransactionProducer(store, producer_group=GROUP, clock=clock)
    late, quick = begun(producer, b"1", b"2"), begun(other, b"1", b"2")

    with before_commit(quick.prepare, table="half"):
        late.prepare()
    late.commit()
    quick.commit()

    assert shown(store) == [b"1", b"2"]
    assert len(log_rows(store, "half")) == 2


def test_tries_at_once_whose_bodies_differ_have_one_winner_and_all_hear_it(
    store: Store, clock: ManualClock
) -> None:
    producers = [TransactionProducer(store, producer_group=GROUP, clock=clock) for _ in range(4)]

    def work(number: int) -> bool:
        try:
            prepared(producers[number], b"try %d" % number).commit()
        except DifferentMessagesError:
            return False
        return True

    expected: list[bytes] = []
    for _ in range(5):
        clock.advance(3600)
        with ThreadPoolExecutor(4) as pool:
            winners = [number for number, won in enumerate(pool.map(work, range(4))) if won]
        assert len(winners) == 1
        expected.append(b"try %d" % winners[0])
        assert shown(store) == sorted(expected)


PAID = Message("order-paid", b"42", "tag", "key", {"a": "b"}, "customer")


@pytest.mark.parametrize(
    ("again", "difference"),
    [
        ([Message("order-paid", b"43", "tag", "key", {"a": "b"}, "customer")], "body"),
        ([Message("order-paid", b"42", "other", "key", {"a": "b"}, "customer")], "tags"),
        ([Message("order-paid", b"42", "tag", "other", {"a": "b"}, "customer")], "keys"),
        ([Message("order-paid", b"42", "tag", "key", {"a": "c"}, "customer")], "properties"),
        ([Message("order-paid", b"42", "tag", "key", {"a": "b"}, "other")], "sharding_key"),
        ([Message("stock", b"42", "tag", "key", {"a": "b"}, "customer")], "topic"),
        ([Message("order-paid", b"42", "tag", "key", {"a": "b"}, "customer", delay_s=5)], "delay"),
        ([PAID, PAID], "1 single messages there, 2 here"),
    ],
)
@pytest.mark.parametrize("is_committed", [False, True])
def test_retry_with_other_messages_is_told_in_what_they_differ(
    store: Store,
    producer: TransactionProducer,
    again: list[Message],
    difference: str,
    *,
    is_committed: bool,
) -> None:
    first = keyed(producer, PAID)
    first.prepare()
    if is_committed:
        first.commit()
    before = table_versions(store)

    with pytest.raises(DifferentMessagesError, match=difference) as told:
        keyed(producer, *again).prepare()

    assert table_versions(store) == before
    assert told.value.state == ("COMMITTED" if is_committed else "PENDING")


def test_retry_with_the_same_messages_joins(store: Store, producer: TransactionProducer) -> None:
    message = Message("order-paid", b"", keys=["a", "b"], properties={"x": "1", "a": "2"})
    same = Message("order-paid", b"", keys="a b", properties={"a": "2", "x": "1"})
    keyed(producer, message, PAID).prepare()

    keyed(producer, same, PAID).prepare()

    assert len(log_rows(store, "half")) == 2


@pytest.mark.parametrize("error", [None, OSError("connection reset")])
def test_keyed_commit_whose_answer_was_lost_is_made_once(
    store: Store, producer: TransactionProducer, error: Exception | None
) -> None:
    with failing_commits(1, error=error, after_commit=True, table="half") as failed:
        prepared(producer, b"1", b"2").commit()

    assert len(failed) == 1
    assert shown(store) == [b"1", b"2"]


def test_keyed_half_that_cannot_be_written_is_told(
    store: Store, producer: TransactionProducer
) -> None:
    transaction = begun(producer)
    full = OSError(errno.ENOSPC, "No space left")
    with failing_commits(1, error=full, table="half"), pytest.raises(StoreFullError):
        transaction.prepare()

    transaction.prepare()
    transaction.commit()

    assert shown(store) == [b"42"]


def test_commit_that_cannot_take_effect_is_told(
    store: Store, producer: TransactionProducer
) -> None:
    transaction = prepared(producer)
    (row,) = log_rows(store, "half")
    other = pa.Table.from_pylist([{**row, "body": b"43"}], HALF.columns)
    store.tables.half_log().table.writer.append(other, app_id="an older txmq", number=1)

    with pytest.raises(IncompleteTransactionError):
        transaction.commit()

    Publisher(store).run_once()
    assert store.topics() == []
    # What nobody will see although it was committed is for a person to look at.
    assert verify(store.location).broken == ("I28",)


def test_lone_surrogate_in_a_key_is_refused(producer: TransactionProducer) -> None:
    with pytest.raises(InvalidMessageError, match="surrogate"):
        begun(producer, key="a\ud800")


def test_end_transaction_ends_it_from_another_process(
    store: Store, producer: TransactionProducer, clock: ManualClock
) -> None:
    transaction = prepared(producer)

    with TransactionProducer(store, producer_group=GROUP, clock=clock) as other:
        other.end_transaction(transaction.id, LocalTransactionState.COMMIT)

    assert shown(store) == [b"42"]


# --- what is refused ---------------------------------------------------------------------------

NOW = datetime.fromtimestamp(START_MS / 1000, UTC)


@pytest.mark.parametrize(
    "arguments",
    [
        {"idempotency_key": KEY},
        {"key_timestamp": NOW},
        {"idempotency_key": KEY, "key_timestamp": datetime.min.replace(tzinfo=FAR_EAST)},
        {"idempotency_key": "", "key_timestamp": NOW},
        {"idempotency_key": " ", "key_timestamp": NOW},
        {"idempotency_key": "x" * 20_000, "key_timestamp": NOW},
        {"idempotency_key": 7, "key_timestamp": NOW},
        {"idempotency_key": KEY, "key_timestamp": NOW.replace(tzinfo=None)},
        {"idempotency_key": KEY, "key_timestamp": START_MS},
        {"idempotency_key": KEY, "key_timestamp": NOW + timedelta(hours=2)},
        {"idempotency_key": KEY, "key_timestamp": NOW - timedelta(hours=73)},
        {"idempotency_key": KEY, "key_timestamp": datetime(1969, 1, 1, tzinfo=UTC)},
    ],
)
def test_key_that_a_retry_could_not_give_again_is_refused(
    store: Store, producer: TransactionProducer, arguments: dict[str, Any]
) -> None:
    before = table_versions(store)

    with pytest.raises(InvalidMessageError):
        producer.begin_transaction(**arguments)

    assert table_versions(store) == before


def test_time_of_the_key_may_have_any_zone(producer: TransactionProducer) -> None:
    tokyo = NOW.astimezone(ZoneInfo("Asia/Tokyo"))

    ids = {
        producer.begin_transaction(idempotency_key=KEY, key_timestamp=moment).id
        for moment in (NOW, tokyo)
    }

    assert len(ids) == 1


def test_files_that_a_producer_may_not_delete_stay(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EACCES, "denied")

    monkeypatch.setattr(once, "delete_files", refuse)
    files = [SimpleNamespace(path="part-1.parquet")]

    once.discard_files(store.tables.half_log().table, files)  # type: ignore[arg-type]
