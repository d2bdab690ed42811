"""Pins a version of each table, in an order in which none is newer than one that it refers to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from txmq.delta.actions import commit_path
from txmq.delta.kept_log import KeptLog
from txmq.delta.log import commit_news
from txmq.delta.storage import Table
from txmq.errors import BackupError, StoreNotFoundError
from txmq.message.names import SCHEDULE_TOPIC
from txmq.store.set_aside import REGISTER as SET_ASIDE
from txmq.store.settled import NOTHING, mark_id
from txmq.store.tables import REGISTERS, STATE, StoreTables

PIN_ATTEMPTS = 10
SCHEDULE = f"topics/{SCHEDULE_TOPIC}"
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

    Raises: BackupError where something is taken away again and again meanwhile; StorageError.
    """
    problem: str | None = None
    for _ in range(PIN_ATTEMPTS):
        before, half = _standing_still(tables), tables.table_at("half")
        begun = half.version
        pins = {path: pin for path in _paths(tables) if (pin := _pin(tables, path)) is not None}
        problem = _problem_of(pins, half, begun)
        if _standing_still(tables) != before:
            problem = f"{' or '.join(STATE + name for name in _STILL)} changed"
        if problem is None:
            return pins
    count = f"during each of {PIN_ATTEMPTS} looks at the tables"
    raise BackupError("backup", f"{problem} {count}; try again, nothing is wrong with the store")


def _problem_of(pins: Mapping[str, Pin], half: Table, begun: int) -> str | None:
    """What was taken away while the tables were pinned, and is needed by an older pin."""
    news = [
        commit_news(half, version) for version in range(begun + 1, pins["half"].log.version + 1)
    ]
    if any(one is None or one.has_removed for one in news):
        return "retention removed halves"
    op, settled = pins["op"].log, pins["settled"].log.snapshot
    mark = settled.marks.number(mark_id(op.snapshot.definition.table_id))
    first = (NOTHING if mark is None else mark) + 1
    if first <= op.version and commit_path(first) not in op.log_bytes:
        return "log clean-up removed claims that are not settled in the pinned version"
    return None


def _standing_still(tables: StoreTables) -> dict[str, int]:
    registers = {name: tables.register(name) for name in _STILL}
    return {name: one.table.version for name, one in registers.items() if one.exists}


def _paths(tables: StoreTables) -> Iterator[str]:
    """All tables. Each listing is made when its turn comes: what came meanwhile belongs to it."""
    last = [STATE + name for name in _LAST]
    yield from (path for path in tables.register_paths() if path not in last)
    # What retention took from the schedule is in topics that are pinned later.
    yield from sorted(tables.topic_paths(), key=lambda path: path != SCHEDULE)
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
