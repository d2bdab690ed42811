"""Backs up a live store: pins its tables in the right order, and copies the files that these need.

It reads only. Data files and commits never change, so what was copied once is not copied again: not
after maintenance has taken files away meanwhile, which pins the tables anew, and not by the next
backup to the same place.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

from txmq.delta.actions import LOG_FOLDER, commit_path
from txmq.delta.failures import translated
from txmq.delta.folder import REQUESTS_AT_ONCE
from txmq.delta.log_files import commit_news
from txmq.delta.replay import KeptLog
from txmq.delta.schemas import SCHEMA_VERSION_PROPERTY
from txmq.delta.table import Table
from txmq.errors import BackupError, StoreNotFoundError
from txmq.ground.clock import Clock, SystemClock, timestamp
from txmq.ground.results import Plain
from txmq.ground.version import __version__
from txmq.message.names import SCHEDULE_TOPIC
from txmq.ops.backup.manifest import CopiedFile, CopiedTable, Manifest
from txmq.ops.backup.order import order_faults
from txmq.ops.backup.place import (
    BEGUN,
    STORE_FOLDER,
    Place,
    copy_file,
    delete_older,
    hash_file,
    newest_of,
    note_in,
    put_newest,
)
from txmq.ops.backup.positions import sight_of
from txmq.store.config import Config
from txmq.store.set_aside import REGISTER as SET_ASIDE
from txmq.store.settled import NOTHING, mark_id
from txmq.store.store import Store, check_store
from txmq.store.tables import REGISTERS, STATE, StoreTables
from txmq.store.topic import REBUILD_MARK

logger = logging.getLogger(__name__)
PIN_ATTEMPTS = 10
SCHEDULE = f"topics/{SCHEDULE_TOPIC}"
# They are pinned last: what retention has taken, and what topics shall be, is said before it is so.
_LAST = ("maintenance", "topics")
# While one of these changes, rows move to where an older pin does not show them, or a topic gets a
# field that the older pin of its table lacks.
_STILL = ("maintenance", SET_ASIDE, "topics")
# One thread reads and one hashes while another waits for a disk.
THREADS_OF_DISKS = 4
# So many files are named to the threads at once.
FILES_AT_ONCE = 512
Task = TypeVar("Task")
Result = TypeVar("Result")
# How often tables are pinned anew because files that were to be copied are gone.
ATTEMPTS = 10
_ANOTHER_FOLDER = "choose an empty folder, or that of an earlier backup of this store"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a copy is.

    Attributes:
        files, size_bytes: what was copied, or is there already.
        all_files, all_bytes: what there is to copy, as far as it is known.
    """

    files: int
    size_bytes: int
    all_files: int
    all_bytes: int


OnProgress = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class BackupResult(Plain):
    """A finished backup.

    Attributes:
        location: where it is.
        begun, ended: by this machine's clock, in ISO 8601. What was acknowledged before `begun` is
            in it.
        tables, files, size_bytes: what it holds.
        copied_files, copied_bytes: what was copied now; the rest was there already.
        missing: live files that the store itself lacks; a restored store lacks them, too.
        faults: what the store itself has in a wrong order, such as a topic that went back.
    """

    location: str
    begun: str
    ended: str
    tables: int
    files: int
    size_bytes: int
    copied_files: int
    copied_bytes: int
    missing: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def back_up(
    store: Store,
    target: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    on_progress: OnProgress | None = None,
    clock: Clock | None = None,
) -> BackupResult:
    """Copy a store while producers, brokers and consumers go on; 0 commits.

    The second backup to a place copies what is new; until it is finished, the first one is there.

    Reads: all files of all tables that are not in the backup yet. Writes: `target` alone, the
    manifest last. Retry: call it again, what was copied is not copied again. One call at a time
    may write to a place: of two at once at most one is finished, and the other gets an error.

    Args:
        store: the store to copy. Streams of Spark, and tables of users, are no part of it.
        target: an empty folder or that of an earlier backup of this store: a path or a URI.
        storage_options: how delta-rs reaches the target; those of the store are its own.
        on_progress: is told after each file, by the thread that copied it.
        clock: for the times in the manifest.

    Raises:
        BackupError: the target holds something else, or a backup of another store, or a newer one
            of this store; or maintenance took files away in each attempt.
        StorageError: a table cannot be read, or the target not be written.

    Example:
        >>> back_up(store, "/backups/txmq").missing
        ()
    """
    check_store(store)
    place = Place(target, storage_options)
    place.check_apart(store.location)
    return _Backup(store, place, clock or SystemClock(), on_progress or unseen).run()


