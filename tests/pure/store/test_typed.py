"""Columns of bodies: which of them are null, and of which the program's log tells."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.kit.bodies import field, json_body, json_schema
from txmq.message.codec import ERASED
from txmq.store.schemas import TOPIC
from txmq.store.topic import LOGGED_PROBLEMS, with_body_columns

if TYPE_CHECKING:
    import pytest

SCHEMA = json_schema(field("name", "string"))


def rows(*made: dict[str, Any]) -> pa.Table:
    """Of each field that is not named there is no value."""
    schema = pa.schema([pa.field(column.name, column.type) for column in TOPIC.columns])
    return pa.Table.from_pylist(
        [{"topic": "T", "message_id": f"m{n}", **row} for n, row in enumerate(made)], schema
    )


def test_erased_message_has_no_values_and_no_warning_and_hides_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    gone = {"body": b"", "properties": [(ERASED, "true")]}
    whole, foreign = {"body": json_body(name="Eve")}, {"body": b"{", "properties": [("a", "b")]}

    (made,) = with_body_columns([rows(*[gone] * LOGGED_PROBLEMS, whole, foreign)], SCHEMA)

    assert made["name"].to_pylist() == [None] * LOGGED_PROBLEMS + ["Eve", None]
    (record,) = caplog.records
    assert f"m{LOGGED_PROBLEMS + 1}" in record.getMessage()
