"""Makes checkpoints beside the commits: one thread of the process, for all of its tables.

A reader of a table reads its newest checkpoint and the commits after it. Making one takes longer
than many commits, so no commit waits for it, and it takes a share of the time only. Maintenance
makes those that nobody made.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from txmq.delta.actions import DAMAGES, LOG_FOLDER, SESSION_MARK, commit_path
from txmq.delta.credentials import with_options
from txmq.delta.failures import in_one_line, process_id, translated
from txmq.delta.folder import TableFolder
from txmq.delta.schemas import interval_ms
from txmq.errors import StorageError
from txmq.ground.handles import EXIT_WAIT_S, close_at_exit

LAST_CHECKPOINT = f"{LOG_FOLDER}/_last_checkpoint"
# txmq deletes removed files sooner, with the commits that removed them; no VACUUM needs to know.
TOMBSTONE_MS = 3_600_000
_TOMBSTONES = "delta.deletedFileRetentionDuration"
# Statistics of another form than a text of JSON are left to delta-rs.
_STATS_AS_TEXT, _STATS_AS_COLUMNS = (
    "delta.checkpoint.writeStatsAsJson", "delta.checkpoint.writeStatsAsStruct"
)  # fmt: skip
# A session that has not committed for so long asks no more whether a commit of it landed.
SESSION_MS = 72 * 3_600_000
# A checkpoint is written anew once so many of its rows would be new ones.
NEW_SHARE = 0.1
# The thread pauses so many times as long as a checkpoint took: a log that is committed to without a
# pause is behind by some tens of commits, and the callers have the time.
PAUSE_FACTOR = 10
LONGEST_PAUSE_S = 60.0

_TEXTS = pa.map_(pa.string(), pa.string())
_ADD = pa.struct(
    {
        "path": pa.string(), "partitionValues": _TEXTS, "size": pa.int64(),
        "modificationTime": pa.int64(), "dataChange": pa.bool_(), "stats": pa.string(),
        "tags": _TEXTS,
    }
)  # fmt: skip
_REMOVE = pa.struct(
    {
        "path": pa.string(), "deletionTimestamp": pa.int64(), "dataChange": pa.bool_(),
        "extendedFileMetadata": pa.bool_(), "partitionValues": _TEXTS, "size": pa.int64(),
    }
)  # fmt: skip
_TXN = pa.struct({"appId": pa.string(), "version": pa.int64(), "lastUpdated": pa.int64()})
_METADATA = pa.struct(
    {
        "id": pa.string(), "name": pa.string(), "description": pa.string(),
        "format": pa.struct({"provider": pa.string(), "options": _TEXTS}),
        "schemaString": pa.string(), "partitionColumns": pa.list_(pa.string()),
        "createdTime": pa.int64(), "configuration": _TEXTS,
    }
)  # fmt: skip
_PROTOCOL = pa.struct(
    {
        "minReaderVersion": pa.int32(), "minWriterVersion": pa.int32(),
        "readerFeatures": pa.list_(pa.string()), "writerFeatures": pa.list_(pa.string()),
    }
)  # fmt: skip
_KINDS = {"add": _ADD, "remove": _REMOVE, "txn": _TXN, "metaData": _METADATA, "protocol": _PROTOCOL}
SCHEMA = pa.schema(list(_KINDS.items()))
_FIELDS = {kind: {part.name for part in fields} for kind, fields in _KINDS.items()}
# By what an action of a kind is told from others; a table has one metaData and one protocol.
_KEYS = {"add": "path", "remove": "path", "txn": "appId"}
_PASSED = ("commitInfo", "cdc")

logger = logging.getLogger(__name__)


# --- asking for one ------------------------------------------------------------------------------


def checkpoint_soon(folder: TableFolder, version: int, least_commits: int) -> None:
    """Have a checkpoint of this version or a newer one made; 0 commits, nothing is waited for.

    `least_commits` is as in `write_checkpoint`.
    """
    if _Process.checkpoints.process_id != process_id():
        _Process.checkpoints = _Checkpoints()
    _Process.checkpoints.ask(
        _Due(folder.name, folder.location, folder.options, version, least_commits)
    )


def checkpoint_now(folder: TableFolder, version: int) -> None:
    """Write a checkpoint of this version, unless there is a newer one; 0 commits.

    Raises: StorageError.
    """
    try:
        write_checkpoint(folder, version)
    except OtherCheckpointError:
        with translated(folder.name):
            with_options(
                folder.options,
                lambda options: DeltaTable(folder.location, storage_options=options),
            ).create_checkpoint()


class _Due(NamedTuple):
    """A checkpoint that is asked for."""

    name: str
    location: str
    options: Mapping[str, str]
    version: int
    least_commits: int


class _Checkpoints:
    """The tables that wait for a checkpoint, each once."""

    def __init__(self) -> None:
        self._waiting: dict[str, _Due] = {}
        # Not entered by the condition: an interrupt in Condition.__enter__ would leave it taken.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self.process_id = process_id()

    def ask(self, due: _Due) -> None:
        with self._lock:
            self._waiting[due.location] = due
            if self._thread is None and not self._is_closed:
                self._start()
            self._changed.notify()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="txmq-checkpoints", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # A process without room for a thread has made its commit all the same.
            logger.debug("no thread for checkpoints: %s", error)
            return
        self._thread = thread
        close_at_exit(self.close)

    def close(self) -> None:
        """End the thread; what waits, or takes too long, is left to maintenance."""
        with self._lock:
            self._is_closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(EXIT_WAIT_S)

    def _run(self) -> None:
        pause_s = 0.0
        while (due := self._next(pause_s)) is not None:
            begun_s = time.monotonic()
            _make(due)
            pause_s = min(PAUSE_FACTOR * (time.monotonic() - begun_s), LONGEST_PAUSE_S)

    def _next(self, pause_s: float) -> _Due | None:
        """Return what has waited longest, after the pause; None after `close`."""
        with self._lock:
            self._changed.wait_for(lambda: self._is_closed, pause_s)
            self._changed.wait_for(lambda: self._is_closed or self._waiting)
            return None if self._is_closed else self._waiting.pop(next(iter(self._waiting)))


class _Process:
    """The checkpoints of this process; a fork copies no thread."""

    checkpoints = _Checkpoints()


def _make(due: _Due) -> None:
    try:
        folder = TableFolder(due.name, due.location, due.options)
        write_checkpoint(folder, due.version, least_commits=due.least_commits)
    except BaseException as error:  # noqa: BLE001 - maintenance makes it later
        logger.debug("no checkpoint of %s: %s", due.location, in_one_line(error))


# --- the file -----------------------------------------------------------------------------------


class OtherCheckpointError(Exception):
    """A log that has to be left to delta-rs."""


@dataclass(slots=True)
class _News:
    """What the commits since a checkpoint did."""

    actions: dict[str, dict[str, dict[str, Any]]] = field(
        default_factory=lambda: {kind: {} for kind in _KINDS}
    )

    def take(self, content: bytes) -> None:
        for line in content.splitlines():
            for kind, values in json.loads(line).items() if line.strip() else ():
                if kind not in _PASSED and values is not None:
                    self._take(kind, values)

    def _take(self, kind: str, values: dict[str, Any]) -> None:
        if kind not in _KINDS or values.get("deletionVector") is not None:
            raise OtherCheckpointError(kind)
        strange = {name for name, value in values.items() if value is not None} - _FIELDS[kind]
        if strange and kind != "remove":
            # A checkpoint of this module would lose them; of a tombstone they say nothing.
            raise OtherCheckpointError(f"{kind} with {', '.join(sorted(strange))}")
        key = str(values[_KEYS[kind]]) if kind in _KEYS else ""
        self.actions[kind][key] = values
        if kind == "add":
            self.actions["remove"].pop(key, None)
        elif kind == "remove":
            self.actions["add"].pop(key, None)

    def rows(self, kind: str) -> pa.Array:
        """Return the new actions of one kind."""
        parts = list(_KINDS[kind])
        actions = self.actions[kind].values()
        fields = [
            {part.name: _stored(action.get(part.name), part.type) for part in parts}
            for action in actions
        ]
        for values in fields if kind in {"add", "remove"} else ():
            values["dataChange"] = False
        return pa.array(fields, _KINDS[kind])

    def touched(self, kind: str) -> pa.Array:
        """Return the keys of older actions of a kind that these commits replace."""
        kinds = ("add", "remove") if kind in {"add", "remove"} else (kind,)
        return pa.array([key for name in kinds for key in self.actions[name]], pa.string())


def _stored(value: Any, kind: pa.DataType) -> Any:
    """Turn a value into one for Arrow, whose maps are made of pairs."""
    if isinstance(value, dict) and pa.types.is_map(kind):
        return list(value.items())
    if isinstance(value, dict):
        # Only `format` is a struct in an action.
        fields = {"options": {}, **value}
        return {part.name: _stored(fields.get(part.name), part.type) for part in kind}
    return value


def write_checkpoint(folder: TableFolder, version: int, *, least_commits: int = 1) -> bool:
    """Write a checkpoint of a version, unless there is a newer one; tell whether it was written.

    Args:
        folder: of the table whose log it is.
        version: a version whose commit file is there.
        least_commits: with fewer commits since the last checkpoint none is written, nor while they
            are few against what the checkpoint holds.

    Raises: OtherCheckpointError; StorageError where a commit or the last checkpoint is damaged.
    """
    last = _last(folder)
    before = -1 if last is None else int(last["version"])
    held = 0 if last is None else int(last.get("size", 0))
    commits = version - before
    if commits < least_commits or (least_commits > 1 and commits < held * NEW_SHARE):
        return False
    news = _news(folder, range(before + 1, version + 1))
    try:
        rows = _rows(folder, last, news, _committed_ms(folder, version))
    except pa.ArrowException as error:
        raise OtherCheckpointError("values of other types") from error
    fields = _put(folder, version, rows)
    last = _last(folder)
    if last is None or last["version"] < version:
        _point_to(folder, fields)
    return True


def write_first_checkpoint(folder: TableFolder, version: int, content: bytes) -> None:
    """Write the checkpoint of a commit that defines the whole table, whatever was before it."""
    news = _News()
    news.take(content)
    rows = _rows(folder, None, news, _committed_ms(folder, version))
    _point_to(folder, _put(folder, version, rows))


def _last(folder: TableFolder) -> Mapping[str, Any] | None:
    content = folder.file_bytes(LAST_CHECKPOINT)
    if content is None:
        return None
    try:
        last: Mapping[str, Any] = json.loads(content)
        is_own_kind = isinstance(last["version"], int) and not last.get("parts")
    except DAMAGES as error:
        raise OtherCheckpointError("a damaged file") from error
    if not is_own_kind or last.get("v2Checkpoint"):
        raise OtherCheckpointError("several files")
    return last


def _news(folder: TableFolder, versions: Iterable[int]) -> _News:
    news = _News()
    for version in versions:
        content = folder.commit_bytes(version)
        if content is None:
            raise OtherCheckpointError(f"no commit {version}")
        if not content.strip():
            # Behind a checkpoint nobody would look for what it held.
            problem = "lost its content, so no checkpoint is made behind it; restore this file"
            way_out = 'where it is lost for good, put the line {"commitInfo":{}} into it'
            raise StorageError(folder.name, f"{commit_path(version)} {problem}; {way_out}")
        try:
            news.take(content)
        except DAMAGES as error:
            raise StorageError(folder.name, f"{commit_path(version)} is damaged") from error
    return news


def _committed_ms(folder: TableFolder, version: int) -> int | None:
    """Return the store's time of a commit; None if its file is gone."""
    path = commit_path(version)
    return folder.written_ms([path]).get(path)


