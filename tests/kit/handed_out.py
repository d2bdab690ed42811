"""Messages as a consumer is handed them, made from the rows of a topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Received:
    """What `send_back` looks at."""

    message_id: str
    topic: str = "order-paid"
    queue_id: int = 0
    queue_offset: int = 0
    tags: str | None = None
    keys: str | None = None
    body: bytes = b"body"
    properties: Mapping[str, str] = field(default_factory=dict)
    sharding_key: str | None = None
    born_timestamp: datetime = START
    store_timestamp: datetime = START

    @property
    def reconsume_times(self) -> int:
        return int(self.properties.get("RECONSUME_TIMES", "0"))

    @property
    def origin_topic(self) -> str:
        return self.properties.get("RETRY_TOPIC", self.topic)

    @property
    def origin_message_id(self) -> str:
        return self.properties.get("ORIGIN_MESSAGE_ID", self.message_id)


def received(row: Mapping[str, Any], topic: str | None = None) -> Received:
    """A row of a topic; a retry's row names its topic as well."""
    names = [name for name in Received.__dataclass_fields__ if name != "properties"]
    values = {name: row[name] for name in names} | {"properties": dict(row["properties"] or ())}
    return Received(**(values if topic is None else {**values, "topic": topic}))
