"""What a store keeps of its settings: only what cannot act (decision 0038).

A class, a URL, the name of a variable or a path in the tables of a store would make who writes
these tables act as the operator who opens it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import yaml

from txmq.errors import shown
from txmq.store.config import Config

logger = logging.getLogger(__name__)

ACTING_KEYS = tuple(spec.name for spec in fields(Config) if spec.metadata.get("acts"))
_NAMES_MAX = 5
HOW_TO_MOVE = (
    "pass them in a settings file (--config FILE), in the variables TXMQ_LISTENERS and "
    "TXMQ_CLAIM_KEYS, or in Python by Broker(store, listeners=…)"
)


@dataclass(frozen=True, slots=True)
class KeptSettings:
    """The settings of a store, and what stands there but is not taken.

    Attributes:
        config: what the store says and cannot act.
        ignored: the acting keys of the store with their values; nothing of it was loaded.
    """

    config: Config
    ignored: Mapping[str, Any] = field(default_factory=dict)


def settings_of(kept: Mapping[str, Any]) -> KeptSettings:
    """Read what a store says about its settings.

    Raises: ConfigError.
    """
    ignored = {key: kept[key] for key in ACTING_KEYS if kept.get(key)}
    inert = {key: value for key, value in kept.items() if key not in ACTING_KEYS}
    return KeptSettings(Config.from_dict(inert), ignored)


def to_keep(config: Config) -> dict[str, Any]:
    """Return the settings that a store keeps, as plain values."""
    return {key: value for key, value in config.to_dict().items() if key not in ACTING_KEYS}


def warn_of_ignored(location: str, ignored: Mapping[str, Any]) -> None:
    """Log what was not taken from the store, and how to move it."""
    if not ignored:
        return
    names = ignored_names(ignored)
    more = "" if len(names) <= _NAMES_MAX else f" and {len(names) - _NAMES_MAX:,} more"
    logger.warning(
        "store %s names what could act; this was ignored: %s%s. If you trust it, %s; "
        "txmq doctor shows the lines",
        location, "; ".join(names[:_NAMES_MAX]), more, HOW_TO_MOVE,
    )  # fmt: skip


def warn_of_unkept(config: Config) -> None:
    """Log which settings a new store does not keep."""
    for key in ACTING_KEYS:
        if entries := getattr(config, key):
            groups = ", ".join(map(shown, entries))
            logger.warning("the store keeps no %s (%s): %s", key, groups, HOW_TO_MOVE)


def ignored_names(ignored: Mapping[str, Any]) -> list[str]:
    """Name each ignored setting: `listeners: orders (package.module:Class)`."""
    names = []
    for key, value in ignored.items():
        entries = value if isinstance(value, Mapping) else {}
        names += [f"{key}: {shown(group)} ({shown(_reference(entry))})"
                  for group, entry in entries.items()] or [key]  # fmt: skip
    return names


def _reference(entry: object) -> object:
    if not isinstance(entry, Mapping):
        return entry
    return entry.get("class") or entry.get("variable")


def as_yaml(ignored: Mapping[str, Any]) -> str:
    """Return the ignored settings as lines of a settings file, in ASCII."""
    return yaml.safe_dump(dict(ignored), allow_unicode=False, sort_keys=True)
