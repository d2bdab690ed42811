"""Tracing: each send and each end leaves a record in RMQ_SYS_TRACE_TOPIC (R90).

Records are ordinary messages, sent in batches by a thread of its own: tracing holds up no send,
fails none, and loses records rather than memory.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, Self

from txmq.clock import Clock, SystemClock
from txmq.errors import ClosedError, TxmqError
from txmq.hooks import EndContext, SendContext
from txmq.message.message import KEY_SEPARATOR, Message
from txmq.message.names import TRACE_TOPIC
from txmq.producer.commits import ProducerCommits
from txmq.producer.ordinary import OrdinaryMessages
from txmq.producer.routing import MessageRouter
from txmq.producer.trace_records import TraceRecord, encoded, record_of_end, records_of_send

if TYPE_CHECKING:
    from txmq.store.store import Store

logger = logging.getLogger(__name__)

TRACE_GROUP = "rmq_sys_trace"
QUEUE_SIZE = 10_000
BATCH_SIZE = 5_000
FLUSH_INTERVAL_S = 1.0
FLUSH_WAIT_S = 60.0
# Any topic that users may send to; the record then goes to the internal one.
_PLACEHOLDER = "trace"


class TraceSender(Protocol):
    """What records are sent by; a producer is one."""

    def send(self, messages: Sequence[Message]) -> object:
        """Make the messages durable and visible."""
        ...

    def close(self) -> None:
        """Wait for what is on its way."""
        ...


class TraceHook:
    """Writes a record of every send and of every end that it is told of.

    One hook may serve several producers and a broker of the same store; `close()` it after them.
    A producer's `close()` flushes it.

    Args:
        store: whose trace topic.
        queue_size: records that wait; those beyond it are dropped and counted in a warning.
        flush_interval_s: how long a record waits for others.

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
        """Start no thread yet; nothing is read or written."""
        self._clock: Clock = clock or SystemClock()
        self._queue = _RecordQueue(queue_size, flush_interval_s)
        self._sender = sender or _InternalProducer(store, self._clock)
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._pid = os.getpid()

    # --- the hook -----------------------------------------------------------------------------

    def before_send(self, context: SendContext) -> None:
        """Nothing is known yet."""

    def after_send(self, context: SendContext) -> None:
        """Keep one record for each transaction."""
        if context.producer_group == TRACE_GROUP:
            return
        for record in records_of_send(context, self._clock.now_ms()):
            self._keep(record)

    def end_transaction(self, context: EndContext) -> None:
        """Keep one record; the check also ends what a trace could not acknowledge."""
        if context.producer_group == TRACE_GROUP:
            return
        self._keep(record_of_end(context, self._clock.now_ms()))

    # --- the end ------------------------------------------------------------------------------

    @property
    def dropped(self) -> int:
        """Records that were lost: the queue was full, or the store did not take them."""
        return self._queue.dropped

    def flush(self) -> None:
        """Return when all that was kept is written or dropped, after a minute at the latest."""
        if self._pid == os.getpid() and self._thread is not None:
            self._queue.wait_until_empty(FLUSH_WAIT_S)

    def close(self) -> None:
        """Write what waits and end the thread; later records are dropped."""
        if self._pid != os.getpid():
            return
        self._queue.close()
        if self._thread is not None:
            self._thread.join()
        self._sender.close()

    def __enter__(self) -> Self:
        """Close at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close whatever happened."""
        self.close()

    # --- its thread ---------------------------------------------------------------------------

    def _keep(self, record: TraceRecord) -> None:
        if self._pid != os.getpid():
            # The thread stayed in the process before the fork.
            raise ClosedError("the trace belongs to the process before the fork; make a new one")
        self._queue.put(record)
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="txmq-trace", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        told = 0
        while (batch := self._queue.next_batch(BATCH_SIZE)) is not None:
            self._send(batch)
            self._queue.done(len(batch))
            if self.dropped > told:
                logger.warning("%d trace records were dropped so far", self.dropped)
                told = self.dropped

    def _send(self, batch: Sequence[TraceRecord]) -> None:
        try:
            self._sender.send([_message(record) for record in batch])
        except TxmqError as error:
            self._queue.lost(len(batch))
            logger.warning("%d trace records could not be written: %s", len(batch), error)
        except Exception as error:  # noqa: BLE001 - a lost record must not end the tracing
            self._queue.lost(len(batch))
            kind = type(error).__name__
            logger.warning("%d trace records could not be written (%s)", len(batch), kind)


class _RecordQueue:
    """Records between the threads that send and the one that writes; full means dropped."""

    def __init__(self, size: int, interval_s: float) -> None:
        self.dropped = 0
        self._size, self._interval_s = size, interval_s
        self._records: deque[TraceRecord] = deque()
        self._pending = 0
        self._is_closed = False
        self._is_urgent = False
        self._changed = threading.Condition()

    def put(self, record: TraceRecord) -> None:
        with self._changed:
            if self._is_closed or self._pending >= self._size:
                self.dropped += 1
                return
            self._records.append(record)
            self._pending += 1
            self._changed.notify_all()

    def next_batch(self, most: int) -> list[TraceRecord] | None:
        """Records that waited for each other; None when it is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._records or self._is_closed)
            until_s = time.monotonic() + self._interval_s
            self._changed.wait_for(
                lambda: self._is_closed or self._is_urgent or len(self._records) >= most,
                until_s - time.monotonic(),
            )
            count = min(most, len(self._records))
            return [self._records.popleft() for _ in range(count)] if count else None

    def done(self, count: int) -> None:
        with self._changed:
            self._pending -= count
            self._changed.notify_all()

    def lost(self, count: int) -> None:
        with self._changed:
            self.dropped += count

    def wait_until_empty(self, timeout_s: float) -> None:
        with self._changed:
            self._is_urgent = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._pending, timeout_s)
            self._is_urgent = False

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()


class _InternalProducer:
    """Sends for a group that users cannot name; without hooks, so that a trace leaves none."""

    def __init__(self, store: Store, clock: Clock) -> None:
        router = MessageRouter(store, clock=clock)
        self._commits = ProducerCommits(store, TRACE_GROUP, clock, router)
        self._ordinary = OrdinaryMessages(self._commits, router)

    def send(self, messages: Sequence[Message]) -> object:
        return self._ordinary.send(self._ordinary.planned(messages))

    def close(self) -> None:
        self._commits.close()


def _message(record: TraceRecord) -> Message:
    tag, keys = record.trace_type.value, KEY_SEPARATOR.join(record.keys)
    return Message(_PLACEHOLDER, encoded(record), tags=tag, keys=keys).to_stored_topic(TRACE_TOPIC)
