"""A store: one location, its tables and its settings."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import unquote

import pyarrow.fs as pa_fs

from txmq.clock import Clock, SystemClock
from txmq.delta.pinned import rooted_filesystem
from txmq.delta.schemas import (
    COMMITTER_PROPERTY,
    HALF,
    OP,
    REGISTER,
    SCHEDULE,
    SETTLED,
    TOPIC,
    TableSchema,
)
from txmq.delta.storage import Table
from txmq.errors import (
    CommitRefusedError,
    ConfigError,
    StoreExistsError,
    StoreFormatError,
    StoreNotFoundError,
    TopicNotFoundError,
    shown,
)
from txmq.fail_points import FailPoint, reached
from txmq.message.body_schema import BodySchema
from txmq.message.names import SCHEDULE_TOPIC, check_readable_topic, check_stored_group
from txmq.store.config import FIXED_KEYS, Config
from txmq.store.half import HalfLog
from txmq.store.logs import Logs
from txmq.store.op import OpLog
from txmq.store.register import Register
from txmq.store.schedule import ScheduleLog
from txmq.store.settled import SettledLog, mark_id
from txmq.store.topic import TopicLog
from txmq.store.topic_settings import TopicRegister
from txmq.store.typed import BODY_SCHEMA_PROPERTY, check_body_schema, set_body_schema, typed_schema

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/", re.ASCII)
_CATALOG_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){1,2}", re.ASCII)
# delta-rs decodes % twice, so that its folder is not Spark's, and panics at the others.
_BENDS_PATHS = re.compile(r"[%\\^|\[\]\x00-\x1f\x7f\ud800-\udfff]")

REGISTERS = ("config", "publisher", "check_lease", "maintenance")
# Made with their first value.
OPTIONAL_REGISTERS = ("delay", "topics")
_PREFIX = "remote_"
_DEAD_LETTERS = "dead_letters_"
_GROUP_PREFIX = "group_"
_TOPICS = "topics/"
_LOGS = {"half": HALF, "op": OP, "settled": SETTLED}
# Each start of a service has a checkpoint of its own there, which no other start reads.
SERVICE_CHECKPOINTS = "services"


class Store:
    """The tables under one location.

    Each call of `half_log()` and its like gives a new object with a handle of its own, for
    handles are not shared between threads.

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

        Raises: StoreExistsError, ReadOnlyStoreError, StoreFullError.
        """
        store = cls(_plain(location), config or Config(), storage_options=storage_options)
        settings = store.register("config")
        if store.table_at("op").exists() and settings.table.exists() and settings.read().revision:
            raise StoreExistsError(store.location, "holds a store already; open it")
        for path, schema in _LOGS.items():
            store._create(schema, path)
        for name in REGISTERS:
            store._create(REGISTER, f"state/{name}")
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
        store = cls(_plain(location), Config(), storage_options=storage_options)
        settings = store.register("config")
        if not settings.table.exists():
            raise StoreNotFoundError(store.location, "holds no store; make one with txmq init")
        seen = settings.read()
        if not seen.revision:
            raise StoreFormatError(store.location, "was not made to its end; create it again")
        store.config = Config.from_dict(seen.value)
        return store if config is None else store.with_settings(config)

    def with_settings(self, config: Config) -> Store:
        """The same store with `config` in the place of its settings; they are not kept.

        Raises: ConfigError where a key differs that is fixed at creation.
        """
        changed = _agreeing(self.config, config)
        return Store(self.location, changed, storage_options=self.storage_options)

    # --- tables ------------------------------------------------------------------------------

    def table(self, schema: TableSchema, path: str) -> Table:
        """A new handle on one table of the store."""
        return Table(
            f"{self.location}/{path}",
            schema,
            self.storage_options,
            commit_attempts=self.config.commit_attempts,
        )

    def half_log(self) -> HalfLog:
        """The half log."""
        return HalfLog(self.table_at("half"))

    def op_log(self) -> OpLog:
        """The op log."""
        return OpLog(self.table_at("op"))

    def settled_log(self, op_table_id: str) -> SettledLog:
        """The settled log, as it follows the op log of this id."""
        return SettledLog(self.table_at("settled"), op_table_id)

    def logs(self) -> Logs:
        """Half, op, settled and schedule with handles of one reader."""
        return Logs(self.half_log(), self.op_log(), self.table_at("settled"), self.schedule_log())

    def topic_log(self, topic: str, op_table_id: str) -> TopicLog:
        """A topic, which may not be there yet; see `create_topic`."""
        return TopicLog(topic, self._topic_table(topic), mark_id(op_table_id))

    def schedule_log(self) -> ScheduleLog:
        """The messages that wait for their time; its table may not be there yet."""
        return ScheduleLog(self._topic_table(SCHEDULE_TOPIC))

    def create_topic(self, topic: str) -> None:
        """Make the table of a topic if it is not there, and let it take the bodies of its settings.

        Raises: BodySchemaConflictError where it has messages of other bodies.
        """
        settings = self.topic_register().read().settings.get(topic)
        path = _TOPICS + check_readable_topic(topic)
        body = None if settings is None else settings.body_schema
        if body is None:
            self._create(_topic_schema(topic), path)
        else:
            self._create(typed_schema(body), path, {BODY_SCHEMA_PROPERTY: body.to_json()})
        set_body_schema(self._topic_table(topic), topic, body)

    def check_body_schema(self, topic: str, body: BodySchema | None) -> None:
        """Raise BodySchemaConflictError or StorageError where its table cannot take such bodies."""
        table = self._topic_table(topic)
        if table.exists():
            check_body_schema(table, topic, body)

    def register(self, name: str) -> Register:
        """One of REGISTERS."""
        return Register(self.table_at(f"state/{name}"))

    def topic_register(self, *, create: bool = False) -> TopicRegister:
        """What operators have said about topics."""
        if create:
            self.made_register("topics")
        return TopicRegister(Register(self.table_at("state/topics")))

    def optional_register(self, name: str) -> Register | None:
        """One of OPTIONAL_REGISTERS; None where nobody has needed it yet."""
        table = self.table(REGISTER, f"state/{name}")
        return Register(table) if table.exists() else None

    def made_register(self, name: str) -> Register:
        """One of OPTIONAL_REGISTERS, made where it is not there."""
        self._create(REGISTER, f"state/{name}")
        return Register(self.table(REGISTER, f"state/{name}"))

    def group_register(self, kind: str, group: str, *, create: bool = False) -> Register:
        """The register of a group by its stored name; `kind` is a prefix such as `group_`."""
        path = f"state/{kind}{group}"
        if create:
            self._create(REGISTER, path)
        return Register(self.table(REGISTER, path))

    def groups_of(self, kind: str) -> list[str]:
        """Stored names of the groups that have such a register."""
        return self._groups(kind)

    def _groups(self, prefix: str) -> list[str]:
        names = self._folders("state")
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    def dead_letter_register(self, consumer_group: str) -> Register | None:
        """What operators did with a group's dead letters; None where they did nothing yet."""
        return self.optional_register(_dead_letter_name(consumer_group))

    def made_dead_letter_register(self, consumer_group: str) -> Register:
        """The same, made where it is not there."""
        return self.made_register(_dead_letter_name(consumer_group))

    def _registers(self) -> list[str]:
        there = self._folders("state")
        optional = [name for name in OPTIONAL_REGISTERS if name in there]
        kinds = (_PREFIX, _GROUP_PREFIX, _DEAD_LETTERS)
        of_groups = [name for name in there if name.startswith(kinds)]
        return [f"state/{name}" for name in (*REGISTERS, *optional, *of_groups)]

    def table_paths(self) -> list[str]:
        """Where the tables of the store are, under its location."""
        return [*_LOGS, *self._registers(), *(_TOPICS + name for name in self._topic_names())]

    def table_at(self, path: str) -> Table:
        """A new handle on the table at one of `table_paths`."""
        if path in _LOGS:
            return self.table(_LOGS[path], path)
        if path.startswith(_TOPICS):
            return self._topic_table(path.removeprefix(_TOPICS))
        return self.table(REGISTER, path)

    def topics(self) -> list[str]:
        """Names of the topics that have a table; a deleted one has none until its next message."""
        names = self._topic_names()
        deleted = self.topic_register().read().deleted.intersection(names)
        return [name for name in names if name not in deleted or self._has_rows(name)]

    def _topic_names(self) -> list[str]:
        names = self._folders("topics")
        tables = {name: self.table(_topic_schema(name), _TOPICS + name) for name in names}
        return sorted(name for name, table in tables.items() if table.exists())

    def _topic_table(self, topic: str) -> Table:
        return self.table(_topic_schema(topic), _TOPICS + check_readable_topic(topic))

    def _has_rows(self, topic: str) -> bool:
        return bool(self.table_at(f"topics/{topic}").files())

    def _folders(self, parent: str) -> list[str]:
        filesystem = rooted_filesystem(self.location, self.storage_options)
        selector = pa_fs.FileSelector(parent, allow_not_found=True)
        try:
            found = filesystem.get_file_info(selector)
        except FileNotFoundError:
            # Another process made the first one while we looked.
            found = filesystem.get_file_info(selector)
        return sorted(info.base_name for info in found if info.type is pa_fs.FileType.Directory)

    def topic_location(self, topic: str) -> str:
        """Where `spark.readStream.format("delta").load(…)` finds a topic.

        Raises: TopicNotFoundError before the first message was published to it.
        """
        table = self._topic_table(topic)
        if not table.exists():
            problem = "has no table yet; it is made with its first committed message"
            raise TopicNotFoundError(topic, problem)
        return table.location

    def checkpoint_location(self, service: str) -> str:
        """Where a reader keeps its streaming checkpoint."""
        return f"{self.location}/checkpoints/{service}"

    def service_checkpoint_location(self, start: str) -> str:
        """Where one start of a service keeps its checkpoint until it ends."""
        return self.checkpoint_location(f"{SERVICE_CHECKPOINTS}/{start}")

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

    def _create(
        self, schema: TableSchema, path: str, properties: Mapping[str, str] | None = None
    ) -> None:
        extra = {COMMITTER_PROPERTY: self.config.committer, **(properties or {})}
        self.table(schema, path).create(self.config.checkpoint_interval, extra)
        reached(FailPoint.STORE_TABLE_CREATED)