class _Backup:
    """One call of `back_up`."""

    def __init__(self, store: Store, place: Place, clock: Clock, on_progress: OnProgress) -> None:
        self._store, self._place, self._clock = store, place, clock
        self._on_progress = on_progress
        self._token = uuid.uuid4().hex
        self._before: Manifest | None = None
        self._number = 0
        # What lies there before a table is pinned.
        self._there: frozenset[str] = frozenset()
        # What the target holds of the store.
        self._files: dict[str, CopiedFile] = {}
        # Files that a log names, and that are not there.
        self._lost: set[str] = set()
        self._copied_files = self._copied_bytes = 0

    def run(self) -> BackupResult:
        """See `back_up`."""
        begun = self._now()
        self._before = self._begin()
        if self._before is not None:
            self._files.update(self._before.files())
        pins = self._pin_and_copy()
        missing = sorted(path for path in self._lost if _is_live(pins, path))
        faults = self._faults()
        tables = {path: self._table(path, pin) for path, pin in pins.items()}
        manifest = Manifest(
            __version__, self._store.location, begun, self._now(), tables, tuple(missing), faults
        )
        self._finish(manifest, pins)
        return self._result(manifest)

    def _now(self) -> str:
        return timestamp(self._clock.now_ms()).isoformat()

    # --- the target ---------------------------------------------------------------------------

    def _begin(self) -> Manifest | None:
        """Take the place; return the manifest of the backup that is there. Raises: BackupError."""
        place, ours = self._place, self._store.tables.op_log().table_id
        newest, begun = newest_of(place), place.content(BEGUN)
        content, self._number = newest.content, newest.next_number
        before = None if content is None else Manifest.parse(content, place.location)
        if before is None and begun is None and not place.is_empty():
            raise BackupError(
                place.location, f"holds something that is no backup; {_ANOTHER_FOLDER}"
            )
        if begun is not None and note_in(begun).get("op_table_id") != ours:
            problem = f"holds an unfinished backup of another store; {_ANOTHER_FOLDER}"
            raise BackupError(place.location, problem)
        if before is not None and before.tables["op"].table_id != ours:
            problem = f"holds a backup of another store ({before.source}); {_ANOTHER_FOLDER}"
            raise BackupError(place.location, problem)
        place.make()
        place.put(BEGUN, json.dumps({"op_table_id": ours, "by": self._token}).encode())
        self._there = frozenset(place.sizes())
        return before

    # --- copying --------------------------------------------------------------------------------

    def _pin_and_copy(self) -> dict[str, Pin]:
        """Pin the tables and copy what the pins need, anew while files go away meanwhile.

        Raises: BackupError.
        """
        gone: set[str] = set()
        for _ in range(ATTEMPTS):
            pins = pinned(self._store.tables)
            self._check_follows(pins)
            gone_before, gone = gone, self._copy(pins)
            # What was gone before the log that names it was read is not there at all.
            if gone <= gone_before and not any(f"/{LOG_FOLDER}/" in path for path in gone):
                self._lost = gone
                return pins
            message = "%d files were removed meanwhile; the newest state is copied"
            logger.info(message, len(gone))
        problem = f"files were removed faster than they were copied, {ATTEMPTS} times"
        step = "make log_reserved_time_s longer (docs/backup.md), then run it again"
        raise BackupError(self._store.location, f"{problem}; {step}")

    def _check_follows(self, pins: Mapping[str, Pin]) -> None:
        """Raise BackupError where the store did not grow out of what the backup holds."""
        for path, table in () if self._before is None else self._before.tables.items():
            problem = _problem_of_earlier(path, table, pins[path]) if path in pins else None
            if problem is not None:
                step = "choose an empty folder; this backup stays as it is"
                raise BackupError(self._place.location, f"{problem}; {step}")

    def _copy(self, pins: Mapping[str, Pin]) -> set[str]:
        """Copy what is not there yet; return the files that are gone."""
        tasks = [
            (path, name, size_bytes) for path, pin in pins.items()
            for name, size_bytes in _files(pin).items()
        ]  # fmt: skip
        counter = Counter(len(tasks), sum(task[2] for task in tasks), self._on_progress)
        there = self._place.sizes()
        gone = set()

        def copy(task: tuple[str, str, int]) -> tuple[CopiedFile | None, bool]:
            file = self._file_there(task, there)
            is_new = file is None
            file = file or self._copy_file(pins, task)
            counter.add(task[2])
            return file, is_new

        is_remote = self._store.is_remote or self._place.objects.is_remote
        for (path, name, _), (file, is_new) in each(copy, tasks, is_remote=is_remote):
            whole = f"{path}/{name}"
            if file is None:
                gone.add(whole)
                continue
            self._files[whole] = file
            if is_new:
                self._copied_files += 1
                self._copied_bytes += file.size_bytes
        return gone

    def _file_there(
        self, task: tuple[str, str, int], there: Mapping[str, int]
    ) -> CopiedFile | None:
        """Return the file as the target has it already; None if it is to be copied."""
        path, name, size_bytes = task
        whole = f"{path}/{name}"
        target = f"{STORE_FOLDER}/{whole}"
        file, there_bytes = self._files.get(whole), there.get(target)
        if there_bytes is None:
            return None
        if file is not None:
            # Two checkpoints of one version say the same; others have one content for good, but
            # for one that was damaged and repaired since.
            is_whole = size_bytes == file.size_bytes or _is_checkpoint(name)
            return file if is_whole and there_bytes == file.size_bytes else None
        if there_bytes != size_bytes or name.startswith(LOG_FOLDER):
            return None
        # Names of data files are random: it is what a killed backup has copied.
        with translated(whole):
            return hash_file(self._place.objects, target)

    def _copy_file(self, pins: Mapping[str, Pin], task: tuple[str, str, int]) -> CopiedFile | None:
        """Copy a file; return None if it is gone."""
        path, name, size_bytes = task
        target = (self._place.objects, f"{STORE_FOLDER}/{path}/{name}")
        with translated(f"{path}/{name}"):
            try:
                return copy_file((pins[path].table.folder.objects, name), target, size_bytes)
            except FileNotFoundError:
                return None

    # --- the manifest ---------------------------------------------------------------------------

    def _table(self, path: str, pin: Pin) -> CopiedTable:
        files = {
            name: self._files[f"{path}/{name}"]
            for name in _files(pin)
            if f"{path}/{name}" not in self._lost
        }
        definition = pin.log.snapshot.definition
        schema_version = definition.properties[SCHEMA_VERSION_PROPERTY]
        return CopiedTable(definition.table_id, pin.log.version, schema_version, files)

    def _faults(self) -> tuple[str, ...]:
        """Find what the copy has in a wrong order: only what the store has so itself."""
        place = self._place
        tables = StoreTables(f"{place.location}/{STORE_FOLDER}", Config(), place.options)
        return tuple(str(fault) for fault in order_faults(sight_of(tables)))

    def _finish(self, manifest: Manifest, pins: Mapping[str, Pin]) -> None:
        """Put the manifest, if all is there and nobody else has begun; then remove what is old."""
        self._check_alone(manifest)
        place = self._place
        if not put_newest(place, self._number, self._token, manifest.to_json()):
            raise self._overtaken()
        delete_older(place, self._number)
        for _ in each(place.delete, self._old(pins), is_remote=place.objects.is_remote):
            pass
        if self._is_ours():
            place.delete(BEGUN)

    def _old(self, pins: Mapping[str, Pin]) -> list[str]:
        """List the files that this backup does not need: older ones, and its own of former pins.

        What came from others meanwhile may be needed by the next backup: deletes may come late,
        so they name nothing that can be needed again.
        """
        needed = {f"{path}/{name}" for path, pin in pins.items() for name in _files(pin)}
        copies = {f"{STORE_FOLDER}/{path}" for path in self._files}
        there = {path for path in self._there if path.startswith(f"{STORE_FOLDER}/")}
        return sorted((copies | there) - {f"{STORE_FOLDER}/{path}" for path in needed})

    def _check_alone(self, manifest: Manifest) -> None:
        """Raise BackupError where another call began, or took files away."""
        place = self._place
        sizes = place.sizes()
        is_whole = all(
            sizes.get(f"{STORE_FOLDER}/{path}") == file.size_bytes
            for path, file in manifest.files()
        )
        if not is_whole or not self._is_ours():
            raise self._overtaken()

    def _is_ours(self) -> bool:
        return note_in(self._place.content(BEGUN)).get("by") == self._token

    def _overtaken(self) -> BackupError:
        problem = "another backup to this place began meanwhile; this one is not finished"
        return BackupError(self._place.location, f"{problem}. Run one at a time")

    def _result(self, manifest: Manifest) -> BackupResult:
        return BackupResult(
            self._place.location,
            manifest.begun,
            manifest.ended,
            len(manifest.tables),
            sum(1 for _ in manifest.files()),
            manifest.size_bytes,
            self._copied_files,
            self._copied_bytes,
            manifest.missing,
            manifest.faults,
        )


