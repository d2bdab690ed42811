"""What a producer knows of topics, read again every `topic_refresh_s`."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING

from txmq.errors import TopicKindError, TopicNotFoundError
from txmq.message.body_schema import BodySchema
from txmq.message.names import is_group_topic, is_system_topic
from txmq.store.topic_settings import RegisteredTopics, TopicKind, TopicSettings, kind_problem

if TYPE_CHECKING:
    from txmq.store.store import Store


class TopicCatalog:
    """Settings of topics, kept for a while. Safe for many threads; 0 commits.

    What it allows may be `topic_refresh_s` old; what it refuses was looked up just now, for an
    operator may have changed it a moment ago.
    """

    def __init__(self, store: Store) -> None:
        """Read nothing yet."""
        self._store = store
        self._register = store.tables.topic_register()
        self._lock = threading.Lock()
        self._known = RegisteredTopics()
        self._tables: frozenset[str] | None = None
        self._read_at_s = -math.inf

    def settings(self, topic: str) -> TopicSettings | None:
        """What an operator has said about a topic; None where nobody has. Raises: StorageError."""
        # Without the lock: it is asked for several times a message, by all threads at once.
        if self._is_old():
            with self._lock:
                if self._is_old():
                    self._read()
        return self._known.settings.get(topic)

    def _is_old(self) -> bool:
        return time.monotonic() - self._read_at_s >= self._store.config.topic_refresh_s

    def queue_count(self, topic: str) -> int:
        """How many queues a topic has, or would have."""
        if is_group_topic(topic):
            return 1
        settings = self.settings(topic)
        if settings is None:
            return self._store.config.default_topic_queue_nums
        return settings.queue_nums

    def refresh(self) -> None:
        """Forget what was read before."""
        with self._lock:
            self._read()

    def check_is_there(self, topic: str) -> None:
        """Raise TopicNotFoundError for an unknown topic that is not made by its first message."""
        if self._store.config.auto_create_topic_enable or is_system_topic(topic):
            return
        if self._is_there(topic):
            return
        self.refresh()
        if not self._is_there(topic):
            problem = "is not there, and auto_create_topic_enable is false; "
            raise TopicNotFoundError(topic, f"{problem}make it with txmq topics create")

    def check_kind(
        self, topic: str, *, is_transactional: bool, is_delayed: bool, has_sharding_key: bool
    ) -> None:
        """Raise TopicKindError where the topic does not take such messages."""
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

    def body_schema(self, topic: str) -> BodySchema | None:
        """What the bodies of a topic must be; None if they may be any bytes."""
        settings = self.settings(topic)
        return None if settings is None else settings.body_schema

    def check_body(self, topic: str, body: bytes) -> None:
        """Raise InvalidBodyError where a topic does not take such a body."""
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

    def _read(self) -> None:
        self._known, self._tables = self._register.read(), None
        self._read_at_s = time.monotonic()
