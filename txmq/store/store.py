"""A store: one location, its tables and its settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from txmq.delta.credentials import storage_options_of
from txmq.delta.folder import is_remote, spark_location
from txmq.errors import (
    CommitRefusedError,
    ConfigError,
    ReadOnlyStoreError,
    StoreExistsError,
    StoreFormatError,
    StoreNotFoundError,
    TopicNotFoundError,
    shown,
)
from txmq.ground.clock import Clock, SystemClock
from txmq.message.names import check_readable_topic
from txmq.store.config import FIXED_KEYS, Config
from txmq.store.register import Register
from txmq.store.stored_settings import settings_of, to_keep, warn_of_ignored, warn_of_unkept
from txmq.store.tables import StoreTables, check_folder, plain_location

# Folder of the services' checkpoints; each start of a service has one that no other start reads.
SERVICE_CHECKPOINTS = "services"
# Is at a location that is being restored; the settings, which make it a store, come last.
RESTORE_BEGUN = "txmq-restore.begun.json"
# On an object store logs without news are looked at so many times less often.
IDLE_LOOKS = 5


class Store:
    """One location with the tables of one txmq, and the settings in use.

    A Store holds no open files and no threads; it needs no `close()`.

    Attributes:
        location: an absolute path or a URI.
        config: the settings in use.
        ignored: what the store's own settings name and nobody loads, because it could act.
        storage_options: how delta-rs reaches the location, such as credentials. Those that a
            catalog lends are other ones after a while; `dict(store.storage_options)` is of now.
        tables: handles of logs, topics and registers. This is internal to txmq and may change in
            any version; users do not need it.

    Example:
        >>> store = Store.create("/lake/txmq", Config(transaction_check_max=3))
        >>> store.topics()
        []
        >>> store = Store.open("/lake/txmq")
    """

    def __init__(
        self, location: str, config: Config, *, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Call `Store.create` or `Store.open` instead."""
        self.location = location
        self.config = config
        self.ignored: Mapping[str, Any] = {}
        self.storage_options = storage_options_of(location, storage_options)
        self.tables = StoreTables(location, config, self.storage_options)

    @classmethod
    def create(
        cls,
        location: str | os.PathLike[str],
        config: Config | None = None,
        *,
        storage_options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> Store:
        """Make a new store that keeps its settings, but for the listeners.

        The listeners of `config` act in the returned object alone: a store that named classes could
        act as whoever opens it. Pass them again to `open`, or to `Broker`, in each process.

        Commits: one for each of its seven tables, and one that writes the settings.

        Retry: call it again; a creation that did not reach its last commit is completed. Of several
        processes that create a store at once the first wins, and the others get StoreExistsError.

        Args:
            location: a path or a URI. A relative path becomes absolute.
            config: the settings to keep, and listeners for this process; defaults without it.
            storage_options: how delta-rs reaches the location.
            clock: gives the time in the tables; the system's clock by default.

        Raises:
            StoreExistsError: the location holds a store already; call `open`.
            StoreFormatError: there are transactions, and their settings are gone; or a restore that
                was not finished.
            ConfigError: the location is no path or URI that txmq can use.
            ReadOnlyStoreError: the location refuses writes.
            UnsupportedPlaceError: its file system has no hard links, as volumes of Databricks.
            StoreFullError: no space is left.
            StorageError: a table cannot be read or written for another reason.
        """
        chosen = Config() if config is None else _checked_config(config)
        place = plain_location(location)
        check_folder(place)
        store = cls(place, chosen, storage_options=storage_options)
        settings = store.tables.register("config")
        if store.tables.table_at("op").exists() and settings.exists and settings.read().revision:
            raise StoreExistsError(
                store.location, "holds a store already; open it, or call open_or_create"
            )
        if store.tables.has_file(RESTORE_BEGUN):
            problem = "holds a restore that was not finished; run txmq restore again, or remove it"
            raise StoreFormatError(store.location, problem)
        _check_unused(store)
        try:
            store.tables.create_all()
        except ReadOnlyStoreError as error:
            raise ReadOnlyStoreError(store.location, f"its table {error}") from error
        store._keep_settings(settings, (clock or SystemClock()).now_ms())
        warn_of_unkept(chosen)
        return store

    @classmethod
    def open(
        cls,
        location: str | os.PathLike[str],
        config: Config | None = None,
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> Store:
        """Open the store at `location` with its kept settings, or with `config`; 0 commits.

        Listeners that the store names are not loaded; a warning names them.

        Args:
            location: a path or a URI, as for `create`.
            config: replaces the kept settings in this object; the store keeps its own.
            storage_options: how delta-rs reaches the location.

        Raises:
            StoreNotFoundError: there is no store at this location.
            StoreFormatError: the store was not created completely, or its settings cannot be read.
            IncompatibleVersionError: a newer txmq wrote the store.
            ConfigError: the location is not usable, a kept setting is out of bounds, or `config`
                differs in a key that is fixed at creation.
            StorageError: the settings cannot be read.
        """
        store = cls(plain_location(location), Config(), storage_options=storage_options)
        register = store.tables.register("config")
        if not register.exists:
            if not store.is_remote:
                # delta-rs finds no table in a folder that this process may not enter.
                register.table.folder.has_commit(0)
            raise StoreNotFoundError(store.location, "holds no store; make one with txmq init")
        seen = register.read()
        if not seen.revision:
            raise StoreFormatError(store.location, "was not created completely; create it again")
        settings = settings_of(seen.value)
        warn_of_ignored(store.location, settings.ignored)
        opened = store._with(settings.config, settings.ignored)
        return opened if config is None else opened.with_settings(config)

    @classmethod
    def open_or_create(
        cls,
        location: str | os.PathLike[str],
        config: Config | None = None,
        *,
        storage_options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> Store:
        """Open the store at `location`; make it if there is none.

        What a program calls that may be the first one, or run again. Of several processes that make
        a store at once one makes it, and the others open it.

        Commits: 0 if there is a store, else as `create`. Retry: call it again.

        Args:
            location: a path or a URI, as for `create`.
            config: kept if the store is made, and used by the returned object in any case.
            storage_options: how delta-rs reaches the location.
            clock: as for `create`.

        Raises: as `open` and `create`, but never StoreNotFoundError or StoreExistsError. A store
            with transactions whose settings are gone is a StoreFormatError.
        """
        try:
            return cls.open(location, config, storage_options=storage_options)
        except (StoreNotFoundError, StoreFormatError):
            # Its creation may have ended half-way.
            with suppress(StoreExistsError):
                return cls.create(location, config, storage_options=storage_options, clock=clock)
        return cls.open(location, config, storage_options=storage_options)

    @property
    def is_remote(self) -> bool:
        """Whether it is in an object store, where each look costs a request."""
        return is_remote(self.location)

    def look_interval_s(self, interval_s: float, *, is_idle: bool = False) -> float:
        """Return the time between two looks at a log; on an object store at least the setting's.

        Args:
            interval_s: what suits a disk.
            is_idle: for a log without news: on an object store IDLE_LOOKS times as long.
        """
        if not self.is_remote:
            return interval_s
        factor = IDLE_LOOKS if is_idle else 1
        return max(interval_s, factor * self.config.remote_look_interval_s)

    def with_settings(self, config: Config) -> Store:
        """Return the same store with other settings, which are used but not kept; 0 commits.

        Args:
            config: replaces all settings.

        Raises:
            ConfigError: `config` differs in a key that is fixed at creation.

        Example:
            >>> store.with_settings(store.config.replace(transaction_check_max=3))
        """
        return self._with(_checked_fixed_keys(self.config, config), self.ignored)

    def _with(self, config: Config, ignored: Mapping[str, Any]) -> Store:
        store = Store(self.location, config, storage_options=self.storage_options)
        store.ignored = ignored
        return store

    def topics(self) -> list[str]:
        """List the names of the topics that have a table, sorted; 0 commits.

        A deleted topic is left out until its next message.

        Raises:
            StorageError: the store cannot be listed or read.
        """
        names = self.tables.topic_names()
        deleted = self.tables.topic_register().read().deleted.intersection(names)
        return [name for name in names if name not in deleted or self._has_rows(name)]

    def _has_rows(self, topic: str) -> bool:
        return bool(self.tables.table_at(f"topics/{topic}").files.all())

    def topic_location(self, topic: str) -> str:
        """Return the location of a topic's table, which any Delta reader can load; 0 commits.

        On S3 it begins with s3a://, which Spark knows as all others do.

        Args:
            topic: the stored name.

        Raises:
            TopicNotFoundError: no message was published to the topic yet.
            InvalidNameError: the name is not allowed.

        Example:
            >>> spark.readStream.format("delta").load(store.topic_location("order-paid"))
        """
        table = self.tables.table_at(f"topics/{check_readable_topic(topic)}")
        if not table.exists():
            problem = (
                "has no table yet: a broker makes it with the first message that was committed; "
                "is one running? See txmq status"
            )
            raise TopicNotFoundError(topic, problem)
        return spark_location(table.location)

    def checkpoint_location(self, service: str) -> str:
        """Return the location for the streaming checkpoint of a reader, by its name; 0 commits."""
        return f"{spark_location(self.location)}/checkpoints/{service}"

    def _keep_settings(self, settings: Register, now_ms: int) -> None:
        """Make the last commit of a creation; of several concurrent creators the first wins."""
        problem = "was made by another process; open it"
        seen = settings.read()
        if seen.revision:
            raise StoreExistsError(self.location, problem)
        try:
            settings.swap(seen, to_keep(self.config), now_ms)
        except CommitRefusedError as error:
            raise StoreExistsError(self.location, problem) from error


def _checked_config(config: object) -> Config:
    if not isinstance(config, Config):
        problem = f"config must be a Config, not {type(config).__name__}"
        raise ConfigError([f"{problem}; make one with Config.from_dict or Config.from_yaml"])
    return config


def _check_unused(store: Store) -> None:
    """Refuse a store with transactions, because defaults must not replace their settings.

    Raises: StoreFormatError.
    """
    op = store.tables.table_at("op")
    if op.exists() and op.version:
        problem = "has transactions, but not its settings; restore state/config"
        raise StoreFormatError(store.location, problem)


def _checked_fixed_keys(stored: Config, given: Config) -> Config:
    config = _checked_config(given)
    faults = [
        f"{key} is fixed at creation: the store has {getattr(stored, key)!r}, "
        f"not {getattr(config, key)!r}"
        for key in FIXED_KEYS
        if getattr(stored, key) != getattr(config, key)
    ]
    if faults:
        raise ConfigError(faults)
    return config


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


def check_store(store: object) -> None:
    """Refuse what is no opened store, such as its location. Raises: ConfigError."""
    if not isinstance(store, Store):
        problem = f"store must be a Store, not {shown(store)}"
        raise ConfigError([f"{problem}; open it first, by Store.open(location)"])


def service_checkpoint_location(store: Store, start: str) -> str:
    """Return the location for the checkpoint of one start of a service, until that service ends."""
    return store.checkpoint_location(f"{SERVICE_CHECKPOINTS}/{start}")
