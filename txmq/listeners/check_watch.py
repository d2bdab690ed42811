"""Tells hooks of the questions that a listener is asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from txmq.hooks import Hooks, RunningOperations
from txmq.message.names import namespace_of, unwrapped
from txmq.message.trace_context import context_of
from txmq.operations import TOLD_MAX, Operation, OperationName

if TYPE_CHECKING:
    import pyarrow as pa

    from txmq.listeners.protocol import HalfMessage

_NEEDED = ("transaction_id", "message_id", "topic", "properties")


class CheckWatch:
    """The hooks of who asks the listener of one group."""

    def __init__(self, group: str, hooks: Hooks | None = None) -> None:
        """`group` is the stored name."""
        self._hooks = Hooks() if hooks is None else hooks
        self._group, self._namespace = unwrapped(group), namespace_of(group)

    def question(self, half: HalfMessage) -> RunningOperations:
        """Begin a question about one half."""
        return self._hooks.operation(
            lambda: self._operation(
                half.transaction_id, half.message_id, half.topic, half.properties
            )
        )

    def questions(self, heads: pa.Table, outcomes: pa.Table, begun_ns: int) -> None:
        """Tell of one question about many halves: of the first TOLD_MAX ones, in TOLD_S.

        Args:
            heads: what the listener got; where a column is missing that is needed, nothing is told.
            outcomes: OUTCOMES.
        """
        if not (self._hooks.hear_operations and set(_NEEDED) <= {*heads.column_names}):
            return
        ids, states = (outcomes[name].to_pylist() for name in ("transaction_id", "state"))
        answers = dict(zip(ids, states, strict=True))
        told = self._operations(heads.slice(0, TOLD_MAX), begun_ns)
        self._hooks.over_each([(one, answers[one.transaction_id]) for one in told])

    def _operations(self, heads: pa.Table, begun_ns: int) -> Iterator[Operation]:
        for row in heads.select(_NEEDED).to_pylist():
            yield self._operation(**row, begun_ns=begun_ns)

    def _operation(
        self,
        transaction_id: str,
        message_id: str,
        topic: str | None,
        properties: Mapping[str, str] | Iterable[tuple[str, str]] | None,
        begun_ns: int | None = None,
    ) -> Operation:
        return Operation(
            OperationName.CHECK,
            topic,
            message_id,
            transaction_id,
            group=self._group,
            namespace=self._namespace,
            context=context_of(properties),
            begun_ns=begun_ns,
        )
