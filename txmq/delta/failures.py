"""Errors of delta-rs, pyarrow and the system as errors of txmq, and what is tried again.

delta-rs tells most failures apart by their text alone: a chain of causes, a line for each. A text
that nobody listed keeps its type and its words, without secrets. The names of paths decide nothing,
because a topic may be called SlowDown.
"""

from __future__ import annotations

import errno
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple, TypeVar

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from obstore.exceptions import BaseError

from txmq.delta.credentials import BARE_HEAD, EXPIRED
from txmq.errors import (
    AccessDeniedError,
    BucketNotFoundError,
    ClosedError,
    CommitRefusedError,
    CredentialsExpiredError,
    ReadOnlyStoreError,
    StorageError,
    StorageUnavailableError,
    StoreFullError,
    StoreNotFoundError,
    TxmqError,
    UnsupportedPlaceError,
    UnsupportedTableError,
)

# --- processes that were forked -------------------------------------------------------------------

FORKED = (
    "delta-rs cannot work in this process, which was forked from one that had used a store. Open "
    "the store in the forked processes only (Celery: in worker_process_init; gunicorn: without "
    "--preload), or start them by spawn or forkserver (multiprocessing.set_start_method)"
)
# What delta-rs says where another program of the process used it before the fork.
_PANIC, _FORK_IN_PANIC = "PanicException", "Forked process"


class _DeltaRs:
    """Whether this process has used delta-rs, and whether a process before a fork had."""

    is_used = False
    is_lost = False


class _Process:
    """This process."""

    id = os.getpid()


def process_id() -> int:
    """Do as `os.getpid()`, which asks the system each time: that costs a tenth of a send."""
    return _Process.id


def refuse_fork() -> None:
    """Raise ClosedError where delta-rs cannot work any more."""
    if _DeltaRs.is_lost:
        raise ClosedError(FORKED)


def begin_use() -> None:
    """Do as `refuse_fork`; call it before each use of delta-rs, so that later forks are known."""
    refuse_fork()
    _DeltaRs.is_used = True


def refuse_panic(error: BaseException) -> None:
    """Raise ClosedError if an error is delta-rs's panic about a fork."""
    if type(error).__name__ == _PANIC and _FORK_IN_PANIC in str(error):
        raise ClosedError(FORKED) from error


def fork_problem(what: str) -> str:
    """Return what to do where something is used that was made before a fork."""
    if _DeltaRs.is_lost:
        return FORKED
    return f"{what} belongs to the process before the fork; make a new one in this process"


def _in_child() -> None:
    _Process.id = os.getpid()
    _DeltaRs.is_lost = _DeltaRs.is_lost or _DeltaRs.is_used


os.register_at_fork(after_in_child=_in_child)


# --- failures as errors ---------------------------------------------------------------------------

