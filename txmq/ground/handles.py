"""Handles of running services: they stop a service between two rounds and say why it ended."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import threading
import time
import weakref
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol

from txmq.errors import EnvironmentProblemError

logger = logging.getLogger(__name__)
# Each look at a query is a call to Java.
LOOK_INTERVAL_S = 1.0
# A query that breaks BREAKS_MAX times, each time within STEADY_S, is given up.
BREAKS_MAX = 10
STEADY_S = 30.0
# So long the end of a process waits for a thread that was not stopped.
EXIT_WAIT_S = 10.0
# Set where services are told to stop while they start.
_stopping_start: ContextVar[threading.Event | None] = ContextVar("stopping_start", default=None)


class OfOneProcess:
    """What has threads, locks or open tables: it stays in its process and is not pickled."""

    __slots__ = ()

    def __reduce__(self) -> tuple[object, ...]:
        """Refuse to be pickled, for which Spark and multiprocessing give a lock as the reason."""
        name = type(self).__name__
        raise TypeError(
            f"{name} is not pickled: its threads and locks belong to this process. Make one where"
            " it is used, such as inside the function that Spark runs; a Store is pickled"
        )


class ServiceHandle(Protocol):
    """A running service."""

    def stop(self) -> None:
        """Stop between two rounds; returns when nothing runs any more."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether the service still runs."""
        ...

    @property
    def exception(self) -> BaseException | None:
        """The failure that ended the service; None while it runs, and after `stop()`."""
        ...


