"""Storage options that hold for a while: a catalog lends them for one location, and renews them.

Unity Catalog, the one of Databricks and the open one, answers `temporary-path-credentials`. What
was opened with options that have ended is opened anew: delta-rs and obstore keep what they got.
"""

from __future__ import annotations

import enum
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from functools import lru_cache
from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar

from deltalake.exceptions import DeltaError
from deltalake.fs import DeltaStorageHandler
from obstore.exceptions import BaseError
from pyarrow.fs import FileSystemHandler

from txmq.errors import (
    AccessDeniedError,
    ConfigError,
    EnvironmentProblemError,
    StorageUnavailableError,
    shown,
    step_for_extra,
)
from txmq.ground.clock import SystemClock, elapsed_ms, milliseconds

# Among the storage options; the variable counts where they have no such key.
KEY, VARIABLE = "txmq_credentials", "TXMQ_CREDENTIALS"
PATH = "/api/2.1/unity-catalog/temporary-path-credentials"
ANSWER_TIMEOUT_S = 20.0
# Renewed so long before their end; those that hold for less, in the last quarter.
RENEWED_BEFORE_MS = 600_000
# After a renewal that failed, while the old ones hold.
PAUSE_MS = 10_000
# A catalog that says less lends what has ended by its own clock; it is not asked for each request.
LEAST_MS = 1_000
# The time in the head of an answer has whole seconds.
SECOND_MS = 1_000
TABLES_MAX = 1_024
# In the words of S3, of Azure.
EXPIRED = (
    r"\bExpiredToken|Signature not valid in the specified time frame|Lifetime validation failed"
)
# S3 answers a HEAD without words.
BARE_HEAD = r"performing HEAD\b.{0,2000}?\b400 Bad Request"
_EXPIRED = re.compile(f"{EXPIRED}|{BARE_HEAD}", re.IGNORECASE | re.DOTALL)

logger = logging.getLogger(__name__)
Handle = TypeVar("Handle")
Result = TypeVar("Result")


class Provider(enum.StrEnum):
    """Who lends the credentials, and for what."""

    UNITY_CATALOG = "unity-catalog"
    UNITY_CATALOG_READ = "unity-catalog-read"

    @property
    def operation(self) -> str:
        """What Unity Catalog is asked for."""
        return "PATH_READ_WRITE" if self is Provider.UNITY_CATALOG else "PATH_READ"


class Loan(NamedTuple):
    """Credentials as storage options, and how long they hold from their answer on."""

    options: Mapping[str, str]
    life_ms: int


Lend = Callable[[str, Provider], Loan]


# --- options that are renewed --------------------------------------------------------------------


