"""Spans of OpenTelemetry for all operations of txmq: one trace from the producer to the consumer.

The context of the span of a send travels in the properties of its messages. What happens to them
later, in whichever process, becomes a child of that span.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from txmq.consumer.handlers import process_of
from txmq.errors import EnvironmentProblemError, step_for_extra
from txmq.listeners.hooks import (
    EndContext,
    Hooks,
    Operation,
    OperationName,
    RunningOperations,
    SendContext,
    SentMessage,
)
from txmq.message.message import LocalTransactionState
from txmq.store.topic_settings import TopicKind

if TYPE_CHECKING:
    from contextvars import Token

    from opentelemetry.context import Context
    from opentelemetry.trace import Span, SpanContext, Tracer, TracerProvider

    from txmq.message.received import ReceivedMessage


logger = logging.getLogger(__name__)

SCOPE = "txmq"
# Sends whose transaction has no end yet; the oldest ones are forgotten.
OPEN_MAX = 4_096
# A program may set up its SDK after its producers.
LOOK_INTERVAL_S = 1.0
# OpenTelemetry writes a traceback at each look that fails.
FAILED_LOOK_INTERVAL_S = 60.0
_NS_PER_MS = 1_000_000
_SEND = "send"
# What goes around code of the user, whose own spans become children.
_AROUND = (OperationName.LOCAL_TRANSACTION, OperationName.CHECK, OperationName.PROCESS)
_ENDS = {LocalTransactionState.COMMIT: "commit", LocalTransactionState.ROLLBACK: "rollback"}

Attributes = dict[str, str | int]


@dataclass(frozen=True, slots=True)
class _Sent:
    """A send whose transaction has no end yet.

    Attributes:
        span: while the send is on its way.
        done_ns: when the halves were durable.
        has_local: whether a span of its local transaction was made.
    """

    context: SpanContext
    attributes: Attributes
    span: Span | None = None
    done_ns: int = 0
    has_local: bool = False


class OpenTelemetryHook:
    """Makes spans of sends, local transactions, ends, checks, publishing and handlers.

    Give one to producers, brokers and consumers as `hooks=[...]`. Without an SDK it does nothing,
    and messages stay as they are. Nothing that it meets fails an operation. Safe for many threads.

    Args:
        tracer_provider: of OpenTelemetry's SDK; the global one by default, also one that is set
            later.

    Raises:
        EnvironmentProblemError: OpenTelemetry's API is not installed.

    Example:
        >>> hook = OpenTelemetryHook()
        >>> producer = TransactionProducer(store, producer_group="orders", hooks=[hook])
        >>> broker = Broker(store, hooks=[hook])
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        """Make no span yet."""
        check_installed()
        self._provider = tracer_provider
        self._is_on, self._is_broken, self._look_s = False, False, 0.0
        self._last_tracer: tuple[TracerProvider, Tracer] | None = None
        self._lock = threading.Lock()
        self._sent: OrderedDict[str, _Sent] = OrderedDict()
        self._hooks = Hooks([self])

    @property
    def is_on(self) -> bool:
        """Whether there is an SDK, as of a second ago; it is asked for before each operation."""
        if not self._is_on and time.monotonic() >= self._look_s:
            self._look()
        return self._is_on

    def processing(
        self, message: ReceivedMessage, consumer_group: str | None = None
    ) -> RunningOperations:
        """Return a span to run around the processing of a message that `poll` returned.

        Example:
            >>> for message in consumer.poll():
            ...     with hook.processing(message, "billing"):
            ...         bill(message)
        """
        return self._hooks.operation(lambda: process_of(message, consumer_group))

    # --- sends and ends -----------------------------------------------------------------------

    def before_send(self, context: SendContext) -> Mapping[str, str] | None:
        """Begin a span; its context goes with the messages."""
        from opentelemetry.trace import SpanKind, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        if not self.is_on:
            return None
        attributes = _of_send(context)
        span = self._tracer.start_span(
            _name(_SEND, attributes),
            kind=SpanKind.PRODUCER,
            attributes={**_operated(_SEND, _SEND), **attributes},
        )
        self._keep(context.transaction_ids[0], _Sent(span.get_span_context(), attributes, span))
        carried: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carried, set_span_in_context(span))
        return carried

    def after_send(self, context: SendContext) -> None:
        """End the span."""
        key = context.transaction_ids[0]
        sent = self._forget(key)
        if sent is None or sent.span is None:
            return
        _end(sent.span, context.error)
        if context.error is None and not _is_ordinary(context):
            self._keep(key, replace(sent, span=None, done_ns=time.time_ns()))

    def end_transaction(self, context: EndContext) -> None:
        """Make a span of a commit or rollback, and of the local transaction before it.

        The end that a check brings is told by the span of the check.
        """
        if not self.is_on or context.from_check or context.asked not in _ENDS:
            return
        # Without a known end the caller may ask for it again.
        take = self._known if context.state is None else self._forget
        sent = take(context.transaction_id)
        begun_ns = time.time_ns() - round((context.cost_ms or 0.0) * _NS_PER_MS)
        if sent is not None and not sent.has_local:
            self._local_transaction(sent, begun_ns)
        name = _ENDS[context.asked]
        attributes = _of_end(context) if sent is None else sent.attributes
        span = self._started(name, attributes, _parent(sent), begun_ns)
        if context.state is not None:
            span.set_attribute("txmq.outcome", context.state.value)
        _end(span, context.error)

    def _local_transaction(self, sent: _Sent, end_ns: int) -> None:
        """Make a span of what the caller did between `prepare()` and the end."""
        name = OperationName.LOCAL_TRANSACTION
        span = self._started(name, sent.attributes, _parent(sent), sent.done_ns)
        span.end(end_ns)

    # --- other operations ---------------------------------------------------------------------

    def begin_operation(self, operation: Operation) -> _Running | None:
        """Begin a span as a child of the send, or one that is over."""
        if not self.is_on:
            return None
        context = self._context_of(operation)
        span = self._started(operation.name, _of(operation), context, operation.begun_ns)
        is_around = operation.name in _AROUND and operation.begun_ns is None
        return _Running(span, is_around=is_around)

    def _context_of(self, operation: Operation) -> Context | None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        if operation.context:
            return TraceContextTextMapPropagator().extract(operation.context)
        if operation.name is not OperationName.LOCAL_TRANSACTION:
            return None
        sent = self._known(operation.transaction_id)
        if sent is not None:
            self._keep(operation.transaction_id, replace(sent, has_local=True))
        return _parent(sent)

    def _started(
        self, name: str, attributes: Attributes, context: Context | None, begun_ns: int | None
    ) -> Span:
        from opentelemetry.trace import Link, SpanKind, get_current_span

        is_process = name == OperationName.PROCESS
        kind = SpanKind.CONSUMER if is_process else SpanKind.INTERNAL
        sent = get_current_span(context).get_span_context()
        links = [Link(sent)] if is_process and context is not None and sent.is_valid else []
        operated = _operated(name, str(name) if is_process else None)
        return self._tracer.start_span(
            _name(name, attributes),
            context=context,
            kind=kind,
            attributes={**operated, **attributes},
            links=links,
            start_time=begun_ns,
        )

    def _look(self) -> None:
        from opentelemetry.trace import NoOpTracerProvider, ProxyTracerProvider

        self._look_s = time.monotonic() + LOOK_INTERVAL_S
        try:
            provider = self._tracers()
        except Exception as error:  # noqa: BLE001 - a setting may name a provider that is not there
            if not self._is_broken:
                logger.warning("OpenTelemetry has no provider: %s", type(error).__name__)
            self._is_broken, self._look_s = True, time.monotonic() + FAILED_LOOK_INTERVAL_S
            return
        self._is_on = not isinstance(provider, (NoOpTracerProvider, ProxyTracerProvider))

    # --- what it keeps ------------------------------------------------------------------------

    def _tracers(self) -> TracerProvider:
        from opentelemetry.trace import get_tracer_provider

        return self._provider or get_tracer_provider()

    @property
    def _tracer(self) -> Tracer:
        provider = self._tracers()
        last = self._last_tracer
        if last is None or last[0] is not provider:
            last = self._last_tracer = (provider, provider.get_tracer(SCOPE))
        return last[1]

    def _keep(self, transaction_id: str, sent: _Sent) -> None:
        with self._lock:
            self._sent[transaction_id] = sent
            if len(self._sent) > OPEN_MAX:
                self._sent.popitem(last=False)

    def _known(self, transaction_id: str) -> _Sent | None:
        with self._lock:
            return self._sent.get(transaction_id)

    def _forget(self, transaction_id: str) -> _Sent | None:
        with self._lock:
            return self._sent.pop(transaction_id, None)


