"""Tables of typed topics: the columns of TOPIC, then those of their bodies.

The table itself says which schema its bodies have, by a property that it is made with: so whoever
writes rows or files of it needs no other table, and the two cannot differ.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pyarrow as pa

from txmq.delta.pinned import PinnedTable
from txmq.delta.schemas import TOPIC, TableSchema
from txmq.delta.storage import Table
from txmq.errors import BodySchemaConflictError
from txmq.message.body_schema import BodySchema, parsed_schema

logger = logging.getLogger(__name__)

BODY_SCHEMA_PROPERTY = "txmq.body_schema"
# Of a batch of bodies that a foreign program wrote, so many get a line in the log.
TOLD_PROBLEMS = 10


def typed_columns(body: BodySchema) -> pa.Schema:
    """All columns of a typed topic."""
    return pa.schema([*TOPIC.columns, *body.columns])


def typed_schema(body: BodySchema) -> TableSchema:
    """A topic's table with the columns of its bodies."""
    return replace(TOPIC, columns=typed_columns(body))


def body_schema_in(table: PinnedTable) -> BodySchema | None:
    """The schema that a topic's table was made with; None takes any bytes.

    Raises: BodySchemaError where another program changed it.
    """
    text = table.properties().get(BODY_SCHEMA_PROPERTY)
    return parsed_schema(text) if text else None


def check_body_schema(table: Table, topic: str, body: BodySchema | None) -> bool:
    """Whether a topic's table must be changed to take these bodies; None are any bytes.

    Raises: BodySchemaConflictError where it has messages; StorageError where a column that it had
        before is in the way.
    """
    if body_schema_in(table.refresh()) == body:
        return False
    if table.files():
        problem = "has messages, so its body schema stays as it is; choose another topic"
        raise BodySchemaConflictError(topic, problem)
    table.check_columns([] if body is None else list(body.columns))
    return True


def set_body_schema(table: Table, topic: str, body: BodySchema | None) -> None:
    """Let a topic without messages take these bodies: up to two commits.

    Columns that it had before stay, and are null. Raises: as `check_body_schema`.
    """
    if not check_body_schema(table, topic, body):
        return
    if body is not None:
        table.add_columns(list(body.columns))
    table.set_properties({BODY_SCHEMA_PROPERTY: "" if body is None else body.to_json()})


def with_body_columns(rows: Iterable[pa.Table], body: BodySchema) -> Iterator[pa.Table]:
    """Rows of TOPIC with the columns of their bodies behind them.

    A body that does not have the schema was written past the producer: its columns are null, and
    it is told, but it holds up no other message.
    """
    columns = typed_columns(body)
    for part in rows:
        problems: dict[int, str] = {}
        decoded = body.decoded(part["body"], problems.__setitem__)
        _tell(part, problems)
        yield pa.table([*part.columns, *decoded.columns], schema=columns)


def _tell(part: pa.Table, problems: dict[int, str]) -> None:
    for number, problem in list(problems.items())[:TOLD_PROBLEMS]:
        row = part.slice(number, 1).select(["topic", "message_id"]).to_pylist()[0]
        text = (
            "topic %s: the body of %s does not have the topic's schema, so its columns are null: %s"
        )
        logger.warning(text, row["topic"], row["message_id"], problem)
    if len(problems) > TOLD_PROBLEMS:
        logger.warning("and %d more bodies beside it", len(problems) - TOLD_PROBLEMS)
