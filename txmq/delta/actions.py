"""The actions of one commit file, as Delta's protocol spells them: made here, and read here.

Two commits that were made on top of the same version may both stand, or `clash`.
"""

from __future__ import annotations

import enum
import json
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, unquote

if TYPE_CHECKING:
    import pyarrow.fs as pa_fs

LOG_FOLDER = "_delta_log"
ENGINE = "txmq"
# What txmq says in a commit beside Delta's actions.
TOKEN, NOTE = "txmq.token", "txmq.note"
USER_METADATA = "userMetadata"
RESTORE = "RESTORE"
# A RESTORE to a time does not say to which version.
BY_TIME = -1
_VERSION = re.compile(r"\d{1,18}", re.ASCII)
# In each commit that removes files: no other program sets it.
REWRITE_MARK = "txmq-rewrite"
IN_COMMIT_TIME = "inCommitTimestamp"
# The mark by which a session of a process numbers its commits, now and in an earlier txmq.
SESSION_MARK = re.compile(
    "^txmq-(producer|check|delay|retention|operator)/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
)
# Up to the year 9999: the next commit has to name a later time, in 64 bits.
_MOMENTS_MS = 253_402_214_400_000
# Delta leaves these as they are in a path.
_PLAIN_IN_PATHS = "/=:@!$&'()*+,;-._~"
# They change neither files nor marks.
_ASIDE = ("commitInfo", "cdc", "checkpointMetadata", "sidecar")
COMMIT_NAME = re.compile(r"(\d{20})\.json", re.ASCII)
# What reading actions of another shape raises.
DAMAGES = (ValueError, KeyError, TypeError, AttributeError)
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode
# They say something of the files of a table: how far row ids are given out, how files lie.
_ABOUT_FILES = frozenset({"domainMetadata"})


# --- a commit that is made ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AddedFile:
    """A file that a commit adds; `is_news` is false where its rows were in the table before."""

    path: str
    size_bytes: int
    partition: Mapping[str, str | None]
    modified_ms: int
    is_news: bool
    stats_json: str

    def action(self) -> dict[str, Any]:
        """Spell it as Delta does."""
        values = {
            "path": quote(self.path, safe=_PLAIN_IN_PATHS),
            "partitionValues": dict(self.partition),
            "size": self.size_bytes,
            "modificationTime": self.modified_ms,
            "dataChange": self.is_news,
            "stats": self.stats_json,
        }
        return {"add": values}


@dataclass(frozen=True, slots=True)
class RemovedFile:
    """A file that a commit removes; `is_news` is false where its rows stay in the table."""

    path: str
    size_bytes: int
    partition: Mapping[str, str | None]
    removed_ms: int
    is_news: bool
    log_path: str = ""

    def action(self) -> dict[str, Any]:
        """Spell it as Delta does."""
        values = {
            # Other readers compare paths as they are spelled.
            "path": self.log_path or quote(self.path, safe=_PLAIN_IN_PATHS),
            "deletionTimestamp": self.removed_ms,
            "dataChange": self.is_news,
            "extendedFileMetadata": True,
            "partitionValues": dict(self.partition),
            "size": self.size_bytes,
        }
        return {"remove": values}


