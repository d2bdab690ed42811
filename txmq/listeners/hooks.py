"""Hooks around sends, ends and other operations (R89): calls whose failures harm nothing.

Names in a context are the user's names; the namespace is a field of its own. A context never
holds a message body.
"""

from __future__ import annotations

import enum
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from types import TracebackType
from typing import Any, Protocol, Self, cast

from txmq.errors import HookError, SendForbiddenError
from txmq.ground.handles import raise_exit
from txmq.message.ids import message_id
from txmq.message.lifecycle import TransactionState
from txmq.message.message import LocalTransactionState, Message
from txmq.message.names import unwrapped
from txmq.message.trace_context import checked_context
from txmq.store.topic_settings import TopicKind, kind_of

logger = logging.getLogger(__name__)
# Of the messages of one commit or one question, so many are told one by one.
TOLD_MAX = 128
# And for so long: slow hooks hold up the commits after it.
TOLD_S = 0.1
_ENDS = {
    LocalTransactionState.COMMIT: TransactionState.COMMITTED,
    LocalTransactionState.ROLLBACK: TransactionState.ROLLED_BACK,
}


class OperationName(enum.StrEnum):
    """The operations, by the names that spans begin with."""

    LOCAL_TRANSACTION = "local_transaction"
    CHECK = "check"
    PUBLISH = "publish"
    SCHEDULE = "schedule"
    PROCESS = "process"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation on messages of one transaction, or of one trace.

    Names are the user's names, without the namespace.

    Attributes:
        topic: where the messages go, or come from; None where the half holds no message.
        message_id: of the one message that it is about, or of the first.
        message_count: how many messages it is about.
        group: the producer group; of PROCESS the consumer group.
        context: the trace context in the properties of the messages.
        begun_ns: when it began, in nanoseconds since 1970-01-01 UTC, where it is over already; None
            where it begins now.
    """

    name: OperationName
    topic: str | None
    message_id: str
    transaction_id: str
    message_count: int = 1
    group: str | None = None
    namespace: str | None = None
    context: Mapping[str, str] = field(default_factory=dict)
    begun_ns: int | None = None


class RunningOperation(Protocol):
    """What a hook returns for an operation that it wants to see end."""

    def end(self, error: BaseException | None, outcome: str | None) -> None:
        """Hear of its end, once: with the error that it ended by, or with its answer."""
        ...


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
        transaction_ids: the transactions of the messages; an ordinary send may have several.
        messages: the messages that were sent one by one, without the rows of DataFrames.
        dataframe_topics: the topics that DataFrames of this transaction go to.
        carried: the trace context that a hook gave to its messages; empty before the send.
        cost_ms: how long the send took; None before the send.
        error: why the send failed; None before the send and after a success.
    """

    producer_group: str
    namespace: str | None
    transaction_ids: tuple[str, ...]
    messages: tuple[SentMessage, ...]
    dataframe_topics: tuple[str, ...] = ()
    carried: Mapping[str, str] = field(default_factory=dict)
    cost_ms: float | None = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class EndContext:
    """One claim that ends a transaction, after its effect is known.

    Attributes:
        messages: the messages; only the process that sent them knows them, elsewhere empty.
        message_count: how many messages there are; None where nobody counted them.
        asked: the answer of the producer or its listener; UNKNOWN also where none came in time.
        state: the real state of the transaction; None where it is unknown.
        source: who wrote the claim that led to `state`; where it is unknown, who wrote this claim.
        from_check: whether the check service or the recheck wrote the claim.
        reason: the reason that is stored with the claim.
        error: the error that the caller of commit or rollback gets, such as AlreadyResolvedError.
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
        """Whether the transaction has the end that was asked for; true where none was."""
        end = _ENDS.get(self.asked)
        return end is None or self.state is end


class SendMessageHook(Protocol):
    """Sees every send. An error that it raises is logged by its type; the send continues."""

    def before_send(self, context: SendContext) -> Mapping[str, str] | None:
        """Hear of a send before anything is written.

        Returns:
            None, or `traceparent` and perhaps `tracestate`, which each message gets as properties
            that has no `traceparent` yet, and room for them.
        """
        ...

    def after_send(self, context: SendContext) -> None:
        """Hear that the messages are durable, or with an `error` why they may not be."""
        ...


class EndTransactionHook(Protocol):
    """Sees every end. An error that it raises is logged by its type."""

    def end_transaction(self, context: EndContext) -> None:
        """Hear of an end once it is known; RocketMQ calls it before the end is written."""
        ...


class OperationHook(Protocol):
    """Sees the operations of all services begin and end; see `Operation`."""

    def begin_operation(self, operation: Operation) -> RunningOperation | None:
        """Hear of its begin; `end` of what this returns is called in the same thread."""
        ...


class CheckForbiddenHook(Protocol):
    """May veto a send."""

    def check_forbidden(self, context: SendContext) -> None:
        """Raise SendForbiddenError with a reason to refuse the send; other errors refuse too."""
        ...


Hook = SendMessageHook | EndTransactionHook | OperationHook | CheckForbiddenHook
_FORMS = (
    ("before_send", "after_send"),
    ("end_transaction",),
    ("begin_operation",),
    ("check_forbidden",),
)
_METHODS = (*chain.from_iterable(_FORMS), "flush")


class Hooks:
    """The hooks of one producer or service, called in their order; safe for several threads."""

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        """Check each of them. Raises: HookError for an object that is no hook."""
        self._hooks: tuple[Any, ...] = tuple(_several(hooks))
        for hook in self._hooks:
            _check(hook)
        # Some of them may want nothing now; each send asks.
        self._switched = [hook for hook in self._hooks if _has_switch(hook)]
        self._broken: set[type] = set()
        self._is_heard = len(self._switched) < len(self._hooks)
        self._by_method = {
            name: [hook for hook in self._hooks if _has(hook, name)] for name in _METHODS
        }

    def __iter__(self) -> Iterator[Hook]:
        """Iterate over the hooks themselves."""
        return iter(self._hooks)

    def __bool__(self) -> bool:
        """Tell whether a hook wants to hear anything now; without one no context is made."""
        return self._is_heard or (bool(self._switched) and any(map(self._is_on, self._switched)))

    @property
    def hear_ends(self) -> bool:
        """Whether a hook has `end_transaction`."""
        return any(map(self._is_on, self._by_method["end_transaction"]))

    @property
    def hear_operations(self) -> bool:
        """Whether a hook has `begin_operation`."""
        return any(map(self._is_on, self._by_method["begin_operation"]))

    def before_send(self, context: SendContext) -> Mapping[str, str]:
        """Ask the hooks whether the send is forbidden, then call their `before_send`.

        Returns: what the messages shall carry.

        Raises: SendForbiddenError.
        """
        for hook in self._by_method["check_forbidden"]:
            _ask(hook, context)
        carried = self._call_all("before_send", context)
        return next(filter(None, map(_context_of, carried)), {})

    def after_send(self, context: SendContext) -> None:
        """Call `after_send` of the hooks."""
        self._call_all("after_send", context)

    def ended(self, context: EndContext) -> None:
        """Call `end_transaction` of the hooks."""
        self._call_all("end_transaction", context)

    def operation(self, make: Callable[[], Operation]) -> RunningOperations:
        """Begin an operation: the end of a `with` block over it ends it, with its error.

        Args:
            make: makes it, and is not called if nobody hears of it.
        """
        if not self.hear_operations:
            return _NO_OPERATION
        try:
            operation = make()
        except BaseException as error:  # noqa: BLE001 - R89
            raise_exit(error)
            logger.warning("hooks hear of no operation: %s", type(error).__name__)
            return _NO_OPERATION
        return RunningOperations(self._call_all("begin_operation", operation))

    def over(self, operation: Operation, outcome: str | None = None) -> None:
        """Tell of an operation that is over already."""
        with self.operation(lambda: operation) as running:
            if outcome is not None:
                running.answered(outcome)

    def over_each(
        self,
        operations: Sequence[tuple[Operation, str | None]],
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Tell of operations that are over, with their answers, for up to TOLD_S; leave the rest.

        Args:
            operations: the first of them is told in any case.
            now_s: the time in seconds.
        """
        until_s = now_s() + TOLD_S
        for number, (operation, outcome) in enumerate(operations):
            if number and now_s() >= until_s:
                logger.debug("hooks are slow: %d operations are not told", len(operations) - number)
                return
            self.over(operation, outcome)

    def flush(self) -> None:
        """Call `flush` of the hooks that have it, so that they write what they collected."""
        for hook in self._by_method["flush"]:
            _call(hook, "flush")

    def _call_all(self, method: str, context: object) -> list[Any]:
        hooks = filter(self._is_on, self._by_method[method])
        return [_call(hook, method, context) for hook in hooks]

    def _is_on(self, hook: Any) -> bool:
        """Tell whether a hook wants to hear anything; one without `is_on` always does."""
        try:
            return bool(getattr(hook, "is_on", True))
        except BaseException as error:  # noqa: BLE001 - R89
            raise_exit(error)
            if type(hook) not in self._broken:
                self._broken.add(type(hook))
                _log_raised(hook, "is_on, so it is off", error)
            return False


