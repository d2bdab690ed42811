"""Opens and creates stores for commands and jobs, with settings of files and variables."""

from __future__ import annotations

from pathlib import Path

from txmq.store.config import Config
from txmq.store.store import Store


def open_store(location: str, config_file: str | Path | None = None) -> Store:
    """Open a store with its kept settings or those of a file; variables (TXMQ_…) override both.

    Raises: as `Store.open`; ConfigError for a variable that is misspelt or out of bounds.
    """
    store = Store.open(location)
    base = store.config if config_file is None else Config.from_yaml(config_file)
    return store.with_settings(Config.from_env(base=base))


def create_store(location: str, config_file: str | Path | None = None) -> Store:
    """Create a store that keeps the defaults, overridden by a file, overridden by variables.

    Raises: as `Store.create`; ConfigError for a variable that is misspelt or out of bounds.
    """
    base = None if config_file is None else Config.from_yaml(config_file)
    return Store.create(location, Config.from_env(base=base))
