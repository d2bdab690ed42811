"""The checker's own reading of the tables: pinned versions, ranges of transactions, few columns.

Reads through delta-rs and Parquet; shares no code with `txmq.delta` and `txmq.store`, on purpose.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from txmq.delta.credentials import Renewable, options_now, storage_handler, with_options
from txmq.errors import StorageError, StoreNotFoundError
from txmq.verify.arrays import CONTENT, DIGEST, content_digests
from txmq.verify.history import Commit, History, read_history

HALF_COLUMNS = (
    "transaction_id", "sequence", "message_id", "producer_group", "real_topic", "real_queue_id",
    "born_timestamp", "delay_s", "deliver_timestamp", "ordinary", "message_count",
    "check_immunity_time_s",
)  # fmt: skip
TOPIC_COLUMNS = (
    "message_id", "topic", "queue_id", "queue_offset", "born_timestamp", "producer_group",
    "transaction_id", "sequence", "life", "op_version", "sharding_key", "store_timestamp",
)  # fmt: skip
SCHEDULE_COLUMNS = (*TOPIC_COLUMNS, "deliver_timestamp", "due_date")
FACT_COLUMNS = (
    "transaction_id", "state", "sequences", "op_version", "ordinal", "life", "settled_timestamp",
    "op_timestamp",
)  # fmt: skip
CLAIM_COLUMNS = (
    "transaction_id", "ordinal", "kind", "sequences", "source", "producer_group", "life",
    "check_times", "next_check_timestamp", "reason", "op_timestamp", "_commit_version",
)  # fmt: skip
NOTHING = -1
COMMIT_VERSION = "_commit_version"
_CHANGE_TYPE = "_change_type"
_ID = "transaction_id"
_PARTITION = "partition."
_ATTEMPTS = 5
_PAUSE_S = 0.05
# Of all tables together; a message alone in its transaction has a row in each of four tables.
RANGE_ROWS = 500_000
# Every so many rows of a row group one id is kept, to tell where ranges begin.
SAMPLE_ROWS = 1_000
_TEXTS = (pa.types.is_string_view, pa.types.is_large_string, pa.types.is_date)
_BINARIES = (pa.types.is_binary_view, pa.types.is_large_binary)
# Of numbers: no table of txmq has others.
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_list_view)
_BATCH_BYTES = 32 * 1024 * 1024
_MAX_BATCH_ROWS = 65_536
# Without a buffer Parquet reads all bodies of a row group at once.
_BUFFER_BYTES = 4 * 1024 * 1024
Result = TypeVar("Result")


# --- ranges of transactions --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class IdRange:
    """Transactions with an id from `first` on and before `end`; a row without id counts as b"".

    In bytes: a row of another program may have an id that is no UTF-8.
    """

    first: bytes = b""
    end: bytes | None = None

    @property
    def is_everything(self) -> bool:
        """Whether no row is outside."""
        return not self.first and self.end is None

    def holds(self, ids: pa.Array) -> pa.Array:
        """Flag the ids that are inside."""
        ids = ids.cast(pa.binary())
        inside = pc.greater_equal(ids, self.first)
        if self.end is not None:
            inside = pc.and_(inside, pc.less(ids, self.end))
        return pc.fill_null(inside, not self.first)

    def meets(self, extent: IdExtent) -> bool:
        """Tell whether rows of a row group may be inside."""
        return self.first <= extent.largest and (self.end is None or extent.smallest < self.end)


@dataclass(frozen=True, slots=True)
class IdExtent:
    """The transaction ids of one row group of a data file; b"" stands for a row without id.

    Attributes:
        row_group: its place in the file.
        sample: one id for every SAMPLE_ROWS rows.
        sample_rows: the rows that each id of the sample stands for.
    """

    row_group: int
    smallest: bytes
    largest: bytes
    sample: Sequence[bytes]
    sample_rows: float


def id_ranges(extents: Iterable[IdExtent]) -> list[IdRange]:
    """Make ranges of about RANGE_ROWS rows that together hold every id, the smallest first."""
    starts = list(_starts(extents))
    return [IdRange(first, end) for first, end in zip([b"", *starts], [*starts, None], strict=True)]


def _starts(extents: Iterable[IdExtent]) -> Iterator[bytes]:
    """Yield where each range but the first begins; a transaction is never cut."""
    sample = sorted((name, extent.sample_rows) for extent in extents for name in extent.sample)
    rows, first = 0.0, sample[0][0] if sample else b""
    for name, sample_rows in sample:
        if rows >= RANGE_ROWS and name != first:
            yield name
            rows, first = 0.0, name
        rows += sample_rows


def id_extents(parquet: Any) -> Iterator[IdExtent]:
    """Yield the extents of an open Parquet file; an empty row group has none."""
    if "transaction_id" not in parquet.schema_arrow.names:
        return
    for row_group in range(parquet.num_row_groups):
        column = parquet.read_row_group(row_group, columns=["transaction_id"])["transaction_id"]
        if len(column):
            ids = pc.fill_null(column.cast(pa.string()).cast(pa.binary()), b"")
            sample = ids.take(pa.array(range(0, len(ids), SAMPLE_ROWS))).to_pylist()
            ends = pc.min_max(ids).as_py()
            yield IdExtent(row_group, ends["min"], ends["max"], sample, len(ids) / len(sample))


# --- tables ------------------------------------------------------------------------------------


class GoneFileError(StorageError):
    """A file of the pinned version is gone: a clean-up has passed it meanwhile."""


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file as the newest commits describe it; `partition` holds its partition columns."""

    path: str
    size_bytes: int
    row_count: int | None
    partition: Mapping[str, Any]


