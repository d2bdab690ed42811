"""Parquet files that are written before they are committed: names, settings, statistics."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq

from txmq.ground.clock import elapsed_ms
from txmq.ground.random_names import new_uuid
from txmq.ground.results import plain

# Bodies are often random bytes, for which a dictionary costs time and saves nothing.
WITHOUT_DICTIONARY = ("body", "transaction_id", "message_id", "sequence", "queue_offset")
# For fewer rows a dictionary takes longer than it saves.
DICTIONARY_ROWS = 32
COMPRESSION = "snappy"
# A new file has about so many bytes of rows, before they are compressed.
FILE_BYTES = 1 << 30
# A round of the schedule has some tens of due dates, each with a buffer of this size.
PARTITION_BUFFER_BYTES = 4 * 1024 * 1024
PARTITIONS_BUFFER_BYTES = 64 * 1024 * 1024
# A process may have a thousand files open, those of others included.
OPEN_PARTITIONS_MAX = 32
# Arrow compares quicker, but releases the interpreter's lock: beside busy threads a commit then
# waits up to 5 ms for it, for each column.
FEW_ROWS = 4096
# As Arrow's footers: of longer texts nothing is said.
LONGEST_BOUND_BYTES = 4096

_Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class NewFile:
    """A Parquet file beside the log, waiting for its commit; `path` is relative to the table."""

    path: str
    size_bytes: int
    num_records: int
    stats_json: str
    partition: Mapping[str, str | None] = field(default_factory=dict)
    # By `elapsed_ms`; two equal files need not be of one age.
    made_ms: int = field(default_factory=elapsed_ms, compare=False)


def new_file_path() -> str:
    """Make a new, unique file name."""
    return f"part-{new_uuid()}.{COMPRESSION}.parquet"


def parquet_writer(  # noqa: PLR0913 - a file, its settings, its footer
    place: str | pa.NativeFile,
    schema: pa.Schema,
    filesystem: pa_fs.FileSystem | None,
    statistics: Sequence[str],
    footers: list[pq.FileMetaData] | None = None,
    *,
    is_small: bool = False,
) -> pq.ParquetWriter:
    """Open a Parquet writer with settings for messages; its end adds the footer to `footers`."""
    with_dictionary = [name for name in schema.names if name not in WITHOUT_DICTIONARY]
    return pq.ParquetWriter(
        place, schema, filesystem=filesystem, compression=COMPRESSION,
        use_dictionary=False if is_small else with_dictionary, write_statistics=list(statistics),
        # Arrow's own schema would be half of a small file; the log has the columns.
        metadata_collector=footers, store_schema=False,
    )  # fmt: skip


def write_file(
    rows: Iterable[pa.Table],
    schema: pa.Schema,
    filesystem: pa_fs.FileSystem,
    statistics: Sequence[str],
    partition: Mapping[str, str | None] | None = None,
) -> NewFile:
    """Write tables one by one into a new file; memory holds one of them."""
    path = new_file_path()
    with parquet_writer(path, schema, filesystem, statistics) as writer:
        for part in rows:
            writer.write_table(part)
    return described(path, filesystem, statistics, partition or {})


def write_files(
    rows: Iterator[pa.Table],
    schema: pa.Schema,
    filesystem: pa_fs.FileSystem,
    statistics: Sequence[str],
    partition: Mapping[str, str | None] | None = None,
) -> list[NewFile]:
    """Do as `write_file`, with a new file for each FILE_BYTES; none where there are no tables."""
    return [
        write_file(_of_a_file(first, rows), schema, filesystem, statistics, partition)
        for first in rows
    ]


def _of_a_file(first: pa.Table, rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield the tables that fill a file."""
    yield first
    size_bytes = first.nbytes
    while size_bytes < FILE_BYTES and (part := next(rows, None)) is not None:
        yield part
        size_bytes += part.nbytes