class _Running:
    """A span, and whether it is the current one of its thread."""

    def __init__(self, span: Span, *, is_around: bool) -> None:
        self._span, self._token = span, _attached(span) if is_around else None

    def end(self, error: BaseException | None, outcome: str | None) -> None:
        """End the span."""
        from opentelemetry.context import detach

        if self._token is not None:
            detach(self._token)
        if outcome is not None:
            self._span.set_attribute("txmq.outcome", outcome)
        _end(self._span, error)


def check_installed() -> None:
    """Raise EnvironmentProblemError where OpenTelemetry's API is not installed."""
    try:
        import opentelemetry.metrics
        import opentelemetry.trace  # noqa: F401 - only whether it is there
    except ModuleNotFoundError as error:
        problem = "OpenTelemetry needs the package opentelemetry-api"
        raise EnvironmentProblemError(problem, step_for_extra("otel")) from error


def check_provider() -> None:
    """Raise EnvironmentProblemError where the settings name a provider that cannot be loaded."""
    from opentelemetry.trace import get_tracer_provider

    try:
        get_tracer_provider()
    except Exception as error:
        problem = f"OpenTelemetry's tracer provider cannot be loaded: {type(error).__name__}"
        step = "Correct or unset OTEL_PYTHON_TRACER_PROVIDER"
        raise EnvironmentProblemError(problem, step) from error


