"""Messages, which are checked when they are made and frozen, and the answers of a listener."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from types import MappingProxyType
from typing import Any

from txmq.errors import InvalidMessageError, MessageTooLargeError, shown
from txmq.ground.clock import moment_problem
from txmq.message.delay_levels import MAX_DELAY_S
from txmq.message.json_body import json_body
from txmq.message.names import check_readable_topic, check_topic

CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
KEY_SEPARATOR = " "
MAX_FIELD_BYTES = 16_384
# RocketMQ keeps its own properties under these names and refuses them to users (R20); so does txmq.
RESERVED_PROPERTIES = frozenset(
    [
        "KEYS",
        "TAGS",
        "WAIT",
        "DELAY",
        "RETRY_TOPIC",
        "REAL_TOPIC",
        "REAL_QID",
        "TRAN_MSG",
        "PGROUP",
        "MIN_OFFSET",
        "MAX_OFFSET",
        "BUYER_ID",
        "ORIGIN_MESSAGE_ID",
        "ORIGIN_QUEUE_ID",
        "ORIGIN_QUEUE_OFFSET",
        "TRANSFER_FLAG",
        "CORRECTION_FLAG",
        "MQ2_FLAG",
        "RECONSUME_TIME",
        "RECONSUME_TIMES",
        "RECONSUME_REASON",
        "EFFECT_TABLES",
        "FIRST_PLACES",
        "MSG_REGION",
        "TRACE_ON",
        "UNIQ_KEY",
        "EXTEND_UNIQ_INFO",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "POP_CK",
        "POP_CK_OFFSET",
        "1ST_POP_TIME",
        "TRAN_PREPARED_QUEUE_OFFSET",
        "TRANSACTION_CHECK_TIMES",
        "DUP_INFO",
        "CORRELATION_ID",
        "REPLY_TO_CLIENT",
        "TTL",
        "ARRIVE_TIME",
        "PUSH_REPLY_TIME",
        "CLUSTER",
        "MSG_TYPE",
        "INNER_MULTI_DISPATCH",
        "INNER_MULTI_QUEUE_OFFSET",
        "TIMER_DELAY_LEVEL",
        "TIMER_ENQUEUE_MS",
        "TIMER_DEQUEUE_MS",
        "TIMER_ROLL_TIMES",
        "TIMER_OUT_MS",
        "TIMER_DEL_UNIQKEY",
        "TIMER_DELAY_SEC",
        "TIMER_DELIVER_MS",
        "TIMER_DELAY_MS",
        "INSTANCE_ID",
        "DLQ_ORIGIN_TOPIC",
        "DLQ_ORIGIN_MESSAGE_ID",
        "CRC32",
        "__SHARDINGKEY",
        "__transactionId__",
    ]
)
# R21: RocketMQ's separators are control characters and corrupt its decoding.
CONTROL = re.compile(r"[\x00-\x1f\x7f]")
WHOLE_SECONDS = re.compile(r"[1-9][0-9]{0,8}", re.ASCII)
_LEVEL = "an int: 0 for no delay, or the number of a level from 1 on"
_SECONDS = "an int of whole seconds, from 0 to the store's timer_max_delay_s"
_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class LocalTransactionState(enum.Enum):
    """The state of a local transaction, as its producer or a listener knows it (R11).

    COMMIT: it took place. ROLLBACK: it did not, and will not. UNKNOWN: nobody can tell yet; the
    check asks again.
    """

    COMMIT = "COMMIT"
    ROLLBACK = "ROLLBACK"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class Message:
    """One message to one topic; it is checked when it is made, and frozen.

    Args:
        topic: the topic in which it becomes visible.
        body: bytes; may be empty (R18).
        tags: one tag for filters, without `|`.
        keys: one key, or several keys without spaces; they are stored joined by a space.
        properties: names and values as str, none of them blank (R20). The value of
            CHECK_IMMUNITY_TIME_IN_SECONDS is the number of whole seconds before the first check.
        sharding_key: messages with the same sharding key go to the same queue, in order.
        delay_level: the number of a delay in the store's `message_delay_level`. The delay begins
            with the commit. 0 is no delay; a number above the last level counts as the last (R97).
            `DelayLevel` names RocketMQ's levels.
        deliver_timestamp: the time at which it becomes visible, with a time zone. A time in the
            past is due at once.
        delay_s: a delay in whole seconds, which begins with the commit. Only one of `delay_level`,
            `deliver_timestamp` and `delay_s` may be given.

    Raises:
        InvalidNameError: the topic has no valid name, or a reserved one.
        InvalidMessageError: another field cannot be stored; its `field` says which. The limits of
            the store are checked when the message is sent.

    Example:
        >>> Message("order-paid", b"42", keys="order-42").topic
        'order-paid'
    """

    topic: str
    body: bytes = field(repr=False)
    tags: str | None = None
    keys: str | Iterable[str] | None = None
    properties: Mapping[str, str] = field(default_factory=lambda: _NO_PROPERTIES, hash=False)
    sharding_key: str | None = None
    delay_level: int | None = None
    deliver_timestamp: datetime | None = None
    delay_s: int | None = None

    def __post_init__(self) -> None:
        """Refuse a value that could not be stored and read back unchanged."""
        check_topic(self.topic)
        _check_body(self.body)
        # What a message does not have is not looked at: most have few of these.
        if self.tags is not None:
            _check_tags(self.tags)
        if self.sharding_key is not None:
            _check_text("sharding_key", self.sharding_key)
        if self.keys is not None:
            object.__setattr__(self, "keys", _joined_keys(self.keys))
        if self.properties is not _NO_PROPERTIES:
            object.__setattr__(self, "properties", _checked_properties(self.properties))
        _check_delay(self.delay_level, self.delay_s, self.deliver_timestamp)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the properties as a dict, because a mapping proxy cannot be pickled."""
        values = [getattr(self, spec.name) for spec in fields(self)]
        plain = [dict(value) if isinstance(value, Mapping) else value for value in values]
        return type(self), tuple(plain)

    @classmethod
    def json(cls, topic: str, value: object, **fields: Any) -> Message:
        """Make a message whose body is a value in JSON; `ReceivedMessage.json` reads it.

        Args:
            topic: the topic in which it becomes visible.
            value: plain values; a pydantic model or a dataclass (extra `pydantic`).
            fields: the other arguments of Message, such as `keys`.

        Raises: InvalidBodyError if the value has no JSON; EnvironmentProblemError without pydantic
            where it is needed; as Message.

        Example:
            >>> Message.json("order-paid", {"order": 42, "total": 9.5}, keys="order-42").body
            b'{"order":42,"total":9.5}'
        """
        return cls(topic, json_body(value), **fields)

    def to_stored_topic(self, topic: str) -> Message:
        """Return the same message to another topic.

        Args:
            topic: a stored name; it may have a namespace, or be an internal topic.

        Raises: InvalidNameError.
        """
        return self if topic == self.topic else stored_with(self, topic=topic)

    @classmethod
    def as_stored(cls, *, topic: str, body: bytes, **values: Any) -> Message:
        """Make a message from stored values, which were checked when they were first sent.

        The constructor refuses internal topics and txmq's own properties; this method takes them.

        Raises: InvalidNameError.
        """
        message = object.__new__(cls)
        stored = {**values, "topic": check_readable_topic(topic), "body": body}
        stored["properties"] = MappingProxyType(dict(values.get("properties") or {}))
        for spec in fields(cls):
            object.__setattr__(message, spec.name, stored.get(spec.name))
        return message

    @property
    def joined_keys(self) -> str | None:
        """The keys as they are stored: joined by a space."""
        return self.keys  # type: ignore[return-value]

    @property
    def body_size_bytes(self) -> int:
        """The size that counts against `max_message_size_bytes` (R18)."""
        return len(self.body)

    @property
    def properties_size_bytes(self) -> int:
        """The size of keys, tags, sharding key and properties together, in UTF-8 (R19).

        It counts against `max_properties_size_bytes`.
        """
        size_bytes = 0
        for text in (self.joined_keys, self.tags, self.sharding_key):
            if text:
                size_bytes += _size_bytes(text)
        for name, value in self.properties.items() if self.properties else ():
            size_bytes += _size_bytes(name) + _size_bytes(value)
        return size_bytes

    @property
    def size_bytes(self) -> int:
        """Body and properties together; it counts against `max_transaction_size_bytes`."""
        return self.body_size_bytes + self.properties_size_bytes

    def check_sizes(self, *, max_message_size_bytes: int, max_properties_size_bytes: int) -> None:
        """Check the sizes against the limits of a store (R18, R19).

        Raises:
            MessageTooLargeError: the body is above `max_message_size_bytes`, or keys, tags and
                properties are above `max_properties_size_bytes`; `field` says which.
        """
        if self.body_size_bytes > max_message_size_bytes:
            raise MessageTooLargeError("body bytes", self.body_size_bytes, max_message_size_bytes)
        size_bytes = self.properties_size_bytes
        if size_bytes > max_properties_size_bytes:
            raise MessageTooLargeError("properties bytes", size_bytes, max_properties_size_bytes)

    @property
    def is_delayed(self) -> bool:
        """Whether the message has a delay, so that the delay service delivers it."""
        return bool(self.delay_level or self.delay_s) or self.deliver_timestamp is not None

    def immunity_time_s(self, transaction_timeout_s: float) -> float:
        """Return the age below which the transaction of this message is not checked (R36, R112).

        Args:
            transaction_timeout_s: the timeout of the producer group; the immunity is never less.
        """
        seconds = self.properties.get(CHECK_IMMUNITY_TIME_IN_SECONDS)
        if seconds is None:
            return transaction_timeout_s
        return max(float(seconds), transaction_timeout_s)


