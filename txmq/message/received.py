"""Messages as consumers get them: views of Arrow rows, so that a backlog costs little memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from txmq.ground.columns import python_values
from txmq.message.codec import decoded
from txmq.message.json_body import parsed_json
from txmq.message.names import (
    EFFECT_TABLES,
    FIRST_PLACES,
    ORIGIN_MESSAGE_ID,
    ORIGIN_QUEUE_ID,
    ORIGIN_QUEUE_OFFSET,
    ORIGIN_TOPIC,
    RECONSUME_TIMES,
    unwrapped,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from txmq.message.codec import BodyCodec


MESSAGE_COLUMNS = (
    "message_id", "transaction_id", "producer_group", "topic", "queue_id", "queue_offset", "tags",
    "keys", "body", "properties", "sharding_key", "born_timestamp", "store_timestamp",
)  # fmt: skip
# Of more digits it is no count that txmq wrote.
_TIMES = re.compile(r"\d{1,9}", re.ASCII)
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_NO_PROPERTIES: Mapping[str, str] = MappingProxyType({})
Model = TypeVar("Model")


class ReceivedMessage:
    """A message of a topic; read-only.

    `repr` does not show the body. A retry has the body, the tags and the keys of the first message;
    `reconsume_times`, `origin_topic` and `origin_message_id` tell where it comes from.
    """

    __slots__ = ("_body", "_effects", "_receipt", "_row", "_rows", "_tries")

    def __init__(self, rows: MessageRows, row: int) -> None:
        """View one row."""
        self._rows, self._row = rows, row
        # Where it took effect since it was handed out.
        self._effects: frozenset[str] = frozenset()
        self._tries = self._receipt = 0
        # Decoded once, where the consumer has a codec.
        self._body: bytes | None = None

    def __repr__(self) -> str:
        """Show its position and its id, without content."""
        position = f"{self.topic!r}, queue_id={self.queue_id}, queue_offset={self.queue_offset}"
        return f"ReceivedMessage(topic={position}, message_id={self.message_id!r})"

    @property
    def topic(self) -> str:
        """The topic that it was read from."""
        return self._rows.shown(self._rows.column("topic")[self._row])

    @property
    def queue_id(self) -> int:
        """The queue of the topic; messages of one queue are in order."""
        queue_id: int = self._rows.column("queue_id")[self._row]
        return queue_id

    @property
    def queue_offset(self) -> int:
        """Its offset in the queue; offsets have no gaps."""
        queue_offset: int = self._rows.column("queue_offset")[self._row]
        return queue_offset

    @property
    def message_id(self) -> str:
        """The id of the message: the id of its transaction and its number there."""
        message_id: str = self._rows.column("message_id")[self._row]
        return message_id

    @property
    def transaction_id(self) -> str:
        """The transaction that sent it."""
        transaction_id: str = self._rows.column("transaction_id")[self._row]
        return transaction_id

    @property
    def producer_group(self) -> str:
        """The producer group that sent it."""
        return self._rows.shown(self._rows.column("producer_group")[self._row])

    @property
    def tags(self) -> str | None:
        """Its tag."""
        tags: str | None = self._rows.column("tags")[self._row]
        return tags

    @property
    def keys(self) -> str | None:
        """Its keys, joined by a space."""
        keys: str | None = self._rows.column("keys")[self._row]
        return keys

    @property
    def body(self) -> bytes:
        """The content; the consumer's codec decodes it. Raises: BodyCodecError."""
        codec = self._rows.codec
        if codec is None:
            return self.stored_body
        if self._body is None:
            names = ("topic", "message_id", "properties", "body")
            row = {name: self._rows.column(name)[self._row] for name in names}
            self._body = decoded(row, codec)
        return self._body

    @property
    def stored_body(self) -> bytes:
        """The bytes in the topic: what a codec made of the content, or the content itself."""
        stored: bytes = self._rows.column("body")[self._row]
        return stored

    @overload
    def json(self, model: type[Model]) -> Model: ...

    @overload
    def json(self, model: None = None) -> Any: ...

    def json(self, model: type[Any] | None = None) -> Any:
        """Return the content of a body in JSON.

        Args:
            model: a pydantic model, a dataclass or another type that pydantic makes of JSON; plain
                Python values without it.

        Raises: InvalidBodyError if the body is no JSON or does not fit the model; no value of it is
            shown. EnvironmentProblemError where a model is given and pydantic is not installed.
        """
        return parsed_json(self.body, self.message_id, model)

    @property
    def properties(self) -> Mapping[str, str]:
        """The properties that the sender set; those of a retry also tell where it comes from."""
        pairs = self._rows.column("properties")[self._row]
        return MappingProxyType(dict(pairs)) if pairs else _NO_PROPERTIES

    @property
    def sharding_key(self) -> str | None:
        """The key that chose its queue: messages with the same key are in the same queue."""
        sharding_key: str | None = self._rows.column("sharding_key")[self._row]
        return sharding_key

    @property
    def born_timestamp(self) -> datetime:
        """When it was created, by the clock of its producer."""
        born_timestamp: datetime = self._rows.column("born_timestamp")[self._row]
        return born_timestamp

    @property
    def store_timestamp(self) -> datetime:
        """When it became visible, by the clock of the publisher."""
        store_timestamp: datetime = self._rows.column("store_timestamp")[self._row]
        return store_timestamp

    @property
    def reconsume_times(self) -> int:
        """How often it was handed out before and not handled: 0 at the first try."""
        return self._tries + (sent_back_times(self.properties) or 0)

    @property
    def origin_topic(self) -> str:
        """The topic of the first message; its own topic if it is no retry."""
        origin = self.properties.get(ORIGIN_TOPIC)
        return self.topic if origin is None else self._rows.shown(origin)

    @property
    def origin_message_id(self) -> str:
        """The id of the first message; its own id if it is no retry."""
        return self.properties.get(ORIGIN_MESSAGE_ID) or self.message_id


