"""Names of topics and groups: one allow-list, so that no name ever bends a path or a statement.

Users write names without a dot. The stored form may have one: `tenant.name` is a name inside a
namespace (see `namespaces`), so no two names can meet.
"""

from __future__ import annotations

import re

from txmq.errors import InvalidNameError, InvalidNameTypeError, ReservedNameError

TRANS_CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
MAX_TOPIC_CHARACTERS = 127
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
# A group's longest derived table name is RETRY_<group> (R16, R17).
MAX_GROUP_CHARACTERS = 120
NAMESPACE_SEPARATOR = "."

_ALLOWED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*", re.ASCII)
_STORED = re.compile(rf"{_ALLOWED.pattern}(\.{_ALLOWED.pattern})?", re.ASCII)
_RULES = {
    _ALLOWED: "use ASCII letters, digits, _ and -, beginning with a letter or a digit",
    _STORED: "use ASCII letters, digits, _ and -, with a namespace and a dot in front at the most",
}
_GROUP_PREFIXES = ("retry_", "dlq_")
_SYSTEM_PREFIXES = ("schedule_topic_", "trans_check_", "rmq_sys_", "txmq_")
_SYSTEM_TOPICS = frozenset({"self_test_topic", "offset_moved_event"})
_RESERVED_WORDS = _SYSTEM_TOPICS.union(
    ["con", "prn", "aux", "nul"],
    (f"{device}{number}" for device in ("com", "lpt") for number in range(1, 10)),
)


def check_topic(name: object) -> str:
    """The name of a topic that users may send to, or InvalidNameError (R16, R22)."""
    return _not_reserved("topic", _well_formed("topic", name, MAX_TOPIC_CHARACTERS))


def check_readable_topic(name: object) -> str:
    """The stored name of a topic that users may read: the system topics too."""
    return _well_formed("topic", name, MAX_TOPIC_CHARACTERS, _STORED)


def check_stored_topic(name: object) -> str:
    """The stored name of a topic that users may send to, in a namespace or not."""
    found = _well_formed("topic", name, MAX_TOPIC_CHARACTERS, _STORED)
    for part in found.split(NAMESPACE_SEPARATOR):
        _not_reserved("topic", part)
    return found


def check_group(name: object, kind: str = "producer_group") -> str:
    """The name of a producer or consumer group, or InvalidNameError (R15, R17)."""
    return _not_reserved(kind, _well_formed(kind, name, MAX_GROUP_CHARACTERS))


def check_stored_group(name: object, kind: str = "producer_group") -> str:
    """The stored name of a group, in a namespace or not, or InvalidNameError."""
    found = _well_formed(kind, name, MAX_GROUP_CHARACTERS, _STORED)
    for part in found.split(NAMESPACE_SEPARATOR):
        _not_reserved(kind, part)
    return found


def check_namespace(name: object) -> str:
    """The name of a namespace, or InvalidNameError (R94)."""
    # A reserved prefix in front of the dot would be read as that of the whole name.
    return _not_reserved("namespace", _well_formed("namespace", name, MAX_GROUP_CHARACTERS))


def is_system_topic(name: str) -> bool:
    """Whether a topic belongs to txmq itself, whatever namespace looks at it."""
    folded = name.lower()
    return folded.startswith(_SYSTEM_PREFIXES) or folded in _SYSTEM_TOPICS


def _well_formed(
    kind: str, name: object, max_characters: int, allowed: re.Pattern[str] = _ALLOWED
) -> str:
    if not isinstance(name, str):
        raise InvalidNameTypeError(kind, name, f"pass a str, not {type(name).__name__}")
    if not allowed.fullmatch(name):
        raise InvalidNameError(kind, name, _RULES[allowed])
    if len(name) > max_characters:
        raise InvalidNameError(kind, name, f"use at most {max_characters} characters")
    return name


def _not_reserved(kind: str, name: str) -> str:
    folded = name.lower()
    if folded.startswith(_GROUP_PREFIXES + _SYSTEM_PREFIXES) or folded in _RESERVED_WORDS:
        raise ReservedNameError(kind, name, "it is reserved; choose another")
    return name
