"""Tables of typed topics: the columns of TOPIC, then the columns of their bodies.

The schema of the bodies is a property of the topic's table. So a writer of the table needs no other
table, and columns and schema cannot differ.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from txmq.delta.followed import FollowedTable
from txmq.delta.schemas import TOPIC, TableSchema
from txmq.delta.storage import Table
from txmq.errors import BodySchemaConflictError
from txmq.message.body_schema import BodySchema, parsed_schema
from txmq.message.erased import are_erased

logger = logging.getLogger(__name__)

BODY_SCHEMA_PROPERTY = "txmq.body_schema"
# Bodies of a batch that get a line each in the program's log.
LOGGED_PROBLEMS = 10


def typed_columns(body: BodySchema) -> pa.Schema:
    """All columns of a typed topic."""
    return pa.schema([*TOPIC.columns, *body.columns])


def typed_schema(body: BodySchema) -> TableSchema:
    """The schema of a topic's table with the columns of its bodies."""
    return replace(TOPIC, columns=typed_columns(body))


def body_schema_in(table: FollowedTable) -> BodySchema | None:
    """The body schema in a topic's table; None takes any bytes.

    Raises: BodySchemaError if another program changed it to one that cannot be read.
    """
    text = table.properties().get(BODY_SCHEMA_PROPERTY)
    return parsed_schema(text) if text else None


def check_body_schema(table: Table, topic: str, body: BodySchema | None) -> bool:
    """Whether a topic's table must change to take these bodies; None takes any bytes.

    Raises: BodySchemaConflictError if the topic has messages; StorageError if an earlier column has
        the same name and another type.
    """
    if body_schema_in(table.refresh()) == body:
        return False
    if table.files():
        problem = "has messages, so its body schema cannot change; choose another topic"
        raise BodySchemaConflictError(topic, problem)
    table.check_columns([] if body is None else list(body.columns))
    return True


def set_body_schema(table: Table, topic: str, body: BodySchema | None) -> None:
    """Make a topic without messages take these bodies: up to two commits.

    Earlier columns stay and are null. Raises: as `check_body_schema`.
    """
    if not check_body_schema(table, topic, body):
        return
    if body is not None:
        table.add_columns(list(body.columns))
    table.set_properties({BODY_SCHEMA_PROPERTY: "" if body is None else body.to_json()})


def with_body_columns(rows: Iterable[pa.Table], body: BodySchema) -> Iterator[pa.Table]:
    """Rows of TOPIC, extended by the columns of their bodies.

    A body without the schema did not come through a producer. Its columns are null and a warning
    names it; the other messages are not held up. Those of an erased message are null too.
    """
    columns = typed_columns(body)
    for batch in rows:
        problems: dict[int, str] = {}
        decoded = body.decoded(batch["body"], problems.__setitem__)
        _log(batch, _without_erased(batch, problems))
        yield pa.table([*batch.columns, *decoded.columns], schema=columns)


def _without_erased(batch: pa.Table, problems: dict[int, str]) -> dict[int, str]:
    gone = are_erased(batch["properties"]) if problems else None
    return problems if gone is None else {n: text for n, text in problems.items() if not gone[n]}


def _log(batch: pa.Table, problems: dict[int, str]) -> None:
    for number, problem in list(problems.items())[:LOGGED_PROBLEMS]:
        row = batch.slice(number, 1).select(["topic", "message_id"]).to_pylist()[0]
        text = (
            "topic %s: the body of %s does not have the topic's schema, so its columns are null: %s"
        )
        logger.warning(text, row["topic"], row["message_id"], problem)
    if len(problems) > LOGGED_PROBLEMS:
        logger.warning("and %d more bodies", len(problems) - LOGGED_PROBLEMS)
