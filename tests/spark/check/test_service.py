from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.check_world import COMMIT, GROUP, ROLLBACK, UNKNOWN, CheckWorld, wait_until
from txmq.check.recheck import RecheckJob
from txmq.check.service import CheckHandle, CheckService
from txmq.errors import ListenerError
from txmq.ground.clock import AffineClock, SystemClock
from txmq.message.lifecycle import ClaimKind
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.testing import failing_commits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from txmq.ground.clock import Clock

PATIENCE_S = 240.0
# The recheck would find everything by itself; here the join shall.
JOIN_ONLY = {
    "check_trigger_interval_s": 1.0,
    "recheck_interval_s": 100_000.0,
}


@pytest.fixture
def world(tmp_path: Path) -> CheckWorld:
    return CheckWorld(tmp_path, listener_timeout_s=10.0, check_lease_s=60.0, **JOIN_ONLY)


@pytest.fixture
def start(spark: SparkSession, world: CheckWorld) -> Iterator[Callable[..., CheckHandle]]:
    handles: list[CheckHandle] = []

    def run(clock: Clock | None = None, **listeners: Any) -> CheckHandle:
        service = CheckService(world.store, spark=spark, listeners=listeners, clock=clock)
        handles.append(service.start())
        wait_for_batch(handles[-1])
        return handles[-1]

    yield run
    for handle in handles:
        handle.stop()


def wait_for_batch(handle: CheckHandle, count: int = 1) -> None:
    """Wait until the running join has seen `count` more micro-batches."""

    def batches() -> int:
        assert handle.exception is None, handle.exception
        running = handle._trigger._running
        return 0 if running is None else running.batches

    goal = batches() + count
    wait_until(lambda: batches() >= goal, "a micro-batch", PATIENCE_S)


def without_rechecks(handle: CheckHandle) -> None:
    handle._rechecked_s = float("inf")


def sources(world: CheckWorld) -> set[str]:
    return {row["source"] for row in world.claims() if row["source"] != "producer"}


def wait_for_answers(world: CheckWorld, ids: list[str]) -> None:
    """A listener is asked before its answer is a row."""
    wait_until(lambda: len(world.claims(ClaimKind.COMMIT)) >= len(ids), "answers", PATIENCE_S)


# --- run_once --------------------------------------------------------------------------------


def test_run_once_is_a_recheck_and_needs_no_spark(world: CheckWorld) -> None:
    ids, listener = world.prepare(3), world.listener(COMMIT)
    world.clock.advance(10)

    result = CheckService(world.store, listeners={GROUP: listener}, clock=world.clock).run_once()

    assert result.checks.committed == 3
    assert sorted(listener.asked()) == sorted(ids)


def test_run_once_again_asks_nobody(world: CheckWorld) -> None:
    world.prepare(3)
    world.clock.advance(10)
    service = CheckService(world.store, listeners={GROUP: world.listener()}, clock=world.clock)
    service.run_once()

    assert service.run_once().checks.asked == 0


def test_listener_that_cannot_answer_is_refused(world: CheckWorld) -> None:
    with pytest.raises(ListenerError):
        CheckService(world.store, listeners={GROUP: object()})  # type: ignore[dict-item]


# --- the join --------------------------------------------------------------------------------


def test_join_asks_what_is_due_and_only_that(
    world: CheckWorld, start: Callable[..., CheckHandle]
) -> None:
    listener = world.listener(COMMIT)
    handle = start(orders=listener)
    without_rechecks(handle)

    answered = world.prepare(100, immunity_s=2.0)
    world.claim(answered, ClaimKind.COMMIT)
    unanswered = world.prepare(10, immunity_s=0.5)
    wait_until(lambda: len(listener.asked()) >= 10, "ten questions", PATIENCE_S)
    wait_for_batch(handle, 3)

    assert sorted(listener.asked()) == sorted(unanswered)
    assert sources(world) == {"check"}
    assert handle.checked.committed == 10


