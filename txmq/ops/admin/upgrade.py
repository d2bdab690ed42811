"""Takes the tables of a store that an earlier txmq made to the schema version of today.

What to change is a list of steps, as pure rules. A step takes one table from one schema version to
the next. What it adds may be there already, after an upgrade that was killed: its version is raised
last, so the next run does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from txmq.delta.schemas import SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY
from txmq.delta.table import Table
from txmq.delta.until_committed import until_committed
from txmq.ground.results import Plain
from txmq.store.schemas import OP, SIGNATURE
from txmq.store.store import Store, check_store

if TYPE_CHECKING:
    import pyarrow as pa


# The one of stores of txmq 0.1.
FIRST_VERSION = 1


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
    """Do what `upgrade` does, by these steps."""
    newest = max([SCHEMA_VERSION, *(step.to_version for step in steps)])
    tables = []
    # The logs come first: every process of an earlier txmq opens them.
    for path in store.tables.table_paths():
        table = store.tables.table_at(path)
        version, changes = _plan(table, steps, newest)
        tables.append(TableUpgrade(path, version, tuple(map(str, changes))))
        if apply and changes:
            _apply(table, steps, newest)
    return UpgradeResult(store.location, newest, tuple(tables), is_written=apply)


def _plan(
    table: Table, steps: Sequence[Step], newest: int, added: Collection[str] = ()
) -> tuple[int, list[Change]]:
    """Return the schema version of the pinned table, and the changes that it needs.

    The columns in `added` do not count as there: the rest of their change is still to do.
    """
    properties = table.log.properties()
    version = int(properties[SCHEMA_VERSION_PROPERTY])
    columns = frozenset(table.log.column_names).difference(added)
    shape = TableShape(table.schema.name, version, columns, properties)
    return version, changes_of(shape, steps, newest)


def _apply(table: Table, steps: Sequence[Step], newest: int) -> None:
    """Write the changes that a table needs, and plan again before each commit.

    Another upgrade may have gone on meanwhile: its version is not to be lowered.
    """
    added: set[str] = set()

    def compute() -> bool:
        """Make the next commit, if there is one to make. Tell whether it was the last one."""
        _, changes = _plan(table, steps, newest, added)
        if not changes:
            return True
        change = changes[0]
        if table.writer.check_columns(change.columns):
            table.writer.add_columns(change.columns)
            added.update(column.name for column in change.columns)
            return False
        table.writer.set_properties(change.properties)
        added.clear()
        return len(changes) == 1

    while not until_committed(table, compute):
        pass


# --- steps ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a step looks at.

    Attributes:
        kind: the name of its TableSchema: half, op, settled, topic, schedule, register.
        version: its schema version.
        columns: the names of its columns.
        properties: its properties.
    """

    kind: str
    version: int
    columns: frozenset[str]
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Change:
    """What is written into one table: columns that are null in all rows, then properties."""

    columns: tuple[pa.Field, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """Tell the change in a few words."""
        columns = [f"column {column.name} ({column.type})" for column in self.columns]
        values = [f"{name} = {value}" for name, value in self.properties.items()]
        return ", ".join([*columns, *values])


NO_CHANGE = Change()


@dataclass(frozen=True, slots=True)
class Step:
    """Takes tables from the version before `to_version` to it.

    Attributes:
        to_version: the version that it leads to.
        why: what is refused, or gained, from then on.
        change: what one table needs, beside its new version; NO_CHANGE for most.
    """

    to_version: int
    why: str
    change: Callable[[TableShape], Change]


def _signed_claims(table: TableShape) -> Change:
    """Give the op log the column of signatures (decision 0050)."""
    if table.kind != OP.name or SIGNATURE in table.columns:
        return NO_CHANGE
    return Change(columns=(OP.columns.field(SIGNATURE),))


STEPS: Sequence[Step] = (
    Step(
        2,
        "txmq 0.1 refuses the table: its publisher moves the mark of a topic without the "
        "fingerprint that belongs to it, and claims can be signed",
        _signed_claims,
    ),
)


def changes_of(
    table: TableShape, steps: Sequence[Step] = STEPS, newest: int = SCHEMA_VERSION
) -> list[Change]:
    """List what takes a table to the newest version, in order; nothing for one that is there.

    Each change ends with the version that it leads to, so what was done is not done again.

    Raises: ValueError where a step is missing.
    """
    by_version = {step.to_version: step for step in steps}
    changes, shape = [], table
    for version in range(table.version + 1, newest + 1):
        if version not in by_version:
            raise ValueError(f"no step leads to schema version {version}")
        change = by_version[version].change(shape)
        properties = {**change.properties, SCHEMA_VERSION_PROPERTY: str(version)}
        change = Change(change.columns, properties)
        changes.append(change)
        shape = _after(shape, change, version)
    return changes


def _after(table: TableShape, change: Change, version: int) -> TableShape:
    columns = table.columns | {column.name for column in change.columns}
    return TableShape(table.kind, version, columns, {**table.properties, **change.properties})
