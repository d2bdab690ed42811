"""Backs up a live store: pins its tables in the right order, and copies the files that these need.

It reads only. Data files and commits never change, so what was copied once is not copied again: not
after maintenance has taken files away meanwhile, which pins the tables anew, and not by the next
backup to the same place.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from txmq.backup.copying import Counter, OnProgress, each, unseen
from txmq.backup.manifest import MANIFEST, CopiedFile, CopiedTable, Manifest
from txmq.backup.order import order_faults
from txmq.backup.pins import Pin, pinned
from txmq.backup.place import BEGUN, STORE_FOLDER, Place, copied, read_again
from txmq.backup.sight import sight_of
from txmq.clock import Clock, SystemClock, timestamp
from txmq.delta.actions import LOG_FOLDER, commit_path
from txmq.delta.failures import translated
from txmq.delta.schemas import SCHEMA_VERSION_PROPERTY
from txmq.errors import BackupError
from txmq.results import Plain
from txmq.store.config import Config
from txmq.store.store import Store
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
    target: str,
    *,
    storage_options: Mapping[str, str] | None = None,
    on_progress: OnProgress = unseen,
    clock: Clock | None = None,
) -> BackupResult:
    """Copy a store while producers, brokers and consumers go on; 0 commits.

    The second backup to a place copies what is new; until it is finished, the first one is there.

    Reads: all files of all tables that are not in the backup yet. Writes: `target` alone, the
    manifest last. Retry: call it again, what was copied is not copied again. One call at a time
    may write to a place: of two the one that began first ends with an error.

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
    place = Place(target, storage_options)
    place.check_apart(store.location)
    return _Backup(store, place, clock or SystemClock(), on_progress).run()


@dataclass(slots=True)
class _Copies:
    """What the target holds of this backup, and what could not be copied."""

    files: dict[str, CopiedFile] = field(default_factory=dict)
    copied_files: int = 0
    copied_bytes: int = 0
    # Files that were gone when they were to be copied, in this attempt or an earlier one.
    gone: set[str] = field(default_factory=set)