def stored_with(message: Message, **changes: Any) -> Message:
    """Return the same message as stored, but for some fields. Raises: as `Message.as_stored`."""
    values = {spec.name: getattr(message, spec.name) for spec in fields(message)}
    return Message.as_stored(**{**values, **changes})


def _check_body(body: object) -> None:
    if not isinstance(body, bytes):
        problem = f"must be bytes, not {type(body).__name__}; encode text, for example as UTF-8"
        raise InvalidMessageError("body", problem)


def _check_tags(tags: object) -> None:
    _check_text("tags", tags)
    if isinstance(tags, str) and "|" in tags:
        raise InvalidMessageError("tags", "must be one tag, without |")


def _check_text(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise InvalidMessageError(name, f"must be a str, not {type(value).__name__}")
    if not value.strip():
        raise InvalidMessageError(name, "must not be blank; leave it out")
    problem = _text_problem(value)
    if problem:
        raise InvalidMessageError(name, problem)


def _text_problem(value: str) -> str | None:
    try:
        size = _size_bytes(value)
    except UnicodeEncodeError:
        return "is not valid Unicode (a lone surrogate)"
    if size > MAX_FIELD_BYTES:
        return f"is {size:,} bytes long, the limit is {MAX_FIELD_BYTES:,}"
    return "must not hold control characters" if CONTROL.search(value) else None


def _size_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _joined_keys(keys: object) -> str | None:
    if keys is None or isinstance(keys, str):
        _check_text("keys", keys)
        return keys
    if not isinstance(keys, Iterable) or isinstance(keys, bytes | Mapping):
        problem = f"must be a str or several str, not {type(keys).__name__}"
        raise InvalidMessageError("keys", problem)
    texts = list(keys)
    for text in texts:
        _check_text("keys", text)
        if text is None or KEY_SEPARATOR in text:
            raise InvalidMessageError("keys", "must hold no spaces if there are several keys")
    joined = KEY_SEPARATOR.join(texts) or None
    _check_text("keys", joined)
    return joined


def _checked_properties(properties: object) -> Mapping[str, str]:
    if not isinstance(properties, Mapping):
        problem = f"must be a mapping of str to str, not {type(properties).__name__}"
        raise InvalidMessageError("properties", problem)
    for name, value in properties.items():
        _check_property(name, value)
    return MappingProxyType(dict(properties)) if properties else _NO_PROPERTIES


def _check_property(name: object, value: object) -> None:
    for text in (name, value):
        if not isinstance(text, str):
            problem = f"{shown(name)}: name and value must be str, not {type(text).__name__}"
            raise InvalidMessageError("property", problem)
        if not text.strip():
            raise InvalidMessageError(
                "property", f"{shown(name)}: name and value must not be blank"
            )
        text_problem = _text_problem(text)
        if text_problem is not None:
            raise InvalidMessageError("property", f"{shown(name)} {text_problem}")
    if name in RESERVED_PROPERTIES or str(name).lower().startswith("__txmq"):
        raise InvalidMessageError("property", f"{shown(name)} is reserved; choose another name")
    if name == CHECK_IMMUNITY_TIME_IN_SECONDS and not WHOLE_SECONDS.fullmatch(str(value)):
        problem = f"{name} must be a number of whole seconds above 0, of at most 9 digits"
        raise InvalidMessageError("property", problem)


def _check_delay(level: object, delay_s: object, deliver_timestamp: object) -> None:
    if level is None and delay_s is None and deliver_timestamp is None:
        return
    for name, value, rule in (("delay_level", level, _LEVEL), ("delay_s", delay_s, _SECONDS)):
        # bool is an int in Python.
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            raise InvalidMessageError(name, f"must be {rule}, not {type(value).__name__}")
        if value is not None and not 0 <= value <= MAX_DELAY_S:
            raise InvalidMessageError(name, f"must be {rule}, not {shown(value)}")
    if deliver_timestamp is not None:
        _check_deliver_timestamp(deliver_timestamp)
    if sum(map(bool, (level, delay_s))) + (deliver_timestamp is not None) > 1:
        problem = "is given more than once; pass one of delay_level, delay_s and deliver_timestamp"
        raise InvalidMessageError("delay", problem)


def _check_deliver_timestamp(moment: object) -> None:
    if not isinstance(moment, datetime):
        problem = f"must be a datetime, not {type(moment).__name__}"
        raise InvalidMessageError("deliver_timestamp", problem)
    time_problem = moment_problem(moment)
    if time_problem is not None:
        raise InvalidMessageError("deliver_timestamp", time_problem)
