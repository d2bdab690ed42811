"""Hooks around sends and ends: what they are told, and that they can harm neither (R89)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.builders import table_versions, transaction_id
from tests.kit.check_world import CheckWorld
from tests.kit.reading import rows_of
from txmq.check.recheck import RecheckJob
from txmq.errors import (
    AlreadyResolvedError,
    HookError,
    SendForbiddenError,
    StoreFullError,
    TxmqError,
)
from txmq.listeners.hooks import EndContext, SendContext, sent_messages
from txmq.message.lifecycle import ClaimKind, TransactionState
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store
from txmq.store.topic_settings import TopicKind
from txmq.testing import failing_commits

COMMIT, ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
UNKNOWN = LocalTransactionState.UNKNOWN
SECRET = b"secret-body"


class Recorder:
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.before: list[SendContext] = []
        self.after: list[SendContext] = []
        self.ends: list[EndContext] = []

    def before_send(self, context: SendContext) -> None:
        self.before.append(context)

    def after_send(self, context: SendContext) -> None:
        self.after.append(context)

    def end_transaction(self, context: EndContext) -> None:
        self.ends.append(context)


class Breaking(Recorder):
    """Fails wherever it can."""

    def before_send(self, _: SendContext) -> None:
        raise RuntimeError(SECRET)

    def after_send(self, _: SendContext) -> None:
        raise RuntimeError(SECRET)

    def end_transaction(self, _: EndContext) -> None:
        raise RuntimeError(SECRET)


class Veto:
    """Refuses a topic."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.asked: list[SendContext] = []

    def check_forbidden(self, context: SendContext) -> None:
        self.asked.append(context)
        if any(message.topic == "forbidden" for message in context.messages):
            raise self.error


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def producer(store: Store, recorder: Recorder) -> Iterator[TransactionProducer]:
    with TransactionProducer(store, producer_group="orders", hooks=[recorder]) as made:
        yield made


def prepared(producer: TransactionProducer, *messages: Message) -> Any:
    transaction = producer.begin_transaction()
    for message in messages or (Message("paid", SECRET, tags="new", keys="order-1"),):
        transaction.send(message)
    transaction.prepare()
    return transaction


# --- sends --------------------------------------------------------------------------------------


def test_a_send_is_told_before_and_after(producer: TransactionProducer, recorder: Recorder) -> None:
    transaction = prepared(producer)

    (before,), (after,) = recorder.before, recorder.after
    assert before.cost_ms is None
    assert after.cost_ms is not None
    assert after.error is None
    assert after.producer_group == "orders"
    assert after.transaction_ids == (transaction.id,)
    (sent,) = after.messages
    assert sent.message_id == f"{transaction.id}:0"
    assert (sent.topic, sent.tags, sent.keys) == ("paid", "new", "order-1")
    assert sent.body_size_bytes == len(SECRET)
    assert sent.kind is TopicKind.TRANSACTION


def test_all_messages_of_a_transaction_are_told_at_once(
    producer: TransactionProducer, recorder: Recorder
) -> None:
    prepared(producer, Message("paid", b"1"), Message("stock", b"22"))

    (after,) = recorder.after
    assert [(one.topic, one.body_size_bytes) for one in after.messages] == [
        ("paid", 1), ("stock", 2),
    ]  # fmt: skip


def test_bodies_are_never_told(producer: TransactionProducer, recorder: Recorder) -> None:
    prepared(producer).commit()

    told = [*recorder.before, *recorder.after, *recorder.ends]
    assert SECRET.decode() not in repr(told)


def test_a_send_that_fails_is_told_with_its_error(
    producer: TransactionProducer, recorder: Recorder
) -> None:
    full = OSError(28, "No space left on device")
    with failing_commits(1, error=full, table="half"), pytest.raises(StoreFullError) as refused:
        prepared(producer)

    (after,) = recorder.after
    assert after.error is refused.value


def test_a_hook_sees_names_without_their_namespace(store: Store, recorder: Recorder) -> None:
    with TransactionProducer(
        store, producer_group="orders", namespace="tenant", hooks=[recorder]
    ) as producer:
        prepared(producer).rollback()

    (sent,), (end,) = recorder.after, recorder.ends
    assert (sent.producer_group, sent.namespace) == ("orders", "tenant")
    assert sent.messages[0].topic == "paid"
    assert (end.producer_group, end.namespace) == ("orders", "tenant")


