"""The file system of one folder: a path in a table's log cannot lead out of the table.

Logs are written by others. Without this, a commit could make a service publish, or delete, any file
that its process may read or delete.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyarrow.fs as pa_fs
from deltalake.fs import DeltaStorageHandler

from txmq.errors import StoreFormatError, shown

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
    if "://" not in location:
        return _LocalFolder(location, pa_fs.LocalFileSystem())
    return _ObjectFolder(DeltaStorageHandler(location, dict(options) or None))


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


def _checked(paths: Any) -> Any:
    if isinstance(paths, str):
        return inside(paths)
    return paths if isinstance(paths, pa_fs.FileSelector) else [inside(path) for path in paths]
