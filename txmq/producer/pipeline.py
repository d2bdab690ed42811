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
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures._base import FINISHED, PENDING
from functools import partial
from threading import Condition, Lock, get_ident
from typing import Any, TypeVar

from txmq.ground.tasks import submitted
from txmq.producer.group_commit import Answered, Awaited, Woken

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
    finally:
        # An interrupt between two steps is not raised in them: they end here, and not at some time.
        steps.close()


class StepFutures:
    """Gives futures of the operations of one producer; none can be cancelled.

    Safe for many threads.
    """

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
        wait, a thread makes all steps and waits. Raises: what the first step raises; ClosedError.
        """
        operation = _Operation(steps, self._room)
        try:
            if size_bytes:
                # Before any lock and any wait: in a forked process nobody gives the room back.
                self._check_open()
                if not self._enter(size_bytes, operation):
                    # Few threads, so few of them are on their way beside those that have room.
                    return self.in_thread(partial(waited, steps))
            return operation.begin()
        except BaseException:
            # An interrupt before the first step.
            self._room.leave(operation)
            raise

    def in_thread(self, work: Callable[[], Result], size_bytes: int = 0) -> Future[Result]:
        """Call what waits by itself in a thread; its bytes take room as in `of`.

        Raises: ClosedError.
        """
        self._check_open()
        future = SendFuture()
        try:
            if size_bytes:
                self._enter(size_bytes, future)
            # The future of the pool could be cancelled while all threads are busy.
            with self._lock:
                submitted(self._pool(), self._answer_by, work, future)
        except BaseException:
            self._room.leave(future)
            raise
        return future

    def close(self) -> None:
        """Wait for what runs in threads; call it before the commits are closed."""
        with self._lock:
            threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()

    def _enter(self, size_bytes: int, future: SendFuture) -> bool:
        """Take room, and wait for it where the calling thread may; tell whether it was taken."""
        if _runs_an_event_loop():
            return self._room.try_enter(size_bytes, future)
        self._room.enter(size_bytes, future)
        return True

    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(
                STEP_THREADS, "txmq-step", initializer=lambda: self._own.add(get_ident())
            )
        return self._threads

    def _answer_by(self, work: Callable[[], object], future: SendFuture) -> None:
        """Call the work; give its room back before anybody hears of it."""
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
            self._room.leave(future)
            future.set_exception(error)
        else:
            self._room.leave(future)
            future.set_result(result)


class SendRoom:
    """Room for so many bytes of sends; who finds none waits. Safe for many threads.

    A send that is larger than the room enters when no other one is in it.
    """

    def __init__(self, max_bytes: int) -> None:
        """Begin with all of it free."""
        self._max_bytes, self._taken_bytes = max_bytes, 0
        self._givers: list[Callable[[], bool]] = []
        # All sends and all answers take it. While it is held nothing is called: Python changes
        # threads at calls, and all others would stand before the lock; and there it raises
        # interrupts, so what is taken is always what the futures have.
        self._lock = Lock()
        self._outside = Woken()

    def add_givers(self, is_giver: Callable[[], bool]) -> None:
        """Name threads that help to give room back and never wait for it.

        A callback of a future may send again. `is_giver` tells whether the calling thread is one.
        """
        self._givers.append(is_giver)

    @property
    def taken_bytes(self) -> int:
        """The bytes of the sends that are in it."""
        return self._taken_bytes

    def enter(self, size_bytes: int, future: SendFuture) -> None:
        """Take room; wait if there is too little, unless the calling thread is a giver."""
        if self.try_enter(size_bytes, future):
            return
        is_giver = any(is_giver() for is_giver in self._givers)
        while not self.try_enter(size_bytes, future, always=is_giver):
            pending = self._outside.asleep()
            if self.try_enter(size_bytes, future):
                return
            pending.acquire()

    def try_enter(self, size_bytes: int, future: SendFuture, *, always: bool = False) -> bool:
        """Take room if there is enough, or `always`. Tell whether it was taken."""
        with self._lock:
            taken_bytes = self._taken_bytes + size_bytes
            if taken_bytes > self._max_bytes and self._taken_bytes and not always:
                return False
            self._taken_bytes, future.room_bytes = taken_bytes, size_bytes
            return True

    def leave(self, future: SendFuture) -> None:
        """Give back what a future has of it; where that is nothing, do nothing.

        A call that is interrupted gives room back, and may have queued its send all the same. So
        it may be called twice; and without a lock, which nobody may let go in a forked process.
        """
        if not future.room_bytes:
            return
        with self._lock:
            taken_bytes = self._taken_bytes - future.room_bytes
            self._taken_bytes, future.room_bytes = taken_bytes, 0
        self._outside.wake_all()


class SendFuture(Future[Any]):
    """A future that cannot be cancelled, because its send is already queued.

    Tens of thousands exist at a time, and most are done before anybody waits for them. Objects that
    only a waiter needs (a condition, a lock, lists: ten objects) are made at their first use.
    """

    # What its send takes of a room.
    room_bytes = 0
    _state, _result, _exception = PENDING, None, None
    # Somebody waits or wants to be called.
    _is_watched = False
    _asleep: Woken
    _callbacks: deque[Callable[[SendFuture], object]]
    _waiters: list[Any]
    _condition: Condition

    def __init__(self) -> None:
        """Do not call the parent's `__init__`, which makes all objects at once."""

    def __getattr__(self, name: str) -> Any:
        """Make what only a waiter needs at its first use."""
        if name not in _MADE_LATE:
            raise AttributeError(name)
        # Before anybody has it: whoever sets the result afterwards looks.
        self._is_watched = True
        return self.__dict__.setdefault(name, _MADE_LATE[name]())

    def set_result(self, result: Any) -> None:
        """Set the result and wake the waiters."""
        self._result = result
        self._finish()

    def set_exception(self, exception: BaseException | None) -> None:
        """Set the error and wake the waiters."""
        self._exception = exception
        self._finish()

    def _finish(self) -> None:
        """Wake the waiters and call the callbacks.

        A thread that looks later sees the result; a thread that waits already is woken. Therefore
        no lock is needed, which all threads would share, and which an interrupt would leave taken.
        """
        self._state = FINISHED
        if not self._is_watched:
            return
        self._asleep.wake_all()
        if "_condition" in self.__dict__:
            self._tell_waiters()
        self._call_back()

    def _tell_waiters(self) -> None:
        """Tell `wait` and `as_completed` of concurrent.futures."""
        with self._condition:
            for waiter in self._waiters:
                waiter.add_result(self) if self._exception is None else waiter.add_exception(self)

    def _call_back(self) -> None:
        """Call each callback once; the parent's would let SystemExit end the committing thread."""
        while True:
            try:
                callback = self._callbacks.popleft()
            except IndexError:
                return
            _called(callback, self)

    def add_done_callback(self, fn: Callable[[Any], object]) -> None:
        """Call `fn` with this future when it is done, or now."""
        self._callbacks.append(fn)
        if self.done():
            self._call_back()

    def cancel(self) -> bool:
        """Return False: a send cannot be cancelled."""
        return False

    def cancelled(self) -> bool:
        """Return False."""
        return False

    def running(self) -> bool:
        """Tell whether it is not done yet."""
        return not self.done()

    def done(self) -> bool:
        """Tell whether it has a result or an exception."""
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> Any:
        """Return the result, as any future does. Raises: its error; TimeoutError."""
        if self._state != FINISHED:
            self._wait(timeout)
        if self._exception is None:
            return self._result
        try:
            raise self._exception
        finally:
            # The traceback holds this frame, and the error its traceback.
            del self

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, or None, as any future does. Raises: TimeoutError."""
        if self._state != FINISHED:
            self._wait(timeout)
        return self._exception

    def _wait(self, timeout_s: float | None) -> None:
        pending = self._asleep.asleep()
        if self._state == FINISHED:
            return
        if not pending.acquire(timeout=-1 if timeout_s is None else max(timeout_s, 0)):
            raise TimeoutError


# What a future makes at its first use.
_MADE_LATE: dict[str, Callable[[], Any]] = {
    "_asleep": Woken, "_callbacks": deque, "_condition": Condition, "_waiters": list
}  # fmt: skip


def _called(callback: Callable[[SendFuture], object], future: SendFuture) -> None:
    try:
        callback(future)
    except BaseException:
        # A callback that fails must not stop the other callbacks, nor the committing thread.
        logger.exception("a callback of a send raised")


class _Operation(SendFuture):
    """The future of an operation. Each answer takes it a step on, in the thread that gives it."""

    def __init__(self, steps: Steps[Any], room: SendRoom) -> None:
        self._steps, self._room = steps, room

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
            self._room.leave(self)
            self.set_result(end.value)
        except BaseException as error:
            if is_gone:
                raise
            self._steps.close()
            self._room.leave(self)
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
