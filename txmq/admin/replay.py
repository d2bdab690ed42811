"""Sends dead letters again: to the retry topic of their group, or to their first topic."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.admin.dead_letter_notes import Offsets, offsets_of
from txmq.clock import Clock, milliseconds
from txmq.columns import python_rows
from txmq.consumer.send_back import RETRY_GROUP
from txmq.delta.reading import ReadTable
from txmq.errors import InvalidMessageError
from txmq.message.message import Message
from txmq.message.names import (
    DEAD_LETTER_ORIGIN_MESSAGE_ID,
    DEAD_LETTER_ORIGIN_TOPIC,
    EFFECT_TABLES,
    FIRST_PLACES,
    ORIGIN_MESSAGE_ID,
    ORIGIN_QUEUE_ID,
    ORIGIN_TOPIC,
    RECONSUME_TIMES,
    RETRY_PROPERTIES,
    retry_topic,
)
from txmq.message.received import first_places, first_places_text, origin_place
from txmq.producer.once import KeyedMessage, OnceSender
from txmq.producer.routing import MessageRouter, RoutedMessage
from txmq.results import plain
from txmq.store.store import Store

MESSAGES_A_COMMIT = 5_000
BYTES_A_COMMIT = 64 * 1024 * 1024
_COLUMNS = (
    "message_id",
    "queue_offset",
    "store_timestamp",
    "tags",
    "keys",
    "properties",
    "sharding_key",
    "born_timestamp",
    "body",
)


class ReplayTarget(enum.StrEnum):
    """Where dead letters are sent again: to their group alone, or to all readers of the topic."""

    RETRY = "retry"
    TOPIC = "topic"


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What a replay did, or would do.

    Attributes:
        topics: how many messages went to each topic.
        skipped: how many of the chosen messages an earlier replay has sent.
    """

    consumer_group: str
    reason: str
    topics: Mapping[str, int]
    skipped: int
    is_written: bool

    @property
    def messages(self) -> int:
        """How many were sent, or would be."""
        return sum(self.topics.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {**plain(self), "messages": self.messages}


class Replay:
    """Sends dead letters of one group to one target; each message once, whoever repeats it."""

    def __init__(
        self,
        store: Store,
        consumer_group: str,
        dead_letters: ReadTable,
        target: ReplayTarget,
        clock: Clock,
    ) -> None:
        """Open nothing yet. `dead_letters` is the dead-letter topic of the stored group name."""
        self._store, self._group, self._table = store, consumer_group, dead_letters
        self._target, self._clock = target, clock

    def topic_of(self, properties: Mapping[str, str]) -> str:
        """The stored name of the topic that a dead letter with these properties goes to.

        Raises: InvalidMessageError where the letter does not name its first topic.
        """
        if self._target is ReplayTarget.RETRY:
            return retry_topic(self._group)
        origin = properties.get(ORIGIN_TOPIC)
        if origin is None:
            problem = "is missing, so the first topic is unknown; replay it to the retry topic"
            raise InvalidMessageError(ORIGIN_TOPIC, problem)
        return origin

    def send(self, offsets: Offsets, operator_reason: str) -> Iterator[Offsets]:
        """Send the messages at `offsets`; yields the offsets that each pair of commits sent.

        Commits: one to half and one to op for 5,000 messages or 64 MiB. Raises: as
        `DeadLetters.replay`; a repeated call sends only what is missing.
        """
        sender = OnceSender(self._store, self._group, RETRY_GROUP, self._clock)
        router = MessageRouter(self._store)
        for rows in self._batches(offsets):
            messages = [self._keyed_message(row, router) for row in python_rows(rows)]
            sender.send(messages, operator_reason=operator_reason)
            yield offsets_of(rows)

    def _batches(self, offsets: Offsets) -> Iterator[pa.Table]:
        """The rows at these offsets with their bodies, file by file, in batches of one commit."""
        chosen = pa.array(offsets)
        ranges = self._table.ranges("queue_offset")
        for part in sorted(ranges, key=lambda part: -1 if part.low is None else part.low):
            rows = self._table.read([part.file], _COLUMNS)
            rows = rows.filter(pc.is_in(rows["queue_offset"], value_set=chosen))
            yield from _batches_of(rows.sort_by("queue_offset"))

    def _keyed_message(self, row: Mapping[str, Any], router: MessageRouter) -> KeyedMessage:
        properties = dict(row["properties"] or ())
        message = Message.as_stored(
            topic=self.topic_of(properties),
            body=row["body"],
            tags=row["tags"],
            keys=row["keys"],
            properties=self._replayed_properties(properties),
            sharding_key=row["sharding_key"],
        )
        is_retry = self._target is ReplayTarget.RETRY
        return KeyedMessage(
            f"replay\n{row['message_id']}",
            milliseconds(row["store_timestamp"]),
            message,
            0 if is_retry else _queue(message, properties, router),
            milliseconds(row["born_timestamp"]),
        )

    def _replayed_properties(self, properties: Mapping[str, str]) -> dict[str, str]:
        if self._target is ReplayTarget.TOPIC:
            dropped = RETRY_PROPERTIES - {ORIGIN_MESSAGE_ID, EFFECT_TABLES}
            kept = {name: value for name, value in properties.items() if name not in dropped}
            return {**kept, **self._first_places(properties)}
        dropped = frozenset([DEAD_LETTER_ORIGIN_TOPIC, DEAD_LETTER_ORIGIN_MESSAGE_ID])
        kept = {name: value for name, value in properties.items() if name not in dropped}
        # A replayed message starts again with all of its retries.
        return {**kept, RECONSUME_TIMES: "0"}

    def _first_places(self, properties: Mapping[str, str]) -> dict[str, str]:
        """Other groups have not had the message there, so the place is this group's alone."""
        places, origin = first_places(properties), origin_place(properties)
        if origin is not None:
            places.setdefault(self._group, origin)
        return {FIRST_PLACES: first_places_text(places)} if places else {}


def _batches_of(rows: pa.Table) -> Iterator[pa.Table]:
    """Rows in their order, cut where one commit would exceed its count or its bytes."""
    sizes = pc.fill_null(pc.binary_length(rows["body"]), 0).to_numpy()
    batch = np.maximum(
        np.cumsum(sizes) // BYTES_A_COMMIT, np.arange(len(sizes)) // MESSAGES_A_COMMIT
    )
    for number in np.unique(batch):
        yield rows.filter(pa.array(batch == number))


def _queue(message: Message, properties: Mapping[str, str], router: MessageRouter) -> int:
    """The queue of its sharding key, else its first queue. Raises: as `DeadLetters.replay`."""
    router.check_topic(message.topic)
    router.check_writable(message.topic)
    schema = router.body_schema(message.topic)
    if schema is not None:
        schema.check(message.topic, message.body)
    if message.sharding_key is not None:
        return router.queues_of([RoutedMessage(message)], in_turn=False)[0]
    origin = properties.get(ORIGIN_QUEUE_ID, "")
    count = router.queue_count(message.topic)
    return int(origin) % count if origin.isdecimal() else 0
