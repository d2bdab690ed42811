"""Compaction: merges small files so that each row is copied only a few times.

The files of a partition are sorted into size classes; each class holds files up to eight times as
large as the class below. Eight files of a class are merged into a file of a higher class. So a row
is copied at most once for each class, and a partition keeps at most seven files of each class.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from txmq.delta.file_rows import in_row_groups
from txmq.delta.files import DataFile, partition_texts
from txmq.delta.parquet import NewFile, write_file
from txmq.delta.table import Table
from txmq.errors import CommitRefusedError
from txmq.ground.fail_points import FailPoint, reached
from txmq.ground.results import Sum

FILES_OF_A_CLASS = 8
SMALLEST_CLASS_BYTES = 128 * 1024
# What is merged at once: after it there is a commit, and memory is free again.
FILES_AT_ONCE = 2_048
# About so many bytes become a row group.
ROW_GROUP_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Compacted(Sum):
    """How many files were merged, and into how many."""

    files_before: int = 0
    files_after: int = 0


def compact(table: Table, target_bytes: int) -> Compacted:
    """Merge small files, in one commit for each FILES_AT_ONCE of them or a few more.

    Raises: CommitRefusedError where another program changed the same files. Then no row is lost
        or doubled, and `maintenance.orphans` removes the files that were written.
    """
    compacted = Compacted()
    for groups in _of_one_commit(groups_to_compact(table.refresh().files.all(), target_bytes)):
        try:
            # Who is killed keeps what is done so far.
            compacted += _merged_groups(table, groups)
        except CommitRefusedError:
            if compacted == Compacted():
                raise
            break
    return compacted


def size_class(size_bytes: int) -> int:
    """Return 0 below 128 KiB, 1 below 1 MiB, 2 below 8 MiB, and so on."""
    number, bound_bytes = 0, SMALLEST_CLASS_BYTES
    while size_bytes >= bound_bytes:
        number, bound_bytes = number + 1, bound_bytes * FILES_OF_A_CLASS
    return number


def groups_to_compact(files: Iterable[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Choose the files to merge: neighbours in time of one partition and size class.

    Files of `target_bytes` and more stay as they are.
    """
    classes: dict[tuple[object, ...], list[DataFile]] = {}
    for file in files:
        if file.size_bytes < target_bytes:
            key = (*file.partition.values(), size_class(file.size_bytes))
            classes.setdefault(key, []).append(file)
    return [
        group
        for members in classes.values()
        if len(members) >= FILES_OF_A_CLASS
        for group in _bins(sorted(members, key=_by_time), target_bytes)
    ]


def _by_time(file: DataFile) -> tuple[int, str]:
    return file.modified_ms, file.path


def _bins(files: Sequence[DataFile], target_bytes: int) -> Iterator[list[DataFile]]:
    """Cut neighbours into runs of up to `target_bytes`; leave out a run of one file."""
    run: list[DataFile] = []
    size_bytes = 0
    for file in files:
        if run and (size_bytes + file.size_bytes > target_bytes or len(run) == FILES_AT_ONCE):
            yield from [run] if len(run) > 1 else []
            run, size_bytes = [], 0
        run.append(file)
        size_bytes += file.size_bytes
    yield from [run] if len(run) > 1 else []


def _merged_groups(table: Table, groups: Sequence[list[DataFile]]) -> Compacted:
    """Merge these groups in one commit, but for groups of which a file is gone meanwhile."""
    snapshot = table.refresh().log.snapshot
    # No rule of conflicts sees what was gone before the version that the commit starts from.
    whole = [group for group in groups if all(snapshot.holds(file.path) for file in group)]
    if not whole:
        return Compacted()
    merged = [_merged(table, group) for group in whole]
    old = [file for group in whole for file in group]
    replace_files(table, old, merged)
    return Compacted(len(old), len(merged))


def _of_one_commit(groups: Iterable[list[DataFile]]) -> Iterator[list[list[DataFile]]]:
    """Gather groups until they have FILES_AT_ONCE files."""
    gathered: list[list[DataFile]] = []
    for group in groups:
        gathered.append(group)
        if sum(map(len, gathered)) >= FILES_AT_ONCE:
            yield gathered
            gathered = []
    if gathered:
        yield gathered


def _merged(table: Table, files: Sequence[DataFile]) -> NewFile:
    """Write a new file with the rows of all `files`, in their order."""
    rows = table.rows.each(files, stored_columns(table))
    return written_anew(table, _row_groups(rows), files[0].partition)


def _row_groups(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Join the rows of many files into few tables; each becomes a row group."""
    limits = (sys.maxsize, ROW_GROUP_BYTES)
    return in_row_groups(tables, _together, lambda rows: (rows.num_rows, rows.nbytes), limits)


def _together(parts: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(parts).combine_chunks()


def stored_columns(table: Table) -> list[str]:
    """Return the columns in the files of a table; a typed topic has more than its schema."""
    return [name for name in table.log.columns.names if name not in table.schema.partition_by]


def written_anew(table: Table, rows: Iterable[pa.Table], partition: Mapping[str, Any]) -> NewFile:
    """Write a new file of one partition with these rows in `stored_columns`; 0 commits.

    Memory holds one of the tables; each becomes a row group.
    """
    names = stored_columns(table)
    schema = pa.schema([table.log.columns.field(name) for name in names])
    statistics = table.schema.statistics_columns or names
    return write_file(rows, schema, table.folder.filesystem, statistics, partition_texts(partition))


def replace_files(table: Table, old: Sequence[DataFile], new: Sequence[NewFile]) -> int:
    """Replace files with `dataChange=false` and return the version of the commit.

    Raises: CommitRefusedError where another program changed the same files. Then no row is lost
        or doubled, and `maintenance.orphans` removes the files that were written.
    """
    reached(FailPoint.FILES_MERGED)
    version = table.writer.rewrite(old, new)
    reached(FailPoint.FILES_REPLACED)
    return version
