"""Checkpoints from the one before and the commits since, held against a replay of all commits."""

from __future__ import annotations

import json
import random
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.kit.delta_protocol import Snapshot, checked
from tests.kit.numbers_table import (
    NUMBERS,
    another,
    numbers_table,
    rows,
    something,
    without_commits_before,
)
from txmq.delta import checkpoints as checkpoint_file
from txmq.delta.actions import commit_path, session_mark
from txmq.delta.checkpoints import (
    LAST_CHECKPOINT,
    OtherCheckpointError,
    checkpoint_now,
    checkpoint_path,
    write_checkpoint,
)
from txmq.delta.table import Table
from txmq.errors import StorageError


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """Nothing but the tests makes checkpoints."""
    return numbers_table(tmp_path)


def same_as(snapshot: Snapshot, handle: DeltaTable) -> bool:
    files = pa.table(handle.get_add_actions(flatten=True)).to_pylist()
    sizes = {file["path"]: (file["size_bytes"], file["num_records"]) for file in files}
    expected = {
        path: (action["size"], json.loads(action["stats"])["numRecords"])
        for path, action in snapshot.live.items()
    }
    marks = {name: handle.transaction_version(name) for name in snapshot.marks}
    metadata = handle.metadata()
    return (
        handle.version() == snapshot.version
        and sizes == expected
        and marks == snapshot.marks
        and metadata.id == snapshot.metadata["id"]
        and metadata.configuration == snapshot.metadata["configuration"]
        and metadata.partition_columns == snapshot.metadata["partitionColumns"]
    )


@pytest.mark.parametrize("seed", range(8))
def test_reader_from_a_checkpoint_sees_what_all_commits_say(table: Table, seed: int) -> None:
    dice = random.Random(seed)
    for step in range(1, 40):
        something(table, dice, step)
        if dice.random() < 0.2:
            kind = dice.choice(["own", "own", "delta-rs"])
            if kind == "own":
                write_checkpoint(table.folder, table.refresh().version)
            else:
                DeltaTable(table.location).create_checkpoint()
    snapshot = checked(table.location)
    write_checkpoint(table.folder, snapshot.version)

    without_commits_before(table, snapshot.version)

    assert same_as(snapshot, DeltaTable(table.location))


def test_change_feed_and_marks_go_on_after_a_checkpoint(table: Table) -> None:
    table.writer.append(rows(1), app_id="app", number=1)
    write_checkpoint(table.folder, 1)
    table.writer.append(rows(2), app_id="app", number=2)

    fresh = Table(table.location, NUMBERS).refresh()

    assert fresh.log.mark("app") == 2
    assert fresh.changes.read(2, 2, ["number"])["number"].to_pylist() == [2]


def test_removed_files_are_remembered_for_an_hour_only(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    table.writer.append(rows(1), app_id="app", number=1)
    table.writer.remove(table.files.all())
    write_checkpoint(table.folder, 2)
    recent = pq.read_table(Path(table.location, checkpoint_path(2)))
    monkeypatch.setattr(checkpoint_file, "TOMBSTONE_MS", -60_000)
    table.writer.append(rows(2), app_id="app", number=2)
    write_checkpoint(table.folder, 3)
    later = pq.read_table(Path(table.location, checkpoint_path(3)))

    assert len(recent) - recent["remove"].null_count == 1
    assert len(later) == later["remove"].null_count
    assert [file.num_records for file in Table(table.location, NUMBERS).refresh().files.all()] == [
        1
    ]


def test_removed_files_are_remembered_as_long_as_the_table_asks(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_file, "TOMBSTONE_MS", -60_000)
    table.writer.set_properties({"delta.deletedFileRetentionDuration": "interval 2 hours"})
    table.writer.append(rows(1), app_id="app", number=1)
    table.writer.remove(table.files.all())

    write_checkpoint(table.folder, 3)

    content = pq.read_table(Path(table.location, checkpoint_path(3)))
    assert len(content) - content["remove"].null_count == 1


@pytest.mark.parametrize(
    "properties",
    [
        {"delta.checkpoint.writeStatsAsStruct": "true"},
        {"delta.checkpoint.writeStatsAsJson": "false"},
    ],
)
def test_statistics_of_another_form_are_left_to_delta_rs(
    table: Table, properties: dict[str, str]
) -> None:
    table.writer.append(rows(1), app_id="app", number=1)
    table.writer.set_properties(properties)

    with pytest.raises(OtherCheckpointError, match="statistics"):
        write_checkpoint(table.folder, 2)


def test_checkpoint_is_due_by_its_commits_and_by_what_it_holds(table: Table) -> None:
    for number in range(1, 61):
        table.writer.append(rows(number), app_id="app", number=number)
    assert write_checkpoint(table.folder, 60, least_commits=25)
    for number in range(61, 65):
        table.writer.append(rows(number), app_id="app", number=number)

    # Of 63 rows, four are fewer than a tenth.
    assert not write_checkpoint(table.folder, 64, least_commits=2)
    assert not write_checkpoint(table.folder, 64, least_commits=25)
    assert write_checkpoint(table.folder, 64)
    assert not write_checkpoint(table.folder, 64)


def test_older_checkpoint_does_not_move_the_newest_back(table: Table) -> None:
    for number in (1, 2, 3):
        table.writer.append(rows(number), app_id="app", number=number)
    write_checkpoint(table.folder, 3)

    assert not write_checkpoint(table.folder, 2)
    last = json.loads(Path(table.location, LAST_CHECKPOINT).read_text(encoding="utf-8"))
    assert last["version"] == 3


def without_last(table: Table) -> None:
    Path(table.location, LAST_CHECKPOINT).write_bytes(b"")


def without_file(table: Table) -> None:
    Path(table.location, checkpoint_path(1)).unlink()


def with_half_a_file(table: Table) -> None:
    path = Path(table.location, checkpoint_path(1))
    path.write_bytes(path.read_bytes()[:100])


def with_parts(table: Table) -> None:
    path = Path(table.location, LAST_CHECKPOINT)
    last = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**last, "parts": 2}), encoding="utf-8")


