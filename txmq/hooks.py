"""Hooks around sends and ends (R89): what they are told, and that they can harm neither.

Names in a context are the user's own; the namespace stands beside them. Bodies are never told.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from txmq.errors import HookError, SendForbiddenError
from txmq.lifecycle import TransactionState
from txmq.message.ids import message_id
from txmq.message.message import LocalTransactionState, Message
from txmq.message.names import unwrapped
from txmq.store.topic_settings import TopicKind, kind_of

logger = logging.getLogger(__name__)

_ENDS = {
    LocalTransactionState.COMMIT: TransactionState.COMMITTED,
    LocalTransactionState.ROLLBACK: TransactionState.ROLLED_BACK,
}


@dataclass(frozen=True, slots=True)
class SentMessage:
    """One message of a send, without its body."""

    message_id: str
    topic: str
    tags: str | None
    keys: str | None
    body_size_bytes: int
    kind: TopicKind


@dataclass(frozen=True, slots=True)
class SendContext:
    """One call that makes messages durable: `prepare()` or `send()`.

    Attributes:
        transaction_ids: what the messages belong to; an ordinary send may be several.
        messages: those sent one by one; rows of a DataFrame are not among them.
        dataframe_topics: where the DataFrames of this transaction go.
        cost_ms: None before the send.
        error: why it failed; None before the send, and where it did not.
    """

    producer_group: str
    namespace: str | None
    transaction_ids: tuple[str, ...]
    messages: tuple[SentMessage, ...]
    dataframe_topics: tuple[str, ...] = ()
    cost_ms: float | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class EndContext:
    """One claim that ends a transaction, after it is known what came of it.

    Attributes:
        messages: known to the process that sent them; elsewhere empty.
        message_count: None where it was not looked up.
        asked: what the producer or its listener said; UNKNOWN also where nobody knew in time.
        state: the state that the transaction really has; None where it is not known.
        source: who brought that state about, or who asked where it is not known.
        from_check: whether the check service or the recheck wrote the claim.
        reason: kept with the claim.
        error: what the caller of commit or rollback gets, such as AlreadyResolvedError.
    """

    producer_group: str
    namespace: str | None
    transaction_id: str
    asked: LocalTransactionState
    source: str
    from_check: bool
    state: TransactionState | None = None
    messages: tuple[SentMessage, ...] = ()
    message_count: int | None = None
    reason: str | None = None
    cost_ms: float | None = None
    error: Exception | None = None

    @property
    def is_as_asked(self) -> bool:
        """Whether it has the end that was asked for; true also where none was."""
        wanted = _ENDS.get(self.asked)
        return wanted is None or self.state is wanted


class SendMessageHook(Protocol):
    """Sees every send; what it raises is logged by type, and the send goes on."""

    def before_send(self, context: SendContext) -> None:
        """Called before anything is written."""
        ...

    def after_send(self, context: SendContext) -> None:
        """Called when the messages are durable, or `context.error` says why they may not be."""
        ...


class EndTransactionHook(Protocol):
    """Sees every end; what it raises is logged by type."""

    def end_transaction(self, context: EndContext) -> None:
        """Called when the end is known (RocketMQ: before it is asked for)."""
        ...


class CheckForbiddenHook(Protocol):
    """May veto a send."""

    def check_forbidden(self, context: SendContext) -> None:
        """Raise to refuse the send; SendForbiddenError with a reason for its caller."""
        ...


Hook = SendMessageHook | EndTransactionHook | CheckForbiddenHook
_FORMS = (("before_send", "after_send"), ("end_transaction",), ("check_forbidden",))
_METHODS = (*chain.from_iterable(_FORMS), "flush")


class Hooks:
    """The hooks of one producer or service, called in their order; safe for many threads."""

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        """Raise HookError for what is no hook."""
        self._hooks: tuple[Any, ...] = tuple(_several(hooks))
        for hook in self._hooks:
            _check(hook)
        self._by_method = {
            name: [hook for hook in self._hooks if _has(hook, name)] for name in _METHODS
        }

    def __iter__(self) -> Iterator[Hook]:
        """The hooks themselves."""
        return iter(self._hooks)

    def __bool__(self) -> bool:
        """Whether there are any; without one no context is made."""
        return bool(self._hooks)

    @property
    def hear_ends(self) -> bool:
        """Whether any hook wants to know how transactions end."""
        return bool(self._by_method["end_transaction"])

    def before_send(self, context: SendContext) -> None:
        """Ask whether it is forbidden, then tell that it begins.

        Raises: SendForbiddenError.
        """
        for hook in self._by_method["check_forbidden"]:
            _ask(hook, context)
        self._tell("before_send", context)

    def after_send(self, context: SendContext) -> None:
        """Tell how a send went."""
        self._tell("after_send", context)

    def ended(self, context: EndContext) -> None:
        """Tell of an end that is known."""
        self._tell("end_transaction", context)

    def flush(self) -> None:
        """Let hooks that keep something write it, where they have `flush()`."""
        for hook in self._by_method["flush"]:
            _call(hook, "flush")

    def _tell(self, method: str, context: SendContext | EndContext) -> None:
        for hook in self._by_method[method]:
            _call(hook, method, context)


def sent_messages(
    transaction_id: str, messages: Iterable[Message], *, ordinary: bool = False
) -> tuple[SentMessage, ...]:
    """The messages of one transaction as a hook is told of them."""
    return tuple(
        SentMessage(
            message_id(transaction_id, sequence),
            unwrapped(message.topic),
            message.tags,
            message.joined_keys,
            message.body_size_bytes,
            kind_of(
                is_transactional=not ordinary,
                is_delayed=message.is_delayed,
                has_sharding_key=message.sharding_key is not None,
            ),
        )
        for sequence, message in enumerate(messages)
    )


def _several(hooks: object) -> Iterable[object]:
    if isinstance(hooks, Iterable) and not isinstance(hooks, str | bytes):
        return hooks
    raise HookError(type(hooks).__name__, "is given alone; pass a list of hooks")


def _check(hook: object) -> None:
    forms = [form for form in _FORMS if all(_has(hook, name) for name in form)]
    if isinstance(hook, type) or not forms:
        problem = (
            "must be an object with before_send and after_send, with end_transaction or with "
            "check_forbidden, none of them async"
        )
        raise HookError(type(hook).__name__, problem)


def _has(hook: object, name: str) -> bool:
    # A coroutine would never run.
    method = getattr(hook, name, None)
    return callable(method) and not inspect.iscoroutinefunction(method)


def _ask(hook: Any, context: SendContext) -> None:
    try:
        hook.check_forbidden(context)
    except SendForbiddenError:
        raise
    except Exception as error:
        # Its text may hold a body; whoever wants it finds the error itself as the cause.
        problem = f"{type(hook).__name__} raised {type(error).__name__}"
        raise SendForbiddenError(problem) from error


def _call(hook: object, method: str, *arguments: object) -> None:
    try:
        getattr(hook, method)(*arguments)
    except Exception as error:  # noqa: BLE001 - R89: a hook never holds up what it watches
        kind, raised = type(hook).__name__, type(error).__name__
        logger.warning("hook %s raised %s in %s", kind, raised, method)