def _files(pin: Pin) -> dict[str, int]:
    """Return the files of a table; its log comes last, so that each commit finds its data files."""
    return {**pin.log.earlier_bytes, **pin.log.live_bytes, **pin.log.log_bytes}


def _is_live(pins: Mapping[str, Pin], whole: str) -> bool:
    return any(
        whole == f"{path}/{name}" for path, pin in pins.items() for name in pin.log.live_bytes
    )


def _is_checkpoint(name: str) -> bool:
    return name.startswith(LOG_FOLDER) and name.endswith(".parquet")


def _problem_of_earlier(path: str, table: CopiedTable, pin: Pin) -> str | None:
    """Return why a table is no later version of the one of an earlier backup; None if it is."""
    if pin.log.snapshot.definition.table_id != table.table_id:
        return f"holds another table {path}: it was made anew since"
    if pin.log.version < table.version:
        problem = f"holds {path} up to version {table.version}, the store has {pin.log.version}"
        return f"{problem}: the store was restored"
    commit = commit_path(table.version)
    if commit not in table.files or commit not in pin.log.log_bytes:
        # Log clean-up has passed it; then no commits of the two have the same name.
        return None
    try:
        is_same = hash_file(pin.table.folder.objects, commit) == table.files[commit]
    except FileNotFoundError:
        return None
    return None if is_same else f"holds another commit {table.version} of {path}: it was restored"


