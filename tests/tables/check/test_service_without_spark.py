"""A check service that has no query: rechecks, whenever something may be due."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.check_world import COMMIT, GROUP, UNKNOWN, CheckWorld, wait_until
from txmq.check.open_transactions import OpenTransactions
from txmq.check.recheck import Recheck
from txmq.check.service import CheckHandle, CheckService
from txmq.errors import StorageError
from txmq.listeners.protocol import HalfMessage
from txmq.message.lifecycle import ClaimKind
from txmq.verify import verify


@pytest.fixture
def world(tmp_path: Path) -> CheckWorld:
    # A busy machine is no reason to take a lease over.
    return CheckWorld(tmp_path, check_trigger_interval_s=0.05, check_lease_s=60.0)


@pytest.fixture
def start(world: CheckWorld) -> Iterator[Callable[..., CheckHandle]]:
    handles: list[CheckHandle] = []

    def run(**listeners: Any) -> CheckHandle:
        handles.append(CheckService(world.store, listeners=listeners).start())
        return handles[-1]

    yield run
    for handle in handles:
        handle.stop()
        assert handle.exception is None


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each time that the logs were read."""
    seen: list[int] = []
    read = OpenTransactions.read

    def counted(self: OpenTransactions, clock_ms: int | None = None) -> Any:
        found = read(self, clock_ms)
        seen.append(found.num_rows)
        return found

    monkeypatch.setattr(OpenTransactions, "read", counted)
    return seen


def pass_s(seconds: float) -> None:
    until_s = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= until_s, "time")


def test_half_without_an_end_is_asked_after_its_immunity_and_not_before(
    world: CheckWorld, start: Callable[..., CheckHandle]
) -> None:
    listener = world.listener(COMMIT)
    world.claim(world.prepare(20, immunity_s=0.5), ClaimKind.COMMIT)
    handle = start(orders=listener)
    immune = world.prepare(5, immunity_s=10_000.0)
    due = world.prepare(5, immunity_s=0.5)
    wait_until(lambda: handle.checked.committed >= 5, "answers")

    assert sorted(listener.asked()) == sorted(due)
    assert len(world.claims(ClaimKind.COMMIT)) == 25
    stored_ms = world.store.tables.half_log().table.folder.commit_times_ms()[3]
    assert min(listener.first_asked_s().values()) * 1000 >= stored_ms + 500
    assert not {row["transaction_id"] for row in world.claims()} & set(immune)


def test_unknown_is_asked_again_until_it_is_discarded(tmp_path: Path) -> None:
    world = CheckWorld(
        tmp_path, check_trigger_interval_s=0.05, transaction_check_interval_s=0.1,
        transaction_check_max=3,
    )  # fmt: skip
    listener = world.listener(UNKNOWN)
    world.prepare(immunity_s=0.1)
    handle = CheckService(world.store, listeners={GROUP: listener}).start()
    try:
        wait_until(lambda: bool(world.claims(ClaimKind.DISCARD)), "the DISCARD")
    finally:
        handle.stop()

    assert listener.check_times() == [0, 1, 2]


def test_logs_that_do_not_grow_are_not_read(
    world: CheckWorld, start: Callable[..., CheckHandle], looks: list[int]
) -> None:
    world.prepare(3, immunity_s=10_000.0)
    handle = start(orders=world.listener())
    wait_until(lambda: looks == [3], "the first look")
    pass_s(1.0)
    assert looks == [3]

    world.prepare(2, immunity_s=10_000.0)
    wait_until(lambda: looks == [3, 5], "a look at what is new")
    assert handle.is_alive


def test_look_that_took_long_is_followed_by_a_pause(
    world: CheckWorld, start: Callable[..., CheckHandle]
) -> None:
    handle = start(orders=world.listener())
    handle.stop()
    world.prepare(immunity_s=10_000.0)

    for search_s, pause_s in ((0.0, 0.05), (2.0, 20.0)):
        handle._recheck.search_s = search_s
        assert handle._trigger.recheck_interval_s() == pytest.approx(pause_s)


def test_listener_that_takes_long_does_not_delay_the_next_look(
    world: CheckWorld, start: Callable[..., CheckHandle]
) -> None:
    hanging = threading.Event()
    handle = start(slow=world.listener(lambda _: hanging.wait()), orders=world.listener(COMMIT))
    try:
        world.prepare(group="slow", immunity_s=0.1)
        wait_until(lambda: handle.checked.unknown == 1, "the timeout of a listener")
        world.prepare(immunity_s=0.1)
        wait_until(lambda: handle.checked.committed == 1, "an answer")

        # The question took half a second, and reading the logs some milliseconds.
        assert handle._recheck.search_s < world.store.config.listener_timeout_s
    finally:
        hanging.set()