def _attached(span: Span) -> Token[Context]:
    from opentelemetry.context import attach
    from opentelemetry.trace import set_span_in_context

    return attach(set_span_in_context(span))


def _parent(sent: _Sent | None) -> Context | None:
    """Return the context of a send; None stands for the current span of the thread."""
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    return None if sent is None else set_span_in_context(NonRecordingSpan(sent.context))


def _end(span: Span, error: BaseException | None) -> None:
    """End a span; the text of an error may hold a body, so only its type is told."""
    from opentelemetry.trace import Status, StatusCode

    if error is not None:
        span.set_attribute("error.type", type(error).__qualname__)
        span.set_status(Status(StatusCode.ERROR))
    span.end()


# --- names and attributes, by the semantic conventions of messaging -------------------------------


def _name(operation: str, attributes: Attributes) -> str:
    topic = attributes.get("messaging.destination.name")
    return str(operation) if topic is None else f"{operation} {topic}"


def _operated(name: str, kind: str | None) -> Attributes:
    operated: Attributes = {"messaging.system": "txmq", "messaging.operation.name": str(name)}
    return operated if kind is None else {**operated, "messaging.operation.type": kind}


def _of_send(context: SendContext) -> Attributes:
    topics = {*context.dataframe_topics, *(message.topic for message in context.messages)}
    group, namespace = context.producer_group, context.namespace
    messages = () if context.dataframe_topics else context.messages
    return _of_messages(topics, context.transaction_ids, messages, group, namespace)


def _of_end(context: EndContext) -> Attributes:
    topics = {message.topic for message in context.messages}
    group, namespace = context.producer_group, context.namespace
    return _of_messages(topics, [context.transaction_id], context.messages, group, namespace)


def _of_messages(
    topics: set[str],
    transaction_ids: Sequence[str],
    messages: Sequence[SentMessage],
    group: str,
    namespace: str | None,
) -> Attributes:
    attributes: Attributes = {"txmq.producer.group": group}
    if len(transaction_ids) == 1:
        attributes["txmq.transaction.id"] = transaction_ids[0]
    if len(topics) == 1:
        attributes["messaging.destination.name"] = next(iter(topics))
    if len(messages) == 1:
        attributes["messaging.message.id"] = messages[0].message_id
    elif messages:
        attributes["messaging.batch.message_count"] = len(messages)
    return attributes if namespace is None else {**attributes, "txmq.namespace": namespace}


def _of(operation: Operation) -> Attributes:
    attributes: Attributes = {"txmq.transaction.id": operation.transaction_id}
    if operation.topic is not None:
        attributes["messaging.destination.name"] = operation.topic
    if operation.message_count == 1:
        attributes["messaging.message.id"] = operation.message_id
    else:
        attributes["messaging.batch.message_count"] = operation.message_count
    if operation.group is not None:
        is_process = operation.name is OperationName.PROCESS
        name = "messaging.consumer.group.name" if is_process else "txmq.producer.group"
        attributes[name] = operation.group
    if operation.namespace is not None:
        attributes["txmq.namespace"] = operation.namespace
    return attributes


def _is_ordinary(context: SendContext) -> bool:
    """Tell whether the transactions of a send have their ends already."""
    ordinary = (TopicKind.NORMAL, TopicKind.FIFO, TopicKind.DELAY)
    return bool(context.messages) and all(message.kind in ordinary for message in context.messages)
