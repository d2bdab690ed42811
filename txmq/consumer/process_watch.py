"""Tells hooks of the messages that a handler processes."""

from __future__ import annotations

from txmq.hooks import Hooks, RunningOperations
from txmq.message.received import ReceivedMessage
from txmq.message.trace_context import context_of
from txmq.operations import Operation, OperationName


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
