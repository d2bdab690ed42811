"""The place of a backup: its files, and which of its manifests is valid.

Each manifest has a number, and the highest one counts. A number is claimed by one call alone,
before its manifest is put. So a call that slept meanwhile puts none in the place of a newer one,
and on no kind of storage needs a put that replaces.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from txmq.delta.credentials import storage_options_of
from txmq.delta.failures import read_errors, translated
from txmq.delta.folder import Objects, inside, is_remote
from txmq.errors import BackupError
from txmq.ops.backup.manifest import MANIFEST, CopiedFile, Manifest
from txmq.store.tables import plain_location

STORE_FOLDER = "store"
# Says which store is being copied to here, and by which call.
BEGUN = "txmq-backup.begun.json"
_LOG_OF_A_STORE = "op/_delta_log/"
# The first one has no number in its name.
_MANIFEST = re.compile(r"txmq-backup(?:\.([1-9]\d{0,17}))?\.json", re.ASCII)
_CLAIM = re.compile(r"txmq-backup\.(0|[1-9]\d{0,17})\.claimed", re.ASCII)
NOTHING = -1
# How often the newest one is replaced while it is being read.
_LOOKS = 10


class Place:
    """A folder on a disk or an object store, made where it is not there. Errors name it."""

    def __init__(
        self, location: str | os.PathLike[str], storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Write nothing yet. Raises: ConfigError for what is no path and no URI."""
        self.location = plain_location(location)
        self.options = storage_options_of(self.location, storage_options)
        self.objects = Objects(self.location, self.options)

    @property
    def is_there(self) -> bool:
        """Whether the folder can be listed; one in an object store always can."""
        return is_remote(self.location) or Path(self.location).is_dir()

    def is_empty(self) -> bool:
        """Tell whether it holds no file. Raises: StorageError."""
        with read_errors(self.location):
            return not self.is_there or self.objects.is_empty()

    def make(self) -> None:
        """Make the folder. Raises: StorageError."""
        if not is_remote(self.location):
            with translated(self.location):
                Path(self.location).mkdir(parents=True, exist_ok=True)

    def sizes(self) -> dict[str, int]:
        """List all files with their sizes. Raises: StorageError."""
        with read_errors(self.location):
            return self.objects.sizes() if self.is_there else {}

    def names(self) -> list[str]:
        """List the names of the files beside `store/`. Raises: StorageError."""
        with read_errors(self.location):
            return self.objects.root_names() if self.is_there else []

    def content(self, path: str) -> bytes | None:
        """Read a small file; None if it is not there. Raises: StorageError."""
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
        """Write a small file unless it is there, in one step; tell whether it did.

        On a disk it needs no hard links, which many that are good for backups have not; who dies
        in the middle leaves a part of the file. Raises: StorageError.
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


def copy_file(
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


def hash_file(objects: Objects, path: str) -> CopiedFile:
    """Read a file for its size and checksum. Raises: as `copy_file`."""
    digest, count = hashlib.sha256(), 0
    for piece in objects.pieces(path):
        digest.update(piece)
        count += len(piece)
    return CopiedFile(count, digest.hexdigest())


def looks_like_a_store(place: Place) -> bool:
    """Tell whether somebody copied a store to here by hand. Raises: StorageError."""
    return any(path.startswith(_LOG_OF_A_STORE) for path in place.sizes())


def note_in(content: bytes | None) -> Mapping[str, Any]:
    """Parse the note that a call leaves when it begins; an empty one if it cannot be read."""
    try:
        value = json.loads(content or b"{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


# --- manifests ------------------------------------------------------------------------------------


class Newest(NamedTuple):
    """The valid manifest of a place, and the number that the next one gets."""

    number: int
    content: bytes | None
    next_number: int


def newest_of(place: Place) -> Newest:
    """Find the valid manifest; no content if there is none. Raises: BackupError, StorageError."""
    for _ in range(_LOOKS):
        manifests, claims = _numbers(place)
        number, claimed = max(manifests, default=NOTHING), max(claims, default=NOTHING)
        content = None if number == NOTHING else place.content(manifest_name(number))
        if content is not None or number == NOTHING:
            return Newest(number, content, max(number, claimed) + 1)
    problem = "gets newer backups all the time"
    raise BackupError(place.location, f"{problem}; try again when none is made to it")


def manifest_of(place: Place) -> Manifest:
    """Read the manifest of a finished backup.

    Raises: BackupError if there is none, with what there is instead; StorageError.
    """
    content = newest_of(place).content
    if content is not None:
        return Manifest.parse(content, place.location)
    if place.is_empty():
        raise BackupError(place.location, "holds nothing; name the folder of a backup")
    if place.content(BEGUN) is not None:
        problem = f"is a backup that was not finished: it has no {MANIFEST}"
        raise BackupError(place.location, f"{problem}; run txmq backup to it again")
    raise BackupError(place.location, f"is no backup: it has no {MANIFEST}; make one: txmq backup")


def put_newest(place: Place, number: int, token: str, content: bytes) -> bool:
    """Put a manifest unless another call has its number or a higher one; tell if it is valid.

    Raises: StorageError; then it may be valid.
    """
    claim = _claim_name(number)
    if not place.put_new(claim, token.encode()) and place.content(claim) != token.encode():
        return False
    place.put(manifest_name(number), content)
    if max(_numbers(place)[0]) == number:
        return True
    place.delete(manifest_name(number))
    return False


def delete_older(place: Place, number: int) -> None:
    """Delete all manifests before this number, and their claims. Raises: StorageError."""
    manifests, claims = _numbers(place)
    older = [manifest_name(other) for other in manifests if other < number]
    # The claim of the valid one stays: else a call that sleeps would put its own under that name.
    for path in older + [_claim_name(other) for other in claims if other < number]:
        place.delete(path)


def is_of_backup(name: str) -> bool:
    """Tell whether a file of this name makes its folder that of a backup."""
    return name == BEGUN or _MANIFEST.fullmatch(name) is not None


def manifest_name(number: int) -> str:
    """Return the name of the manifest with this number."""
    return MANIFEST if number == 0 else f"txmq-backup.{number}.json"


def _claim_name(number: int) -> str:
    return f"txmq-backup.{number}.claimed"


def _numbers(place: Place) -> tuple[list[int], list[int]]:
    """List the numbers of manifests, and those of claims."""
    names = place.names()
    manifests = [int(match[1] or 0) for name in names if (match := _MANIFEST.fullmatch(name))]
    return manifests, [int(match[1]) for name in names if (match := _CLAIM.fullmatch(name))]
