"""A broker says that it runs, and finds the others by it."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.kit.reading import wait_until
from txmq import __version__
from txmq.ground.fail_points import FailPoint, arm
from txmq.message.message import Message
from txmq.ops.admin.status import Admin
from txmq.ops.broker import Broker
from txmq.ops.brokers import Heartbeat, HeartbeatHandle
from txmq.ops.cli.app import app
from txmq.producer.producer import TransactionProducer
from txmq.store.brokers import GONE_MS, SWEPT_MS
from txmq.store.store import Store
from txmq.testing import ManualClock

NOW_MS = 1_767_225_600_000


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW_MS)


def heartbeat(store: Store, clock: ManualClock, name: str) -> Heartbeat:
    return Heartbeat(store.tables, clock, name, ("publisher",))


def names(store: Store, clock: ManualClock) -> list[tuple[str, bool]]:
    return [(one.name, one.is_gone) for one in Admin(store, clock=clock).status().brokers]


def test_broker_is_there_until_it_stops_or_falls_silent(store: Store, clock: ManualClock) -> None:
    first, second = heartbeat(store, clock, "first"), heartbeat(store, clock, "second")
    first.beat()
    clock.advance(GONE_MS / 1000)
    second.beat()
    assert names(store, clock) == [("second", False), ("first", False)]

    clock.advance(0.001)
    assert names(store, clock) == [("second", False), ("first", True)]

    second.end()
    assert names(store, clock) == [("first", True)]

    clock.advance(SWEPT_MS / 1000)
    second.beat()
    assert names(store, clock) == [("second", False)]


def test_second_broker_is_told_of_the_first_one_and_not_again(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = heartbeat(store, clock, "first"), heartbeat(store, clock, "second")
    first.beat()
    assert caplog.messages == []

    for _ in range(2):
        second.beat()

    (said,) = caplog.messages
    assert said.startswith("another broker serves this store: first, started 2026-01-01 00:00:00")


def test_register_that_fails_stops_nobody_and_is_told_once(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    beats = heartbeat(store, clock, "first")
    (Path(store.location) / "state" / "brokers").write_text("no folder")
    for _ in range(3):
        beats.beat()
    beats.end()
    (said,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert said.getMessage().startswith("no heartbeat of this broker can be written: ")

    (Path(store.location) / "state" / "brokers").unlink()
    beats.beat()
    assert names(store, clock) == [("first", False)]


def test_running_broker_is_shown_and_leaves_at_its_end(store: Store) -> None:
    with Broker(store, name="one").start():
        wait_until(lambda: bool(Admin(store).status().brokers), what="the first heartbeat")
        (running,) = Admin(store).status().brokers
        assert (running.name, running.version, running.is_gone) == ("one", __version__, False)
        assert running.services == ("publisher", "check service", "delay service", "maintenance")

    assert Admin(store).status().brokers == ()


def test_broker_that_catches_up_is_known_and_cleans_logs_meanwhile(store: Store) -> None:
    store = store.with_settings(store.config.replace(maintenance_interval_s=0.1))
    with TransactionProducer(store, producer_group="orders") as producer:
        for number in range(10):
            producer.send(Message("a", b"%d" % number))
    merged, waits = threading.Event(), list[bool]()

    def catches_up(point: FailPoint) -> None:
        if point is FailPoint.FILES_REPLACED:
            merged.set()
        if point is FailPoint.CLAIMS_READ and not waits:
            waits.append(merged.wait(60))
            wait_until(lambda: bool(Admin(store).status().brokers), what="the first heartbeat")

    disarm = arm(catches_up)
    with Broker(store, name="one").start():
        disarm()

    assert waits == [True]


def test_status_says_that_no_broker_runs_and_which_was_last(
    store: Store, clock: ManualClock
) -> None:
    def status() -> str:
        return " ".join(CliRunner().invoke(app, ["status", store.location]).stdout.split())

    assert "no broker is known to run; what is committed waits for one (txmq serve)" in status()

    heartbeat(store, clock, "first").beat()
    assert "; first was seen " in status()
    assert "at 2026-01-01 00:00:00.000Z, and did not stop in order" in status()


def test_thread_beats_at_once_and_ends_the_entry(store: Store, clock: ManualClock) -> None:
    beats = heartbeat(store, clock, "first")
    has_beaten = threading.Event()

    class Told(Heartbeat):
        def beat(self) -> None:
            beats.beat()
            has_beaten.set()

        def end(self) -> None:
            beats.end()

    handle = HeartbeatHandle(Told(store.tables, clock, "first", ()), interval_s=3600.0)
    assert has_beaten.wait(60)
    assert names(store, clock) == [("first", False)]

    handle.stop()
    assert names(store, clock) == []
