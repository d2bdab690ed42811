"""Backs up a live store: pins its tables in the right order, and copies the files that these need.

It reads only. Data files and commits never change, so what was copied once is not copied again: not
after maintenance has taken files away meanwhile, which pins the tables anew, and not by the next
backup to the same place.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from txmq.backup.copying import Counter, OnProgress, each, unseen
from txmq.backup.manifest import CopiedFile, CopiedTable, Manifest
from txmq.backup.manifests import delete_older, newest_of, put_newest
from txmq.backup.order import order_faults
from txmq.backup.pins import Pin, pinned
from txmq.backup.place import BEGUN, STORE_FOLDER, Place, copied, hashed, said
from txmq.backup.sight import sight_of
from txmq.clock import Clock, SystemClock, timestamp
from txmq.delta.actions import LOG_FOLDER, commit_path
from txmq.delta.failures import translated
from txmq.delta.schemas import SCHEMA_VERSION_PROPERTY
from txmq.errors import BackupError
from txmq.results import Plain
from txmq.store.config import Config
from txmq.store.store import Store, check_store
from txmq.store.tables import StoreTables
from txmq.version import __version__

logger = logging.getLogger(__name__)

# How often tables are pinned anew because files that were to be copied are gone.
ATTEMPTS = 10
_ANOTHER_FOLDER = "choose an empty folder, or that of an earlier backup of this store"


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
        pins = self._copied()
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
        """Take the place; the manifest of the backup that is there. Raises: BackupError."""
        place, ours = self._place, self._store.tables.op_log().table_id
        newest, begun = newest_of(place), place.content(BEGUN)
        content, self._number = newest.content, newest.next_number
        before = None if content is None else Manifest.parse(content, place.location)
        if before is None and begun is None and not place.is_empty():
            raise BackupError(
                place.location, f"holds something that is no backup; {_ANOTHER_FOLDER}"
            )
        if begun is not None and said(begun).get("op_table_id") != ours:
            problem = f"holds an unfinished backup of another store; {_ANOTHER_FOLDER}"
            raise BackupError(place.location, problem)
        if before is not None and before.tables["op"].table_id != ours:
            problem = f"holds a backup of another store ({before.source}); {_ANOTHER_FOLDER}"
            raise BackupError(place.location, problem)
        place.make()
        place.put(BEGUN, json.dumps({"op_table_id": ours, "by": self._token}).encode())
        self._there = frozenset(place.sizes())
        return before

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
        """What this backup needs not, of what was there before it pinned, or was copied by it.

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
        named = {f"{STORE_FOLDER}/{path}": file for path, file in manifest.files()}
        is_whole = all(sizes.get(path) == file.size_bytes for path, file in named.items())
        if not is_whole or not self._is_ours():
            raise self._overtaken()

    def _is_ours(self) -> bool:
        return said(self._place.content(BEGUN)).get("by") == self._token

    def _overtaken(self) -> BackupError:
        problem = "another backup to this place began meanwhile; this one is not finished"
        return BackupError(self._place.location, f"{problem}. Run one at a time")

    # --- copying --------------------------------------------------------------------------------

    def _copied(self) -> dict[str, Pin]:
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
            problem = _problem_of(path, table, pins[path]) if path in pins else None
            if problem is not None:
                step = "choose an empty folder; this backup stays as it is"
                raise BackupError(self._place.location, f"{problem}; {step}")

    def _copy(self, pins: Mapping[str, Pin]) -> set[str]:
        """Copy what is not there yet; what is gone."""
        tasks = [
            (path, name, size_bytes) for path, pin in pins.items()
            for name, size_bytes in _files(pin).items()
        ]  # fmt: skip
        counter = Counter(len(tasks), sum(task[2] for task in tasks), self._on_progress)
        there = self._place.sizes()
        gone = set()

        def copy(task: tuple[str, str, int]) -> tuple[CopiedFile | None, bool]:
            file = self._kept_file(task, there)
            is_new = file is None
            file = file or self._copied_file(pins, task)
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

    def _kept_file(self, task: tuple[str, str, int], there: Mapping[str, int]) -> CopiedFile | None:
        """The file as the target has it already; None where it is to be copied."""
        path, name, size_bytes = task
        whole = f"{path}/{name}"
        target = f"{STORE_FOLDER}/{whole}"
        known, kept_bytes = self._files.get(whole), there.get(target)
        if kept_bytes is None:
            return None
        if known is not None:
            # Two checkpoints of one version say the same; others have one content for good, but
            # for one that was damaged and repaired since.
            is_whole = size_bytes == known.size_bytes or _is_checkpoint(name)
            return known if is_whole and kept_bytes == known.size_bytes else None
        if kept_bytes != size_bytes or name.startswith(LOG_FOLDER):
            return None
        # Names of data files are random: it is what a killed backup has copied.
        with translated(whole):
            return hashed(self._place.objects, target)

    def _copied_file(
        self, pins: Mapping[str, Pin], task: tuple[str, str, int]
    ) -> CopiedFile | None:
        """The file, copied; None where it is gone."""
        path, name, size_bytes = task
        target = (self._place.objects, f"{STORE_FOLDER}/{path}/{name}")
        with translated(f"{path}/{name}"):
            try:
                return copied((pins[path].table.objects, name), target, size_bytes)
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
        """What the copy has in a wrong order: nothing but what the store has so itself."""
        place = self._place
        tables = StoreTables(f"{place.location}/{STORE_FOLDER}", Config(), place.options)
        return tuple(str(fault) for fault in order_faults(sight_of(tables)))

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
    """The files of a table; its log comes last, so that each commit finds its data files."""
    return {**pin.log.earlier_bytes, **pin.log.live_bytes, **pin.log.log_bytes}


def _is_live(pins: Mapping[str, Pin], whole: str) -> bool:
    return any(
        whole == f"{path}/{name}" for path, pin in pins.items() for name in pin.log.live_bytes
    )


def _is_checkpoint(name: str) -> bool:
    return name.startswith(LOG_FOLDER) and name.endswith(".parquet")


def _problem_of(path: str, table: CopiedTable, pin: Pin) -> str | None:
    """Why a table is not the one of an earlier backup, further on; None if it is."""
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
        is_same = hashed(pin.table.objects, commit) == table.files[commit]
    except FileNotFoundError:
        return None
    return None if is_same else f"holds another commit {table.version} of {path}: it was restored"
