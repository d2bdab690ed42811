"""The files of one Delta table: its log folder and what lies beside it, read by their names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import pyarrow as pa
import pyarrow.fs as pa_fs

from txmq.delta.actions import COMMIT_NAME, DAMAGES, LOG_FOLDER, commit_actions, commit_path
from txmq.delta.failures import STORAGE_ERRORS, read_errors, translated
from txmq.delta.objects import Objects
from txmq.delta.rooted import REQUESTS_AT_ONCE, rooted_filesystem

NOT_FOUND = pa_fs.FileType.NotFound
SECOND_MS = 1000
# A file of about so many bytes is the commit of a few callers.
STREAMED_MAX_BYTES = 64 * 1024

Value = TypeVar("Value")
# A larger file is read alone.
FETCHED_MAX_BYTES = 1024 * 1024

# Small files that were fetched together, by their paths.
Contents = Mapping[str, pa.Buffer]
NOTHING: Contents = MappingProxyType({})


class TableFolder:
    """The folder of a Delta table. Not safe for several threads."""

    def __init__(
        self, name: str, location: str, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Open nothing yet; the first use does. Error texts use `name`."""
        self.name = name
        self.location = location
        self._options = dict(storage_options or {})
        self._filesystem: pa_fs.FileSystem | None = None
        self._objects: Objects | None = None

    def commit_infos(self, *versions: int) -> list[pa_fs.FileInfo]:
        """What the storage says of the commit files of these versions."""
        with read_errors(self.name):
            return self._commit_files(*versions)

    def _commit_files(self, *versions: int) -> list[pa_fs.FileInfo]:
        paths = [commit_path(version) for version in versions]
        return list(self.filesystem.get_file_info(paths))

    def has_commit(self, version: int) -> bool:
        """Whether the commit file of a version exists; one lookup of a file name."""
        (info,) = self.commit_infos(version)
        return info.type is not NOT_FOUND

    @property
    def options(self) -> Mapping[str, str]:
        """The storage options."""
        return self._options

    @property
    def objects(self) -> Objects:
        """Writes objects of the table."""
        if self._objects is None:
            self._objects = Objects(self.location, self._options)
        return self._objects

    @property
    def filesystem(self) -> pa_fs.FileSystem:
        """A file system rooted at the table."""
        if self._filesystem is None:
            self._filesystem = rooted_filesystem(self.location, self._options)
        return self._filesystem

    def commit_bytes(self, version: int) -> bytes | None:
        """The commit file of one version; None where it is missing, as after log clean-up."""
        return self.file_bytes(commit_path(version))

    def commit_among(self, contents: Contents, version: int) -> bytes | None:
        """As `commit_bytes`, where it may have been `fetched` already."""
        content = contents.get(commit_path(version))
        return self.commit_bytes(version) if content is None else content.to_pybytes()

    def file_bytes(self, path: str) -> bytes | None:
        """A whole file of the table; None where it is missing."""
        with read_errors(self.name):
            try:
                with self.filesystem.open_input_file(path) as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    def fetched(self, paths: Sequence[str]) -> Contents:
        """Small files of an object store, by requests at the same time; nothing of a disk.

        What cannot be fetched is left out: whoever reads the file meets the error.
        """
        if len(paths) <= 1 or not self.objects.is_remote:
            return NOTHING
        filesystem = self.filesystem
        try:
            with ThreadPoolExecutor(min(len(paths), REQUESTS_AT_ONCE)) as pool:
                contents = list(pool.map(lambda path: _content(filesystem, path), paths))
        except RuntimeError:
            # No thread can be started any more, as at the end of the process.
            return NOTHING
        pairs = zip(paths, contents, strict=True)
        return {path: content for path, content in pairs if content is not None}

    def write_unnamed(self, path: str, content: pa.Buffer) -> None:
        """Write a file that no commit names yet, so that nobody reads a part of it."""
        if self.objects.is_remote or content.size > STREAMED_MAX_BYTES:
            self.objects.put(path, content.to_pybytes())
            return
        # A put takes twice the time, to show no parts. But it waits for the interpreter's lock
        # once, and this three times, which counts where many threads wait for a commit.
        with self.filesystem.open_output_stream(path, compression=None) as file:
            file.write(content)

    def commit_problem(self, version: int) -> str | None:
        """Why the commit file of a version cannot be used; None where it can."""
        content = self.commit_bytes(version)
        if content is None:
            return "is not there"
        try:
            commit_actions(content)
        except DAMAGES:
            return "is damaged" if content.strip() else "is empty"
        return None

    def newest_commit(self) -> int:
        """The version of the newest commit file, whether or not it can be read; -1 without one."""
        with read_errors(self.name):
            names = self.log_names()
        return max((int(name[:20]) for name in names if COMMIT_NAME.fullmatch(name)), default=-1)

    def commit_times_ms(self) -> dict[int, int]:
        """The modification time of each commit file in the log, by version.

        It is the clock of the store; the times in delta-rs's change feed are the writers' clocks.
        An object store may keep whole seconds: then the latest that it may have been.
        """
        return {
            int(info.base_name[:20]): self._latest_ms(int(info.mtime_ns) // 1_000_000)
            for info in self.log_folder()
            if COMMIT_NAME.fullmatch(info.base_name) and info.mtime_ns is not None
        }

    def _latest_ms(self, written_ms: int) -> int:
        is_rounded = self.objects.is_remote and written_ms % SECOND_MS == 0
        return written_ms + SECOND_MS - 1 if is_rounded else written_ms

    def written_ms(self, paths: Sequence[str]) -> dict[str, int]:
        """The modification time of each of these files that is there, by the store's clock."""
        if not paths:
            return {}
        with translated(self.name):
            infos = self.filesystem.get_file_info(list(paths))
        return {
            info.path: int(info.mtime_ns) // 1_000_000
            for info in infos
            if info.mtime_ns is not None
        }

    def log_folder(self) -> list[pa_fs.FileInfo]:
        """List the folder of commits and checkpoints once."""
        selector = pa_fs.FileSelector(LOG_FOLDER, allow_not_found=True)
        with read_errors(self.name):
            return list(self.filesystem.get_file_info(selector))

    def log_names(self) -> list[str]:
        """The names in the folder of commits and checkpoints; none where there is no folder.

        Raises: STORAGE_ERRORS.
        """
        if self.objects.is_remote:
            return self.objects.names(LOG_FOLDER)
        try:
            return [path.name for path in Path(self.location, LOG_FOLDER).iterdir()]
        except FileNotFoundError:
            return []

    def marks_of(self, version: int) -> dict[str, int] | None:
        """The marks of the commit of one version; None where it is missing."""
        commit = self.commit_bytes(version)
        if commit is None:
            return None
        # A commit may name thousands of files, and one that is empty has no marks.
        lines = [line for line in commit.splitlines() if b'"txn"' in line]
        return dict(commit_actions(b"\n".join(lines)).marks) if lines else {}


def in_windows(values: Sequence[Value]) -> Iterator[Sequence[Value]]:
    """The values in their order, as many at once as are fetched together."""
    for start in range(0, len(values), REQUESTS_AT_ONCE):
        yield values[start : start + REQUESTS_AT_ONCE]


def _content(filesystem: pa_fs.FileSystem, path: str) -> pa.Buffer | None:
    try:
        with filesystem.open_input_file(path) as file:
            return file.read_buffer() if file.size() <= FETCHED_MAX_BYTES else None
    except (*STORAGE_ERRORS, pa.ArrowException):
        return None