# --- pins -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pin:
    """A table, and the version of it that is copied."""

    table: Table
    log: KeptLog


def pinned(tables: StoreTables) -> dict[str, Pin]:
    """Pin a version of each table, by its path and in the right order; 0 commits.

    A value refers to topics, a topic to facts, a fact to claims, a claim to halves. So each of them
    is pinned before what it refers to, and a restored store finds all that is behind what it has.

    Raises: BackupError where something is taken away again and again meanwhile; StorageError.
    """
    problem: str | None = None
    for _ in range(PIN_ATTEMPTS):
        before, half = _still_versions(tables), tables.table_at("half")
        begun, rebuilds = half.version, _rebuilds(tables)
        pins = {path: pin for path in _paths(tables) if (pin := _pin(tables, path)) is not None}
        problem = _problem_of(pins, half, begun)
        if _still_versions(tables) != before:
            problem = f"{' or '.join(STATE + name for name in _STILL)} changed"
        if any(rebuilds.get(path, now) != now for path, now in _rebuilds_pinned(pins).items()):
            problem = "a topic was rebuilt, which gives offsets to other messages,"
        if problem is None:
            return pins
    count = f"during each of {PIN_ATTEMPTS} looks at the tables"
    raise BackupError("backup", f"{problem} {count}; try again, nothing is wrong with the store")


