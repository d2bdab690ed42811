"""Transactions of one message without a waiting caller: many share each commit.

Half durable, then the local transaction in one of a few threads, then the end. Between these steps
nothing waits for anything but room, so commits are as large as the load makes them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from txmq.errors import TxmqError
from txmq.lifecycle import ClaimKind
from txmq.message import LocalTransactionState, Message, message_id, new_transaction_id
from txmq.producer_commits import ProducerCommits, Routed
from txmq.producer_hooks import AskedEnd, Sending
from txmq.resolution import Resolution
from txmq.send_results import TransactionSendResult, running_future

# So many local transactions a thread takes at once; their ends are written together.
CHUNK = 64
_END_KINDS = {
    LocalTransactionState.COMMIT: ClaimKind.COMMIT,
    LocalTransactionState.ROLLBACK: ClaimKind.ROLLBACK,
}
Execute = Callable[[str, Message, object], LocalTransactionState]


@dataclass(frozen=True, slots=True)
class _Sent:
    """A message whose half is on its way, or durable."""

    transaction_id: str
    message: Message
    argument: object
    future: Future[TransactionSendResult]
    sending: Sending

    def finish(self, state: LocalTransactionState) -> None:
        own_id = message_id(self.transaction_id, 0)
        self.future.set_result(TransactionSendResult(self.transaction_id, own_id, state))


class AsyncTransactions:
    """Runs `execute_local_transaction` in threads of its own, for one producer."""

    def __init__(
        self, commits: ProducerCommits, execute: Execute, *, threads: int, max_waiting: int
    ) -> None:
        """`execute` never raises; no thread is started yet.

        Where `max_waiting` local transactions are not taken yet, no more halves are committed.
        """
        self._commits, self._execute, self._max_waiting = commits, execute, max_waiting
        self._threads = [
            threading.Thread(target=self._run, name=f"txmq-local-{number}", daemon=True)
            for number in range(threads)
        ]
        self._durable: deque[_Sent] = deque()
        lock = threading.Lock()
        self._has_work, self._has_room = threading.Condition(lock), threading.Condition(lock)
        self._is_started, self._is_closed = False, False

    def send(self, routed: Routed, argument: object) -> Future[TransactionSendResult]:
        """Two commits, shared with others. Raises: ClosedError."""
        own_id = new_transaction_id(self._commits.now_ms())
        rows = self._commits.half_rows(own_id, [routed], in_turn=True, ordinary=False)
        sending = self._commits.hooks.begin_send({own_id: [routed.message]})
        sent = _Sent(own_id, routed.message, argument, running_future(), sending)
        try:
            if not self._is_started:
                self._start()
            self._commits.prepare_then(
                rows, lambda error: self._prepared(sent, error), is_patient=True
            )
        except TxmqError as error:
            sending.done(error)
            raise
        return sent.future

    def close(self) -> None:
        """Return when no local transaction runs any more; call it when all halves are durable."""
        with self._has_work:
            self._is_closed = True
            self._has_work.notify_all()
        for thread in self._threads if self._is_started else ():
            thread.join()

    def _start(self) -> None:
        with self._has_work:
            if not self._is_started:
                self._is_started = True
                for thread in self._threads:
                    thread.start()

    def _prepared(self, sent: _Sent, error: BaseException | None) -> None:
        sent.sending.done(error)
        if error is not None:
            # R6: without a half there is no local transaction.
            sent.future.set_exception(error)
            return
        with self._has_work:
            while len(self._durable) >= self._max_waiting:
                self._has_room.wait()
            self._durable.append(sent)
            self._has_work.notify()

    def _run(self) -> None:
        while chunk := self._next_chunk():
            states = [
                self._execute(sent.transaction_id, sent.message, sent.argument) for sent in chunk
            ]
            self._end(list(zip(chunk, states, strict=True)))

    def _next_chunk(self) -> list[_Sent]:
        with self._has_work:
            self._has_work.wait_for(lambda: self._durable or self._is_closed)
            self._has_room.notify()
            return [self._durable.popleft() for _ in range(min(CHUNK, len(self._durable)))]

    def _end(self, executed: Sequence[tuple[_Sent, LocalTransactionState]]) -> None:
        known = [(sent, state) for sent, state in executed if state in _END_KINDS]
        for sent, state in executed:
            if state not in _END_KINDS:
                self._tell(sent, state, None, None)
                sent.finish(state)
        ends = [(sent.transaction_id, _END_KINDS[state]) for sent, state in known]
        try:
            if ends:
                self._commits.end_then(
                    ends,
                    lambda answers, error: self._ended(known, answers, error),
                    is_patient=True,
                )
        except TxmqError as error:
            self._ended(known, (), error)

    def _ended(
        self,
        known: Sequence[tuple[_Sent, LocalTransactionState]],
        answers: Sequence[Resolution],
        error: BaseException | None,
    ) -> None:
        if error is not None:
            for sent, state in known:
                self._tell(sent, state, None, error)
                sent.future.set_exception(error)
            return
        for (sent, state), answer in zip(known, answers, strict=True):
            refusal = _refusal(sent, state, answer)
            self._tell(sent, state, answer, refusal)
            if refusal is None:
                sent.finish(state)
            else:
                sent.future.set_exception(refusal)

    def _tell(
        self,
        sent: _Sent,
        asked: LocalTransactionState,
        found: Resolution | None,
        error: BaseException | None,
    ) -> None:
        """Hooks hear of an end before its caller does."""
        if self._commits.hooks:
            end = AskedEnd(sent.transaction_id, asked, (sent.message,), 1)
            self._commits.hooks.ended(end, found, error)


def _refusal(sent: _Sent, state: LocalTransactionState, answer: Resolution) -> TxmqError | None:
    """What the caller gets where another end was first."""
    try:
        answer.confirm(sent.transaction_id, _END_KINDS[state])
    except TxmqError as refusal:
        return refusal
    return None