# What delta-rs, obstore and the system raise.
STORAGE_ERRORS = (DeltaError, BaseError, OSError)
SHOWN_CHARACTERS_OF_A_CAUSE = 400
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_BACKTRACE = ("stack backtrace", "backtrace", "debug source:")
# A handle that is older than the first commit in the log cannot compare marks.
_CLEANED_BEHIND = re.compile(
    r"Invalid table version|not found: \S*_delta_log/|_delta_log/\S* not found"
)
_UNSUPPORTED = re.compile(r"unsupported (table|reader|writer) feature", re.IGNORECASE)
_UNREADABLE = re.compile(r"feature '([\w-]+)' is not supported", re.IGNORECASE)
_OF_A_CATALOG = re.compile(r"catalog-managed table", re.IGNORECASE)
_NOT_BY_ITS_LOCATION = (
    "Its commits go through its catalog, so no fence can be put at its location: let another "
    "listener answer (QueryListener, HttpListener, DatabaseListener), or use an external table"
)
_FEATURES = re.compile(r"\[([^\]]*)\]")
_FULL_NUMBERS = (errno.ENOSPC, errno.EDQUOT)
_READ_ONLY_NUMBERS = (errno.EROFS, errno.EACCES, errno.EPERM)
# A word with a slash is a path, a URL or the end of an XML element.
_PATH = re.compile(r"[^\s<>\"']*/[^\s<>\"']*")
_END_OF_ELEMENT = re.compile(r"</\w+>")
_USER_OF_URL = re.compile(r"(?<=://)[^/@\s]*@")
_QUERY_OF_URL = re.compile(r"(?<=\w)\?[^\s\"'<>)]*=[^\s\"'<>)]*")
_SECRET_ELEMENT = re.compile(r"<([\w-]*(?:Key|Id|Token|Signature|StringToSign|Bytes)[\w-]*)>[^<]*")
_BEARER = re.compile(r"\b(Bearer|Basic|SharedKey|AWS4?)\s+[\w+/=.:-]{6,}")
_SECRET_PAIR = re.compile(
    r"((?:[\w.-]*(?:secret|token|passw(?:or)?d|signature|credential|sas|sig|access_?key)[\w.-]*))"
    r"([\"']?\s*[=:]\s*[\"']?)([^\s\"',;&<>]+)",
    re.IGNORECASE,
)


class _Kind(NamedTuple):
    """Texts that say one thing, and the error for it; `{verb}` is "read" or "written"."""

    text: re.Pattern[str]
    error: type[StorageError]
    problem: str


def _kind(pattern: str, error: type[StorageError], problem: str) -> _Kind:
    return _Kind(re.compile(pattern, re.IGNORECASE | re.DOTALL), error, problem)


# The first that fits counts.
_KINDS = (
    _kind(
        r"no space left|os error 28\b|\bStorageFull\b|quota exceeded|os error 122\b",
        StoreFullError,
        "no space left; free some, then call again",
    ),
    _kind(
        r"\bNoSuchBucket\b|\bContainerNotFound\b|specified (bucket|container) does not exist",
        BucketNotFoundError,
        "cannot be {verb}: the bucket does not exist; check the location, or make the bucket",
    ),
    _kind(
        r"\b(SlowDown|TooManyRequests|ServerBusy|ThrottlingException)\b"
        r"|status(?: code)?:? (429|503)\b|\b503 Service Unavailable\b|\b429 Too Many Requests\b",
        StorageUnavailableError,
        "cannot be {verb}: the storage refuses requests because there are too many; "
        "call again later, or write less often",
    ),
    _kind(
        EXPIRED,
        CredentialsExpiredError,
        "cannot be {verb}: the storage says that the credentials have expired; "
        "renew them, or let a catalog lend them (docs/security.md)",
    ),
    _kind(
        BARE_HEAD,
        CredentialsExpiredError,
        "cannot be {verb}: the storage answers 400 without a word, as S3 does to credentials that "
        "have expired; renew them, or let a catalog lend them (docs/security.md)",
    ),
    _kind(
        r"\b(InvalidAccessKeyId|SignatureDoesNotMatch|AuthenticationFailed"
        r"|AuthorizationFailure|InvalidAuthenticationInfo|Unauthenticated|AccessDenied)\b"
        r"|status(?: code)?:? (401|403)\b|\b403 Forbidden\b|\b401 Unauthorized\b"
        r"|lacked the necessary privileges|lacked valid authentication credentials",
        AccessDeniedError,
        "cannot be {verb}: the storage refuses the credentials or their rights; check them",
    ),
    _kind(
        r"an error occurred while loading credentials|failed to load IMDS session token"
        r"|no providers in chain provided credentials|account must be specified",
        AccessDeniedError,
        "cannot be {verb}: no credentials for this storage were found, or no account; "
        "set the variables of its provider (docs/places.md)",
    ),
    _kind(
        r"error sending request|connection (refused|reset|closed|error)|connect error|dns error"
        r"|network is unreachable|no route to host|operation timed out|deadline has elapsed",
        StorageUnavailableError,
        "cannot be {verb}: the storage cannot be reached; check its endpoint and the network",
    ),
)
_NO_LINKS = _kind(
    r"function not implemented|os error 38\b|operation not supported|os error 95\b",
    UnsupportedPlaceError,
    "cannot be written: this file system has no hard links, so two writers could not be told "
    "apart; use a folder of a disk, or the URI of an object store (s3://, abfss://, gs://)",
)
_READ_ONLY = _kind(
    r"read-only file system|os error 30\b|permission denied|os error 13\b"
    r"|operation not permitted|os error 1\b",
    ReadOnlyStoreError,
    "cannot be written; check its rights",
)
# Another commit made this one impossible; trying again helps.
_LOST_RACE = re.compile(
    r"another writer was first|concurrent|already exists|metadata changed|protocol changed"
    r"|commit(s|ted)? since|max commit attempts|conflict",
    re.IGNORECASE,
)


