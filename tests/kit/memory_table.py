"""`table.Table` over commit files in memory: the same code above a pretended disk.

Only what would touch a disk is replaced; the log is read, pruned and followed by the real code.
tests/tables/kit/test_memory_table.py holds both kinds of table to one suite.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from shutil import rmtree
from tempfile import mkdtemp
from types import SimpleNamespace
from typing import Any
from weakref import finalize

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
from deltalake import Schema
from deltalake.exceptions import CommitFailedError

from txmq.delta import parquet
from txmq.delta.actions import AddedFile, NewCommit, RemovedFile, Seen
from txmq.delta.commit_writer import new_token
from txmq.delta.failures import translated
from txmq.delta.file_rows import FileRows
from txmq.delta.files import DataFile, FilePart, partition_columns, with_partition
from txmq.delta.folder import NOTHING, Contents, TableFolder
from txmq.delta.parquet import FooterSizes, NewFile, new_file_path
from txmq.delta.reading import RowSearch, TableChanges
from txmq.delta.schemas import TableSchema
from txmq.delta.table import Table
from txmq.delta.table_log import LiveFiles, TableLog
from txmq.delta.table_writer import TableWriter
from txmq.ground.clock import Clock
from txmq.store.config import Config
from txmq.store.store import Store
from txmq.store.tables import StoreTables
from txmq.testing import ManualClock


@dataclass(frozen=True)
class Commit:
    """One version: what it added, what is live after it, and all marks as of it."""

    added: tuple[NewFile, ...]
    live: tuple[NewFile, ...]
    own_marks: Mapping[str, int]
    marks: Mapping[str, int]
    time_ms: int
    content: bytes


class Log:
    """All versions of one table and its data files."""

    def __init__(self, location: str, schema: TableSchema, disk: Disk) -> None:
        self.location = location
        self.schema = schema
        self.disk = disk
        self.id = str(uuid.uuid4())
        self.files: dict[str, pa.Table] = {}
        content = _made(schema, self.id)
        self.commits = [Commit((), (), {}, {}, disk.clock.now_ms(), content)]
        self._rows: dict[bytes, pa.Table] = {}
        self._swapping = threading.Lock()

    def keep(self, rows: pa.Table, partition: Mapping[str, str | None]) -> NewFile:
        """A data file that no commit names yet."""
        path = new_file_path()
        self.files[path] = rows.combine_chunks()
        stats = json.dumps(_statistics(rows, self.schema.statistics_columns))
        return NewFile(path, rows.nbytes, rows.num_rows, stats, dict(partition))

    def rows_of(self, commit: Commit) -> pa.Table:
        """What a version added, with all columns; for the eyes of a test."""
        if commit.content not in self._rows:
            parts = [self._whole(file) for file in commit.added]
            empty = self.schema.columns.empty_table()
            self._rows[commit.content] = pa.concat_tables([empty, *parts])
        return self._rows[commit.content]

    def _whole(self, file: NewFile) -> pa.Table:
        return with_partition(self.files[file.path], self.data_file(file), self.schema.columns)

    def data_file(self, file: NewFile) -> DataFile:
        columns = self.schema.columns
        partition = {n: _typed(columns.field(n).type, v) for n, v in file.partition.items()}
        return DataFile(file.path, file.num_records, file.size_bytes, partition)

    def commit(self, seen: int, added: Sequence[NewFile], removed: set[str], new: NewCommit) -> int:
        """Compare-and-swap as Delta does it: refused where a later one moved a mark."""
        self.disk.before(self.location)
        with self._swapping:
            later = self.commits[seen + 1 :]
            if any(commit.own_marks.keys() & new.marks.keys() for commit in later):
                raise CommitFailedError("a concurrent transaction has the same app id (in memory)")
            last = self.commits[-1]
            live = (*(file for file in last.live if file.path not in removed), *added)
            marks, all_marks = dict(new.marks), {**last.marks, **new.marks}
            now_ms = self.disk.clock.now_ms()
            content = new.content(now_ms)
            self.commits.append(Commit(tuple(added), live, marks, all_marks, now_ms, content))
            version = len(self.commits) - 1
        self.disk.after(self.location)
        return version


def _made(schema: TableSchema, table_id: str) -> bytes:
    """The commit that makes a table."""
    metadata = {
        "id": table_id,
        "schemaString": _schema_json(schema.name, schema.columns),
        "partitionColumns": list(schema.partition_by),
        "configuration": schema.properties(100),
    }
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    lines = [{"metaData": metadata}, {"protocol": protocol}]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


_SCHEMAS: dict[str, str] = {}


def _schema_json(name: str, columns: pa.Schema) -> str:
    if name not in _SCHEMAS:
        _SCHEMAS[name] = Schema.from_arrow(columns).to_json()
    return _SCHEMAS[name]


@cache
def _typed(kind: pa.DataType, value: str | None) -> Any:
    return pa.scalar(value, pa.string()).cast(kind).as_py()


def _statistics(rows: pa.Table, names: Sequence[str]) -> dict[str, Any]:
    found = {name: pc.min_max(rows[name]).as_py() for name in names if rows.num_rows}
    bounds = {side: {name: found[name][side] for name in found} for side in ("min", "max")}
    return {"numRecords": rows.num_rows, "minValues": bounds["min"], "maxValues": bounds["max"]}


Interrupt = Callable[[], None]


class Disk:
    """Where the tables of a store are; tests break in right before or after a commit."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock: Clock = clock or ManualClock()
        self.logs: dict[str, Log] = {}
        # (end of the location, whether after the commit, what happens then), each once.
        self.interrupts: list[tuple[str, bool, Interrupt]] = []
        # A process that was killed commits nothing more, not even in its `finally`.
        self.killed: Exception | None = None

    def before(self, location: str) -> None:
        if self.killed is not None:
            raise self.killed
        self._interrupt(location, is_after=False)

    def after(self, location: str) -> None:
        self._interrupt(location, is_after=True)

    def _interrupt(self, location: str, *, is_after: bool) -> None:
        for waiting in self.interrupts:
            table, when, action = waiting
            if when is is_after and f"/{table}" in location:
                self.interrupts.remove(waiting)
                action()
                return


