"""The checker's own reading of the tables: pinned versions, narrow columns, bodies as digests.

Reads through delta-rs and Parquet; shares no code with `storage` or the logs, on purpose.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from txmq.errors import StorageError, StoreNotFoundError
from txmq.verify.plain.digests import CONTENT, DIGEST, content_digests
from txmq.verify.plain.history import History, read_history

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
)  # fmt: skip
CLAIM_COLUMNS = (
    "transaction_id", "ordinal", "kind", "sequences", "source", "producer_group", "life",
    "check_times", "next_check_timestamp", "reason", "op_timestamp", "_commit_version",
)  # fmt: skip
NOTHING = -1
# A time that nobody told.
UNSAID = int(np.iinfo(np.int64).min)
_PARTITION = "partition."
_TEXTS = (pa.types.is_string_view, pa.types.is_large_string, pa.types.is_date)
_BINARIES = (pa.types.is_binary_view, pa.types.is_large_binary)
# Of numbers: no table of txmq has other ones.
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_list_view)
_BATCH_BYTES = 32 * 1024 * 1024
_MAX_BATCH_ROWS = 65_536
_ATTEMPTS = 5
_PAUSE_S = 0.05
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A data file as the newest commits describe it; `partition` holds its partition columns."""

    path: str
    size_bytes: int
    row_count: int | None
    partition: Mapping[str, Any]


class PinnedTable:
    """One Delta table at the version it had when it was opened; 0 commits."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        """Open it; raises StoreNotFoundError or StorageError."""
        self.name = location.rsplit("/", 1)[-1]
        self._location, self._options = location, dict(options) or None
        if not DeltaTable.is_deltatable(location, self._options):
            raise StoreNotFoundError(self.name, "is not there; check the location of the store")
        self._handle = _again(
            self.name, lambda: DeltaTable(location, storage_options=self._options)
        )

    @property
    def version(self) -> int:
        """The version that every read shows."""
        return int(self._handle.version())

    @property
    def table_id(self) -> str:
        """The id in the table's metadata."""
        return str(self._handle.metadata().id)

    @cached_property
    def history(self) -> History:
        """Its commits up to this version, as far as they are kept, and its files."""
        return read_history(self._filesystem(), self.version)

    @cached_property
    def readable_from(self) -> int:
        """The first version from which on every appended row can still be read with its commit."""
        return self.history.readable_from(self.version)

    def mark(self, app_id: str) -> int:
        """The number committed under `app_id`, or NOTHING."""
        found = self._handle.transaction_version(app_id)
        return NOTHING if found is None else int(found)

    def appended(self, columns: Sequence[str]) -> pa.Table:
        """Every row appended from `readable_from` on with its commit, from the change feed."""
        if self.readable_from > self.version:
            return self._no_rows(columns)
        wanted = [*columns, "_change_type"]
        first = self.readable_from
        rows = _again(
            self.name,
            lambda: pa.table(self._handle.load_cdf(first, self.version, columns=wanted)),
        )
        rows = _plain_types(rows.select(wanted))
        return rows.filter(pc.equal(rows["_change_type"], "insert")).select(list(columns))

    def rows(self, columns: Sequence[str], *, content: bool = False) -> pa.Table:
        """All live rows; with `content`, also the DIGEST of what was sent."""
        parts = [
            part for file in self._readable() for part in self._file(file, columns, content=content)
        ]
        if not parts:
            names = [*columns, *DIGEST] if content else columns
            return self._no_rows(names)
        return pa.Table.from_batches(parts)

    def file_problems(self) -> Iterator[tuple[str, str]]:
        """Live files that are not what their commit says: path and problem."""
        for file in self._live_files():
            problem = self._file_problem(file)
            if problem:
                yield file.path, problem

    def _file_problem(self, file: LiveFile) -> str | None:
        found, count = self.history.sizes.get(file.path), file.row_count
        if found is None:
            return "is not there"
        if found != file.size_bytes:
            return f"has {found:,} bytes, its commit says {file.size_bytes:,}"
        with self._filesystem().open_input_file(file.path) as source:
            rows = pq.read_metadata(source).num_rows
        return None if count in (None, rows) else f"has {rows:,} rows, its commit says {count:,}"

    def _no_rows(self, columns: Sequence[str]) -> pa.Table:
        types = {field.name: field.type for field in pa.schema(self._handle.schema().to_arrow())}
        # What is no column of the table is a number: digests, versions.
        fields = [(name, types.get(name, pa.int64())) for name in columns]
        return _plain_types(pa.schema(fields).empty_table())

    def _live_files(self) -> Iterator[LiveFile]:
        if pa.table(self._handle.deletion_vectors()).num_rows:
            raise StorageError(self.name, "has deletion vectors, which txmq never writes")
        actions = pa.table(self._handle.get_add_actions(flatten=True))
        keys = [name for name in actions.column_names if name.startswith(_PARTITION)]
        for row in actions.select(["path", "size_bytes", "num_records", *keys]).to_pylist():
            partition = {name.removeprefix(_PARTITION): row[name] for name in keys}
            yield LiveFile(row["path"], row["size_bytes"], row["num_records"], partition)

    def _readable(self) -> list[LiveFile]:
        # A file that is not there is told by I26; the rest can still be judged.
        return [file for file in self._live_files() if file.path in self.history.sizes]

    def _file(
        self, file: LiveFile, columns: Sequence[str], *, content: bool
    ) -> Iterator[pa.RecordBatch]:
        with self._filesystem().open_input_file(file.path) as source:
            parquet = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=False)
            read = list(dict.fromkeys([*columns, *CONTENT])) if content else list(columns)
            for batch in parquet.iter_batches(_batch_rows(parquet), columns=read):
                filled = self._filled(batch, file.partition, read)
                yield _narrow(filled, columns, content=content)

    def _filled(
        self, batch: pa.RecordBatch, partition: Mapping[str, Any], columns: Sequence[str]
    ) -> pa.RecordBatch:
        """Partition columns are in no file; others that it does not have are null, as in Delta."""
        types = pa.schema(self._handle.schema().to_arrow())
        for name in columns:
            if name not in batch.schema.names:
                value = pa.scalar(partition.get(name), types.field(name).type)
                batch = batch.append_column(name, pa.repeat(value, batch.num_rows))
        return batch

    def _filesystem(self) -> pa_fs.FileSystem:
        if "://" not in self._location:
            return pa_fs.SubTreeFileSystem(self._location, pa_fs.LocalFileSystem())
        return pa_fs.PyFileSystem(DeltaStorageHandler(self._location, self._options))


