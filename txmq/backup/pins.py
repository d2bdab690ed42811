"""Pins a version of each table, in an order in which none is newer than one that it refers to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from txmq.delta.kept_log import KeptLog
from txmq.delta.storage import Table
from txmq.errors import BackupError, StoreNotFoundError
from txmq.store.set_aside import REGISTER as SET_ASIDE
from txmq.store.tables import REGISTERS, STATE, StoreTables

PIN_ATTEMPTS = 10
# They are pinned last: what retention has taken, and what topics shall be, is said before it is so.
_LAST = ("maintenance", "topics")
# While one of these changes, rows move to where an older pin does not show them.
_STILL = ("maintenance", SET_ASIDE)


@dataclass(frozen=True, slots=True)
class Pin:
    """A table, and the version of it that is copied."""

    table: Table
    log: KeptLog


def pinned(tables: StoreTables) -> dict[str, Pin]:
    """A version of each table by its path, in the order in which they were pinned; 0 commits.

    A value refers to topics, a topic to facts, a fact to claims, a claim to halves. So each of them
    is pinned before what it refers to, and a restored store finds all that is behind what it has.

    Raises: BackupError where retention, or what is set aside, changes again and again meanwhile;
        StorageError.
    """
    for _ in range(PIN_ATTEMPTS):
        before = _standing_still(tables)
        pins = {path: pin for path in _paths(tables) if (pin := _pin(tables, path)) is not None}
        if _standing_still(tables) == before:
            return pins
    changed = " or ".join(STATE + name for name in _STILL)
    problem = f"{changed} changed during each of {PIN_ATTEMPTS} looks at the tables"
    raise BackupError("backup", f"{problem}; try again, nothing is wrong with the store")


def _standing_still(tables: StoreTables) -> dict[str, int]:
    registers = {name: tables.register(name) for name in _STILL}
    return {name: one.table.version for name, one in registers.items() if one.exists}


def _paths(tables: StoreTables) -> Iterator[str]:
    """All tables. Each listing is made when its turn comes: what came meanwhile belongs to it."""
    last = [STATE + name for name in _LAST]
    yield from (path for path in tables.register_paths() if path not in last)
    yield from tables.topic_paths()
    yield from ("settled", "op", "half")
    yield from (path for path in tables.register_paths() if path in last)


def _pin(tables: StoreTables, path: str) -> Pin | None:
    table = tables.table_at(path)
    try:
        return Pin(table, table.kept_log())
    except StoreNotFoundError:
        if path.removeprefix(STATE) in REGISTERS or "/" not in path:
            raise
        # A group is just being made.
        return None
