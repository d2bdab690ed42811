"""Transactions that are sent without waiting: the same promises, in fewer commits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.kit.delay_world import GROUP, TOPIC, DelayWorld
from tests.kit.reading import bodies, publish
from txmq.errors import (
    AlreadyResolvedError,
    ClosedError,
    ListenerError,
    MessageTooLargeError,
    NotAcceptedError,
    StorageError,
)
from txmq.listeners.protocol import HalfMessage
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.producer import TransactionProducer
from txmq.producer.routing import SendResult
from txmq.store.store import Store
from txmq.testing import failing_commits

STATES = {b"c": LocalTransactionState.COMMIT, b"r": LocalTransactionState.ROLLBACK,
          b"u": LocalTransactionState.UNKNOWN}  # fmt: skip


class Listener:
    """Answers by the first byte of the body, and notes what was durable when it was called."""

    def __init__(self) -> None:
        self.called: list[tuple[str, object]] = []
        self.threads: set[str] = set()

    def execute_local_transaction(
        self, message: HalfMessage, argument: object
    ) -> LocalTransactionState:
        self.called.append((message.transaction_id, argument))
        self.threads.add(threading.current_thread().name)
        if message.body[:1] == b"x":
            problem = "no money"
            raise ValueError(problem)
        return STATES[message.body[:1]]

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        raise NotImplementedError


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def world(tmp_path: Path, listener: Listener) -> Iterator[DelayWorld]:
    made = DelayWorld(tmp_path, local_transaction_threads=3)
    made.producer.close()
    made.producer = TransactionProducer(
        made.store, producer_group=GROUP, listener=listener, clock=made.clock
    )
    yield made
    made.producer.close()


def test_each_ends_as_its_local_transaction_did(world: DelayWorld) -> None:
    bodies = [kind + b"%d" % number for number in range(30) for kind in (b"c", b"r", b"u", b"x")]
    futures = [
        world.producer.send_message_in_transaction_async(Message(TOPIC, body)) for body in bodies
    ]
    results = [future.result(30) for future in futures]
    world.publisher.run_once()

    expected = [STATES.get(body[:1], LocalTransactionState.UNKNOWN) for body in bodies]
    assert [result.local_transaction_state for result in results] == expected
    shown = {row["message_id"] for row in world.rows()}
    assert shown == {
        result.message_id for result in results
        if result.local_transaction_state is LocalTransactionState.COMMIT
    }  # fmt: skip


def test_listener_gets_its_argument_once_in_its_own_threads(
    world: DelayWorld, listener: Listener
) -> None:
    futures = [
        world.producer.send_message_in_transaction_async(Message(TOPIC, b"c"), number)
        for number in range(100)
    ]
    results = [future.result(30) for future in futures]

    expected = {result.transaction_id: number for number, result in enumerate(results)}
    assert len(listener.called) == 100
    assert dict(listener.called) == expected
    assert listener.threads <= {"txmq-local-0", "txmq-local-1", "txmq-local-2"}


def test_half_is_durable_before_the_local_transaction_runs(
    world: DelayWorld, listener: Listener
) -> None:
    seen: list[bool] = []

    def look(message: HalfMessage, _: object) -> LocalTransactionState:
        seen.append(world.store.tables.half_log().halves(message.transaction_id) is not None)
        return LocalTransactionState.COMMIT

    listener.execute_local_transaction = look  # type: ignore[method-assign]
    futures = [
        world.producer.send_message_in_transaction_async(Message(TOPIC, b"c")) for _ in range(20)
    ]
    assert [future.result(30).local_transaction_state for future in futures]
    assert seen == [True] * 20


def test_without_a_half_there_is_no_local_transaction(
    world: DelayWorld, listener: Listener
) -> None:
    with failing_commits(1, error=OSError("disk"), table="half"):
        future = world.producer.send_message_in_transaction_async(Message(TOPIC, b"c"))
        with pytest.raises(StorageError):
            future.result(30)

    assert listener.called == []


def test_end_that_could_not_be_written_is_told(world: DelayWorld) -> None:
    with failing_commits(1, error=OSError("disk"), table="op"):
        future = world.producer.send_message_in_transaction_async(Message(TOPIC, b"c"))
        with pytest.raises(StorageError):
            future.result(30)


def test_end_that_another_was_faster_with_is_told(world: DelayWorld, listener: Listener) -> None:
    def beaten(message: HalfMessage, _: object) -> LocalTransactionState:
        with TransactionProducer(world.store, producer_group=GROUP, clock=world.clock) as other:
            other.end_transaction(message.transaction_id, LocalTransactionState.ROLLBACK)
        return LocalTransactionState.COMMIT

    listener.execute_local_transaction = beaten  # type: ignore[method-assign]
    future = world.producer.send_message_in_transaction_async(Message(TOPIC, b"c"))

    with pytest.raises(AlreadyResolvedError):
        future.result(30)


def test_many_share_each_commit(world: DelayWorld) -> None:
    half = world.store.tables.half_log().table.version
    futures = [
        world.producer.send_message_in_transaction_async(Message(TOPIC, b"c")) for _ in range(2000)
    ]
    assert all(future.result(60) for future in futures)

    assert world.store.tables.half_log().table.version - half <= 200
    assert world.store.tables.op_log().table.version <= 200


def test_send_on_its_way_cannot_be_cancelled(world: DelayWorld) -> None:
    futures = [
        world.producer.send_message_in_transaction_async(Message(TOPIC, b"c")) for _ in range(20)
    ]
    ordinary = world.producer.send_async(Message(TOPIC, b"ordinary"))

    assert not any(future.cancel() for future in (*futures, ordinary))
    assert all(future.result(30) for future in futures)
    assert ordinary.result(30).message_ids


def test_close_ends_all_that_is_on_its_way(world: DelayWorld) -> None:
    futures = [
        world.producer.send_message_in_transaction_async(Message(TOPIC, b"c")) for _ in range(300)
    ]
    world.producer.close()
    world.publisher.run_once()

    assert all(future.done() for future in futures)
    assert len(world.rows()) == 300
    with pytest.raises(ClosedError):
        world.producer.send_message_in_transaction_async(Message(TOPIC, b"c"))


def test_callers_wait_where_too_many_are_on_their_way(tmp_path: Path, listener: Listener) -> None:
    world = DelayWorld(tmp_path, back_pressure_for_async_send_num=5)
    with TransactionProducer(
        world.store, producer_group=GROUP, listener=listener, clock=world.clock
    ) as producer:
        futures = [
            producer.send_message_in_transaction_async(Message(TOPIC, b"c")) for _ in range(100)
        ]
        assert len(producer._async._halves._waiting) <= 5
        assert all(future.result(30) for future in futures)
    world.producer.close()


class PanicException(BaseException):
    """No Exception, as a panic of a native library."""


@pytest.mark.parametrize("broken", [SystemExit, KeyboardInterrupt, PanicException])
def test_local_transaction_that_raises_no_exception_is_unknown_and_harms_nobody(
    world: DelayWorld, listener: Listener, broken: type[BaseException]
) -> None:
    def execute(message: HalfMessage, _: object) -> LocalTransactionState:
        if message.body == b"broken":
            raise broken
        return LocalTransactionState.COMMIT

    listener.execute_local_transaction = execute  # type: ignore[method-assign]
    bodies = [b"broken", *[b"c"] * 20] * 8
    futures = [
        world.producer.send_message_in_transaction_async(Message(TOPIC, body)) for body in bodies
    ]

    states = [future.result(30).local_transaction_state for future in futures]

    assert states == [
        LocalTransactionState.UNKNOWN if body == b"broken" else LocalTransactionState.COMMIT
        for body in bodies
    ]
    world.producer.close()
    world.publisher.run_once()
    assert len(world.rows()) == 8 * 20


@pytest.mark.parametrize("broken", [SystemExit, PanicException])
def test_hook_or_callback_that_raises_no_exception_harms_nobody(
    world: DelayWorld, broken: type[BaseException]
) -> None:
    class Hook:
        def before_send(self, _: object) -> None: ...

        def after_send(self, _: object) -> None:
            raise broken

        def end_transaction(self, _: object) -> None:
            raise broken

    def callback(_: object) -> None:
        raise broken

    with TransactionProducer(
        world.store, producer_group=GROUP, listener=Listener(), clock=world.clock, hooks=[Hook()]
    ) as producer:
        for _ in range(3):
            futures = [producer.send_async(Message(TOPIC, b"o"))]
            futures += [producer.send_message_in_transaction_async(Message(TOPIC, b"c"))]  # type: ignore[list-item]
            for future in futures:
                future.add_done_callback(callback)
            assert [future.exception(30) for future in futures] == [None, None]


def test_threads_that_cannot_be_started_refuse_the_send(
    world: DelayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = world.producer._async._local
    start, tries = local._start, [RuntimeError("can't start new thread")]

    def refused() -> None:
        if tries:
            raise tries.pop()
        start()

    monkeypatch.setattr(local, "_start", refused)

    with pytest.raises(RuntimeError, match="start new thread"):
        world.producer.send_message_in_transaction_async(Message(TOPIC, b"c")).result(30)

    again = world.producer.send_message_in_transaction_async(Message(TOPIC, b"c"))
    assert again.result(30).local_transaction_state is LocalTransactionState.COMMIT


# --- bytes --------------------------------------------------------------------------------------


def test_callers_wait_where_the_sends_on_their_way_hold_too_many_bytes(
    tmp_path: Path, listener: Listener
) -> None:
    world = DelayWorld(tmp_path, back_pressure_for_async_send_size_bytes=1000)
    most = 0
    with TransactionProducer(
        world.store, producer_group=GROUP, listener=listener, clock=world.clock
    ) as producer:
        futures = []
        for _ in range(50):
            futures.append(producer.send_message_in_transaction_async(Message(TOPIC, b"c" * 300)))
            most = max(most, producer._async._room.taken_bytes)
        assert all(future.result(30) for future in futures)
        # A message that is larger than all the room is sent alone.
        assert producer.send_async(Message(TOPIC, b"c" * 5000)).result(30)
    assert most <= 1000
    assert producer._async._room.taken_bytes == 0
    world.producer.close()


def test_interrupt_after_a_send_was_queued_gives_its_room_back_once(
    world: DelayWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends = world.producer._async
    put = sends._halves.put

    def interrupted(*arguments: Any) -> None:
        put(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sends._halves, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            world.producer.send_async(Message(TOPIC, b"c"))
    world.producer.close()

    assert sends._room.taken_bytes == 0


def test_callback_that_sends_again_waits_for_nobody(tmp_path: Path) -> None:
    world = DelayWorld(tmp_path, back_pressure_for_async_send_size_bytes=100)
    again: list[Future[SendResult]] = []
    have_all = threading.Event()

    def callback(_: object) -> None:
        again.append(world.producer.send_async(Message(TOPIC, b"c" * 90)))
        if len(again) == 10:
            have_all.set()

    for _ in range(10):
        world.producer.send_async(Message(TOPIC, b"c" * 90)).add_done_callback(callback)

    assert have_all.wait(30)
    assert all(future.result(30) for future in again)
    world.producer.close()


def test_callback_may_wait_for_another_send(world: DelayWorld) -> None:
    later: list[SendResult] = []
    has_sent = threading.Event()

    def callback(_: object) -> None:
        later.append(world.producer.send(Message(TOPIC, b"c")))
        has_sent.set()

    world.producer.send_async(Message(TOPIC, b"c")).add_done_callback(callback)

    assert has_sent.wait(30)
    assert later[0].message_ids


def test_callback_that_takes_long_holds_up_no_caller_who_waits(world: DelayWorld) -> None:
    is_called, go_on = threading.Event(), threading.Event()

    def callback(_: object) -> None:
        is_called.set()
        go_on.wait(60)

    world.producer.send_async(Message(TOPIC, b"c")).add_done_callback(callback)
    assert is_called.wait(30)

    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(world.producer.send, Message(TOPIC, b"c"))
        try:
            assert sent.result(30).message_ids
        finally:
            go_on.set()


def test_sends_and_prepares_that_nobody_waits_for_share_the_room(tmp_path: Path) -> None:
    world = DelayWorld(tmp_path, back_pressure_for_async_send_size_bytes=1000)
    most = 0
    futures: list[Future[Any]] = []
    for _ in range(10):
        transaction = world.producer.begin_transaction()
        transaction.send(Message(TOPIC, b"c" * 300))
        futures += [transaction.prepare_async()]
        futures += [world.producer.send_async(Message(TOPIC, b"c" * 300))]
        most = max(most, world.producer._async._room.taken_bytes)
    for future in futures:
        future.result(30)

    assert most <= 1000
    assert world.producer._async._room.taken_bytes == 0
    world.producer.close()


def test_callbacks_that_send_more_than_the_queue_holds_wait_for_nobody(tmp_path: Path) -> None:
    world = DelayWorld(tmp_path, back_pressure_for_async_send_num=3)
    again: list[Future[SendResult]] = []
    have_all = threading.Event()

    def callback(_: object) -> None:
        again.extend(world.producer.send_async(Message(TOPIC, b"c")) for _ in range(20))
        if len(again) == 200:
            have_all.set()

    for _ in range(10):
        world.producer.send_async(Message(TOPIC, b"c")).add_done_callback(callback)

    assert have_all.wait(60)
    assert all(future.result(60) for future in again)
    world.producer.close()


def test_send_that_fails_gives_its_bytes_back(world: DelayWorld) -> None:
    with failing_commits(1, error=OSError("disk"), table="half"):
        future = world.producer.send_async(Message(TOPIC, b"c" * 100))
        with pytest.raises(StorageError):
            future.result(30)

    assert world.producer._async._room.taken_bytes == 0


@pytest.mark.parametrize("step", ["_finish", "_executed"])
def test_nobody_waits_for_ever_whatever_goes_wrong_in_a_step(
    world: DelayWorld, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def broken(*_: object) -> None:
        problem = "a fault of ours"
        raise RuntimeError(problem)

    monkeypatch.setattr(world.producer._async, step, broken)
    future = world.producer.send_async(Message(TOPIC, b"c"))

    with pytest.raises(RuntimeError, match="a fault of ours"):
        future.result(30)


def test_bad_input_is_refused_at_once(world: DelayWorld) -> None:
    world.store.config = world.store.config.replace(max_message_size_bytes=10)
    version = world.store.tables.half_log().table.version
    with pytest.raises(MessageTooLargeError):
        world.producer.send_message_in_transaction_async(Message(TOPIC, b"c" * 11))
    with (
        TransactionProducer(world.store, producer_group=GROUP) as without,
        pytest.raises(ListenerError),
    ):
        without.send_message_in_transaction_async(Message(TOPIC, b"c"))
    world.store.config = world.store.config.replace(reject_transaction_message=True)
    with pytest.raises(NotAcceptedError):
        world.producer.send_message_in_transaction_async(Message(TOPIC, b"c"))

    assert world.store.tables.half_log().table.version == version


# --- one of many ------------------------------------------------------------------------------


class Waiting:
    """Its first local transaction waits for an event."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def execute_local_transaction(
        self,
        message: HalfMessage,
        argument: object,  # noqa: ARG002
    ) -> LocalTransactionState:
        if message.body == b"waits":
            self.go_on.wait(60.0)
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, message: HalfMessage) -> LocalTransactionState:
        raise NotImplementedError


