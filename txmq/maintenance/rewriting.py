"""Replaces files of a table by files with the same places for its rows: one commit for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from txmq.delta.files import DataFile, partition_texts
from txmq.delta.parquet import NewFile, write_file
from txmq.delta.storage import Table
from txmq.fail_points import FailPoint, reached

# About so many bytes become a row group.
ROW_GROUP_BYTES = 32 * 1024 * 1024


def stored_columns(table: Table) -> list[str]:
    """The columns in the files of a table; a typed topic has more than its schema."""
    return [name for name in table.columns.names if name not in table.schema.partition_by]


def written_anew(table: Table, rows: Iterable[pa.Table], partition: Mapping[str, Any]) -> NewFile:
    """A new file of one partition with these rows in `stored_columns`; 0 commits.

    Memory holds one of the tables; each becomes a row group.
    """
    names = stored_columns(table)
    schema = pa.schema([table.columns.field(name) for name in names])
    statistics = table.schema.statistics_columns or names
    return write_file(rows, schema, table.filesystem, statistics, partition_texts(partition))


def replace_files(table: Table, old: Sequence[DataFile], new: Sequence[NewFile]) -> int:
    """Replace files; the version of the commit, which no reader sees as news.

    Raises: CommitRefusedError where another program changed the same files. Then no row is lost
        or doubled, and `maintenance.orphans` removes the files that were written.
    """
    reached(FailPoint.FILES_MERGED)
    version = table.rewrite(old, new)
    reached(FailPoint.FILES_REPLACED)
    return version