@pytest.mark.parametrize(
    ("message", "ordinary", "kind"),
    [
        (Message("t", b""), True, TopicKind.NORMAL),
        (Message("t", b"", sharding_key="k"), True, TopicKind.FIFO),
        (Message("t", b"", sharding_key="k", delay_s=5), True, TopicKind.DELAY),
        (Message("t", b"", sharding_key="k", delay_s=5), False, TopicKind.TRANSACTION),
    ],
)
def test_a_message_is_of_one_kind(message: Message, ordinary: bool, kind: TopicKind) -> None:  # noqa: FBT001
    (sent,) = sent_messages(transaction_id(1), [message], ordinary=ordinary)
    assert sent.kind is kind


# --- vetoes -------------------------------------------------------------------------------------


def test_a_veto_reaches_the_caller_before_a_byte_is_written(store: Store) -> None:
    versions = table_versions(store)
    veto = Veto(SendForbiddenError("the topic is closed on Sundays"))
    recorder = Recorder()
    with (
        TransactionProducer(store, producer_group="orders", hooks=[recorder, veto]) as producer,
        pytest.raises(SendForbiddenError, match="closed on Sundays"),
    ):
        prepared(producer, Message("forbidden", SECRET))

    assert table_versions(store) == versions
    assert recorder.before == []


def test_what_a_veto_raises_is_the_cause_and_its_text_is_not_repeated(store: Store) -> None:
    own = PermissionError(SECRET.decode())
    with (
        TransactionProducer(store, producer_group="orders", hooks=[Veto(own)]) as producer,
        pytest.raises(SendForbiddenError) as refused,
    ):
        prepared(producer, Message("forbidden", SECRET))

    assert isinstance(refused.value, TxmqError)
    assert refused.value.__cause__ is own
    assert "PermissionError" in str(refused.value)
    assert SECRET.decode() not in str(refused.value)


def test_a_send_that_is_not_vetoed_goes_on(store: Store) -> None:
    veto = Veto(ValueError())
    with TransactionProducer(store, producer_group="orders", hooks=[veto]) as producer:
        prepared(producer).commit()

    assert len(veto.asked) == 1
    assert len(rows_of(f"{store.location}/half")) == 1


# --- ends ---------------------------------------------------------------------------------------


def test_a_commit_is_told_as_a_commit(producer: TransactionProducer, recorder: Recorder) -> None:
    transaction = prepared(producer)
    transaction.commit()

    (end,) = recorder.ends
    assert end.transaction_id == transaction.id
    assert (end.asked, end.state) == (COMMIT, TransactionState.COMMITTED)
    assert (end.source, end.from_check) == ("producer", False)
    assert end.is_as_asked
    assert end.message_count == 1
    assert end.messages[0].keys == "order-1"


def test_a_rollback_is_told_as_a_rollback(
    producer: TransactionProducer, recorder: Recorder
) -> None:
    prepared(producer).rollback()

    (end,) = recorder.ends
    assert (end.asked, end.state) == (ROLLBACK, TransactionState.ROLLED_BACK)


def test_the_end_is_told_after_it_is_known(store: Store) -> None:
    class Looking(Recorder):
        def end_transaction(self, _: EndContext) -> None:
            self.claims = len(rows_of(f"{store.location}/op"))

    hook = Looking()
    with TransactionProducer(store, producer_group="orders", hooks=[hook]) as producer:
        prepared(producer).commit()

    assert hook.claims == 1


def test_another_end_is_told_as_what_it_is(store: Store, recorder: Recorder) -> None:
    with (
        TransactionProducer(store, producer_group="orders", hooks=[recorder]) as producer,
        TransactionProducer(store, producer_group="orders") as rival,
    ):
        transaction = prepared(producer)
        rival.end_transaction(transaction.id, ROLLBACK)
        with pytest.raises(AlreadyResolvedError) as refused:
            transaction.commit()

    (end,) = recorder.ends
    assert (end.asked, end.state) == (COMMIT, TransactionState.ROLLED_BACK)
    assert end.error is refused.value
    assert not end.is_as_asked


def test_an_end_that_is_not_durable_has_no_state(
    producer: TransactionProducer, recorder: Recorder
) -> None:
    transaction = prepared(producer)
    full = OSError(28, "No space left on device")
    with failing_commits(1, error=full, table="op"), pytest.raises(StoreFullError):
        transaction.commit()

    (end,) = recorder.ends
    assert end.state is None
    assert isinstance(end.error, StoreFullError)


def test_an_end_from_elsewhere_is_told_with_the_number_of_its_messages(
    store: Store, recorder: Recorder
) -> None:
    with (
        TransactionProducer(store, producer_group="orders") as first,
        TransactionProducer(store, producer_group="orders", hooks=[recorder]) as second,
    ):
        transaction = prepared(first, Message("paid", b"1"), Message("paid", b"2"))
        second.end_transaction(transaction.id, COMMIT)

    (end,) = recorder.ends
    assert (end.messages, end.message_count) == ((), 2)