def test_local_transaction_that_takes_long_holds_up_no_other(store: Store) -> None:
    listener = Waiting()
    with TransactionProducer(store, producer_group=GROUP, listener=listener) as producer:
        slow = producer.send_message_in_transaction_async(Message(TOPIC, b"waits"))
        others = [
            producer.send_message_in_transaction_async(Message(TOPIC, b"quick")) for _ in range(100)
        ]
        states = [future.result(60.0).local_transaction_state for future in others]
        assert not slow.done()
        listener.go_on.set()

    assert states == [LocalTransactionState.COMMIT] * 100
    assert slow.result().local_transaction_state is LocalTransactionState.COMMIT


def test_ordinary_message_goes_on_where_no_thread_for_local_transactions_can_start(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name.startswith("txmq-local"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    with TransactionProducer(store, producer_group=GROUP, listener=Waiting()) as producer:
        for number in range(20):
            ordinary = producer.send_async([Message(TOPIC, b"%d" % number)])
            with_local = producer.send_message_in_transaction_async(Message(TOPIC, b"local"))
            assert ordinary.exception(60.0) is None
            assert isinstance(with_local.exception(60.0), RuntimeError)
        room = producer._async._room.taken_bytes
    publish(store)

    assert sorted(bodies(store, TOPIC)) == sorted(b"%d" % number for number in range(20))
    assert room == 0
