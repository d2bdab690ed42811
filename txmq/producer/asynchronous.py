"""Sends without waiting: thousands are on their way at once and go through the pipeline in chunks.

    waiting sends ──► halves (one commit) ──► local transactions ──► ends (one commit) ──► futures
                                 └────────── ordinary messages ────────┘

Each step takes everything that the step before it has queued, so commits grow with the load. A
caller waits only if a queue is full, or if the sends on their way hold too many bytes.

A chunk takes the same steps as a single send (`ProducerCommits.append` and `claim`), and its two
threads wait for them. They are apart from the threads that commit for two reasons. An operation of
its own for each send takes twice the processor time, most of it for objects that the garbage
collector walks over. And these threads run callbacks and hooks of users, who may wait for another
send there; in a committing thread they would wait for themselves, and hold up all callers.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from txmq.ground.handles import close_at_exit
from txmq.message.ids import message_id
from txmq.message.lifecycle import ClaimKind
from txmq.message.message import LocalTransactionState
from txmq.producer.commits import HalvesOfCommit, ProducerCommits, half_size
from txmq.producer.contexts import AskedEnd
from txmq.producer.ends import asked_ends
from txmq.producer.group_commit import GroupCommitter, Size
from txmq.producer.local import CHUNK, Execute, Executed, LocalTransactions, Sent
from txmq.producer.pipeline import SendFuture, SendRoom, waited
from txmq.producer.renewing import Renewing
from txmq.producer.routing import (
    PlannedSend,
    RoutedMessage,
    SendResult,
    TransactionSendResult,
    send_result,
)
from txmq.store.config import Config
from txmq.store.half import HalfTransaction
from txmq.store.logs import Resolution

_COMMIT, _ROLLBACK = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AsyncLimits:
    """The limits of asynchronous sends.

    Attributes:
        threads: local transactions that run at once.
        max_waiting: sends that wait in each queue.
        max_rows, max_bytes: rows and bytes of one commit.
        linger_s: how long sends gather before a commit.
    """

    threads: int
    max_waiting: int
    max_rows: int
    max_bytes: int
    linger_s: float

    @classmethod
    def of(cls, config: Config) -> AsyncLimits:
        """Return the limits that the settings of a store give."""
        return cls(
            threads=config.local_transaction_threads,
            max_waiting=config.back_pressure_for_async_send_num,
            max_rows=config.group_commit_max_rows,
            max_bytes=config.group_commit_max_bytes,
            linger_s=config.group_commit_linger_ms / 1000,
        )


class AsyncSends:
    """The asynchronous sends of one producer; the first send starts the threads."""

    def __init__(
        self, commits: ProducerCommits, limits: AsyncLimits, room: SendRoom, renewing: Renewing
    ) -> None:
        """Start no thread yet; with `max_waiting` sends in the queue the next caller waits."""
        self._commits, self._room, self._renewing = commits, room, renewing
        self._halves = self._step(
            self._prepare, "txmq-async-halves", limits, limits.max_waiting, may_pass=self._is_giver
        )
        self._local = LocalTransactions(
            self._executed, self._refuse, limits.threads, limits.max_waiting
        )
        chunks = max(1, limits.max_waiting // CHUNK)
        self._ends = self._step(self._end, "txmq-async-ends", limits, chunks)
        room.add_givers(self._is_giver)
        close_at_exit(self.close)

    def send(self, sends: Sequence[PlannedSend]) -> Future[SendResult]:
        """Send ordinary messages: two commits, shared. Raises: SendForbiddenError, ClosedError."""
        return self._begun(sends[0], sends[1:], None, None)

    def send_in_transaction(
        self, routed: RoutedMessage, execute: Execute, argument: object
    ) -> Future[TransactionSendResult]:
        """Send one message with its local transaction; `execute` never raises an Exception.

        Raises: SendForbiddenError, ClosedError.
        """
        (send,) = self._commits.begun([[routed]])
        return self._begun(send, (), execute, argument)

    def close(self) -> None:
        """Return when every send has its result; in a forked process there are none."""
        if not self._halves.is_of_this_process:
            return
        self._halves.close()
        self._local.close()
        self._ends.close()

    def _begun(
        self,
        send: PlannedSend,
        others: Sequence[PlannedSend],
        execute: Execute | None,
        argument: object,
    ) -> Future[Any]:
        """Tell the hooks, take room and queue a send; return its future."""
        sending = self._commits.begin_send((send, *others), ordinary=execute is None)
        size = half_size(send, *others)
        sent = Sent(send, others, size.bytes, SendFuture(), sending, execute, argument)
        try:
            self._room.enter(size.bytes, sent.future)
            self._halves.put(sent, size)
        except BaseException as error:
            self._room.leave(sent.future)
            sending.done(error)
            raise
        return sent.future

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
        """Tell whether sends wait for the calling thread, as it runs callbacks or local work."""
        steps = (self._halves, self._local, self._ends)
        return any(step.is_own_thread for step in steps) or self._commits.is_giver()

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

    def _prepare(self, chunk: list[Sent]) -> None:
        """Append the halves of a chunk; hand on those that are durable, and refuse the others."""
        durable, has_hooks = [], bool(self._commits.hooks)
        self._renewing.add_all(
            [(sent.send.transaction_id, sent.future) for sent in chunk if sent.execute is not None]
        )
        for sent, error in zip(chunk, self._append(chunk), strict=True):
            if has_hooks:
                sent.sending.done(error)
            if error is None:
                durable.append(sent)
            else:
                # R6: without a half there is no local transaction.
                self._answer(sent, None, error)
        ordinary = [sent for sent in durable if sent.execute is None]
        for first in range(0, len(ordinary), CHUNK):
            sents = ordinary[first : first + CHUNK]
            self._hand_on(sents, partial(self._executed, Executed(sents, [_COMMIT] * len(sents))))
        with_local = [sent for sent in durable if sent.execute is not None]
        self._hand_on(with_local, partial(self._local.put, with_local))

    def _append(self, chunk: list[Sent]) -> list[BaseException | None]:
        """Append the halves of these sends. Return one error or None per send."""
        try:
            refused = waited(self._commits.append(list(self._commits_of(chunk))))
        except BaseException as error:  # noqa: BLE001 - each caller gets it
            return [error] * len(chunk)
        if not refused:
            return [None] * len(chunk)
        errors = ([refused.get(send.transaction_id) for send in sent.sends] for sent in chunk)
        return [next(filter(None, of_sent), None) for of_sent in errors]

    def _commits_of(self, chunk: list[Sent]) -> Iterator[HalvesOfCommit]:
        """Yield the halves of each commit; transactions of a split batch get a commit each."""
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

    def _hand_on(self, sents: Sequence[Sent], put: Callable[[], None]) -> None:
        """Hand sends on to the next step, or refuse them; others of their commit go on."""
        try:
            put()
        except BaseException as error:
            logger.exception("%d sends get no further than their half messages", len(sents))
            for sent in sents:
                self._refuse(sent, error)

    def _executed(self, executed: Executed) -> None:
        """Queue the ends of local transactions that have run, and of ordinary messages."""
        self._ends.put(executed, Size(executed.rows))

    def _end(self, chunks: list[Executed]) -> None:
        """Claim the ends of these sends and answer their callers."""
        to_end: list[tuple[Sent, LocalTransactionState]] = []
        sends: list[PlannedSend] = []
        kinds: list[ClaimKind] = []
        for sents, states in chunks:
            for sent, state in zip(sents, states, strict=True):
                if state is _COMMIT or state is _ROLLBACK:
                    to_end.append((sent, state))
                    sends += sent.sends
                    kinds += [_kind(state)] * (1 + len(sent.others))
                else:
                    self._finish(sent, state, [], None)
        begun_s = time.monotonic()
        try:
            resolutions = waited(self._commits.claim(asked_ends(sends, kinds)))
        except BaseException as error:  # noqa: BLE001 - each caller gets it
            for sent, state in to_end:
                self._finish(sent, state, [], error, begun_s)
            return
        upto = len(resolutions)
        # A caller that waits for the oldest future wakes once and finds the other futures done.
        for sent, state in reversed(to_end):
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
        """Confirm an end, tell the hooks of it, then give the caller its result."""
        error = error or _refusal(sent, state, resolutions)
        if sent.execute is not None and self._commits.hooks:
            end = AskedEnd(sent.transaction_id, state, (sent.message,), 1)
            resolution = resolutions[0] if resolutions else None
            self._commits.hooks.ended(end, resolution, error, begun_s)
        self._answer(sent, _result(sent, state), error)

    def _refuse(self, item: Sent | Executed, error: BaseException) -> None:
        """Answer sends that get no further, unless they have their answers."""
        for sent in item.sents if isinstance(item, Executed) else (item,):
            if not sent.future.done():
                self._answer(sent, None, error)

    def _answer(self, sent: Sent, result: object, error: BaseException | None) -> None:
        self._room.leave(sent.future)
        if sent.execute is not None:
            self._renewing.discard(sent.send.transaction_id, sent.future)
        if error is None:
            sent.future.set_result(result)
        else:
            sent.future.set_exception(error)


def _kind(state: LocalTransactionState) -> ClaimKind:
    # Python computes the hash of an enum, which a dict would ask for.
    return ClaimKind.COMMIT if state is _COMMIT else ClaimKind.ROLLBACK


def _refusal(
    sent: Sent, state: LocalTransactionState, resolutions: Sequence[Resolution]
) -> BaseException | None:
    """Return the error for the caller if another end took effect first."""
    try:
        for send, resolution in zip(sent.sends, resolutions, strict=False):
            resolution.confirm(send.transaction_id, _kind(state))
    except BaseException as refusal:  # noqa: BLE001 - the caller gets it
        return refusal
    return None


def _result(sent: Sent, state: LocalTransactionState) -> SendResult | TransactionSendResult:
    if sent.execute is None:
        return send_result(sent.sends)
    key = sent.transaction_id
    return TransactionSendResult(key, message_id(key, 0), state)
