"""The tables of a store and its location, for txmq's own packages; users do not need them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow.fs as pa_fs

from txmq.delta.credentials import storage_options_of
from txmq.delta.failures import read_errors
from txmq.delta.folder import rooted_filesystem
from txmq.delta.schemas import TableSchema
from txmq.delta.table import Table
from txmq.errors import ConfigError, InvalidNameError, StoreFormatError, shown
from txmq.ground.fail_points import FailPoint, reached
from txmq.message.body_schema import BodySchema
from txmq.message.names import SCHEDULE_TOPIC, check_readable_topic, check_stored_group
from txmq.store.config import Config
from txmq.store.half import HalfLog
from txmq.store.logs import Logs
from txmq.store.op import ClaimKeys, OpLog
from txmq.store.register import Register
from txmq.store.schemas import HALF, OP, OPEN_SET, REGISTER, SCHEDULE, SETTLED, TOPIC
from txmq.store.set_aside import claims_set_aside
from txmq.store.settled import ScheduleLog, SettledLog, mark_id
from txmq.store.topic import (
    BODY_SCHEMA_PROPERTY,
    TopicLog,
    check_body_schema,
    set_body_schema,
    typed_schema,
)
from txmq.store.topic_settings import TopicRegister, TopicsValue

# Made with the store.
REGISTERS = ("config", "publisher", "check_lease", "maintenance")
# Made with their first value.
OPTIONAL_REGISTERS = ("brokers", "delay", "set_aside", "topics")
# Prefixes: one register for each group, made with its first value.
REMOTE, CONSUMER_GROUP, DEAD_LETTERS = "remote_", "group_", "dead_letters_"
_OF_GROUPS = (REMOTE, CONSUMER_GROUP, DEAD_LETTERS)
# The folder of all registers.
STATE = "state/"
# What rechecks keep of the logs; it is derived from them.
OPEN_TRANSACTIONS = f"{STATE}open_transactions"
_TOPICS = "topics/"
_LOGS = {"half": HALF, "op": OP, "settled": SETTLED}
# Object stores that put a file only where there is none.
SCHEMES = ("s3", "s3a", "abfss", "abfs", "az", "azure", "adl", "gs")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/", re.ASCII)
# Mounts of Databricks: they can neither link nor rename, so no commit can be put there once.
_MOUNTED = re.compile(r"/(Volumes|dbfs)(/|$)|dbfs:", re.ASCII)
_CATALOG_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){1,2}", re.ASCII)
# delta-rs decodes % twice, so that its folder differs from Spark's. The others make it panic.
_BENDS_PATHS = re.compile(r"[%\\^|\[\]\x00-\x1f\x7f\ud800-\udfff]")


class StoreTables:
    """Gives access to logs, topics and registers, and makes their tables.

    Each call returns a new object with its own table handle, because threads must not share
    handles. A handle opens its table at its first use.

    Attributes:
        claim_keys: the keys of the groups whose claims are signed.
    """

    def __init__(
        self, location: str, config: Config, storage_options: Mapping[str, str] | None = None
    ) -> None:
        """Open nothing yet. Raises: ConfigError for a key of claims that is not there."""
        self.location = location
        self._config, self._options = config, storage_options_of(location, storage_options)
        self.claim_keys = ClaimKeys.of(config)

    # --- logs --------------------------------------------------------------------------------

    def logs(self, *, believes_unknown: bool = False) -> Logs:
        """Return half, op, settled and schedule with the handles of one reader.

        `believes_unknown` is as in OpLog.
        """
        settled, op = self.table_at("settled"), self.op_log(believes_unknown=believes_unknown)
        half, schedule = self.half_log(), self.schedule_log()
        return Logs(half, op, settled, schedule, partial(claims_set_aside, self))

    def half_log(self) -> HalfLog:
        """Return the half log."""
        return HalfLog(self.table_at("half"))

    def op_log(self, *, believes_unknown: bool = False) -> OpLog:
        """Return the op log; `believes_unknown` is as in OpLog."""
        return OpLog(self.table_at("op"), self.claim_keys, believes_unknown=believes_unknown)

    def settled_log(self, op_table_id: str) -> SettledLog:
        """Return the settled log with its mark for the op log of this id."""
        return SettledLog(self.table_at("settled"), op_table_id)

    def schedule_log(self) -> ScheduleLog:
        """Return the schedule; its table may not exist yet."""
        return ScheduleLog(self._topic_table(SCHEDULE_TOPIC))

    def open_set(self) -> Table:
        """Return the table of the open transactions, which need not exist."""
        return self.table_at(OPEN_TRANSACTIONS)

    def create_open_set(self) -> None:
        """Make the table of the open transactions if there is none: one commit."""
        self._create(OPEN_SET, OPEN_TRANSACTIONS)

    # --- topics ------------------------------------------------------------------------------

    def topic_log(self, topic: str, op_table_id: str) -> TopicLog:
        """Return a topic; its table may not exist yet, see `create_topic`."""
        return TopicLog(topic, self._topic_table(topic), mark_id(op_table_id))

    def create_topic(self, topic: str, *, exactly: bool = False) -> None:
        """Make the table of a topic if there is none, and have it take the bodies of its settings.

        `exactly` as in `set_body_schema`.

        Commits: one for a new table; up to two if its body schema changes.

        Raises: BodySchemaConflictError if it has messages with another body schema.
        """

        def read() -> BodySchema | None:
            settings = self.topic_register().read().settings.get(topic)
            return None if settings is None else settings.body_schema

        path, body = _TOPICS + check_readable_topic(topic), read()
        if body is None:
            self._create(_topic_schema(topic), path)
        else:
            self._create(typed_schema(body), path, {BODY_SCHEMA_PROPERTY: body.to_json()})
        set_body_schema(self._topic_table(topic), topic, read, exactly=exactly)

    def check_body_schema(self, topic: str, body: BodySchema | None) -> None:
        """Raise BodySchemaConflictError or StorageError if its table cannot take these bodies."""
        table = self._topic_table(topic)
        if table.exists():
            check_body_schema(table, topic, body)

    def topic_folders(self) -> list[str]:
        """List the names in the folder of the topics; a folder may lack its table."""
        return self._folders("topics")

    def topic_names(self) -> list[str]:
        """List the topics that have a table, including deleted ones."""
        names = [name for name in self._folders("topics") if _is_topic(name)]
        tables = {name: self.table(_topic_schema(name), _TOPICS + name) for name in names}
        return sorted(name for name, table in tables.items() if table.exists())

    # --- registers ---------------------------------------------------------------------------

    def register(self, name: str, form: Any = None, *, create: bool = False) -> Register:
        """Return a register by its name.

        Args:
            name: one of REGISTERS, which always exist, or of OPTIONAL_REGISTERS, or a prefix
                (REMOTE, CONSUMER_GROUP, DEAD_LETTERS) and the stored name of a group.
            form: the class that describes its value; a value of another shape is refused. Without
                it, do not read the value, or check it by yourself.
            create: make its table if there is none (one commit). Without it, ask `exists`.
        """
        path = STATE + name
        if create:
            self._create(REGISTER, path)
        return Register(self.table(REGISTER, path), form)

    def topic_register(self, *, create: bool = False) -> TopicRegister:
        """Return the register of topic settings; `create` as in `register`."""
        return TopicRegister(self.register("topics", TopicsValue, create=create))

    def groups_with(self, prefix: str) -> list[str]:
        """List the stored names of the groups that have a register of this prefix."""
        return [
            name.removeprefix(prefix)
            for name in self._folders("state")
            if name.startswith(prefix) and not _has_strange_group(name)
        ]

    # --- all tables --------------------------------------------------------------------------

    def create_all(self) -> None:
        """Make the logs and REGISTERS: one commit each."""
        for path, schema in _LOGS.items():
            self._create(schema, path)
        for name in REGISTERS:
            self._create(REGISTER, STATE + name)

    def table_paths(self) -> list[str]:
        """List the paths of all tables of the store, under its location."""
        open_set = [OPEN_TRANSACTIONS] if self.open_set().exists() else []
        return [*_LOGS, *self.register_paths(), *open_set, *self.topic_paths()]

    def topic_paths(self) -> list[str]:
        """List the paths of the topics that have a table."""
        return [_TOPICS + name for name in self.topic_names()]

    def has_file(self, name: str) -> bool:
        """Tell whether a file of this name lies beside the tables; one look."""
        with read_errors(name):
            (info,) = rooted_filesystem(self.location, self._options).get_file_info([name])
        return bool(info.type is not pa_fs.FileType.NotFound)

    def strange_paths(self) -> list[str]:
        """List folders of topics and groups whose names txmq gives to none; nothing reads them."""
        topics = [name for name in self._folders("topics") if not _is_topic(name)]
        groups = [name for name in self._folders("state") if _has_strange_group(name)]
        return [*(_TOPICS + name for name in topics), *(STATE + name for name in groups)]

    def table_at(self, path: str) -> Table:
        """Return the table at one of `table_paths`."""
        if path in _LOGS:
            return self.table(_LOGS[path], path)
        if path.startswith(_TOPICS):
            return self._topic_table(path.removeprefix(_TOPICS))
        return self.table(OPEN_SET if path == OPEN_TRANSACTIONS else REGISTER, path)

    def table(self, schema: TableSchema, path: str) -> Table:
        """Return the table at a path; it need not exist."""
        return Table(
            f"{self.location}/{path}",
            schema,
            self._options,
            commit_attempts=self._config.commit_attempts,
        )

    def _topic_table(self, topic: str) -> Table:
        return self.table(_topic_schema(topic), _TOPICS + check_readable_topic(topic))

    def register_paths(self) -> list[str]:
        """List the paths of the registers; one that was just made may lack its table."""
        folders = self._folders("state")
        optional = [name for name in OPTIONAL_REGISTERS if name in folders]
        of_groups = [
            name for name in folders if name.startswith(_OF_GROUPS) and not _has_strange_group(name)
        ]
        return [STATE + name for name in (*REGISTERS, *optional, *of_groups)]

    def _folders(self, parent: str) -> list[str]:
        filesystem = rooted_filesystem(self.location, self._options)
        selector = pa_fs.FileSelector(parent, allow_not_found=True)
        with read_errors(parent):
            try:
                entries = filesystem.get_file_info(selector)
            except FileNotFoundError:
                # Another process made the folder during the listing.
                entries = filesystem.get_file_info(selector)
        return sorted(info.base_name for info in entries if info.type is pa_fs.FileType.Directory)

    def _create(
        self, schema: TableSchema, path: str, properties: Mapping[str, str] | None = None
    ) -> None:
        self.table(schema, path).writer.create(self._config.checkpoint_interval, properties)
        reached(FailPoint.STORE_TABLE_CREATED)


def _topic_schema(topic: str) -> TableSchema:
    return SCHEDULE if topic == SCHEDULE_TOPIC else TOPIC


def _is_topic(folder: str) -> bool:
    return _is_accepted(check_readable_topic, folder)


def _has_strange_group(register: str) -> bool:
    """Tell whether it is the register of a group that cannot have this name."""
    prefix = next((prefix for prefix in _OF_GROUPS if register.startswith(prefix)), None)
    return prefix is not None and not _is_accepted(
        check_stored_group, register.removeprefix(prefix)
    )


def _is_accepted(check: Callable[[object], str], name: str) -> bool:
    try:
        check(name)
    except InvalidNameError:
        return False
    return True


# --- locations ------------------------------------------------------------------------------------


def plain_location(location: str | os.PathLike[str]) -> str:
    """Return a location as an absolute path without links, or as a URI without a trailing slash.

    Raises: ConfigError.
    """
    unchecked: object = location
    text = os.fspath(unchecked) if isinstance(unchecked, str | os.PathLike) else None
    if not isinstance(text, str) or not text.strip():
        raise ConfigError([f"location must be a path or a URI, not {shown(location)}"])
    if _MOUNTED.match(text) and sys.platform != "darwin":
        problem = (
            "cannot hold a store: volumes and DBFS have neither links nor renames; use the URI of "
            "an external location (s3://, abfss://, gs://), or a folder of a disk"
        )
        raise ConfigError([f"location {shown(text)} {problem}"])
    if text.lower().startswith("file:"):
        return _absolute(unquote(_path_of_file_uri(text)), text)
    if _CATALOG_NAME.fullmatch(text):
        problem = "is the name of a catalog, which txmq cannot use; for a folder write ./name"
        raise ConfigError([f"location {shown(text)} {problem}"])
    if text == "~" or text.startswith("~/"):
        problem = "begins with ~, which only a shell replaces; write the whole path, or ./~"
        raise ConfigError([f"location {shown(text)} {problem}"])
    if _SCHEME.match(text) is None:
        return _absolute(text, text)
    if text.partition(":")[0].lower() not in SCHEMES:
        problem = f"has a scheme that txmq cannot use; known are {', '.join(SCHEMES)} and file"
        raise ConfigError([f"location {shown(text)} {problem}"])
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


def check_folder(location: str) -> None:
    """Refuse a path that is a file or leads through one. Raises: StoreFormatError."""
    for place in (Path(location), *Path(location).parents):
        if place.is_file():
            raise StoreFormatError(location, f"{place} is a file; give a folder")