@dataclass(frozen=True, slots=True)
class NewCommit:
    """What a writer wants to commit.

    Attributes:
        marks: each with the number that it gets.
        token: tells this commit from every other, so that its answer may be lost.
        note: what the writer says of its rows, for writers that see the commit pass by.
        tags: what the features of a table ask a commit to say.
        metadata: what the table says of itself already. It is said again where files are removed,
            for another program that merges the same files, as delta-rs, is refused by that alone.
        said: what Spark shows of the commit, as its `userMetadata`.
    """

    added: Sequence[AddedFile]
    removed: Sequence[RemovedFile]
    marks: Mapping[str, int]
    token: str
    note: str = ""
    tags: Mapping[str, str] | None = None
    metadata: Mapping[str, Any] | None = None
    said: str = ""

    def content(self, now_ms: int, before_ms: int | None = None) -> bytes:
        """Make the commit file.

        Args:
            now_ms: the writer's clock.
            before_ms: the time in the commit before this one; None in a table without such times.
        """
        # Where a retention of marks is set, Spark ignores marks without lastUpdated.
        marks = [
            {"txn": {"appId": name, "version": number, "lastUpdated": now_ms}}
            for name, number in self.marks.items()
        ]
        files = [
            *(file.action() for file in self.removed),
            *(file.action() for file in self.added),
        ]
        # Where a table keeps times in its commits, the line with the time is the first one.
        again = [] if self.metadata is None else [{"metaData": self.metadata}]
        lines = [self._info(now_ms, before_ms), *again, *marks, *files]
        return "".join([_ENCODE(line) + "\n" for line in lines]).encode()

    @property
    def is_without_files(self) -> bool:
        """Whether it leaves all rows as they are."""
        return not self.added and not self.removed

    def _info(self, now_ms: int, before_ms: int | None) -> dict[str, Any]:
        operation, parameters = self._operation()
        info: dict[str, Any] = {
            "timestamp": now_ms,
            "operation": operation,
            "operationParameters": parameters,
            "engineInfo": ENGINE,
            "isBlindAppend": not self.removed,
            TOKEN: self.token,
        }
        if self.note:
            info[NOTE] = self.note
        if self.said:
            info[USER_METADATA] = self.said
        if self.tags:
            info["tags"] = dict(self.tags)
        if before_ms is not None:
            # It changes no row, and a wrong clock would move the times of the table for good.
            is_timeless = self.is_without_files
            info[IN_COMMIT_TIME] = before_ms + 1 if is_timeless else max(now_ms, before_ms + 1)
        return {"commitInfo": info}

    def _operation(self) -> tuple[str, dict[str, str]]:
        """Name what the commit does as Delta's own writers do, for `DESCRIBE HISTORY`."""
        if not self.removed:
            return "WRITE", {"mode": "Append"}
        if not any(file.is_news for file in self.removed):
            return "OPTIMIZE", {"predicate": "[]"}
        if not self.added:
            return "DELETE", {"predicate": "[]"}
        return "WRITE", {"mode": "Overwrite"}


# --- a commit that is read ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CommitActions:
    """What a commit file says.

    Attributes:
        added, removed: the actions as Delta spells them.
        kinds: the names of its other actions that say more than files and marks.
        token, note: as in NewCommit; empty in a commit of another program.
        metadata, protocol: the new ones; None where they stay.
        changed: files with the changes, where a commit keeps them apart; no commit of txmq does.
        in_commit_ms: the time that the commit names, in tables whose commits do.
        restored_to: the version to which a RESTORE took the table back, or BY_TIME; None if it is
            another commit.
        user_metadata: what a writer by Spark says of its rows; empty where it says nothing.
    """

    marks: Mapping[str, int]
    added: Sequence[Mapping[str, Any]]
    removed: Sequence[Mapping[str, Any]]
    kinds: frozenset[str]
    token: str = ""
    note: str = ""
    metadata: Mapping[str, Any] | None = None
    protocol: Mapping[str, Any] | None = None
    changed: Sequence[Mapping[str, Any]] = ()
    in_commit_ms: int | None = None
    restored_to: int | None = None
    user_metadata: str = ""

    @property
    def changes_metadata(self) -> bool:
        """Whether columns or properties may be others; txmq changes them by delta-rs alone.

        A rebuild gives a topic that went back another id, and moves its marks.
        """
        return self.metadata is not None and not self.token

    @property
    def takes_rows(self) -> bool:
        """Whether another program may have removed rows; each removal of txmq has a mark."""
        is_change = any(action.get("dataChange", True) for action in self.removed)
        is_removal = is_change or (bool(self.removed) and not self.added)
        return is_removal and REWRITE_MARK not in self.marks

    @property
    def removed_paths(self) -> set[str]:
        """The removed files, relative to the table."""
        return {path_of(action) for action in self.removed}


EMPTY_COMMIT = CommitActions({}, (), (), frozenset())