class MemoryTable(Table):
    """A table whose commits and files are Python objects."""

    def __init__(
        self, location: str, schema: TableSchema, disk: Disk, *, commit_attempts: int = 20
    ) -> None:
        super().__init__(location, schema)
        folder = _MemoryFolder(self.name, location, disk)
        self.folder = folder
        self.log = _MemoryTableLog(folder, schema)
        self.files = LiveFiles(self.log, schema)
        rows = _MemoryRows(folder, self.log, schema)
        self.rows = rows
        self.search = RowSearch(self.name, self.log, self.files, rows)
        self.changes = TableChanges(folder, self.log, self.files, rows, schema)
        self.writer = _MemoryWriter(
            folder, schema, self.log, self.files, rows.small_files, commit_attempts
        )


class _MemoryFolder(TableFolder):
    def __init__(self, name: str, location: str, disk: Disk) -> None:
        super().__init__(name, location)
        self.disk = disk

    @property
    def log(self) -> Log:
        return self.disk.logs[self.location]

    @property
    def is_there(self) -> bool:
        return self.location in self.disk.logs

    def log_names(self) -> list[str]:
        commits = self.log.commits if self.is_there else []
        return [f"{version:020d}.json" for version in range(len(commits))]

    @property
    def filesystem(self) -> Any:
        return self.log

    def look_up_commits(self, *versions: int) -> list[Any]:
        return [self._commit_file(version) for version in versions]

    def _commit_file(self, version: int) -> SimpleNamespace:
        content = self.commit_bytes(version)
        if content is None:
            return SimpleNamespace(type=pa_fs.FileType.NotFound)
        return SimpleNamespace(type=pa_fs.FileType.File, size=len(content), mtime_ns=hash(content))

    def commit_bytes(self, version: int) -> bytes | None:
        commits = self.log.commits if self.is_there else []
        return commits[version].content if version < len(commits) else None

    def commit_problem(self, version: int) -> str | None:
        return None if version < len(self.log.commits) else "is not there"

    def commit_times_ms(self) -> dict[int, int]:
        return {version: commit.time_ms for version, commit in enumerate(self.log.commits)}


class _MemoryTableLog(TableLog):
    _folder: _MemoryFolder

    def exists(self) -> bool:
        return self._folder.is_there


