"""One pipeline from a producer to its logs, for who waits and for who does not.

An operation (a send, a prepare, an end) is written once, as steps: a generator that gives away each
commit that it needs and gets the answer back. Hooks, the look at the answer and errors are told in
the steps, so they are the same for all:

    waited(steps)          the calling thread makes the steps and waits for each shared commit
    futures.of(steps)      the calling thread makes the first step, and the threads that commit
                           make the others; nobody waits, and a future has the result

What has to read or to compute, such as a DataFrame, has no steps; for a future one of a few threads
calls it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures._base import FINISHED, PENDING
from functools import partial
from threading import Condition, Lock, get_ident
from typing import Any, TypeVar

from txmq.ground.tasks import submitted
from txmq.producer.group_commit import Answered, Awaited

logger = logging.getLogger(__name__)

STEP_THREADS = 4
Result = TypeVar("Result")
# Queues an item for a shared commit, with who takes the answer.
Submit = Callable[[Answered[Any]], None]
# The steps of one operation: what to submit, the answers, and the result.
Steps = Generator[Submit, Any, Result]


def waited(steps: Steps[Result]) -> Result:
    """Make all steps in this thread, which waits for each shared commit. Return their result.

    An interrupt of the thread ends the steps as an error does; what is queued is committed.
    """
    try:
        submit = next(steps)
        while True:
            awaited: Awaited[Any] = Awaited()
            try:
                submit(awaited)
                answer = awaited.result()
            except BaseException as error:  # noqa: BLE001 - the steps raise it, or know better
                submit = steps.throw(error)
            else:
                submit = steps.send(answer)
    except StopIteration as end:
        result: Result = end.value
        return result


class StepFutures:
    """Gives futures of the operations of one producer. Safe for many threads."""

    def __init__(self, room: SendRoom, check_open: Callable[[], None]) -> None:
        """Start no thread yet; `check_open` raises ClosedError if nothing can be committed."""
        self._room, self._check_open = room, check_open
        self._threads: ThreadPoolExecutor | None = None
        self._lock = Lock()
        # The threads of these steps, which run callbacks too.
        self._own: set[int] = set()
        room.add_givers(lambda: get_ident() in self._own)

    def of(self, steps: Steps[Result], size_bytes: int = 0) -> Future[Result]:
        """Make the first step now and the others in committing threads. Return the future.

        Where too many bytes are on their way, the caller waits; in an event loop, where nobody may
        wait, a thread makes all steps and waits. Raises: what the first step raises.
        """
        if size_bytes and not self._enter(size_bytes):
            # Few threads, so few of them are on their way beside those that have room.
            return self.in_thread(partial(waited, steps))
        return _Operation(steps, partial(self._room.leave, size_bytes)).begin()

    def in_thread(self, work: Callable[[], Result], size_bytes: int = 0) -> Future[Result]:
        """Call what waits by itself in a thread; its bytes take room as in `of`.

        Raises: ClosedError.
        """
        self._check_open()
        if not size_bytes or not self._enter(size_bytes):
            return self._submitted(work)
        try:
            return self._submitted(partial(self._leaving, work, size_bytes))
        except BaseException:
            self._room.leave(size_bytes)
            raise

    def close(self) -> None:
        """Wait for what runs in threads; call it before the commits are closed."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()

    def _enter(self, size_bytes: int) -> bool:
        """Take room, and wait for it where the calling thread may; tell whether it was taken."""
        if _runs_an_event_loop():
            return self._room.try_enter(size_bytes)
        self._room.enter(size_bytes)
        return True

    def _submitted(self, work: Callable[[], Result]) -> Future[Result]:
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(
                    STEP_THREADS, "txmq-step", initializer=lambda: self._own.add(get_ident())
                )
            return submitted(self._threads, work)

    def _leaving(self, work: Callable[[], Result], size_bytes: int) -> Result:
        try:
            return work()
        finally:
            self._room.leave(size_bytes)


class SendRoom:
    """Room for so many bytes of sends; who finds none waits. Safe for many threads.

    A send that is larger than the room enters when no other one is in it.
    """

    def __init__(self, max_bytes: int) -> None:
        """Begin with all of it free."""
        self._max_bytes, self._taken_bytes = max_bytes, 0
        self._givers: list[Callable[[], bool]] = []
        # All sends and all answers take it. While it is held nothing is called that is not needed:
        # Python changes threads at calls, and all others would stand before the lock.
        self._lock = Lock()
        self._has_room = Condition(self._lock)
        self._waiting = 0

    def add_givers(self, is_giver: Callable[[], bool]) -> None:
        """Name threads that help to give room back and never wait for it.

        A callback of a future may send again. `is_giver` tells whether the calling thread is one.
        """
        self._givers.append(is_giver)

    @property
    def taken_bytes(self) -> int:
        """The bytes of the sends that are in it."""
        return self._taken_bytes

    def enter(self, size_bytes: int) -> None:
        """Take room; wait if there is too little, unless the calling thread is a giver."""
        with self._lock:
            taken_bytes = self._taken_bytes + size_bytes
            if taken_bytes <= self._max_bytes:
                self._taken_bytes = taken_bytes
                return
            if self._is_too_much(size_bytes) and not any(is_giver() for is_giver in self._givers):
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
        """Take room if there is enough. Tell whether it was taken."""
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


