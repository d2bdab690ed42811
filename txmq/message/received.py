"""Messages as consumers get them: views of Arrow rows, so that a backlog costs little."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from txmq.message.names import ORIGIN_MESSAGE_ID, ORIGIN_TOPIC, RECONSUME_TIMES, unwrapped

if TYPE_CHECKING:
    import pyarrow as pa

MESSAGE_COLUMNS = (
    "message_id", "transaction_id", "producer_group", "topic", "queue_id", "queue_offset", "tags",
    "keys", "body", "properties", "sharding_key", "born_timestamp", "store_timestamp",
)  # fmt: skip
_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})


class MessageRows:
    """Rows of a topic whose columns become Python values once, when they are first asked for."""

    __slots__ = ("_namespace", "_rows", "_values")

    def __init__(self, rows: pa.Table, namespace: str | None = None) -> None:
        """Names in `namespace` are shown without it; the columns are MESSAGE_COLUMNS."""
        self._rows, self._namespace = rows, namespace
        self._values: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        """How many rows there are."""
        return int(self._rows.num_rows)

    def column(self, name: str) -> list[Any]:
        """All values of one column."""
        found = self._values.get(name)
        if found is None:
            found = self._values[name] = self._rows.column(name).to_pylist()
        return found

    def shown(self, name: str) -> str:
        """A stored name as the reader's namespace calls it."""
        return name if self._namespace is None else unwrapped(name, self._namespace)

    def messages(self) -> list[ReceivedMessage]:
        """All of them, in their order."""
        return [ReceivedMessage(self, row) for row in range(len(self))]


class ReceivedMessage:
    """A message of a topic; read-only.

    `repr` does not show the body. A message that was sent back has the body, the tags and the keys
    of the first one; `reconsume_times`, `origin_topic` and `origin_message_id` tell it apart.
    """

    __slots__ = ("_row", "_rows")

    def __init__(self, rows: MessageRows, row: int) -> None:
        """One row of many."""
        self._rows, self._row = rows, row

    def __repr__(self) -> str:
        """Where it is, and no content."""
        place = f"{self.topic!r}, queue_id={self.queue_id}, queue_offset={self.queue_offset}"
        return f"ReceivedMessage(topic={place}, message_id={self.message_id!r})"

    @property
    def topic(self) -> str:
        """Where it was sent to."""
        return self._rows.shown(self._rows.column("topic")[self._row])

    @property
    def queue_id(self) -> int:
        """The queue of the topic, which is the unit of order."""
        found: int = self._rows.column("queue_id")[self._row]
        return found

    @property
    def queue_offset(self) -> int:
        """Its place in the queue; without gaps."""
        found: int = self._rows.column("queue_offset")[self._row]
        return found

    @property
    def message_id(self) -> str:
        """The address of the message: its transaction and its place in it."""
        found: str = self._rows.column("message_id")[self._row]
        return found

    @property
    def transaction_id(self) -> str:
        """The transaction that sent it."""
        found: str = self._rows.column("transaction_id")[self._row]
        return found

    @property
    def producer_group(self) -> str:
        """Who sent it."""
        return self._rows.shown(self._rows.column("producer_group")[self._row])

    @property
    def tags(self) -> str | None:
        """Its tag."""
        found: str | None = self._rows.column("tags")[self._row]
        return found

    @property
    def keys(self) -> str | None:
        """Its keys, joined by a space."""
        found: str | None = self._rows.column("keys")[self._row]
        return found

    @property
    def body(self) -> bytes:
        """The content."""
        found: bytes = self._rows.column("body")[self._row]
        return found

    @property
    def properties(self) -> Mapping[str, str]:
        """What its sender added, and for a message that was sent back, where it comes from."""
        found = self._rows.column("properties")[self._row]
        return MappingProxyType(dict(found)) if found else _NO_PROPERTIES

    @property
    def sharding_key(self) -> str | None:
        """Messages with the same one are in the same queue."""
        found: str | None = self._rows.column("sharding_key")[self._row]
        return found

    @property
    def born_timestamp(self) -> datetime:
        """When it was made, by the clock of its producer."""
        found: datetime = self._rows.column("born_timestamp")[self._row]
        return found

    @property
    def store_timestamp(self) -> datetime:
        """When it became visible, by the clock of the publisher."""
        found: datetime = self._rows.column("store_timestamp")[self._row]
        return found

    @property
    def reconsume_times(self) -> int:
        """How often it was sent back before; 0 for a message that was not."""
        text = self.properties.get(RECONSUME_TIMES, "")
        return int(text) if text.isascii() and text.isdecimal() else 0

    @property
    def origin_topic(self) -> str:
        """The topic of the first message; its own if it was not sent back."""
        origin = self.properties.get(ORIGIN_TOPIC)
        return self.topic if origin is None else self._rows.shown(origin)

    @property
    def origin_message_id(self) -> str:
        """The id of the first message; its own if it was not sent back."""
        return self.properties.get(ORIGIN_MESSAGE_ID) or self.message_id
