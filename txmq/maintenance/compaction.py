"""Compaction: which small files become one, so that each row is copied a few times at most.

Files of a partition are sorted into size classes, each eight times the one below. Where a class
has eight files they become one of a class above: a row is copied once a class, and a partition
never holds more than seven files of each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from txmq.delta.files import DataFile, partition_texts
from txmq.delta.log import removed_by
from txmq.delta.parquet import NewFile, write_file
from txmq.delta.storage import Table
from txmq.errors import CommitRefusedError
from txmq.fail_points import FailPoint, reached
from txmq.results import Sum

FILES_OF_A_CLASS = 8
SMALLEST_CLASS_BYTES = 128 * 1024
ROW_GROUP_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Compacted(Sum):
    """How many files became how many."""

    files_before: int = 0
    files_after: int = 0


def size_class(size_bytes: int) -> int:
    """0 below 128 KiB, 1 below 1 MiB, 2 below 8 MiB, and so on."""
    number, bound_bytes = 0, SMALLEST_CLASS_BYTES
    while size_bytes >= bound_bytes:
        number, bound_bytes = number + 1, bound_bytes * FILES_OF_A_CLASS
    return number


def groups_to_compact(files: Iterable[DataFile], target_bytes: int) -> list[list[DataFile]]:
    """Files that become one file each: of one partition and class, neighbours in time.

    Files of `target_bytes` and more stay as they are.
    """
    classes: dict[tuple[object, ...], list[DataFile]] = {}
    for file in files:
        if file.size_bytes < target_bytes:
            key = (*file.partition.values(), size_class(file.size_bytes))
            classes.setdefault(key, []).append(file)
    return [
        group
        for found in classes.values()
        if len(found) >= FILES_OF_A_CLASS
        for group in _bins(sorted(found, key=_by_time), target_bytes)
    ]


def _by_time(file: DataFile) -> tuple[int, str]:
    return file.modified_ms, file.path


def _bins(files: Sequence[DataFile], target_bytes: int) -> Iterator[list[DataFile]]:
    """Runs of neighbours of up to `target_bytes`; a run of one file is left out."""
    run: list[DataFile] = []
    size_bytes = 0
    for file in files:
        if run and size_bytes + file.size_bytes > target_bytes:
            yield from [run] if len(run) > 1 else []
            run, size_bytes = [], 0
        run.append(file)
        size_bytes += file.size_bytes
    yield from [run] if len(run) > 1 else []


def compact(table: Table, target_bytes: int) -> Compacted:
    """Merge what is to be merged: one commit for all groups of a table, none without any.

    Raises: CommitRefusedError where another program changed the same files; nothing is lost or
    doubled, and what was written for it is swept up later.
    """
    groups = groups_to_compact(table.refresh().files(), target_bytes)
    if not groups:
        return Compacted()
    seen = table.version
    merged = [_merged(table, group) for group in groups]
    old = [file for group in groups for file in group]
    reached(FailPoint.FILES_MERGED)
    table.rewrite(old, merged)
    reached(FailPoint.FILES_REPLACED)
    _withdraw_if_doubled(table, seen, old, merged)
    return Compacted(len(old), len(merged))


def _withdraw_if_doubled(
    table: Table, seen: int, old: Sequence[DataFile], merged: Sequence[NewFile]
) -> None:
    """Take our files back where another program compacted one of the same files meanwhile."""
    paths, taken = (
        {file.path for file in old},
        removed_by(table, range(seen + 1, table.version + 1)),
    )
    if len([path for path in taken if path in paths]) == len(paths):
        return
    own = {file.path for file in merged}
    table.rewrite([file for file in table.refresh().files() if file.path in own], [])
    raise CommitRefusedError(table.schema.name, "another program compacts it; leave it to txmq")


def _merged(table: Table, files: Sequence[DataFile]) -> NewFile:
    """One new file with the rows of all, in their order."""
    # As the table is: a typed topic has columns of its own.
    columns = table.columns
    names = [name for name in columns.names if name not in table.schema.partition_by]
    schema = pa.schema([columns.field(name) for name in names])
    statistics = table.schema.statistics_columns or names
    rows = _row_groups(table, files, names)
    partition = partition_texts(files[0].partition)
    return write_file(rows, schema, table.filesystem, statistics, partition)


def _row_groups(
    table: Table, files: Sequence[DataFile], names: Sequence[str]
) -> Iterator[pa.Table]:
    """The rows of many files in few parts, for each part becomes a row group."""
    parts: list[pa.Table] = []
    size_bytes = 0
    for file in files:
        parts.append(table.read([file], names))
        size_bytes += parts[-1].nbytes
        if size_bytes >= ROW_GROUP_BYTES:
            yield pa.concat_tables(parts).combine_chunks()
            parts, size_bytes = [], 0
    yield from [pa.concat_tables(parts).combine_chunks()] if parts else []
