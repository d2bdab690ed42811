"""A store: one location, its tables and its settings."""

from __future__ import annotations

import os
from collections.abc import Mapping

from txmq.clock import Clock, SystemClock
from txmq.errors import (
    CommitRefusedError,
    ConfigError,
    StoreExistsError,
    StoreFormatError,
    StoreNotFoundError,
    TopicNotFoundError,
)
from txmq.message.names import check_readable_topic
from txmq.store.config import FIXED_KEYS, Config
from txmq.store.location import plain_location
from txmq.store.register import Register
from txmq.store.tables import StoreTables

# Each start of a service has a checkpoint of its own there, which no other start reads.
SERVICE_CHECKPOINTS = "services"


class Store:
    """The tables under one location, and the settings that they were made with.

    Attributes:
        location: an absolute path or a URI.
        config: the settings in use.
        storage_options: how delta-rs reaches the location.
        tables: logs, topics and registers. This is txmq's own wiring: it has no promise of staying
            as it is, and users need none of it.

    Example:
        >>> store = Store.create(location)
        >>> store.topics()
        []
    """

    def __init__(
        self, location: str, config: Config, *, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Use `create` or `open`."""
        self.location = location
        self.config = config
        self.storage_options = dict(storage_options or {})
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
        """Make a new store: seven tables, one commit each, and one for its settings.

        Raises: StoreExistsError, ReadOnlyStoreError, StoreFullError, ConfigError (the location).
        """
        store = cls(plain_location(location), config or Config(), storage_options=storage_options)
        settings = store.tables.register("config")
        if store.tables.table_at("op").exists() and settings.exists and settings.read().revision:
            raise StoreExistsError(store.location, "holds a store already; open it")
        store.tables.create_all()
        store._keep_settings(settings, (clock or SystemClock()).now_ms())
        return store

    @classmethod
    def open(
        cls,
        location: str | os.PathLike[str],
        config: Config | None = None,
        *,
        storage_options: Mapping[str, str] | None = None,
    ) -> Store:
        """The store at `location` with the settings it was made with, or `config` in their place.

        Raises: StoreNotFoundError, StoreFormatError, IncompatibleVersionError, ConfigError.
        """
        store = cls(plain_location(location), Config(), storage_options=storage_options)
        settings = store.tables.register("config")
        if not settings.exists:
            raise StoreNotFoundError(store.location, "holds no store; make one with txmq init")
        seen = settings.read()
        if not seen.revision:
            raise StoreFormatError(store.location, "was not made to its end; create it again")
        kept = store._with(Config.from_dict(seen.value))
        return kept if config is None else kept.with_settings(config)

    def with_settings(self, config: Config) -> Store:
        """The same store with `config` in the place of its settings; they are not kept.

        Raises: ConfigError where a key differs that is fixed at creation.
        """
        return self._with(_agreeing(self.config, config))

    def _with(self, config: Config) -> Store:
        return Store(self.location, config, storage_options=self.storage_options)

    def topics(self) -> list[str]:
        """Names of the topics that have a table; a deleted one has none until its next message."""
        names = self.tables.topic_names()
        deleted = self.tables.topic_register().read().deleted.intersection(names)
        return [name for name in names if name not in deleted or self._has_rows(name)]

    def _has_rows(self, topic: str) -> bool:
        return bool(self.tables.table_at(f"topics/{topic}").files())

    def topic_location(self, topic: str) -> str:
        """Where `spark.readStream.format("delta").load(…)` finds a topic.

        Raises: TopicNotFoundError before the first message was published to it; InvalidNameError.
        """
        table = self.tables.table_at(f"topics/{check_readable_topic(topic)}")
        if not table.exists():
            problem = "has no table yet; it is made with its first committed message"
            raise TopicNotFoundError(topic, problem)
        return table.location

    def checkpoint_location(self, service: str) -> str:
        """Where a reader keeps its streaming checkpoint."""
        return f"{self.location}/checkpoints/{service}"

    def _keep_settings(self, settings: Register, now_ms: int) -> None:
        """The last step of a creation; of several creators at once it is the first that wins."""
        problem = "was made by another process; open it"
        seen = settings.read()
        if seen.revision:
            raise StoreExistsError(self.location, problem)
        try:
            settings.swap(seen, self.config.to_dict(), now_ms)
        except CommitRefusedError as error:
            raise StoreExistsError(self.location, problem) from error


def service_checkpoint_location(store: Store, start: str) -> str:
    """Where one start of a service keeps its checkpoint until it ends."""
    return store.checkpoint_location(f"{SERVICE_CHECKPOINTS}/{start}")


def _agreeing(kept: Config, given: Config) -> Config:
    faults = [
        f"{key} is fixed at creation ({getattr(kept, key)!r}), not {getattr(given, key)!r}"
        for key in FIXED_KEYS
        if getattr(kept, key) != getattr(given, key)
    ]
    if faults:
        raise ConfigError(faults)
    return given
