"""A producer's cache of topic settings, which is read again every `topic_refresh_s`."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from txmq.delta.failures import read_again
from txmq.errors import TopicKindError, TopicNotFoundError, TopicReadOnlyError
from txmq.message.body_schema import BodySchema
from txmq.message.names import is_group_topic, is_system_topic, shown_name
from txmq.store.config_faults import nearest_name
from txmq.store.topic_settings import RegisteredTopics, TopicKind, TopicSettings, kind_problem

if TYPE_CHECKING:
    from txmq.store.store import Store


class TopicCatalog:
    """A cache of topic settings. Safe for many threads; 0 commits.

    A message is accepted by settings that may be `topic_refresh_s` old. Before it is refused the
    settings are read again, because an operator may have changed them a moment ago. Its body is
    compared once more at the commit of its half, by settings that `look` has made new.

    Attributes:
        retyped: topics whose body schema changed while this catalog was used.
        retypings: how often any did; it only rises.
    """

    def __init__(self, store: Store) -> None:
        """Read nothing yet."""
        self._store = store
        self._register = store.tables.topic_register()
        self._lock = threading.Lock()
        self._registered = RegisteredTopics()
        self._tables: frozenset[str] | None = None
        self._read_at_s = -math.inf
        self.retyped: frozenset[str] = frozenset()
        self.retypings = 0

    def settings(self, topic: str) -> TopicSettings | None:
        """Return the settings of a topic; None if no operator has set any. Raises: StorageError."""
        # First without the lock: all threads call this several times for each message.
        if self._is_old():
            with self._lock:
                if self._is_old():
                    self._read()
        return self._registered.settings.get(topic)

    def _is_old(self) -> bool:
        return time.monotonic() - self._read_at_s >= self._store.config.topic_refresh_s

    def queue_count(self, topic: str) -> int:
        """Return the number of queues of a topic; of a new topic, the number it would get."""
        if is_group_topic(topic):
            return 1
        settings = self.settings(topic)
        if settings is None:
            return self._store.config.default_topic_queue_nums
        return settings.queue_nums

    def refresh(self) -> None:
        """Read the settings of all topics again. Raises: StorageError."""
        with self._lock:
            self._read()

    def look(self) -> int:
        """Read the settings again if somebody changed them; returns `retypings`.

        Costs one lookup of a file name where nobody did. Raises: StorageError.
        """
        with self._lock:
            if self._is_unread or read_again("state/topics", self._register.has_news):
                self._read()
            return self.retypings

    def check_is_there(self, topic: str) -> None:
        """Raise TopicNotFoundError for an unknown topic that is not made by its first message."""
        if self._store.config.auto_create_topic_enable or is_system_topic(topic):
            return
        if self._is_there(topic):
            return
        self.refresh()
        if not self._is_there(topic):
            problem = "does not exist, and auto_create_topic_enable is false; "
            raise TopicNotFoundError(topic, f"{problem}create it with txmq topics create")

    def check_kind(
        self, topic: str, *, is_transactional: bool, is_delayed: bool, has_sharding_key: bool
    ) -> None:
        """Raise TopicKindError if the topic does not take messages of this kind."""
        if self._kind(topic) is TopicKind.UNSPECIFIED:
            return
        sent = {
            "is_transactional": is_transactional,
            "is_delayed": is_delayed,
            "has_sharding_key": has_sharding_key,
        }
        if kind_problem(self._kind(topic), **sent) is None:
            return
        self.refresh()
        problem = kind_problem(self._kind(topic), **sent)
        if problem is not None:
            raise TopicKindError("topic", topic, problem)

    def check_writable(self, topic: str) -> None:
        """Raise TopicReadOnlyError for a topic that takes no messages now."""
        if not self._is_read_only(topic):
            return
        self.refresh()
        if self._is_read_only(topic):
            problem = "is read-only: it takes no messages now; see txmq topics alter --writable"
            raise TopicReadOnlyError("topic", topic, problem)

    def _is_read_only(self, topic: str) -> bool:
        settings = self.settings(topic)
        return settings is not None and settings.is_read_only

    def takes_anything(self, topic: str) -> bool:
        """Tell whether no operator has set a topic's kind or schema, so that nothing is checked.

        Raises: StorageError.
        """
        return self.settings(topic) is None

    def body_schema(self, topic: str) -> BodySchema | None:
        """Return the schema of a topic's bodies; None if the topic takes any bytes."""
        settings = self.settings(topic)
        return None if settings is None else settings.body_schema

    def check_body(self, topic: str, body: bytes) -> None:
        """Raise InvalidBodyError if the body does not have the topic's schema."""
        schema = self.body_schema(topic)
        if schema is None or schema.problem(body) is None:
            return
        self.refresh()
        schema = self.body_schema(topic)
        if schema is not None:
            schema.check(topic, body)

    def _kind(self, topic: str) -> TopicKind:
        settings = self.settings(topic)
        return TopicKind.UNSPECIFIED if settings is None else settings.kind

    def _is_there(self, topic: str) -> bool:
        if self.settings(topic) is not None:
            return True
        with self._lock:
            if self._tables is None:
                self._tables = frozenset(self._store.topics())
            return topic in self._tables

    @property
    def _is_unread(self) -> bool:
        return self._read_at_s == -math.inf

    def _read(self) -> None:
        before, after = self._registered, self._register.read()
        retyped = frozenset() if self._is_unread else _retyped(before, after)
        self._registered, self._tables = after, None
        self._read_at_s = time.monotonic()
        if retyped:
            self.retyped |= retyped
            self.retypings += 1


