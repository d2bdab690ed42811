"""What is computed from a version is committed on top of it, or computed again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.numbers_table import another, numbers_table, rows, stored
from txmq.delta import until_committed as races
from txmq.delta.pinned import PinnedTable
from txmq.delta.table import Table
from txmq.delta.until_committed import until_committed
from txmq.errors import CommitConflictError, CommitRefusedError, StorageError
from txmq.testing import before_commit

COUNT = "count"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return numbers_table(tmp_path)


def count_up(table: Table) -> int:
    """Append the next number, by the mark of the pinned version."""
    number = (table.log.mark(COUNT) or 0) + 1
    table.writer.swap(rows(number), {COUNT: number})
    return number


def test_first_try_begins_at_the_newest_version(table: Table) -> None:
    late = another(table)
    count_up(table)

    assert until_committed(late, lambda: count_up(late)) == 2
    assert stored(table.refresh()) == [1, 2]


def test_work_is_computed_again_where_another_writer_was_faster(table: Table) -> None:
    rival, tries = another(table), []

    def compute() -> int:
        tries.append(table.version)
        return count_up(table)

    with before_commit(lambda: count_up(rival)):
        assert until_committed(table, compute) == 2

    assert tries == [0, 1]
    assert stored(another(table)) == [1, 2]


def test_base_of_a_commit_is_what_it_was_computed_from(table: Table) -> None:
    """The loser's next look at its table does not move the base of the commit that it makes."""
    rival, numbers = another(table), []

    def compute() -> int:
        number = (table.log.mark(COUNT) or 0) + 1
        numbers.append(number)
        if len(numbers) == 1:
            count_up(rival)
            assert table.log.has_news()
            assert table.files.all() == []
        table.writer.swap(rows(number), {COUNT: number})
        return number

    assert until_committed(table, compute) == 2
    assert numbers == [1, 2]
    assert stored(another(table)) == [1, 2]


def test_no_count_of_several_threads_is_lost(table: Table) -> None:
    def count_ten(_: int) -> None:
        own = another(table)
        for _ in range(10):
            until_committed(own, lambda: count_up(own), attempts=1_000)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(count_ten, range(3)))

    assert stored(table.refresh()) == list(range(1, 31))


def test_writer_that_always_loses_gives_up_and_has_written_nothing(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[int] = []
    monkeypatch.setattr(races, "pause", pauses.append)
    rival = another(table)

    def compute() -> None:
        number = (table.log.mark(COUNT) or 0) + 1
        count_up(rival)
        table.writer.swap(rows(-number), {COUNT: number})

    with pytest.raises(CommitConflictError, match="numbers: other writers were faster 5 times"):
        until_committed(table, compute, attempts=5)

    assert pauses == [0, 1, 2, 3, 3]
    assert stored(another(table)) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("error", [StorageError("numbers", "is broken"), ValueError("is strange")])
def test_other_errors_end_it_at_once(table: Table, error: Exception) -> None:
    tries: list[int] = []

    def compute() -> None:
        tries.append(1)
        raise error

    with pytest.raises(type(error), match="is "):
        until_committed(table, compute)
    assert tries == [1]


def test_nothing_to_do_commits_nothing(table: Table) -> None:
    assert until_committed(table, lambda: "nothing") == "nothing"
    assert another(table).version == 0


def test_table_of_a_user_is_refreshed_as_well(table: Table) -> None:
    marked, rival = (PinnedTable("orders", table.location) for _ in range(2))
    tries: list[int | None] = []

    def compute() -> None:
        tries.append(marked.mark("a"))
        if len(tries) == 1:
            rival.refresh().commit_marks({"a": 7})
        marked.commit_marks({"a": (tries[-1] or 0) + 1})

    until_committed(marked, compute)

    assert tries == [None, 7]
    assert marked.refresh().mark("a") == 8


def test_refused_commit_alone_is_tried_again(table: Table) -> None:
    answers = iter([CommitRefusedError("numbers", "another writer was first"), None])

    def compute() -> str:
        if (error := next(answers)) is not None:
            raise error
        return "done"

    assert until_committed(table, compute) == "done"
