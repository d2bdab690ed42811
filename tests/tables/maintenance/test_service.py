"""One round of maintenance over all tables, and what it leaves alone."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pytest

from tests.kit.reading import wait_until
from txmq.delta.table import Table
from txmq.errors import StorageUnavailableError
from txmq.maintenance import service as module
from txmq.maintenance.compaction import Compacted
from txmq.maintenance.orphans import remove_checkpoints, sweep
from txmq.maintenance.service import Maintenance
from txmq.message.message import Message
from txmq.ops.admin.status import Admin
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.config import Config
from txmq.store.store import Store, service_checkpoint_location
from txmq.store.tables import StoreTables
from txmq.testing import ManualClock
from txmq.verify import verify

GROUP = "orders"
LATER_S = 2 * 86_400


def wall_clock() -> ManualClock:
    return ManualClock(now_ms=time.time_ns() // 1_000_000)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty transactions, each a commit to half and op, each published by itself."""
    location = tmp_path_factory.mktemp("busy") / "store"
    send(Store.create(location, Config(checkpoint_interval=10, half_queues=1)), 40)
    return location


@pytest.fixture
def busy(tmp_path: Path, original: Path) -> Store:
    shutil.copytree(original, tmp_path / "store")
    return Store.open(tmp_path / "store")


def send(store: Store, count: int) -> None:
    publisher = Publisher(store)
    with TransactionProducer(store, producer_group=GROUP) as producer:
        for number in range(count):
            with producer.begin_transaction() as transaction:
                transaction.send(Message("order-paid", b"body-%d" % number))
                transaction.prepare()
                transaction.commit()
            publisher.run_once()


def log_entries(store: Store, path: str) -> int:
    return len(list(Path(store.location, path, "_delta_log").glob("*.json")))


def data_files(store: Store, path: str) -> int:
    return len(list(Path(store.location, path).glob("*.parquet")))


def violations(store: Store) -> list[str]:
    return [one.invariant for one in verify(store.location).results if one.violation_count]


def test_round_leaves_few_files_in_every_table(busy: Store) -> None:
    result = Maintenance(busy).run_once()

    for path in ("half", "op", "settled", "topics/order-paid"):
        assert len(busy.tables.table_at(path).files.all()) < 8
    assert result.compacted.files_before >= 160
    assert not result.failed
    assert violations(busy) == []


def test_young_log_entries_and_files_stay(busy: Store) -> None:
    before = log_entries(busy, "op"), data_files(busy, "op")
    result = Maintenance(busy).run_once()

    assert (result.commits_cleaned, result.data_files_removed, result.leftovers_removed) == (
        0,
        0,
        0,
    )
    assert (log_entries(busy, "op"), data_files(busy, "op")) == (before[0] + 1, before[1] + 1)


def test_old_log_entries_go_and_everything_still_works(busy: Store) -> None:
    clock = wall_clock()
    maintenance = Maintenance(busy, clock=clock)
    maintenance.run_once()
    send(busy, 12)
    clock.advance(LATER_S)
    result = maintenance.run_once()
    send(busy, 3)

    assert not result.failed
    for path in ("half", "op", "settled", "topics/order-paid", "state/publisher"):
        assert log_entries(busy, path) <= 2 * 10 + 3
    assert Admin(busy).status().committed == 55
    assert (
        sum(file.num_records for file in busy.tables.table_at("topics/order-paid").files.all())
        == 55
    )


def test_claims_that_are_not_settled_yet_keep_the_op_log(busy: Store) -> None:
    with TransactionProducer(busy, producer_group=GROUP) as producer:
        for _ in range(20):
            with producer.begin_transaction() as transaction:
                transaction.send(Message("order-paid", b"late"))
                transaction.prepare()
                transaction.commit()
    clock = wall_clock()
    clock.advance(LATER_S)
    Maintenance(busy, clock=clock).run_once()
    Publisher(busy).run_once()

    assert Admin(busy).status().messages == {"order-paid": 60}


def test_second_round_has_nothing_to_do(busy: Store) -> None:
    maintenance = Maintenance(busy)
    maintenance.run_once()
    again = maintenance.run_once()

    assert (again.compacted.files_before, again.commits_cleaned, again.checkpoints) == (0, 0, 0)


