"""The service that registers the tables of a store in a schema of a catalog, as external ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from txmq.delta.folder import spark_location
from txmq.errors import CatalogError, ConfigError, EnvironmentProblemError
from txmq.ground.handles import ThreadHandle, is_survivable
from txmq.ground.sessions import is_connect
from txmq.spark.queries import end_of_java_told
from txmq.spark.sql_views import (
    LOG_PREFIX,
    LOGS,
    CatalogSchema,
    hidden_topics,
    names_in_catalog,
    view_statements,
)
from txmq.store.store import Store, check_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


logger = logging.getLogger(__name__)

INTERVAL_S = 30.0
_LOCATION = "Location"
_TOPICS = "topics/"


@dataclass(frozen=True, slots=True)
class CatalogResult:
    """What one call registered.

    Attributes:
        made: the names that are new in the catalog.
        failed: tables that have no name there, each with the reason.
    """

    made: tuple[str, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)


class CatalogTables:
    """Registers topics and logs of a store, so that people read `main.messages.order_paid`.

    The tables stay where they are: the catalog gets external tables, and its rights count for who
    reads by name. Nothing is ever removed from the catalog. Not safe for several threads.

    Args:
        store: the store; its location must be one that the catalog may name.
        spark: a session of the catalog; one of Spark Connect too.
        catalog: a schema that is there, such as `messages` or `main.messages`. It is named by who
            runs the service and never by the store (decision 0038).

    Example:
        >>> CatalogTables(store, spark=spark, catalog="main.messages").run_once().failed
        {}
    """

    def __init__(self, store: Store, *, spark: SparkSession, catalog: str) -> None:
        """Read nothing yet. Raises: ConfigError for a name that is no schema."""
        check_store(store)
        self.store, self.schema = store, CatalogSchema.parse(catalog)
        self._spark: Any = spark
        self._done: set[str] = set()
        self._viewed: tuple[Mapping[str, str], frozenset[str]] | None = None
        self._told: dict[str, str] = {}

    def run_once(self) -> CatalogResult:
        """Register each topic and log that has no name yet, and the views.

        Commits: 0; the catalog gets one external table for each topic and log, and a view. Retry:
        call it again; what is there already stays.

        Raises:
            CatalogError: the schema is not there.
            EnvironmentProblemError: Spark's Java process has ended.
            StorageError: the store cannot be listed.
        """
        if not self._has_schema():
            cure = f"make it first: CREATE SCHEMA {self.schema}"
            raise CatalogError(str(self.schema), f"is no schema of this session; {cure}")
        topics = self.store.topics()
        tables, failed = _tables(topics)
        made: list[str] = []
        for name, path in tables.items():
            if name not in self._done:
                self._attempt(name, partial(self._register, name, path, made), failed)
        self._make_views(self._named(tables), hidden_topics(self.store, topics), failed)
        self._tell(failed)
        return CatalogResult(tuple(made), failed)

    def start(self) -> CatalogHandle:
        """Register new topics every INTERVAL_S in a thread until `stop()`. Retries: as run_once.

        Returns: the handle; the end of Spark's Java process ends its thread.
        """
        return CatalogHandle(self)

    def _has_schema(self) -> bool:
        # Spark Connect has no Java here, and its network may come back.
        told = nullcontext() if is_connect(self._spark) else end_of_java_told()
        with told:
            return bool(self._spark.catalog.databaseExists(str(self.schema)))

    def _make_views(
        self, named: Mapping[str, str], deleted: frozenset[str], failed: dict[str, str]
    ) -> None:
        """Make the views anew where topics got a name or were deleted since."""
        if (named, deleted) == self._viewed:
            return
        statements = view_statements(self.schema, named, deleted)
        for name, statement in statements.items():
            self._attempt(name, partial(self._spark.sql, statement), failed)
        if not failed.keys() & statements.keys():
            self._viewed = named, deleted

    def _named(self, tables: Mapping[str, str]) -> dict[str, str]:
        """Return the topics that have a name by now."""
        return {
            path.removeprefix(_TOPICS): name
            for name, path in tables.items()
            if name in self._done and path.startswith(_TOPICS)
        }

    def _attempt(self, name: str, work: Callable[[], object], failed: dict[str, str]) -> None:
        """Do one table; its failure must not keep the others out of the catalog."""
        try:
            work()
        except Exception as error:
            logger.debug("%s was not registered", name, exc_info=True)
            failed[name] = _first_line(error)

    def _register(self, name: str, path: str, made: list[str]) -> None:
        whole = self.schema.table(name)
        location = spark_location(f"{self.store.location}/{path}")
        if self._spark.catalog.tableExists(whole):
            self._check_place(whole, location)
        else:
            self._spark.catalog.createTable(whole, path=location, source="delta")
            made.append(name)
        self._done.add(name)

    def _check_place(self, whole: str, location: str) -> None:
        """Raise CatalogError if the name is that of another table."""
        rows = self._spark.sql(f"DESCRIBE TABLE EXTENDED {whole}")
        found = {row["col_name"]: row["data_type"] for row in rows.collect()}.get(_LOCATION, "")
        if _plain(found) != _plain(location):
            raise CatalogError(
                whole, f"is a table at {found}, not at {location}; drop or rename it"
            )

    def _tell(self, failed: Mapping[str, str]) -> None:
        for name, problem in failed.items():
            if self._told.get(name) != problem:
                logger.warning("%s has no name in %s: %s", name, self.schema, problem)
        self._told = dict(failed)


class CatalogHandle(ThreadHandle):
    """A thread that registers new topics."""

    def __init__(self, tables: CatalogTables) -> None:
        """Start at once; `CatalogTables.start()` makes it."""
        super().__init__("catalog", INTERVAL_S)
        self._tables = tables
        self.last_error: BaseException | None = None
        self.begin()

    def _turn(self) -> None:
        try:
            self._tables.run_once()
            self.last_error = None
        except EnvironmentProblemError:
            # Java has ended, and no later turn has another one.
            raise
        except BaseException as error:
            if not is_survivable(error):
                raise
            self.last_error = error
            logger.exception("the tables were not registered in %s", self._tables.schema)


def _tables(topics: Collection[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Map names to paths in the store; list the problems of topics without a name."""
    names, problems = names_in_catalog(topics)
    paths = {name: f"{_TOPICS}{topic}" for topic, name in names.items()}
    return {**{LOG_PREFIX + log: log for log in LOGS}, **paths}, dict(problems)


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _plain(location: str) -> str:
    """Spell a place in one way: without `file:`, and a bucket by `s3:` as by `s3a:`."""
    path = location.removeprefix("file://").removeprefix("file:").rstrip("/")
    return path.replace("s3a://", "s3://", 1)


def catalog_tables(
    store: Store, spark: SparkSession | None, catalog: str | None
) -> CatalogTables | None:
    """Make the service of a broker, or None without a catalog. Raises: ConfigError."""
    if catalog is None:
        return None
    if spark is None:
        raise ConfigError([f"catalog {catalog!r} needs a session of Spark: pass spark="])
    return CatalogTables(store, spark=spark, catalog=catalog)
