"""What a topic is: its kind, its queues, how long it keeps messages (RocketMQ's topic config)."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txmq.errors import BodySchemaError, ConfigError, StoreFormatError, TopicConflictError, shown
from txmq.message.body_schema import BodySchema, parsed_schema
from txmq.store.register import Register, Registered

_NOTHING = Registered(0, {})

MAX_QUEUE_NUMS = 4096


class TopicKind(enum.StrEnum):
    """Which messages a topic takes (RocketMQ 5: message.type); UNSPECIFIED takes all of them."""

    UNSPECIFIED = "UNSPECIFIED"
    NORMAL = "NORMAL"
    FIFO = "FIFO"
    DELAY = "DELAY"
    TRANSACTION = "TRANSACTION"


_SENT_AS = {
    TopicKind.NORMAL: "an ordinary message",
    TopicKind.FIFO: "a message with a sharding_key",
    TopicKind.DELAY: "a delayed message",
    TopicKind.TRANSACTION: "a message of a transaction",
}


def kind_of(*, is_transactional: bool, is_delayed: bool, has_sharding_key: bool) -> TopicKind:
    """The kind of a message; of several the first counts, as in RocketMQ 5."""
    if is_transactional:
        return TopicKind.TRANSACTION
    if is_delayed:
        return TopicKind.DELAY
    return TopicKind.FIFO if has_sharding_key else TopicKind.NORMAL


def kind_problem(
    kind: TopicKind, *, is_transactional: bool, is_delayed: bool, has_sharding_key: bool
) -> str | None:
    """Why a topic of this kind does not take a message, and which one does; None if it does."""
    sent = kind_of(
        is_transactional=is_transactional, is_delayed=is_delayed, has_sharding_key=has_sharding_key
    )
    if kind in (TopicKind.UNSPECIFIED, sent):
        return None
    return (
        f"its kind is {kind}: it takes {_SENT_AS[kind]}, and this is {_SENT_AS[sent]}; "
        f"send it to a topic of kind {sent} or {TopicKind.UNSPECIFIED}"
    )


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """What an operator has said about a topic; `body_schema` is `body`, read.

    Args:
        kind: which messages it takes.
        queue_nums: how many queues it has.
        reserved_time_h: age at which maintenance may take messages away; None keeps them for ever.
        body: the schema of its bodies, see BodySchema; None takes any bytes.

    Raises: ConfigError with every fault at once.
    """

    kind: TopicKind
    queue_nums: int
    reserved_time_h: float | None = None
    body: Mapping[str, Any] | None = field(default=None, hash=False)
    body_schema: BodySchema | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Refuse what could not be kept."""
        faults = [
            *_kind_faults(self.kind),
            *_queue_faults(self.queue_nums),
            *_reserved_faults(self.reserved_time_h),
            *_body_faults(self.body),
        ]
        if faults:
            raise ConfigError(faults)
        object.__setattr__(self, "kind", TopicKind(self.kind))
        if self.body is not None:
            # A copy, so that nobody changes it afterwards.
            kept = parsed_schema(json.dumps(dict(self.body)))
            object.__setattr__(self, "body", kept.to_dict())
            object.__setattr__(self, "body_schema", kept)

    @classmethod
    def from_value(cls, topic: str, value: Mapping[str, Any]) -> TopicSettings:
        """What the register holds. Raises: StoreFormatError."""
        try:
            return cls(
                TopicKind(value["kind"]),
                value["queue_nums"],
                value.get("reserved_time_h"),
                value.get("body"),
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            problem = f"holds settings of the topic {topic} that cannot be read ({error})"
            raise StoreFormatError("state/topics", problem) from error

    def to_value(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "kind": self.kind.value,
            "queue_nums": self.queue_nums,
            "reserved_time_h": self.reserved_time_h,
            "body": None if self.body is None else dict(self.body),
        }


def _kind_faults(kind: object) -> list[str]:
    names = [each.value for each in TopicKind]
    return [] if kind in names else [f"kind must be one of {', '.join(names)}, not {shown(kind)}"]


def _queue_faults(queue_nums: object) -> list[str]:
    if type(queue_nums) is int and 1 <= queue_nums <= MAX_QUEUE_NUMS:
        return []
    return [f"queue_nums must be from 1 to {MAX_QUEUE_NUMS:,}, not {shown(queue_nums)}"]


def _reserved_faults(hours: object) -> list[str]:
    is_number = isinstance(hours, int | float) and not isinstance(hours, bool)
    if hours is None or (is_number and math.isfinite(float(str(hours))) and float(str(hours)) > 0):
        return []
    return [f"reserved_time_h must be above 0, or None for ever, not {shown(hours)}"]


def _body_faults(body: object) -> list[str]:
    if body is None:
        return []
    if not isinstance(body, Mapping):
        return [f"body must be a mapping, not {type(body).__name__}"]
    try:
        BodySchema.parse(dict(body))
    except BodySchemaError as error:
        return [f"body: {fault}" for fault in error.faults]
    return []


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
