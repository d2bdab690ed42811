"""What the hooks of one producer are told (R89); where there are none, nothing is made."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain

from txmq.hooks import EndContext, Hooks, SendContext, sent_messages
from txmq.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import LocalTransactionState, Message
from txmq.message.names import namespace_of, unwrapped
from txmq.store.resolution import Resolution


class Sending:
    """A send on its way; `done` is called once, before its caller hears of it."""

    def __init__(self, hooks: Hooks, context: SendContext | None) -> None:
        """Its cost counts from now on; no context: nobody wants to know."""
        self._hooks, self._context = hooks, context
        self._begun_s = time.monotonic()

    def done(self, error: BaseException | None = None) -> None:
        """Tell how it went."""
        if self._context is not None:
            told = error if isinstance(error, Exception) else None
            self._hooks.after_send(
                replace(self._context, cost_ms=_since_ms(self._begun_s), error=told)
            )


@dataclass(frozen=True, slots=True)
class AskedEnd:
    """An end that a producer asks for; `messages` as far as they are known here."""

    transaction_id: str
    asked: LocalTransactionState
    messages: Sequence[Message] = ()
    message_count: int | None = None

    @property
    def kind(self) -> ClaimKind:
        """What is claimed."""
        return ClaimKind(self.asked.value)


class ProducerHooks:
    """Makes the contexts of one producer and tells them. Safe for many threads."""

    def __init__(self, hooks: Hooks, producer_group: str) -> None:
        """`producer_group` is the stored name."""
        self._hooks = hooks
        # Of all sends that nobody wants to hear of.
        self.untold = Sending(hooks, None)
        self._group, self._namespace = unwrapped(producer_group), namespace_of(producer_group)

    def __bool__(self) -> bool:
        """Whether anybody wants to know."""
        return bool(self._hooks)

    def begin_send(
        self,
        messages: Mapping[str, Sequence[Message]],
        *,
        ordinary: bool = False,
        dataframe_topics: Sequence[str] = (),
    ) -> Sending:
        """Before the messages of these transactions are written.

        Raises: SendForbiddenError.
        """
        if not self._hooks:
            return self.untold
        sent = (sent_messages(key, own, ordinary=ordinary) for key, own in messages.items())
        context = SendContext(
            producer_group=self._group,
            namespace=self._namespace,
            transaction_ids=tuple(messages),
            messages=tuple(chain.from_iterable(sent)),
            dataframe_topics=tuple(unwrapped(topic) for topic in dataframe_topics),
        )
        self._hooks.before_send(context)
        return Sending(self._hooks, context)

    @contextmanager
    def sending(
        self, transaction_id: str, messages: Sequence[Message], dataframe_topics: Sequence[str] = ()
    ) -> Iterator[None]:
        """Around one commit of halves. Raises: SendForbiddenError before the block runs."""
        sending = self.begin_send({transaction_id: messages}, dataframe_topics=dataframe_topics)
        try:
            yield
        except BaseException as error:
            sending.done(error)
            raise
        sending.done()

    def ended(
        self,
        end: AskedEnd,
        found: Resolution | None,
        error: BaseException | None = None,
        begun_s: float | None = None,
    ) -> None:
        """After an end was asked for: what it is, if that is known."""
        if not self._hooks:
            return
        self._hooks.ended(
            EndContext(
                producer_group=self._group,
                namespace=self._namespace,
                transaction_id=end.transaction_id,
                asked=end.asked,
                source=ClaimSource.PRODUCER.value if found is None else found.source,
                from_check=False,
                state=None if found is None else found.state,
                messages=sent_messages(end.transaction_id, end.messages),
                message_count=end.message_count,
                cost_ms=None if begun_s is None else _since_ms(begun_s),
                error=error if isinstance(error, Exception) else None,
            )
        )


def _since_ms(begun_s: float) -> float:
    return round((time.monotonic() - begun_s) * 1000, 3)
