"""What every service shares: a handle that stops between micro-batches, and says how it went."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Protocol

from txmq.errors import EnvironmentProblemError

STOP_WAIT_S = 120.0
STOP_POLL_S = 0.01


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


def _java_is_gone() -> tuple[type[Exception], ...]:
    """What a call to Spark raises when its Java has ended."""
    if find_spec("py4j") is None:
        return (OSError,)
    from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

    return OSError, Py4JNetworkError


def _without_java(cause: Exception) -> EnvironmentProblemError:
    problem = EnvironmentProblemError(
        "Spark's Java process has ended",
        "Start the service again; nothing is lost. Was it killed, or out of memory?",
    )
    problem.__cause__ = cause
    return problem


class StreamHandle:
    """A streaming query whose batches look at a stop flag."""

    def __init__(self, query: Any, stopping: threading.Event, after: Callable[[], None]) -> None:
        """`after` runs once, when the query has ended."""
        self._query = query
        self._stopping = stopping
        self._after = after

    def stop(self) -> None:
        """Stop between two micro-batches: inside one, `query.stop()` can overflow and hang."""
        self._stopping.set()
        deadline_s = time.monotonic() + STOP_WAIT_S
        while self.is_alive and not self._is_pausing() and time.monotonic() < deadline_s:
            time.sleep(STOP_POLL_S)
        if self.is_alive:
            self._query.stop()
        self._after()

    @property
    def is_alive(self) -> bool:
        """Whether the query still runs; without its Java it does not."""
        try:
            return bool(self._query.isActive)
        except _java_is_gone():
            return False

    @property
    def exception(self) -> BaseException | None:
        """Why the query ended, if it failed."""
        try:
            failure = self._query.exception()
        except _java_is_gone() as error:
            return _without_java(error)
        return failure if isinstance(failure, BaseException) else None

    def _is_pausing(self) -> bool:
        """Whether the query waits for its next trigger."""
        return not self._query.status["isTriggerActive"]
