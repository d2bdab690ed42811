"""`storage.Table` over commits in memory: the same code above a pretended delta-rs handle.

Only what would touch a disk is replaced; marks, retries, pruning and change feeds are the real
ones. tests/tables/kit/test_memory_table.py holds both kinds of table to one suite.
"""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pa_fs
from deltalake.exceptions import CommitFailedError

from txmq.clock import Clock
from txmq.delta.actions import AddedFile, RemovedFile, Seen
from txmq.delta.failures import translated
from txmq.delta.files import DataFile, partition_columns, with_partition
from txmq.delta.parquet import FooterSizes, NewFile, new_file_path
from txmq.delta.schemas import TableSchema
from txmq.delta.storage import Table
from txmq.errors import StoreNotFoundError
from txmq.publish import arrow_engine
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
    content: bytes = field(default_factory=lambda: uuid.uuid4().bytes)


class Log:
    """All versions of one table and its data files."""

    def __init__(self, location: str, schema: TableSchema, disk: Disk) -> None:
        self.location = location
        self.schema = schema
        self.disk = disk
        self.id = str(uuid.uuid4())
        self.configuration = schema.properties(100)
        self.files: dict[str, pa.Table] = {}
        self.commits = [Commit((), (), {}, {}, disk.clock.now_ms())]
        self._actions: dict[bytes, pa.Table] = {}
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

    def actions(self, version: int) -> pa.Table:
        """Live files with their statistics, as delta-rs shows them: the newest first."""
        commit = self.commits[version]
        if commit.content not in self._actions:
            self._actions[commit.content] = self._action_table(commit.live[::-1])
        return self._actions[commit.content]

    def _action_table(self, live: Sequence[NewFile]) -> pa.Table:
        stats = [json.loads(file.stats_json) for file in live]
        columns: dict[str, list[Any]] = {
            "path": [file.path for file in live],
            "size_bytes": [file.size_bytes for file in live],
            "num_records": [file.num_records for file in live],
            "modification_time": pa.array([0] * len(live), pa.timestamp("ms", "UTC")),
        }
        for name in self.schema.partition_by:
            values = [self.data_file(file).partition[name] for file in live]
            columns[f"partition.{name}"] = values
        for name in self.schema.statistics_columns:
            columns[f"min.{name}"] = [one["min"].get(name) for one in stats]
            columns[f"max.{name}"] = [one["max"].get(name) for one in stats]
        return pa.table(columns)

    def commit(
        self, seen: int, added: Sequence[NewFile], marks: Mapping[str, int], *, replaces: bool
    ) -> int:
        """Compare-and-swap as Delta does it: refused where a later commit moved one of `marks`."""
        self.disk.before(self.location)
        with self._swapping:
            later = self.commits[seen + 1 :]
            if any(commit.own_marks.keys() & marks.keys() for commit in later):
                raise CommitFailedError("a concurrent transaction has the same app id (in memory)")
            last = self.commits[-1]
            live = tuple(added) if replaces else (*last.live, *added)
            all_marks = {**last.marks, **marks}
            now_ms = self.disk.clock.now_ms()
            content = _content(marks)
            self.commits.append(Commit(tuple(added), live, dict(marks), all_marks, now_ms, content))
            version = len(self.commits) - 1
        self.disk.after(self.location)
        return version


def _content(marks: Mapping[str, int]) -> bytes:
    """A commit file's lines about marks, and what tells it from every other."""
    actions = [{"txn": {"appId": name, "version": number}} for name, number in marks.items()]
    lines = [*actions, {"commitInfo": {"txnId": str(uuid.uuid4())}}]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


@cache
def _typed(kind: pa.DataType, value: str | None) -> Any:
    return pa.scalar(value, pa.string()).cast(kind).as_py()


