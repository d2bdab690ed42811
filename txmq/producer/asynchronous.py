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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from txmq.ground.handles import close_at_exit
from txmq.message.ids import message_id, new_transaction_id
from txmq.message.lifecycle import ClaimKind
from txmq.message.message import LocalTransactionState
from txmq.producer.commits import ProducerCommits, half_size
from txmq.producer.contexts import AskedEnd
from txmq.producer.ends import asked_ends
from txmq.producer.group_commit import GroupCommitter, Size
from txmq.producer.local import CHUNK, Execute, Executed, LocalTransactions, Sent
from txmq.producer.routing import (
    PlannedSend,
    RoutedMessage,
    SendFuture,
    SendResult,
    TransactionSendResult,
    send_result,
)
from txmq.store.config import Config
from txmq.store.half import HalfTransaction
from txmq.store.logs import Resolution

# --- send_room:


class SendRoom:
    """Room for so many bytes of sends; who finds none waits. Safe for many threads.

    A send that is larger than the room enters when no other one is in it.
    """

    def __init__(self, max_bytes: int, is_giver: Callable[[], bool]) -> None:
        """All of it is free.

        `is_giver` says whether the calling thread helps to give room back, so that it must never
        wait for it: a callback of a future may send again.
        """
        self._max_bytes, self._taken_bytes = max_bytes, 0
        self._is_giver = is_giver
        # All sends and all answers take it. While it is held nothing is called that is not needed:
        # Python changes threads at calls, and all others would stand before the lock.
        self._lock = threading.Lock()
        self._has_room = threading.Condition(self._lock)
        self._waiting = 0

    @property
    def taken_bytes(self) -> int:
        """The bytes of the sends that are in it."""
        return self._taken_bytes

    def enter(self, size_bytes: int) -> None:
        """Take room; who is no giver waits where there is too little."""
        with self._lock:
            taken_bytes = self._taken_bytes + size_bytes
            if taken_bytes <= self._max_bytes:
                self._taken_bytes = taken_bytes
                return
            if self._is_too_much(size_bytes) and not self._is_giver():
                self._wait_for(size_bytes)
            self._taken_bytes += size_bytes

    def _wait_for(self, size_bytes: int) -> None:
        self._waiting += 1
        try:
            while self._is_too_much(size_bytes):
                self._has_room.wait()
        finally:
            self._waiting -= 1

    def try_enter(self, size_bytes: int) -> bool:
        """Take room, if there is enough; whether it was taken."""
        with self._lock:
            if self._is_too_much(size_bytes):
                return False
            self._taken_bytes += size_bytes
            return True

    def leave(self, size_bytes: int) -> None:
        """Give room back."""
        with self._lock:
            self._taken_bytes -= size_bytes
            if self._waiting:
                self._has_room.notify_all()

    def _is_too_much(self, size_bytes: int) -> bool:
        return bool(self._taken_bytes) and self._taken_bytes + size_bytes > self._max_bytes


# --- asynchronous:

_COMMIT, _ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK

logger = logging.getLogger(__name__)


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
            self._prepare, "txmq-async-halves", limits, limits.max_waiting, may_pass=self._is_giver
        )
        self._local = LocalTransactions(
            self._executed, self._refuse, limits.threads, limits.max_waiting
        )
        chunks = max(1, limits.max_waiting // CHUNK)
        self._ends = self._step(self._end, "txmq-async-ends", limits, chunks)
        close_at_exit(self.close)

    def _step(
        self,
        work: Callable[[list[Any]], None],
        name: str,
        limits: AsyncLimits,
        max_waiting: int,
        **options: Any,
    ) -> GroupCommitter[Any, None]:
        return GroupCommitter(
            partial(self._answered, work),
            name=name,
            owner="the producer",
            max_rows=limits.max_rows,
            max_bytes=limits.max_bytes,
            max_waiting=max_waiting,
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
        return self._begun(sends[0], sends[1:], None, None)

    def send_in_transaction(
        self, routed: RoutedMessage, execute: Execute, argument: object
    ) -> Future[TransactionSendResult]:
        """Send one message with its local transaction; `execute` never raises an Exception.

        Raises: SendForbiddenError, ClosedError.
        """
        since, transaction_id = self._commits.followed, new_transaction_id(self._commits.now_ms())
        send = self._commits.encoding(PlannedSend(transaction_id, (routed,), since))
        return self._begun(send, (), execute, argument)

    def _begun(
        self,
        send: PlannedSend,
        others: Sequence[PlannedSend],
        execute: Execute | None,
        argument: object,
    ) -> Future[Any]:
        sending = self._commits.begin_send((send, *others), ordinary=execute is None)
        size = half_size(send, *others)
        sent = Sent(send, others, size.bytes, SendFuture(), sending, execute, argument)
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

    def _refuse(self, item: Sent | Executed, error: BaseException) -> None:
        """Answer sends that get no further, unless they have their answers."""
        for sent in item.sents if isinstance(item, Executed) else (item,):
            if not sent.future.done():
                self._answer(sent, None, error)

    def _answer(self, sent: Sent, result: object, error: BaseException | None) -> None:
        self._room.leave(sent.size_bytes)
        if error is None:
            sent.future.set_result(result)
        else:
            sent.future.set_exception(error)

    def _prepare(self, chunk: list[Sent]) -> None:
        durable, has_hooks = [], bool(self._commits.hooks)
        for sent, error in zip(chunk, self._errors_of_halves(chunk), strict=True):
            if has_hooks:
                _tell(partial(sent.sending.done, error))
            if error is None:
                durable.append(sent)
            else:
                # R6: without a half there is no local transaction.
                self._answer(sent, None, error)
        ordinary = [sent for sent in durable if sent.execute is None]
        for first in range(0, len(ordinary), CHUNK):
            part = ordinary[first : first + CHUNK]
            self._handed_on(part, partial(self._executed, Executed(part, [_COMMIT] * len(part))))
        with_local = [sent for sent in durable if sent.execute is not None]
        self._handed_on(with_local, partial(self._local.put, with_local))

    def _handed_on(self, sents: Sequence[Sent], hand_on: Callable[[], None]) -> None:
        """Hand sends on to the next step, or refuse them; others of their commit go on."""
        try:
            hand_on()
        except BaseException as error:
            logger.exception("%d sends get no further than their half messages", len(sents))
            for sent in sents:
                self._refuse(sent, error)

    def _errors_of_halves(self, chunk: list[Sent]) -> list[BaseException | None]:
        """For each send why its halves cannot be used; None where they are durable."""
        try:
            refused = self._commits.append_halves(list(self._commits_of(chunk)))
        except BaseException as error:  # noqa: BLE001 - each caller gets it
            return [error] * len(chunk)
        if not refused:
            return [None] * len(chunk)
        errors = ([refused.get(send.transaction_id) for send in sent.sends] for sent in chunk)
        return [next(filter(None, of_sent), None) for of_sent in errors]

    def _commits_of(self, chunk: list[Sent]) -> Iterator[tuple[list[HalfTransaction], Size]]:
        """The halves of each commit; transactions of a split batch get a commit each (size)."""
        shared = [sent for sent in chunk if not sent.others]
        for sent in chunk:
            for send in sent.sends if sent.others else ():
                yield [self._half_of(sent, send)], half_size(send)
        if shared:
            halves = [self._half_of(sent, sent.send) for sent in shared]
            size_bytes = sum([sent.size_bytes for sent in shared])
            yield halves, Size(sum([half.rows for half in halves]), size_bytes)

    def _half_of(self, sent: Sent, send: PlannedSend) -> HalfTransaction:
        half = self._commits.half_of(send, ordinary=sent.execute is None)
        return self._commits.carrying(half, sent.sending)

    def _executed(self, executed: Executed) -> None:
        self._ends.put(executed, Size(executed.rows))

    def _end(self, chunks: list[Executed]) -> None:
        asked: list[tuple[Sent, LocalTransactionState]] = []
        for sents, states in chunks:
            for sent, state in zip(sents, states, strict=True):
                if state is _COMMIT or state is _ROLLBACK:
                    asked.append((sent, state))
                else:
                    self._finish(sent, state, [], None)
        sends = [send for sent, _ in asked for send in sent.sends]
        begun_s = time.monotonic()
        kinds = [_kind(state) for sent, state in asked for _ in sent.sends]
        try:
            resolutions = self._commits.append_ends(asked_ends(sends, kinds))
        except BaseException as error:  # noqa: BLE001 - each caller gets it
            for sent, state in asked:
                self._finish(sent, state, [], error, begun_s)
            return
        upto = len(resolutions)
        # A caller that waits for the oldest future wakes once and finds the other futures done.
        for sent, state in reversed(asked):
            first = upto - 1 - len(sent.others)
            self._finish(sent, state, resolutions[first:upto], None, begun_s)
            upto = first

    def _finish(
        self,
        sent: Sent,
        state: LocalTransactionState,
        resolutions: Sequence[Resolution],
        error: BaseException | None,
        begun_s: float | None = None,
    ) -> None:
        """Tell the hooks of an end, then give the caller its result."""
        error = error or _refusal(sent, state, resolutions)
        if sent.execute is not None and self._commits.hooks:
            end = AskedEnd(sent.transaction_id, state, (sent.message,), 1)
            resolution = resolutions[0] if resolutions else None
            _tell(partial(self._commits.hooks.ended, end, resolution, error, begun_s))
        self._answer(sent, _result(sent, state), error)


def _result(sent: Sent, state: LocalTransactionState) -> SendResult | TransactionSendResult:
    if sent.execute is None:
        return send_result(sent.sends)
    key = sent.transaction_id
    return TransactionSendResult(key, message_id(key, 0), state)


def _kind(state: LocalTransactionState) -> ClaimKind:
    # Python computes the hash of an enum, which a dict would ask for.
    return ClaimKind.COMMIT if state is _COMMIT else ClaimKind.ROLLBACK


def _tell(call: Callable[[], object]) -> None:
    """Call hooks; whatever they raise, the caller of the send gets its answer."""
    try:
        call()
    except BaseException:
        logger.exception("a hook of an asynchronous send broke")


def _refusal(
    sent: Sent, state: LocalTransactionState, resolutions: Sequence[Resolution]
) -> BaseException | None:
    """The error for the caller if another end took effect first."""
    try:
        for send, resolution in zip(sent.sends, resolutions, strict=False):
            resolution.confirm(send.transaction_id, _kind(state))
    except BaseException as refusal:  # noqa: BLE001 - the caller gets it
        return refusal
    return None
