"""Runs local transactions of asynchronous sends in threads, and calls listeners for them (R7)."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from txmq.ground.clock import timestamp
from txmq.listeners.hooks import RunningOperations
from txmq.listeners.protocol import ExecutingListener, HalfMessage, answer_of
from txmq.message.ids import message_id
from txmq.message.message import LocalTransactionState, Message
from txmq.message.names import unwrapped
from txmq.producer.contexts import Sending
from txmq.producer.pipeline import SendFuture
from txmq.producer.routing import PlannedSend

logger = logging.getLogger(__name__)

# Ends that a thread hands on together, and how long it gathers them: nobody waits for one that
# takes long but those that were run before it.
CHUNK, GATHER_S = 64, 0.01
Execute = Callable[[str, Message, object], LocalTransactionState]


class Sent(NamedTuple):
    """The send of one call. Thousands are on their way, so it is made of few objects.

    Attributes:
        others: of a batch that was split, its other transactions.
        execute: None for ordinary messages.
    """

    send: PlannedSend
    others: Sequence[PlannedSend]
    size_bytes: int
    future: SendFuture
    sending: Sending
    execute: Execute | None = None
    argument: object = None

    @property
    def sends(self) -> Sequence[PlannedSend]:
        """All transactions."""
        return (self.send, *self.others)

    @property
    def transaction_id(self) -> str:
        """The id of the first transaction."""
        return self.send.transaction_id

    @property
    def message(self) -> Message:
        """The first message."""
        return self.send.routed[0].message


class Executed(NamedTuple):
    """Sends whose ends are written together, and the answer of each local transaction.

    The answer is COMMIT for ordinary messages.
    """

    sents: Sequence[Sent]
    states: Sequence[LocalTransactionState]

    @property
    def rows(self) -> int:
        """How many ends these are."""
        return len(self.sents) + sum([len(sent.others) for sent in self.sents])


class LocalTransactions:
    """Runs `execute_local_transaction` in threads of its own."""

    def __init__(
        self,
        done: Callable[[Executed], None],
        refuse: Callable[[Sent, BaseException], None],
        threads: int,
        max_waiting: int,
    ) -> None:
        """Start no thread yet; with `max_waiting` sends in the queue `put` waits."""
        self._done, self._refuse = done, refuse
        self._count, self._max_waiting = threads, max_waiting
        self._threads: list[threading.Thread] = []
        self._durable: deque[Sent] = deque()
        self._lock = threading.Lock()
        self._has_work = threading.Condition(self._lock)
        self._has_room = threading.Condition(self._lock)
        self._is_closed = False

    def put(self, chunk: Sequence[Sent]) -> None:
        """Queue sends whose halves are durable; only the thread of the halves calls this."""
        if not chunk:
            return
        # First, so that a send whose threads cannot be started is in no queue.
        self._start()
        with self._lock:
            while len(self._durable) >= self._max_waiting:
                self._has_room.wait()
            self._durable.extend(chunk)
            self._has_work.notify_all()

    @property
    def is_own_thread(self) -> bool:
        """Whether the calling thread is one of these."""
        return threading.current_thread() in self._threads

    def _start(self) -> None:
        while len(self._threads) < self._count:
            name = f"txmq-local-{len(self._threads)}"
            thread = threading.Thread(target=self._run, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError:
                # The system has no more threads; those that run do the work.
                if self._threads:
                    return
                raise
            self._threads.append(thread)

    def close(self) -> None:
        """Run what is queued and end the threads; call it after the last `put`."""
        with self._lock:
            self._is_closed = True
            self._has_work.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while executed := self._gathered():
            try:
                self._done(executed)
            except BaseException as error:
                logger.exception("%d local transactions have no end", len(executed.sents))
                for sent in executed.sents:
                    self._refuse(sent, error)

    def _gathered(self) -> Executed | None:
        """Run local transactions. Return them, or None once it is closed and nothing is left.

        Each is taken right before it is run, so a slow one holds up none that waits.
        """
        sents: list[Sent] = []
        states: list[LocalTransactionState] = []
        sent = self._first()
        until_s = time.monotonic() + GATHER_S
        while sent is not None:
            sents.append(sent)
            states.append(_state_of(sent))
            is_over = len(sents) == CHUNK or time.monotonic() >= until_s
            sent = None if is_over else self._next()
        return Executed(sents, states) if sents else None

    def _first(self) -> Sent | None:
        with self._lock:
            while True:
                self._has_room.notify()
                self._has_work.wait_for(lambda: self._durable or self._is_closed)
                sent = self._next()
                # Another thread may have taken it, without the lock.
                if sent is not None or self._is_closed:
                    self._has_room.notify()
                    return sent

    def _next(self) -> Sent | None:
        try:
            return self._durable.popleft()
        except IndexError:
            return None


def _state_of(sent: Sent) -> LocalTransactionState:
    """Run a local transaction; return UNKNOWN also where it raised SystemExit or the like."""
    if sent.execute is None:
        return LocalTransactionState.COMMIT
    try:
        send = sent.send
        return sent.execute(send.transaction_id, send.routed[0].message, sent.argument)
    except BaseException:
        logger.exception("transaction %s: its local transaction broke", sent.transaction_id)
        return LocalTransactionState.UNKNOWN


def local_state(
    listener: ExecutingListener, half: HalfMessage, argument: object, running: RunningOperations
) -> LocalTransactionState:
    """Run the local transaction and return the listener's answer; never raises an Exception."""
    running.answered(LocalTransactionState.UNKNOWN.value)
    try:
        answer = listener.execute_local_transaction(half, argument)
    except Exception as error:  # noqa: BLE001 - R7: an exception is UNKNOWN
        logger.warning(
            "transaction %s: listener raised %s", half.transaction_id, type(error).__name__
        )
        return LocalTransactionState.UNKNOWN
    state, problem = answer_of(answer)
    if problem:
        logger.warning("transaction %s: %s", half.transaction_id, problem)
    running.answered(state.value)
    return state


def half_message(
    transaction_id: str, producer_group: str, message: Message, now_ms: int
) -> HalfMessage:
    """Return the half of a transaction of one message, with the names as the user wrote them."""
    return HalfMessage(
        transaction_id=transaction_id,
        message_id=message_id(transaction_id, 0),
        producer_group=producer_group,
        topic=unwrapped(message.topic),
        body=message.body,
        tags=message.tags,
        keys=message.joined_keys,
        properties=message.properties,
        sharding_key=message.sharding_key,
        born_timestamp=timestamp(now_ms),
        message_count=1,
    )
