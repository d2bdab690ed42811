"""The names that the fields of a typed body may not have are the columns of a topic's table."""

from __future__ import annotations

from txmq.message.body_schema import TOPIC_COLUMNS
from txmq.store.schemas import TOPIC


def test_reserved_names_of_fields_are_the_columns_of_a_topic() -> None:
    assert tuple(TOPIC.columns.names) == TOPIC_COLUMNS