def _plain(location: str | os.PathLike[str]) -> str:
    """One name for one store: an absolute path without links, or a URI without a last slash."""
    given: object = location
    text = os.fspath(given) if isinstance(given, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip():
        raise ConfigError([f"location must be a path or a URI, not {shown(location)}"])
    if text.lower().startswith("file:"):
        return _absolute(unquote(_path_of_file_uri(text)), text)
    if _CATALOG_NAME.fullmatch(text):
        problem = "is a catalog's name, which this version cannot hold; for a folder write ./name"
        raise ConfigError([f"location {shown(text)} {problem}"])
    if _SCHEME.match(text) is None:
        return _absolute(text, text)
    if not text.partition("://")[2].strip("/"):
        raise ConfigError([f"location {shown(text)} must be a path or scheme://bucket/folder"])
    return _checked(text, text).rstrip("/")


def _path_of_file_uri(text: str) -> str:
    rest = text[len("file:") :]
    if not rest.startswith("//"):
        return rest
    host, slash, path = rest[2:].partition("/")
    if host not in ("", "localhost"):
        raise ConfigError(
            [f"location {shown(text)} names the host {shown(host)}; use file:///path"]
        )
    return slash + path


def _absolute(path: str, text: str) -> str:
    absolute = os.path.realpath(_checked(path, text))
    return "/" + _checked(absolute, text).lstrip("/")


def _checked(path: str, text: str) -> str:
    if not path or _BENDS_PATHS.search(path):
        problem = "must name a folder, without % \\ ^ | [ ] and control characters"
        raise ConfigError([f"location {shown(text)} {problem}"])
    return path


def _dead_letter_name(consumer_group: str) -> str:
    return _DEAD_LETTERS + check_stored_group(consumer_group, "consumer_group")


def _topic_schema(topic: str) -> TableSchema:
    return SCHEDULE if topic == SCHEDULE_TOPIC else TOPIC


def _agreeing(kept: Config, given: Config) -> Config:
    faults = [
        f"{key} is fixed at creation ({getattr(kept, key)!r}), not {getattr(given, key)!r}"
        for key in FIXED_KEYS
        if getattr(kept, key) != getattr(given, key)
    ]
    if faults:
        raise ConfigError(faults)
    return given
