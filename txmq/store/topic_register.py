"""Settings of all topics: one value in `state/topics`, swapped as the other registers are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from txmq.errors import TopicConflictError
from txmq.store.register import Register, Registered
from txmq.store.topic_settings import TopicSettings

_NOTHING = Registered(0, {})


@dataclass(frozen=True, slots=True)
class RegisteredTopics:
    """What is known of topics.

    Attributes:
        settings: by the name of the topic; one that was made by its first message has none.
        deleted: names of topics that were deleted; their tables are empty since then.
        seen: what it was read from.
    """

    settings: Mapping[str, TopicSettings] = field(default_factory=dict)
    deleted: frozenset[str] = frozenset()
    seen: Registered = _NOTHING

    def with_settings(self, topic: str, settings: TopicSettings) -> RegisteredTopics:
        """The same with one topic's settings set; it is not deleted any more."""
        return RegisteredTopics(
            {**self.settings, topic: settings}, self.deleted - {topic}, self.seen
        )

    def with_deleted(self, topic: str) -> RegisteredTopics:
        """The same without one topic."""
        kept = {name: own for name, own in self.settings.items() if name != topic}
        return RegisteredTopics(kept, self.deleted | {topic}, self.seen)


class TopicRegister:
    """Reads and swaps what is known of topics; the table is made with the first settings."""

    def __init__(self, register: Register) -> None:
        """Hold a register of our own; nothing is opened yet."""
        self._register = register
        self._is_there = False

    def read(self) -> RegisteredTopics:
        """The newest value; 0 commits. Raises: StorageError, StoreFormatError."""
        self._is_there = self._is_there or self._register.table.exists()
        if not self._is_there:
            return RegisteredTopics()
        seen = self._register.read()
        kept = seen.value.get("settings", {})
        settings = {name: TopicSettings.from_value(name, value) for name, value in kept.items()}
        return RegisteredTopics(settings, frozenset(seen.value.get("deleted", ())), seen)

    def swap(self, after: RegisteredTopics, now_ms: int) -> None:
        """Put `after` in the place of what it was read from: one commit, or CommitRefusedError."""
        value = {
            "settings": {name: own.to_value() for name, own in after.settings.items()},
            "deleted": sorted(after.deleted),
        }
        self._register.swap(after.seen, value, now_ms)


def check_spelling(topic: str, names: Iterable[str]) -> None:
    """Raise TopicConflictError where one of `names` differs from a topic in case alone."""
    for other in names:
        if other != topic and other.lower() == topic.lower():
            rule = f"the topic {other} differs only in case; use that name"
            raise TopicConflictError("topic", topic, rule)
