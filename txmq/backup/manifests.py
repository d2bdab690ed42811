"""Which manifest of a place is valid: each has a number, the highest one counts.

A number is claimed by one call alone, before its manifest is put. So a call that slept meanwhile
puts none in the place of a newer one, and on no kind of storage needs a put that replaces.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from txmq.backup.manifest import MANIFEST, Manifest
from txmq.backup.place import BEGUN, Place
from txmq.errors import BackupError

# The first one has no number in its name.
_MANIFEST = re.compile(r"txmq-backup(?:\.([1-9]\d{0,17}))?\.json", re.ASCII)
_CLAIM = re.compile(r"txmq-backup\.(0|[1-9]\d{0,17})\.claimed", re.ASCII)
NOTHING = -1
# How often the newest one is replaced while it is being read.
_LOOKS = 10


class Newest(NamedTuple):
    """The valid manifest of a place, and the number that the next one gets."""

    number: int
    content: bytes | None
    next_number: int


def newest_of(place: Place) -> Newest:
    """The valid manifest; no content where there is none. Raises: BackupError, StorageError."""
    for _ in range(_LOOKS):
        manifests, claims = _numbers(place)
        number, claimed = max(manifests, default=NOTHING), max(claims, default=NOTHING)
        content = None if number == NOTHING else place.content(manifest_name(number))
        if content is not None or number == NOTHING:
            return Newest(number, content, max(number, claimed) + 1)
    problem = "gets newer backups all the time"
    raise BackupError(place.location, f"{problem}; try again when none is made to it")


def manifest_of(place: Place) -> Manifest:
    """The manifest of a finished backup.

    Raises: BackupError where there is none, with what there is instead; StorageError.
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
    """Put a manifest, unless another call has its number or a higher one; whether it is valid now.

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
    older = [manifest_name(one) for one in manifests if one < number]
    # The claim of the valid one stays: else a call that sleeps would put its own under that name.
    for path in older + [_claim_name(one) for one in claims if one < number]:
        place.delete(path)


def is_of_backup(name: str) -> bool:
    """Whether a file of this name says that its folder is that of a backup."""
    return name == BEGUN or _MANIFEST.fullmatch(name) is not None


def manifest_name(number: int) -> str:
    """The name of the manifest with a number."""
    return MANIFEST if number == 0 else f"txmq-backup.{number}.json"


def _claim_name(number: int) -> str:
    return f"txmq-backup.{number}.claimed"


def _numbers(place: Place) -> tuple[list[int], list[int]]:
    """Of manifests, and of claims."""
    names = place.names()
    manifests = [int(found[1] or 0) for name in names if (found := _MANIFEST.fullmatch(name))]
    return manifests, [int(found[1]) for name in names if (found := _CLAIM.fullmatch(name))]
