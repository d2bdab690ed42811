"""The checker's own reading of the tables: pinned versions, narrow columns, bodies as digests.

Reads through delta-rs and Parquet; shares no code with `storage` or the logs, on purpose.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
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
from txmq.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.verify.plain.digests import CONTENT, DIGEST, content_digests
from txmq.verify.plain.history import History, read_history

HALF_COLUMNS = (
    "transaction_id", "sequence", "message_id", "producer_group", "real_topic", "real_queue_id",
    "born_timestamp", "delay_s", "deliver_timestamp", "ordinary", "message_count",
    "check_immunity_time_s",
)  # fmt: skip
TOPIC_COLUMNS = (
    "message_id", "topic", "queue_id", "queue_offset", "born_timestamp", "producer_group",
    "transaction_id", "sequence", "life", "op_version",
)  # fmt: skip
FACT_COLUMNS = (
    "transaction_id", "state", "op_version", "ordinal", "life", "settled_timestamp",
)  # fmt: skip
CLAIM_COLUMNS = (
    "transaction_id", "ordinal", "kind", "source", "producer_group", "life", "check_times",
    "next_check_timestamp", "reason", "op_timestamp", "_commit_version",
)  # fmt: skip
NOTHING = -1
# Other services fill these; their rows have other rules.
UNREAD_PREFIXES = ("RETRY_", "DLQ_", "SCHEDULE_TOPIC_")
_TOPIC = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9][A-Za-z0-9_-]*)?")
_WELL_FORMED_ID = "^[0-9a-f]{8}-[0-9a-f]{4}-7"
_BATCH_BYTES = 32 * 1024 * 1024
_MAX_BATCH_ROWS = 65_536
_ATTEMPTS = 5
_PAUSE_S = 0.05
Result = TypeVar("Result")


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
            part for path in self._paths() for part in self._file(path, columns, content=content)
        ]
        if not parts:
            names = [*columns, *DIGEST] if content else columns
            return self._no_rows(names)
        return pa.Table.from_batches(parts)

    def file_problems(self) -> Iterator[tuple[str, str]]:
        """Live files that are not what their commit says: path and problem."""
        for path, size, count in self._live_files():
            problem = self._file_problem(path, size, count)
            if problem:
                yield path, problem

    def _file_problem(self, path: str, size: int, count: int | None) -> str | None:
        found = self.history.sizes.get(path)
        if found is None:
            return "is not there"
        if found != size:
            return f"has {found:,} bytes, its commit says {size:,}"
        with self._filesystem().open_input_file(path) as source:
            rows = pq.read_metadata(source).num_rows
        return None if count in (None, rows) else f"has {rows:,} rows, its commit says {count:,}"

    def _no_rows(self, columns: Sequence[str]) -> pa.Table:
        types = {field.name: field.type for field in pa.schema(self._handle.schema().to_arrow())}
        # What is no column of the table is a number: digests, versions.
        fields = [(name, types.get(name, pa.int64())) for name in columns]
        return _plain_types(pa.schema(fields).empty_table())

    def _live_files(self) -> Iterator[tuple[str, int, int | None]]:
        if pa.table(self._handle.deletion_vectors()).num_rows:
            raise StorageError(self.name, "has deletion vectors, which txmq never writes")
        actions = pa.table(self._handle.get_add_actions(flatten=True))
        columns = [actions[name].to_pylist() for name in ("path", "size_bytes", "num_records")]
        yield from zip(*columns, strict=True)

    def _paths(self) -> list[str]:
        # A file that is not there is told by I26; the rest can still be judged.
        return [path for path, _, _ in self._live_files() if path in self.history.sizes]

    def _file(
        self, path: str, columns: Sequence[str], *, content: bool
    ) -> Iterator[pa.RecordBatch]:
        with self._filesystem().open_input_file(path) as source:
            file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=False)
            read = [*columns, *CONTENT] if content else list(columns)
            for batch in file.iter_batches(_batch_rows(file), columns=read):
                yield _narrow(self._filled(batch, read), columns, content=content)

    def _filled(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        """Columns that a file does not have are null in all its rows, as Delta has it."""
        types = pa.schema(self._handle.schema().to_arrow())
        for name in columns:
            if name not in batch.schema.names:
                nulls = pa.nulls(batch.num_rows, types.field(name).type)
                batch = batch.append_column(name, nulls)
        return batch

    def _filesystem(self) -> pa_fs.FileSystem:
        if "://" not in self._location:
            return pa_fs.SubTreeFileSystem(self._location, pa_fs.LocalFileSystem())
        return pa_fs.PyFileSystem(DeltaStorageHandler(self._location, self._options))


@dataclass(frozen=True, slots=True)
class PinnedStore:
    """The tables of a store, opened in an order that gives a running store no false alarm.

    What the services say comes first, then topics, settled, op, half: whatever an earlier table
    shows must be explained by a later one, which can only hold more.

    Attributes:
        check_limits: checks before a DISCARD by producer group, "" for all others; may be empty.
        forgotten_before_date: retention may have taken transactions of the days before it.
        registers: versions of the tables under state/ that were read.
    """

    low_water_version: int
    parked: Mapping[str, int]
    check_limits: Mapping[str, int]
    forgotten_before_date: str
    registers: Mapping[str, int]
    topics: Mapping[str, PinnedTable]
    unread: tuple[str, ...]
    settled: PinnedTable
    op: PinnedTable
    half: PinnedTable

    @classmethod
    def open(
        cls,
        location: str,
        options: Mapping[str, str],
        check_limits: Mapping[str, int] | None = None,
    ) -> PinnedStore:
        """Pin every table; raises StoreNotFoundError, StorageError."""
        registers = _Registers(location, options)
        publisher, config = registers.value("publisher"), registers.value("config")
        parked = publisher.get("parked", {})
        names = _topic_names(location, options)
        readable = [name for name in names if _is_readable(name)]
        return cls(
            publisher.get("low_water_version", NOTHING),
            {name: entry["from_version"] for name, entry in parked.items()},
            check_limits or _check_limits(config),
            registers.value("maintenance").get("forgotten_before_date") or "",
            registers.versions,
            {name: PinnedTable(f"{location}/topics/{name}", options) for name in readable},
            tuple(name for name in names if name not in readable),
            PinnedTable(f"{location}/settled", options),
            PinnedTable(f"{location}/op", options),
            PinnedTable(f"{location}/half", options),
        )

    @property
    def mark_id(self) -> str:
        """Under this name each table keeps how far it follows the op log."""
        return f"txmq/{self.op.table_id}"

    @property
    def followers(self) -> dict[str, PinnedTable]:
        """The tables that follow the op log, each by its place in the store."""
        return {**{f"topics/{name}": t for name, t in self.topics.items()}, "settled": self.settled}

    @property
    def tables(self) -> dict[str, PinnedTable]:
        """All tables with rows of transactions, each by its place in the store."""
        return {"half": self.half, "op": self.op, **self.followers}

    @property
    def versions(self) -> dict[str, int]:
        """What was pinned."""
        return {
            **self.registers,
            **{name: table.version for name, table in sorted(self.tables.items())},
        }

    def reached(self, topic: str) -> int:
        """The op version up to which a topic must be complete though the store is running."""
        own = self.topics[topic].mark(self.mark_id) if topic in self.topics else NOTHING
        limit = self.low_water_version
        if topic in self.parked:
            limit = min(limit, self.parked[topic] - 1)
        return max(own, limit)

    def forgets(self, transaction_id: str) -> bool:
        """Whether retention may have taken this transaction."""
        return bool(self.forgotten(pa.chunked_array([[transaction_id]])).to_numpy()[0])

    def forgotten(self, transaction_ids: pa.ChunkedArray) -> pa.ChunkedArray:
        """Which of these transactions retention may have taken; the store itself says so."""
        older = pc.less(transaction_ids, _first_id_of(self.forgotten_before_date))
        flags = pc.and_(older, pc.match_substring_regex(transaction_ids, _WELL_FORMED_ID))
        return pc.fill_null(flags, False)  # noqa: FBT003


def plain_location(location: str) -> str:
    """`file:` locations as paths."""
    for prefix in ("file://", "file:"):
        if location.startswith(prefix):
            return "/" + location[len(prefix) :].strip("/")
    return location.rstrip("/") or "/"


class _Registers:
    """The small values that services keep under state/, and the versions that were read."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        self._location, self._options = location, options
        self.versions: dict[str, int] = {}

    def value(self, name: str) -> dict[str, Any]:
        """What a service keeps; nothing where it never kept anything."""
        try:
            table = PinnedTable(f"{self._location}/state/{name}", self._options)
        except StoreNotFoundError:
            return {}
        self.versions[f"state/{name}"] = table.version
        rows = table.rows(["revision", "value"]).to_pylist()
        newest = max(rows, key=lambda row: row["revision"], default={"value": "{}"})
        found: dict[str, Any] = json.loads(newest["value"])
        return found


