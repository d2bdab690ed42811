"""Makes a store of a backup: checks it, copies it, and opens it to others at the very end.

A location is a store as soon as its settings are there. They are copied last, so a restore that was
killed left no store, and is finished by the next call.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from txmq.delta.failures import translated
from txmq.delta.folder import UNFINISHED
from txmq.errors import BackupError, StorageError
from txmq.ground.results import Plain
from txmq.ops.backup.backup import Counter, OnProgress, each, unseen
from txmq.ops.backup.manifest import CopiedFile, Manifest
from txmq.ops.backup.order import OrderFault, order_faults
from txmq.ops.backup.place import (
    STORE_FOLDER,
    Place,
    copy_file,
    hash_file,
    looks_like_a_store,
    manifest_of,
    note_in,
)
from txmq.ops.backup.positions import sight_of
from txmq.store.config import Config
from txmq.store.store import RESTORE_BEGUN
from txmq.store.tables import StoreTables

_SETTINGS = "state/config/"
SHOWN_FILES = 3


@dataclass(frozen=True, slots=True)
class RestoreResult(Plain):
    """A restored store.

    Attributes:
        location: where the store is.
        source: where it was when it was backed up.
        begun: when that backup began, in ISO 8601: what was sent later is not there.
        tables, files, size_bytes: what was copied.
        missing, faults: what the store lacked, or had in a wrong order, when it was backed up.
    """

    location: str
    source: str
    begun: str
    tables: int
    files: int
    size_bytes: int
    missing: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def restore(
    backup: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, str] | None = None,
    target_options: Mapping[str, str] | None = None,
    on_progress: OnProgress | None = None,
) -> RestoreResult:
    """Make a store of a backup; services may start on it when this returns.

    What was sent after the backup began may be missing. Consumer groups go on where they were
    then, so they may see again what they saw later.

    Reads: the backup, each file with its checksum. Writes: `target`, the settings last.
    Retry: call it again; what a killed call copied is compared and kept. One call at a time may
    write to a place.

    Args:
        backup: where `back_up` wrote it.
        target: an empty folder: a path or a URI.
        storage_options: how delta-rs reaches the backup.
        target_options: how delta-rs reaches the target.
        on_progress: is told after each file, by the thread that copied it.

    Raises:
        BackupError: it is no finished backup, or a file of it is missing or was changed; the
            target holds something. A copy that was made by hand is refused, and if its tables are
            not in the right order the error says which are newer than which.
        StorageError: the backup cannot be read, or the target not be written.

    Example:
        >>> restore("/backups/txmq", "/data/txmq").tables
        9
    """
    source, place = Place(backup, storage_options), Place(target, target_options)
    place.check_apart(source.location)
    return _Restore(source, place, on_progress or unseen).run()


class _Restore:
    """One call of `restore`."""

    def __init__(self, source: Place, place: Place, on_progress: OnProgress) -> None:
        self._source, self._place, self._on_progress = source, place, on_progress
        self._token = uuid.uuid4().hex

    def run(self) -> RestoreResult:
        """See `restore`."""
        manifest = self._checked()
        files = dict(manifest.files())
        self._begin(manifest)
        if not self._is_open():
            self._copy_all(manifest, files)
        self._remove_unfinished()
        self._place.delete(RESTORE_BEGUN)
        return RestoreResult(
            self._place.location, manifest.source, manifest.begun, len(manifest.tables), len(files),
            manifest.size_bytes, manifest.missing, manifest.faults,
        )  # fmt: skip

    def _copy_all(self, manifest: Manifest, files: Mapping[str, CopiedFile]) -> None:
        """Copy the settings last; without them there is no store."""
        counter = Counter(len(files), manifest.size_bytes, self._on_progress)
        first = {path: file for path, file in files.items() if not path.startswith(_SETTINGS)}
        self._copy(first, counter)
        self._check_order(manifest)
        self._check_alone()
        self._copy({path: files[path] for path in files if path not in first}, counter)

    def _remove_unfinished(self) -> None:
        """Remove what a call that was killed has copied in part: it may hold bodies."""
        for path in () if self._place.objects.is_remote else self._place.sizes():
            if path.endswith(UNFINISHED):
                self._place.delete(path)

    # --- checks -----------------------------------------------------------------------------------

    def _checked(self) -> Manifest:
        """Read the manifest of a backup whose files are all there. Raises: BackupError."""
        try:
            manifest = manifest_of(self._source)
        except BackupError as error:
            if looks_like_a_store(self._source):
                raise _made_by_hand(self._source) from error
            raise
        sizes = self._source.sizes()
        bad = [
            f"{path} ({'is missing' if there is None else f'has {there:,} bytes, not {size:,}'})"
            for path, (size, _) in manifest.files()
            if (there := sizes.get(f"{STORE_FOLDER}/{path}")) != size
        ]
        if bad:
            problem = (
                f"{len(bad):,} files are missing or changed, first {', '.join(bad[:SHOWN_FILES])}"
            )
            raise BackupError(
                self._source.location, f"{problem}; nothing was written, take another backup"
            )
        return manifest

    def _begin(self, manifest: Manifest) -> None:
        """Take the target. Raises: BackupError where it holds something."""
        place = self._place
        backup = [manifest.source, manifest.begun, manifest.tables["op"].table_id]
        if not place.is_empty():
            content = place.content(RESTORE_BEGUN)
            if content is None:
                problem = "holds something; choose an empty folder, or remove what is there"
                raise BackupError(place.location, f"{problem}. Nothing was written")
            if note_in(content).get("backup") != backup:
                problem = "holds an unfinished restore of another backup; remove it, then try again"
                raise BackupError(place.location, problem)
        place.make()
        place.put(RESTORE_BEGUN, json.dumps({"backup": backup, "by": self._token}).encode())

    def _is_open(self) -> bool:
        """Tell whether a call that was killed had copied all: then services may run on it."""
        settings = _tables_of(self._place).register("config")
        try:
            return settings.exists and settings.read().revision > 0
        except StorageError:
            return False

    def _check_alone(self) -> None:
        """Raise BackupError where another call took the target meanwhile."""
        if note_in(self._place.content(RESTORE_BEGUN)).get("by") != self._token:
            problem = "another restore to this place began meanwhile, and finishes it"
            raise BackupError(self._place.location, f"{problem}. Run one at a time")

    def _check_order(self, manifest: Manifest) -> None:
        """Raise BackupError where the copy has another order than the backup says."""
        faults = _faults_of(self._place)
        new = [str(fault) for fault in faults if str(fault) not in manifest.faults]
        if new:
            step = "take another backup"
            raise BackupError(self._source.location, f"{'; '.join(new)}. {step}")

    # --- copying --------------------------------------------------------------------------------

    def _copy(self, files: Mapping[str, CopiedFile], counter: Counter) -> None:
        there = self._place.sizes()

        def copy(path: str) -> None:
            self._copy_file(path, files[path], there.get(path))
            counter.add(files[path].size_bytes)

        is_remote = self._source.objects.is_remote or self._place.objects.is_remote
        for _ in each(copy, list(files), is_remote=is_remote):
            pass

    def _copy_file(self, path: str, file: CopiedFile, there_bytes: int | None) -> None:
        def check(read: CopiedFile) -> None:
            if read != file:
                problem = f"{path} was changed since it was backed up (another checksum)"
                step = "restore from another backup; the target is no store, remove it"
                raise BackupError(self._source.location, f"{problem}; {step}")

        with translated(path):
            if there_bytes == file.size_bytes and hash_file(self._place.objects, path) == file:
                return
            source = (self._source.objects, f"{STORE_FOLDER}/{path}")
            copy_file(source, (self._place.objects, path), file.size_bytes, check)


def _faults_of(place: Place) -> list[OrderFault]:
    return order_faults(sight_of(_tables_of(place)))


def _tables_of(place: Place) -> StoreTables:
    return StoreTables(place.location, Config(), place.options)


def _made_by_hand(source: Place) -> BackupError:
    """Make the error for a copy of a store that txmq did not make."""
    faults = [fault for fault in _faults_of(source) if not fault.may_be_alone]
    if faults:
        problems = "; ".join(str(fault) for fault in faults)
        problem = f"is a copy of a store whose tables are not in the right order: {problems}"
        return BackupError(source.location, f"{problem}. Way out: {faults[0].next_step}")
    problem = "is a store, or a copy of one that was made by hand, and no backup"
    step = "back it up with txmq backup; if nobody runs on it, look at it with txmq doctor"
    return BackupError(source.location, f"{problem}; {step}")
