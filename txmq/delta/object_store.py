"""Opens a folder of an object store by obstore, with the options that delta-rs gets."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from obstore.store import from_url

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
_OF_DELTA_RS = ("aws_s3_allow_unsafe_rename", "aws_s3_locking_provider", "delta_", "backoff")
_MAX_RETRIES, _RETRY_TIMEOUT = "max_retries", "retry_timeout"
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h)", re.ASCII)
_UNIT_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600}


def is_remote(location: str) -> bool:
    """Whether a location is in an object store: each look costs a request there."""
    return "://" in location


def spark_location(location: str) -> str:
    """A location as Spark spells it: Hadoop knows S3 as s3a, which all other readers know too."""
    return f"s3a://{location[5:]}" if location[:5].lower() == "s3://" else location


def opened(location: str, options: Mapping[str, str]) -> ObjectStore:
    """The folder; nothing is asked yet."""
    config, client = _split(options)
    return from_url(  # type: ignore[call-overload, no-any-return]
        location, config=config, client_options=client or None, retry_config=_retries(options)
    )


def _split(options: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings of the store, and those of its client."""
    config: dict[str, Any] = {}
    client: dict[str, Any] = {}
    for key, value in options.items():
        name = key.lower().removeprefix("aws_") if _is_of_the_client(key) else key.lower()
        if _is_of_the_client(key):
            client[name] = value
        elif not name.startswith(_OF_DELTA_RS) and name not in {_MAX_RETRIES, _RETRY_TIMEOUT}:
            config[name] = value
    return config, client


def _is_of_the_client(key: str) -> bool:
    return key.lower().removeprefix("aws_") in _OF_THE_CLIENT


def _retries(options: Mapping[str, str]) -> Any:
    """How often and how long a request is tried again; None for what obstore does by itself."""
    retries: dict[str, Any] = {}
    if str(options.get(_MAX_RETRIES, "")).isdecimal():
        retries[_MAX_RETRIES] = int(options[_MAX_RETRIES])
    duration = _DURATION.fullmatch(str(options.get(_RETRY_TIMEOUT, "")).strip())
    if duration is not None:
        timeout_s = int(duration[1]) * _UNIT_S[duration[2]]
        retries[_RETRY_TIMEOUT] = dt.timedelta(seconds=timeout_s)
    return retries or None