def _check_limits(config: Mapping[str, Any]) -> dict[str, int]:
    name = "transaction_check_max"
    groups = {group: own[name] for group, own in config.get("groups", {}).items() if name in own}
    return {**({"": config[name]} if name in config else {}), **groups}


def _first_id_of(day: str) -> str:
    """The smallest id of a day: ids begin with their time in milliseconds."""
    if not day:
        return ""
    moment = datetime.fromisoformat(day).replace(tzinfo=UTC)
    digits = f"{int(moment.timestamp() * 1000):012x}"
    return f"{digits[:8]}-{digits[8:]}"


def _is_readable(topic: str) -> bool:
    return bool(_TOPIC.fullmatch(topic)) and not topic.startswith(UNREAD_PREFIXES)


def _topic_names(location: str, options: Mapping[str, str]) -> list[str]:
    if "://" in location:
        handler = DeltaStorageHandler(location, dict(options) or None)
        filesystem: pa_fs.FileSystem = pa_fs.PyFileSystem(handler)
    else:
        filesystem = pa_fs.SubTreeFileSystem(location, pa_fs.LocalFileSystem())
    found = filesystem.get_file_info(pa_fs.FileSelector("topics", allow_not_found=True))
    names = sorted(info.base_name for info in found)
    return [
        name
        for name in names
        if DeltaTable.is_deltatable(f"{location}/topics/{name}", dict(options) or None)
    ]


def is_dead_letters(topic: str) -> bool:
    """Whether a topic table holds what no listener could end."""
    return topic == TRANS_CHECK_MAX_TIME_TOPIC


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
    if pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind):
        return pa.binary()
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
