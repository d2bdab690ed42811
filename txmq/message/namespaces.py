"""Names inside a namespace: stored as `tenant.name`, shown as RocketMQ's `tenant%name` (R94).

Retry and dead-letter names keep their prefix in front: `RETRY_tenant.group`, shown as
`%RETRY%tenant%group`. System topics belong to no namespace. All functions are pure.
"""

from __future__ import annotations

from txmq.message.names import NAMESPACE_SEPARATOR, check_stored_group, is_system_topic

SHOWN_SEPARATOR = "%"
_SHOWN_PREFIXES = {"RETRY_": "%RETRY%", "DLQ_": "%DLQ%"}
_STORED_PREFIXES = {shown: stored for stored, shown in _SHOWN_PREFIXES.items()}


def wrapped(name: str, namespace: str | None) -> str:
    """The stored name of `name` inside a namespace; one that is inside already stays as it is."""
    if namespace is None or is_system_topic(name) or namespace_of(name) == namespace:
        return name
    prefix, bare = _parts(name, _SHOWN_PREFIXES)
    return f"{prefix}{namespace}{NAMESPACE_SEPARATOR}{bare}"


def unwrapped(name: str, namespace: str | None = None) -> str:
    """The name without its namespace; with `namespace`, only where it is that one."""
    if NAMESPACE_SEPARATOR not in name:
        return name
    found = namespace_of(name)
    if found is None or namespace not in (None, found):
        return name
    prefix, bare = _parts(name, _SHOWN_PREFIXES)
    return prefix + bare.removeprefix(f"{found}{NAMESPACE_SEPARATOR}")


def namespace_of(name: str) -> str | None:
    """The namespace of a stored name, if it has one."""
    _, bare = _parts(name, _SHOWN_PREFIXES)
    namespace, separator, _ = bare.partition(NAMESPACE_SEPARATOR)
    return (namespace or None) if separator else None


def shown_name(stored: str) -> str:
    """A stored name as RocketMQ writes it: `tenant%name`, `%RETRY%tenant%group`."""
    prefix, bare = _parts(stored, _SHOWN_PREFIXES)
    shown = bare.replace(NAMESPACE_SEPARATOR, SHOWN_SEPARATOR, 1)
    return _SHOWN_PREFIXES.get(prefix, "") + shown


def stored_name(shown: str) -> str:
    """The stored name of what `shown_name` wrote; a stored name stays as it is. Not checked."""
    prefix, bare = _parts(shown, _STORED_PREFIXES)
    return _STORED_PREFIXES.get(prefix, "") + bare.replace(SHOWN_SEPARATOR, NAMESPACE_SEPARATOR, 1)


def stored_group(shown: object) -> str:
    """The stored name of a consumer group as a user writes it. Raises: InvalidNameError."""
    named = stored_name(shown) if isinstance(shown, str) else shown
    return check_stored_group(named, "consumer_group")


def _parts(name: str, prefixes: dict[str, str]) -> tuple[str, str]:
    """The prefix of a retry or dead-letter name, and the rest."""
    prefix = next((one for one in prefixes if name.startswith(one)), "")
    return prefix, name.removeprefix(prefix)
