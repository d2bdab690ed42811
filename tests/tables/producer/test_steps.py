"""The steps of a transaction without a thread that waits, as futures and under asyncio."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from tests.kit.reading import topic_rows
from txmq import AsyncTransactionProducer
from txmq.errors import (
    AlreadyPreparedError,
    AlreadyResolvedError,
    ClosedError,
    InvalidMessageError,
    LocalTransactionError,
    NotEndedError,
    NotPreparedError,
    StorageError,
)
from txmq.listeners.hooks import EndContext, SendContext
from txmq.message.lifecycle import ClaimKind, TransactionState
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.pipeline import STEP_THREADS
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.testing import before_commit, failing_commits

GROUP = "orders"


@pytest.fixture
def producer(store: Store) -> Iterator[TransactionProducer]:
    with TransactionProducer(store, producer_group=GROUP) as made:
        yield made


def begun(producer: TransactionProducer, body: bytes = b"paid") -> Transaction:
    transaction = producer.begin_transaction()
    transaction.send(Message("order-paid", body))
    return transaction


def published(store: Store) -> list[bytes]:
    Publisher(store).run_once()
    return sorted(row["body"] for row in topic_rows(store))


# --- futures ------------------------------------------------------------------------------------


def test_futures_prepare_and_commit(store: Store, producer: TransactionProducer) -> None:
    transactions = [begun(producer, b"%02d" % number) for number in range(20)]

    for future in [transaction.prepare_async() for transaction in transactions]:
        future.result()
    for future in [transaction.commit_async() for transaction in transactions]:
        future.result()

    assert [transaction.state for transaction in transactions] == [TransactionState.COMMITTED] * 20
    assert published(store) == [b"%02d" % number for number in range(20)]


def test_whoever_waits_for_the_halves_may_end_at_once(producer: TransactionProducer) -> None:
    for _ in range(50):
        transaction = begun(producer)
        transaction.prepare_async().result()
        transaction.commit()


def test_rollback_before_prepare_writes_nothing(
    store: Store, producer: TransactionProducer
) -> None:
    begun(producer).rollback_async().result()

    assert store.tables.op_log().table.version == 0


def test_end_by_kind(producer: TransactionProducer) -> None:
    transaction = begun(producer)
    transaction.prepare_async().result()
    transaction.end_async(ClaimKind.ROLLBACK).result()
    transaction.rollback_async().result()

    assert transaction.state is TransactionState.ROLLED_BACK
    with pytest.raises(AlreadyResolvedError):
        transaction.commit_async().result()


def test_calls_in_the_wrong_order_are_refused_at_once(producer: TransactionProducer) -> None:
    with pytest.raises(InvalidMessageError):
        producer.begin_transaction().prepare_async()
    transaction = begun(producer)
    with pytest.raises(NotPreparedError):
        transaction.commit_async()
    future = transaction.prepare_async()
    with pytest.raises(AlreadyPreparedError):
        transaction.prepare_async()
    future.result()
    with pytest.raises(AlreadyPreparedError):
        transaction.send(Message("order-paid", b"late"))


def test_error_of_the_storage_reaches_the_future(
    store: Store, producer: TransactionProducer
) -> None:
    transaction = begun(producer)
    with failing_commits(1, error=OSError(28, "No space left on device"), table="half"):
        failed = transaction.prepare_async()
        with pytest.raises(StorageError, match="no space"):
            failed.result()

    transaction.prepare_async().result()
    transaction.commit_async().result()
    assert published(store) == [b"paid"]


def test_other_end_that_was_first_reaches_the_future(
    store: Store, producer: TransactionProducer
) -> None:
    transaction = begun(producer)
    transaction.prepare()

    def rollback() -> None:
        with TransactionProducer(store, producer_group=GROUP) as another:
            another.end_transaction(transaction.id, LocalTransactionState.ROLLBACK)

    with before_commit(rollback, table="op"), pytest.raises(AlreadyResolvedError):
        transaction.commit_async().result()


def test_key_joins_an_earlier_try(store: Store, producer: TransactionProducer) -> None:
    key: dict[str, Any] = {"idempotency_key": "k", "key_timestamp": datetime.now(UTC)}
    for _ in range(2):
        transaction = producer.begin_transaction(**key)
        transaction.send(Message("order-paid", b"once"))
        transaction.prepare_async().result()
        transaction.commit_async().result()

    assert published(store) == [b"once"]


def test_marker_that_is_missing_refuses_the_commit(
    store: Store, producer: TransactionProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = begun(producer)
    transaction.prepare()
    waiters: list[str] = []

    def missing() -> None:
        waiters.append(threading.current_thread().name)
        raise LocalTransactionError(transaction.id, "delta", "no marker")

    monkeypatch.setattr(type(transaction._local), "is_unmarked", property(lambda _: False))
    monkeypatch.setattr(transaction._local, "confirm", missing)
    with pytest.raises(LocalTransactionError):
        transaction.commit_async().result()

    assert waiters[0].startswith("txmq-step")
    assert store.tables.op_log().table.version == 0


def test_bytes_on_their_way_are_bounded(tmp_path: Any) -> None:
    config = Config(back_pressure_for_async_send_size_bytes=1_000_000)
    store = Store.create(tmp_path / "store", config)
    with TransactionProducer(store, producer_group=GROUP) as producer:
        room = producer._parts.futures._room
        transactions = [begun(producer, bytes(400_000)) for _ in range(12)]
        futures = [transaction.prepare_async() for transaction in transactions]
        taken_bytes = room.taken_bytes
        for future in futures:
            future.result()

    assert taken_bytes <= 1_000_000
    assert room.taken_bytes == 0


@pytest.mark.parametrize("is_keyed", [False, True])
def test_callers_wait_where_too_many_bytes_are_on_their_way(
    tmp_path: Any, *, is_keyed: bool
) -> None:
    config = Config(back_pressure_for_async_send_size_bytes=1_000_000)
    store = Store.create(tmp_path / "store", config)
    futures: list[Future[None]] = []
    most = 0
    with TransactionProducer(store, producer_group=GROUP) as producer:
        for number in range(40):
            key = f"key-{number}" if is_keyed else None
            now = datetime.now(UTC) if is_keyed else None
            transaction = producer.begin_transaction(idempotency_key=key, key_timestamp=now)
            transaction.send(Message("order-paid", bytes(400_000)))
            futures.append(transaction.prepare_async())
            most = max(most, sum(not future.done() for future in futures))
        for future in futures:
            future.result()

    # Two have room; a future is done a little after its room is free.
    assert most <= 8


def test_callback_that_prepares_more_waits_for_nobody(tmp_path: Any) -> None:
    config = Config(back_pressure_for_async_send_size_bytes=1_000)
    store = Store.create(tmp_path / "store", config)
    more: list[Future[None]] = []
    have_all = threading.Event()
    with TransactionProducer(store, producer_group=GROUP) as producer:

        def callback(_: object) -> None:
            more.extend(begun(producer, bytes(900)).prepare_async() for _ in range(3))
            if len(more) == 30:
                have_all.set()

        for _ in range(10):
            begun(producer, bytes(900)).prepare_async().add_done_callback(callback)
        have_them = have_all.wait(60)
        for future in more:
            future.result(60)

    assert have_them


def test_event_loop_never_waits_for_room(tmp_path: Any) -> None:
    config = Config(back_pressure_for_async_send_size_bytes=1_000)
    store = Store.create(tmp_path / "store", config)

    async def pay(producer: AsyncTransactionProducer, number: int) -> None:
        key: dict[str, Any] = {"idempotency_key": f"k{number}", "key_timestamp": datetime.now(UTC)}
        async with producer.begin_transaction(**(key if number % 2 else {})) as transaction:
            transaction.send(Message("order-paid", bytes(900)))
            await transaction.prepare()
            await transaction.commit()

    async def story() -> None:
        async with AsyncTransactionProducer(store, producer_group=GROUP) as producer:
            await asyncio.wait_for(asyncio.gather(*(pay(producer, n) for n in range(20))), 120)

    run(story())

    assert len(published(store)) == 20


def test_closed_producer_refuses(store: Store) -> None:
    producer = TransactionProducer(store, producer_group=GROUP)
    prepared, new = begun(producer), begun(producer)
    prepared.prepare()
    producer.close()

    for step in (new.prepare_async, prepared.commit_async):
        with pytest.raises(ClosedError):
            step().result()


class Told:
    """What the hooks were told."""

    def __init__(self) -> None:
        self.sends: list[BaseException | None] = []
        self.ends: list[BaseException | None] = []

    def before_send(self, context: SendContext) -> None:
        """Nothing to do."""

    def after_send(self, context: SendContext) -> None:
        self.sends.append(context.error)

    def end_transaction(self, context: EndContext) -> None:
        self.ends.append(context.error)
        raise SystemExit("a hook that breaks")


def test_hooks_are_told_and_cannot_break_a_commit(store: Store) -> None:
    hook = Told()
    with TransactionProducer(store, producer_group=GROUP, hooks=[hook]) as producer:
        transactions = [begun(producer) for _ in range(3)]
        for transaction in transactions:
            transaction.prepare_async().result()
            transaction.commit_async().result()

    assert hook.sends == [None] * 3
    assert hook.ends == [None] * 3


# --- asyncio ------------------------------------------------------------------------------------


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_many_tasks_share_commits(store: Store) -> None:
    async def pay(producer: AsyncTransactionProducer, number: int) -> None:
        async with producer.begin_transaction() as transaction:
            transaction.send(Message("order-paid", b"%03d" % number))
            await transaction.prepare()
            await transaction.commit()

    async def story() -> None:
        async with AsyncTransactionProducer(store, producer_group=GROUP) as producer:
            await asyncio.gather(*(pay(producer, number) for number in range(200)))

    run(story())

    assert len(published(store)) == 200
    assert store.tables.op_log().table.version < 100


def test_block_without_an_end_says_so(store: Store) -> None:
    async def story() -> None:
        async with (
            AsyncTransactionProducer(store, producer_group=GROUP) as producer,
            producer.begin_transaction() as transaction,
        ):
            transaction.send(Message("order-paid", b"1"))
            await transaction.prepare()

    with pytest.raises(NotEndedError):
        run(story())


def test_everything_of_a_producer_is_there(store: Store) -> None:
    async def story() -> None:
        key: dict[str, Any] = {"idempotency_key": "k", "key_timestamp": datetime.now(UTC)}
        async with AsyncTransactionProducer(store, producer_group=GROUP) as producer:
            sent = await producer.send(Message("order-paid", b"ordinary"))
            assert sent.message_ids
            async with producer.begin_transaction(**key) as transaction:
                transaction.send(Message("order-paid", b"keyed"))
                await transaction.prepare()
                await transaction.end(ClaimKind.COMMIT)
                assert await transaction.state() is TransactionState.COMMITTED
            async with producer.begin_transaction() as dropped:
                dropped.send(Message("order-paid", b"never"))
                await dropped.prepare()
                await producer.end_transaction(dropped.id, LocalTransactionState.ROLLBACK)
                await dropped.rollback()

    run(story())

    assert published(store) == [b"keyed", b"ordinary"]


def test_transaction_outside_of_its_block_is_not_begun(store: Store) -> None:
    transaction = AsyncTransactionProducer(store, producer_group=GROUP).begin_transaction()

    with pytest.raises(NotPreparedError):
        transaction.send(Message("order-paid", b"1"))


def test_task_that_is_cancelled_has_claimed_its_end_all_the_same(store: Store) -> None:
    async def story() -> None:
        async with (
            AsyncTransactionProducer(store, producer_group=GROUP) as producer,
            producer.begin_transaction() as transaction,
        ):
            transaction.send(Message("order-paid", b"1"))
            await transaction.prepare()
            task = asyncio.ensure_future(transaction.commit())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(story())

    assert published(store) == [b"1"]


def test_task_that_is_cancelled_while_its_marker_waits_to_be_looked_up_has_claimed_its_end(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    async def story() -> None:
        async with (
            AsyncTransactionProducer(store, producer_group=GROUP) as producer,
            producer.begin_transaction() as transaction,
        ):
            local, futures = transaction.transaction._local, producer.producer._parts.futures
            monkeypatch.setattr(type(local), "is_unmarked", property(lambda _: False))
            monkeypatch.setattr(local, "confirm", lambda: None)
            transaction.send(Message("order-paid", b"1"))
            await transaction.prepare()
            for _ in range(STEP_THREADS):
                futures.in_thread(partial(go_on.wait, 60))
            task = asyncio.ensure_future(transaction.commit())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()
            await asyncio.to_thread(futures.close)

    run(story())

    assert published(store) == [b"1"]
