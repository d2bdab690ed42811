"""Tracing: each send and each end leaves a record in RMQ_SYS_TRACE_TOPIC (R90).

Records are ordinary messages, sent in batches by a thread of their own. Tracing never delays or
fails a send; when too many records wait, it drops records. A record holds no body, only its size.
"""

from __future__ import annotations

import enum
import json
import logging
import queue
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import groupby
from typing import Any, Protocol, Self

from txmq.delta.failures import process_id
from txmq.errors import ClosedError, InvalidBodyError, TxmqError
from txmq.ground.clock import Clock, SystemClock
from txmq.listeners.hooks import EndContext, SendContext, SentMessage
from txmq.message.ids import HEAD_SEQUENCE, message_id
from txmq.message.lifecycle import TransactionState
from txmq.message.message import KEY_SEPARATOR, MAX_FIELD_BYTES, LocalTransactionState, Message
from txmq.message.names import TRACE_TOPIC
from txmq.producer.commits import ProducerCommits
from txmq.producer.pipeline import waited
from txmq.producer.routing import MessageRouter
from txmq.store.store import Store, check_store
from txmq.store.topic_settings import TopicKind

logger = logging.getLogger(__name__)

TRACE_GROUP = "rmq_sys_trace"
QUEUE_SIZE = 10_000
QUEUE_BYTES = 64 * 1024 * 1024
BATCH_SIZE = 5_000
FLUSH_INTERVAL_S = 1.0
FLUSH_WAIT_S = 60.0
# A topic name that Message accepts; `_message` then replaces it with the internal topic.
_PLACEHOLDER = "trace"
MESSAGES_OF_A_RECORD_MAX = 200
# The bytes of keys, tags, topics and ids. As JSON they stay below RocketMQ's 4 MiB for a body.
TEXT_OF_A_RECORD_MAX_BYTES = 512 * 1024
# The bytes of Python's objects beside the texts.
_OBJECTS_OF_A_RECORD_BYTES = 512


class TraceHook:
    """Writes a trace record for each send and each end (R90).

    One hook may serve several producers and a broker of the same store; call `close()` after they
    are closed. A producer's `close()` flushes it. Safe for many threads.

    Commits: one to half and one to op for each batch of records, in a thread of its own.
    Retry: none. A batch that could not be written is dropped, and a warning counts it.

    Args:
        store: the store whose trace topic takes the records.
        queue_size: the number of records in memory, including those that are being written.
            Further records, and records above 64 MiB of text, are dropped and counted in a warning.
        flush_interval_s: how long a record waits for other records.
        clock: gives the time of the records.
        sender: sends the messages that carry records; by default an internal producer.

    Example:
        >>> with TraceHook(store) as trace:
        ...     producer = TransactionProducer(store, producer_group="orders", hooks=[trace])
    """

    def __init__(
        self,
        store: Store,
        *,
        queue_size: int = QUEUE_SIZE,
        flush_interval_s: float = FLUSH_INTERVAL_S,
        clock: Clock | None = None,
        sender: TraceSender | None = None,
    ) -> None:
        """Start no thread yet; read and write nothing."""
        check_store(store)
        self._clock: Clock = clock or SystemClock()
        self._sender = sender or _InternalProducer(store, self._clock)
        self._writer = _RecordWriter(self._sender, queue_size, flush_interval_s)
        self._pid = process_id()

    # --- the hook -----------------------------------------------------------------------------

    def before_send(self, context: SendContext) -> None:
        """Do nothing: `after_send` makes the record."""

    def after_send(self, context: SendContext) -> None:
        """Queue one record for each transaction. Raises: ClosedError in a forked process."""
        if context.producer_group == TRACE_GROUP:
            return
        for record in records_of_send(context, self._clock.now_ms()):
            self._keep(record)

    def end_transaction(self, context: EndContext) -> None:
        """Queue one record. Raises: ClosedError in a forked process."""
        # The check also ends transactions of the trace itself.
        if context.producer_group == TRACE_GROUP:
            return
        self._keep(record_of_end(context, self._clock.now_ms()))

    def _keep(self, record: TraceRecord) -> None:
        if not self._is_of_this_process:
            raise ClosedError("the trace belongs to the process before the fork; make a new one")
        self._writer.put(record)

    # --- the end ------------------------------------------------------------------------------

    @property
    def dropped(self) -> int:
        """The number of lost records: the queue was full, or the store did not take them."""
        return self._writer.dropped

    def flush(self) -> None:
        """Wait until all queued records are written or dropped, at most a minute; never raises."""
        if self._is_of_this_process:
            self._writer.flush(FLUSH_WAIT_S)

    def close(self) -> None:
        """Write the queued records and end the thread; later records are dropped."""
        if self._is_of_this_process:
            self._writer.close()
            self._sender.close()

    def __enter__(self) -> Self:
        """Close at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the hook, also after an exception."""
        self.close()

    @property
    def _is_of_this_process(self) -> bool:
        """True if this process made it; a fork does not copy the thread."""
        return self._pid == process_id()


class TraceSender(Protocol):
    """Sends the messages that carry records; a producer can do it."""

    def send(self, messages: Sequence[Message]) -> object:
        """Make the messages durable and visible."""
        ...

    def close(self) -> None:
        """Wait for sends that have begun."""
        ...


class _InternalProducer:
    """Sends for a group that users cannot name; without hooks, so that it is not traced itself."""

    def __init__(self, store: Store, clock: Clock) -> None:
        router = MessageRouter(store, clock=clock)
        self._commits = ProducerCommits(store, TRACE_GROUP, clock, router)

    def send(self, messages: Sequence[Message]) -> object:
        return waited(self._commits.send(self._commits.planned(messages)))

    def close(self) -> None:
        self._commits.close()


