"""Asking listeners by threads, so that one that is slow, hangs or raises holds up nobody (R72)."""

from __future__ import annotations

import enum
import logging
import queue
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from txmq.check_rules import Reason
from txmq.listeners import HalfMessage, TransactionListener, answer_of
from txmq.message import LocalTransactionState

logger = logging.getLogger(__name__)

# Threads that hang in one listener are replaced, but not without end.
HUNG_PER_THREAD = 4


@dataclass(frozen=True, slots=True)
class Answered:
    """A question that reached its listener: it counts, whatever came of it."""

    state: LocalTransactionState
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class NotReached:
    """A question that no listener has seen: it does not count."""

    reason: Reason


Outcome = Answered | NotReached
_TIMEOUT = Answered(LocalTransactionState.UNKNOWN, Reason.TIMEOUT)
_BUSY = NotReached(Reason.BUSY)
_NO_LISTENER = NotReached(Reason.NO_LISTENER)


@dataclass(frozen=True, slots=True)
class LateAnswer:
    """An end that a listener named after its round was over; a claim like any other."""

    transaction_id: str
    producer_group: str
    state: LocalTransactionState


class _Phase(enum.Enum):
    WAITING = "waiting"
    ASKED = "asked"
    ANSWERED = "answered"
    GIVEN_UP = "given up"


class _Question:
    """One half, its place between two threads, and what came of it."""

    def __init__(self, half: HalfMessage, answered: threading.Semaphore) -> None:
        self.half = half
        self._answered = answered
        self._lock = threading.Lock()
        self._phase = _Phase.WAITING
        self._answer = _TIMEOUT

    def begin(self) -> bool:
        """Whether it is still to be asked."""
        with self._lock:
            waiting = self._phase is _Phase.WAITING
            if waiting:
                self._phase = _Phase.ASKED
            return waiting

    def finish(self, answer: Answered) -> bool:
        """Whether the answer came in time."""
        with self._lock:
            in_time = self._phase is _Phase.ASKED
            if in_time:
                self._phase, self._answer = _Phase.ANSWERED, answer
        if in_time:
            self._answered.release()
        return in_time

    def give_up(self) -> tuple[Outcome, bool]:
        """The outcome at the end of the round, and whether a thread still hangs in it."""
        with self._lock:
            phase, self._phase = self._phase, _Phase.GIVEN_UP
        match phase:
            case _Phase.ANSWERED:
                return self._answer, False
            case _Phase.ASKED:
                return _TIMEOUT, True
            case _:
                return _BUSY, False


class _Group:
    """The threads of one listener; groups share none, so none can starve another."""

    def __init__(
        self,
        group: str,
        listener: TransactionListener,
        threads: int,
        late: queue.SimpleQueue[LateAnswer],
    ) -> None:
        self._group = group
        self._listener = listener
        self._threads = threads
        self._late = late
        self._questions: queue.SimpleQueue[_Question | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running = 0
        self._hung = 0

    def put(self, questions: Iterable[_Question]) -> bool:
        """Whether a thread will take them."""
        with self._lock:
            if self._hung >= self._threads * HUNG_PER_THREAD:
                return False
            while self._running < self._threads:
                self._start()
        for question in questions:
            self._questions.put(question)
        return True

    def replace_hung(self, count: int) -> None:
        """Count threads that hang; `put` starts others in their place."""
        with self._lock:
            self._hung += count
            self._running -= count

    def close(self) -> None:
        """End the threads that do not hang."""
        with self._lock:
            for _ in range(self._running):
                self._questions.put(None)
            self._running = 0

    def _start(self) -> None:
        self._running += 1
        name = f"txmq-check-{self._group}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            if question.begin():
                answer = _ask(self._listener, question.half)
                if not question.finish(answer):
                    self._keep_late(question.half, answer)
                    return

    def _keep_late(self, half: HalfMessage, answer: Answered) -> None:
        """The thread was replaced meanwhile, so it ends."""
        with self._lock:
            self._hung -= 1
        if answer.state is not LocalTransactionState.UNKNOWN:
            self._late.put(LateAnswer(half.transaction_id, half.producer_group, answer.state))


class ListenerThreads:
    """Asks the listener of each group, up to `threads` questions of a group at a time."""

    def __init__(self, listeners: Mapping[str, TransactionListener], threads: int) -> None:
        """Start no thread yet."""
        self._late: queue.SimpleQueue[LateAnswer] = queue.SimpleQueue()
        self._groups = {
            group: _Group(group, listener, threads, self._late)
            for group, listener in listeners.items()
        }

    def ask(self, halves: Sequence[HalfMessage], timeout_s: float) -> dict[str, Outcome]:
        """What each listener said, by transaction; returns after `timeout_s` at the latest."""
        answered = threading.Semaphore(0)
        outcomes: dict[str, Outcome] = {}
        asked: dict[str, list[_Question]] = {}
        for half in halves:
            asked.setdefault(half.producer_group, []).append(_Question(half, answered))
        for group in [*asked]:
            unreachable = self._unreachable(group, asked[group])
            if unreachable is not None:
                questions = asked.pop(group)
                outcomes.update(dict.fromkeys((_id(q) for q in questions), unreachable))
        _wait(answered, sum(map(len, asked.values())), timeout_s)
        for group, questions in asked.items():
            outcomes.update(self._outcomes(group, questions))
        return outcomes

    def late_answers(self) -> list[LateAnswer]:
        """Ends that were named after their round, each returned once."""
        found = []
        while not self._late.empty():
            found.append(self._late.get())
        return found

    def close(self) -> None:
        """End the threads; those that hang end when their listener returns."""
        for group in self._groups.values():
            group.close()

    def _unreachable(self, group: str, questions: list[_Question]) -> NotReached | None:
        if group not in self._groups:
            return _NO_LISTENER
        return None if self._groups[group].put(questions) else _BUSY

    def _outcomes(self, group: str, questions: list[_Question]) -> dict[str, Outcome]:
        given_up = {_id(question): question.give_up() for question in questions}
        hung = sum(hangs for _, hangs in given_up.values())
        if hung:
            self._groups[group].replace_hung(hung)
            logger.warning("group %s: %d questions are still open in its listener", group, hung)
        return {transaction_id: outcome for transaction_id, (outcome, _) in given_up.items()}


def _wait(answered: threading.Semaphore, count: int, timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    for _ in range(count):
        if not answered.acquire(timeout=max(deadline_s - time.monotonic(), 0.0)):
            return


def _ask(listener: TransactionListener, half: HalfMessage) -> Answered:
    try:
        return Answered(*answer_of(listener.check_local_transaction(half)))
    except BaseException as error:  # noqa: BLE001 - R81: whatever it raises is UNKNOWN
        # The type alone: the text of a user's exception may hold a body.
        reason = f"the listener raised {type(error).__name__}"
        return Answered(LocalTransactionState.UNKNOWN, reason)


def _id(question: _Question) -> str:
    return question.half.transaction_id
