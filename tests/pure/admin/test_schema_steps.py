"""The steps from one schema version to the next, as rules."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as some

from txmq.delta.schemas import SCHEMA_VERSION, SCHEMA_VERSION_PROPERTY
from txmq.ops.admin.upgrade import (
    FIRST_VERSION,
    NO_CHANGE,
    STEPS,
    Change,
    Step,
    TableShape,
    changes_of,
)

KINDS = ("half", "op", "settled", "topic", "schedule", "register")


def shaped(kind: str, version: int = FIRST_VERSION, *columns: str) -> TableShape:
    return TableShape(kind, version, frozenset(columns))


def weight(table: TableShape) -> Change:
    """A made-up step: topics get a column, which the next step needs."""
    if table.kind != "topic" or "weight" in table.columns:
        return NO_CHANGE
    return Change((pa.field("weight", pa.float64()),))


def heavy(table: TableShape) -> Change:
    return Change(properties={"txmq.heavy": "yes"}) if "weight" in table.columns else NO_CHANGE


MADE_UP = [*STEPS, Step(3, "a weight", weight), Step(4, "heavy topics", heavy)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_leads_to_each_version_and_none_beyond(kind: str) -> None:
    versions = [change.properties[SCHEMA_VERSION_PROPERTY] for change in changes_of(shaped(kind))]

    assert versions == [str(n) for n in range(FIRST_VERSION + 1, SCHEMA_VERSION + 1)]
    assert all(step.why for step in STEPS)


def test_the_op_log_of_0_1_gets_its_column_and_others_get_none() -> None:
    columns = {
        kind: [c.name for ch in changes_of(shaped(kind)) for c in ch.columns] for kind in KINDS
    }

    assert {kind: names for kind, names in columns.items() if names} == {"op": ["signature"]}


@given(some.sampled_from(KINDS), some.integers(FIRST_VERSION, 4))
def test_a_step_sees_what_the_steps_before_it_did(kind: str, version: int) -> None:
    shape = shaped(kind, version, *(["weight"] if version >= 3 else []))
    changes = changes_of(shape, MADE_UP, 4)

    assert len(changes) == 4 - version
    is_heavy = any("txmq.heavy" in change.properties for change in changes)
    assert is_heavy == ((kind == "topic" and version < 4) or version == 3)


@given(some.sampled_from(KINDS), some.booleans())
def test_what_a_killed_upgrade_did_is_not_done_again(kind: str, has_column: bool) -> None:  # noqa: FBT001
    shape = shaped(kind, 2, *(["weight"] if has_column else []))
    first = changes_of(shape, MADE_UP, 4)[0]

    assert bool(first.columns) == (kind == "topic" and not has_column)
    assert changes_of(shaped(kind, 4), MADE_UP, 4) == []


def test_a_step_that_is_missing_is_told() -> None:
    with pytest.raises(ValueError, match="version 3"):
        changes_of(shaped("op"), STEPS, 3)


def test_a_change_is_said_in_words() -> None:
    change = Change((pa.field("weight", pa.float64()),), {"txmq.heavy": "yes"})

    assert str(change) == "column weight (double), txmq.heavy = yes"
