"""The checker's own reading of the tables: pinned versions, narrow columns, bodies as digests.

Reads through delta-rs and Parquet; shares no code with `storage` or the logs, on purpose.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler

from txmq.errors import StorageError, StoreNotFoundError
from txmq.names import TRANS_CHECK_MAX_TIME_TOPIC

CONTENT = ("body", "tags", "keys", "sharding_key", "properties")
DIGEST = ("digest_high", "digest_low")
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
    "next_check_timestamp", "reason", "_commit_version",
)  # fmt: skip
NOTHING = -1
# Other services fill these; their rows have other rules.
UNREAD_PREFIXES = ("RETRY_", "DLQ_", "SCHEDULE_TOPIC_")
_BATCH_BYTES = 32 * 1024 * 1024
_MAX_BATCH_ROWS = 65_536
_ATTEMPTS = 5
_PAUSE_S = 0.05
_ABSENT = "-"
Result = TypeVar("Result")
Digests = npt.NDArray[np.int64]


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

    def mark(self, app_id: str) -> int:
        """The number committed under `app_id`, or NOTHING."""
        found = self._handle.transaction_version(app_id)
        return NOTHING if found is None else int(found)

    def appended(self, columns: Sequence[str]) -> pa.Table:
        """Every row ever appended with its commit, from the change feed."""
        wanted = [*columns, "_change_type"]
        rows = _again(
            self.name,
            lambda: pa.table(self._handle.load_cdf(0, self.version, columns=wanted)),
        )
        rows = _plain_types(rows.select(wanted))
        return rows.filter(pc.equal(rows["_change_type"], "insert")).select(list(columns))

    def rows(self, columns: Sequence[str], *, content: bool = False) -> pa.Table:
        """All live rows; with `content`, also the DIGEST of what was sent."""
        parts = [
            part for path in self._paths() for part in self._file(path, columns, content=content)
        ]
        if not parts:
            return self._no_rows(columns, content=content)
        return pa.Table.from_batches(parts)

    def _no_rows(self, columns: Sequence[str], *, content: bool) -> pa.Table:
        types = {field.name: field.type for field in pa.schema(self._handle.schema().to_arrow())}
        fields = [(name, types[name]) for name in columns]
        fields += [(name, pa.int64()) for name in DIGEST] if content else []
        return _plain_types(pa.schema(fields).empty_table())

    def _paths(self) -> list[str]:
        if pa.table(self._handle.deletion_vectors()).num_rows:
            raise StorageError(self.name, "has deletion vectors, which txmq never writes")
        actions = pa.table(self._handle.get_add_actions(flatten=True))
        return [str(path) for path in actions["path"].to_pylist()]

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

    What the publisher says comes first, then topics, settled, op, half: whatever an earlier table
    shows must be explained by a later one, which can only hold more.
    """

    low_water_version: int
    parked: Mapping[str, int]
    topics: Mapping[str, PinnedTable]
    unread: tuple[str, ...]
    settled: PinnedTable
    op: PinnedTable
    half: PinnedTable

    @classmethod
    def open(cls, location: str, options: Mapping[str, str]) -> PinnedStore:
        """Pin every table; raises StoreNotFoundError, StorageError."""
        low_water_version, parked = _publisher_state(location, options)
        names = _topic_names(location, options)
        readable = [name for name in names if not name.startswith(UNREAD_PREFIXES)]
        return cls(
            low_water_version,
            parked,
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
    def versions(self) -> dict[str, int]:
        """What was pinned."""
        topics = {f"topics/{name}": table.version for name, table in self.topics.items()}
        logs = {table.name: table.version for table in (self.settled, self.op, self.half)}
        return {**logs, **topics}

    def reached(self, topic: str) -> int:
        """The op version up to which a topic must be complete though the store is running."""
        own = self.topics[topic].mark(self.mark_id) if topic in self.topics else NOTHING
        limit = self.low_water_version
        if topic in self.parked:
            limit = min(limit, self.parked[topic] - 1)
        return max(own, limit)


def plain_location(location: str) -> str:
    """`file:` locations as paths."""
    for prefix in ("file://", "file:"):
        if location.startswith(prefix):
            return "/" + location[len(prefix) :].strip("/")
    return location.rstrip("/") or "/"


def _publisher_state(location: str, options: Mapping[str, str]) -> tuple[int, dict[str, int]]:
    try:
        table = PinnedTable(f"{location}/state/publisher", options)
    except StoreNotFoundError:
        return NOTHING, {}
    rows = table.rows(["revision", "value"]).to_pylist()
    if not rows:
        return NOTHING, {}
    value = json.loads(max(rows, key=lambda row: row["revision"])["value"])
    parked = {name: entry["from_version"] for name, entry in value.get("parked", {}).items()}
    return value.get("low_water_version", NOTHING), parked


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


# --- columns and digests --------------------------------------------------------------------------


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


def content_digests(batch: pa.RecordBatch) -> Digests:
    """128 bits of SHA-256 over what was sent; null, empty and absent give different ones."""
    texts = [_marked(batch.column(name)) for name in ("tags", "keys", "sharding_key")]
    properties = _marked(_properties_text(batch.column("properties")))
    front = pc.binary_join_element_wise(*texts, properties, "").cast(pa.large_binary())
    body = batch.column("body").cast(pa.large_binary())
    marker = pc.if_else(pc.is_null(body), b"n", b"b").cast(pa.large_binary())
    joined = pc.binary_join_element_wise(
        front, marker, pc.fill_null(body, b""), pa.scalar(b"", pa.large_binary())
    )
    digests = b"".join(hashlib.sha256(row).digest()[:16] for row in _slices(joined))
    return np.frombuffer(digests, dtype=np.int64).reshape(-1, 2)


def _slices(rows: pa.Array) -> Iterator[memoryview]:
    _, offsets, data = rows.buffers()
    begin = rows.offset
    ends = np.frombuffer(offsets, dtype=np.int64)[begin : begin + len(rows) + 1].tolist()
    view = memoryview(data) if data is not None else memoryview(b"")
    for start, end in itertools.pairwise(ends):
        yield view[start:end]


def _marked(text: pa.Array) -> pa.Array:
    """Each value with its length in front, so that two neighbours cannot run into each other."""
    if text.null_count == len(text):
        return pa.repeat(pa.scalar(_ABSENT, pa.string()), len(text))
    size = pc.binary_length(text).cast(pa.string())
    whole = pc.binary_join_element_wise(size, pc.fill_null(text, ""), ":")
    return pc.if_else(pc.is_null(text), _ABSENT, whole)


def _properties_text(properties: pa.MapArray) -> pa.Array:
    """Each map as text, its pairs in the order of their names; null stays null."""
    offsets = properties.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    names = properties.keys.slice(first, last - first)
    values = properties.items.slice(first, last - first)
    pairs = pc.binary_join_element_wise(_marked(names), _marked(values), "")
    sizes = np.diff(offsets)
    if sizes.max(initial=0) > 1:
        owners = pa.array(np.repeat(np.arange(len(sizes)), sizes))
        by_name = [("owner", "ascending"), ("pair", "ascending")]
        pairs = pairs.take(
            pc.sort_indices(pa.table([owners, pairs], ["owner", "pair"]), sort_keys=by_name)
        )
    texts = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets - first), pairs), "")
    return pc.if_else(properties.is_null(), pa.scalar(None, pa.string()), texts)


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
