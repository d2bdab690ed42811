"""Takes the tables of a store that an earlier txmq made to the schema version of today."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from txmq.delta.schemas import SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY
from txmq.delta.storage import Table
from txmq.errors import CommitConflictError, CommitRefusedError
from txmq.ground.results import Plain
from txmq.store.schemas import STEPS, Change, Step, TableShape, changes_of
from txmq.store.store import Store, check_store

# Each table has few writers; who is refused so often is told.
ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class TableUpgrade(Plain):
    """One table.

    Attributes:
        path: the table.
        version: its schema version before.
        changes: what is, or would be, written, in order; empty for a table of today.
    """

    path: str
    version: int
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class UpgradeResult(Plain):
    """What an upgrade did, or would do.

    Attributes:
        location: the store.
        newest: the schema version of this txmq.
        tables: all tables.
        is_written: whether it was done.
    """

    location: str
    newest: int
    tables: tuple[TableUpgrade, ...]
    is_written: bool

    @property
    def is_needed(self) -> bool:
        """Whether a table was of an earlier version."""
        return any(table.changes for table in self.tables)


def upgrade(store: Store, *, apply: bool = False) -> UpgradeResult:
    """Take each table to the schema version of this txmq; a dry run unless `apply`.

    An earlier txmq refuses the tables from then on, by `IncompatibleVersionError`, also a process
    that is running. Processes of this txmq may run on meanwhile. There is no way back but a backup.

    Commits: one for the new properties of each table of an earlier version, and one where it gets
    columns. Retry: call it again; a call that was killed is finished by the next one.

    Args:
        store: whose tables.
        apply: write it.

    Raises: IncompatibleVersionError for a table of a newer txmq; StorageError.

    Example:
        >>> upgrade(store).is_needed
        False
    """
    check_store(store)
    return upgrade_by(STEPS, store, apply=apply)


def upgrade_by(steps: Sequence[Step], store: Store, *, apply: bool) -> UpgradeResult:
    """As `upgrade`, by these steps."""
    newest = max([SCHEMA_VERSION, *(step.to_version for step in steps)])
    tables = []
    # The logs come first: every process of an earlier txmq opens them.
    for path in store.tables.table_paths():
        table = store.tables.table_at(path)
        version, changes = _planned(table, steps, newest)
        tables.append(TableUpgrade(path, version, tuple(change.said() for change in changes)))
        if apply and changes:
            _apply(table, lambda table: _planned(table, steps, newest)[1])
    return UpgradeResult(store.location, newest, tuple(tables), is_written=apply)


def _planned(table: Table, steps: Sequence[Step], newest: int) -> tuple[int, list[Change]]:
    properties = table.properties()
    version = int(properties[SCHEMA_VERSION_PROPERTY])
    shape = TableShape(table.schema.name, version, frozenset(table.column_names), properties)
    return version, changes_of(shape, steps, newest)


def _apply(table: Table, planned: Callable[[Table], list[Change]]) -> None:
    """Write the changes that the newest version needs, again where another writer was faster."""
    problem = ""
    for _ in range(ATTEMPTS):
        try:
            for change in planned(table.refresh()):
                table.add_columns(change.columns)
                table.set_properties(change.properties)
        except CommitRefusedError as error:
            problem = str(error)
            continue
        return
    next_step = "stop its writers, then run the upgrade again"
    raise CommitConflictError(table.name, f"{ATTEMPTS} tries were refused ({problem}); {next_step}")
