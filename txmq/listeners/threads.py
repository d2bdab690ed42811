"""Calls one listener in threads of its own, so that a slow listener delays only itself (R72)."""

from __future__ import annotations

import enum
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

# Python cannot end a thread that hangs. It is replaced, up to this many times per thread.
HUNG_PER_THREAD = 4
Question = TypeVar("Question")
Answer = TypeVar("Answer")


class ListenerThreads(Generic[Question, Answer]):
    """Asks one listener up to `threads` questions at a time; listeners share no threads.

    A thread that hangs is replaced, up to HUNG_PER_THREAD times. After that no question is put,
    so a listener that always hangs does not fill the memory.
    """

    def __init__(
        self,
        name: str,
        call: Callable[[Question], Answer],
        error_answer: Callable[[Question, BaseException], Answer],
        threads: int,
    ) -> None:
        """Start no thread.

        Args:
            name: the producer group, for the names of the threads.
            call: asks the listener.
            error_answer: gives the answer to a question for which `call` raised; must not raise.
            threads: the number of questions that are asked at the same time.
        """
        self._name = name
        self._call = call
        self._error_answer = error_answer
        self._threads = threads
        self._waiting: queue.SimpleQueue[_PendingQuestion[Question, Answer] | None] = (
            queue.SimpleQueue()
        )
        # Without the questions, which may hold bodies.
        self._late: deque[Answer] = deque(maxlen=threads * HUNG_PER_THREAD)
        self._lock = threading.Lock()
        self._running = 0
        self._hung = 0

    def ask(self, questions: Sequence[Question]) -> PendingQuestions[Question, Answer] | None:
        """Put questions to the threads; None if all threads hang and none may be replaced."""
        with self._lock:
            if self._hung >= self._threads * HUNG_PER_THREAD:
                return None
            while self._running < self._threads:
                self._start()
        answered = threading.Semaphore(0)
        pending = [_PendingQuestion[Question, Answer](question, answered) for question in questions]
        for question in pending:
            self._waiting.put(question)
        return PendingQuestions(pending, answered, self._replace)

    def late(self) -> list[Answer]:
        """Return the answers that came after their deadline, each once.

        If nobody calls this, only the newest `threads` x HUNG_PER_THREAD answers are kept.
        """
        return [self._late.popleft() for _ in range(len(self._late))]

    def close(self) -> None:
        """End the threads; a thread that hangs ends when its listener returns."""
        with self._lock:
            for _ in range(self._running):
                self._waiting.put(None)
            self._running = 0

    def _replace(self, hung: int) -> None:
        """Count threads that hang; the next `ask` starts others in their place."""
        with self._lock:
            self._hung += hung
            self._running -= hung

    def _start(self) -> None:
        """Start a thread; it counts only after its start, which may fail."""
        name = f"txmq-check-{self._name}"
        threading.Thread(target=self._run, name=name, daemon=True).start()
        self._running += 1

    def _run(self) -> None:
        while (pending := self._waiting.get()) is not None:
            if pending.begin() and not self._finish(pending):
                return

    def _finish(self, pending: _PendingQuestion[Question, Answer]) -> bool:
        """Ask the listener; false if the answer is late, because this thread was replaced."""
        answer = self._answer(pending.question)
        if pending.finish(answer):
            return True
        with self._lock:
            self._hung -= 1
        self._late.append(answer)
        return False

    def _answer(self, question: Question) -> Answer:
        try:
            return self._call(question)
        except BaseException as error:  # noqa: BLE001 - R81: whatever a listener raises is UNKNOWN
            return self._error_answer(question, error)


class PendingQuestions(Generic[Question, Answer]):
    """The questions of one round to one listener; `ListenerThreads.ask` makes them."""

    def __init__(
        self,
        pending: Sequence[_PendingQuestion[Question, Answer]],
        answered: threading.Semaphore,
        replace_hung: Callable[[int], None],
    ) -> None:
        """Release `answered` for each answer; `replace_hung` gets the number of hanging threads."""
        self._pending = pending
        self._answered = answered
        self._replace_hung = replace_hung
        self._open = len(pending)

    def wait(self, until_s: float) -> bool:
        """Wait until the monotonic time `until_s` at the latest; whether all are answered."""
        while self._open:
            if not self._answered.acquire(timeout=max(until_s - time.monotonic(), 0.0)):
                return False
            self._open -= 1
        return True

    def answers(self, deadline_s: float) -> list[Answer | Unanswered]:
        """Wait for the answers, until the monotonic time `deadline_s` at the latest.

        Returns: one entry for each question, in the order of the questions.
        """
        self.wait(deadline_s)
        answers = [question.give_up() for question in self._pending]
        hung = sum(answer is Unanswered.HANGS for answer in answers)
        if hung:
            self._replace_hung(hung)
        return answers


class Unanswered(enum.Enum):
    """Why a question has no answer at the deadline."""

    HANGS = "hangs"
    NOT_BEGUN = "not begun"


class _PendingQuestion(Generic[Question, Answer]):
    """One question and its answer, shared by the thread that asks and the thread that waits."""

    def __init__(self, question: Question, answered: threading.Semaphore) -> None:
        self.question = question
        self._answered = answered
        self._lock = threading.Lock()
        self._phase = _Phase.WAITING
        self._answers: list[Answer] = []

    def begin(self) -> bool:
        """Tell whether the listener is to be asked; it is not if the question was given up."""
        with self._lock:
            is_waiting = self._phase is _Phase.WAITING
            if is_waiting:
                self._phase = _Phase.ASKED
            return is_waiting

    def finish(self, answer: Answer) -> bool:
        """Keep the answer; false if it came after the deadline."""
        with self._lock:
            is_in_time = self._phase is _Phase.ASKED
            if is_in_time:
                self._phase = _Phase.ANSWERED
                self._answers.append(answer)
        if is_in_time:
            self._answered.release()
        return is_in_time

    def give_up(self) -> Answer | Unanswered:
        """Return the answer, or why there is none; an answer after this call is late."""
        with self._lock:
            phase, self._phase = self._phase, _Phase.GIVEN_UP
        match phase:
            case _Phase.ANSWERED:
                return self._answers[0]
            case _Phase.ASKED:
                return Unanswered.HANGS
            case _:
                return Unanswered.NOT_BEGUN


class _Phase(enum.Enum):
    WAITING = "waiting"
    ASKED = "asked"
    ANSWERED = "answered"
    GIVEN_UP = "given up"


def waited(
    pending: PendingQuestions[Question, Answer] | None, deadline_s: float, until_s: float
) -> bool:
    """Wait until `until_s` at the latest; whether all is answered, too late, or was never put."""
    if pending is None or pending.wait(min(deadline_s, until_s)):
        return True
    return time.monotonic() >= deadline_s