def _rows(
    folder: TableFolder, last: Mapping[str, Any] | None, news: _News, committed_ms: int | None
) -> pa.Table:
    """Make all rows of the new checkpoint, each with one action."""
    base = None if last is None else _base(folder, int(last["version"]))
    expired_ms = time.time_ns() // 1_000_000 - _tombstone_ms(_properties(base, news))
    parts = []
    for kind, action in _KINDS.items():
        values = news.rows(kind)
        if kind == "txn" and committed_ms is not None:
            values = _stamped(values, committed_ms)
        if base is not None and (kind in _KEYS or not len(values)):
            values = pa.concat_arrays([_kept(base[kind], kind, news), values])
        if kind == "txn" and committed_ms is not None:
            values = _without_gone_sessions(values, committed_ms)
        if kind == "remove":
            values = values.filter(
                pc.greater(pc.struct_field(values, "deletionTimestamp"), expired_ms)
            )
        nulls = {other: pa.nulls(len(values), type_) for other, type_ in _KINDS.items()}
        parts.append(pa.table({**nulls, kind: values.cast(action)}, schema=SCHEMA))
    rows = pa.concat_tables(parts)
    if rows["metaData"].null_count != len(rows) - 1 or rows["protocol"].null_count != len(rows) - 1:
        raise OtherCheckpointError("no metaData or no protocol")
    return rows