def test_an_end_that_nobody_knows_is_told_as_unknown(store: Store, recorder: Recorder) -> None:
    class Undecided:
        def execute_local_transaction(self, *_: object) -> Any:
            return UNKNOWN

        def check_local_transaction(self, _: object) -> Any:
            return UNKNOWN

    with TransactionProducer(
        store, producer_group="orders", listener=Undecided(), hooks=[recorder]
    ) as producer:
        result = producer.send_message_in_transaction(Message("paid", b"1"))

    (end,) = recorder.ends
    assert end.transaction_id == result.transaction_id
    assert (end.asked, end.state) == (UNKNOWN, None)


# --- hooks that fail ------------------------------------------------------------------------------


def test_a_hook_that_raises_holds_up_nothing_and_is_logged_by_type(
    store: Store, recorder: Recorder, caplog: pytest.LogCaptureFixture
) -> None:
    hooks = [Breaking(), recorder]
    with (
        caplog.at_level(logging.WARNING, "txmq.listeners.hooks"),
        TransactionProducer(store, producer_group="orders", hooks=hooks) as producer,
    ):
        prepared(producer).commit()

    assert len(recorder.after) == len(recorder.ends) == 1
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"hook Breaking raised RuntimeError in {method}"
        for method in ("before_send", "after_send", "end_transaction")
    ]


class Half:
    def before_send(self, context: object) -> None:
        raise NotImplementedError


class Async:
    async def end_transaction(self, context: object) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("hook", [object(), None, "hook", Recorder, Half(), Async()])
def test_what_is_no_hook_is_refused(store: Store, hook: object) -> None:
    with pytest.raises(HookError, match="before_send"):
        TransactionProducer(store, producer_group="orders", hooks=[hook])  # type: ignore[list-item]
    with pytest.raises(HookError):
        RecheckJob(store, hooks=[hook])  # type: ignore[list-item]


def test_a_hook_alone_is_refused(store: Store) -> None:
    with pytest.raises(HookError, match="a list"):
        TransactionProducer(store, producer_group="orders", hooks=Recorder())  # type: ignore[arg-type]


# --- the check ------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Any) -> CheckWorld:
    return CheckWorld(tmp_path, transaction_check_max=1)


def rechecked(world: CheckWorld, answer: Any, *hooks: Any) -> None:
    world.clock.advance(60)
    listeners = {"orders": world.listener(answer)}
    RecheckJob(world.store, listeners=listeners, clock=world.clock, hooks=hooks).run_once()


@pytest.mark.parametrize(
    ("answer", "state"),
    [(COMMIT, TransactionState.COMMITTED), (ROLLBACK, TransactionState.ROLLED_BACK)],
)
def test_the_check_tells_of_the_ends_that_it_writes(
    world: CheckWorld, answer: LocalTransactionState, state: TransactionState
) -> None:
    (own_id,) = world.prepare()
    recorder = Recorder()

    rechecked(world, answer, recorder)

    (end,) = recorder.ends
    assert (end.transaction_id, end.producer_group) == (own_id, "orders")
    assert (end.asked, end.state) == (answer, state)
    assert (end.from_check, end.source) == (True, "recheck")


def test_the_check_tells_of_a_discard(world: CheckWorld) -> None:
    world.prepare()
    recorder = Recorder()

    rechecked(world, UNKNOWN, recorder)
    assert recorder.ends == []
    rechecked(world, UNKNOWN, recorder)

    (end,) = recorder.ends
    assert (end.asked, end.state) == (UNKNOWN, TransactionState.DISCARDED)


def test_the_check_tells_the_end_that_was_first(world: CheckWorld) -> None:
    (own_id,) = world.prepare()
    recorder = Recorder()

    def answer(_: object) -> LocalTransactionState:
        # While the listener thinks, its producer rolls back.
        world.claim([own_id], ClaimKind.ROLLBACK)
        return COMMIT

    rechecked(world, answer, recorder)

    (end,) = recorder.ends
    assert (end.asked, end.state) == (COMMIT, TransactionState.ROLLED_BACK)
    assert end.source == "producer"
    assert not end.is_as_asked


def test_a_hook_that_raises_does_not_stop_the_check(world: CheckWorld) -> None:
    world.prepare(3)

    rechecked(world, COMMIT, Breaking())

    assert len(world.claims(ClaimKind.COMMIT)) == 3


def test_hooks_without_an_interest_in_ends_cost_the_check_nothing(world: CheckWorld) -> None:
    world.prepare()

    rechecked(world, COMMIT, Veto(ValueError()))

    assert len(world.claims(ClaimKind.COMMIT)) == 1


