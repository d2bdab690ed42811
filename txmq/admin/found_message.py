"""A message with every table that holds it, as a value."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from txmq.lifecycle import DeliveryState, TransactionState
from txmq.producer.trace_records import TraceRecord, TraceType, encoded
from txmq.results import plain

PLACE_COLUMNS = ("queue_id", "queue_offset", "life", "op_version", "store_timestamp")
_UNPUBLISHED = {
    TransactionState.PENDING: "half",
    TransactionState.COMMITTED: "committed, not published yet",
    TransactionState.ROLLED_BACK: "rolled back",
    TransactionState.DISCARDED: "discarded",
    TransactionState.INCOMPLETE: "incomplete",
    TransactionState.EXPIRED: "expired",
}
_UNDELIVERED = {
    DeliveryState.SCHEDULED: "scheduled",
    DeliveryState.DELIVERED: "delivered, not published yet",
    DeliveryState.RECALLED: "recalled",
}


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """A row of a topic that holds a message."""

    topic: str
    queue_id: int
    queue_offset: int
    life: int
    op_version: int
    store_timestamp: datetime


@dataclass(frozen=True, slots=True)
class FoundMessage:
    """One message, and where it is.

    Attributes:
        topic: the stored name of its topic; see `txmq.message.names`.
        body: None unless it was asked for.
        is_half: whether its half message still exists.
        ordinary: whether it was sent without a local transaction; None without a half.
        state: the state of its transaction; None where only a dead letter is left.
        source: who wrote the claim that led to that state; None where only its row in a topic is
            left.
        is_removed: whether it was published, and its topic's retention, a purge or a deletion of
            the topic took it.
        delivery: the settled state of a delayed message; None for other messages.
        due: when a delayed message becomes visible; None where that is unknown.
        places: its rows in topics, where consumers see it.
        dead_letters: its rows among the dead letters of discarded transactions.
        trace: trace records about it, oldest first.
    """

    message_id: str
    transaction_id: str
    sequence: int
    producer_group: str
    topic: str
    tags: str | None
    keys: str | None
    properties: Mapping[str, str]
    sharding_key: str | None
    born_timestamp: datetime
    is_half: bool
    ordinary: bool | None
    state: TransactionState | None
    source: str | None
    delivery: DeliveryState | None
    delay_s: int | None
    due: datetime | None
    is_removed: bool = False
    places: tuple[MessagePlace, ...] = ()
    dead_letters: tuple[MessagePlace, ...] = ()
    trace: tuple[TraceRecord, ...] = ()
    body: bytes | None = field(default=None, repr=False)

    @property
    def where(self) -> str:
        """Where the message is now, in a few words."""
        if self.places:
            return "visible"
        if self.is_removed:
            return "removed from its topic"
        if self.delivery is not None:
            return _UNDELIVERED[self.delivery]
        if self.state is None:
            return "dead letter" if self.dead_letters else "unknown"
        return _UNPUBLISHED[self.state]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; a body that is not UTF-8 text is in base64."""
        values = plain(replace(self, body=None, trace=()))
        del values["body"]
        body = {} if self.body is None else body_values(self.body)
        trace = [json.loads(encoded(record)) for record in self.trace]
        return {"where": self.where, **values, "trace": trace, **body}


def record_moment(record: TraceRecord) -> tuple[int, bool]:
    """Sort key of a trace record: its time; at the same time an end comes last."""
    return record.time_ms, record.trace_type is TraceType.END_TRANSACTION


def message_place(row: Mapping[str, Any]) -> MessagePlace:
    """The place of a row of a topic; `row["in"]` names that topic."""
    return MessagePlace(topic=row["in"], **{name: row[name] for name in PLACE_COLUMNS})


def body_values(body: bytes) -> dict[str, str]:
    """A body for JSON: as text, or in base64 if it is not UTF-8."""
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body).decode("ascii")}