class _RecordWriter:
    """A thread that sends records in batches; it starts with the first record."""

    def __init__(self, sender: TraceSender, max_records: int, interval_s: float) -> None:
        self.dropped = 0
        self._sender, self._max_records, self._interval_s = sender, max_records, interval_s
        # `put` bounds the queue: a maxsize would not count the batch that is being written.
        self._queue: queue.SimpleQueue[TraceRecord | _Mark] = queue.SimpleQueue()
        self._records = self._size_bytes = 0
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def put(self, record: TraceRecord) -> None:
        """Queue the record, or drop it; never waits for the store."""
        size_bytes = record.size_bytes
        with self._lock:
            is_full = (
                self._records >= self._max_records or self._size_bytes + size_bytes > QUEUE_BYTES
            )
            if self._is_closed or is_full:
                self.dropped += 1
                return
            self._start()
            self._records += 1
            self._size_bytes += size_bytes
            self._queue.put(record)

    def _start(self) -> None:
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="txmq-trace", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            # The next record must be able to start one. If this call was interrupted, the thread
            # may run all the same; it finds that it does not count.
            self._thread = None
            self.dropped += 1
            raise

    def flush(self, timeout_s: float) -> None:
        """Wait until the queued records are written or dropped."""
        mark = _Mark()
        with self._lock:
            if self._thread is None or self._is_closed:
                return
            self._queue.put(mark)
        mark.reached.wait(timeout_s)

    def close(self) -> None:
        """Write the queued records, then end the thread."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._queue.put(_Mark(is_last=True))
        if self._thread is not None:
            self._thread.join()

    # --- its thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        with self._lock:
            if self._thread is not threading.current_thread():
                return
        is_last, warned = False, 0
        while not is_last:
            batch, mark = self._next_batch()
            if batch:
                self._write(batch)
            if self.dropped > warned:
                warned = self.dropped
                logger.warning("%d trace records were dropped so far", warned)
            if mark is not None:
                mark.reached.set()
                is_last = mark.is_last

    def _next_batch(self) -> tuple[list[TraceRecord], _Mark | None]:
        """Wait for a record, then the interval for further records; a mark ends the wait."""
        batch: list[TraceRecord] = []
        until_s: float | None = None
        while len(batch) < BATCH_SIZE:
            try:
                item = self._queue.get(timeout=_seconds_left(until_s))
            except queue.Empty:
                break
            if isinstance(item, _Mark):
                return batch, item
            batch.append(item)
            if until_s is None:
                until_s = time.monotonic() + self._interval_s
        return batch, None

    def _write(self, batch: Sequence[TraceRecord]) -> None:
        lost = 0
        try:
            self._sender.send([_message_of_trace(record) for record in batch])
        except BaseException as error:  # noqa: BLE001 - without this thread all later records are lost
            lost = len(batch)
            # Only the texts of txmq's own errors are known to hold nothing of a message.
            reason = str(error) if isinstance(error, TxmqError) else type(error).__name__
            logger.warning("%d trace records could not be written: %s", lost, reason)
        with self._lock:
            self.dropped += lost
            self._records -= len(batch)
            self._size_bytes -= sum(record.size_bytes for record in batch)


class _Mark:
    """Stands in the queue behind the records that a `flush` or a `close` waits for."""

    def __init__(self, *, is_last: bool = False) -> None:
        self.is_last = is_last
        self.reached = threading.Event()


def _seconds_left(until_s: float | None) -> float | None:
    return None if until_s is None else max(0.0, until_s - time.monotonic())


def _message_of_trace(record: TraceRecord) -> Message:
    tag, keys = record.trace_type.value, KEY_SEPARATOR.join(record.keys)
    return Message(_PLACEHOLDER, encoded(record), tags=tag, keys=keys).to_stored_topic(TRACE_TOPIC)


# --- records ------------------------------------------------------------------------------------


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


def records_of_send(context: SendContext, time_ms: int) -> Iterator[TraceRecord]:
    """Yield one record for each transaction of a send; several if it has many messages."""
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
    """Return the record of an end, with as many messages as one record has room for."""
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
    """Yield the ids, then the keys of the messages while there is room, each once."""
    left, seen = MAX_FIELD_BYTES, set()
    keys = (key for message in messages for key in (message.keys or "").split(KEY_SEPARATOR))
    for token in (*ids, *keys):
        size = len(token.encode()) + len(KEY_SEPARATOR)
        if token and token not in seen and size <= left:
            left -= size
            seen.add(token)
            yield token


def _type_of(error: Exception | None) -> str | None:
    return None if error is None else type(error).__name__


def encoded(record: TraceRecord) -> bytes:
    """Return a record as the body of a message, without the fields that are None."""
    fields_of_record = ((name, getattr(record, name)) for name in _FIELDS)
    values = {name: value for name, value in fields_of_record if value is not None}
    return _ENCODER.encode(values).encode()


def decoded(body: bytes) -> TraceRecord:
    """Read a record that `encoded` wrote; ignore fields of a later version.

    Raises: InvalidBodyError.
    """
    try:
        values = json.loads(body)
        arguments = {name: _value(name, value) for name, value in values.items() if name in _FIELDS}
        return TraceRecord(**arguments)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidBodyError("body", "is no trace record") from error


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


_FIELDS = tuple(spec.name for spec in fields(TraceRecord))
_MESSAGE_FIELDS = tuple(spec.name for spec in fields(SentMessage))
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, default=_plain)