def table_names(location: str, folder: str, options: Mapping[str, str]) -> list[str]:
    """The tables in a folder of a store, sorted."""
    if "://" in location:
        handler = DeltaStorageHandler(location, dict(options) or None)
        filesystem: pa_fs.FileSystem = pa_fs.PyFileSystem(handler)
    else:
        filesystem = pa_fs.SubTreeFileSystem(location, pa_fs.LocalFileSystem())
    found = filesystem.get_file_info(pa_fs.FileSelector(folder, allow_not_found=True))
    names = sorted(info.base_name for info in found)
    return [
        name
        for name in names
        if DeltaTable.is_deltatable(f"{location}/{folder}/{name}", dict(options) or None)
    ]


# --- columns --------------------------------------------------------------------------------------


def _batch_rows(file: pq.ParquetFile) -> int:
    """Rows of about _BATCH_BYTES, for one body may be as large as a million others."""
    metadata = file.metadata
    sizes = [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
    row_bytes = max(1, sum(sizes) // max(1, metadata.num_rows))
    return int(max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES // row_bytes)))


def _narrow(batch: pa.RecordBatch, columns: Sequence[str], *, content: bool) -> pa.RecordBatch:
    # Files that delta-rs rewrote hold views, for which Arrow has few functions.
    batch = _plain_types(batch)
    arrays = [batch.column(name) for name in columns]
    names = list(columns)
    if content:
        digests = content_digests(batch)
        arrays += [pa.array(digests[:, 0]), pa.array(digests[:, 1])]
        names += DIGEST
    return pa.record_batch(arrays, names=names)


def _plain_types(rows: Any) -> Any:
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


def _again(table: str, read: Callable[[], Result]) -> Result:
    """A reader beside fast writers can meet a gap in the log; the next look succeeds."""
    failure: Exception | None = None
    for attempt in range(_ATTEMPTS):
        try:
            return read()
        except (DeltaError, OSError) as error:
            failure = error
            time.sleep(_PAUSE_S * attempt)
    problem = f"cannot be read ({type(failure).__name__}: {failure}); try again"
    raise StorageError(table, problem) from failure


def microseconds(column: pa.ChunkedArray) -> Any:
    """A time column as integers; null is the smallest."""
    return pc.fill_null(column.cast(pa.int64()), np.iinfo(np.int64).min).to_numpy()
