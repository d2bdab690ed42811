"""Let one thread at a time use a consumer."""

from __future__ import annotations

import threading

from txmq.delta.failures import process_id
from txmq.errors import ClosedError, ConcurrentUseError


class ExclusiveUse:
    """Lets one thread at a time use a consumer, in the process that made it, until it is closed.

    Example:
        >>> use = ExclusiveUse()
        >>> with use:
        ...     print("no other thread is here")
        no other thread is here
    """

    def __init__(self) -> None:
        """Bind the consumer to this process."""
        self._pid, self._is_closed, self._lock = process_id(), False, threading.Lock()

    @property
    def is_over(self) -> bool:
        """Whether the consumer was closed, or this process is a fork of the one that made it."""
        return self._is_closed or self._pid != process_id()

    def begin(self) -> None:
        """Use the consumer until `end`; also for a thread that hands the use to another thread.

        Raises: ClosedError; ConcurrentUseError if another thread uses it.
        """
        if self.is_over:
            raise ClosedError("the consumer was closed, or its process was forked; make another")
        if not self._lock.acquire(blocking=False):
            raise ConcurrentUseError

    def end(self) -> None:
        """Let other threads in."""
        self._lock.release()

    def close(self) -> None:
        """Let nobody in from now on."""
        self._is_closed = True

    def __enter__(self) -> None:
        """Begin, as `begin` does."""
        self.begin()

    def __exit__(self, *_: object) -> None:
        """End, as `end` does."""
        self.end()
