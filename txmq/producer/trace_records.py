"""Trace records: one JSON value for each send and each end (R90). Pure.

The fields are those of RocketMQ's TraceContext and TraceBean, without those that have no meaning
here (region, hosts, offsets). A rollback is recorded as a rollback; RocketMQ's message type says
commit for both.
"""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any

from txmq.delta.schemas import HEAD_SEQUENCE
from txmq.errors import InvalidBodyError
from txmq.hooks import EndContext, SendContext, SentMessage
from txmq.lifecycle import TransactionState
from txmq.message.ids import message_id
from txmq.message.message import KEY_SEPARATOR, MAX_FIELD_BYTES, LocalTransactionState
from txmq.store.topic_settings import TopicKind

MESSAGES_OF_A_RECORD_MAX = 200
# The bytes of keys, tags, topics and ids. As JSON they stay below RocketMQ's 4 MiB for a body.
TEXT_OF_A_RECORD_MAX_BYTES = 512 * 1024
# The bytes of Python's objects beside the texts.
_OBJECTS_OF_A_RECORD_BYTES = 512


class TraceType(enum.StrEnum):
    """The kind of a record; RocketMQ's names."""

    PUB = "Pub"
    END_TRANSACTION = "EndTransaction"


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One send or one end of one transaction.

    Attributes:
        time_ms: when the record was made, in milliseconds since 1970-01-01 UTC.
        messages: the messages of the record. A large send has several records; an end has messages
            only if its producer still had them.
        message_count: of the whole transaction; None if it was not read.
        success: whether the transaction has the requested state.
        error: the type of the error, without its text, which may hold user data.
        asked: COMMIT, ROLLBACK or UNKNOWN.
        state: the state of the transaction; None if it is not known.
        source: who caused that state.
    """

    trace_type: TraceType
    time_ms: int
    group: str
    transaction_id: str
    namespace: str | None = None
    messages: tuple[SentMessage, ...] = ()
    message_count: int | None = None
    dataframe_topics: tuple[str, ...] = ()
    cost_ms: float | None = None
    success: bool = True
    error: str | None = None
    asked: LocalTransactionState | None = None
    state: TransactionState | None = None
    source: str | None = None
    from_check: bool | None = None
    reason: str | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that find it: the transaction, its messages and their keys (R90)."""
        first = message_id(self.transaction_id, HEAD_SEQUENCE)
        ids = [message.message_id for message in self.messages] or [first]
        return tuple(_fitting([self.transaction_id, *ids], self.messages))

    @property
    def size_bytes(self) -> int:
        """Its approximate memory; texts that it shares with other records count too."""
        texts = (self.transaction_id, self.reason or "", *self.dataframe_topics)
        return (
            _OBJECTS_OF_A_RECORD_BYTES
            + sum(map(sys.getsizeof, texts))
            + sum(map(_text_bytes, self.messages))
        )


def encoded(record: TraceRecord) -> bytes:
    """A record as the body of a message, without the fields that are None."""
    fields_of_record = ((name, getattr(record, name)) for name in _FIELDS)
    values = {name: value for name, value in fields_of_record if value is not None}
    return _ENCODER.encode(values).encode()


def decoded(body: bytes) -> TraceRecord:
    """The record that `encoded` wrote; fields of a later version are ignored.

    Raises: InvalidBodyError.
    """
    try:
        values = json.loads(body)
        arguments = {name: _value(name, value) for name, value in values.items() if name in _FIELDS}
        return TraceRecord(**arguments)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidBodyError("body", "is no trace record") from error


def records_of_send(context: SendContext, time_ms: int) -> Iterator[TraceRecord]:
    """One record for each transaction of a send; several if it has many messages."""
    by_transaction = {
        transaction_id: list(messages)
        for transaction_id, messages in groupby(context.messages, _transaction_id)
    }
    for transaction_id in context.transaction_ids:
        sent = by_transaction.get(transaction_id, [])
        for messages in _split(sent) if sent else [[]]:
            yield TraceRecord(
                trace_type=TraceType.PUB,
                time_ms=time_ms,
                group=context.producer_group,
                namespace=context.namespace,
                transaction_id=transaction_id,
                messages=tuple(messages),
                message_count=None if context.dataframe_topics else len(sent),
                dataframe_topics=context.dataframe_topics,
                cost_ms=context.cost_ms,
                success=context.error is None,
                error=_type_of(context.error),
            )


def record_of_end(context: EndContext, time_ms: int) -> TraceRecord:
    """The record of an end, with as many messages as one record has room for."""
    return TraceRecord(
        trace_type=TraceType.END_TRANSACTION,
        time_ms=time_ms,
        group=context.producer_group,
        namespace=context.namespace,
        transaction_id=context.transaction_id,
        messages=tuple(next(_split(context.messages), [])),
        message_count=context.message_count,
        cost_ms=context.cost_ms,
        success=context.error is None and context.is_as_asked,
        error=_type_of(context.error),
        asked=context.asked,
        state=context.state,
        source=context.source,
        from_check=context.from_check,
        reason=context.reason,
    )


def _transaction_id(message: SentMessage) -> str:
    return message.message_id.partition(":")[0]


def _split(messages: Sequence[SentMessage]) -> Iterator[list[SentMessage]]:
    """Split messages: ids fit into the keys of one record, and texts fit into its body."""
    of_record: list[SentMessage] = []
    size_bytes = 0
    for message in messages:
        text_bytes = _text_bytes(message)
        is_full = len(of_record) == MESSAGES_OF_A_RECORD_MAX
        if of_record and (is_full or size_bytes + text_bytes > TEXT_OF_A_RECORD_MAX_BYTES):
            yield of_record
            of_record, size_bytes = [], 0
        of_record.append(message)
        size_bytes += text_bytes
    if of_record:
        yield of_record


def _text_bytes(message: SentMessage) -> int:
    texts = (message.message_id, message.topic, message.tags or "", message.keys or "")
    return sum(map(sys.getsizeof, texts))


def _fitting(ids: Sequence[str], messages: Sequence[SentMessage]) -> Iterator[str]:
    """The ids, then the keys of the messages while there is room, each once."""
    left, seen = MAX_FIELD_BYTES, set()
    keys = (key for message in messages for key in (message.keys or "").split(KEY_SEPARATOR))
    for token in (*ids, *keys):
        size = len(token.encode()) + len(KEY_SEPARATOR)
        if token and token not in seen and size <= left:
            left -= size
            seen.add(token)
            yield token


def _value(name: str, value: Any) -> Any:
    match name:
        case "messages":
            return tuple(map(_message, value))
        case "dataframe_topics":
            return tuple(value)
        case "trace_type":
            return TraceType(value)
        case "asked":
            return LocalTransactionState(value)
        case "state":
            return TransactionState(value)
        case _:
            return value


def _message(values: Mapping[str, Any]) -> SentMessage:
    return SentMessage(
        message_id=values["message_id"],
        topic=values["topic"],
        tags=values["tags"],
        keys=values["keys"],
        body_size_bytes=values["body_size_bytes"],
        kind=TopicKind(values["kind"]),
    )


def _plain(value: Any) -> object:
    if isinstance(value, SentMessage):
        return {name: getattr(value, name) for name in _MESSAGE_FIELDS}
    return value.value


def _type_of(error: Exception | None) -> str | None:
    return None if error is None else type(error).__name__


_FIELDS = tuple(spec.name for spec in fields(TraceRecord))
_MESSAGE_FIELDS = tuple(spec.name for spec in fields(SentMessage))
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=_plain)
