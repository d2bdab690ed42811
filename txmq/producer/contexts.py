"""Builds the contexts that a producer passes to its hooks (R89); without hooks it builds none."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Self

from txmq.ground.handles import raise_exit
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

logger = logging.getLogger(__name__)


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
        """Take the stored name of the group."""
        self._hooks = hooks
        # Most producers have no hooks, and each message asks.
        self._are_any = next(iter(hooks), None) is not None
        # Shared by all sends without a context.
        self.without_context = Sending(hooks, None)
        self._group, self._namespace = unwrapped(producer_group), namespace_of(producer_group)

    def __bool__(self) -> bool:
        """Tell whether a hook wants to hear anything now."""
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
        if self._hooks:
            _tell(partial(self._tell_end, end, resolution, error, begun_s))

    def _tell_end(
        self,
        end: AskedEnd,
        resolution: Resolution | None,
        error: BaseException | None,
        begun_s: float | None,
    ) -> None:
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


class Sending:
    """A send in progress. Its block ends, or `done` is called, before its caller has the result."""

    def __init__(self, hooks: Hooks, context: SendContext | None) -> None:
        """Start to measure the cost; `context` is None if there are no hooks."""
        self._hooks, self._context = hooks, context
        self._begun_s = time.monotonic()

    @property
    def carried(self) -> Mapping[str, str]:
        """The trace context that the messages shall carry."""
        return {} if self._context is None else self._context.carried

    def __enter__(self) -> Self:
        """Return the send; the end of the block tells the hooks."""
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        """Tell the hooks that the send succeeded, or the error that it ends with."""
        self.done(error)

    def done(self, error: BaseException | None = None) -> None:
        """Tell the hooks that the send succeeded, or its error."""
        if self._context is not None:
            _tell(partial(self._tell_end, self._context, error))

    def _tell_end(self, begun: SendContext, error: BaseException | None) -> None:
        failure = error if isinstance(error, Exception) else None
        self._hooks.after_send(replace(begun, cost_ms=_since_ms(self._begun_s), error=failure))


def _tell(tell: Callable[[], None]) -> None:
    """Tell hooks; whatever they raise, the caller gets the answer of what they watch.

    An exit of the process goes on in the main thread, as `Hooks` does it.
    """
    try:
        tell()
    except BaseException as error:
        raise_exit(error)
        logger.exception("a hook of a producer broke")


def _since_ms(begun_s: float) -> float:
    return round((time.monotonic() - begun_s) * 1000, 3)
