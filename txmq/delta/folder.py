"""The folder of one Delta table: its log and what lies beside it, read and written by their names.

Paths are relative to the table, and none leads out of its folder. Arrow's file systems read, and
obstore writes: it puts an object only if there is none of this name, which a commit rests on.
"""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import obstore
import pyarrow as pa
import pyarrow.fs as pa_fs
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import LocalStore, from_url

from txmq.delta.actions import COMMIT_NAME, DAMAGES, LOG_FOLDER, commit_actions, commit_path
from txmq.delta.credentials import Renewable, storage_handler, storage_options_of
from txmq.delta.failures import STORAGE_ERRORS, begin_use, read_errors, translated
from txmq.errors import StoreFormatError, shown
from txmq.ground.clock import milliseconds

if TYPE_CHECKING:
    from obstore.store import ObjectStore

NOT_FOUND = pa_fs.FileType.NotFound
SECOND_MS = 1000
REQUESTS_AT_ONCE = 16
# So few paths are looked up one after the other.
FEW_PATHS = 4
# A file of about so many bytes is the commit of a few callers.
STREAMED_MAX_BYTES = 64 * 1024
# A larger file is read alone.
FETCHED_MAX_BYTES = 1024 * 1024
WHOLE_OBJECT_BYTES = 8 * 1024 * 1024
# What is larger is read and written in pieces of this size, a few at a time.
PIECE_BYTES = 8 * 1024 * 1024
PIECES_AT_ONCE = 2
# How files end that are not whole yet.
UNFINISHED = ".unfinished"

Value = TypeVar("Value")
# Small files that were fetched together, by their paths.
Contents = Mapping[str, pa.Buffer]
NOTHING: Contents = MappingProxyType({})

_LEAVES = re.compile(
    r"""^/                              # an absolute path
      | ^[A-Za-z][A-Za-z0-9+.-]*:/      # a URI
      | (^|[/\\]) \.{1,2} ([/\\]|$)     # this folder, or the one above
      | %(2e|2f|5c)                     # dots and slashes that are decoded once more
      | [\\\x00-\x1f\x7f]""",
    re.ASCII | re.IGNORECASE | re.VERBOSE,
)
# obstore asks for the settings of its HTTP client apart from those of the store.
_OF_THE_CLIENT = frozenset(
    {
        "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type",
        "http1_only", "http2_keep_alive_interval", "http2_keep_alive_timeout",
        "http2_keep_alive_while_idle", "http2_only", "pool_idle_timeout", "pool_max_idle_per_host",
        "proxy_ca_certificate", "proxy_excludes", "proxy_url", "timeout", "user_agent",
    }
)  # fmt: skip
# delta-rs has settings of its own among those of the storage.
_OF_DELTA_RS = ("aws_s3_allow_unsafe_rename", "aws_s3_locking_provider", "delta_", "backoff")
_MAX_RETRIES, _RETRY_TIMEOUT = "max_retries", "retry_timeout"
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h)", re.ASCII)
_UNIT_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


# --- the folder of a table ----------------------------------------------------------------------


