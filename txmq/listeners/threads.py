"""Calls to one listener in threads of its own, so that it can hold up nobody but itself (R72)."""

from __future__ import annotations

import enum
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

# Threads that hang in one listener are replaced, but not without end.
HUNG_PER_THREAD = 4
Question = TypeVar("Question")
Answer = TypeVar("Answer")


class Unanswered(enum.Enum):
    """What came of a question without an answer when its time was over."""

    HANGS = "hangs"
    NOT_BEGUN = "not begun"


class _Phase(enum.Enum):
    WAITING = "waiting"
    ASKED = "asked"
    ANSWERED = "answered"
    GIVEN_UP = "given up"


class _Asked(Generic[Question, Answer]):
    """One question, its place between two threads, and what came of it."""

    def __init__(self, question: Question, answered: threading.Semaphore) -> None:
        self.question = question
        self._answered = answered
        self._lock = threading.Lock()
        self._phase = _Phase.WAITING
        self._answers: list[Answer] = []

    def begin(self) -> bool:
        """Whether it is still to be asked."""
        with self._lock:
            waiting = self._phase is _Phase.WAITING
            if waiting:
                self._phase = _Phase.ASKED
            return waiting

    def finish(self, answer: Answer) -> bool:
        """Whether the answer came in time."""
        with self._lock:
            in_time = self._phase is _Phase.ASKED
            if in_time:
                self._phase = _Phase.ANSWERED
                self._answers.append(answer)
        if in_time:
            self._answered.release()
        return in_time

    def give_up(self) -> Answer | Unanswered:
        """What came of it until now; a later answer is late."""
        with self._lock:
            phase, self._phase = self._phase, _Phase.GIVEN_UP
        match phase:
            case _Phase.ANSWERED:
                return self._answers[0]
            case _Phase.ASKED:
                return Unanswered.HANGS
            case _:
                return Unanswered.NOT_BEGUN


class Asking(Generic[Question, Answer]):
    """The questions of one round, on their way to one listener."""

    def __init__(
        self,
        asked: Sequence[_Asked[Question, Answer]],
        answered: threading.Semaphore,
        replace_hung: Callable[[int], None],
    ) -> None:
        """Made by `ListenerThreads.ask`."""
        self._asked = asked
        self._answered = answered
        self._replace_hung = replace_hung

    def answers(self, deadline_s: float) -> list[Answer | Unanswered]:
        """In the order of the questions, at the monotonic time `deadline_s` at the latest."""
        for _ in self._asked:
            if not self._answered.acquire(timeout=max(deadline_s - time.monotonic(), 0.0)):
                break
        found = [asked.give_up() for asked in self._asked]
        hung = sum(one is Unanswered.HANGS for one in found)
        if hung:
            self._replace_hung(hung)
        return found


class ListenerThreads(Generic[Question, Answer]):
    """Asks one listener, up to `threads` questions at a time; listeners share no threads.

    Python cannot end a thread: one that hangs is replaced up to HUNG_PER_THREAD times, so that a
    listener that always hangs does not fill the memory.
    """

    def __init__(self, name: str, call: Callable[[Question], Answer], threads: int) -> None:
        """Start no thread yet; `call` must not raise."""
        self._name = name
        self._call = call
        self._threads = threads
        self._waiting: queue.SimpleQueue[_Asked[Question, Answer] | None] = queue.SimpleQueue()
        self._late: queue.SimpleQueue[tuple[Question, Answer]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running = 0
        self._hung = 0

    def ask(self, questions: Sequence[Question]) -> Asking[Question, Answer] | None:
        """Put questions to the threads; None where all of them hang."""
        with self._lock:
            if self._hung >= self._threads * HUNG_PER_THREAD:
                return None
            while self._running < self._threads:
                self._start()
        answered = threading.Semaphore(0)
        asked = [_Asked[Question, Answer](question, answered) for question in questions]
        for one in asked:
            self._waiting.put(one)
        return Asking(asked, answered, self._replace)

    def late(self) -> list[tuple[Question, Answer]]:
        """Questions whose answer came after their time, each returned once."""
        found = []
        while not self._late.empty():
            found.append(self._late.get())
        return found

    def close(self) -> None:
        """End the threads; those that hang end when their listener returns."""
        with self._lock:
            for _ in range(self._running):
                self._waiting.put(None)
            self._running = 0

    def _replace(self, hung: int) -> None:
        """Count threads that hang; `ask` starts others in their place."""
        with self._lock:
            self._hung += hung
            self._running -= hung

    def _start(self) -> None:
        self._running += 1
        name = f"txmq-check-{self._name}"
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        while (asked := self._waiting.get()) is not None:
            if asked.begin():
                answer = self._call(asked.question)
                if not asked.finish(answer):
                    # This thread was replaced meanwhile, so it ends.
                    with self._lock:
                        self._hung -= 1
                    self._late.put((asked.question, answer))
                    return