def test_quiet_tables_are_left_alone_until_something_is_appended(
    busy: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(
        module, "compact", lambda table, _: looked.append(table.location) or Compacted()
    )
    clock = wall_clock()
    maintenance = Maintenance(busy, clock=clock)
    maintenance.run_once()
    maintenance.run_once()
    looked.clear()
    maintenance.run_once()
    assert looked == []

    send(busy, 1)
    maintenance.run_once()
    assert f"{busy.location}/half" in looked
    assert f"{busy.location}/state/config" not in looked
    clock.advance(61)
    looked.clear()
    maintenance.run_once()
    assert f"{busy.location}/state/config" in looked


def test_table_that_cannot_be_read_is_named_and_holds_up_no_other(busy: Store) -> None:
    for file in Path(busy.location, "settled", "_delta_log").iterdir():
        file.unlink()
    result = Maintenance(busy).run_once()

    assert "settled" in result.failed
    assert len(busy.tables.table_at("op").files.all()) < 8


def test_maintenance_runs_until_it_is_stopped(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store", Config(maintenance_interval_s=0.01))
    handle = Maintenance(store).start()
    deadline_s = time.monotonic() + 30
    while handle.rounds < 3 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    handle.stop()

    assert handle.rounds >= 3
    assert not handle.is_alive
    assert handle.exception is None


def test_life_of_a_transaction_is_shown_after_its_log_entries_went(busy: Store) -> None:
    own_id = str(
        busy.tables.table_at("half").search.rows_of("sequence", pa.array([0]), ("transaction_id",))[
            0
        ][0]
    )
    before = Admin(busy).transaction(own_id)
    clock = wall_clock()
    clock.advance(LATER_S)
    Maintenance(busy, clock=clock).run_once()
    after = Admin(busy).transaction(own_id)

    assert [(one.stage, one.title) for one in after.events] == [
        (one.stage, one.title) for one in before.events
    ]
    assert (after.state, after.check_times) == (before.state, before.check_times)


# --- leftovers -----------------------------------------------------------------------------------


def test_file_that_no_commit_names_is_swept_up_when_it_is_old(busy: Store) -> None:
    orphan = Path(busy.location, "half", "part-of-a-killed-process.parquet")
    staged = Path(busy.location, "half", "left-1", "_SUCCESS")
    cut_short = Path(busy.location, "half", "_delta_log", "_commit_1.json.tmp")
    staged.parent.mkdir()
    for path in (orphan, staged, cut_short):
        path.write_bytes(b"")
        os.utime(path, (0, 0))
    table = busy.tables.table_at("half")

    assert sweep(table, lambda wall_ms: wall_ms < 1_000) == 3
    assert not orphan.exists()
    assert violations(busy) == []


def test_sweeping_leaves_what_any_kept_commit_names(busy: Store) -> None:
    Maintenance(busy).run_once()
    table = busy.tables.table_at("op").refresh()

    assert sweep(table, lambda _: True) == 0
    assert table.changes.read(0, table.version, ("transaction_id",)).num_rows == 40


def test_young_file_that_no_commit_names_stays(busy: Store) -> None:
    waiting = Path(busy.location, "half", "part-that-waits-for-its-commit.parquet")
    waiting.write_bytes(b"")

    assert sweep(busy.tables.table_at("half"), lambda wall_ms: wall_ms < 1_000) == 0
    assert waiting.exists()


def test_checkpoints_of_ended_services_go_and_those_of_consumers_stay(busy: Store) -> None:
    ended = Path(service_checkpoint_location(busy, "publisher-1"), "offsets", "0")
    running = Path(service_checkpoint_location(busy, "publisher-2"), "offsets", "0")
    consumer = Path(busy.checkpoint_location("consumers/billing/order-paid"), "offsets", "0")
    for path in (ended, running, consumer):
        path.parent.mkdir(parents=True)
        path.write_text("")
    for path in (ended, ended.parent, ended.parent.parent, consumer, consumer.parent):
        os.utime(path, (0, 0))

    assert remove_checkpoints(busy, lambda wall_ms: wall_ms < 1_000) == 1
    assert (ended.exists(), running.exists(), consumer.exists()) == (False, True, True)


class PanicException(BaseException):
    """As pyo3 names what a panic of Rust becomes."""


@pytest.mark.parametrize("error", [ValueError("odd"), KeyError("odd"), PanicException("odd")])
def test_table_that_fails_in_any_way_is_named_and_the_others_are_looked_after(
    busy: Store, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    looked: list[str] = []

    def compact(table: Table, _: int) -> Compacted:
        looked.append(table.schema.name)
        if table.schema.name == "half":
            raise error
        return Compacted()

    monkeypatch.setattr(module, "compact", compact)

    result = Maintenance(busy).run_once()

    assert list(result.failed) == ["half"]
    assert len(looked) > 3


def test_end_of_the_process_is_no_failure_of_a_table(
    busy: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compact(*_: object) -> Compacted:
        raise SystemExit(1)

    monkeypatch.setattr(module, "compact", compact)

    with pytest.raises(SystemExit):
        Maintenance(busy).run_once()


def test_listing_that_fails_once_does_not_end_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store.create(tmp_path / "store", Config(maintenance_interval_s=0.01))
    table_paths, failures = StoreTables.table_paths, []

    def fails_once(tables: StoreTables) -> list[str]:
        if not failures:
            failures.append(1)
            raise StorageUnavailableError("store", "cannot be read: too many requests")
        return table_paths(tables)

    monkeypatch.setattr(StoreTables, "table_paths", fails_once)
    handle = Maintenance(store).start()
    wait_until(lambda: handle.rounds >= 2, what="a round after the one that failed")
    handle.stop()

    assert handle.exception is None
    assert "too many requests" in handle.total.failed["round"]


def test_half_file_that_cannot_be_merged_keeps_no_log_from_being_cleaned(busy: Store) -> None:
    clock = wall_clock()
    (file, *_) = sorted(Path(busy.location, "half").rglob("part-*.parquet"))
    file.write_bytes(b"")
    clock.advance(LATER_S)

    result = Maintenance(busy, clock=clock).run_once()

    assert "half" in result.failed
    assert len(list(Path(busy.location, "half", "_delta_log").glob("*.json"))) < 40
