"""Names of topics and groups: one allow-list, so that no name ever bends a path or a statement."""

from __future__ import annotations

import re

from txmq.errors import InvalidNameError, InvalidNameTypeError, ReservedNameError

TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
MAX_TOPIC_CHARACTERS = 127
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
# A group's longest derived table name is RETRY_<group> (R16, R17).
MAX_GROUP_CHARACTERS = 120

_ALLOWED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)
_RESERVED_PREFIXES = ("retry_", "dlq_", "schedule_topic_", "trans_check_", "rmq_sys_", "txmq_")
_RESERVED_WORDS = frozenset(
    ["con", "prn", "aux", "nul", "self_test_topic", "offset_moved_event"]
    + [f"{device}{number}" for device in ("com", "lpt") for number in range(1, 10)]
)


def check_topic(name: object) -> str:
    """The name of a topic that users may send to, or InvalidNameError (R16, R22)."""
    return _not_reserved("topic", _well_formed("topic", name, MAX_TOPIC_CHARACTERS))


def check_readable_topic(name: object) -> str:
    """The name of a topic that users may read: the system topics too."""
    return _well_formed("topic", name, MAX_TOPIC_CHARACTERS)


def check_group(name: object, kind: str = "producer_group") -> str:
    """The name of a producer or consumer group, or InvalidNameError (R15, R17)."""
    return _not_reserved(kind, _well_formed(kind, name, MAX_GROUP_CHARACTERS))


def _well_formed(kind: str, name: object, max_characters: int) -> str:
    if not isinstance(name, str):
        raise InvalidNameTypeError(kind, name, f"pass a str, not {type(name).__name__}")
    if not _ALLOWED.fullmatch(name):
        rule = "use ASCII letters, digits, _ and -, beginning with a letter or a digit"
        raise InvalidNameError(kind, name, rule)
    if len(name) > max_characters:
        raise InvalidNameError(kind, name, f"use at most {max_characters} characters")
    return name


def _not_reserved(kind: str, name: str) -> str:
    folded = name.lower()
    if folded.startswith(_RESERVED_PREFIXES) or folded in _RESERVED_WORDS:
        raise ReservedNameError(kind, name, "it is reserved; choose another")
    return name