def _properties(base: pa.Table | None, news: _News) -> Mapping[str, str]:
    if news.actions["metaData"]:
        return dict(news.actions["metaData"][""].get("configuration") or {})
    definitions = [] if base is None else base["metaData"].drop_null().to_pylist()
    return dict(definitions[0].get("configuration") or ()) if definitions else {}


def _tombstone_ms(properties: Mapping[str, str]) -> int:
    """Return how long a checkpoint remembers removed files, as the table asks."""
    as_text, as_columns = properties.get(_STATS_AS_TEXT, "true"), properties.get(_STATS_AS_COLUMNS)
    if as_text.lower() != "true" or (as_columns or "").lower() == "true":
        raise OtherCheckpointError("statistics as columns")
    return max(TOMBSTONE_MS, interval_ms(properties.get(_TOMBSTONES, "")) or 0)


def _stamped(marks: pa.StructArray, committed_ms: int) -> pa.StructArray:
    """Give marks of new commits the store's time, for the clocks of their writers differ.

    It is that of the newest commit: at most one checkpoint too late.
    """
    stamps = pa.repeat(pa.scalar(committed_ms, pa.int64()), len(marks))
    return pa.StructArray.from_arrays([*marks.flatten()[:2], stamps], fields=list(_TXN))


def _without_gone_sessions(marks: pa.StructArray, committed_ms: int) -> pa.StructArray:
    """Leave out the marks of processes that are gone; there would be more of them for ever."""
    name, _, stamp_ms = marks.flatten()
    is_session = pc.match_substring_regex(name, SESSION_MARK.pattern)
    is_gone = pc.and_(is_session, pc.less(stamp_ms, committed_ms - SESSION_MS))
    return marks.filter(pc.invert(pc.fill_null(is_gone, False)))  # noqa: FBT003


