"""Many small commits and files are read as one large one: the same rows, in few steps."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.numbers_table import PARTS, another, numbers_table, rows, something
from tests.kit.reading import delta_rs
from txmq.delta import file_rows, folder
from txmq.delta.files import DataFile
from txmq.delta.folder import REQUESTS_AT_ONCE
from txmq.delta.log_files import clean_log, log_files
from txmq.delta.reading import COMMITS_AT_ONCE, Inserted, read_together
from txmq.delta.table import Table

COLUMNS = ("number", "part")
MANY = 3 * REQUESTS_AT_ONCE + 1


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return numbers_table(tmp_path)


def append(table: Table, first: int, count: int) -> None:
    for number in range(first, first + count):
        part = PARTS[number % len(PARTS)]
        table.writer.append(rows(number, part=part), app_id="numbers", number=number)


class Requests:
    """The file system of an object store, of which some answers are lost.

    To open a file is a request, and to delete one.
    """

    def __init__(self, table: Table, *, are_lost: bool = False) -> None:
        self._filesystem = table.folder.filesystem
        self._are_lost = are_lost
        self._changed = threading.Condition()
        self._running = self.together = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._filesystem, name)

    def open_input_file(self, path: str) -> Any:
        self._meet()
        return self._filesystem.open_input_file(path)

    def delete_file(self, path: str) -> None:
        self._filesystem.delete_file(path)
        self._meet()

    def _meet(self) -> None:
        """In a thread of its own, wait for another request."""
        if threading.current_thread() is threading.main_thread():
            return
        with self._changed:
            self._running += 1
            self.together = max(self.together, self._running)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self.together > 1, timeout=60)
            self._running -= 1
        if self._are_lost:
            raise OSError(5, "the answer is lost")


def with_requests(
    table: Table, monkeypatch: pytest.MonkeyPatch, *, are_lost: bool = False
) -> Requests:
    requests = Requests(table, are_lost=are_lost)
    monkeypatch.setattr(table.folder, "filesystem", requests)
    monkeypatch.setattr(type(table.folder.objects), "is_remote", True)
    return requests


@pytest.mark.parametrize("are_lost", [False, True])
def test_data_files_are_fetched_together_and_a_lost_answer_costs_nothing_but_time(
    table: Table, monkeypatch: pytest.MonkeyPatch, *, are_lost: bool
) -> None:
    append(table, 1, MANY)
    files, whole = table.refresh().files.all(), another(table)
    requests = with_requests(table, monkeypatch, are_lost=are_lost)

    assert table.rows.read(files, COLUMNS).equals(whole.rows.read(files, COLUMNS))
    assert requests.together > 1


@pytest.mark.parametrize("are_lost", [False, True])
def test_follower_far_behind_fetches_commits_together(
    table: Table, monkeypatch: pytest.MonkeyPatch, *, are_lost: bool
) -> None:
    follower = another(table)
    append(table, 1, MANY)
    requests = with_requests(follower, monkeypatch, are_lost=are_lost)

    assert follower.refresh().version == table.version
    assert {file.path for file in follower.files.all()} == {file.path for file in table.files.all()}
    assert requests.together > 1


@pytest.mark.parametrize("are_lost", [False, True])
def test_commits_after_a_checkpoint_are_fetched_together(
    table: Table, monkeypatch: pytest.MonkeyPatch, *, are_lost: bool
) -> None:
    append(table, 1, 2)
    table.writer.checkpoint()
    append(table, 3, MANY)
    starter, names = Table(table.location, table.schema), table.folder.log_names()
    monkeypatch.setattr(starter.folder, "log_names", lambda: names)
    requests = with_requests(starter, monkeypatch, are_lost=are_lost)

    assert starter.refresh().version == table.version
    assert {file.path for file in starter.files.all()} == {file.path for file in table.files.all()}
    assert requests.together > 1


@pytest.mark.parametrize("are_lost", [False, True])
def test_changes_of_many_commits_are_fetched_together(
    table: Table, monkeypatch: pytest.MonkeyPatch, *, are_lost: bool
) -> None:
    append(table, 1, MANY)
    expected = table.changes.read(1, table.version, COLUMNS)
    requests = with_requests(table, monkeypatch, are_lost=are_lost)

    assert table.changes.read(1, table.version, COLUMNS).equals(expected)
    assert requests.together > 1


def test_commits_of_a_clean_up_are_deleted_together(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, 1, MANY)
    table.writer.checkpoint()
    append(table, MANY + 1, 1)
    requests = with_requests(table, monkeypatch)

    assert clean_log(table, table.version).commits == MANY
    assert requests.together > 1
    assert set(log_files(table.folder).commits_ms) == {MANY, MANY + 1}


def test_clean_up_of_which_an_answer_is_lost_goes_no_further_and_the_next_one_ends_it(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(table, 1, MANY)
    table.writer.checkpoint()
    files = {file.path for file in table.files.all()}
    with monkeypatch.context() as patched:
        with_requests(table, patched, are_lost=True)
        with pytest.raises(OSError, match="lost"):
            clean_log(table, table.version)
        assert len(log_files(table.folder).commits_ms) >= MANY + 1 - REQUESTS_AT_ONCE

    clean_log(table, table.version)

    assert set(log_files(table.folder).commits_ms) == {MANY}
    assert {file.path for file in another(table).refresh().files.all()} == files


@pytest.mark.parametrize("seed", range(6))
def test_first_changes_are_those_of_one_commit_after_the_other(table: Table, seed: int) -> None:
    dice = random.Random(seed)
    for step in range(1, COMMITS_AT_ONCE + 20):
        something(table, dice, step)
    delta_rs(table.folder).update(updates={"number": "number + 1000"}, predicate="number % 3 = 0")
    append(table, 10_000, 5)
    end = table.refresh().version
    each = [table.changes.read(version, version, COLUMNS) for version in range(1, end + 1)]

    for enough_rows in (1, 7, dice.randrange(1, 100), 10_000):
        changes, last = table.changes.read_first(1, end, COLUMNS, enough_rows)

        counts = [sum(part.num_rows for part in each[:version]) for version in range(1, end + 1)]
        reached = [version for version, rows in enumerate(counts, 1) if rows >= enough_rows]
        assert last == min(reached, default=end)
        assert changes.equals(pa.concat_tables(each[:last]).combine_chunks())


@pytest.mark.parametrize("chunks_max", [1, file_rows.CHUNKS_MAX, 1_000])
def test_files_of_many_partitions_are_read_as_one_after_the_other(
    table: Table, monkeypatch: pytest.MonkeyPatch, chunks_max: int
) -> None:
    monkeypatch.setattr(file_rows, "CHUNKS_MAX", chunks_max)
    append(table, 1, MANY)
    table.writer.append(rows(*range(100, 200)), app_id="numbers", number=1_000)
    files = table.refresh().files.all()

    counted = table.rows.read_counted(files, COLUMNS)

    each = [table.rows.read([file], COLUMNS) for file in files]
    assert counted.rows.equals(pa.concat_tables(each))
    assert counted.counts == [part.num_rows for part in each]


def test_process_that_can_start_no_thread_any_more_reads_one_file_after_the_other(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = another(table)
    append(table, 1, MANY)
    monkeypatch.setattr(type(table.folder.objects), "is_remote", True)

    def submit(*_: Any) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(folder.ThreadPoolExecutor, "submit", submit)

    assert follower.refresh().version == table.version
    assert follower.rows.read(follower.files.all(), COLUMNS).num_rows == MANY


def test_commit_that_does_not_say_how_many_rows_it_has_ends_a_window() -> None:
    unknown = DataFile("a.parquet", 0, 1_000, {})
    commits = [Inserted(version, [unknown], []) for version in range(3)]

    assert [len(window) for window in read_together(iter(commits), 10)] == [1, 1, 1]
