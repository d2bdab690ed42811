"""Tables of typed topics: the columns of TOPIC, then those of their bodies.

The table itself says which schema its bodies have, by a property that it is made with: so whoever
writes rows or files of it needs no other table, and the two cannot differ.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache

import pyarrow as pa

from txmq.body_schema import BodySchema
from txmq.delta_table import PinnedTable
from txmq.errors import BodySchemaConflictError
from txmq.schemas import TOPIC, TableSchema
from txmq.storage import Table

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
    return _parsed(text) if text else None


@lru_cache(maxsize=256)
def _parsed(text: str) -> BodySchema:
    return BodySchema.parse(text)


def make_typed(table: Table, topic: str, body: BodySchema) -> None:
    """Give a topic's table that is there already a body schema: up to two commits.

    Raises: BodySchemaConflictError where it has another one, or has messages; StorageError where
        a column of a deleted topic is in the way.
    """
    kept = body_schema_in(table.refresh())
    if kept == body:
        return
    if kept is not None:
        raise BodySchemaConflictError(topic, "has another body schema, which cannot be changed")
    if table.files():
        problem = "has messages already, so its bodies stay untyped; choose another topic"
        raise BodySchemaConflictError(topic, problem)
    table.add_columns(list(body.columns))
    table.set_properties({BODY_SCHEMA_PROPERTY: body.to_json()})


def make_untyped(table: Table) -> None:
    """Let a topic that was deleted take any bytes: its columns stay, and are null; one commit."""
    if body_schema_in(table.refresh()) is not None:
        table.set_properties({BODY_SCHEMA_PROPERTY: ""})


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
