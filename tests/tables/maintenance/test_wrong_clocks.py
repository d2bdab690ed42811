"""Nothing is expired, removed or swept because a machine's clock is wrong."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.kit.builders import table_versions
from tests.kit.stores import fresh_store
from txmq.delta import files as commit_limits
from txmq.ground.clock import Clock
from txmq.maintenance.retention import Retained, Retention, TopicRetention
from txmq.maintenance.service import JUMP_HOLD_S, Maintenance
from txmq.message.lifecycle import TransactionState
from txmq.message.message import Message
from txmq.ops.admin.status import Admin
from txmq.ops.admin.topics import Topics
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.store.store_clock import LOOK_INTERVAL_MS, StoreClock
from txmq.testing import ManualClock, WrongClock

GROUP, TOPIC = "orders", "order-paid"
DAY_S = 86_400.0


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return fresh_store(tmp_path / "store", Config(transaction_check_max=1))


def send(store: Store, clock: Clock | None = None, *, ends: bool = True) -> str:
    with TransactionProducer(store, producer_group=GROUP, clock=clock) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message(TOPIC, b"body"))
        transaction.prepare()
        if ends:
            transaction.commit()
    Publisher(store, clock=clock).run_once()
    return transaction.id


@pytest.mark.parametrize("ahead_s", [10 * DAY_S, 3650 * DAY_S])
def test_maintenance_whose_clock_is_days_ahead_changes_nothing(
    store: Store, ahead_s: float
) -> None:
    Topics(store).create(TOPIC, queue_nums=1, reserved_time_h=1)
    send(store)
    send(store)
    send(store, ends=False)
    waiting = Path(store.location, "half", "part-that-waits-for-its-commit.parquet")
    waiting.write_bytes(b"")
    before = table_versions(store)
    result = Maintenance(store, clock=WrongClock(ahead_s)).run_once()

    assert (result.failed, result.retained) == ({}, Retained())
    assert (result.commits_cleaned, result.topic_files_removed, result.leftovers_removed) == (
        0,
        0,
        0,
    )
    assert waiting.exists()
    assert table_versions(store) == before
    assert Admin(store).status().open == 1


def test_maintenance_whose_clock_is_behind_still_removes_what_is_old(store: Store) -> None:
    send(store)
    of_store = ManualClock(wall_ms())
    of_store.advance(5 * DAY_S)

    assert Retention(store, WrongClock(-30 * DAY_S, of_store=of_store)).run().half_days


def test_half_of_a_producer_whose_machine_is_days_behind_does_not_expire(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind_ns = time.time_ns() - round(10 * DAY_S) * 10**9
    with monkeypatch.context() as patched:
        patched.setattr(commit_limits, "time", SimpleNamespace(time_ns=lambda: behind_ns))
        own_id = send(store, WrongClock(-10 * DAY_S), ends=False)

    assert Retention(store, StoreClock(store)).run() == Retained()
    assert Admin(store).transaction(own_id).state is TransactionState.PENDING


def test_message_of_a_publisher_whose_clock_is_days_behind_stays_in_its_topic(
    store: Store,
) -> None:
    Topics(store).create(TOPIC, queue_nums=1, reserved_time_h=1)
    behind = ManualClock(wall_ms())
    behind.advance(-10 * DAY_S)
    for _ in range(3):
        send(store, behind)

    assert TopicRetention(store, StoreClock(store)).run() == 0


def test_files_of_a_topic_that_went_are_forgotten(store: Store) -> None:
    Topics(store).create(TOPIC, queue_nums=1, reserved_time_h=1)
    clock = ManualClock(wall_ms())
    retention = TopicRetention(store, clock)
    for _ in range(4):
        send(store, clock)
        send(store, clock)
        clock.advance(2 * 3600)
        retention.run()

    assert all(len(files) <= 2 for files in retention._newest_ms.values())


def test_jump_of_the_storage_removes_nothing_in_the_first_hour(store: Store) -> None:
    send(store)
    passed = SimpleNamespace(storage_ms=wall_ms(), count_ms=0)
    clock = StoreClock(
        store,
        hold_s=JUMP_HOLD_S,
        storage_ms=lambda: passed.storage_ms,
        count_ms=lambda: passed.count_ms,
    )
    retention = Retention(store, clock)
    retention.run()
    passed.storage_ms += round(5 * DAY_S * 1000)
    passed.count_ms += LOOK_INTERVAL_MS

    assert retention.run() == Retained()


def test_quiet_table_is_looked_at_again_after_a_clock_that_was_ahead(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(store)
    clock = ManualClock(wall_ms())
    maintenance = Maintenance(store, clock=clock)
    clock.advance(DAY_S / 24)
    maintenance.run_once()
    maintenance.run_once()
    clock.advance(-DAY_S / 24)
    looked: list[str] = []
    monkeypatch.setattr(
        "txmq.maintenance.service.clean_log",
        lambda table, _: looked.append(table.location) or SimpleNamespace(commits=0, data_files=0),
    )
    maintenance.run_once()

    assert f"{store.location}/state/config" in looked


def test_numbers_of_ended_transactions_never_fall(store: Store) -> None:
    clock = ManualClock(wall_ms())
    send(store, clock)
    send(store, clock)
    with TransactionProducer(store, producer_group=GROUP, clock=clock) as producer:
        transaction = producer.begin_transaction()
        transaction.send(Message(TOPIC, b"body"))
        transaction.prepare()
        transaction.rollback()
    Publisher(store, clock=clock).run_once()
    before = Admin(store).status()
    clock.advance(5 * DAY_S)
    gone = Retention(store, clock).run()
    send(store, clock)
    after = Admin(store).status()

    assert gone.settled_days
    assert (before.committed, before.rolled_back) == (2, 1)
    assert (after.committed, after.rolled_back) == (3, 1)