class TableFolder:
    """The folder of a Delta table. Not safe for several threads."""

    def __init__(
        self, name: str, location: str, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Open nothing yet; the first use does. Error texts use `name`."""
        self.name = name
        self.location = location
        self.options = storage_options_of(location, storage_options)

    @cached_property
    def objects(self) -> Objects:
        """Writes objects of the table."""
        return Objects(self.location, self.options)

    @cached_property
    def filesystem(self) -> pa_fs.FileSystem:
        """A file system rooted at the table."""
        return rooted_filesystem(self.location, self.options)

    # The commit files.

    def commit_infos(self, *versions: int) -> list[pa_fs.FileInfo]:
        """Return what the storage says of the commit files of these versions, in their order.

        Raises: StorageError.
        """
        with read_errors(self.name):
            return self.look_up_commits(*versions)

    def look_up_commits(self, *versions: int) -> list[pa_fs.FileInfo]:
        """As `commit_infos`. Raises: STORAGE_ERRORS."""
        paths = [commit_path(version) for version in versions]
        return list(self.filesystem.get_file_info(paths))

    def has_commit(self, version: int) -> bool:
        """Tell whether the commit file of a version exists; one lookup of a file name."""
        (info,) = self.commit_infos(version)
        return info.type is not NOT_FOUND

    def commit_bytes(self, version: int) -> bytes | None:
        """Read the commit file of one version; None where it is missing, as after log clean-up."""
        return self.file_bytes(commit_path(version))

    def commit_among(self, contents: Contents, version: int) -> bytes | None:
        """Do as `commit_bytes`, for a commit that may have been `fetched` already."""
        content = contents.get(commit_path(version))
        return self.commit_bytes(version) if content is None else content.to_pybytes()

    def commit_problem(self, version: int) -> str | None:
        """Return why the commit file of a version cannot be used, or None."""
        content = self.commit_bytes(version)
        if content is None:
            return "is not there"
        try:
            commit_actions(content)
        except DAMAGES:
            return "is damaged" if content.strip() else "is empty"
        return None

    def marks_of(self, version: int) -> dict[str, int] | None:
        """Read the marks of the commit of one version; None where it is missing."""
        commit = self.commit_bytes(version)
        if commit is None:
            return None
        # A commit may name thousands of files, and one that is empty has no marks.
        lines = [line for line in commit.splitlines() if b'"txn"' in line]
        return dict(commit_actions(b"\n".join(lines)).marks) if lines else {}

    def newest_commit(self) -> int:
        """Return the version of the newest commit file, readable or not; -1 without one."""
        with read_errors(self.name):
            names = self.log_names()
        return max((int(name[:20]) for name in names if COMMIT_NAME.fullmatch(name)), default=-1)

    def commit_times_ms(self) -> dict[int, int]:
        """Return the modification time of each commit file in the log, by version.

        It is the clock of the store; the times in delta-rs's change feed are the writers' clocks.
        An object store may keep whole seconds: then the latest that it may have been.
        """
        return {
            int(info.base_name[:20]): self._latest_ms(int(info.mtime_ns) // 1_000_000)
            for info in self.log_folder()
            if COMMIT_NAME.fullmatch(info.base_name) and info.mtime_ns is not None
        }

    @property
    def rounding_ms(self) -> int:
        """By how much a time of `commit_times_ms` may be too late."""
        return SECOND_MS - 1 if self.objects.is_remote else 0

    def _latest_ms(self, written_ms: int) -> int:
        is_rounded = written_ms % SECOND_MS == 0
        return written_ms + self.rounding_ms if is_rounded else written_ms

    def log_folder(self) -> list[pa_fs.FileInfo]:
        """List the folder of commits and checkpoints once."""
        selector = pa_fs.FileSelector(LOG_FOLDER, allow_not_found=True)
        with read_errors(self.name):
            return list(self.filesystem.get_file_info(selector))

    def log_names(self) -> list[str]:
        """List the names in the folder of commits and checkpoints; none where it is missing.

        Raises: STORAGE_ERRORS.
        """
        if self.objects.is_remote:
            return self.objects.names(LOG_FOLDER)
        try:
            return [path.name for path in Path(self.location, LOG_FOLDER).iterdir()]
        except FileNotFoundError:
            return []

    # Any file.

    def file_bytes(self, path: str) -> bytes | None:
        """Read a whole file of the table; None where it is missing."""
        with read_errors(self.name):
            try:
                with self.filesystem.open_input_file(path) as file:
                    return bytes(file.read())
            except FileNotFoundError:
                return None

    def lacks(self, path: str) -> bool:
        """Tell whether a file is not there; one lookup. Raises: StorageError."""
        with read_errors(self.name):
            return self.filesystem.get_file_info(path).type is NOT_FOUND

    def fetched(self, paths: Sequence[str]) -> Contents:
        """Fetch small files of an object store by requests at the same time; nothing of a disk.

        What cannot be fetched is left out: whoever reads the file meets the error.
        """
        if len(paths) <= 1 or not self.objects.is_remote:
            return NOTHING
        filesystem = self.filesystem
        try:
            with ThreadPoolExecutor(min(len(paths), REQUESTS_AT_ONCE)) as pool:
                contents = list(pool.map(lambda path: _small_content(filesystem, path), paths))
        except RuntimeError:
            # No thread can be started any more, as at the end of the process.
            return NOTHING
        pairs = zip(paths, contents, strict=True)
        return {path: content for path, content in pairs if content is not None}

    def written_ms(self, paths: Sequence[str]) -> dict[str, int]:
        """Return the modification time of each of these files that is there; the store's clock."""
        if not paths:
            return {}
        with translated(self.name):
            infos = self.filesystem.get_file_info(list(paths))
        return {
            info.path: int(info.mtime_ns) // 1_000_000
            for info in infos
            if info.mtime_ns is not None
        }

    def write_unnamed(self, path: str, content: pa.Buffer) -> None:
        """Write a file that no commit names yet, so that nobody reads a part of it."""
        if self.objects.is_remote or content.size > STREAMED_MAX_BYTES:
            self.objects.put(path, content.to_pybytes())
            return
        # A put takes twice the time, to show no parts. But it waits for the interpreter's lock
        # once, and this three times, which counts where many threads wait for a commit.
        with self.filesystem.open_output_stream(path, compression=None) as file:
            file.write(content)


def in_windows(values: Sequence[Value]) -> Iterator[Sequence[Value]]:
    """Yield the values in their order, as many at once as are fetched together."""
    for start in range(0, len(values), REQUESTS_AT_ONCE):
        yield values[start : start + REQUESTS_AT_ONCE]


def _small_content(filesystem: pa_fs.FileSystem, path: str) -> pa.Buffer | None:
    try:
        with filesystem.open_input_file(path) as file:
            return file.read_buffer() if file.size() <= FETCHED_MAX_BYTES else None
    except (*STORAGE_ERRORS, pa.ArrowException):
        return None


# --- objects that are written -------------------------------------------------------------------


class ListedObject(NamedTuple):
    """An object as a listing shows it; one that was written anew differs from what it was.

    Attributes:
        modified_ms: the storage's time, on S3 in whole seconds.
        e_tag: what the storage calls this content; None where it calls it nothing.
    """

    name: str
    size_bytes: int
    modified_ms: int
    e_tag: str | None


class Objects:
    """Writes objects by their paths relative to one table. Safe for several threads."""

    def __init__(
        self,
        location: str,
        options: Mapping[str, str],
        *,
        limits: Mapping[str, str] | None = None,
    ) -> None:
        """Open nothing yet; `options` are those of delta-rs, and `limits` count before them."""
        self.location = location
        self._limits = dict(limits or {})
        self._store = Renewable(options, self._opened)

    @property
    def is_remote(self) -> bool:
        """Whether each look costs a request."""
        return is_remote(self.location)

    def put(self, path: str, content: bytes) -> None:
        """Write an object; readers see all of it, or what was there before."""
        self._use(lambda store: obstore.put(store, inside(path), content, use_multipart=False))

    def put_new(self, path: str, content: bytes) -> bool:
        """Write an object unless there is one of this name, in one step; tell whether it wrote."""

        def put(store: ObjectStore) -> None:
            obstore.put(store, inside(path), content, mode="create", use_multipart=False)

        try:
            self._use(put)
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    def delete(self, path: str) -> None:
        """Delete an object, if it is there."""
        with suppress(FileNotFoundError):
            self._use(lambda store: obstore.delete(store, inside(path)))

    def names(self, folder: str) -> list[str]:
        """List the names of the objects in a folder, once."""
        metas = self._use(lambda store: obstore.list(store, prefix=inside(folder)).collect())
        return [str(meta["path"]).rpartition("/")[2] for meta in metas]

    def listed(self, folder: str) -> list[ListedObject]:
        """List the objects that lie in a folder itself, once, as the storage shows them."""
        listing = self._use(lambda store: obstore.list_with_delimiter(store, prefix=inside(folder)))
        return [
            ListedObject(
                str(meta["path"]).rpartition("/")[2],
                int(meta["size"]),
                milliseconds(meta["last_modified"]),
                meta["e_tag"],
            )
            for meta in listing["objects"]
        ]

    def root_names(self) -> list[str]:
        """List the names of the objects that lie in no folder, once."""
        listing = self._use(obstore.list_with_delimiter)
        return [str(meta["path"]) for meta in listing["objects"]]

    def sizes(self) -> dict[str, int]:
        """List all objects, of all folders, each with its size."""
        return {str(meta["path"]): int(meta["size"]) for meta in self._all()}

    def is_empty(self) -> bool:
        """Tell whether there is no object at all."""
        return next(self._all(), None) is None

    def _all(self) -> Iterator[Mapping[str, Any]]:
        for metas in self._use(obstore.list):
            yield from metas

    def pieces(self, path: str) -> Iterator[bytes]:
        """Read an object piece by piece. Raises: FileNotFoundError; STORAGE_ERRORS."""
        answer = self._use(lambda store: obstore.get(store, inside(path)))
        for piece in answer.stream(min_chunk_size=PIECE_BYTES):
            yield bytes(piece)

    def put_pieces(self, path: str, pieces: Iterable[bytes], size_bytes: int) -> None:
        """Do as `put`, of about so many bytes; nothing is written where `pieces` raises.

        Who is killed in the middle leaves on a disk a file that ends in UNFINISHED.
        """
        if not self.is_remote:
            self._put_on_disk(Path(self.location, inside(path)), pieces)
            return
        if size_bytes <= PIECE_BYTES:
            self.put(path, b"".join(pieces))
            return
        # Not by `obstore.put`: it asks for the pieces where none can be fetched by obstore.
        writer = self._use(
            lambda store: obstore.open_writer(
                store, inside(path), buffer_size=PIECE_BYTES, max_concurrency=PIECES_AT_ONCE
            )
        )
        for piece in pieces:
            writer.write(piece)
        # Without this there is no object.
        writer.close()

    def _put_on_disk(self, path: Path, pieces: Iterable[bytes]) -> None:
        # Not by obstore: what it leaves where it is killed is in no listing of its own.
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.name}.{uuid.uuid4().hex}{UNFINISHED}")
        try:
            with unfinished.open("xb") as file:
                file.writelines(pieces)
            unfinished.replace(path)
        except BaseException as error:
            unfinished.unlink(missing_ok=True)
            if isinstance(error, FileNotFoundError) and error.filename == str(unfinished):
                # Callers take a file that is not found for a source that is gone.
                raise OSError(f"{unfinished.name} was removed while it was written") from error
            raise

    def _use(self, call: Callable[[ObjectStore], Value]) -> Value:
        # As delta-rs, obstore starts threads at its first use, which a fork does not copy.
        begin_use()
        return self._store.use(call)

    def _opened(self, options: Mapping[str, str]) -> ObjectStore:
        if self.is_remote:
            return _opened_store(self.location, {**options, **self._limits})
        return LocalStore(self.location)


