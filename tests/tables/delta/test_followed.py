"""What a follower of a log knows, held against delta-rs after commits of all kinds."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.kit.numbers_table import (
    another,
    numbers_table,
    rows,
    something,
    stored,
    without_commits_before,
)
from tests.kit.reading import delta_rs
from txmq.delta import snapshot, table_log
from txmq.delta.actions import LOG_FOLDER, commit_path
from txmq.delta.checkpoints import checkpoint_now, checkpoint_path, write_checkpoint
from txmq.delta.table import Table
from txmq.errors import StorageError

MARKS = ("app-0", "app-1", "app-2", "progress", "removed", "txmq-rewrite", "nobody")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return numbers_table(tmp_path)


def as_delta_rs_says(table: Table) -> dict[str, Any]:
    handle = delta_rs(table.folder)
    files = pa.table(handle.get_add_actions(flatten=True)).to_pylist()
    metadata = handle.metadata()
    return {
        "version": handle.version(),
        "id": metadata.id,
        "properties": metadata.configuration,
        "columns": pa.schema(handle.schema().to_arrow()),
        "marks": {name: handle.transaction_version(name) for name in MARKS},
        "files": {
            file["path"]: (
                file["num_records"], file["size_bytes"], file["partition.part"],
                file["modification_time"],
                file["min.number"], file["max.number"],
            )
            for file in files
        },
    }  # fmt: skip


def as_followed(table: Table) -> dict[str, Any]:
    ranges = table.files.ranges("number")
    return {
        "version": table.version,
        "id": table.log.table_id,
        "properties": table.log.properties(),
        "columns": table.log.snapshot.definition.columns,
        "marks": {name: table.log.mark(name) for name in MARKS},
        "files": {
            span.file.path: (
                span.file.num_records, span.file.size_bytes, span.file.partition["part"],
                span.file.modified_ms, span.low, span.high,
            )
            for span in ranges
        },
    }  # fmt: skip


def checkpoint_of_several_files(table: Table) -> None:
    """As other programs write one: the rows of one file, in two."""
    version = table.refresh().version
    checkpoint_now(table.folder, version)
    whole = Path(table.location, checkpoint_path(version))
    content = pq.read_table(whole)
    half = len(content) // 2
    for part, some in enumerate((content.slice(0, half), content.slice(half)), start=1):
        name = f"{version:020d}.checkpoint.{part:010d}.{2:010d}.parquet"
        pq.write_table(some, whole.with_name(name))
    whole.unlink()
    last = {"version": version, "size": len(content), "parts": 2}
    Path(table.location, LOG_FOLDER, "_last_checkpoint").write_text(json.dumps(last))


def some_checkpoint(table: Table, dice: random.Random) -> None:
    kind = dice.choice(["own", "delta-rs", "several files"])
    if kind == "own":
        checkpoint_now(table.folder, table.refresh().version)
    elif kind == "delta-rs":
        delta_rs(table.folder).create_checkpoint()
    else:
        checkpoint_of_several_files(table)


@pytest.mark.parametrize("seed", range(8))
def test_follower_knows_what_delta_rs_knows(table: Table, seed: int) -> None:
    dice, follower = random.Random(seed), another(table)
    sleeper = another(table)
    for step in range(1, 30):
        something(table, dice, step)
        if dice.random() < 0.2:
            some_checkpoint(table, dice)
        if dice.random() < 0.5:
            assert as_followed(follower.refresh()) == as_delta_rs_says(table)
        assert as_followed(another(table)) == as_delta_rs_says(table)
    assert as_followed(sleeper.refresh()) == as_delta_rs_says(table)


@pytest.mark.parametrize("seed", range(4))
def test_follower_that_slept_while_the_log_was_cleaned_knows_it_too(
    table: Table, seed: int
) -> None:
    dice, sleeper = random.Random(seed), another(table)
    for step in range(1, 20):
        something(table, dice, step)
    some_checkpoint(table, dice)
    without_commits_before(table, table.refresh().version)
    something(table, dice, 20)

    assert as_followed(sleeper.refresh()) == as_delta_rs_says(table)


def test_changes_are_those_of_delta_rs(table: Table) -> None:
    dice = random.Random(1)
    for step in range(1, 30):
        something(table, dice, step)
    end = table.refresh().version
    feed = pa.table(delta_rs(table.folder).load_cdf(0, end)).to_pylist()
    inserts = [row for row in feed if row["_change_type"] == "insert"]

    changes = table.changes.read(0, end, ("number", "part")).to_pylist()

    def as_lines(some: list[dict[str, Any]]) -> list[str]:
        return sorted(f"{row['_commit_version']} {row['part']} {row['number']}" for row in some)

    assert as_lines(changes) == as_lines(inserts)


def test_rows_that_another_program_rewrote_are_no_changes(table: Table) -> None:
    table.writer.append(rows(1, 2, 3), app_id="app", number=1)
    delta_rs(table.folder).update(updates={"number": "number + 10"}, predicate="number = 2")

    version = table.refresh().version

    assert stored(table) == [1, 3, 12]
    assert table.changes.read(version, version, ("number",)).num_rows == 0


def test_checkpoint_without_its_commits_is_enough(table: Table) -> None:
    table.writer.append(rows(1), app_id="app", number=1)
    write_checkpoint(table.folder, 1)
    for version in (0, 1):
        Path(table.location, commit_path(version)).unlink()

    assert stored(table) == [1]
    assert another(table).refresh().log.mark("app") == 1


def test_half_of_a_checkpoint_of_several_files_is_none(table: Table) -> None:
    table.writer.append(rows(1), app_id="app", number=1)
    checkpoint_of_several_files(table)
    (first,) = Path(table.location, LOG_FOLDER).glob("*.checkpoint.0000000001.*")
    first.unlink()

    assert stored(table) == [1]


def test_damaged_commit_is_named(table: Table) -> None:
    table.writer.append(rows(1), app_id="app", number=1)
    Path(table.location, commit_path(1)).write_bytes(b'{"add":')

    with pytest.raises(StorageError, match=f"{commit_path(1)} is damaged; restore this file"):
        another(table)


def test_log_that_went_back_is_read_as_a_whole(table: Table, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    table.writer.append(rows(1), app_id="app", number=1)
    shutil.copytree(table.location, copy)
    table.writer.append(rows(2), app_id="app", number=2)
    follower = another(table)
    shutil.rmtree(table.location)
    shutil.copytree(copy, table.location)

    assert as_followed(follower.refresh()) == as_delta_rs_says(table)


def test_reading_after_an_own_commit_goes_no_further_than_it(table: Table) -> None:
    """What a rival committed later is news, and not taken for known."""
    table.writer.append(rows(1), app_id="app", number=1)
    another(table).writer.append(rows(2), app_id="rival", number=1)

    assert table.version == 1
    assert table.log.has_news()
    assert table.refresh().version == 2
    assert not table.log.has_news()


@pytest.mark.parametrize("side", ["Reader", "Writer"])
def test_table_of_a_newer_protocol_is_refused_by_name(table: Table, side: str) -> None:
    definition = table.log.snapshot.definition
    newer = snapshot.Definition(
        definition.metadata, {**definition.protocol, f"min{side}Version": 9}
    )

    assert newer.unsupported == [f"{side.lower()} version 9"]


def test_columns_that_are_mapped_without_a_feature_are_refused(table: Table) -> None:
    definition = table.log.snapshot.definition
    metadata = {**definition.metadata, "configuration": {"delta.columnMapping.mode": "name"}}

    assert snapshot.Definition(metadata, definition.protocol).unsupported == ["columnMapping"]


def test_statistics_that_cannot_be_read_leave_a_file_in() -> None:
    for text in (None, "", "{", "[]", '{"minValues": {"number": "one"}, "maxValues": null}'):
        file = snapshot.LiveFile("a.parquet", 1, 0, {}, text)
        assert file.bounds("number", snapshot.as_kind(pa.int64())) == (None, None)


def test_log_is_not_listed_while_commits_come(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = another(table)
    monkeypatch.setattr(follower.folder, "log_names", None)
    monkeypatch.setattr(follower.folder, "log_folder", None)
    monkeypatch.setattr(table_log, "LIST_EVERY_S", 3600.0)
    for number in range(1, 30):
        table.writer.append(rows(number), app_id="app", number=number)
        assert follower.refresh().version == number


@pytest.mark.parametrize("hidden", [(3,), (2, 4), (1, 2, 3, 4)])
@pytest.mark.parametrize("checkpoint", [None, 2])
def test_commit_that_a_listing_has_passed_over_is_looked_up_by_name(
    table: Table, monkeypatch: pytest.MonkeyPatch, hidden: tuple[int, ...], checkpoint: int | None
) -> None:
    """A folder is not listed at one moment: of two commits it may show the later one alone."""
    for number in range(1, 6):
        table.writer.append(rows(number), app_id="app", number=number)
        if number == checkpoint:
            table.writer.checkpoint()
    fresh = another(table)
    names = {Path(commit_path(version)).name for version in hidden}
    listed = [info for info in fresh.folder.log_folder() if info.base_name not in names]
    monkeypatch.setattr(fresh.folder, "log_names", lambda: [info.base_name for info in listed])
    monkeypatch.setattr(fresh.folder, "log_folder", lambda: listed)

    assert fresh.version == table.version
    assert fresh.log.kept_log().log_bytes.keys() == another(table).log.kept_log().log_bytes.keys()


def test_commit_that_is_lost_is_named(table: Table) -> None:
    for number in range(1, 6):
        table.writer.append(rows(number), app_id="app", number=number)
    Path(table.location, commit_path(3)).unlink()

    with pytest.raises(StorageError, match=f"{commit_path(3)} is not there, but later"):
        another(table).version  # noqa: B018


def test_commit_that_comes_after_the_look_for_it_is_no_reason_to_read_the_whole_log(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = another(table)
    assert follower.refresh().version == 0
    monkeypatch.setattr(table_log, "LIST_EVERY_S", 0.0)
    newest_commit = follower.folder.newest_commit

    def after_a_commit() -> int:
        table.writer.append(rows(1), app_id="app", number=1)
        return newest_commit()

    monkeypatch.setattr(follower.folder, "newest_commit", after_a_commit)
    monkeypatch.setattr(follower.folder, "log_names", lambda: [Path(commit_path(1)).name])
    monkeypatch.setattr(follower.log, "_opened", None)

    assert follower.refresh().version == 0
    monkeypatch.setattr(follower.folder, "newest_commit", newest_commit)
    assert follower.refresh().version == 1


def test_clean_up_between_two_looks_is_no_end_of_the_log(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both commits that a follower looks for are deleted, one look before it and one after."""
    follower = another(table)
    for number in range(1, 6):
        table.writer.append(rows(number), app_id="app", number=number)
    table.writer.checkpoint()
    look = follower.folder.look_up_commits

    def slow(*versions: int) -> list[Any]:
        first = look(versions[0])
        monkeypatch.setattr(follower.folder, "look_up_commits", look)
        without_commits_before(table, table.version)
        return [*first, *look(*versions[1:])]

    monkeypatch.setattr(follower.folder, "look_up_commits", slow)

    assert follower.refresh().version == 5