class SendFuture(Future[Any]):
    """A future that cannot be cancelled, because its send is already queued for a commit.

    Tens of thousands exist at a time, and most are done before anybody waits for them. Objects that
    only a waiter needs (a condition, a lock, lists: ten objects) are made at their first use.
    """

    _state, _result, _exception = PENDING, None, None
    _is_watched = False
    _waiters: Any = ()
    _done_callbacks: Any = ()
    _condition: Condition

    def __init__(self) -> None:
        """Do not call the parent's `__init__`, which makes all objects at once."""

    def __getattr__(self, name: str) -> Any:
        """Make the condition at its first use; all methods of the parent read it first."""
        if name != "_condition":
            raise AttributeError(name)
        self.__dict__.setdefault("_waiters", [])
        self.__dict__.setdefault("_done_callbacks", [])
        condition = self.__dict__.setdefault(name, Condition())
        # Before anybody has the condition: whoever sets the result afterwards takes it too.
        self._is_watched = True
        return condition

    def set_result(self, result: Any) -> None:
        """Set the result and wake the waiters.

        A thread that reads the condition later sees the result; a thread that has it already is
        woken. Therefore no lock is needed that all threads would share.
        """
        self._result = result
        self._state = FINISHED
        if not self._is_watched:
            return
        with self._condition:
            for waiter in self._waiters:
                waiter.add_result(self)
            self._condition.notify_all()
        self._invoke_callbacks()

    def _invoke_callbacks(self) -> None:
        """Call the callbacks; the parent's would let SystemExit end the committing thread."""
        for callback in self._done_callbacks:
            _called(callback, self)

    def cancel(self) -> bool:
        """Return False: a send cannot be cancelled."""
        return False

    def running(self) -> bool:
        """Tell whether it is not done yet."""
        return not self.done()

    def done(self) -> bool:
        """Tell whether it has a result or an exception."""
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> Any:
        """Return the result, as any future does."""
        if self._state == FINISHED and self._exception is None:
            return self._result
        return super().result(timeout)


def _called(callback: Callable[[SendFuture], object], future: SendFuture) -> None:
    try:
        callback(future)
    except BaseException:
        # A callback that fails must not stop the other callbacks, nor the committing thread.
        logger.exception("a callback of a send raised")


class _Operation(SendFuture):
    """The future of an operation. Each answer takes it a step on, in the thread that gives it."""

    def __init__(self, steps: Steps[Any], leave: Callable[[], None]) -> None:
        self._steps, self._leave = steps, leave

    def begin(self) -> Future[Any]:
        """Make the first step. Its error is raised, as nobody has the future yet."""
        self._advance(next, self._steps, is_first=True)
        return self

    def go_on(self, answer: object) -> None:
        """Make the next step, with the answer to the one before."""
        self._advance(self._steps.send, answer)

    def fail(self, error: BaseException) -> None:
        """Make the next step, with the error of the one before."""
        self._advance(self._steps.throw, error)

    def _advance(
        self, step: Callable[[Any], Submit], argument: Any, *, is_first: bool = False
    ) -> None:
        is_gone = False
        try:
            submit = step(argument)
            while True:
                stage = _Stage(self)
                try:
                    submit(stage)
                except BaseException as error:
                    # What is interrupted may be queued, and a committing thread may have gone on.
                    is_gone = not stage.take()
                    if is_gone:
                        raise
                    submit = self._steps.throw(error)
                else:
                    return
        except StopIteration as end:
            self._leave()
            self.set_result(end.value)
        except BaseException as error:
            if is_gone:
                raise
            self._leave()
            if is_first:
                raise
            self.set_exception(error)


class _Stage:
    """Takes the answer of one shared commit to an operation, once."""

    __slots__ = ("_waiting",)

    def __init__(self, operation: _Operation) -> None:
        # Of two threads only one can take it out.
        self._waiting = [operation]

    def take(self) -> Sequence[_Operation]:
        """Return the operation in a list, or an empty list if it has gone on already."""
        try:
            return [self._waiting.pop()]
        except IndexError:
            return ()

    def done(self) -> bool:
        return not self._waiting

    def set_result(self, answer: object) -> None:
        for operation in self.take():
            operation.go_on(answer)

    def set_exception(self, error: BaseException) -> None:
        for operation in self.take():
            operation.fail(error)


def done() -> Future[None]:
    """Return the future of an operation that had nothing to do."""
    future: Future[None] = Future()
    future.set_result(None)
    return future


def _runs_an_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
