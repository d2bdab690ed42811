"""Check the arguments of a consumer before anything is opened or written."""

from __future__ import annotations

import math
import os
import re
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from txmq.consumer.group_rules import ALL, ConsumeMode, GroupSettings
from txmq.consumer.offsets import ConsumeFromWhere, OffsetsByTopic, StartPoint
from txmq.errors import ConfigError, InvalidNameError, shown
from txmq.message.filter import MessageFilter, parse_filter
from txmq.message.names import (
    check_namespace,
    check_readable_topic,
    group_in_namespace,
    topic_in_namespace,
)
from txmq.store.config import SPECS
from txmq.store.config_faults import faults_of_value

Number = TypeVar("Number", int, float)
_MEMBER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,254}", re.ASCII)
Filter = str | MessageFilter
Topics = str | Iterable[str] | Mapping[str, Filter | None]


@dataclass(frozen=True, slots=True)
class Subscription:
    """What one member of a consumer group reads, checked.

    Attributes:
        consumer_group: the stored name of the group.
        filters: the stored names of the topics, each with its filter.
        start: where the group begins if it has no offsets yet.
        mode: whether the members share the messages, or each member reads all of them.
        member_id: the name of the member in its group.
        namespace: messages show names of this namespace without it.
        is_acknowledged: whether each message is acknowledged for itself.
    """

    consumer_group: str
    filters: Mapping[str, MessageFilter]
    start: StartPoint
    mode: ConsumeMode
    member_id: str
    namespace: str | None = None
    is_acknowledged: bool = False

    @classmethod
    def of(  # noqa: PLR0913 - the arguments of a consumer
        cls,
        *,
        consumer_group: object,
        topics: Topics,
        from_where: ConsumeFromWhere | OffsetsByTopic,
        from_timestamp: datetime | None,
        mode: object,
        member_id: object,
        namespace: object,
    ) -> Subscription:
        """Check the arguments of a consumer; see `PullConsumer`.

        Raises: InvalidNameError, InvalidFilterError, ConfigError.
        """
        space = None if namespace is None else check_namespace(namespace)
        group = group_in_namespace(consumer_group, space, "consumer_group")
        checked_mode = _checked_mode(mode)
        return cls(
            group,
            filters_by_topic(topics, space),
            StartPoint.of(from_where, from_timestamp).in_namespace(space),
            checked_mode,
            _checked_member_id(member_id, checked_mode),
            space,
        )

    @property
    def settings(self) -> GroupSettings:
        """What all members of the group have to agree on."""
        texts = {topic: message_filter.text for topic, message_filter in self.filters.items()}
        return GroupSettings(self.mode, texts, is_acknowledged=self.is_acknowledged)

    def filter_of(self, topic: str) -> MessageFilter | None:
        """Return the filter of a topic by its stored name; None if all messages pass."""
        message_filter = self.filters.get(topic)
        return None if message_filter is None or message_filter.is_all else message_filter


def filters_by_topic(topics: Topics, namespace: str | None) -> dict[str, MessageFilter]:
    """Return the filter of each topic, by the topic's stored name.

    Raises: InvalidNameError, InvalidFilterError; ConfigError if no topic is named.
    """
    filters: Mapping[str, Filter | None]
    if isinstance(topics, Mapping):
        filters = topics
    elif isinstance(topics, str):
        filters = {topics: None}
    else:
        filters = {check_readable_topic(topic): None for topic in _several(topics)}
    if not filters:
        raise ConfigError(["topics must name at least one topic"])
    return {
        topic_in_namespace(topic, namespace): parse_filter(ALL if text is None else text)
        for topic, text in filters.items()
    }


def _several(topics: object) -> Iterable[str]:
    if not isinstance(topics, Iterable) or isinstance(topics, bytes):
        raise ConfigError([f"topics must be a name or several names, not {shown(topics)}"])
    return topics


def _checked_mode(mode: object) -> ConsumeMode:
    if not isinstance(mode, ConsumeMode):
        raise ConfigError([f"mode must be a ConsumeMode, not {shown(mode)}"])
    return mode


def _checked_member_id(member_id: object, mode: ConsumeMode) -> str:
    if member_id is None and mode is ConsumeMode.CLUSTERING:
        return f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
    if not isinstance(member_id, str) or not _MEMBER_ID.fullmatch(member_id):
        rule = "use 1 to 255 ASCII letters, digits and . _ @ -; BROADCASTING needs a member_id"
        raise InvalidNameError("member_id", member_id, rule)
    return member_id


def checked_queue(queue_id: object) -> int | None:
    """Check the id of a queue, or None for all queues. Raises: ConfigError."""
    if queue_id is None or (type(queue_id) is int and queue_id >= 0):
        return queue_id
    raise ConfigError([f"queue_id must be a whole number from 0 on, not {shown(queue_id)}"])


def check_reads(topic: str, topics: Collection[str]) -> None:
    """Refuse a topic that a consumer does not read; stored names. Raises: ConfigError."""
    if topic not in topics:
        raise ConfigError([f"topic {shown(topic)} is not among those of this consumer"])


def check_poll(max_messages: object, timeout_s: object) -> None:
    """Refuse what `poll` cannot take. Raises: ConfigError, which names all faults."""
    faults = _faults_of_max_messages(max_messages)
    if _seconds(timeout_s) is None:
        faults.append(f"timeout_s must be seconds from 0 on, not {shown(timeout_s)}")
    if faults:
        raise ConfigError(faults)


def check_max_messages(max_messages: object, name: str = "max_messages") -> None:
    """Refuse what is no number of messages. Raises: ConfigError."""
    if faults := _faults_of_max_messages(max_messages, name):
        raise ConfigError(faults)


def _faults_of_max_messages(max_messages: object, name: str = "max_messages") -> list[str]:
    if type(max_messages) is int and max_messages > 0:
        return []
    return [f"{name} must be a whole number above 0, not {shown(max_messages)}"]


def checked_timeout(consume_timeout_s: object, default_s: float) -> float:
    """Return the seconds that a handler may take; the default for None. Raises: ConfigError."""
    if consume_timeout_s is None:
        return default_s
    if seconds := _seconds(consume_timeout_s):
        return seconds
    problem = "consume_timeout_s must be seconds above 0"
    raise ConfigError([f"{problem}, not {shown(consume_timeout_s)}"])


def checked_setting(name: str, value: Number | None, default: Number) -> Number:
    """Return an argument that comes before a setting of the group; the default for None.

    Raises: ConfigError if it is none of the values that the setting may have.
    """
    if value is None:
        return default
    if faults := faults_of_value(SPECS[name], value):
        raise ConfigError(faults)
    return value


def _seconds(value: object) -> float | None:
    """Return a number of seconds from 0 on; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # Not float(value): that raises for an int beyond all floats, which is infinity here.
    seconds = float(str(value))
    return seconds if 0 <= seconds < math.inf else None
