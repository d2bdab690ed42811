"""The folder of a backup: its manifest, and below `store/` the files by their paths in the store.

The files lie in a folder of their own, so that no service takes a backup for a store.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from txmq.backup.manifest import CopiedFile
from txmq.delta.failures import read_errors, translated
from txmq.delta.object_store import is_remote
from txmq.delta.objects import Objects
from txmq.delta.rooted import inside
from txmq.errors import BackupError
from txmq.store.location import plain_location

STORE_FOLDER = "store"
# Says which store is being copied to here, and by which call.
BEGUN = "txmq-backup.begun.json"
_LOG_OF_A_STORE = "op/_delta_log/"


class Place:
    """A folder on a disk or an object store, made where it is not there. Errors name it."""

    def __init__(
        self, location: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Write nothing yet. Raises: ConfigError for what is no path and no URI."""
        self.location = plain_location(location)
        self.options = dict(storage_options or {})
        self.objects = Objects(self.location, self.options)

    @property
    def is_there(self) -> bool:
        """Whether the folder can be listed; one in an object store always can."""
        return is_remote(self.location) or Path(self.location).is_dir()

    def is_empty(self) -> bool:
        """Whether it holds no file. Raises: StorageError."""
        with read_errors(self.location):
            return not self.is_there or self.objects.is_empty()

    def make(self) -> None:
        """Make the folder. Raises: StorageError."""
        if not is_remote(self.location):
            with translated(self.location):
                Path(self.location).mkdir(parents=True, exist_ok=True)

    def sizes(self) -> dict[str, int]:
        """All files with their sizes. Raises: StorageError."""
        with read_errors(self.location):
            return self.objects.sizes() if self.is_there else {}

    def names(self) -> list[str]:
        """The names of the files beside `store/`. Raises: StorageError."""
        with read_errors(self.location):
            return self.objects.root_names() if self.is_there else []

    def content(self, path: str) -> bytes | None:
        """A small file; None where it is not there. Raises: StorageError."""
        with read_errors(self.location):
            try:
                return b"".join(self.objects.pieces(path)) if self.is_there else None
            except FileNotFoundError:
                return None

    def put(self, path: str, content: bytes) -> None:
        """Write a small file. Raises: StorageError."""
        with translated(self.location):
            self.objects.put(path, content)

    def put_new(self, path: str, content: bytes) -> bool:
        """Write a small file unless it is there, in one step; whether it was. Raises: StorageError.

        On a disk it needs no hard links, which many that are good for backups have not; who dies
        in the middle leaves a part of the file.
        """
        with translated(self.location):
            if self.objects.is_remote:
                return self.objects.put_new(path, content)
            try:
                with Path(self.location, inside(path)).open("xb") as file:
                    file.write(content)
            except FileExistsError:
                return False
            return True

    def delete(self, path: str) -> None:
        """Delete a file, if it is there. Raises: StorageError."""
        with translated(self.location):
            self.objects.delete(path)

    def check_apart(self, other: str) -> None:
        """Raise BackupError where one of the two locations lies in the other."""
        own, others = f"{self.location}/", f"{other}/"
        if own.startswith(others) or others.startswith(own):
            problem = f"lies in {other}, or the other way round; choose a folder apart"
            raise BackupError(self.location, problem)


def copied(
    source: tuple[Objects, str],
    target: tuple[Objects, str],
    size_bytes: int,
    check: Callable[[CopiedFile], None] = lambda _: None,
) -> CopiedFile:
    """Copy a file by its bytes; memory holds some pieces of it.

    Nothing is there under the new name where `check` raises, which gets what was read.

    Raises: FileNotFoundError where the source is gone; STORAGE_ERRORS; what `check` raises.
    """
    digest, count = hashlib.sha256(), 0

    def read() -> Iterator[bytes]:
        nonlocal count
        objects, path = source
        for piece in objects.pieces(path):
            digest.update(piece)
            count += len(piece)
            yield piece
        check(CopiedFile(count, digest.hexdigest()))

    target[0].put_pieces(target[1], read(), size_bytes)
    return CopiedFile(count, digest.hexdigest())


def hashed(objects: Objects, path: str) -> CopiedFile:
    """What a file holds now. Raises: as `copied`."""
    digest, count = hashlib.sha256(), 0
    for piece in objects.pieces(path):
        digest.update(piece)
        count += len(piece)
    return CopiedFile(count, digest.hexdigest())


def looks_like_a_store(place: Place) -> bool:
    """Whether somebody copied a store to here by hand. Raises: StorageError."""
    return any(path.startswith(_LOG_OF_A_STORE) for path in place.sizes())


def said(content: bytes | None) -> Mapping[str, Any]:
    """What the file at the begin of a copy says; nothing where it cannot be read."""
    try:
        value = json.loads(content or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
