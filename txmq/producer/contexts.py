"""Builds the contexts that a producer passes to its hooks (R89); without hooks it builds none."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

from txmq.listeners.hooks import (
    EndContext,
    Hooks,
    Operation,
    OperationName,
    RunningOperations,
    SendContext,
    sent_messages,
)
from txmq.message.ids import message_id
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import LocalTransactionState, Message
from txmq.message.names import namespace_of, unwrapped
from txmq.store.logs import Resolution


class Sending:
    """A send in progress. Call `done` once, before the caller of the send gets its result."""

    def __init__(self, hooks: Hooks, context: SendContext | None) -> None:
        """Start to measure the cost; `context` is None if there are no hooks."""
        self._hooks, self._context = hooks, context
        self._begun_s = time.monotonic()

    @property
    def carried(self) -> Mapping[str, str]:
        """The trace context that the messages shall carry."""
        return {} if self._context is None else self._context.carried

    def done(self, error: BaseException | None = None) -> None:
        """Tell the hooks that the send succeeded, or its error."""
        if self._context is not None:
            failure = error if isinstance(error, Exception) else None
            self._hooks.after_send(
                replace(self._context, cost_ms=_since_ms(self._begun_s), error=failure)
            )


@dataclass(frozen=True, slots=True)
class AskedEnd:
    """An end that a producer asks for.

    Attributes:
        messages: empty if this process does not have them.
        is_doubtful: the claim alone proves nothing; settled facts and halves are read too.
        is_old: retention may have removed its halves; then nothing is claimed.
        since: as in AskedEnds.
    """

    transaction_id: str
    asked: LocalTransactionState
    messages: Sequence[Message] = ()
    message_count: int | None = None
    is_doubtful: bool = False
    is_old: bool = False
    since: int | None = None

    @property
    def kind(self) -> ClaimKind:
        """The kind of claim that asks for this end."""
        return ClaimKind(self.asked.value)


class ProducerHooks:
    """Builds the contexts of one producer and calls its hooks. Safe for many threads."""

    def __init__(self, hooks: Hooks, producer_group: str) -> None:
        """`producer_group` is the stored name."""
        self._hooks = hooks
        # Most producers have no hooks, and each message asks.
        self._are_any = next(iter(hooks), None) is not None
        # Shared by all sends without a context.
        self.without_context = Sending(hooks, None)
        self._group, self._namespace = unwrapped(producer_group), namespace_of(producer_group)

    def __bool__(self) -> bool:
        """Whether a hook wants to hear anything now."""
        return self._are_any and bool(self._hooks)

    def begin_send(
        self,
        messages: Mapping[str, Sequence[Message]],
        *,
        ordinary: bool = False,
        dataframe_topics: Sequence[str] = (),
    ) -> Sending:
        """Call the hooks before the messages of these transactions are written.

        Raises: SendForbiddenError.
        """
        if not self._hooks:
            return self.without_context
        sent = (
            sent_messages(transaction_id, of_transaction, ordinary=ordinary)
            for transaction_id, of_transaction in messages.items()
        )
        context = SendContext(
            producer_group=self._group,
            namespace=self._namespace,
            transaction_ids=tuple(messages),
            messages=tuple(chain.from_iterable(sent)),
            dataframe_topics=tuple(unwrapped(topic) for topic in dataframe_topics),
        )
        carried = self._hooks.before_send(context)
        return Sending(self._hooks, replace(context, carried=carried) if carried else context)

    @contextmanager
    def sending(
        self, transaction_id: str, messages: Sequence[Message], dataframe_topics: Sequence[str] = ()
    ) -> Iterator[Sending]:
        """Call the hooks before and after one commit of halves.

        Raises: SendForbiddenError before the block runs.
        """
        sending = self.begin_send({transaction_id: messages}, dataframe_topics=dataframe_topics)
        try:
            yield sending
        except BaseException as error:
            sending.done(error)
            raise
        sending.done()

    def local_transaction(self, transaction_id: str, message: Message) -> RunningOperations:
        """Begin the local transaction of one message."""
        return self._hooks.operation(
            lambda: Operation(
                OperationName.LOCAL_TRANSACTION,
                unwrapped(message.topic),
                message_id(transaction_id, 0),
                transaction_id,
                group=self._group,
                namespace=self._namespace,
            )
        )

    def ended(
        self,
        end: AskedEnd,
        resolution: Resolution | None,
        error: BaseException | None = None,
        begun_s: float | None = None,
    ) -> None:
        """Tell the hooks of an end that was asked for; `resolution` is None if it is not known."""
        if not self._hooks:
            return
        self._hooks.ended(
            EndContext(
                producer_group=self._group,
                namespace=self._namespace,
                transaction_id=end.transaction_id,
                asked=end.asked,
                source=ClaimSource.PRODUCER.value if resolution is None else resolution.source,
                from_check=False,
                state=None if resolution is None else resolution.state,
                messages=sent_messages(end.transaction_id, end.messages),
                message_count=end.message_count,
                cost_ms=None if begun_s is None else _since_ms(begun_s),
                error=error if isinstance(error, Exception) else None,
            )
        )


def _since_ms(begun_s: float) -> float:
    return round((time.monotonic() - begun_s) * 1000, 3)