class ThreadHandle(OfOneProcess):
    """A service that is a loop in its own thread; a subclass implements one turn of it."""

    def __init__(
        self,
        name: str,
        interval_s: float,
        *,
        first_s: float = 0.0,
        stopping: threading.Event | None = None,
    ) -> None:
        """Start nothing yet: `begin()` does. The first turn comes after `first_s`."""
        self._name, self._interval_s, self._first_s = name, interval_s, first_s
        self._stopping = stopping or threading.Event()
        self._failure: BaseException | None = None
        self._thread = self._new_thread()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._run, name=f"txmq-{self._name}", daemon=True)

    def begin(self) -> None:
        """Start the thread; it ends with the process at the latest.

        Raises: EnvironmentProblemError where Java, which started this process, has ended.
        """
        close_at_exit(self._end_at_exit)
        # After it: if Java ends between the two, the thread is told to stop.
        end_with_spark_submit()
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current turn; returns when the thread has ended, if it was started."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _end_at_exit(self) -> None:
        self._stopping.set()
        if self._thread.ident is None:
            return
        if self._is_alive_after(EXIT_WAIT_S):
            logger.warning("the %s service does not end; the process ends under it", self._name)
        else:
            self.stop()

    def _is_alive_after(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        """Whether the thread still runs."""
        return self._thread.is_alive()

    @property
    def exception(self) -> BaseException | None:
        """The failure that ended the thread; None if none did."""
        return self._failure

    def _turn(self) -> None:
        """Do one turn; the next one comes an interval after it."""
        raise NotImplementedError

    def _end(self) -> None:
        """Do what is left to do, once in the thread, after the last turn."""

    def _run(self) -> None:
        for step in (self._turns, self._end):
            try:
                step()
            except BaseException as error:
                # SystemExit too: else the thread would look as if it was stopped.
                logger.exception("the %s service ends", self._name)
                self._failure = self._failure or error

    def _turns(self) -> None:
        pause_s = self._first_s
        while not self._stopping.wait(pause_s):
            self._turn()
            pause_s = self._interval_s


class Running(ServiceHandle, Protocol):
    """A service that `Restarting` starts again where it breaks."""

    def forget(self) -> None:
        """Remove what the ended service has left, such as a checkpoint."""
        ...


@dataclass(frozen=True, slots=True)
class TimedRounds:
    """What a timer runs again and again until `stopping`; `run` holds `in_run` meanwhile."""

    name: str
    run: Callable[[], None]
    stopping: threading.Event
    in_run: threading.Lock


class TurnHandle(ThreadHandle):
    """Runs rounds in a thread, without a pause between them."""

    def __init__(self, rounds: TimedRounds) -> None:
        """Start nothing yet: `begin()` does."""
        super().__init__(rounds.name, 0.0, stopping=rounds.stopping)
        self._rounds = rounds

    def _turn(self) -> None:
        self._rounds.run()

    def forget(self) -> None:
        """Remove nothing: a thread leaves nothing behind."""


class Restarting(ThreadHandle):
    """A query or a thread that is started again, with a new checkpoint, where it breaks.

    The services keep no promise by their checkpoints. A checkpoint that was deleted, restored or
    damaged under a running query is therefore a reason to start another query, not to end the
    service.
    """

    def __init__(
        self,
        start: Callable[[], Running],
        stopping: threading.Event,
        is_final: Callable[[BaseException | None], bool],
    ) -> None:
        """Start at once; `is_final` says which failures a new start cannot repair."""
        super().__init__("query", LOOK_INTERVAL_S, first_s=LOOK_INTERVAL_S, stopping=stopping)
        self._start, self._is_final = start, is_final
        self._breaks, self._since_s = 0, time.monotonic()
        self._running = self._started()
        self.begin()

    def stop(self) -> None:
        """Stop between two micro-batches; returns when nothing runs any more."""
        super().stop()
        self._running.stop()

    @property
    def is_alive(self) -> bool:
        """Whether a query runs, or is about to be started again."""
        return super().is_alive or (self._failure is None and self._running.is_alive)

    @property
    def exception(self) -> BaseException | None:
        """The failure that ended the service or is about to end it; None if there is none."""
        if self._failure is None and not self._running.is_alive:
            failure = self._running.exception
            return failure if self._is_final(failure) else None
        return self._failure

    def _turn(self) -> None:
        if self._running.is_alive:
            return
        self._note_break(self._running.exception)
        self._running.forget()
        self._running = self._started()

    def _started(self) -> Running:
        """Start a query; a failure while it starts counts as one more break."""
        while True:
            try:
                return self._start()
            except Exception as error:
                if self._stopping.wait(LOOK_INTERVAL_S):
                    raise
                self._note_break(error)

    def _note_break(self, failure: BaseException | None) -> None:
        """Raise where it broke too often, or a new start cannot repair the failure."""
        steady = time.monotonic() - self._since_s > STEADY_S
        self._breaks, self._since_s = 1 if steady else self._breaks + 1, time.monotonic()
        if self._is_final(failure) or self._breaks > BREAKS_MAX:
            raise failure or ended("a query", None)
        logger.error("a query broke and is started again: %s", failure)


# --- starts and failures of services --------------------------------------------------------------


@contextmanager
def start_stopped_by(stopping: threading.Event) -> Iterator[None]:
    """Let a start, in this block, end early once the event is set."""
    token = _stopping_start.set(stopping)
    try:
        yield
    finally:
        _stopping_start.reset(token)


def stopping_start() -> threading.Event:
    """Return what stops the start that is running; outside of such a block nothing sets it."""
    return _stopping_start.get() or threading.Event()


def is_survivable(error: BaseException) -> bool:
    """Tell whether the work that failed may fail alone, while its thread goes on with other work.

    So may a panic of a library in Rust, which is no Exception; an exit of the process may not.
    """
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def raise_exit(error: BaseException) -> None:
    """Raise what a function of the user raised if it shall end the process, else return.

    It goes on in the main thread alone: elsewhere an exit ends no process, but would pass for the
    failure of what called the function.
    """
    if is_survivable(error) or isinstance(error, GeneratorExit | CancelledError):
        return
    if threading.current_thread() is threading.main_thread():
        raise error


def ended(what: str, cause: BaseException | None) -> EnvironmentProblemError:
    """Return the error for something that ended and must not pass for an end that was asked for."""
    by = "by itself" if cause is None else f"by {type(cause).__name__}"
    step = "Start the service again; nothing is lost. Its log says more."
    return EnvironmentProblemError(f"{what} ended {by}", step)


def caused(
    problem: EnvironmentProblemError, cause: BaseException | None
) -> EnvironmentProblemError:
    """Return the problem with its cause, for who cannot raise it yet."""
    problem.__cause__ = cause
    return problem


# --- the end of the process -----------------------------------------------------------------------


@contextmanager
def set_by_signals(event: threading.Event) -> Iterator[None]:
    """Let SIGTERM and SIGINT only set the event, in this block, so that work in hand is finished.

    A handler runs in the main thread between any two steps of it, also where that thread is within
    `Event.wait` and holds its lock: `Event.set` would wait there for ever. So the handler puts the
    signal into a queue that may be entered again, and a thread sets the event.

    Call it in the main thread, which alone receives signals.
    """
    signals: SimpleQueue[int | None] = SimpleQueue()

    def set_event() -> None:
        if signals.get() is not None:
            event.set()

    threading.Thread(target=set_event, name="txmq-signals", daemon=True).start()
    # No line of the log: this thread may be within another one, and both would be lost.
    previous = {
        number: signal.signal(number, lambda caught, _frame: signals.put(caught))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signals.put(None)


def close_at_exit(close: Callable[[], object]) -> None:
    """Call a bound method when Python ends, unless its object is gone; the newest one first.

    Args:
        close: ends threads, or does nothing where they have ended.
    """
    _exits.add(close)


class _Exits:
    """What is closed when Python ends, in the process that made it; the newest first.

    A thread that is in native code when Python ends takes the process down with a signal.
    """

    def __init__(self) -> None:
        self._closers: list[tuple[int, weakref.WeakMethod[Callable[[], object]]]] = []
        self._lock, self._is_registered = threading.Lock(), False
        # Python ends only when who closes already has come to its end.
        self._closing = threading.Lock()

    def add(self, close: Callable[[], object]) -> None:
        with self._lock:
            self._closers = [(pid, ref) for pid, ref in self._closers if ref() is not None]
            self._closers.append((os.getpid(), weakref.WeakMethod(close)))
            if not self._is_registered:
                # Functions that are registered later run earlier: before those of libraries.
                atexit.register(self.close_all)
                self._is_registered = True

    def close_all(self) -> None:
        with self._closing:
            while self._closers:
                self._close(*self._closers.pop())

    def _close(self, pid: int, ref: weakref.WeakMethod[Callable[[], object]]) -> None:
        close = ref()
        if close is None or pid != os.getpid():
            return
        try:
            close()
        except BaseException:
            logger.exception("%r could not be closed at the end of the process", close)


_exits = _Exits()


# --- the end of spark-submit ----------------------------------------------------------------------

# Java, which spark-submit is, sets it in the environment of the Python process that it starts.
GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"
# There, Python has another parent than Java, and ends with its machine.
_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"
CONNECT_WAIT_S = 10.0
# So long a process whose Java has ended may take to stop what runs in it.
STOP_LIMIT_S = 60.0
# The processes that hold a connection, by their ids: whether Java still runs.
_java_runs: dict[int, bool] = {}


def end_with_spark_submit() -> None:
    """Let this process end when the Java process of spark-submit ends, which started it.

    A signal to spark-submit reaches Java alone. Python would go on for ever where it does not need
    Java: it would ask listeners and write fences by settings of yesterday. So a thread holds a
    connection to Java. When Java ends, by whatever, it breaks: then what runs here is stopped as at
    the end of Python, and after STOP_LIMIT_S the process ends under it.

    Does nothing in a process that spark-submit did not start, and at a second call.

    Raises: EnvironmentProblemError where Java has ended already.
    """
    port, pid = os.environ.get(GATEWAY_PORT), os.getpid()
    if not port or _java_runs.get(pid) or _DATABRICKS in os.environ:
        return
    try:
        gateway = socket.create_connection(("127.0.0.1", int(port)), CONNECT_WAIT_S)
    except (OSError, ValueError, OverflowError) as error:
        step = f"Submit the job again. A process that shall live without Java: unset {GATEWAY_PORT}"
        problem = f"spark-submit's Java process has ended: nobody listens at its port {port}"
        raise EnvironmentProblemError(problem, step) from error
    gateway.settimeout(None)
    _java_runs[pid] = True
    threading.Thread(target=_end_with, args=(gateway,), name="txmq-java", daemon=True).start()


def _end_with(gateway: socket.socket) -> None:
    """Wait for the end of Java, then stop all and end the process; nothing may keep it alive."""
    try:
        _wait_for_end(gateway)
        _java_runs[os.getpid()] = False
        logger.error("spark-submit's Java process has ended; this process stops and ends with it")
        threading.Thread(target=_exits.close_all, name="txmq-ending", daemon=True).start()
        time.sleep(STOP_LIMIT_S)
    finally:
        os._exit(1)


def _wait_for_end(gateway: socket.socket) -> None:
    try:
        while gateway.recv(1):
            pass
    except OSError:
        return
