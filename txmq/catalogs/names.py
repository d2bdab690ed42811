"""The names that the tables of a store have in a catalog; no Spark."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from txmq.errors import ConfigError

if TYPE_CHECKING:
    from txmq.store.store import Store

# Logs in a schema with the topics; no topic of a user begins so (R22).
LOG_PREFIX = "txmq_"
LOGS = ("half", "op", "settled")
_PART = re.compile(r"[A-Za-z0-9_]{1,255}", re.ASCII)
_PARTS = 2
_EXAMPLE = "messages or main.messages"


@dataclass(frozen=True, slots=True)
class CatalogSchema:
    """A schema (a database) of a catalog: `messages`, or `main.messages`."""

    parts: tuple[str, ...]

    @classmethod
    def parse(cls, text: object) -> CatalogSchema:
        """The schema of a text. Raises: ConfigError."""
        parts = text.split(".") if isinstance(text, str) else []
        if not 1 <= len(parts) <= _PARTS or not all(map(_PART.fullmatch, parts)):
            rule = f"name a schema of letters, digits and _, such as {_EXAMPLE}"
            raise ConfigError([f"catalog {text!r}: {rule}"])
        return cls(tuple(parts))

    def __str__(self) -> str:
        """As users write it."""
        return ".".join(self.parts)

    def table(self, name: str) -> str:
        """The whole name of a table in it, quoted: a name may begin with a digit."""
        return ".".join(f"`{part}`" for part in (*self.parts, name))


def hidden_topics(store: Store, shown: Collection[str]) -> frozenset[str]:
    """Stored names of the deleted topics that are not among those `shown`. Raises: StorageError."""
    return store.tables.topic_register().read().deleted.difference(shown)


def name_in_catalog(topic: str) -> str:
    """The name of a topic's table: with `_` in place of what needs quotes in SQL."""
    return re.sub(r"[^A-Za-z0-9_]", "_", topic)


def names_in_catalog(topics: Collection[str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """The names of topics, and the problems of those that would share one.

    A catalog does not tell upper from lower case. Of several topics with one name that one gets it
    which is spelt so; without such a one nobody does.
    """
    same: dict[str, list[str]] = {}
    for topic in sorted(topics):
        same.setdefault(name_in_catalog(topic).lower(), []).append(topic)
    names: dict[str, str] = {}
    problems: dict[str, str] = {}
    for group in same.values():
        owners = group if len(group) == 1 else [t for t in group if name_in_catalog(t) == t]
        names.update((topic, name_in_catalog(topic)) for topic in owners)
        for topic in set(group) - set(owners):
            others = ", ".join(other for other in group if other != topic)
            problems[topic] = (
                f"would be named {name_in_catalog(topic)} as {others}; read it by path"
            )
    return names, problems