def small_file(
    rows: pa.Table, statistics: Sequence[str], partition: Mapping[str, str | None]
) -> tuple[NewFile, pa.Buffer]:
    """Do as `write_file` in memory: return the file and its content, which the caller writes."""
    sink = pa.BufferOutputStream()
    footers: list[pq.FileMetaData] = []
    stats = stats_of_rows(rows, statistics)
    is_small, wanted = rows.num_rows < DICTIONARY_ROWS, None if stats else footers
    with parquet_writer(sink, rows.schema, None, statistics, wanted, is_small=is_small) as writer:
        writer.write_table(rows)
    content = sink.getvalue()
    stats = stats or _stats_of_footer(footers[0], statistics)
    return NewFile(new_file_path(), content.size, rows.num_rows, stats, dict(partition)), content


def write_partitions(
    rows: Iterable[pa.Table],
    columns: Sequence[str],
    filesystem: pa_fs.FileSystem,
    statistics: Sequence[str],
) -> list[NewFile]:
    """Do as `write_file`, with new files for each partition; buffer up to 64 MiB of rows."""
    with _PartitionWriters(columns, filesystem, statistics) as writers:
        for part in rows:
            writers.add(part)
    return writers.described()


class _PartitionWriters:
    """A file for each partition, and rows that wait until they fill a row group.

    With many partitions those that were written to last are open; the others go on in new files.
    """

    def __init__(
        self, columns: Sequence[str], filesystem: pa_fs.FileSystem, statistics: Sequence[str]
    ) -> None:
        self._columns, self._filesystem, self._statistics = columns, filesystem, statistics
        self._waiting: dict[_Key, list[pa.Table]] = {}
        self._waiting_bytes: Counter[_Key] = Counter()
        self._open: dict[_Key, pq.ParquetWriter] = {}
        self._files: list[tuple[str, _Key]] = []

    def add(self, rows: pa.Table) -> None:
        for values in rows.group_by(list(self._columns)).aggregate([]).to_pylist():
            part = rows
            for name, value in values.items():
                is_here = pc.is_null(part[name]) if value is None else pc.equal(part[name], value)
                part = part.filter(is_here)
            self._take(tuple(values.values()), part.drop_columns(list(self._columns)))

    def _take(self, key: _Key, part: pa.Table) -> None:
        self._waiting.setdefault(key, []).append(part)
        self._waiting_bytes[key] += part.nbytes
        if self._waiting_bytes[key] >= PARTITION_BUFFER_BYTES:
            self._write(key)
        while self._waiting_bytes.total() >= PARTITIONS_BUFFER_BYTES:
            self._write(self._waiting_bytes.most_common(1)[0][0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                for key in list(self._waiting):
                    self._write(key)
        finally:
            self._close(0)

    def described(self) -> list[NewFile]:
        return [
            described(path, self._filesystem, self._statistics, self._texts(key))
            for path, key in self._files
        ]

    def _write(self, key: _Key) -> None:
        rows = pa.concat_tables(self._waiting.pop(key))
        del self._waiting_bytes[key]
        writer = self._open.pop(key, None)
        if writer is None:
            self._close(OPEN_PARTITIONS_MAX - 1)
            path = new_file_path()
            writer = parquet_writer(path, rows.schema, self._filesystem, self._statistics)
            self._files.append((path, key))
        # The last one is that which was written to last.
        self._open[key] = writer
        writer.write_table(rows)

    def _close(self, left: int) -> None:
        """Close writers until so many are left; each is closed, whatever becomes of the others."""
        with ExitStack() as closing:
            while len(self._open) > left:
                closing.callback(self._open.pop(next(iter(self._open))).close)

    def _texts(self, key: _Key) -> dict[str, str | None]:
        pairs = zip(self._columns, key, strict=True)
        return {name: None if value is None else str(value) for name, value in pairs}


def described(
    path: str,
    filesystem: pa_fs.FileSystem,
    statistics: Sequence[str],
    partition: Mapping[str, str | None],
) -> NewFile:
    """Describe a written file by the counts and statistics of its footer."""
    with filesystem.open_input_file(path) as source:
        size_bytes = source.size()
        metadata = pq.ParquetFile(source).metadata
    return NewFile(
        path, size_bytes, metadata.num_rows, _stats_of_footer(metadata, statistics), dict(partition)
    )


# --- the statistics of a file -------------------------------------------------------------------


def stats_of_rows(rows: pa.Table, columns: Sequence[str]) -> str | None:
    """Return what a footer would say of integers and texts; None if it takes a footer to say it.

    A footer has to be made, read and taken apart: a tenth of a commit of one row.
    """
    chosen = [f for f in rows.schema if f.name in columns]
    if not all(_is_plain(f.type) for f in chosen):
        return None
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for part in chosen:
        column = rows[part.name]
        nulls[part.name] = column.null_count
        smallest, largest = _bounds(column)
        if _is_said(smallest) and _is_said(largest):
            low[part.name], high[part.name] = smallest, largest
    return stats_json(rows.num_rows, low, high, nulls)


def stats_json(
    rows: int, low: Mapping[str, Any], high: Mapping[str, Any], nulls: Mapping[str, int]
) -> str:
    """Spell statistics as Delta does."""
    return json.dumps({"numRecords": rows, "minValues": low, "maxValues": high, "nullCount": nulls})


def _is_plain(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind))


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    if len(column) > FEW_ROWS:
        bounds = pc.min_max(column).as_py()
        return bounds["min"], bounds["max"]
    # Code points and bytes of UTF-8 sort alike.
    values = [value for value in column.to_pylist() if value is not None]
    return (min(values), max(values)) if values else (None, None)


def _is_said(bound: Any) -> bool:
    if isinstance(bound, str):
        return len(bound.encode()) <= LONGEST_BOUND_BYTES
    return bound is not None


def _stats_of_footer(metadata: pq.FileMetaData, statistics: Sequence[str]) -> str:
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    groups_of = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    for name, index in _column_indexes(metadata, statistics).items():
        groups = [group.column(index).statistics for group in groups_of]
        groups = [stats for stats in groups if stats is not None]
        if not groups or not all(stats.has_null_count for stats in groups):
            continue
        nulls[name] = sum(stats.null_count for stats in groups)
        # Of what other programs wrote and Python cannot read, no bounds are said.
        with suppress(ValueError, OverflowError):
            if all(stats.has_min_max for stats in groups):
                bounds = (min(stats.min for stats in groups), max(stats.max for stats in groups))
                low[name], high[name] = map(plain, bounds)
    return stats_json(metadata.num_rows, low, high, nulls)


@dataclass(frozen=True, slots=True)
class FooterSizes:
    """The rows of a file, and the bytes of some of its columns without compression."""

    rows: int
    bytes: int


def footer_sizes(metadata: pq.FileMetaData, columns: Sequence[str]) -> FooterSizes:
    """Return the sizes of `columns`; of a nested column all parts count."""
    wanted = set(columns)
    sizes = [
        metadata.row_group(group).column(index).total_uncompressed_size
        for index in range(metadata.num_columns)
        if metadata.schema.column(index).path.partition(".")[0] in wanted
        for group in range(metadata.num_row_groups)
    ]
    return FooterSizes(metadata.num_rows, sum(sizes))


def row_group_ranges(
    metadata: pq.FileMetaData, row_group: int, columns: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any], frozenset[str]]:
    """Return the smallest and largest values of the `columns` that have such statistics.

    With the columns that are known to hold no null.
    """
    low: dict[str, Any] = {}
    high: dict[str, Any] = {}
    without_nulls = set()
    for name, index in _column_indexes(metadata, columns).items():
        stats = metadata.row_group(row_group).column(index).statistics
        if stats is not None and stats.has_min_max:
            low[name], high[name] = stats.min, stats.max
        if stats is not None and stats.has_null_count and stats.null_count == 0:
            without_nulls.add(name)
    return low, high, frozenset(without_nulls)


def _column_indexes(metadata: pq.FileMetaData, names: Sequence[str]) -> dict[str, int]:
    """Find where in the file these columns are; a nested one is not there under its own name."""
    wanted = set(names)
    paths = ((metadata.schema.column(index).path, index) for index in range(metadata.num_columns))
    return {path: index for path, index in paths if path in wanted}
