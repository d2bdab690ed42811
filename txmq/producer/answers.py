"""The answers to the items of a group commit, and how the threads that wait for them are woken."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any, Generic, Protocol, TypeVar

# So many of the threads whose answer is there are on their way at once. Of 512 threads fewer would
# make small commits, more would stand in each other's way.
AWAKE_AT_ONCE = 32
Answer = TypeVar("Answer")
Answer_contra = TypeVar("Answer_contra", contravariant=True)


class Answered(Protocol[Answer_contra]):
    """Takes the answer to one item."""

    def done(self) -> bool:
        """Whether there is an answer or an error."""
        ...

    def set_result(self, answer: Answer_contra) -> None:
        """Give the answer; this or `set_exception` is called once, and must not raise."""
        ...

    def set_exception(self, error: BaseException) -> None:
        """Give the error."""
        ...


class Awaited(Generic[Answer]):
    """The answer that one thread waits for.

    A Future wakes its thread twice, for it holds its lock meanwhile; with hundreds of threads that
    is most of their time.
    """

    __slots__ = ("_answer", "_error", "_is_answered", "_pending", "_woken")

    def __init__(self) -> None:
        """There is no answer yet."""
        self._pending = threading.Lock()
        self._pending.acquire()
        self._answer: Any = None
        self._error: BaseException | None = None
        self._is_answered = False
        self._woken: Woken | None = None

    def done(self) -> bool:
        """Whether there is an answer or an error."""
        return self._is_answered

    def set_result(self, answer: Answer) -> None:
        """Give the answer; call this or `set_exception` once."""
        self._answer, self._is_answered = answer, True
        self._pending.release()

    def set_result_in_turn(self, answer: Answer, woken: Woken) -> None:
        """As `set_result`; `woken` wakes its thread."""
        self._answer, self._woken, self._is_answered = answer, woken, True
        woken.add(self._pending)

    def set_exception(self, error: BaseException) -> None:
        """Give the error."""
        self._error, self._is_answered = error, True
        self._pending.release()

    def wake(self) -> None:
        """Let its thread go on, or the next call of `result`; it may have been woken already."""
        try:
            self._pending.release()
        except RuntimeError:
            return

    def result(self, timeout_s: float = -1) -> Answer:
        """Wait for the answer, for ever or up to a time. Raises: the error; TimeoutError."""
        if not self._pending.acquire(timeout=timeout_s):
            raise TimeoutError
        self.wake()
        if self._woken is not None:
            self._woken.wake(1)
        if self._error is not None:
            raise self._error
        answer: Answer = self._answer
        return answer


class Woken:
    """Threads whose answers are there; each that wakes wakes the next one. Safe for many threads.

    Hundreds that are woken at once stand before the interpreter's lock, and each wakes every 5 ms
    to ask for it. A thread that gave up waiting wakes nobody: `wake_all` is for those behind it.
    """

    def __init__(self) -> None:
        """Nobody waits."""
        self._asleep: deque[threading.Lock] = deque()

    def __bool__(self) -> bool:
        """Whether some are not woken yet."""
        return bool(self._asleep)

    def add(self, pending: threading.Lock) -> None:
        """A thread that waits for this lock."""
        self._asleep.append(pending)

    def wake(self, count: int) -> None:
        """Wake so many, or those that there are."""
        for _ in range(count):
            try:
                pending = self._asleep.popleft()
            except IndexError:
                return
            pending.release()

    def wake_all(self) -> None:
        """Wake all that are left."""
        self.wake(len(self._asleep))