def _base(folder: TableFolder, version: int) -> pa.Table:
    content = folder.file_bytes(checkpoint_path(version))
    if content is None:
        raise OtherCheckpointError(f"no checkpoint {version}")
    try:
        file = pq.ParquetFile(pa.py_buffer(content))
        if not set(_KINDS) <= set(file.schema_arrow.names):
            raise OtherCheckpointError("other columns")
        return file.read()
    except (OSError, pa.ArrowException) as error:
        raise OtherCheckpointError("a damaged file") from error


def _kept(column: pa.ChunkedArray, kind: str, news: _News) -> pa.Array:
    """Return the actions of a kind in the last checkpoint that still stand."""
    values = column.combine_chunks()
    values = values.filter(pc.is_valid(values))
    if kind in _KEYS:
        is_touched = pc.is_in(pc.struct_field(values, _KEYS[kind]), value_set=news.touched(kind))
        values = values.filter(pc.invert(is_touched))
    return _as(values, _KINDS[kind])


def _as(values: pa.Array, kind: pa.StructType) -> pa.Array:
    """Make structs with the fields of `kind`: missing ones are null, others are left out."""
    stored = {field.name for field in values.type}
    vectors = pc.struct_field(values, "deletionVector") if "deletionVector" in stored else None
    if vectors is not None and vectors.null_count < len(values):
        raise OtherCheckpointError("deletion vectors")
    columns = [
        pc.struct_field(values, part.name).cast(part.type)
        if part.name in stored
        else pa.nulls(len(values), part.type)
        for part in kind
    ]
    return pa.StructArray.from_arrays(columns, fields=list(kind))


def _put(folder: TableFolder, version: int, rows: pa.Table) -> dict[str, int]:
    """Write the file; return what the pointer to it says."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="snappy", write_statistics=False)
    content = sink.getvalue().to_pybytes()
    folder.objects.put(checkpoint_path(version), content)
    return {
        "version": version, "size": rows.num_rows, "sizeInBytes": len(content),
        "numOfAddFiles": rows.num_rows - rows["add"].null_count,
    }  # fmt: skip


def _point_to(folder: TableFolder, fields: Mapping[str, int]) -> None:
    folder.objects.put(LAST_CHECKPOINT, json.dumps(fields).encode())


def checkpoint_path(version: int) -> str:
    """Return the path of a checkpoint of one file, relative to the table."""
    return f"{LOG_FOLDER}/{version:020d}.checkpoint.parquet"
