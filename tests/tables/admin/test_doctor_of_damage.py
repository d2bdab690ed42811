"""The doctor looks at all that can be read, whatever else is damaged or refused."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest
from obstore.exceptions import GenericError

from txmq.consumer.pull import PullConsumer
from txmq.delta.folder import Objects
from txmq.errors import (
    AccessDeniedError,
    IncompatibleVersionError,
    StorageUnavailableError,
    TxmqError,
)
from txmq.ground.clock import timestamp
from txmq.message.message import Message
from txmq.ops.admin import doctor as store_findings
from txmq.ops.admin.doctor import GRANT, Doctor, Finding, StorageProbe
from txmq.ops.admin.groups import ConsumerGroups
from txmq.ops.admin.status import Admin
from txmq.ops.broker import Broker
from txmq.ops.dashboard.snapshot import Counting
from txmq.ops.metrics.meter import Meter
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.spark.sql_views import SqlEngine, sql_views
from txmq.store.register import REVISION_MARK, Register
from txmq.store.schemas import REGISTER
from txmq.store.store import Store

NAMES = (
    "brokers", "check_lease", "dead_letters_billing", "delay", "group_billing", "maintenance",
    "publisher", "remote_shop", "set_aside", "topics",
)  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store.create(tmp_path / "store")
    with TransactionProducer(store, producer_group="shop") as producer:
        producer.send(Message("orders", b"1"))
    Publisher(store).run_once()
    return store


def put(store: Store, name: str, text: str) -> None:
    table, revision = store.tables.register(name, create=True).table, time.time_ns()
    table.refresh()
    row = {"revision": [revision], "value": [text], "updated_timestamp": [timestamp(0)]}
    table.writer.replace(pa.table(row, schema=REGISTER.columns), {REVISION_MARK: revision})


def findings(store: Store) -> list[Finding]:
    return [
        one
        for one in Doctor(Store.open(store.location)).examine().findings
        if one.where.startswith(("state/", "topics/", "group"))
    ]


def test_each_damaged_register_is_found_once(store: Store) -> None:
    for name in NAMES:
        put(store, name, "{")
    assert sorted(one.where for one in findings(store)) == [f"state/{name}" for name in NAMES]


def test_what_was_found_before_an_error_stays(store: Store) -> None:
    for group in ("a", "b"):
        with PullConsumer(store, consumer_group=group, topics=["orders"]) as consumer:
            assert consumer.poll(1, timeout_s=30.0)
    with TransactionProducer(store, producer_group="shop") as producer:
        producer.send(Message("orders", b"2"))
    Publisher(store).run_once()
    register = store.tables.register("publisher")
    seen = register.read()
    entry = {"from_version": 1, "reason": "full", "since_ms": 1, "attempts": 1}
    register.swap(seen, {**seen.value, "parked": {"orders": entry}}, 0)
    table = store.tables.table_at("topics/orders")
    table.writer.remove(table.files.all())
    for name in ("brokers", "set_aside", "group_a"):
        put(store, name, "{")

    where = [one.where for one in findings(store)]
    assert {"group b", "topics/orders"} <= set(where)
    assert {"state/brokers", "state/set_aside", "state/group_a"} <= set(where)


def test_figures_that_cannot_be_counted_hide_no_parked_topic(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(admin: Admin) -> None:
        del admin
        raise pa.ArrowInvalid

    register = store.tables.register("publisher")
    seen = register.read()
    entry = {"from_version": 1, "reason": "full", "since_ms": 1, "attempts": 1}
    register.swap(seen, {**seen.value, "parked": {"orders": entry}}, 0)
    monkeypatch.setattr(Admin, "status", fail)
    where = [one.where for one in Doctor(Store.open(store.location)).examine().findings]
    assert {"status", "topics/orders"} <= set(where)


def test_folder_of_a_strange_name_stops_nobody_and_is_found(store: Store) -> None:
    state, topics = (Path(store.location, name) for name in ("state", "topics"))
    shutil.copytree(topics / "orders", topics / "evil'; DROP TABLE x; --")
    for prefix in ("group_", "remote_", "dead_letters_"):
        shutil.copytree(state / "config", state / f"{prefix}evil name")

    store = Store.open(store.location)
    assert Admin(store).status().messages == {"orders": 1}
    Meter(store).count()
    Counting(store).count()
    Broker(store).run_once()
    assert set(sql_views(store, SqlEngine.SPARK))
    assert ConsumerGroups(store).list() == []
    assert [one.where for one in findings(store)] == [
        "topics/evil'; DROP TABLE x; --",
        "state/dead_letters_evil name",
        "state/group_evil name",
        "state/remote_evil name",
    ]


def test_throttled_probe_leaves_no_file_and_asks_for_no_rights(store: Store) -> None:
    class Throttled(Objects):
        """Its first writer wins, one is told to slow down."""

        def put_new(self, path: str, content: bytes) -> bool:
            if content == b"1":
                raise GenericError("SlowDown: 503 Service Unavailable")
            return super().put_new(path, content)

    (found,) = StorageProbe(store, Throttled(store.location, {})).findings()
    assert (found.where, found.next_step) == (
        "storage",
        "look again later; nothing shows that it is damaged",
    )
    assert list(Path(store.location, "clock").iterdir()) == []


def test_damaged_group_stops_no_figures_of_the_others(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for group in ("a", "b"):
        with PullConsumer(store, consumer_group=group, topics=["orders"]) as consumer:
            assert consumer.poll(1, timeout_s=30.0)
    for name in ("group_a", "remote_shop"):
        put(store, name, "{")

    meter, counting = Meter(store), Counting(store)
    for _ in range(2):
        meter.count()
        counting.count()
    assert counting.last is not None
    assert {lag.group for lag in counting.last.lags} == {"b"}
    assert [one.group for one in counting.last.groups] == ["b"]
    said = [text for text in caplog.messages if text.startswith("group a has no figures")]
    assert len(said) == 2


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (IncompatibleVersionError("state", "newer"), "use the txmq that wrote it, or a newer one"),
        (AccessDeniedError("state", "denied"), GRANT),
        (
            StorageUnavailableError("state", "throttled"),
            "look again later; nothing shows that it is damaged",
        ),
    ],
)
def test_only_what_may_be_damaged_is_to_be_restored(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: TxmqError, step: str
) -> None:
    def refuse(*_: object) -> None:
        raise error

    monkeypatch.setattr(Register, "read", refuse)
    monkeypatch.setattr(store_findings, "read_brokers", refuse)
    found = list(Doctor(store).examine().findings)
    assert found
    assert {one.next_step for one in found} == {step}
