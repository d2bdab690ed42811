"""Asynchronous sends: callers do not wait, and many sends share each commit.

    waiting sends ──► halves (one commit) ──► local transactions ──► ends (one commit) ──► futures
                                 └────────── ordinary messages ────────┘

Each step takes everything that the step before it has queued, so commits grow with the load. A
caller waits only if a queue is full, or if the sends on their way hold too many bytes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from txmq.handles import close_at_exit
from txmq.lifecycle import ClaimKind
from txmq.message.ids import message_id, new_transaction_id
from txmq.message.message import LocalTransactionState, Message
from txmq.producer.commits import ProducerCommits
from txmq.producer.contexts import AskedEnd, Sending
from txmq.producer.ends import asked_ends
from txmq.producer.group_commit import GroupCommitter, Size
from txmq.producer.results import SendFuture, SendResult, TransactionSendResult
from txmq.producer.routing import PlannedSend, RoutedMessage, send_result
from txmq.producer.send_room import SendRoom
from txmq.store.config import Config
from txmq.store.half import HalfTransaction
from txmq.store.resolution import Resolution

# Local transactions that a thread takes at once; their ends are written together.
CHUNK = 64
_COMMIT, _ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK
_END_KINDS = {_COMMIT: ClaimKind.COMMIT, _ROLLBACK: ClaimKind.ROLLBACK}
Execute = Callable[[str, Message, object], LocalTransactionState]

logger = logging.getLogger(__name__)


class _Sent(NamedTuple):
    """The send of one call; `execute` is None for ordinary messages."""

    sends: Sequence[PlannedSend]
    size: Size
    future: Future[Any]
    sending: Sending
    execute: Execute | None = None
    argument: object = None

    @property
    def transaction_id(self) -> str:
        return self.sends[0].transaction_id

    @property
    def message(self) -> Message:
        return self.sends[0].routed[0].message


class _Executed(NamedTuple):
    """A send and the answer of its local transaction; COMMIT for ordinary messages."""

    sent: _Sent
    state: LocalTransactionState


@dataclass(frozen=True, slots=True)
class AsyncLimits:
    """The limits of asynchronous sends.

    Attributes:
        threads: local transactions that run at once.
        max_waiting: sends that wait in each queue.
        max_rows, max_bytes: rows and bytes of one commit.
        max_bytes_on_the_way: bytes of the sends that have no result yet.
        linger_s: how long sends gather before a commit.
    """

    threads: int
    max_waiting: int
    max_rows: int
    max_bytes: int
    max_bytes_on_the_way: int
    linger_s: float

    @classmethod
    def of(cls, config: Config) -> AsyncLimits:
        """The limits that the settings of a store give."""
        return cls(
            threads=config.local_transaction_threads,
            max_waiting=config.back_pressure_for_async_send_num,
            max_rows=config.group_commit_max_rows,
            max_bytes=config.group_commit_max_bytes,
            max_bytes_on_the_way=config.back_pressure_for_async_send_size_bytes,
            linger_s=config.group_commit_linger_ms / 1000,
        )


class AsyncSends:
    """The asynchronous sends of one producer; the first send starts the threads."""

    def __init__(self, commits: ProducerCommits, limits: AsyncLimits) -> None:
        """Start no thread yet; with `max_waiting` sends in the queue the next caller waits."""
        self._commits = commits
        self._room = SendRoom(limits.max_bytes_on_the_way, self._is_giver)
        self._halves = self._step(
            self._prepare, "txmq-async-halves", limits, may_pass=self._is_giver
        )
        self._local = _LocalTransactions(
            self._executed, self._refuse, limits.threads, limits.max_waiting
        )
        self._ends = self._step(self._end, "txmq-async-ends", limits)
        close_at_exit(self.close)

    def _step(
        self, work: Callable[[list[Any]], None], name: str, limits: AsyncLimits, **options: Any
    ) -> GroupCommitter[Any, None]:
        return GroupCommitter(
            partial(self._answered, work),
            name=name,
            max_rows=limits.max_rows,
            max_bytes=limits.max_bytes,
            max_waiting=limits.max_waiting,
            linger_s=limits.linger_s,
            refuse=self._refuse,
            **options,
        )

    def _is_giver(self) -> bool:
        """Whether sends wait for the calling thread: it runs callbacks or local transactions."""
        steps = (self._halves, self._local, self._ends)
        return any(step.is_own_thread for step in steps) or self._commits.is_giver()

    def send(self, sends: Sequence[PlannedSend]) -> Future[SendResult]:
        """Send ordinary messages: two commits, shared. Raises: SendForbiddenError, ClosedError."""
        return self._begun(sends, None, None)

    def send_in_transaction(
        self, routed: RoutedMessage, execute: Execute, argument: object
    ) -> Future[TransactionSendResult]:
        """Send one message with its local transaction; `execute` never raises an Exception.

        Raises: SendForbiddenError, ClosedError.
        """
        since, transaction_id = self._commits.followed, new_transaction_id(self._commits.now_ms())
        return self._begun((PlannedSend(transaction_id, (routed,), since),), execute, argument)

    def _begun(
        self, sends: Sequence[PlannedSend], execute: Execute | None, argument: object
    ) -> Future[Any]:
        sending = self._commits.begin_send(sends, ordinary=execute is None)
        size = Size(sum([len(send.routed) for send in sends]), sum(map(_size_bytes, sends)))
        sent = _Sent(sends, size, SendFuture(), sending, execute, argument)
        self._room.enter(size.bytes)
        try:
            self._halves.put(sent, size)
        except BaseException as error:
            self._room.leave(size.bytes)
            sending.done(error)
            raise
        return sent.future

    def close(self) -> None:
        """Return when every send has its result; in a forked process there are none."""
        if not self._halves.is_of_this_process:
            return
        self._halves.close()
        self._local.close()
        self._ends.close()

    # --- the steps, each in a thread of its own -----------------------------------------------

    def _answered(self, work: Callable[[list[Any]], None], items: list[Any]) -> list[None]:
        """Run a step; if it raises, every future of its items gets the error."""
        try:
            work(items)
        except BaseException as error:
            for item in items:
                self._refuse(item, error)
            raise
        return [None] * len(items)

    def _refuse(self, item: _Sent | _Executed, error: BaseException) -> None:
        """Answer a send that gets no further, unless it has its answer."""
        sent = item.sent if isinstance(item, _Executed) else item
        if not sent.future.done():
            self._answer(sent, None, error)

    def _answer(self, sent: _Sent, result: object, error: BaseException | None) -> None:
        self._room.leave(sent.size.bytes)
        if error is None:
            sent.future.set_result(result)
        else:
            sent.future.set_exception(error)

    def _prepare(self, chunk: list[_Sent]) -> None:
        durable = []
        for sent, error in zip(chunk, self._errors_of_halves(chunk), strict=True):
            if sent.sending.is_told:
                _tell(partial(sent.sending.done, error))
            if error is None:
                durable.append(sent)
            else:
                # R6: without a half there is no local transaction.
                self._answer(sent, None, error)
        ordinary = [_Executed(sent, _COMMIT) for sent in durable if sent.execute is None]
        if ordinary:
            self._executed(ordinary)
        self._local.put([sent for sent in durable if sent.execute is not None])

    def _errors_of_halves(self, chunk: list[_Sent]) -> list[BaseException | None]:
        """For each send why its halves cannot be used; None where they are durable."""
        try:
            refused = self._commits.append_halves(list(self._commits_of(chunk)))
        except BaseException as error:  # noqa: BLE001 - each caller gets it
            return [error] * len(chunk)
        if not refused:
            return [None] * len(chunk)
        errors = ([refused.get(send.transaction_id) for send in sent.sends] for sent in chunk)
        return [next(filter(None, of_sent), None) for of_sent in errors]

    def _commits_of(self, chunk: list[_Sent]) -> Iterator[list[HalfTransaction]]:
        """The halves of each commit; transactions of a split batch get a commit each (size)."""
        shared: list[HalfTransaction] = []
        for sent in chunk:
            for send in sent.sends:
                half = self._commits.half_of(send, ordinary=sent.execute is None)
                half = self._commits.carrying(half, sent.sending)
                if len(sent.sends) == 1:
                    shared.append(half)
                else:
                    yield [half]
        if shared:
            yield shared

    def _executed(self, executed: Sequence[_Executed]) -> None:
        self._ends.put_all(executed, [Size(len(sent.sends)) for sent, _ in executed])

    def _end(self, executed: list[_Executed]) -> None:
        with_end = [entry for entry in executed if entry.state in _END_KINDS]
        for entry in executed:
            if entry.state not in _END_KINDS:
                self._finish(entry, [], None)
        begun_s = time.monotonic()
        sends = [(send, _END_KINDS[state]) for sent, state in with_end for send in sent.sends]
        try:
            resolutions = iter(self._commits.append_ends(asked_ends(sends)))
        except BaseException as error:  # noqa: BLE001 - each caller gets it
            for entry in with_end:
                self._finish(entry, [], error, begun_s)
            return
        finished = [(entry, list(islice(resolutions, len(entry.sent.sends)))) for entry in with_end]
        # A caller that waits for the oldest future wakes once and finds the other futures done.
        for entry, of_entry in reversed(finished):
            self._finish(entry, of_entry, None, begun_s)

    def _finish(
        self,
        executed: _Executed,
        resolutions: Sequence[Resolution],
        error: BaseException | None,
        begun_s: float | None = None,
    ) -> None:
        """Tell the hooks of an end, then give the caller its result."""
        sent, state = executed
        error = error or _refusal(executed, resolutions)
        if sent.execute is not None and self._commits.hooks:
            end = AskedEnd(sent.transaction_id, state, (sent.message,), 1)
            resolution = resolutions[0] if resolutions else None
            _tell(partial(self._commits.hooks.ended, end, resolution, error, begun_s))
        key = sent.transaction_id
        result = (
            send_result(sent.sends)
            if sent.execute is None
            else TransactionSendResult(key, message_id(key, 0), state)
        )
        self._answer(sent, result, error)


def _size_bytes(send: PlannedSend) -> int:
    messages = send.messages
    return sum([message.size_bytes for message in messages])


def _tell(call: Callable[[], object]) -> None:
    """Call hooks; whatever they raise, the caller of the send gets its answer."""
    try:
        call()
    except BaseException:
        logger.exception("a hook of an asynchronous send broke")


def _refusal(executed: _Executed, resolutions: Sequence[Resolution]) -> BaseException | None:
    """The error for the caller if another end took effect first."""
    try:
        for send, resolution in zip(executed.sent.sends, resolutions, strict=False):
            resolution.confirm(send.transaction_id, _END_KINDS[executed.state])
    except BaseException as refusal:  # noqa: BLE001 - the caller gets it
        return refusal
    return None


def _state_of(sent: _Sent, execute: Execute) -> LocalTransactionState:
    """The answer of a local transaction; UNKNOWN also where it raised SystemExit or the like."""
    try:
        return execute(sent.transaction_id, sent.message, sent.argument)
    except BaseException:
        logger.exception("transaction %s: its local transaction broke", sent.transaction_id)
        return LocalTransactionState.UNKNOWN


class _LocalTransactions:
    """Runs `execute_local_transaction` in threads of its own."""

    def __init__(
        self,
        done: Callable[[Sequence[_Executed]], None],
        refuse: Callable[[_Sent, BaseException], None],
        threads: int,
        max_waiting: int,
    ) -> None:
        """Start no thread yet; with `max_waiting` sends in the queue `put` waits."""
        self._done, self._refuse = done, refuse
        self._count, self._max_waiting = threads, max_waiting
        self._threads: list[threading.Thread] = []
        self._durable: deque[_Sent] = deque()
        lock = threading.Lock()
        self._has_work, self._has_room = threading.Condition(lock), threading.Condition(lock)
        self._is_closed = False

    def put(self, chunk: Sequence[_Sent]) -> None:
        """Queue sends whose halves are durable; only the thread of the halves calls this."""
        if not chunk:
            return
        # First, so that a send whose threads cannot be started is in no queue.
        self._start()
        with self._has_work:
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
        with self._has_work:
            self._is_closed = True
            self._has_work.notify_all()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while chunk := self._next_chunk():
            try:
                self._done(
                    [
                        _Executed(sent, _state_of(sent, sent.execute))
                        for sent in chunk
                        if sent.execute is not None
                    ]
                )
            except BaseException as error:
                logger.exception("%d local transactions have no end", len(chunk))
                for sent in chunk:
                    self._refuse(sent, error)

    def _next_chunk(self) -> list[_Sent]:
        with self._has_work:
            self._has_work.wait_for(lambda: self._durable or self._is_closed)
            self._has_room.notify()
            return [self._durable.popleft() for _ in range(min(CHUNK, len(self._durable)))]
