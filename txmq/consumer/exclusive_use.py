"""One thread at a time may use a consumer."""

from __future__ import annotations

import threading

from txmq.delta.failures import process_id
from txmq.errors import ClosedError, ConcurrentUseError
from txmq.listeners.hooks import Hooks, Operation, OperationName, RunningOperations
from txmq.message.received import ReceivedMessage
from txmq.message.trace_context import context_of

# --- exclusive_use:


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

        Raises: ClosedError; ConcurrentUseError where another thread uses it.
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
        """As `begin`."""
        self.begin()

    def __exit__(self, *_: object) -> None:
        """As `end`."""
        self.end()


# --- process_watch:


class ProcessWatch:
    """The hooks of one consumer."""

    def __init__(
        self, hooks: Hooks | None = None, group: str | None = None, namespace: str | None = None
    ) -> None:
        """`group` is the consumer group, as the user calls it."""
        self._hooks = Hooks() if hooks is None else hooks
        self._group, self._namespace = group, namespace

    def processing(self, message: ReceivedMessage) -> RunningOperations:
        """Begin the call of a handler."""
        return self._hooks.operation(lambda: process_of(message, self._group, self._namespace))


def process_of(
    message: ReceivedMessage, group: str | None = None, namespace: str | None = None
) -> Operation:
    """What a handler does with a message; of a retry it is told under its first topic."""
    return Operation(
        OperationName.PROCESS,
        message.origin_topic,
        message.message_id,
        message.transaction_id,
        group=group,
        namespace=namespace,
        context=context_of(message.properties),
    )