def _statistics(rows: pa.Table, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    found = {name: pc.min_max(rows[name]).as_py() for name in names if rows.num_rows}
    return {side: {name: found[name][side] for name in found} for side in ("min", "max")}


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


class _Handle:
    """What `storage.Table` asks of a delta-rs table."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self._version = len(log.commits) - 1

    def version(self) -> int:
        return self._version

    def metadata(self) -> SimpleNamespace:
        return SimpleNamespace(
            id=self.log.id,
            configuration=self.log.configuration,
            partition_columns=list(self.log.schema.partition_by),
        )

    def protocol(self) -> SimpleNamespace:
        return SimpleNamespace(writer_features=None, reader_features=None)

    def schema(self) -> pa.Schema:
        return self.log.schema.columns

    def update_incremental(self) -> None:
        self._version = len(self.log.commits) - 1

    def transaction_version(self, app_id: str) -> int | None:
        return self.log.commits[self._version].marks.get(app_id)

    def get_add_actions(self, *, flatten: bool) -> pa.Table:
        assert flatten
        return self.log.actions(self._version)

    def load_cdf(self, start: int, end: int, *, columns: Sequence[str]) -> pa.Table:
        names = [name for name in columns if not name.startswith("_")]
        parts = [self._inserted(version, names) for version in range(start, end + 1)]
        return pa.concat_tables(parts)

    def _inserted(self, version: int, names: Sequence[str]) -> pa.Table:
        rows = self.log.rows_of(self.log.commits[version]).select(names)
        versions = pa.array([version] * rows.num_rows, pa.int64())
        kinds = pa.array(["insert"] * rows.num_rows, pa.string())
        return rows.append_column("_commit_version", versions).append_column("_change_type", kinds)


class MemoryTable(Table):
    """A table whose commits and files are Python objects."""

    def __init__(self, location: str, schema: TableSchema, disk: Disk, **options: Any) -> None:
        super().__init__(location, schema, **options)
        self._disk = disk

    @property
    def _log(self) -> Log:
        return self._disk.logs[self.location]

    def exists(self) -> bool:
        return self.location in self._disk.logs

    def _create(self, checkpoint_interval: int, extra: Mapping[str, str]) -> None:  # noqa: ARG002
        if not self.exists():
            self._disk.logs[self.location] = Log(self.location, self.schema, self._disk)

    def _opened(self) -> Any:
        if not self.exists():
            raise StoreNotFoundError(self.schema.name, "is not there; run txmq init")
        handle = _Handle(self._log)
        self._check(handle)  # type: ignore[arg-type]
        self._marks_of = None
        return handle

    @property
    def filesystem(self) -> Any:
        return self._log

    def _commit_files(self, *versions: int) -> list[Any]:
        return [self._commit_file(version) for version in versions]

    def _commit_file(self, version: int) -> SimpleNamespace:
        content = self.commit_bytes(version)
        if content is None:
            return SimpleNamespace(type=pa_fs.FileType.NotFound)
        return SimpleNamespace(type=pa_fs.FileType.File, size=len(content), mtime_ns=hash(content))

    def commit_bytes(self, version: int) -> bytes | None:
        commits = self._log.commits if self.exists() else []
        return commits[version].content if version < len(commits) else None

    def commit_problem(self, version: int) -> str | None:
        return None if version < len(self._log.commits) else "is not there"

    def commit_times_ms(self) -> dict[int, int]:
        return {version: commit.time_ms for version, commit in enumerate(self._log.commits)}

    def _stored(self, file: DataFile, stored: list[str]) -> pa.Table:
        return self._log.files[file.path].select(stored)

    def _footer_sizes(self, file: DataFile, columns: Sequence[str]) -> FooterSizes:
        rows = self._stored(
            file, [name for name in columns if name not in self.schema.partition_by]
        )
        return FooterSizes(rows.num_rows, rows.nbytes)

    def batches(
        self,
        file: DataFile,
        columns: Sequence[str],
        rows: int,
        batch_bytes: int = 0,  # noqa: ARG002
    ) -> Iterator[pa.RecordBatch]:
        stored = [name for name in columns if name not in self.schema.partition_by]
        yield from self._stored(file, stored).to_batches(max_chunksize=rows)

    def new_files(self, rows: pa.Table) -> list[NewFile]:
        parts = partition_columns(rows, self.schema.partition_by)
        return [self._log.keep(part, values) for values, part in parts]

    def _commit(
        self,
        added: Sequence[AddedFile],
        removed: Sequence[RemovedFile],
        marks: Mapping[str, int],
        since: Seen,
        note: str = "",  # noqa: ARG002
    ) -> int:
        files = [self._new_file(file) for file in added]
        with translated(self.schema.name):
            version = self._log.commit(since.version, files, marks, replaces=bool(removed))
        self._followed, self._is_behind = Seen(version), True
        return version

    def _new_file(self, file: AddedFile) -> NewFile:
        rows = self._log.files[file.path].num_rows
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
        super().__init__("/memory", config or Config())
        self.disk = Disk(clock)
        self.tables = _MemoryTables(self.location, self.config, self.disk)
        self.tables.create_all()

    def log(self, path: str) -> Log:
        """The commits of one table, for the eyes of a test."""
        return self.disk.logs[f"{self.location}/{path}"]


@contextmanager
def payload_files_in_memory() -> Iterator[None]:
    """Let the arrow engine put its files into memory too: Parquet is below the door."""
    original = arrow_engine.write_file

    def write_file(
        rows: Iterable[pa.Table], schema: pa.Schema, filesystem: Any, *rest: Any
    ) -> NewFile:
        if not isinstance(filesystem, Log):
            return original(rows, schema, filesystem, *rest)
        return filesystem.keep(pa.concat_tables([schema.empty_table(), *rows]), {})

    arrow_engine.write_file = write_file
    try:
        yield
    finally:
        arrow_engine.write_file = original
