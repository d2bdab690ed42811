"""The objects of one table on a disk or an object store: put, put if absent, delete."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import LocalStore

from txmq.delta.forks import begin_use
from txmq.delta.object_store import is_remote, opened
from txmq.delta.rooted import inside

if TYPE_CHECKING:
    from obstore.store import ObjectStore


# What is larger is read and written in pieces of this size, a few at a time.
PIECE_BYTES = 8 * 1024 * 1024
PIECES_AT_ONCE = 2
# How files end that are not whole yet.
UNFINISHED = ".unfinished"


class Objects:
    """Writes objects by their paths relative to one table. Safe for several threads."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        """Open nothing yet; `options` are those of delta-rs."""
        self.location = location
        self._options = options

    @property
    def is_remote(self) -> bool:
        """Whether each look costs a request."""
        return is_remote(self.location)

    def put(self, path: str, content: bytes) -> None:
        """Write an object; readers see all of it, or what was there before."""
        obstore.put(self._opened(), inside(path), content, use_multipart=False)

    def put_new(self, path: str, content: bytes) -> bool:
        """Write an object unless there is one of this name, in one step; whether it was written."""
        store = self._opened()
        try:
            obstore.put(store, inside(path), content, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    def delete(self, path: str) -> None:
        """Delete an object, if it is there."""
        with suppress(FileNotFoundError):
            obstore.delete(self._opened(), inside(path))

    def names(self, folder: str) -> list[str]:
        """The names of the objects in a folder, listed once."""
        objects = obstore.list(self._opened(), prefix=inside(folder)).collect()
        return [str(meta["path"]).rpartition("/")[2] for meta in objects]

    def root_names(self) -> list[str]:
        """The names of the objects that lie in no folder, listed once."""
        found = obstore.list_with_delimiter(self._opened())
        return [str(meta["path"]) for meta in found["objects"]]

    def sizes(self) -> dict[str, int]:
        """All objects, of all folders, each with its size."""
        return {str(meta["path"]): int(meta["size"]) for meta in self._all()}

    def is_empty(self) -> bool:
        """Whether there is no object at all."""
        return next(self._all(), None) is None

    def _all(self) -> Iterator[Mapping[str, Any]]:
        for metas in obstore.list(self._opened()):
            yield from metas

    def pieces(self, path: str) -> Iterator[bytes]:
        """The content of an object, piece by piece. Raises: FileNotFoundError; STORAGE_ERRORS."""
        for piece in obstore.get(self._opened(), inside(path)).stream(min_chunk_size=PIECE_BYTES):
            yield bytes(piece)

    def put_pieces(self, path: str, pieces: Iterable[bytes], size_bytes: int) -> None:
        """As `put`, of about so many bytes; nothing is written where `pieces` raises.

        Who is killed in the middle leaves on a disk a file that ends in UNFINISHED.
        """
        if not self.is_remote:
            self._put_on_disk(Path(self.location, inside(path)), pieces)
            return
        if size_bytes <= PIECE_BYTES:
            self.put(path, b"".join(pieces))
            return
        # Not by `obstore.put`: it asks for the pieces where none can be fetched by obstore.
        writer = obstore.open_writer(
            self._opened(), inside(path), buffer_size=PIECE_BYTES, max_concurrency=PIECES_AT_ONCE
        )
        for piece in pieces:
            writer.write(piece)
        # Without this there is no object.
        writer.close()

    def _put_on_disk(self, path: Path, pieces: Iterable[bytes]) -> None:
        """Not by obstore: what it leaves where it is killed is in no listing of its own."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f"{path.name}.{uuid.uuid4().hex}{UNFINISHED}")
        try:
            with part.open("xb") as file:
                file.writelines(pieces)
            part.replace(path)
        except BaseException as error:
            part.unlink(missing_ok=True)
            if isinstance(error, FileNotFoundError) and error.filename == str(part):
                # Callers take a file that is not found for a source that is gone.
                raise OSError(f"{part.name} was removed while it was written") from error
            raise

    def _opened(self) -> ObjectStore:
        # As delta-rs, obstore starts threads at its first use, which a fork does not copy.
        begin_use()
        return self._store

    @cached_property
    def _store(self) -> ObjectStore:
        return (
            LocalStore(self.location)
            if not self.is_remote
            else opened(self.location, self._options)
        )
