"""Names of topics and groups: one allow-list, so that no name ever bends a path or a statement.

Users write names without a dot. The stored form may have one: `tenant.name` is a name inside a
namespace (see `wrapped`), so no two names can meet.
"""

from __future__ import annotations

import re
from functools import lru_cache

from txmq.errors import InvalidNameError

RETRY_PREFIX = "RETRY_"
DEAD_LETTER_PREFIX = "DLQ_"
# RocketMQ's names where it has them; users cannot set any of these.
ORIGIN_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
ORIGIN_QUEUE_ID = "ORIGIN_QUEUE_ID"
ORIGIN_QUEUE_OFFSET = "ORIGIN_QUEUE_OFFSET"
RECONSUME_TIMES = "RECONSUME_TIMES"
RECONSUME_REASON = "RECONSUME_REASON"
# Where the message took effect by a DeltaInbox before it was sent back.
EFFECT_TABLES = "EFFECT_TABLES"
# Where a message that was replayed to its topic was before, for the groups that replayed it.
FIRST_PLACES = "FIRST_PLACES"
DEAD_LETTER_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DEAD_LETTER_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
RETRY_PROPERTIES = frozenset(
    [
        ORIGIN_TOPIC,
        ORIGIN_MESSAGE_ID,
        ORIGIN_QUEUE_ID,
        ORIGIN_QUEUE_OFFSET,
        RECONSUME_TIMES,
        RECONSUME_REASON,
        EFFECT_TABLES,
        FIRST_PLACES,
        DEAD_LETTER_ORIGIN_TOPIC,
        DEAD_LETTER_ORIGIN_MESSAGE_ID,
    ]
)
SHOWN_SEPARATOR = "%"
_SHOWN_PREFIXES = {"RETRY_": "%RETRY%", "DLQ_": "%DLQ%"}
_STORED_PREFIXES = {shown: stored for stored, shown in _SHOWN_PREFIXES.items()}
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
    """Return the name of a topic that users may send to, or raise InvalidNameError (R16, R22)."""
    return _checked_topic(name) if type(name) is str else _checked_anew(name)


def _checked_anew(name: object) -> str:
    return _not_reserved("topic", _well_formed("topic", name, MAX_TOPIC_CHARACTERS))


# Each message asks this, and most go to few topics.
_checked_topic = lru_cache(maxsize=4096)(_checked_anew)


def check_readable_topic(name: object) -> str:
    """Return the stored name of a topic that users may read: the system topics too."""
    return _well_formed("topic", name, MAX_TOPIC_CHARACTERS, _STORED)


def check_stored_topic(name: object) -> str:
    """Return the stored name of a topic that users may send to, in a namespace or not."""
    text = _well_formed("topic", name, MAX_TOPIC_CHARACTERS, _STORED)
    for word in text.split(NAMESPACE_SEPARATOR):
        _not_reserved("topic", word)
    return text


def check_group(name: object, kind: str = "producer_group") -> str:
    """Return the name of a producer or consumer group, or raise InvalidNameError (R15, R17)."""
    return _not_reserved(kind, _well_formed(kind, name, MAX_GROUP_CHARACTERS))


def check_stored_group(name: object, kind: str = "producer_group") -> str:
    """Return the stored name of a group, in a namespace or not, or raise InvalidNameError."""
    text = _well_formed(kind, name, MAX_GROUP_CHARACTERS, _STORED)
    for word in text.split(NAMESPACE_SEPARATOR):
        _not_reserved(kind, word)
    return text


def check_namespace(name: object) -> str:
    """Return the name of a namespace, or raise InvalidNameError (R94)."""
    # A reserved prefix in front of the dot would be read as that of the whole name.
    return _not_reserved("namespace", _well_formed("namespace", name, MAX_GROUP_CHARACTERS))


def _well_formed(
    kind: str, name: object, max_characters: int, allowed: re.Pattern[str] = _ALLOWED
) -> str:
    if not isinstance(name, str):
        raise InvalidNameError(kind, name, f"pass a str, not {type(name).__name__}")
    if not allowed.fullmatch(name):
        raise InvalidNameError(kind, name, _RULES[allowed])
    if len(name) > max_characters:
        raise InvalidNameError(kind, name, f"use at most {max_characters} characters")
    return name


def _not_reserved(kind: str, name: str) -> str:
    folded = name.lower()
    if folded.startswith(_GROUP_PREFIXES + _SYSTEM_PREFIXES) or folded in _RESERVED_WORDS:
        raise InvalidNameError(kind, name, "it is reserved; choose another")
    return name


