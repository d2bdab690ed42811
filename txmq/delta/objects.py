"""The objects of one table on a disk or an object store: put, put if absent, delete."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import AlreadyExistsError, PreconditionError
from obstore.store import LocalStore, from_url

from txmq.delta.forks import begin_use
from txmq.delta.rooted import inside

if TYPE_CHECKING:
    from obstore.store import ObjectStore

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
_OF_DELTA_RS = ("aws_s3_allow_unsafe_rename", "aws_s3_locking_provider", "delta_", "max_retries")


class Objects:
    """Writes objects by their paths relative to one table. Safe for several threads."""

    def __init__(self, location: str, options: Mapping[str, str]) -> None:
        """Open nothing yet; `options` are those of delta-rs."""
        self.location = location
        self._options = options

    @property
    def is_remote(self) -> bool:
        """Whether each look costs a request."""
        return "://" in self.location

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

    def _opened(self) -> ObjectStore:
        # As delta-rs, obstore starts threads at its first use, which a fork does not copy.
        begin_use()
        return self._store

    @cached_property
    def _store(self) -> ObjectStore:
        if not self.is_remote:
            return LocalStore(self.location)
        config, client = _split(self._options)
        return from_url(self.location, config=config, client_options=client or None)  # type: ignore[call-overload, no-any-return]


def _split(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the store, and those of its client."""
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for key, value in options.items():
        name = key.lower().removeprefix("aws_") if _is_of_the_client(key) else key.lower()
        if _is_of_the_client(key):
            client[name] = value
        elif not name.startswith(_OF_DELTA_RS):
            config[name] = value
    return config, client


def _is_of_the_client(key: str) -> bool:
    return key.lower().removeprefix("aws_") in _OF_THE_CLIENT