# --- file systems that stay in their folder -----------------------------------------------------


def rooted_filesystem(location: str, options: Mapping[str, str]) -> pa_fs.FileSystem:
    """Make a file system whose root is `location`, and that refuses paths out of it."""
    if not is_remote(location):
        return _LocalFolder(location, pa_fs.LocalFileSystem())
    return _ObjectFolder(location, options)


def inside(path: str) -> str:
    """Return a path that is relative to its table and stays in it.

    Raises: StoreFormatError.
    """
    if _LEAVES.search(path):
        problem = "leads out of the folder of its table; it was neither read nor changed"
        raise StoreFormatError(f"path {shown(path)}", problem)
    return path


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


def _checked(paths: Any) -> Any:
    if isinstance(paths, str):
        return inside(paths)
    return paths if isinstance(paths, pa_fs.FileSelector) else [inside(path) for path in paths]


class _LocalFolder(_Inside, pa_fs.SubTreeFileSystem):  # type: ignore[misc]
    """A folder of this machine."""


class _ObjectFolder(_Inside, pa_fs.PyFileSystem):  # type: ignore[misc]
    """A folder of an object store."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        super().__init__(storage_handler(location, options))
        self._store = Renewable(options, lambda current: _opened_store(location, current))

    def get_file_info(self, paths: Any) -> Any:
        """Do as pyarrow; ask for objects by one request each, where delta-rs lists a folder too."""
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
        """Open a file; fetch a small one whole, by one request where pyarrow makes three."""
        begin_use()
        try:
            content = self._store.use(lambda store: _whole(store, inside(path)))
        except FileNotFoundError:
            raise
        except BaseError as error:
            # Callers expect what pyarrow raises.
            raise OSError(str(error)) from error
        return super().open_input_file(path) if content is None else pa.BufferReader(content)

    def _info(self, path: str) -> pa_fs.FileInfo:
        try:
            meta = self._store.use(lambda store: obstore.head(store, path))
        except FileNotFoundError:
            return pa_fs.FileInfo(path, pa_fs.FileType.NotFound)
        return pa_fs.FileInfo(
            path, pa_fs.FileType.File, mtime=meta["last_modified"], size=meta["size"]
        )


def _whole(store: ObjectStore, path: str) -> pa.Buffer | None:
    """Fetch a small object; None for a large one, whose answer is dropped before its body."""
    answer = obstore.get(store, path)
    return pa.py_buffer(answer.bytes()) if answer.meta["size"] <= WHOLE_OBJECT_BYTES else None


# --- object stores ------------------------------------------------------------------------------


def is_remote(location: str) -> bool:
    """Tell whether a location is in an object store: each look costs a request there."""
    return "://" in location


def spark_location(location: str) -> str:
    """Spell a location as Spark does: Hadoop knows S3 as s3a, which all other readers know too."""
    return f"s3a://{location[5:]}" if location[:5].lower() == "s3://" else location


def _opened_store(location: str, options: Mapping[str, str]) -> ObjectStore:
    """Open a folder of an object store; nothing is asked yet."""
    config, client = _store_and_client_settings(options)
    return from_url(  # type: ignore[call-overload, no-any-return]
        location, config=config, client_options=client or None, retry_config=_retries(options)
    )


def _store_and_client_settings(
    options: Mapping[str, str],
) -> tuple[dict[str, Any], dict[str, Any]]:
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for key, value in options.items():
        name = key.lower()
        name_of_client = name.removeprefix("aws_")
        if name_of_client in _OF_THE_CLIENT:
            client[name_of_client] = value
        elif not name.startswith(_OF_DELTA_RS) and name not in {_MAX_RETRIES, _RETRY_TIMEOUT}:
            config[name] = value
    return config, client


def _retries(options: Mapping[str, str]) -> Any:
    """Return how often and how long a request is tried again; None for obstore's own rule."""
    retries: dict[str, Any] = {}
    if str(options.get(_MAX_RETRIES, "")).isdecimal():
        retries[_MAX_RETRIES] = int(options[_MAX_RETRIES])
    duration = _DURATION.fullmatch(str(options.get(_RETRY_TIMEOUT, "")).strip())
    if duration is not None:
        timeout_s = int(duration[1]) * _UNIT_S[duration[2]]
        retries[_RETRY_TIMEOUT] = dt.timedelta(seconds=timeout_s)
    return retries or None
