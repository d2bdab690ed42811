"""Looks at a log that cost a request each, as on an object store: few, and none too few."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.numbers_table import another, numbers_table, rows
from txmq.delta.table import Table

if TYPE_CHECKING:
    import pyarrow.fs as pa_fs


class Looks:
    """A table whose looks are counted, as on an object store, and a clock for them."""

    def __init__(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        self.table, self.now_s, self.names, self.listings = table, 1_000.0, [], 0
        infos, listed = table.folder.commit_infos, table.log._is_listed

        def noted(*versions: int) -> list[pa_fs.FileInfo]:
            self.names += versions
            return infos(*versions)

        def counted() -> bool:
            self.listings += 1
            return listed()

        monkeypatch.setattr(table.folder, "commit_infos", noted)
        monkeypatch.setattr(table.log, "_is_listed", counted)
        monkeypatch.setattr(type(table.folder.objects), "is_remote", True)
        monkeypatch.setattr("txmq.delta.table_log.time.monotonic", lambda: self.now_s)


@pytest.fixture
def looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Looks:
    table = numbers_table(tmp_path)
    table.writer.append(rows(1), app_id="test", number=1)
    return Looks(another(table), monkeypatch)


def test_look_soon_after_another_one_asks_for_one_name(looks: Looks) -> None:
    version = looks.table.version
    assert not looks.table.log.has_news()
    assert looks.names == [version, version + 1]

    looks.now_s += 1
    assert not looks.table.log.has_news()
    assert looks.names == [version, version + 1, version + 1]


@pytest.mark.parametrize("slept_s", [6.0, 3_600.0])
def test_who_slept_between_two_looks_notices_that_clean_up_has_passed(
    looks: Looks, slept_s: float
) -> None:
    assert not looks.table.log.has_news()
    looks.now_s += slept_s
    for path in Path(looks.table.location, "_delta_log").glob("*.json"):
        path.unlink()

    assert looks.table.log.has_news()


def test_frequent_looks_notice_a_log_that_went_back_after_a_minute(looks: Looks) -> None:
    assert not looks.table.log.has_news()
    Path(looks.table.location, "_delta_log", f"{looks.table.version:020d}.json").unlink()
    noticed = []
    for _ in range(62):
        looks.now_s += 1
        noticed.append(looks.table.log.has_news())

    assert noticed.index(True) > 50


def later_table(folder: Path) -> Table:
    """A table that nobody has made yet."""
    return Table(str(folder / "later"), numbers_table(folder / "made").schema)


def test_table_that_was_not_there_is_looked_for_by_its_first_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = later_table(tmp_path)
    looks = Looks(table, monkeypatch)
    for _ in range(30):
        looks.now_s += 1
        assert not table.exists()
    assert looks.listings == 1

    table.writer.create(checkpoint_interval=10)

    assert table.exists()
    assert looks.listings == 1


def test_table_whose_first_commit_was_cleaned_is_found_by_the_next_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = numbers_table(tmp_path / "made")
    made.writer.append(rows(1), app_id="test", number=1)
    table = Table(str(tmp_path / "later"), made.schema)
    looks = Looks(table, monkeypatch)
    assert not table.exists()
    shutil.copytree(made.location, table.location)
    Path(table.location, "_delta_log", f"{0:020d}.json").unlink()
    assert not table.exists()

    looks.now_s += 61

    assert table.exists()