# Reading again at once does not help; delta-rs has tried again where it may.
FINAL_READ_ERRORS = (
    AccessDeniedError,
    BucketNotFoundError,
    StorageUnavailableError,
    UnsupportedTableError,
)


def failed_read(table: str, error: Exception, path: str = "") -> StorageError:
    """Make the error of txmq for a failure to read a table, or one file of it."""
    if unsupported := _unsupported(table, str(error)):
        return unsupported
    typed = _of_kind(table, error, _KINDS, "read")
    if typed is None and _is_denied(error):
        typed = AccessDeniedError(table, "cannot be read; check its rights")
    if typed is None and _CLEANED_BEHIND.search(str(error)):
        return _cleaned_behind(table)
    name = f"{path} " if path else ""
    return typed or StorageError(table, f"{name}cannot be read ({in_one_line(error)})")


def failed_write(table: str, error: Exception) -> StorageError:
    """Make the error of txmq for a failure to write a table, or to commit to it."""
    if unsupported := _unsupported(table, str(error)):
        return unsupported
    typed = disk_error(table, error) or _of_kind(table, error, _KINDS, "written")
    if typed is not None:
        return typed
    if _CLEANED_BEHIND.search(str(error)):
        return _cleaned_behind(table)
    if isinstance(error, CommitFailedError):
        return _refused(table, error)
    return StorageError(table, f"cannot be written ({in_one_line(error)})")


def read_errors(table: str) -> AbstractContextManager[None]:
    """Raise errors of Delta and of the system as errors of txmq, in a block that reads."""
    return _raised_as(failed_read, table)


def translated(table: str) -> AbstractContextManager[None]:
    """Do as `read_errors`, in a block that writes."""
    return _raised_as(failed_write, table)


@contextmanager
def _raised_as(error_of: Callable[[str, Exception], StorageError], table: str) -> Iterator[None]:
    try:
        yield
    except STORAGE_ERRORS as error:
        raise error_of(table, error) from error
    except BaseException as error:
        refuse_panic(error)
        raise


def _cleaned_behind(table: str) -> CommitRefusedError:
    return CommitRefusedError(table, "the log was cleaned since it was opened; opening again")


def _refused(table: str, error: CommitFailedError) -> CommitRefusedError:
    if _LOST_RACE.search(without_paths(str(error))):
        return CommitRefusedError(table, "another writer was first; computing again")
    return CommitRefusedError(table, f"the commit was refused ({in_one_line(error)})")


def disk_error(table: str, error: Exception) -> StorageError | None:
    """Make the typed error for an error of the disk: full, read-only, no links; None for others."""
    number = error.errno if isinstance(error, OSError) else None
    if number in _FULL_NUMBERS:
        return StoreFullError(table, _KINDS[0].problem)
    if number in _READ_ONLY_NUMBERS:
        return ReadOnlyStoreError(table, _READ_ONLY.problem)
    return _of_kind(table, error, (_KINDS[0], _NO_LINKS, _READ_ONLY), "written")