def test_rocketmqs_settings_ask_after_6_and_before_36_seconds(
    world: CheckWorld, start: Callable[..., CheckHandle]
) -> None:
    listener, clock = world.listener(ROLLBACK), AffineClock.from_now(speed=2.0)
    handle = start(clock, orders=listener)
    without_rechecks(handle)
    ids = world.prepare(5, immunity_s=6.0)
    wait_until(lambda: len(listener.asked()) >= 5, "five questions", PATIENCE_S)

    stored_ms = world.store.tables.half_log().table.folder.commit_times_ms()[1]
    waited_s = [
        (clock.at(round(at_s * 1000)) - clock.at(stored_ms)) / 1000
        for at_s in listener.first_asked_s().values()
    ]
    assert sorted(listener.asked()) == sorted(ids)
    assert min(waited_s) >= 6.0
    assert max(waited_s) <= 36.0


def test_unknown_is_asked_again_until_the_maximum_and_discarded(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = CheckWorld(
        tmp_path, transaction_check_interval_s=0.5, transaction_check_max=3, **JOIN_ONLY
    )
    listener = world.listener(UNKNOWN)
    handle = CheckService(world.store, spark=spark, listeners={GROUP: listener}).start()
    wait_for_batch(handle)
    without_rechecks(handle)
    ids = world.prepare(4, immunity_s=0.5)
    wait_until(lambda: len(world.claims(ClaimKind.DISCARD)) == 4, "discards", PATIENCE_S)
    wait_for_batch(handle, 3)
    handle.stop()

    assert sorted(listener.asked()) == sorted(ids * 3)
    assert sorted(listener.check_times()) == [0] * 4 + [1] * 4 + [2] * 4
    assert [row["kind"] for row in world.claims()].count("DISCARD") == 4
    assert sources(world) == {"check"}
    assert world.half_rows() == 4


def test_immunity_of_20_minutes_is_neither_counted_nor_discarded(
    spark: SparkSession, tmp_path: Path
) -> None:
    groups = {GROUP: {"transaction_timeout_s": 1_200.0, "transaction_check_interval_s": 1.0}}
    world = CheckWorld(tmp_path, transaction_check_max=3, groups=groups, **JOIN_ONLY)
    clock, listener = AffineClock.from_now(speed=600.0), world.listener(UNKNOWN)
    handle = CheckService(
        world.store, spark=spark, listeners={GROUP: listener}, clock=clock
    ).start()
    wait_for_batch(handle)
    without_rechecks(handle)
    world.prepare(immunity_s=1_200.0)
    stored_ms = clock.at(world.store.tables.half_log().table.folder.commit_times_ms()[1])
    wait_until(lambda: len(world.claims(ClaimKind.DISCARD)) == 1, "the discard", PATIENCE_S)
    handle.stop()

    asked_ms = [clock.at(round(at_s * 1000)) for at_s in listener.first_asked_s().values()]
    assert min(asked_ms) >= stored_ms + 1_200_000
    assert listener.check_times() == [0, 1, 2]
    assert [row["kind"] for row in world.claims()] == ["UNKNOWN"] * 3 + ["DISCARD"]
    assert sources(world) == {"check"}
    assert world.half_rows() == 1


def test_join_asks_what_a_producer_renewed_only_once_nobody_holds_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = CheckWorld(tmp_path, producer_lease_s=3.0, transaction_timeout_s=1.0, **JOIN_ONLY)
    listener = world.listener(ROLLBACK)
    handle = CheckService(world.store, spark=spark, listeners={GROUP: listener}).start()
    wait_for_batch(handle)
    without_rechecks(handle)
    with TransactionProducer(world.store, producer_group=GROUP) as producer:
        held = [producer.begin_transaction()]
        held[0].send(Message("paid", b"1"))
        held[0].prepare()
        wait_until(lambda: len(world.claims(ClaimKind.UNKNOWN)) >= 3, "renewals", PATIENCE_S)
        questions_before = listener.asked()
        key = held.pop().id
        wait_until(lambda: listener.asked() != [], "the question", PATIENCE_S)
    handle.stop()

    assert (questions_before, listener.asked()) == ([], [key])
    assert {row["reason"] for row in world.claims(ClaimKind.UNKNOWN)} == {"PRODUCER_LIVES"}


def test_set_form_answers_for_the_join(spark: SparkSession, tmp_path: Path) -> None:
    world = CheckWorld(tmp_path, listener_timeout_s=60.0, check_lease_s=90.0, **JOIN_ONLY)
    asked: list[int] = []

    class Orders:
        def check_local_transactions(self, heads: DataFrame) -> DataFrame:
            asked.append(heads.count())
            return heads.selectExpr("transaction_id", "'COMMIT' as state")

    handle = CheckService(world.store, spark=spark, listeners={GROUP: Orders()}).start()
    wait_for_batch(handle)
    without_rechecks(handle)
    ids = world.prepare(500, immunity_s=0.5)
    wait_for_answers(world, ids)
    handle.stop()

    assert asked == [500]
    assert sources(world) == {"check"}
    assert handle.exception is None


def test_two_services_and_rechecks_at_once_never_ask_more_than_the_maximum(
    spark: SparkSession, tmp_path: Path
) -> None:
    world = CheckWorld(
        tmp_path,
        transaction_check_interval_s=0.3,
        transaction_check_max=3,
        listener_timeout_s=20.0,
        check_lease_s=120.0,
        check_trigger_interval_s=1.0,
    )
    listener = world.listener(UNKNOWN)
    services = [
        CheckService(world.store, spark=spark, listeners={GROUP: listener}).start()
        for _ in range(2)
    ]
    for handle in services:
        wait_for_batch(handle)
    done = threading.Event()

    def recheck() -> None:
        while not done.is_set():
            RecheckJob(world.store, listeners={GROUP: listener}).run_once()

    rechecking = threading.Thread(target=recheck)
    rechecking.start()
    ids = world.prepare(25, immunity_s=0.5)
    wait_until(lambda: len(world.claims(ClaimKind.DISCARD)) >= 25, "discards", PATIENCE_S)
    for handle in services:
        wait_for_batch(handle, 2)
    done.set()
    rechecking.join()
    for handle in services:
        handle.stop()
        assert handle.exception is None

    assert sorted(listener.asked()) == sorted(ids * 3)
    assert sorted(listener.check_times()) == sorted([0, 1, 2] * 25)


def test_listener_that_hangs_does_not_keep_the_service_from_others(
    world: CheckWorld, start: Callable[..., CheckHandle]
) -> None:
    released = threading.Event()
    stuck, listener = world.listener(lambda _: released.wait(60.0)), world.listener(COMMIT)
    start(orders=listener, stuck=stuck)
    world.prepare(3, group="stuck", immunity_s=0.1)
    wait_until(lambda: len(stuck.asked()) >= 1, "a question that hangs", PATIENCE_S)
    ids = world.prepare(3, immunity_s=0.1)
    wait_until(lambda: len(listener.asked()) >= 3, "three questions", PATIENCE_S)
    released.set()

    assert sorted(listener.asked()) == sorted(ids)


# --- the recheck beside it ---------------------------------------------------------------------


def test_what_was_due_before_the_start_is_asked_by_a_recheck(
    world: CheckWorld, start: Callable[..., CheckHandle]
) -> None:
    listener = world.listener(COMMIT)
    ids = world.prepare(3, immunity_s=0.001)
    start(orders=listener)
    wait_for_answers(world, ids)

    assert sorted(listener.asked()) == sorted(ids)
    assert sources(world) == {"recheck"}


def test_rows_that_a_failing_store_did_not_take_are_found_again(
    world: CheckWorld, start: Callable[..., CheckHandle]
) -> None:
    listener = world.listener(COMMIT)
    handle = start(orders=listener)
    without_rechecks(handle)
    with failing_commits(1, error=OSError(28, "No space left on device"), table="check_lease"):
        ids = world.prepare(3, immunity_s=0.1)
        wait_until(lambda: handle.last_error is not None, "the error", PATIENCE_S)
    wait_until(lambda: len(listener.asked()) >= 3, "three questions", PATIENCE_S)

    assert sorted(listener.asked()) == sorted(ids)
    assert handle.is_alive


def test_query_that_fails_is_started_anew_with_a_recheck(
    world: CheckWorld, start: Callable[..., CheckHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = world.listener(COMMIT)
    handle = start(orders=listener)
    without_rechecks(handle)
    running = handle._trigger._running
    assert running is not None
    monkeypatch.setattr(running, "_on_due", lambda *_: 1 / 0)
    ids = world.prepare(3, immunity_s=0.1)
    wait_until(lambda: handle._trigger._running is not running, "another query", PATIENCE_S)
    wait_until(lambda: len(listener.asked()) >= 3, "three questions", PATIENCE_S)

    assert sorted(listener.asked()) == sorted(ids)
    assert handle.is_alive
    assert handle.exception is None


def test_checkpoint_that_is_deleted_under_the_query_costs_nothing(
    world: CheckWorld, start: Callable[..., CheckHandle]
) -> None:
    import shutil

    listener = world.listener(COMMIT)
    handle = start(orders=listener)
    without_rechecks(handle)
    # The query writes beside it.
    shutil.rmtree(world.folder / "store" / "checkpoints", ignore_errors=True)
    ids = world.prepare(3, immunity_s=0.1)
    wait_until(lambda: len(listener.asked()) >= 3, "three questions", PATIENCE_S)

    assert sorted(listener.asked()) == sorted(ids)
    assert handle.is_alive


def test_dropped_rows_lead_to_a_recheck_and_a_new_query(
    world: CheckWorld, start: Callable[..., CheckHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = world.listener(COMMIT)
    ids = world.prepare(3, immunity_s=3.0)
    # The join begins with the newest commit, so the one before is the recheck's.
    world.prepare(immunity_s=10_000.0)
    handle = start(orders=listener)
    without_rechecks(handle)
    running = handle._trigger._running
    assert running is not None
    time_s = time.monotonic()
    wait_until(lambda: time.monotonic() > time_s + 3.0, "the deadline")
    monkeypatch.setattr(running, "has_dropped_rows", lambda: True)
    wait_until(lambda: handle._trigger._running is not running, "another query", PATIENCE_S)
    wait_for_answers(world, ids)

    assert sorted(listener.asked()) == sorted(ids)
    assert sources(world) == {"recheck"}


def test_while_the_join_cannot_run_the_recheck_asks_every_interval(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import txmq.spark.join_trigger as module

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no query")

    monkeypatch.setattr(module, "start_check_stream", broken)
    world = CheckWorld(tmp_path, transaction_check_interval_s=0.5, **JOIN_ONLY)
    listener = world.listener(UNKNOWN)
    handle = CheckService(world.store, spark=spark, listeners={GROUP: listener}).start()
    ids = world.prepare(immunity_s=0.1)
    wait_until(lambda: len(listener.asked()) >= 3, "three questions", PATIENCE_S)
    handle.stop()

    assert set(listener.asked()) == set(ids)
    assert sources(world) == {"recheck"}


def test_service_gives_up_after_many_failures_and_says_why(
    spark: SparkSession, world: CheckWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    import txmq.spark.join_trigger as module

    tries = []

    def broken(*_: object, **__: object) -> None:
        tries.append(1)
        raise RuntimeError("no query")

    monkeypatch.setattr(module, "start_check_stream", broken)
    monkeypatch.setattr(module, "RESTART_PAUSE_MAX_S", 0.01)
    handle = CheckService(world.store, spark=spark, listeners={}).start()
    wait_until(lambda: not handle.is_alive, "the end", PATIENCE_S)

    assert isinstance(handle.exception, RuntimeError)
    assert len(tries) == module.QUERY_FAILURES_MAX


def test_stop_ends_all_threads_and_removes_the_checkpoint(
    world: CheckWorld, start: Callable[..., CheckHandle]
) -> None:
    handle = start(SystemClock(), orders=world.listener())
    handle.stop()

    assert not handle.is_alive
    assert handle.exception is None
    assert list((world.folder / "store" / "checkpoints" / "services").iterdir()) == []
    assert not any(thread.name.startswith("txmq-check") for thread in threading.enumerate())
