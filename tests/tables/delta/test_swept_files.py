"""A commit never names a file that the sweep has removed, however long its writer slept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from tests.kit.builders import halves
from txmq.delta.schemas import SWEPT_PROPERTY
from txmq.delta.table import Table
from txmq.delta.table_writer import TableWriter
from txmq.errors import FilesSweptError
from txmq.maintenance import orphans
from txmq.maintenance.orphans import sweep
from txmq.message.message import Message
from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.store.store import Store
from txmq.testing import before_commit

GROUP = "orders"


@pytest.fixture
def half(store: Store) -> Table:
    table = store.tables.table_at("half")
    table.writer.append(halves(1), app_id="first", number=1)
    return table


def all_old(_: int) -> bool:
    return True


def swept(store: Store, path: str = "half") -> Callable[[], None]:
    """What maintenance of another process does once all files are old."""
    return lambda: _at_least_one(sweep(store.tables.table_at(path), all_old))


def _at_least_one(count: int) -> None:
    assert count


def rows_in(table: Table) -> int:
    """The rows that can really be read."""
    fresh = table.reopen()
    return int(fresh.rows.read(fresh.files.all(), ("transaction_id",)).num_rows)


def test_sweep_before_the_commit_refuses_the_files(store: Store, half: Table) -> None:
    files = half.writer.new_files(halves(2))
    swept(store)()
    with pytest.raises(FilesSweptError, match="half"):
        half.writer.append_files(files, app_id="second", number=1)

    assert rows_in(half) == 1


def test_sweep_right_before_the_commit_lets_the_rows_be_written_anew(
    store: Store, half: Table
) -> None:
    with before_commit(swept(store), table="half"):
        half.writer.append(halves(2), app_id="second", number=1)

    assert rows_in(half) == 2


def test_fence_refuses_what_is_not_deleted_yet(
    store: Store, half: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = half.writer.new_files(halves(2))

    def commit_then_delete(_: Table, paths: Iterable[str]) -> int:
        with pytest.raises(FilesSweptError):
            half.writer.append_files(files, app_id="second", number=1)
        return len(list(paths))

    monkeypatch.setattr(orphans, "delete_files", commit_then_delete)
    swept(store)()

    assert rows_in(half) == 1


def test_file_that_is_committed_before_the_fence_stays(
    store: Store, half: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, fence = half.writer.new_files(halves(2)), TableWriter.fence_files

    def commit_then_fence(table: TableWriter, written_ms: int) -> None:
        half.writer.append_files(files, app_id="second", number=1)
        fence(table, written_ms)

    monkeypatch.setattr(TableWriter, "fence_files", commit_then_fence)

    assert sweep(store.tables.table_at("half"), all_old) == 0
    assert rows_in(half) == 2


def test_new_files_are_committed_after_a_sweep(store: Store, half: Table) -> None:
    half.writer.new_files(halves(2))
    swept(store)()
    for number in (1, 2):
        half.writer.append(halves(2 + number), app_id="second", number=number)

    assert rows_in(half) == 3
    assert half.changes.read(0, half.version, ("transaction_id",)).num_rows == 3


def test_sweep_without_orphans_commits_nothing(store: Store, half: Table) -> None:
    version = half.version

    assert sweep(store.tables.table_at("half"), all_old) == 0
    assert half.reopen().version == version


def test_second_sweep_never_lowers_the_fence(store: Store, half: Table) -> None:
    late = half.writer.new_files(halves(2))
    early_ms = min(half.folder.written_ms([file.path for file in late]).values()) - 1_000
    swept(store)()
    store.tables.table_at("half").writer.fence_files(early_ms)
    with pytest.raises(FilesSweptError):
        half.writer.append_files(late, app_id="second", number=1)


def test_file_that_somebody_deleted_is_missed_before_the_commit(
    half: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = half.writer.new_files(halves(2))
    Path(half.location, files[0].path).unlink()
    monkeypatch.setattr("txmq.delta.table_writer.LOOK_AFTER_MS", 0)
    with pytest.raises(FilesSweptError):
        half.writer.append_files(files, app_id="second", number=1)

    assert rows_in(half) == 1


def test_commit_that_landed_without_an_answer_is_not_taken_for_swept(
    store: Store, half: Table
) -> None:
    files = half.writer.new_files(halves(2))
    half.writer.append_files(files, app_id="second", number=1)
    half.writer.new_files(halves(3))
    swept(store)()
    half.writer.append_files(files, app_id="second", number=1)

    assert rows_in(half) == 2


@pytest.mark.parametrize("path", ["half", "op", "settled", "topics/order-paid"])
def test_message_is_visible_once_wherever_the_sweep_comes_between(store: Store, path: str) -> None:
    publisher = Publisher(store)
    with TransactionProducer(store, producer_group=GROUP) as producer:
        producer.send(Message("order-paid", b"first"))
        publisher.run_once()
        with before_commit(swept(store, path), table=path):
            producer.send(Message("order-paid", b"second"))
            publisher.run_once()

    topic = store.tables.table_at("topics/order-paid")
    bodies = topic.rows.read(topic.files.all(), ("body",))["body"].to_pylist()
    assert sorted(bodies) == [b"first", b"second"]


def test_register_is_changed_after_a_sweep(store: Store) -> None:
    register = store.tables.register("maintenance")
    table = store.tables.table_at("state/maintenance")
    table.writer.new_files(pa.table({"revision": [7], "value": ["{}"], "updated_timestamp": [None]},
                             schema=table.schema.columns))  # fmt: skip
    seen = register.read()
    swept(store, "state/maintenance")()
    register.swap(register.read(), {"a": 1}, 0)

    assert seen.revision == 0
    assert register.read().value == {"a": 1}


@pytest.mark.parametrize("fence", ["soon", "", "-5", "1" * 30, "4102444800000", "1e3"])
def test_fence_that_another_program_spoiled_stops_no_writer_and_is_set_anew(
    half: Table, fence: str
) -> None:
    half.writer.set_properties({SWEPT_PROPERTY: fence})

    half.writer.append(halves(2), app_id="second", number=1)
    half.writer.fence_files(7)

    assert rows_in(half) == 2
    assert half.log.properties()[SWEPT_PROPERTY] == "7"


@pytest.mark.parametrize("interval", ["often", "", "0", "-5", "9" * 30, "2.5"])
def test_checkpoint_interval_that_is_no_number_stops_no_writer(half: Table, interval: str) -> None:
    half.writer.set_properties({"delta.checkpointInterval": interval})

    half.writer.append(halves(2), app_id="second", number=1)

    assert rows_in(half) == 2