def storage_options_of(location: str, given: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return the storage options of a location; renewed ones where a provider is named.

    Args:
        location: what the credentials are for, with all that lies below.
        given: names the provider by KEY, else VARIABLE does; "" names none. Options of this
            function hold for what lies below their location, so that all tables of a store share
            one loan; for another location the same provider is asked.

    Raises: ConfigError for a provider that is not known.
    """
    if isinstance(given, LentOptions):
        return given.of(location)
    plain = dict(given or {})
    name = plain.pop(KEY, os.environ.get(VARIABLE, ""))
    if not name or "://" not in location:
        return plain
    if name not in list(Provider):
        known = ", ".join(Provider)
        raise ConfigError([f"{KEY} ({VARIABLE}) must be one of {known}, not {shown(name)}"])
    return _lent(location, frozenset(plain.items()), Provider(name))


@lru_cache(maxsize=TABLES_MAX)
def _lent(location: str, given: frozenset[tuple[str, str]], provider: Provider) -> LentOptions:
    """Return the one loan of this process: a transaction opens the user's table anew."""
    return LentOptions(location, dict(given), provider)


class LentOptions(Mapping[str, str]):
    """Storage options whose credentials are lent, and renewed before they end. Thread-safe.

    Each look shows those of now, and the first one asks the provider. Open something by
    `with_options` or a `Renewable`: between two looks they may have been renewed.
    """

    def __init__(
        self,
        location: str,
        given: Mapping[str, str],
        provider: Provider,
        *,
        lend: Lend | None = None,
        now_ms: Callable[[], int] = elapsed_ms,
    ) -> None:
        """Ask nobody yet.

        Args:
            location: what the credentials are for.
            given: other options, such as the region.
            provider: who lends them.
            lend: asks the provider.
            now_ms: a clock that nobody sets.
        """
        self.location, self._given, self._provider = location, dict(given), provider
        self._lend = lend or UnityCatalog().lend
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._held: _Held | None = None

    def of(self, location: str) -> LentOptions:
        """Return these for what lies below their location, else others of the same provider."""
        if f"{location}/".startswith(f"{self.location}/"):
            return self
        return _lent(location, frozenset(self._given.items()), self._provider)

    def current(self) -> Mapping[str, str]:
        """Return options that hold now; the same object until they are renewed.

        Raises: AccessDeniedError, StorageUnavailableError, EnvironmentProblemError: they have
            ended, and were not renewed.
        """
        held = self._held
        now_ms = self._now_ms()
        if held is not None and now_ms < held.renewed_from_ms:
            return held.options
        if held is not None and now_ms < held.end_ms and self._lock.locked():
            # One thread renews; nobody waits while the old ones hold.
            return held.options
        with self._lock:
            renewed = self._held
            if renewed is None or renewed is held:
                renewed = self._held = self._renewed(held)
            return renewed.options

    def refused(self, options: Mapping[str, str]) -> None:
        """Hear that the storage calls these options expired: the next look shows other ones."""
        with self._lock:
            if self._held is not None and self._held.options is options:
                self._held = replace(self._held, renewed_from_ms=0, end_ms=0)

    def _renewed(self, held: _Held | None) -> _Held:
        asked_ms = self._now_ms()
        try:
            loan = self._lend(self.location, self._provider)
        except (AccessDeniedError, StorageUnavailableError) as error:
            if held is None or self._now_ms() >= held.end_ms:
                raise
            logger.warning("%s; those that are in use hold for now", error)
            again_ms = min(self._now_ms() + PAUSE_MS, held.end_ms)
            return replace(held, renewed_from_ms=again_ms)
        options = {**self._given, **loan.options}
        # From when they were asked for: an answer may have been under way for long.
        return _Held.of(options, asked_ms, max(loan.life_ms, LEAST_MS))

    def __getitem__(self, key: str) -> str:
        """Return an option of now."""
        return self.current()[key]

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the options."""
        return iter(self.current())

    def __len__(self) -> int:
        """Count the options."""
        return len(self.current())

    def __bool__(self) -> bool:
        """Ask nobody: there are some."""
        return True

    def __repr__(self) -> str:
        """Show no secret."""
        return f"LentOptions({self.location!r}, {self._provider.value!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Ask anew in another process."""
        return (LentOptions, (self.location, self._given, self._provider))


@dataclass(frozen=True, slots=True, repr=False)
class _Held:
    """Options, from when on they are renewed, and when they end."""

    options: Mapping[str, str]
    renewed_from_ms: int
    end_ms: int

    @classmethod
    def of(cls, options: Mapping[str, str], asked_ms: int, life_ms: int) -> _Held:
        before_ms = min(RENEWED_BEFORE_MS, life_ms // 4)
        return cls(options, asked_ms + life_ms - before_ms, asked_ms + life_ms)


# --- what is opened with options -----------------------------------------------------------------


def options_now(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return a copy of the options of now; None where there are none, as delta-rs takes it."""
    return dict(options.current() if isinstance(options, LentOptions) else options) or None


def with_options(
    options: Mapping[str, str], call: Callable[[dict[str, str] | None], Result]
) -> Result:
    """Call with the options of now; once more with new ones where the storage calls them expired.

    A storage that says so has done nothing. `call` gets None where there are no options.
    """
    if not isinstance(options, LentOptions):
        return call(options_now(options))
    current = options.current()
    try:
        return call(dict(current))
    except (DeltaError, BaseError, OSError) as error:
        if not _EXPIRED.search(str(error)):
            raise
        options.refused(current)
    return call(dict(options.current()))


class Renewable(Generic[Handle]):
    """A handle that keeps its storage options; opened anew when those of now are other ones."""

    def __init__(
        self, options: Mapping[str, str], opened: Callable[[Mapping[str, str]], Handle]
    ) -> None:
        """Open nothing yet."""
        self._options, self._open = options, opened
        self._current: tuple[Mapping[str, str], Handle] | None = None

    def use(self, call: Callable[[Handle], Result]) -> Result:
        """Call with the handle; as `with_options` does, once more where its options expired."""
        if not isinstance(self._options, LentOptions):
            return call(self._opened(self._options))
        options = self._options.current()
        try:
            return call(self._opened(options))
        except (DeltaError, BaseError, OSError) as error:
            if not _EXPIRED.search(str(error)):
                raise
            self._options.refused(options)
        return call(self._opened(self._options.current()))

    def _opened(self, options: Mapping[str, str]) -> Handle:
        current = self._current
        # Two threads may open it twice; each uses its own.
        if current is None or current[0] is not options:
            current = self._current = (options, self._open(options))
        return current[1]


def storage_handler(location: str, options: Mapping[str, str]) -> FileSystemHandler:
    """Make what pyarrow reads and writes a location of an object store by."""
    if isinstance(options, LentOptions):
        return _RenewedHandler(location, options)
    return DeltaStorageHandler(location, options_now(options))


class _RenewedHandler(FileSystemHandler):  # type: ignore[misc]
    """The handler of delta-rs, opened anew when its credentials are renewed.

    A file that is open keeps the old ones.
    """

    def __init__(self, location: str, options: LentOptions) -> None:
        self._handler: Renewable[DeltaStorageHandler] = Renewable(
            options, lambda current: DeltaStorageHandler(location, dict(current))
        )

    def get_type_name(self) -> str:
        return "lent"

    def normalize_path(self, path: str) -> str:
        return self._handler.use(lambda handler: handler.normalize_path(path))

    def get_file_info(self, paths: list[str]) -> list[Any]:
        return self._handler.use(lambda handler: handler.get_file_info(paths))

    def get_file_info_selector(self, selector: Any) -> list[Any]:
        return self._handler.use(lambda handler: handler.get_file_info_selector(selector))

    def create_dir(self, path: str, recursive: bool) -> None:  # noqa: FBT001 - pyarrow's
        self._handler.use(lambda handler: handler.create_dir(path, recursive))

    def delete_dir(self, path: str) -> None:
        self._handler.use(lambda handler: handler.delete_dir(path))

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:  # noqa: FBT001, FBT002 - pyarrow's
        self._handler.use(
            lambda handler: handler.delete_dir_contents(
                path, accept_root_dir=False, missing_dir_ok=missing_dir_ok
            )
        )

    def delete_root_dir_contents(self) -> None:
        self._handler.use(lambda handler: handler.delete_root_dir_contents())

    def delete_file(self, path: str) -> None:
        self._handler.use(lambda handler: handler.delete_file(path))

    def move(self, source: str, target: str) -> None:
        self._handler.use(lambda handler: handler.move(source, target))

    def copy_file(self, source: str, target: str) -> None:
        self._handler.use(lambda handler: handler.copy_file(source, target))

    def open_input_stream(self, path: str) -> Any:
        return self._handler.use(lambda handler: handler.open_input_stream(path))

    def open_input_file(self, path: str) -> Any:
        return self._handler.use(lambda handler: handler.open_input_file(path))

    def open_output_stream(self, path: str, metadata: Any) -> Any:
        return self._handler.use(lambda handler: handler.open_output_stream(path, metadata))

    def open_append_stream(self, path: str, metadata: Any) -> Any:
        return self._handler.use(lambda handler: handler.open_append_stream(path, metadata))


# --- Unity Catalog -------------------------------------------------------------------------------


class UnityCatalog:
    """Asks a Unity Catalog for credentials of a path, as whoever `databricks-sdk` finds.

    Databricks names itself in its jobs; elsewhere DATABRICKS_HOST and what the SDK knows, such as
    DATABRICKS_TOKEN, do, also for an open Unity Catalog.
    """

    def __init__(self) -> None:
        """Look for nobody yet."""
        self._identity: Any = None

    def lend(self, location: str, provider: Provider) -> Loan:
        """Ask once. Raises: AccessDeniedError, StorageUnavailableError, EnvironmentProblemError."""
        requests = _package("requests")
        host, headers = self._signed(location)
        try:
            # Not by the SDK's own client: at level debug it logs answers.
            answer = requests.post(
                f"{host}{PATH}", json={"url": location, "operation": provider.operation},
                headers=headers, timeout=ANSWER_TIMEOUT_S, allow_redirects=False,
            )  # fmt: skip
        except requests.RequestException as error:
            problem = f"{_ASKED} at {host}: no answer ({type(error).__name__}); asked again later"
            raise StorageUnavailableError(location, problem) from None
        return _loan(location, host, answer)

    def _signed(self, location: str) -> tuple[str, Mapping[str, str]]:
        """Return the address of the catalog, and headers that say who asks."""
        core = _package("databricks.sdk.core")
        try:
            self._identity = self._identity or core.Config()
            return str(self._identity.host).rstrip("/"), self._identity.authenticate()
        # Whatever the SDK raises where it finds nobody, or cannot reach who knows them.
        except Exception as error:
            problem = f"{_ASKED}: databricks-sdk knows no identity here ({type(error).__name__})"
            step = "set DATABRICKS_HOST and what its authentication needs (docs/databricks.md)"
            raise AccessDeniedError(location, f"{problem}; {step}") from error


_ASKED = "Unity Catalog was asked for credentials"
_TEXTS_SHOWN = 200
_DENIED, _BUSY, _ERRORS = (400, 401, 403, 404), 429, 500
# Its answer has one of these objects; the option of delta-rs and obstore for each of its fields.
_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "aws_temp_credentials": {
        "access_key_id": "aws_access_key_id",
        "secret_access_key": "aws_secret_access_key",
        "session_token": "aws_session_token",
    },
    "r2_temp_credentials": {
        "access_key_id": "aws_access_key_id",
        "secret_access_key": "aws_secret_access_key",
        "session_token": "aws_session_token",
    },
    "azure_user_delegation_sas": {"sas_token": "azure_storage_sas_token"},
    "azure_aad": {"aad_token": "azure_storage_token"},
}


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        problem = f"the credentials are lent by Unity Catalog, which needs {name.partition('.')[0]}"
        raise EnvironmentProblemError(problem, step_for_extra("databricks")) from error


def _loan(location: str, host: str, answer: Any) -> Loan:
    """Read an answer; no text that is shown holds a value of it but the catalog's own message."""
    if answer.status_code != 200:  # noqa: PLR2004 - OK
        raise _refusal(location, host, answer)
    try:
        content = answer.json()
        end_ms = int(content["expiration_time"])
        options = _options(content)
    except (ValueError, TypeError, KeyError, AttributeError):
        problem = f"{_ASKED} at {host}: the answer has none, or no expiration_time"
        raise StorageUnavailableError(location, f"{problem}; is it a Unity Catalog?") from None
    if not options:
        problem = f"{_ASKED} at {host}: the answer has none that delta-rs takes"
        step = "it takes no token of Google's; set the variables of its own tools (docs/places.md)"
        raise AccessDeniedError(location, f"{problem}; {step}")
    return Loan(options, end_ms - _catalog_ms(answer) - SECOND_MS)


def _options(content: Mapping[str, Any]) -> dict[str, str]:
    return {
        option: str(content[part][field])
        for part, fields in _OPTIONS.items()
        if content.get(part)
        for field, option in fields.items()
        if content[part].get(field)
    }


def _catalog_ms(answer: Any) -> int:
    """Return the catalog's time: the end is by its clock, and this machine's may be wrong."""
    try:
        return milliseconds(parsedate_to_datetime(answer.headers["Date"]))
    except (KeyError, ValueError, TypeError):
        return SystemClock().now_ms()


def _refusal(location: str, host: str, answer: Any) -> AccessDeniedError | StorageUnavailableError:
    """Make the error for an answer that is none."""
    problem = f"{_ASKED} at {host}: it answered {answer.status_code}{_message(answer)}"
    if answer.status_code in _DENIED:
        step = "the principal needs EXTERNAL USE LOCATION on the external location of this path"
        return AccessDeniedError(location, f"{problem}; {step} (docs/databricks.md)")
    return StorageUnavailableError(location, f"{problem}; asked again later")


def _message(answer: Any) -> str:
    try:
        text = str(answer.json()["message"])
    except (ValueError, TypeError, KeyError):
        return ""
    return f" ({shown(text[:_TEXTS_SHOWN])})"