@pytest.mark.parametrize("damage", [without_last, without_file, with_half_a_file, with_parts])
def test_checkpoint_that_cannot_be_continued_is_left_to_delta_rs(
    table: Table, damage: object
) -> None:
    table.writer.append(rows(1), app_id="app", number=1)
    write_checkpoint(table.folder, 1)
    table.writer.append(rows(2), app_id="app", number=2)
    damage(table)  # type: ignore[operator]

    with pytest.raises(OtherCheckpointError):
        write_checkpoint(table.folder, 2)
    if damage is without_last:
        checkpoint_now(table.folder, 2)
        assert Path(table.location, checkpoint_path(2)).exists()


def test_damaged_commit_is_named(table: Table) -> None:
    table.writer.append(rows(1), app_id="app", number=1)
    Path(table.location, commit_path(1)).write_text("{", encoding="utf-8")

    with pytest.raises(StorageError, match=r"1\.json is damaged"):
        write_checkpoint(table.folder, 1)
    assert not Path(table.location, checkpoint_path(1)).exists()


def test_property_of_any_name_is_kept(table: Table) -> None:
    table.writer.set_properties({"provider": "x"})
    table.writer.append(rows(1), app_id="app", number=1)

    checkpoint_now(table.folder, table.version)
    without_commits_before(table, table.version)

    assert Table(table.location, NUMBERS).log.properties()["provider"] == "x"


def test_values_that_do_not_fit_are_left_to_delta_rs(table: Table) -> None:
    strange = {"txn": {"appId": "other", "version": 1, "lastUpdated": "today"}}
    table.writer.append(rows(1), app_id="app", number=1)
    Path(table.location, commit_path(2)).write_text(json.dumps(strange))

    with pytest.raises(OtherCheckpointError):
        write_checkpoint(table.folder, 2)


def later_by(table: Table, hours: int) -> None:
    """Let so many hours go by for the marks of the last checkpoint."""
    last = json.loads(Path(table.location, LAST_CHECKPOINT).read_text(encoding="utf-8"))
    path = Path(table.location, checkpoint_path(last["version"]))
    content = pq.read_table(path)
    actions = content.to_pylist(maps_as_pydicts="strict")
    for action in actions:
        if action["txn"] is not None:
            action["txn"]["lastUpdated"] -= hours * 3_600_000
    pq.write_table(pa.Table.from_pylist(actions, checkpoint_file.SCHEMA), path)


def test_mark_of_a_session_that_is_gone_leaves_the_log_after_three_days(table: Table) -> None:
    gone, alive = session_mark("producer", uuid.uuid4()), session_mark("producer", uuid.uuid4())
    table.writer.append(rows(1), app_id=gone, number=1)
    table.writer.append(rows(2), app_id=alive, number=1)
    table.writer.swap(rows(3), {"txmq-once/group": 7, "txmq/op": 5})
    checkpoint_now(table.folder, 3)

    later_by(table, 73)
    table.writer.append(rows(4), app_id=alive, number=2)
    checkpoint_now(table.folder, 4)

    assert another(table).log.marks("txmq") == {alive: 2, "txmq-once/group": 7, "txmq/op": 5}
    assert DeltaTable(table.location).transaction_version(gone) is None


def test_mark_of_a_session_whose_clock_is_far_behind_stays(table: Table) -> None:
    late = session_mark("check", uuid.uuid4())
    action = {"txn": {"appId": late, "version": 1, "lastUpdated": 1}}
    Path(table.location, commit_path(1)).write_text(json.dumps(action), encoding="utf-8")
    checkpoint_now(table.folder, 1)

    later_by(table, 71)
    table.writer.append(rows(2), app_id="app", number=1)
    checkpoint_now(table.folder, 2)

    assert another(table).log.mark(late) == 1


def test_field_of_a_file_that_a_checkpoint_would_lose_is_left_to_delta_rs(table: Table) -> None:
    table.writer.append(rows(1), app_id="app", number=1)
    file = {"path": "x.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1,
            "dataChange": True, "baseRowId": 7}  # fmt: skip
    Path(table.location, commit_path(2)).write_text(json.dumps({"add": file}))

    with pytest.raises(OtherCheckpointError, match="baseRowId"):
        write_checkpoint(table.folder, 2)