@pytest.mark.parametrize(
    "actions",
    [
        ['{"remove": {"path": "FILE", "dataChange": true}}', '{"add": {"path": "x.parquet"}}'],
        ['{"add": 5}'],
        ['{"txn": {"appId": "a"}}'],
        ["7"],
    ],
)
def test_commit_of_another_shape_is_named_and_nothing_of_it_counts(
    table: Table, actions: list[str]
) -> None:
    table.writer.append(rows(1), app_id="app", number=1)
    follower = another(table)
    (file,) = follower.files.all()
    content = "\n".join(actions).replace("FILE", file.log_path)
    Path(table.location, commit_path(2)).write_text(content)

    for _ in range(2):
        with pytest.raises(StorageError, match=f"{commit_path(2)} is damaged; restore this file"):
            follower.refresh()
    assert follower.files.all() == [file]


def test_action_that_is_null_is_none(table: Table) -> None:
    lines = ['{"txn": {"appId": "app", "version": 3}, "remove": null, "add": null}']
    Path(table.location, commit_path(1)).write_text("\n".join(lines))

    assert another(table).log.mark("app") == 3


@pytest.mark.parametrize("path", ["x y.parquet", "ü.parquet", "a%3Ab.parquet", "a%27b.parquet"])
def test_file_is_removed_by_its_path_as_the_log_spells_it(table: Table, path: str) -> None:
    """Other readers compare paths as they are spelled."""
    content = pa.BufferOutputStream()
    pq.write_table(pa.table({"number": [1]}), content)
    Path(table.location, unquote(path)).write_bytes(content.getvalue().to_pybytes())
    add = {
        "path": path, "partitionValues": {"part": "a"}, "size": 1, "modificationTime": 0,
        "dataChange": True,
    }  # fmt: skip
    Path(table.location, commit_path(1)).write_text(json.dumps({"add": add}))
    table.refresh()

    table.writer.rewrite(table.files.all(), table.writer.new_files(rows(1)))
    checkpoint_now(table.folder, table.version)

    assert stored(table) == [1]
    assert pa.table(delta_rs(table.folder).get_add_actions()).num_rows == 1


def test_checkpoint_without_marks_is_read(table: Table) -> None:
    write_checkpoint(table.folder, 0)
    whole = Path(table.location, checkpoint_path(0))
    pq.write_table(pq.read_table(whole).drop_columns(["txn"]), whole)
    Path(table.location, commit_path(0)).unlink()

    assert another(table).log.mark("app") is None


def test_damaged_checkpoint_beside_one_of_several_files_is_passed_over(table: Table) -> None:
    table.writer.append(rows(1), app_id="app", number=1)
    checkpoint_of_several_files(table)
    Path(table.location, checkpoint_path(1)).write_bytes(b"PAR1")
    for version in (0, 1):
        Path(table.location, commit_path(version)).unlink()

    assert stored(table) == [1]


def test_marks_are_found_by_the_begin_of_their_names(table: Table) -> None:
    for number, name in enumerate(("queue/1", "queue/2", "other"), start=1):
        table.writer.append(rows(number), app_id=name, number=number)
    write_checkpoint(table.folder, 3)
    table.writer.append(rows(4), app_id="queue/2", number=7)

    assert another(table).log.marks("queue/") == {"queue/1": 1, "queue/2": 7}
