"""Let one thread at a time use a consumer: others are refused, or wait."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

from txmq.delta.failures import process_id
from txmq.errors import ClosedError, ConcurrentUseError


class UseOfOneProcess:
    """Knows whether a consumer may be used: in the process that made it, until it is closed."""

    def __init__(self) -> None:
        """Bind the consumer to this process."""
        self._pid, self._is_closed = process_id(), False

    @property
    def is_over(self) -> bool:
        """Whether the consumer was closed, or this process is a fork of the one that made it."""
        return self._is_closed or self._pid != process_id()

    def check(self) -> None:
        """Refuse a consumer that may not be used. Raises: ClosedError."""
        if self.is_over:
            raise ClosedError("the consumer was closed, or its process was forked; make another")

    def close(self) -> None:
        """Let nobody in from now on."""
        self._is_closed = True


class ExclusiveUse(UseOfOneProcess):
    """Lets one thread at a time use a consumer, in the process that made it, until it is closed.

    Who uses it holds a token, and it is free once the token is gone. So an interrupt (Ctrl-C) at
    any step leaves it free: what a `with` statement holds goes with the statement, and to take and
    to release a lock are steps of C, within which no interrupt comes.

    Example:
        >>> use = ExclusiveUse()
        >>> with use.begin():
        ...     print("no other thread is here")
        no other thread is here
    """

    def __init__(self) -> None:
        """Bind the consumer to this process."""
        super().__init__()
        self._beginning = threading.Lock()
        self._token: weakref.ref[threading.Lock] | None = None

    def begin(self) -> threading.Lock:
        """Use the consumer as long as the caller holds the token, or until `end`.

        Raises: ClosedError; ConcurrentUseError if another thread uses it.
        """
        self.check()
        token = threading.Lock()
        try:
            if self._took_place(token):
                return token
        except BaseException:
            # The traceback of an interrupt holds the token, too.
            self.end(token)
            raise
        raise ConcurrentUseError

    def _took_place(self, token: threading.Lock) -> bool:
        with self._beginning:
            is_free = not self._is_taken
            self._token = weakref.ref(token) if is_free else self._token
        return is_free

    @property
    def _is_taken(self) -> bool:
        return self._token is not None and self._token() is not None

    def end(self, token: threading.Lock) -> None:
        """Let other threads in, if they wait for this token."""
        if self._token is not None and self._token() is token:
            self._token = None


class SharedUse(UseOfOneProcess):
    """Lets the threads of the process that made a consumer use it in turns, until it is closed."""

    def __init__(self) -> None:
        """Bind the consumer to this process."""
        super().__init__()
        self._turn = threading.RLock()

    @contextmanager
    def begin(self) -> Iterator[None]:
        """Wait for this thread's turn, and use the consumer. Raises: ClosedError."""
        # A thread that is not in the fork may have the turn.
        self.check()
        with self._turn:
            self.check()
            yield