class MessageRows:
    """Rows of a topic; a column becomes Python values once, when it is first read."""

    __slots__ = ("_namespace", "_rows", "_values", "codec")

    def __init__(
        self, rows: pa.Table, namespace: str | None = None, codec: BodyCodec | None = None
    ) -> None:
        """Take rows with MESSAGE_COLUMNS; names of `namespace` are shown without it."""
        self._rows, self._namespace, self.codec = rows, namespace, codec
        self._values: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        """Count the rows."""
        return int(self._rows.num_rows)

    def column(self, name: str) -> list[Any]:
        """Return all values of one column."""
        values = self._values.get(name)
        if values is None:
            values = self._values[name] = python_values(self._rows.column(name))
        return values

    def sizes_bytes(self) -> list[int]:
        """Return the size of each message: its body, and its share of the other columns."""
        import pyarrow.compute as pc

        column = self._rows.column("body")
        lengths = pc.binary_length(column)
        bodies = (pc.fill_null(lengths, 0) if column.null_count else lengths).to_pylist()
        others = (int(self._rows.nbytes) - sum(bodies)) // max(len(bodies), 1)
        return [size_bytes + max(others, 0) for size_bytes in bodies]

    def shown(self, name: str) -> str:
        """Return a stored name as the reader's namespace calls it."""
        return name if self._namespace is None else unwrapped(name, self._namespace)

    def messages(self) -> list[ReceivedMessage]:
        """Return all messages, in the order of the rows."""
        return [ReceivedMessage(self, row) for row in range(len(self))]


def note_effect(message: ReceivedMessage, effect_id: str) -> None:
    """Note that a message took effect for a group in a table: its retry, if any, says so."""
    message._effects |= {effect_id}  # noqa: SLF001 - users only read messages


def note_tries(message: ReceivedMessage, tries: int) -> None:
    """Note how often a message has failed in its place."""
    message._tries = tries  # noqa: SLF001 - as `note_effect`


def note_delivery(message: ReceivedMessage, tries: int, receipt: int) -> None:
    """Note how often a message was handed out before, and the number of this time."""
    message._tries, message._receipt = tries, receipt  # noqa: SLF001 - as `note_effect`


def tries_of(message: ReceivedMessage) -> int:
    """Return how often it was handed out before from its own place, and not handled."""
    return message._tries  # noqa: SLF001 - as `note_effect`


def receipt_of(message: ReceivedMessage) -> int:
    """Return the number of the handing out; 0 where messages are not acknowledged one by one."""
    return message._receipt  # noqa: SLF001 - as `note_effect`


def effects_of(message: ReceivedMessage) -> frozenset[str]:
    """Return where a message, or the first one of a retry, took effect: as in `note_effect`."""
    earlier = message.properties.get(EFFECT_TABLES, "").split()
    return message._effects.union(earlier)  # noqa: SLF001 - as `note_effect`


def sent_back_times(properties: Mapping[str, str]) -> int | None:
    """Return how often a message was sent back, by its properties; None if they do not say it."""
    text = properties.get(RECONSUME_TIMES, "")
    return int(text) if _TIMES.fullmatch(text) else None


def origin_place(properties: Mapping[str, str]) -> tuple[int, int] | None:
    """Return queue and offset of the message that a retry comes from; None if it is no retry."""
    queue, offset = properties.get(ORIGIN_QUEUE_ID, ""), properties.get(ORIGIN_QUEUE_OFFSET, "")
    return _place(queue, offset)


def first_places(properties: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Return queue and offset at which each group that replayed a message had it first."""
    places = {}
    for text in properties.get(FIRST_PLACES, "").split():
        group, *place = text.rsplit("/", 2)
        first = _place(*place) if len(place) == 2 else None  # noqa: PLR2004 - a pair
        if first is not None:
            places[group] = first
    return places


def _place(queue: str, offset: str) -> tuple[int, int] | None:
    queue_id, queue_offset = number_in(queue), number_in(offset)
    return None if queue_id is None or queue_offset is None else (queue_id, queue_offset)


def number_in(text: str) -> int | None:
    """Return the whole number that a property says; None if it says none, or more than a column."""
    return int(text) if _NUMBER.fullmatch(text) else None


def first_places_text(places: Mapping[str, tuple[int, int]]) -> str:
    """Return the property that `first_places` reads."""
    return " ".join(f"{group}/{queue}/{offset}" for group, (queue, offset) in places.items())