def unknown_topics(store: Store, topics: Iterable[str]) -> dict[str, str]:
    """Find the topics that nobody has made or written, each with the nearest name that is there.

    Args:
        store: the store of the topics.
        topics: stored names; those of txmq itself are known, but for those of groups.

    Commits: 0. Raises: StorageError.
    """
    missing = [
        name
        for name in topics
        if not _is_always_there(name) and not store.tables.table_at(f"topics/{name}").exists()
    ]
    if not missing:
        return {}
    registered = store.tables.topic_register().read().settings
    names = {*registered, *store.topics()}
    known = {shown_name(name) for name in names if not _is_always_there(name)}
    return {
        name: f"nobody has made or written it{nearest_name(shown_name(name), known)}"
        for name in missing
        if name not in registered
    }


def spellings_of_topics(store: Store) -> dict[str, list[str]]:
    """List the folders of the topics, by their names in small letters; one listing, 0 commits."""
    folders: dict[str, list[str]] = {}
    for folder in store.tables.topic_folders():
        folders.setdefault(folder.lower(), []).append(folder)
    return folders


def clashing_names(
    store: Store, names: Iterable[str], folders: Mapping[str, list[str]]
) -> dict[str, str]:
    """Map each of these topics that differs in case alone from another one to that one.

    `folders` are those of `spellings_of_topics`. Opens tables only where two of them clash.
    Commits: 0.
    """
    chosen: dict[str, str] = {}
    clashes: dict[str, str] = {}
    for name in sorted(names):
        others = [other for other in folders.get(name.lower(), []) if other != name]
        # A topic that was deleted, or whose table was never made, stands in nobody's way.
        others = [other for other in others if other in store.topics()] if others else []
        others += [chosen[name.lower()]] if name.lower() in chosen else []
        if others:
            clashes[name] = others[0]
        else:
            chosen[name.lower()] = name
    return clashes


def _is_always_there(topic: str) -> bool:
    return is_system_topic(topic) and not is_group_topic(topic)


def _retyped(before: RegisteredTopics, after: RegisteredTopics) -> frozenset[str]:
    """Find the topics whose body schema differs."""
    if before.seen.revision == after.seen.revision:
        return frozenset()
    names = before.settings.keys() | after.settings.keys()
    return frozenset(name for name in names if _body(before, name) != _body(after, name))


def _body(registered: RegisteredTopics, topic: str) -> object:
    settings = registered.settings.get(topic)
    return None if settings is None else settings.body
