"""Messages as a consumer is handed them, made from values or from the rows of a topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from txmq.message.received import MESSAGE_COLUMNS, MessageRows, ReceivedMessage

START = datetime(2026, 1, 1, tzinfo=UTC)
_PROPERTIES = pa.map_(pa.string(), pa.string())
_DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(MESSAGE_COLUMNS),
    "transaction_id": "transaction-1", "producer_group": "orders-service", "topic": "order-paid",
    "queue_id": 0, "queue_offset": 0, "body": b"body", "properties": {},
    "born_timestamp": START, "store_timestamp": START,
}  # fmt: skip


def messages(rows: Sequence[Mapping[str, Any]]) -> list[ReceivedMessage]:
    """One message for each row; what a row does not say has a default."""
    columns = {name: _column(name, rows) for name in MESSAGE_COLUMNS}
    return MessageRows(pa.table(columns)).messages()


def message(message_id: Any, **values: Any) -> ReceivedMessage:
    return messages([{"message_id": message_id, **values}])[0]


def received(row: Mapping[str, Any], **changes: Any) -> ReceivedMessage:
    """A row of a topic as its consumer is handed it."""
    return messages([{**row, **changes}])[0]


def changed(original: ReceivedMessage, **changes: Any) -> ReceivedMessage:
    values = {name: getattr(original, name) for name in MESSAGE_COLUMNS}
    return messages([{**values, **changes}])[0]


def _column(name: str, rows: Sequence[Mapping[str, Any]]) -> pa.Array:
    values = [row.get(name, _DEFAULTS[name]) for row in rows]
    if name != "properties":
        return pa.array(values)
    return pa.array([list(dict(pairs or ()).items()) for pairs in values], _PROPERTIES)
