"""What every service shares: a handle that stops between micro-batches, and says how it went."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Protocol

from txmq.errors import EnvironmentProblemError

STOP_WAIT_S = 120.0
STOP_POLL_S = 0.01
LOOK_INTERVAL_S = 0.2
# A query that breaks so often, each time sooner than that, is not healed by a new start.
BREAKS_MAX = 10
STEADY_S = 30.0

logger = logging.getLogger(__name__)


class ServiceHandle(Protocol):
    """A service that runs."""

    def stop(self) -> None:
        """End between two rounds; returns when nothing runs any more."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        ...

    @property
    def exception(self) -> BaseException | None:
        """Why it ended, if it failed."""
        ...


def forget_checkpoint(location: str) -> None:
    """Remove the checkpoint of one start; on an object store maintenance does it."""
    if "://" not in location:
        shutil.rmtree(location, ignore_errors=True)


def _is_without_java(error: Exception) -> bool:
    """Whether a call to Spark failed because its Java has ended, and not in Java."""
    if isinstance(error, OSError) or find_spec("py4j") is None:
        return isinstance(error, OSError)
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

    return isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)


def _without_java(cause: Exception) -> EnvironmentProblemError:
    problem = EnvironmentProblemError(
        "Spark's Java process has ended",
        "Start the service again; nothing is lost. Was it killed, or out of memory?",
    )
    problem.__cause__ = cause
    return problem


class ThreadHandle:
    """A service that is a loop in a thread of its own; a subclass says what a turn does."""

    def __init__(
        self,
        name: str,
        interval_s: float,
        *,
        first_s: float = 0.0,
        stopping: threading.Event | None = None,
    ) -> None:
        """`begin()` starts it when all is there that a turn needs; the first waits `first_s`."""
        self._name, self._interval_s, self._first_s = name, interval_s, first_s
        self._stopping = stopping or threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"txmq-{name}", daemon=True)

    def begin(self) -> None:
        """Run from now on."""
        self._thread.start()

    def stop(self) -> None:
        """End after the turn on its way; returns when nothing runs any more."""
        self._stopping.set()
        self._thread.join()

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._thread.is_alive()

    @property
    def exception(self) -> BaseException | None:
        """Why it ended, if it failed."""
        return self._failure

    def _turn(self) -> None:
        """What is done again and again, an interval apart."""
        raise NotImplementedError

    def _end(self) -> None:
        """What is done once, after the last turn."""

    def _run(self) -> None:
        pause_s = self._first_s
        try:
            while not self._stopping.wait(pause_s):
                self._turn()
                pause_s = self._interval_s
        except Exception as error:
            logger.exception("the %s service ends", self._name)
            self._failure = error
        finally:
            self._end()


class Running(ServiceHandle, Protocol):
    """What `Restarting` starts anew where it breaks."""

    def forget(self) -> None:
        """Throw away what is left of it once it has ended."""
        ...


class TurnHandle(ThreadHandle):
    """A function that is called again and again, each time as soon as it has returned."""

    def __init__(self, name: str, turn: Callable[[], None], stopping: threading.Event) -> None:
        """`begin()` starts it."""
        super().__init__(name, 0.0, stopping=stopping)
        self._called = turn

    def _turn(self) -> None:
        self._called()

    def forget(self) -> None:
        """A thread leaves nothing."""


class StreamHandle:
    """A streaming query whose batches look at a stop flag."""

    def __init__(
        self,
        query: Any,
        stopping: threading.Event,
        in_batch: threading.Lock,
        after: Callable[[], None],
    ) -> None:
        """A batch holds `in_batch`; `after` runs when the query and its last batch have ended."""
        self._query = query
        self._stopping = stopping
        self._in_batch = in_batch
        self._after = after

    def stop(self) -> None:
        """Stop between two micro-batches: inside one, `query.stop()` can overflow and hang."""
        self._stopping.set()
        deadline_s = time.monotonic() + STOP_WAIT_S
        while self.is_alive and not self._is_pausing() and time.monotonic() < deadline_s:
            time.sleep(STOP_POLL_S)
        if self.is_alive:
            self._query.stop()
        self.forget()

    def forget(self) -> None:
        """Throw away what is left of a query that has ended.

        Its last batch may go on in Python, as when Java was killed, and must not meet the end of
        the process: that ends by a signal.
        """
        if self._in_batch.acquire(timeout=STOP_WAIT_S):
            self._in_batch.release()
        self._after()

    @property
    def is_alive(self) -> bool:
        """Whether the query still runs; without its Java it does not."""
        try:
            return bool(self._query.isActive)
        except Exception as error:
            if _is_without_java(error):
                return False
            raise

    @property
    def exception(self) -> BaseException | None:
        """Why the query ended, if it failed."""
        try:
            failure = self._query.exception()
        except Exception as error:
            if _is_without_java(error):
                return _without_java(error)
            raise
        return failure if isinstance(failure, BaseException) else None

    def _is_pausing(self) -> bool:
        """Whether the query waits for its next trigger."""
        return not self._query.status["isTriggerActive"]


class Restarting(ThreadHandle):
    """A query, or a thread, that is started anew, with a new checkpoint, where it breaks.

    Checkpoints of services keep no promise, so one that was deleted, restored or damaged under a
    running query is a reason to begin another, and not to end the service.
    """

    def __init__(
        self,
        start: Callable[[], Running],
        stopping: threading.Event,
        is_final: Callable[[BaseException | None], bool],
    ) -> None:
        """Start at once; `is_final` says which failures no new start can heal."""
        super().__init__("query", LOOK_INTERVAL_S, first_s=LOOK_INTERVAL_S, stopping=stopping)
        self._start, self._is_final = start, is_final
        self._breaks, self._since_s = 0, time.monotonic()
        self._running = self._started()
        self.begin()

    def stop(self) -> None:
        """End between two micro-batches; returns when nothing runs any more."""
        super().stop()
        self._running.stop()

    @property
    def is_alive(self) -> bool:
        """Whether a query runs, or is about to be started anew."""
        return super().is_alive or (self._failure is None and self._running.is_alive)

    @property
    def exception(self) -> BaseException | None:
        """Why it ended, or is about to, if it failed."""
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
        """A query that runs; a checkpoint that is deleted while it starts is one more break."""
        while True:
            try:
                return self._start()
            except Exception as error:
                failure = _without_java(error) if _is_without_java(error) else error
                if self._stopping.wait(LOOK_INTERVAL_S):
                    raise
                self._note_break(failure)

    def _note_break(self, failure: BaseException | None) -> None:
        """Raise where it breaks too often, or no new start can heal it."""
        steady = time.monotonic() - self._since_s > STEADY_S
        self._breaks, self._since_s = 1 if steady else self._breaks + 1, time.monotonic()
        if self._is_final(failure) or self._breaks > BREAKS_MAX:
            raise failure or _ended_by_itself()
        logger.error("a query broke and is started anew: %s", failure)


def _ended_by_itself() -> EnvironmentProblemError:
    return EnvironmentProblemError("the query was ended by others", "Start the service again.")
