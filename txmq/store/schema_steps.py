"""How tables of earlier schema versions become those of today: a list of steps, as pure rules.

A step takes one table from one schema version to the next. What it adds may be there already, after
an upgrade that was killed: its version is raised last, so the next run does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from txmq.delta.schemas import SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY
from txmq.store.op import SIGNATURE
from txmq.store.schemas import OP

if TYPE_CHECKING:
    import pyarrow as pa

# The one of stores of txmq 0.1.
FIRST_VERSION = 1


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

    def said(self) -> str:
        """In a few words."""
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
    """The op log gets the column of signatures (decision 0050)."""
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
    """What takes a table to the newest version, in order; nothing for one that is there.

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