def _of_kind(
    table: str, error: Exception, kinds: tuple[_Kind, ...], verb: str
) -> StorageError | None:
    text = without_paths(_COLOUR.sub("", str(error)))
    for kind in kinds:
        if kind.text.search(text):
            return kind.error(table, kind.problem.format(verb=verb))
    return None


def _is_denied(error: Exception) -> bool:
    number = error.errno if isinstance(error, OSError) else None
    return number in _READ_ONLY_NUMBERS or bool(_READ_ONLY.text.search(without_paths(str(error))))


def _unsupported(table: str, text: str) -> UnsupportedTableError | None:
    if _OF_A_CATALOG.search(text):
        return UnsupportedTableError(table, ["catalogManaged"], _NOT_BY_ITS_LOCATION)
    if name := _UNREADABLE.search(text):
        return UnsupportedTableError(table, [name[1]])
    return UnsupportedTableError(table, _features(text)) if _UNSUPPORTED.search(text) else None


def _features(text: str) -> list[str]:
    names = _FEATURES.search(text)
    return [] if names is None else [name.strip() for name in names[1].split(",") if name.strip()]


def without_paths(text: str) -> str:
    """Remove from a text what users name: paths and URLs."""
    return _PATH.sub(" ", _END_OF_ELEMENT.sub(" ", text))


def in_one_line(error: BaseException) -> str:
    """Show type and chain of causes, without secrets, colours and a backtrace."""
    causes = ": ".join(_causes(str(error)))
    return f"{type(error).__name__}: {without_secrets(causes)[:SHOWN_CHARACTERS_OF_A_CAUSE]}"


def problem_of(error: BaseException) -> str:
    """Do as `in_one_line`; show the type alone if the text may hold a value of a row."""
    if isinstance(error, TxmqError | DeltaError | OSError):
        return in_one_line(error)
    return type(error).__name__


def _causes(text: str) -> Iterator[str]:
    for line in _COLOUR.sub("", text).splitlines():
        cause = line.strip().removeprefix("↳").strip()
        if cause.lower().startswith(_BACKTRACE):
            return
        if cause:
            yield cause


def without_secrets(text: str) -> str:
    """Remove from a text passwords and queries of URLs, and values that are named secret."""
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


_SECRETS: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (_USER_OF_URL, ""),
    (_QUERY_OF_URL, "?…"),
    (_SECRET_ELEMENT, r"<\1>…"),
    (_SECRET_PAIR, r"\1\2…"),
    (_BEARER, r"\1 …"),
)


# --- what is tried again --------------------------------------------------------------------------

READ_ATTEMPTS = 8
RETRY_PAUSE_S = 0.01
MISSING = "is not there; run txmq init for a new store, or restore it from a backup"
Result = TypeVar("Result")


def pause(attempt: int) -> None:
    """Wait before the next attempt; later attempts wait longer."""
    # Random pauses keep two losers from meeting again.
    time.sleep(RETRY_PAUSE_S * random.random() * min(2**attempt, 32))  # noqa: S311


def read_again(
    table: str, read: Callable[[], Result], missing: str = MISSING, path: str = ""
) -> Result:
    """Read, and try again where fast writers disturb the read.

    Raises: StorageError; it names the file of the table that is read, if one is.
    """
    for attempt in range(READ_ATTEMPTS):
        try:
            return read()
        except TableNotFoundError as error:
            raise StoreNotFoundError(table, missing) from error
        except (*STORAGE_ERRORS, pa.ArrowException) as error:
            cause, failure = error, failed_read(table, error, path)
            if isinstance(failure, FINAL_READ_ERRORS):
                break
            pause(attempt)
        except BaseException as error:
            refuse_panic(error)
            raise
    raise failure from cause
