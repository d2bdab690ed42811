"""The objects of one table on a disk or an object store: put, put if absent, delete."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txmq.delta.forks import begin_use
from txmq.delta.rooted import inside

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# A draft of a file that a process was killed over; maintenance removes it.
DRAFT_SUFFIX = ".tmp"
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
        """Write an object of a new name, which nobody reads before a commit names it."""
        if self.is_remote:
            import obstore

            obstore.put(self._remote(), inside(path), content, use_multipart=False)
        else:
            self._local(path).write_bytes(content)

    def put_new(self, path: str, content: bytes) -> bool:
        """Write an object unless there is one of this name, in one step; whether it was written."""
        return (
            self._put_new_remote(path, content) if self.is_remote else self._linked(path, content)
        )

    def replace(self, path: str, content: bytes) -> None:
        """Write an object in place of one of this name; readers see all of one or of the other."""
        if self.is_remote:
            self.put(path, content)
            return
        target = self._local(path)
        draft = _draft_of(target)
        try:
            draft.write_bytes(content)
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)

    def delete(self, path: str) -> None:
        """Delete an object, if it is there."""
        with suppress(FileNotFoundError):
            if self.is_remote:
                import obstore

                obstore.delete(self._remote(), inside(path))
            else:
                self._local(path).unlink()

    # --- on a disk ----------------------------------------------------------------------------

    def _local(self, path: str) -> Path:
        return Path(self.location, inside(path))

    def _linked(self, path: str, content: bytes) -> bool:
        """A link to a whole file appears at once, and only where there is none (decision 0045)."""
        target = self._local(path)
        draft = _draft_of(target)
        try:
            draft.write_bytes(content)
            os.link(draft, target)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        return True

    # --- on an object store -------------------------------------------------------------------

    def _remote(self) -> ObjectStore:
        begin_use()
        return self._store

    @cached_property
    def _store(self) -> ObjectStore:
        # On a disk nothing needs it, and it takes a while to load.
        from obstore.store import from_url

        config, client = _split(self._options)
        return from_url(self.location, config=config, client_options=client or None)  # type: ignore[call-overload, no-any-return]

    def _put_new_remote(self, path: str, content: bytes) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        store = self._remote()
        try:
            obstore.put(store, inside(path), content, mode="create", use_multipart=False)
        except (AlreadyExistsError, PreconditionError):
            return False
        return True


def _draft_of(target: Path) -> Path:
    return target.with_name(f".{target.name}.{uuid.uuid4()}{DRAFT_SUFFIX}")


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
