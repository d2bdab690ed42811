"""Settings of topics: kind, queues, retention, body schema (RocketMQ's topic config)."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict

from txmq.delta.until_committed import until_committed
from txmq.errors import BodySchemaError, ConfigError, StoreFormatError, TopicConflictError, shown
from txmq.message.body_schema import BodySchema, parsed_schema
from txmq.store.register import Register, Registered

_NOTHING = Registered(0, {})
MAX_QUEUE_NUMS = 4096


class TopicKind(enum.StrEnum):
    """The kind of messages that a topic takes (RocketMQ 5: message.type).

    NORMAL takes ordinary messages without sharding_key and delay, FIFO ordinary messages with a
    sharding_key, DELAY delayed ordinary messages, TRANSACTION messages of transactions, and
    UNSPECIFIED all messages.
    """

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


def kind_problem(
    kind: TopicKind, *, is_transactional: bool, is_delayed: bool, has_sharding_key: bool
) -> str | None:
    """Tell why a topic of this kind takes no such message, and which kind does; None if it does."""
    sent = kind_of(
        is_transactional=is_transactional, is_delayed=is_delayed, has_sharding_key=has_sharding_key
    )
    if kind in (TopicKind.UNSPECIFIED, sent):
        return None
    return (
        f"its kind is {kind}: it takes {_SENT_AS[kind]}, and this is {_SENT_AS[sent]}; "
        f"send it to a topic of kind {sent} or {TopicKind.UNSPECIFIED}"
    )


def kind_of(*, is_transactional: bool, is_delayed: bool, has_sharding_key: bool) -> TopicKind:
    """Return the kind of a message; if several apply, the first one here counts (RocketMQ 5)."""
    if is_transactional:
        return TopicKind.TRANSACTION
    if is_delayed:
        return TopicKind.DELAY
    return TopicKind.FIFO if has_sharding_key else TopicKind.NORMAL


@dataclass(frozen=True, slots=True)
class TopicSettings:
    """The settings of a topic, which an operator sets with Topics.

    Attributes:
        body_schema: `body` as a BodySchema.

    Args:
        kind: the kind of messages that the topic takes.
        queue_nums: the number of its queues, from 1 to 4096.
        reserved_time_h: age at which maintenance may remove messages; None keeps them for ever.
        body: the schema of its bodies, see BodySchema; None takes any bytes.
        is_read_only: whether the topic takes no new messages for now.

    Raises:
        ConfigError: a value is not allowed; the error names all faults.

    Example:
        >>> TopicSettings(TopicKind.FIFO, queue_nums=8, reserved_time_h=72.0)
    """

    kind: TopicKind
    queue_nums: int
    reserved_time_h: float | None = None
    body: Mapping[str, Any] | None = field(default=None, hash=False)
    is_read_only: bool = False
    body_schema: BodySchema | None = field(default=None, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Check all values, and parse the body schema."""
        faults = [
            *_kind_faults(self.kind),
            *_queue_faults(self.queue_nums),
            *_reserved_faults(self.reserved_time_h),
            *_body_faults(self.body),
            *_flag_faults(self.is_read_only),
        ]
        if faults:
            raise ConfigError(faults)
        object.__setattr__(self, "kind", TopicKind(self.kind))
        if self.body is not None:
            # A copy, so that the caller cannot change it afterwards.
            schema = parsed_schema(json.dumps(dict(self.body)))
            object.__setattr__(self, "body", schema.to_dict())
            object.__setattr__(self, "body_schema", schema)

    @classmethod
    def from_value(cls, topic: str, value: Mapping[str, Any]) -> TopicSettings:
        """Make settings from the value in the register. Raises: StoreFormatError."""
        try:
            return cls(
                TopicKind(value["kind"]),
                value["queue_nums"],
                value.get("reserved_time_h"),
                value.get("body"),
                value.get("is_read_only", False),
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            problem = f"holds settings of the topic {topic} that cannot be read ({error})"
            raise StoreFormatError("state/topics", problem) from error

    def to_value(self) -> dict[str, Any]:
        """Return the settings as plain values, for JSON."""
        values = {
            "kind": self.kind.value,
            "queue_nums": self.queue_nums,
            "reserved_time_h": self.reserved_time_h,
            "body": None if self.body is None else dict(self.body),
        }
        return {**values, "is_read_only": True} if self.is_read_only else values


def _kind_faults(kind: object) -> list[str]:
    kinds = [kind.value for kind in TopicKind]
    return [] if kind in kinds else [f"kind must be one of {', '.join(kinds)}, not {shown(kind)}"]


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


def _flag_faults(is_read_only: object) -> list[str]:
    is_flag = isinstance(is_read_only, bool)
    return [] if is_flag else [f"is_read_only must be true or false, not {shown(is_read_only)}"]


@dataclass(frozen=True, slots=True)
class RegisteredTopics:
    """The value of the topic register.

    Attributes:
        settings: by the name of the topic; a topic that was made by its first message has none.
        deleted: the names of deleted topics; their tables were emptied.
        seen: the value of the register that this was read from.
    """

    settings: Mapping[str, TopicSettings] = field(default_factory=dict)
    deleted: frozenset[str] = frozenset()
    seen: Registered = _NOTHING

    def with_settings(self, topic: str, settings: TopicSettings) -> RegisteredTopics:
        """Return a copy with settings for one topic, which no longer counts as deleted."""
        return RegisteredTopics(
            {**self.settings, topic: settings}, self.deleted - {topic}, self.seen
        )

    def without_settings(self, topic: str) -> RegisteredTopics:
        """Return a copy without settings for one topic."""
        others = {name: settings for name, settings in self.settings.items() if name != topic}
        return RegisteredTopics(others, self.deleted, self.seen)

    def with_deleted(self, topic: str) -> RegisteredTopics:
        """Return a copy in which one topic is deleted."""
        others = self.without_settings(topic).settings
        return RegisteredTopics(others, self.deleted | {topic}, self.seen)


class TopicRegister:
    """Reads and swaps the settings of topics; its table is made with the first settings."""

    def __init__(self, register: Register) -> None:
        """Open nothing yet; `register` is not shared."""
        self._register = register
        self._is_there = False

    def read(self) -> RegisteredTopics:
        """Read the newest value; 0 commits. Raises: StorageError, StoreFormatError."""
        self._is_there = self._is_there or self._register.table.exists()
        if not self._is_there:
            return RegisteredTopics()
        return _registered(self._register.read())

    def has_news(self) -> bool:
        """Tell whether somebody changed the settings since `read`; looks up one or two file names.

        Raises: OSError, StorageError.
        """
        table = self._register.table
        return table.log.has_news() if self._is_there else table.exists()

    def swap(self, after: RegisteredTopics, now_ms: int) -> None:
        """Replace the value that `after` was made from, in one commit.

        Raises: CommitRefusedError if another process changed it.
        """
        value = {
            "settings": {name: settings.to_value() for name, settings in after.settings.items()},
            "deleted": sorted(after.deleted),
        }
        self._register.swap(after.seen, value, now_ms)

    def change(
        self,
        change: Callable[[RegisteredTopics], RegisteredTopics],
        now_ms: int,
        attempts: int,
    ) -> RegisteredTopics:
        """Replace the newest value by `change` of it, in one commit; the table must be there.

        `change` is called again after each lost race, as `until_committed` says.

        Raises: CommitConflictError, StorageError, StoreFormatError; what `change` raises.
        """

        def compute() -> RegisteredTopics:
            after = change(_registered(self._register.read_pinned()))
            self.swap(after, now_ms)
            return after

        return until_committed(self._register.table, compute, attempts)


def _registered(seen: Registered) -> RegisteredTopics:
    values = seen.value.get("settings", {})
    settings = {name: TopicSettings.from_value(name, value) for name, value in values.items()}
    return RegisteredTopics(settings, frozenset(seen.value.get("deleted", ())), seen)


class TopicsValue(TypedDict):
    """The value of the register `state/topics`."""

    settings: NotRequired[Mapping[str, TopicValue]]
    deleted: NotRequired[Sequence[str]]


class TopicValue(TypedDict):
    """The settings of a topic as plain values, for JSON; `TopicSettings` checks them."""

    kind: str
    queue_nums: int | None
    reserved_time_h: NotRequired[float | None]
    body: NotRequired[Any]
    is_read_only: NotRequired[Any]


def check_spelling(topic: str, names: Iterable[str]) -> None:
    """Raise TopicConflictError if one of `names` differs from a topic only in case."""
    for other in names:
        if other != topic and other.lower() == topic.lower():
            rule = f"the topic {other} differs only in case; use that name"
            raise TopicConflictError("topic", topic, rule)
