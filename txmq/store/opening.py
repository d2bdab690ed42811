"""How commands and jobs come to their store: with its settings, a file's, and the environment's."""

from __future__ import annotations

from pathlib import Path

from txmq.store.config import Config
from txmq.store.store import Store


def open_store(location: str, config_file: str | Path | None = None) -> Store:
    """The store with its own settings, or those of a file; variables (TXMQ_…) come before both.

    Raises: those of `Store.open`; ConfigError for a variable that is misspelt or out of bounds.
    """
    store = Store.open(location)
    base = store.config if config_file is None else Config.from_yaml(config_file)
    return store.with_settings(Config.from_env(base=base))


def create_store(location: str, config_file: str | Path | None = None) -> Store:
    """A new store that keeps these settings: defaults, before them a file's, then variables."""
    base = None if config_file is None else Config.from_yaml(config_file)
    return Store.create(location, Config.from_env(base=base))