class PinnedTable:
    """One Delta table at the version it had when it was opened; 0 commits.

    `within` shows a range of its transactions only. The table's log, its files and its marks are
    the same in each range.
    """

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        """Open it. Raises: StoreNotFoundError, StorageError."""
        self.name = location.rsplit("/", 1)[-1]
        self._location, self._options = location, options
        self.ids = IdRange()
        self._extents_by_path: dict[str, list[IdExtent]] = {}
        if not is_table(location, options):
            raise StoreNotFoundError(self.name, "is not there; check the location of the store")
        # A run of hours may outlive the credentials that a handle keeps.
        self._renewable = Renewable(options, self._opened_with)
        self._version: int | None = None
        self._version = _again(self.name, lambda: int(self._handle.version()))
        self._filesystem = opened_folder(location, options)
        # Its commits up to this version, as far as they are kept, and its files.
        self.history: History = read_history(self._filesystem, self.version)
        # From this version on every appended row can still be read with its commit.
        self.readable_from = self.history.readable_from(self.version)
        self._live_files = self._added_files()
        # I26 reports a file that is not there, or not whole; the rest can still be judged.
        self._readable_files = [
            file for file in self._live_files if self.history.is_whole(file.path, file.size_bytes)
        ]
        schema = pa.schema(self._handle.schema().to_arrow())
        self._types = {field.name: field.type for field in schema}

    def within(self, ids: IdRange) -> PinnedTable:
        """Return the same table with the rows of one range of transactions only."""
        narrow = copy.copy(self)
        narrow.ids = ids
        return narrow

    @property
    def version(self) -> int:
        """The version that every read shows."""
        return int(self._handle.version())

    @property
    def table_id(self) -> str:
        """The id in the table's metadata."""
        return str(self._handle.metadata().id)

    def mark(self, app_id: str) -> int:
        """Return the number committed under `app_id`, or NOTHING."""
        number = self._handle.transaction_version(app_id)
        return NOTHING if number is None else int(number)

    @property
    def _handle(self) -> DeltaTable:
        return self._renewable.use(lambda handle: handle)

    def _opened_with(self, options: Mapping[str, str]) -> DeltaTable:
        now = options_now(options)
        return DeltaTable(self._location, version=self._version, storage_options=now)

    # --- rows ----------------------------------------------------------------------------------

    def rows(self, columns: Sequence[str], *, content: bool = False) -> pa.Table:
        """Read all live rows; with `content`, also the DIGEST of what was sent."""
        names = [*columns, *DIGEST] if content else columns
        return self._table(self.batches(columns, content=content), names)

    def batches(self, columns: Sequence[str], *, content: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the same as `rows`, a few at a time."""
        for file in self._readable_files:
            if not content:
                yield from self._file(file.path, file.partition, columns)
                continue
            stored = list(dict.fromkeys([*columns, *CONTENT]))
            for batch in self._file(file.path, file.partition, stored):
                yield with_digests(batch, columns)

    def appended(self, columns: Sequence[str], after: int = NOTHING) -> pa.Table:
        """Read every row appended from `readable_from` on, with its `_commit_version`.

        Only those of commits after one of them, if it is given. Partition columns are not among
        `columns`.
        """
        commits = self.history.commits
        versions = range(max(self.readable_from, after + 1), self.version + 1)
        batches = (batch for v in versions for batch in self._appended_by(commits[v], columns))
        return self._table(batches, columns)

    def _appended_by(self, commit: Commit, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        stored = [name for name in columns if name != COMMIT_VERSION]
        for batch in self._inserted_by(commit, stored):
            versions = pa.repeat(pa.scalar(commit.version, pa.int64()), batch.num_rows)
            yield batch.append_column(COMMIT_VERSION, versions).select(list(columns))

    def _inserted_by(self, commit: Commit, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield what a change feed calls inserted; change files of a commit count alone."""
        for path in commit.change_files:
            for batch in self._file(path, {}, [*columns, _CHANGE_TYPE]):
                inserted = batch.filter(pc.equal(batch[_CHANGE_TYPE], "insert"))
                yield inserted.select(list(columns))
        if not commit.change_files:
            for path in commit.appended_files:
                yield from self._file(path, {}, columns)

    def _table(self, batches: Iterable[pa.RecordBatch], columns: Sequence[str]) -> pa.Table:
        pieces: dict[str, list[pa.Array]] = {name: [] for name in columns}
        for batch in batches:
            for name, arrays in pieces.items():
                arrays.append(batch[name])
        if not any(map(len, pieces[columns[0]])):
            return self._no_rows(columns)
        # One piece, for Arrow takes rows from many slowly; column by column, to hold one twice.
        table = pa.table({name: pa.concat_arrays(pieces.pop(name)) for name in columns})
        pa.default_memory_pool().release_unused()
        return table

    def _no_rows(self, columns: Sequence[str]) -> pa.Table:
        # What is no column of the table is a number: digests, versions.
        fields = [(name, self._types.get(name, pa.int64())) for name in columns]
        return plain_types(pa.schema(fields).empty_table())

    # --- files ---------------------------------------------------------------------------------

    @property
    def row_count(self) -> float:
        """Live rows as the commits count them; infinite where one does not say."""
        counts = (file.row_count for file in self._readable_files)
        return sum(math.inf if count is None else count for count in counts)

    def file_names(self) -> Iterator[str]:
        """Yield the path of each live file."""
        return (file.path for file in self._live_files)

    def extents(self) -> Iterator[IdExtent]:
        """Yield which transactions are in the live files, by looking into each."""
        for file in self._readable_files:
            yield from self._extents(file.path)

    def file_problems(self) -> Iterator[tuple[str, str]]:
        """Yield live files that are not what their commit says: path and problem."""
        for file in self._live_files:
            problem = self._file_problem(file)
            if problem:
                yield file.path, problem

    def _file_problem(self, file: LiveFile) -> str | None:
        size_bytes, row_count = self.history.sizes.get(file.path), file.row_count
        if size_bytes is None:
            return "is not there"
        if size_bytes != file.size_bytes:
            return f"has {size_bytes:,} bytes, its commit says {file.size_bytes:,}"
        with self._opened(file.path) as source:
            rows = pq.read_metadata(source).num_rows
        if row_count in (None, rows):
            return None
        return f"has {rows:,} rows, its commit says {row_count:,}"

    def _added_files(self) -> Sequence[LiveFile]:
        vectors = _again(self.name, lambda: pa.table(self._handle.deletion_vectors()))
        if vectors.num_rows:
            raise StorageError(self.name, "has deletion vectors, which txmq never writes")
        actions = _again(self.name, lambda: pa.table(self._handle.get_add_actions(flatten=True)))
        keys = [name for name in actions.column_names if name.startswith(_PARTITION)]
        rows = actions.select(["path", "size_bytes", "num_records", *keys]).to_pylist()
        return [
            LiveFile(row["path"], row["size_bytes"], row["num_records"],
                     {name.removeprefix(_PARTITION): row[name] for name in keys})
            for row in rows
        ]  # fmt: skip

    def _file(
        self, path: str, partition: Mapping[str, Any], columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the range in one file; a row group without any is not read."""
        row_groups = self._row_groups(path)
        if row_groups == []:
            return
        stored = columns if row_groups is None else [*dict.fromkeys([*columns, _ID])]
        with self._opened(path) as source:
            parquet = open_parquet(source)
            batches = parquet.iter_batches(batch_rows(parquet), row_groups, stored)
            for batch in batches:
                rows = plain_types(self._filled(batch, partition, stored))
                if row_groups is not None:
                    rows = rows.filter(self.ids.holds(rows[_ID]))
                yield rows.select(list(columns))

    def _row_groups(self, path: str) -> list[int] | None:
        """Return row groups that may hold rows of the range; None for all."""
        if self.ids.is_everything:
            return None
        return [extent.row_group for extent in self._extents(path) if self.ids.meets(extent)]

    def _extents(self, path: str) -> Sequence[IdExtent]:
        if path not in self._extents_by_path:
            with self._opened(path) as source:
                self._extents_by_path[path] = list(id_extents(open_parquet(source)))
        return self._extents_by_path[path]

    def _filled(
        self, batch: pa.RecordBatch, partition: Mapping[str, Any], columns: Sequence[str]
    ) -> pa.RecordBatch:
        """Add columns that no file holds: of the partition, and nulls for others, as in Delta."""
        for name in columns:
            if name not in batch.schema.names:
                value = pa.scalar(partition.get(name), self._types[name])
                batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
        return batch

    @contextmanager
    def _opened(self, path: str) -> Iterator[Any]:
        try:
            with self._filesystem.open_input_file(path) as source:
                yield source
        except FileNotFoundError as error:
            problem = f"lost the file {path} while it was read; a clean-up took it, verify again"
            raise GoneFileError(self.name, problem) from error
        except (OSError, pa.ArrowInvalid) as error:
            problem = f"the file {path} cannot be read ({error}); put it back from a backup"
            raise StorageError(self.name, problem) from error


def table_names(location: str, folder: str, options: Mapping[str, str]) -> list[str]:
    """List the tables in a folder of a store, sorted."""
    selector = pa_fs.FileSelector(folder, allow_not_found=True)
    infos = opened_folder(location, options).get_file_info(selector)
    names = sorted(info.base_name for info in infos)
    return [name for name in names if is_table(f"{location}/{folder}/{name}", options)]


# --- what is opened at a location ----------------------------------------------------------------


def opened_folder(location: str, options: Mapping[str, str]) -> pa_fs.FileSystem:
    """Return a file system whose root is a location."""
    if "://" in location:
        return pa_fs.PyFileSystem(storage_handler(location, options))
    return pa_fs.SubTreeFileSystem(location, pa_fs.LocalFileSystem())


def is_table(location: str, options: Mapping[str, str]) -> bool:
    """Tell whether there is a Delta table."""
    return with_options(options, lambda now: DeltaTable.is_deltatable(location, now))


def opened_table(location: str, options: Mapping[str, str]) -> DeltaTable:
    """Open a Delta table."""
    return with_options(options, lambda now: DeltaTable(location, storage_options=now))


def _again(table: str, read: Callable[[], Result]) -> Result:
    """Read again after a failure: beside fast writers a reader can meet a gap in the log."""
    failure: Exception | None = None
    for attempt in range(_ATTEMPTS):
        try:
            return read()
        except (DeltaError, OSError) as error:
            failure = error
            time.sleep(_PAUSE_S * attempt)
    reason = str(failure).partition("\n")[0]
    problem = f"cannot be read ({type(failure).__name__}: {reason}); try again"
    raise StorageError(table, problem) from failure


# --- columns -----------------------------------------------------------------------------------


def open_parquet(source: Any) -> pq.ParquetFile:
    """Open a data file so that a column is read in pieces."""
    return pq.ParquetFile(
        source, coerce_int96_timestamp_unit="us", pre_buffer=False, buffer_size=_BUFFER_BYTES
    )


def batch_rows(parquet: pq.ParquetFile) -> int:
    """Return how many rows are about _BATCH_BYTES: one body may be a million others."""
    metadata = parquet.metadata
    sizes = [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
    row_bytes = max(1, sum(sizes) // max(1, metadata.num_rows))
    return int(max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // row_bytes)))


def with_digests(batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return `columns` of a batch, and the DIGEST of its content."""
    digests = content_digests(batch)
    arrays = [batch.column(name) for name in columns]
    arrays += [pa.array(digests[:, 0]), pa.array(digests[:, 1])]
    return pa.record_batch(arrays, names=[*columns, *DIGEST])


def plain_types(rows: Any) -> Any:
    """Cast columns to the few types for which Arrow has all functions."""
    # Files that delta-rs rewrote hold views, for which it has few.
    return rows.cast(pa.schema([(field.name, _plain_type(field.type)) for field in rows.schema]))


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if any(test(kind) for test in _TEXTS):
        return pa.string()
    if any(test(kind) for test in _BINARIES):
        return pa.binary()
    if any(test(kind) for test in _LISTS):
        return pa.list_(pa.int64())
    if pa.types.is_map(kind):
        return pa.map_(pa.string(), pa.string())
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", "UTC")
    return pa.int64() if pa.types.is_integer(kind) else kind