class _Backup:
    """One call of `back_up`."""

    def __init__(
        self, store: Store, place: Place, clock: Clock, on_progress: OnProgress
    ) -> None:
        self._store, self._place, self._clock = store, place, clock
        self._on_progress = on_progress
        self._token = uuid.uuid4().hex
        self._copies = _Copies()

    def run(self) -> BackupResult:
        """See `back_up`."""
        begun = self._now()
        before = self._begin()
        pins = pinned(self._store.tables)
        if before is not None:
            _check_follows(before, pins, self._place.location)
            self._copies.files.update(before.files())
        missing = self._copied(pins)
        manifest = Manifest(
            __version__, self._store.location, begun, self._now(), self._tables(missing),
            tuple(sorted(missing)), self._faults(),
        )  # fmt: skip
        self._finish(manifest)
        return self._result(manifest)

    def _now(self) -> str:
        return timestamp(self._clock.now_ms()).isoformat()

    # --- the target ---------------------------------------------------------------------------

    def _begin(self) -> Manifest | None:
        """Take the place; the manifest of the backup that is there. Raises: BackupError."""
        place, ours = self._place, self._store.tables.op_log().table_id
        content, begun = place.content(MANIFEST), place.content(BEGUN)
        before = None if content is None else Manifest.parse(content, place.location)
        if before is None and begun is None and not place.is_empty():
            raise BackupError(place.location, f"holds something that is no backup; {_ANOTHER_FOLDER}")
        if begun is not None and _said(begun).get("op_table_id") != ours:
            problem = f"holds an unfinished backup of another store; {_ANOTHER_FOLDER}"
            raise BackupError(place.location, problem)
        if before is not None and before.tables["op"].table_id != ours:
            problem = f"holds a backup of another store ({before.source}); {_ANOTHER_FOLDER}"
            raise BackupError(place.location, problem)
        place.make()
        place.put(BEGUN, json.dumps({"op_table_id": ours, "by": self._token}).encode())
        return before

    def _finish(self, manifest: Manifest) -> None:
        """Put the manifest, if all is there and nobody else has begun; then remove what is old."""
        place = self._place
        sizes = place.sizes()
        named = {f"{STORE_FOLDER}/{path}": file for path, file in manifest.files()}
        if any(sizes.get(path) != file.size_bytes for path, file in named.items()) or (
            _said(place.content(BEGUN) or b"{}").get("by") != self._token
        ):
            problem = "another backup to this place began meanwhile; this one is not finished"
            raise BackupError(place.location, f"{problem}. Run one at a time")
        place.put(MANIFEST, manifest.to_json())
        old = [path for path in sizes if path.startswith(STORE_FOLDER + "/") and path not in named]
        for _ in each(place.delete, old, is_remote=place.objects.is_remote):
            pass
        place.delete(BEGUN)

    # --- copying --------------------------------------------------------------------------------

    def _copied(self, pins: Mapping[str, Pin]) -> set[str]:
        """Copy what the pins need, and pin anew while files go away; the live files that are lost.

        Raises: BackupError.
        """
        for _ in range(ATTEMPTS):
            gone_before = set(self._copies.gone)
            gone = self._copy(pins)
            # A file that was gone before the log that names it was read is not there at all.
            if gone <= gone_before:
                self._pins = pins
                return {path for path in gone if _is_live(pins, path)}
            logger.info("maintenance removed %d files meanwhile; the newest state is copied", len(gone))
            pins = pinned(self._store.tables)
        problem = f"files were removed faster than they were copied, {ATTEMPTS} times"
        step = "make log_reserved_time_s longer (docs/backup.md), then run it again"
        raise BackupError(self._store.location, f"{problem}; {step}")

    def _copy(self, pins: Mapping[str, Pin]) -> set[str]:
        """Copy what is not there yet; what is gone."""
        tasks = [
            (path, name, size_bytes) for path, pin in pins.items()
            for name, size_bytes in _files(pin).items()
        ]  # fmt: skip
        counter = Counter(len(tasks), sum(task[2] for task in tasks), self._on_progress)
        there = self._place.sizes()
        gone = set()

        def copy(task: tuple[str, str, int]) -> CopiedFile | None:
            file = self._copied_file(pins, task, there)
            counter.add(task[2])
            return file

        is_remote = self._store.is_remote or self._place.objects.is_remote
        for (path, name, _), file in each(copy, tasks, is_remote=is_remote):
            whole = f"{path}/{name}"
            if file is None:
                gone.add(whole)
            else:
                self._copies.files[whole] = file
        self._copies.gone |= gone
        return gone

    def _copied_file(
        self, pins: Mapping[str, Pin], task: tuple[str, str, int], there: Mapping[str, int]
    ) -> CopiedFile | None:
        path, name, size_bytes = task
        whole = f"{path}/{name}"
        target = f"{STORE_FOLDER}/{whole}"
        known, kept_bytes = self._copies.files.get(whole), there.get(target)
        if known is not None and kept_bytes == known.size_bytes:
            return known
        with translated(whole):
            if kept_bytes == size_bytes and not name.startswith(LOG_FOLDER):
                # Names of data files are random: it is what a killed backup has copied.
                return read_again(self._place.objects, target)
            source = pins[path].table.objects
            try:
                file = copied((source, name), (self._place.objects, target), size_bytes)
            except FileNotFoundError:
                return None
        self._copies.copied_files += 1
        self._copies.copied_bytes += file.size_bytes
        return file

    # --- the manifest ---------------------------------------------------------------------------

    def _tables(self, missing: set[str]) -> dict[str, CopiedTable]:
        return {path: self._table(path, pin) for path, pin in self._pins.items()}

    def _table(self, path: str, pin: Pin) -> CopiedTable:
        files = {
            name: self._copies.files[f"{path}/{name}"]
            for name in _files(pin)
            if f"{path}/{name}" not in self._copies.gone
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
            self._copies.copied_files,
            self._copies.copied_bytes,
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


def _said(content: bytes) -> dict[str, str]:
    """What the file at the begin says; nothing where it cannot be read."""
    try:
        value = json.loads(content)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _check_follows(before: Manifest, pins: Mapping[str, Pin], location: str) -> None:
    """Raise BackupError where the store did not grow out of what the backup holds."""
    for path, table in before.tables.items():
        pin = pins.get(path)
        if pin is None:
            continue
        step = "choose an empty folder; this backup stays as it is"
        if pin.log.snapshot.definition.table_id != table.table_id:
            raise BackupError(location, f"holds another table {path}: it was made anew; {step}")
        if pin.log.version < table.version:
            problem = f"holds {path} up to version {table.version}, the store has {pin.log.version}"
            raise BackupError(location, f"{problem}: the store was restored; {step}")
        copy = table.files.get(commit_path(table.version))
        if copy is None or commit_path(table.version) not in pin.log.log_bytes:
            # Log clean-up has passed it; then no commit of the two has the same name.
            continue
        try:
            now = read_again(pin.table.objects, commit_path(table.version))
        except FileNotFoundError:
            continue
        if now != copy:
            problem = f"holds another commit {table.version} of {path}: the store was restored"
            raise BackupError(location, f"{problem}; {step}")
