"""Checks what a caller passes to a consumer, before anything is opened."""

from __future__ import annotations

import math
import os
import re
import uuid
from collections.abc import Iterable, Mapping

from txmq.consumer.rules import ALL, ConsumeMode
from txmq.errors import ConfigError, InvalidNameError, shown
from txmq.message.filter import MessageFilter, parse_filter
from txmq.message.names import check_readable_topic

_MEMBER_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,254}", re.ASCII)
Filter = str | MessageFilter
Topics = str | Iterable[str] | Mapping[str, Filter | None]


def filters_by_topic(topics: Topics) -> dict[str, MessageFilter]:
    """Topics as they were passed, each with its filter. Raises: ConfigError, InvalidFilterError."""
    named: Mapping[str, Filter | None]
    if isinstance(topics, Mapping):
        named = topics
    elif isinstance(topics, str):
        named = {topics: None}
    else:
        named = {check_readable_topic(topic): None for topic in _several(topics)}
    if not named:
        raise ConfigError(["topics must name one topic at least"])
    return {topic: parse_filter(ALL if own is None else own) for topic, own in named.items()}


def _several(topics: object) -> Iterable[str]:
    if not isinstance(topics, Iterable) or isinstance(topics, bytes):
        raise ConfigError([f"topics must be a name or several of them, not {shown(topics)}"])
    return topics


def _checked_mode(mode: object) -> ConsumeMode:
    if not isinstance(mode, ConsumeMode):
        raise ConfigError([f"mode must be a ConsumeMode, not {shown(mode)}"])
    return mode


def _checked_member_id(member_id: object, mode: ConsumeMode) -> str:
    if member_id is None and mode is ConsumeMode.CLUSTERING:
        return f"{os.getpid()}-{uuid.uuid4().hex[:12]}"
    if not isinstance(member_id, str) or not _MEMBER_ID.fullmatch(member_id):
        rule = "use 1 to 255 ASCII letters, digits and . _ @ -; in BROADCASTING it is needed"
        raise InvalidNameError("member_id", member_id, rule)
    return member_id


def _checked_queue(queue_id: object) -> int:
    if type(queue_id) is not int or queue_id < 0:
        raise ConfigError([f"queue_id must be a whole number from 0 on, not {shown(queue_id)}"])
    return queue_id


def _check_poll(max_messages: object, timeout_s: object) -> None:
    faults = []
    if type(max_messages) is not int or max_messages < 1:
        faults.append(f"max_messages must be a whole number above 0, not {shown(max_messages)}")
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not (is_number and 0 <= float(str(timeout_s)) < math.inf):
        faults.append(f"timeout_s must be seconds from 0 on, not {shown(timeout_s)}")
    if faults:
        raise ConfigError(faults)
