"""New files of a table with partitions: how many are open at once, and what they hold."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
import pytest

from txmq.delta import parquet
from txmq.delta.parquet import NewFile, write_partitions

BEGIN = date(1500, 1, 1)


class OpenFiles(pa_fs.SubTreeFileSystem):
    """A folder that knows the files that were opened for writing."""

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder), pa_fs.LocalFileSystem())
        self.files: list[Any] = []
        self.open_max = 0

    def open_output_stream(self, path: str, *arguments: Any, **options: Any) -> Any:
        self.files.append(super().open_output_stream(path, *arguments, **options))
        self.open_max = max(self.open_max, sum(not file.closed for file in self.files))
        return self.files[-1]


@pytest.fixture
def folder(tmp_path: Path) -> OpenFiles:
    return OpenFiles(tmp_path)


def tables(days: int, rounds: int) -> Iterator[pa.Table]:
    dates = [BEGIN + timedelta(days=day) for day in range(days)]
    for number in range(rounds):
        yield pa.table({"due_date": dates, "body": [f"{number}/{day}" for day in range(days)]})


def written(folder: OpenFiles, rows: Iterator[pa.Table]) -> list[NewFile]:
    return write_partitions(rows, ["due_date"], folder, ["body"])


def test_many_partitions_are_written_with_few_open_files(
    folder: OpenFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "PARTITION_BUFFER_BYTES", 1)

    files = written(folder, tables(days=100, rounds=3))

    assert folder.open_max <= parquet.OPEN_PARTITIONS_MAX
    assert all(file.closed for file in folder.files)
    bodies = sorted(
        body
        for file in files
        for body in pq.read_table(file.path, filesystem=folder)["body"].to_pylist()
    )
    assert bodies == sorted(f"{number}/{day}" for number in range(3) for day in range(100))
    assert len({file.partition["due_date"] for file in files}) == 100


def test_rows_that_wait_are_bounded_over_all_partitions(
    folder: OpenFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "PARTITIONS_BUFFER_BYTES", 200)

    files = written(folder, tables(days=20, rounds=5))

    groups = [pq.read_metadata(file.path, filesystem=folder).num_row_groups for file in files]
    # With a buffer for each partition alone there was one group a file.
    assert sum(groups) > len(files)
    assert sum(file.num_records for file in files) == 100


def test_each_file_is_closed_where_writing_fails(folder: OpenFiles) -> None:
    def rows() -> Iterator[pa.Table]:
        yield from tables(days=3, rounds=1)
        raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        written(folder, rows())
    gc.collect()

    assert all(file.closed for file in folder.files)


def test_row_without_a_partition_is_in_the_partition_null(folder: OpenFiles) -> None:
    rows = pa.table({"due_date": pa.array([None], pa.date32()), "body": ["x"]})

    (file,) = written(folder, iter([rows]))

    assert file.partition == {"due_date": None}
    assert file.num_records == 1