def commit_actions(content: bytes) -> CommitActions:
    """Read what a commit file says.

    Raises: ValueError where it is no commit file, as one that lost its content.
    """
    actions = [json.loads(line) for line in content.splitlines() if line.strip()]
    if not actions or not all(isinstance(action, dict) for action in actions):
        raise ValueError("is empty")
    marks = {mark["appId"]: int(mark["version"]) for mark in of_kind(actions, "txn")}
    kinds = {kind for action in actions for kind in action}
    info: Any = next(iter(of_kind(actions, "commitInfo")), {})
    if not isinstance(info, dict):
        raise ValueError("has a commitInfo that is no object")  # noqa: TRY004 - as for all damage
    return CommitActions(
        marks,
        of_kind(actions, "add"),
        of_kind(actions, "remove"),
        frozenset(kinds.difference(_ASIDE, ("add", "remove", "txn"))),
        str(info.get(TOKEN, "")),
        str(info.get(NOTE, "")),
        next(iter(of_kind(actions, "metaData")), None),
        next(iter(of_kind(actions, "protocol")), None),
        of_kind(actions, "cdc"),
        _moment_ms(info.get(IN_COMMIT_TIME)),
        _restored_to(info),
        str(info.get(USER_METADATA) or ""),
    )


def _restored_to(info: Mapping[str, Any]) -> int | None:
    if info.get("operation") != RESTORE:
        return None
    parameters = info.get("operationParameters")
    # Spark writes a number, and delta-rs a text.
    version = str(parameters.get("version") if isinstance(parameters, dict) else None)
    return int(version) if _VERSION.fullmatch(version) else BY_TIME


def _moment_ms(value: object) -> int | None:
    """Return a time that a commit names; None for anything else that others wrote."""
    # In Python a bool is an int.
    return value if type(value) is int and 0 <= value < _MOMENTS_MS else None


def of_kind(actions: Iterable[Mapping[str, Any]], kind: str) -> list[Any]:
    """Return the actions of one kind."""
    return [action[kind] for action in actions if action.get(kind) is not None]


def path_of(action: Mapping[str, Any]) -> str:
    """Return the path of an added or removed file, relative to the table."""
    return unquote(action["path"])


def session_mark(kind: str, session: uuid.UUID) -> str:
    """Name the mark of a session; `kind` is that of its writer, such as "producer"."""
    return f"txmq-{kind}/{session}"


def commit_path(version: int) -> str:
    """Return the path of a commit file, relative to the table."""
    return f"{LOG_FOLDER}/{version:020d}.json"


# Size and time of a commit file: a log that was replaced has others.
Stamp = tuple[int | None, int | None]


class Seen(NamedTuple):
    """The newest commit that a writer knows of.

    Attributes:
        stamp: of its file; None if not known.
        in_commit_ms: the time that it names; None in tables whose commits name none.
    """

    version: int
    stamp: Stamp | None = None
    in_commit_ms: int | None = None


def stamp_of(info: pa_fs.FileInfo) -> Stamp:
    """Return what tells a commit file from another one of the same version."""
    return info.size, info.mtime_ns


# --- two commits --------------------------------------------------------------------------------


class Conflict(enum.Enum):
    """Why a commit may not follow a winner."""

    MARK = "another writer moved the mark {}"
    PROTOCOL = "the protocol of the table changed"
    METADATA = "the columns or properties of the table changed"
    FILE = "another writer removed {}"
    UNKNOWN = "another writer committed an action that txmq does not know: {}"


class Clash(NamedTuple):
    """A conflict, and the mark, file or action that it is about."""

    conflict: Conflict
    subject: str = ""

    @property
    def problem(self) -> str:
        """For an error text."""
        return self.conflict.value.format(self.subject)


def clash(commit: NewCommit, winner: CommitActions) -> Clash | None:
    """Return why `commit` may not follow `winner`; None where both can stand, as two appends.

    It asks for more than Delta does: a winner that did something unknown is looked at anew.
    """
    if "protocol" in winner.kinds:
        return Clash(Conflict.PROTOCOL)
    if winner.changes_metadata:
        return Clash(Conflict.METADATA)
    known = {"metaData"} | (_ABOUT_FILES if commit.is_without_files else frozenset())
    unknown = winner.kinds - known
    if unknown:
        return Clash(Conflict.UNKNOWN, ", ".join(sorted(unknown)))
    moved = commit.marks.keys() & winner.marks.keys()
    if moved:
        return Clash(Conflict.MARK, min(moved))
    if commit.removed and winner.removed:
        removed_twice = {file.path for file in commit.removed} & winner.removed_paths
        if removed_twice:
            return Clash(Conflict.FILE, min(removed_twice))
    return None