# --- ordinary and asynchronous sends --------------------------------------------------------------


class Answering:
    """Runs local transactions by saying what their argument says."""

    def execute_local_transaction(self, _: object, argument: object) -> Any:
        return argument

    def check_local_transaction(self, _: object) -> Any:
        return UNKNOWN


def test_an_ordinary_send_is_one_send_and_no_end(
    producer: TransactionProducer, recorder: Recorder
) -> None:
    result = producer.send([Message("paid", b"1"), Message("paid", b"2", delay_s=60)])

    (before,), (after,) = recorder.before, recorder.after
    assert before.transaction_ids == after.transaction_ids == result.transaction_ids
    assert tuple(one.message_id for one in after.messages) == result.message_ids
    assert [one.kind for one in after.messages] == [TopicKind.NORMAL, TopicKind.DELAY]
    assert recorder.ends == []


def test_an_ordinary_send_that_is_not_acknowledged_is_told_with_its_error(
    producer: TransactionProducer, recorder: Recorder
) -> None:
    full = OSError(28, "No space left on device")
    with failing_commits(1, error=full, table="op"), pytest.raises(StoreFullError) as refused:
        producer.send(Message("paid", b"1"))

    (after,) = recorder.after
    assert after.error is refused.value


def test_a_veto_of_an_ordinary_send_reaches_the_caller_at_once(store: Store) -> None:
    hooks = [Veto(SendForbiddenError("closed"))]
    with TransactionProducer(store, producer_group="orders", hooks=hooks) as producer:
        versions = table_versions(store)
        for _ in range(3):
            with pytest.raises(SendForbiddenError, match="closed"):
                producer.send_async(Message("forbidden", b""))

        assert table_versions(store) == versions
        assert producer.send(Message("paid", b"")).message_ids


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (COMMIT, TransactionState.COMMITTED),
        (ROLLBACK, TransactionState.ROLLED_BACK),
        (UNKNOWN, None),
    ],
)
def test_an_asynchronous_transaction_is_told_as_any_other(
    store: Store, recorder: Recorder, answer: LocalTransactionState, state: TransactionState | None
) -> None:
    with TransactionProducer(
        store, producer_group="orders", listener=Answering(), hooks=[recorder]
    ) as producer:
        future = producer.send_message_in_transaction_async(Message("paid", SECRET), answer)
        result = future.result(30)
        # Hooks hear of it before the caller does.
        (after,), (end,) = recorder.after, recorder.ends

    assert after.transaction_ids == (result.transaction_id,)
    assert (end.transaction_id, end.asked, end.state) == (result.transaction_id, answer, state)
    assert [one.message_id for one in end.messages] == [result.message_id]


def test_a_veto_of_an_asynchronous_transaction_leaves_its_room_free(store: Store) -> None:
    hooks = [Veto(SendForbiddenError("closed"))]
    store.config = store.config.replace(back_pressure_for_async_send_num=1)
    with TransactionProducer(
        store, producer_group="orders", listener=Answering(), hooks=hooks
    ) as producer:
        for _ in range(3):
            with pytest.raises(SendForbiddenError):
                producer.send_message_in_transaction_async(Message("forbidden", b""), COMMIT)

        assert producer.send_message_in_transaction_async(Message("paid", b""), COMMIT).result(30)


def test_an_asynchronous_end_that_is_not_durable_has_no_state(
    store: Store, recorder: Recorder
) -> None:
    full = OSError(28, "No space left on device")
    with (
        failing_commits(1, error=full, table="op"),
        TransactionProducer(
            store, producer_group="orders", listener=Answering(), hooks=[recorder]
        ) as producer,
    ):
        future = producer.send_message_in_transaction_async(Message("paid", b""), COMMIT)
        assert isinstance(future.exception(30), StoreFullError)

    (end,) = recorder.ends
    assert end.state is None
    assert isinstance(end.error, StoreFullError)


def test_a_message_that_was_never_acknowledged_is_told_as_rolled_back(world: CheckWorld) -> None:
    recorder = Recorder()
    full = OSError(28, "No space left on device")
    with (
        TransactionProducer(world.store, producer_group="orders") as producer,
        failing_commits(1, error=full, table="op"),
        pytest.raises(StoreFullError),
    ):
        producer.send(Message("paid", b"1"))

    rechecked(world, COMMIT, recorder)

    (end,) = recorder.ends
    assert (end.asked, end.state) == (ROLLBACK, TransactionState.ROLLED_BACK)
    assert end.reason == "NOT_ACKNOWLEDGED"