def test_look_that_fails_is_made_again(
    world: CheckWorld, start: Callable[..., CheckHandle], monkeypatch: pytest.MonkeyPatch
) -> None:
    ids, listener = world.prepare(3, immunity_s=0.1), world.listener(COMMIT)
    read, failures = OpenTransactions.read, iter([True, False, True])

    def failing(self: OpenTransactions, clock_ms: int | None = None) -> Any:
        found = read(self, clock_ms)
        if next(failures, False):
            raise StorageError("half", "cannot be read at the moment")
        return found

    monkeypatch.setattr(OpenTransactions, "read", failing)
    handle = start(orders=listener)
    wait_until(lambda: len(world.claims(ClaimKind.COMMIT)) == 3, "answers")

    assert sorted(listener.asked()) == sorted(ids)
    assert isinstance(handle.last_error, StorageError)


def test_answer_that_comes_late_is_a_claim(
    world: CheckWorld, start: Callable[..., CheckHandle]
) -> None:
    def slow(_: HalfMessage) -> Any:
        wait_until(lambda: bool(world.claims(ClaimKind.UNKNOWN)), "the claim of its timeout")
        return COMMIT

    world.prepare(immunity_s=0.1)
    start(orders=world.listener(slow))
    wait_until(lambda: bool(world.claims(ClaimKind.COMMIT)), "the late answer")

    assert [row["kind"] for row in world.claims()][:2] == ["UNKNOWN", "COMMIT"]


def test_two_services_ask_each_transaction_once(
    world: CheckWorld, start: Callable[..., CheckHandle]
) -> None:
    listener = world.listener(COMMIT)
    first, second = start(orders=listener), start(orders=listener)
    ids = [one for _ in range(10) for one in world.prepare(5, immunity_s=0.2)]
    wait_until(lambda: len(world.claims(ClaimKind.COMMIT)) >= 50, "answers")
    wait_until(lambda: first.checked.committed + second.checked.committed >= 50, "results")

    assert sorted(listener.asked()) == sorted(ids)


def test_broker_without_spark_does_everything_and_starts_no_java(tmp_path: Path) -> None:
    story = (
        "import sys, time\n"
        "from txmq import Broker, Config, LocalTransactionState, Message, Store\n"
        "from txmq import TransactionProducer\n"
        "class Yes:\n"
        "    def execute_local_transaction(self, message, argument): raise SystemExit(2)\n"
        "    def check_local_transaction(self, message): return LocalTransactionState.COMMIT\n"
        "config = Config(transaction_timeout_s=0.1, check_trigger_interval_s=0.1)\n"
        "store = Store.create(sys.argv[1], config)\n"
        "handle = Broker(store, listeners={'orders': Yes()}).start()\n"
        "with TransactionProducer(store, producer_group='orders') as producer:\n"
        "    for ends in (True, False):\n"
        "        transaction = producer.begin_transaction()\n"
        "        transaction.send(Message('paid', b'1'))\n"
        "        transaction.prepare()\n"
        "        transaction.commit() if ends else None\n"
        "    producer.send(Message('paid', b'2', delay_s=1))\n"
        "def seen():\n"
        "    if 'paid' not in store.topics(): return 0\n"
        "    return sum(f.num_records for f in store.tables.table_at('topics/paid').files.all())\n"
        "until = time.monotonic() + 60\n"
        "while seen() < 3 and time.monotonic() < until: time.sleep(0.02)\n"
        "assert handle.is_alive, handle.exception\n"
        "handle.stop()\n"
        "print(seen(), 'pyspark' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", story, str(tmp_path / "store")],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip

    assert done.stdout.split() == ["3", "False"], done.stderr
    assert verify(str(tmp_path / "store")).is_clean


@pytest.mark.parametrize("error", [OSError(errno.EIO, "no answer"), StorageError("op", "gone")])
def test_look_that_fails_once_does_not_end_the_service(
    world: CheckWorld,
    start: Callable[..., CheckHandle],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    may_find_more, failed = Recheck.may_find_more, threading.Event()

    def fails_once(recheck: Recheck) -> bool:
        if not failed.is_set():
            failed.set()
            raise error
        return may_find_more(recheck)

    monkeypatch.setattr(Recheck, "may_find_more", fails_once)
    listener = world.listener(COMMIT)
    handle = start(orders=listener)
    wait_until(failed.is_set, "the look that fails")
    ids = world.prepare(immunity_s=0.1)
    wait_until(lambda: set(listener.asked()) == set(ids), "the questions after it")

    assert handle.is_alive
    assert handle.last_error is error
