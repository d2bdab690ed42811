"""What ails a store, as far as a quick look shows it. Read-only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from txmq.delta.rooted import inside
from txmq.errors import TxmqError
from txmq.results import Plain
from txmq.store.kept_settings import HOW_TO_MOVE, as_yaml, ignored_names
from txmq.store.store import Store


@dataclass(frozen=True, slots=True)
class Finding(Plain):
    """One thing that needs a hand.

    Attributes:
        where: the table or the setting.
        problem: what is wrong.
        next_step: what to do about it.
    """

    where: str
    problem: str
    next_step: str


@dataclass(frozen=True, slots=True)
class Diagnosis(Plain):
    """What a look at a store found.

    Attributes:
        location: the store.
        tables: how many tables were looked at.
        findings: what needs a hand; empty if all is well.
        ignored_settings: the kept settings that could act and were not taken, as YAML for a
            settings file; empty if there are none.
    """

    location: str
    tables: int
    findings: tuple[Finding, ...]
    ignored_settings: str


class Doctor:
    """Looks at the settings, the tables and the progress of a store; `txmq verify` proves more.

    Args:
        store: the store to look at.

    Example:
        >>> Doctor(store).examine().findings
        ()
    """

    def __init__(self, store: Store) -> None:
        """Read nothing yet."""
        self._store = store

    def examine(self) -> Diagnosis:
        """Look at everything once; nothing that the store names is loaded. Commits: 0.

        Reads: the log of each table, state/config, state/publisher. A retry looks again.

        Raises: StorageError if the folder of the store cannot be listed.
        """
        paths = self._store.tables.table_paths()
        of_tables = [finding for path in paths for finding in self._of_table(path)]
        findings = (*self._ignored(), *of_tables, *self._parked())
        ignored = self._store.ignored
        text = as_yaml(ignored) if ignored else ""
        return Diagnosis(self._store.location, len(paths), findings, text)

    def _ignored(self) -> Iterator[Finding]:
        for name in ignored_names(self._store.ignored):
            problem = "stands in the store's own settings and could act, so nobody loads it"
            yield Finding(name, problem, f"if you trust it, {HOW_TO_MOVE}")

    def _of_table(self, path: str) -> Iterator[Finding]:
        try:
            files = self._store.tables.table_at(path).files()
        except TxmqError as error:
            yield Finding(path, str(error), "restore the table from a backup; run txmq verify")
            return
        for file in files:
            try:
                inside(file.path)
            except TxmqError as error:
                step = "find out who wrote this commit; restore the table to the version before it"
                yield Finding(path, str(error), step)

    def _parked(self) -> Iterator[Finding]:
        try:
            parked = self._store.tables.register("publisher").read().value.get("parked")
        except TxmqError as error:
            yield Finding("state/publisher", str(error), "restore it from a backup")
            return
        for topic, entry in sorted(parked.items()) if isinstance(parked, dict) else ():
            step = "mend the cause; the publisher tries again by itself"
            yield Finding(f"topics/{topic}", f"is parked: {_reason(entry)}", step)


def _reason(entry: Any) -> str:
    return str(entry.get("reason")) if isinstance(entry, dict) else "no reason is kept"