class RunningOperations:
    """An operation as all hooks see it."""

    def __init__(self, running: Iterable[RunningOperation | None] = ()) -> None:
        """Begin nothing yet; `Hooks.operation` makes it."""
        self._running = [operation for operation in running if operation is not None]
        self._outcome: str | None = None

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End it."""
        self.end(error)

    def answered(self, outcome: str) -> None:
        """Keep its answer until the end."""
        # Where nobody hears of it, all threads share this object.
        if self._running:
            self._outcome = outcome

    def end(self, error: BaseException | None = None) -> None:
        """Tell the hooks, the last one first; never raises an Exception."""
        for running in reversed(self._running):
            _call(running, "end", error, self._outcome)


_NO_OPERATION = RunningOperations()


def sent_messages(
    transaction_id: str, messages: Iterable[Message], *, ordinary: bool = False
) -> tuple[SentMessage, ...]:
    """Return the messages of one transaction as a context holds them."""
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
    raise HookError(type(hooks).__name__, "is not in a list; pass a list of hooks")


def _check(hook: object) -> None:
    forms = [form for form in _FORMS if all(_has(hook, name) for name in form)]
    if isinstance(hook, type) or not forms:
        problem = (
            "must be an object with before_send and after_send, with end_transaction, with "
            "begin_operation or with check_forbidden, none of them async"
        )
        raise HookError(type(hook).__name__, problem)


def _has(hook: object, name: str) -> bool:
    # Nobody would await a coroutine.
    method = getattr(hook, name, None)
    return callable(method) and not inspect.iscoroutinefunction(method)


def _has_switch(hook: object) -> bool:
    try:
        return hasattr(hook, "is_on")
    except BaseException as error:  # noqa: BLE001 - R89
        raise_exit(error)
        return True


def _context_of(returned: object) -> Mapping[str, str]:
    """Check the trace context that a hook returned; log what is none, and leave it out."""
    if returned is None:
        return {}
    try:
        return checked_context(**cast("Mapping[str, str]", returned))
    except BaseException as error:  # noqa: BLE001 - R89
        raise_exit(error)
        logger.warning("a hook returned no traceparent and tracestate in before_send")
        return {}


def _ask(hook: Any, context: SendContext) -> None:
    try:
        hook.check_forbidden(context)
    except SendForbiddenError:
        raise
    except BaseException as error:
        raise_exit(error)
        # The text of the error may hold a body, so it stays in the cause.
        problem = f"{type(hook).__name__} raised {type(error).__name__}"
        raise SendForbiddenError(problem) from error


def _call(hook: object, method: str, *arguments: object) -> Any:
    try:
        return getattr(hook, method)(*arguments)
    except BaseException as error:  # noqa: BLE001 - R89
        # R89: a hook never holds up what it watches.
        raise_exit(error)
        _log_raised(hook, method, error)
        return None


def _log_raised(hook: object, where: str, error: BaseException) -> None:
    logger.warning("hook %s raised %s in %s", type(hook).__name__, type(error).__name__, where)