def _still_versions(tables: StoreTables) -> dict[str, int]:
    """Return the versions of the registers that may not change while tables are pinned."""
    registers = {name: tables.register(name) for name in _STILL}
    return {name: register.table.version for name, register in registers.items() if register.exists}


def _rebuilds(tables: StoreTables) -> dict[str, int]:
    """Count how often each topic was rebuilt, for values name its messages by their offsets."""
    topics = {path: tables.table_at(path) for path in tables.topic_paths()}
    there = {path: table for path, table in topics.items() if table.exists()}
    return {path: table.log.mark(REBUILD_MARK) or 0 for path, table in there.items()}


def _rebuilds_pinned(pins: Mapping[str, Pin]) -> dict[str, int]:
    marks = {path: pin.log.snapshot.marks for path, pin in pins.items()}
    return {path: of_table.number(REBUILD_MARK) or 0 for path, of_table in marks.items()}


def _paths(tables: StoreTables) -> Iterator[str]:
    """Yield all tables. Each listing is made in its turn: what came meanwhile belongs to it."""
    last = [STATE + name for name in _LAST]
    yield from (path for path in tables.register_paths() if path not in last)
    # What retention took from the schedule is in topics that are pinned later.
    yield from sorted(tables.topic_paths(), key=lambda path: path != SCHEDULE)
    yield from ("settled", "op", "half")
    yield from (path for path in tables.register_paths() if path in last)


def _pin(tables: StoreTables, path: str) -> Pin | None:
    table = tables.table_at(path)
    try:
        return Pin(table, table.log.kept_log())
    except StoreNotFoundError:
        if path.removeprefix(STATE) in REGISTERS or "/" not in path:
            raise
        # A group is just being made.
        return None


def _problem_of(pins: Mapping[str, Pin], half: Table, begun: int) -> str | None:
    """Return what was taken away while the tables were pinned and an older pin needs, if any."""
    news = [
        commit_news(half.folder, version)
        for version in range(begun + 1, pins["half"].log.version + 1)
    ]
    if any(commit is None or commit.has_removed for commit in news):
        return "retention removed halves"
    op, settled = pins["op"].log, pins["settled"].log.snapshot
    mark = settled.marks.number(mark_id(op.snapshot.definition.table_id))
    first = (NOTHING if mark is None else mark) + 1
    if first <= op.version and commit_path(first) not in op.log_bytes:
        return "log clean-up removed claims that are not settled in the pinned version"
    return None


# --- copying --------------------------------------------------------------------------------------


def each(
    work: Callable[[Task], Result], tasks: Sequence[Task], *, is_remote: bool
) -> Iterator[tuple[Task, Result]]:
    """Do `work` for each task, some at once; yield the results in order. Raises: as `work`."""
    with ThreadPoolExecutor(REQUESTS_AT_ONCE if is_remote else THREADS_OF_DISKS) as pool:
        for start in range(0, len(tasks), FILES_AT_ONCE):
            batch = tasks[start : start + FILES_AT_ONCE]
            yield from zip(batch, pool.map(work, batch), strict=True)


def unseen(progress: Progress) -> None:
    """Show it to nobody."""
    del progress


class Counter:
    """Tells how far a copy is. Safe for several threads; what is shown never goes back."""

    def __init__(self, all_files: int, all_bytes: int, on_progress: OnProgress) -> None:
        """Begin at no file."""
        self._all_files, self._all_bytes = all_files, all_bytes
        self._files = self._bytes = 0
        self._lock, self._tell = threading.Lock(), on_progress

    def add(self, size_bytes: int) -> None:
        """Count one more file, and tell of it."""
        with self._lock:
            self._files += 1
            self._bytes += size_bytes
            files, bytes_ = max(self._all_files, self._files), max(self._all_bytes, self._bytes)
            self._tell(Progress(self._files, self._bytes, files, bytes_))