# --- topics of txmq itself ------------------------------------------------------------------------


def is_system_topic(name: str) -> bool:
    """Tell whether a topic belongs to txmq itself, whatever namespace looks at it."""
    folded = name.lower()
    return folded.startswith(_SYSTEM_PREFIXES) or folded in _SYSTEM_TOPICS


def is_group_topic(topic: str) -> bool:
    """Tell whether a topic is of retries or dead letters; it has one queue in any settings."""
    return topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))


def retry_topic(consumer_group: str) -> str:
    """Name the topic where failed messages of a group wait for a try; both are stored names."""
    return RETRY_PREFIX + consumer_group


def dead_letter_topic(consumer_group: str) -> str:
    """Name the topic of messages that failed too often in a group; both names are stored ones."""
    return DEAD_LETTER_PREFIX + consumer_group


# --- namespaces -----------------------------------------------------------------------------------


def topic_in_namespace(topic: object, namespace: str | None) -> str:
    """Return the stored name of the topic that readers inside a namespace call `topic` (R94).

    A system topic and a name that carries this namespace already stay as they are.

    Raises: InvalidNameError, also for a name that is too long with its namespace.
    """
    return check_readable_topic(wrapped(check_readable_topic(topic), namespace))


def group_in_namespace(group: object, namespace: str | None, kind: str = "producer_group") -> str:
    """Return the stored name of the group that users inside a namespace call `group` (R94).

    Raises: InvalidNameError, also for a name that is too long with its namespace.
    """
    return check_stored_group(wrapped(check_group(group, kind), namespace), kind)


def wrapped(name: str, namespace: str | None) -> str:
    """Return the stored name of `name` inside a namespace; one that is inside already stays."""
    if namespace is None or is_system_topic(name) or namespace_of(name) == namespace:
        return name
    prefix, bare = _parts(name, _SHOWN_PREFIXES)
    return f"{prefix}{namespace}{NAMESPACE_SEPARATOR}{bare}"


def unwrapped(name: str, namespace: str | None = None) -> str:
    """Return the name without its namespace; with `namespace`, only if it is that one."""
    if NAMESPACE_SEPARATOR not in name:
        return name
    stored = namespace_of(name)
    if stored is None or namespace not in (None, stored):
        return name
    prefix, bare = _parts(name, _SHOWN_PREFIXES)
    return prefix + bare.removeprefix(f"{stored}{NAMESPACE_SEPARATOR}")


def namespace_of(name: str) -> str | None:
    """Return the namespace of a stored name, if it has one."""
    _, bare = _parts(name, _SHOWN_PREFIXES)
    namespace, separator, _ = bare.partition(NAMESPACE_SEPARATOR)
    return (namespace or None) if separator else None


# --- names as users write them --------------------------------------------------------------------


def stored_topic(shown: object) -> str:
    """Return the stored name of a topic that may be read, however a user writes it.

    That is `name`, `tenant%name`, `%RETRY%group` or the stored name itself.

    Raises: InvalidNameError.
    """
    return check_readable_topic(_stored_if_text(shown))


def stored_group(shown: object) -> str:
    """Return the stored name of a consumer group as a user writes it. Raises: InvalidNameError."""
    return check_stored_group(_stored_if_text(shown), "consumer_group")


def _stored_if_text(shown: object) -> object:
    return stored_name(shown) if isinstance(shown, str) else shown


def stored_name(shown: str) -> str:
    """Return the stored name of what `shown_name` wrote; a stored name stays. Checks nothing."""
    prefix, bare = _parts(shown, _STORED_PREFIXES)
    return _STORED_PREFIXES.get(prefix, "") + bare.replace(SHOWN_SEPARATOR, NAMESPACE_SEPARATOR, 1)


def shown_name(stored: str) -> str:
    """Return a stored name as RocketMQ writes it: `tenant%name`, `%RETRY%tenant%group`."""
    prefix, bare = _parts(stored, _SHOWN_PREFIXES)
    shown = bare.replace(NAMESPACE_SEPARATOR, SHOWN_SEPARATOR, 1)
    return _SHOWN_PREFIXES.get(prefix, "") + shown


def _parts(name: str, prefixes: dict[str, str]) -> tuple[str, str]:
    """Split off the prefix of a retry or dead-letter name."""
    prefix = next(filter(name.startswith, prefixes), "")
    return prefix, name.removeprefix(prefix)
