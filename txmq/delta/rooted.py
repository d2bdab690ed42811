"""The file system of one folder: a path in a table's log cannot lead out of the table.

Logs are written by others. Without this, a commit could make a service publish, or delete, any file
that its process may read or delete.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

import obstore
import pyarrow as pa
import pyarrow.fs as pa_fs
from deltalake.fs import DeltaStorageHandler
from obstore.exceptions import BaseError

from txmq.delta.forks import begin_use
from txmq.delta.object_store import is_remote, opened
from txmq.errors import StoreFormatError, shown

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# Fewer are asked for one by one.
FEW_PATHS = 4
REQUESTS_AT_ONCE = 16
WHOLE_OBJECT_BYTES = 8 * 1024 * 1024

_LEAVES = re.compile(
    r"""^/                              # an absolute path
      | ^[A-Za-z][A-Za-z0-9+.-]*:/      # a URI
      | (^|[/\\]) \.{1,2} ([/\\]|$)     # this folder, or the one above
      | %(2e|2f|5c)                     # dots and slashes that are decoded once more
      | [\\\x00-\x1f\x7f]""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)


def inside(path: str) -> str:
    """Return a path that is relative to its table and stays in it.

    Raises: StoreFormatError.
    """
    if _LEAVES.search(path):
        problem = "leads out of the folder of its table; it was neither read nor changed"
        raise StoreFormatError(f"path {shown(path)}", problem)
    return path


def rooted_filesystem(location: str, options: Mapping[str, str]) -> pa_fs.FileSystem:
    """A file system whose root is `location`, and that refuses paths out of it."""
    if not is_remote(location):
        return _LocalFolder(location, pa_fs.LocalFileSystem())
    return _ObjectFolder(location, options)


class _Inside:
    """Checks each path before the file system gets it."""

    def get_file_info(self, paths: Any) -> Any:
        return super().get_file_info(_checked(paths))  # type: ignore[misc]

    def open_input_file(self, path: str) -> Any:
        return super().open_input_file(inside(path))  # type: ignore[misc]

    def open_input_stream(self, path: str, *arguments: Any, **options: Any) -> Any:
        return super().open_input_stream(inside(path), *arguments, **options)  # type: ignore[misc]

    def open_output_stream(self, path: str, *arguments: Any, **options: Any) -> Any:
        return super().open_output_stream(inside(path), *arguments, **options)  # type: ignore[misc]

    def delete_file(self, path: str) -> None:
        super().delete_file(inside(path))  # type: ignore[misc]

    def delete_dir(self, path: str) -> None:
        super().delete_dir(inside(path))  # type: ignore[misc]

    def move(self, source: str, target: str) -> None:
        super().move(inside(source), inside(target))  # type: ignore[misc]


class _LocalFolder(_Inside, pa_fs.SubTreeFileSystem):  # type: ignore[misc]
    """A folder of this machine."""


class _ObjectFolder(_Inside, pa_fs.PyFileSystem):  # type: ignore[misc]
    """A folder of an object store."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        super().__init__(DeltaStorageHandler(location, dict(options) or None))
        self._location, self._options = location, options

    def get_file_info(self, paths: Any) -> Any:
        """As pyarrow's; of objects by one request each, where delta-rs lists a folder too."""
        if isinstance(paths, pa_fs.FileSelector):
            return super().get_file_info(paths)
        begin_use()
        if isinstance(paths, str):
            return self._info(inside(paths))
        checked = [inside(path) for path in paths]
        if len(checked) <= FEW_PATHS:
            # In their order: a follower rests on it.
            return [self._info(path) for path in checked]
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as pool:
            return list(pool.map(self._info, checked))

    def open_input_file(self, path: str) -> Any:
        """A file; a small one is fetched whole, by one request where pyarrow makes three."""
        begin_use()
        try:
            answer = obstore.get(self._store, inside(path))
            # A large one is not fetched: its answer is dropped before its body.
            is_small = answer.meta["size"] <= WHOLE_OBJECT_BYTES
            content = pa.py_buffer(answer.bytes()) if is_small else None
        except FileNotFoundError:
            raise
        except BaseError as error:
            # Callers expect what pyarrow raises.
            raise OSError(str(error)) from error
        return super().open_input_file(path) if content is None else pa.BufferReader(content)

    def _info(self, path: str) -> pa_fs.FileInfo:
        try:
            meta = obstore.head(self._store, path)
        except FileNotFoundError:
            return pa_fs.FileInfo(path, pa_fs.FileType.NotFound)
        return pa_fs.FileInfo(
            path, pa_fs.FileType.File, mtime=meta["last_modified"], size=meta["size"]
        )

    @cached_property
    def _store(self) -> ObjectStore:
        return opened(self._location, self._options)


def _checked(paths: Any) -> Any:
    if isinstance(paths, str):
        return inside(paths)
    return paths if isinstance(paths, pa_fs.FileSelector) else [inside(path) for path in paths]