class _MemoryRows(FileRows):
    _folder: _MemoryFolder

    def keep_small_files(self) -> None:
        pass

    def _read_once(self, file: DataFile, stored: list[str], *_: Any) -> pa.Table:
        return self._folder.log.files[file.path].select(stored)

    def _footer_sizes(self, file: DataFile, columns: Sequence[str]) -> FooterSizes:
        rows = self._read_once(file, self._stored_names(columns))
        return FooterSizes(rows.num_rows, rows.nbytes)

    def batches_from(  # noqa: PLR0913, PLR0917 - as in its parent
        self,
        file: DataFile,
        columns: Sequence[str],
        first: int,  # noqa: ARG002 - there is one row group
        rows: int,
        batch_bytes: int = 0,  # noqa: ARG002
        contents: Contents = NOTHING,  # noqa: ARG002
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        start = 0
        for batch in self._read_once(file, self._stored_names(columns)).to_batches(rows):
            yield start, batch
            start += batch.num_rows

    def row_groups(self, part: FilePart, columns: Sequence[str]) -> list[FilePart] | None:  # noqa: ARG002
        return None

    def pieces_of_parts(
        self, parts: Sequence[FilePart], columns: Sequence[str]
    ) -> Iterator[pa.Table]:
        (part,), schema = parts, self._log.columns_of(columns)
        for _, batch in self.batches_from(part.file, columns, 0, 2):
            yield with_partition(pa.table(batch), part.file, schema)


class _MemoryWriter(TableWriter):
    _folder: _MemoryFolder

    def _create(self, checkpoint_interval: int, extra: Mapping[str, str]) -> None:  # noqa: ARG002
        folder = self._folder
        if not folder.is_there:
            folder.disk.logs[folder.location] = Log(folder.location, self._schema, folder.disk)

    def new_files(self, rows: pa.Table) -> list[NewFile]:
        parts = partition_columns(rows, self._schema.partition_by)
        return [self._folder.log.keep(part, values) for values, part in parts]

    def _commit(  # noqa: PLR0913, PLR0917 - as in its parent
        self,
        added: Sequence[AddedFile],
        removed: Sequence[RemovedFile],
        marks: Mapping[str, int],
        since: Seen,
        note: str = "",
        metadata: Mapping[str, Any] | None = None,  # noqa: ARG002 - nobody reads it here
    ) -> int:
        files = [self._named_file(file) for file in added]
        new = NewCommit(added, removed, marks, new_token(), note)
        with translated(self._schema.name):
            paths = {file.path for file in removed}
            version = self._folder.log.commit(since.version, files, paths, new)
        self._log.note_commit(Seen(version))
        return version

    def _named_file(self, file: AddedFile) -> NewFile:
        rows = self._folder.log.files[file.path].num_rows
        return NewFile(file.path, file.size_bytes, rows, file.stats_json, file.partition)


class _MemoryTables(StoreTables):
    """Where these are is a disk in memory."""

    def __init__(self, location: str, config: Config, disk: Disk) -> None:
        super().__init__(location, config)
        self.disk = disk

    def table(self, schema: TableSchema, path: str) -> Table:
        location, attempts = f"{self.location}/{path}", self._config.commit_attempts
        return MemoryTable(location, schema, self.disk, commit_attempts=attempts)

    def topic_folders(self) -> list[str]:
        return self.topic_names()

    def topic_names(self) -> list[str]:
        folder = f"{self.location}/topics/"
        return sorted(
            location.removeprefix(folder)
            for location in self.disk.logs
            if location.startswith(folder)
        )


class MemoryStore(Store):
    """A store whose tables are in memory; its production code is all there."""

    def __init__(self, config: Config | None = None, *, clock: Clock | None = None) -> None:
        # What is no table lies in a folder of a real disk, as the renewals of producers do.
        folder = mkdtemp(prefix="txmq-memory-")
        finalize(self, rmtree, folder, ignore_errors=True)
        super().__init__(folder, config or Config())
        self.disk = Disk(clock)
        self.tables = _MemoryTables(self.location, self.config, self.disk)
        self.tables.create_all()

    def log(self, path: str) -> Log:
        """The commits of one table, for the eyes of a test."""
        return self.disk.logs[f"{self.location}/{path}"]


@contextmanager
def payload_files_in_memory() -> Iterator[None]:
    """Let the arrow engine put its files into memory too: Parquet is below the door."""
    original = parquet.write_file

    def write_file(
        rows: Iterable[pa.Table], schema: pa.Schema, filesystem: Any, *rest: Any
    ) -> NewFile:
        if not isinstance(filesystem, Log):
            return original(rows, schema, filesystem, *rest)
        return filesystem.keep(pa.concat_tables([schema.empty_table(), *rows]), {})

    parquet.write_file = write_file
    try:
        yield
    finally:
        parquet.write_file = original
