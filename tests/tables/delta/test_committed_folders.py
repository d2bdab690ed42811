"""Folders of Parquet files that Databricks commits by files of its own, as documents say."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
import pytest

from txmq.delta.parquet import written_by_spark
from txmq.errors import StorageError

FILESYSTEM = pa_fs.SubTreeFileSystem


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two files of a task that ran twice, of which the first run failed after its file."""
    folder = tmp_path / "staging-x"
    folder.mkdir()
    for name in ("part-0-tid-1-failed", "part-0-tid-1", "part-1-tid-1"):
        pq.write_table(pa.table({"sequence": [1, 2]}), folder / f"{name}.parquet")
    folder.joinpath("_started_1").touch()
    return folder


def files_of(folder: Path) -> list[str]:
    filesystem = FILESYSTEM(str(folder.parent), pa_fs.LocalFileSystem())
    return [file.path for file in written_by_spark(folder.name, filesystem, ["sequence"], {})]


def commit(folder: Path, number: int, added: list[str], removed: list[str]) -> None:
    lists = {"added": added, "removed": removed}
    folder.joinpath(f"_committed_{number}").write_text(json.dumps(lists))


def test_file_of_a_task_that_failed_is_left_out(folder: Path) -> None:
    commit(folder, 1, ["part-1-tid-1.parquet", "part-0-tid-1.parquet"], [])

    assert files_of(folder) == ["staging-x/part-0-tid-1.parquet", "staging-x/part-1-tid-1.parquet"]


def test_file_that_a_later_commit_took_back_is_left_out(folder: Path) -> None:
    commit(folder, 1, ["part-0-tid-1-failed.parquet"], [])
    commit(folder, 2, ["part-0-tid-1.parquet"], ["part-0-tid-1-failed.parquet"])

    assert files_of(folder) == ["staging-x/part-0-tid-1.parquet"]


def test_folder_that_was_begun_and_not_committed_is_refused(folder: Path) -> None:
    with pytest.raises(StorageError, match="committed none"):
        files_of(folder)


def test_folder_of_open_source_spark_has_every_file(folder: Path) -> None:
    folder.joinpath("_started_1").unlink()

    assert len(files_of(folder)) == 3
