"""Handlers of messages: what may be one, what becomes of a call, and which topic is whose."""

from __future__ import annotations

import enum
import inspect
import logging
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

from txmq.consumer.arguments import check_reads
from txmq.errors import ConfigError, HandlerResultError, shown
from txmq.listeners.hooks import Hooks, Operation, OperationName, RunningOperations
from txmq.message.json_body import adapter_of
from txmq.message.names import topic_in_namespace, unwrapped
from txmq.message.received import ReceivedMessage
from txmq.message.trace_context import context_of

logger = logging.getLogger(__name__)


class ConsumeStatus(enum.Enum):
    """What a handler returns for a message.

    RECONSUME_LATER sends it back (R107), or has it tried again in its place where the group keeps
    order. SUSPEND_CURRENT_QUEUE_A_MOMENT is RocketMQ's name for the same in order.
    """

    SUCCESS = "SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "SUSPEND_CURRENT_QUEUE_A_MOMENT"


Handler = Callable[[ReceivedMessage], "ConsumeStatus | None"]
ListHandler = Callable[[list[ReceivedMessage]], "ConsumeStatus | None"]
Function = TypeVar("Function", bound=Callable[..., Any])
ErrorHook = Callable[[ReceivedMessage, BaseException], object]


class RunEndedError(BaseException):
    """Somebody ends the run: the message has not failed, and comes again."""


# Somebody ends the process or the thread with them; a Rust panic is no Exception either.
ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit, RunEndedError)
_GENERATORS = (inspect.isasyncgenfunction, inspect.isgeneratorfunction)


def check_function(name: str, function: object) -> None:
    """Refuse what cannot be called, or does nothing when it is called. Raises: ConfigError."""
    _check_callable(name, function)
    if _is_any_of(function, (inspect.iscoroutinefunction, *_GENERATORS)):
        problem = "is async or a generator, so a call of it does nothing; pass a plain function"
        advice = "or use AsyncPullConsumer"
        raise ConfigError([f"{name} {problem}, {advice}"])


def check_async_function(name: str, function: object) -> None:
    """Refuse what cannot be called, or is a generator. Raises: ConfigError."""
    _check_callable(name, function)
    if _is_any_of(function, _GENERATORS):
        problem = "is a generator, so a call of it does nothing; pass a function"
        raise ConfigError([f"{name} {problem}, plain or async"])


def _check_callable(name: str, function: object) -> None:
    if not callable(function):
        raise ConfigError([f"{name} must be a function, not {shown(function)}"])


def _is_any_of(function: object, kinds: Iterable[Callable[[object], bool]]) -> bool:
    """Tell whether a function, or an object that can be called, is of one of these kinds."""
    return any(is_kind(part) for is_kind in kinds for part in (function, type(function).__call__))


def checked_on_error(on_error: ErrorHook | None) -> ErrorHook | None:
    """Check the hook of failures, or None. Raises: ConfigError."""
    if on_error is not None:
        check_function("on_error", on_error)
    return on_error


class MessageHandler:
    """A handler of messages with its hook for failures.

    A failure is logged with its traceback and the ids of the messages; txmq logs no body.
    """

    def __init__(
        self,
        handler: Handler | ListHandler,
        on_error: ErrorHook | None = None,
        watch: ProcessWatch | None = None,
        *,
        batch_max_size: int | None = None,
    ) -> None:
        """Check the handler; `watch` hears of each call. Raises: ConfigError.

        With `batch_max_size` it is called with lists of so many messages at most.
        """
        check_function("handler", handler)
        self._handler: Callable[[Any], object] = handler
        self._on_error, self._gets_lists = on_error, batch_max_size is not None
        self._watch, self.batch_max_size = watch or ProcessWatch(), batch_max_size or 1

    def failure_of(self, messages: Sequence[ReceivedMessage]) -> str | BaseException | None:
        """Call the handler; return why it failed on the messages, or None if it handled them.

        Raises: KeyboardInterrupt, SystemExit, GeneratorExit of the handler.
        """
        try:
            with self._watch.processing(messages[0]) as running:
                status: object = self._handler([*messages] if self._gets_lists else messages[0])
                if status is not None and status is not ConsumeStatus.SUCCESS:
                    running.answered(ConsumeStatus.RECONSUME_LATER.value)
        except ENDS:
            raise
        except BaseException as error:  # noqa: BLE001 - a handler may fail in any way
            self.report(messages, error)
            return error
        if isinstance(status, ConsumeStatus) and status is not ConsumeStatus.SUCCESS:
            logger.info("%s comes again later", _named(messages))
            return str(status.value)
        wrong = wrong_result(status)
        if wrong is None:
            return None
        self.report(messages, wrong, logging.ERROR)
        return str(wrong)

    def report(
        self,
        messages: Sequence[ReceivedMessage],
        error: BaseException,
        level: int = logging.WARNING,
    ) -> None:
        """Write a failure into the log, and call the hook with it for each message."""
        logger.log(level, "%s is sent back", _named(messages), exc_info=error)
        for message in messages:
            call_on_error(self._on_error, message, error)

    def report_aside(self, messages: Sequence[ReceivedMessage], error: BaseException) -> None:
        """Report as `report` does, but in a thread of its own, so the hook may hang or exit."""
        arguments = (messages, error, logging.ERROR)
        name = "txmq-consumer-on-error"
        threading.Thread(target=self._report_all, args=arguments, name=name, daemon=True).start()

    def _report_all(
        self, messages: Sequence[ReceivedMessage], error: BaseException, level: int
    ) -> None:
        try:
            self.report(messages, error, level)
        except ENDS:
            logger.exception("on_error ended its thread for %s", _named(messages))


def _named(messages: Sequence[ReceivedMessage]) -> str:
    more = f" and {len(messages) - 1:,} behind it" if len(messages) > 1 else ""
    return f"{messages[0]!r}{more}"


def call_on_error(
    on_error: ErrorHook | None, message: ReceivedMessage, error: BaseException
) -> None:
    """Call the hook of failures; what it raises is logged."""
    if on_error is None:
        return
    try:
        on_error(message, error)
    except ENDS:
        raise
    except BaseException:
        logger.exception("on_error failed for %r", message)


def wrong_result(status: object) -> HandlerResultError | None:
    """Return the error of a result that is neither None nor a ConsumeStatus; else None."""
    if status is None or isinstance(status, ConsumeStatus):
        return None
    if inspect.iscoroutine(status):
        # Else Python warns that nobody has awaited it.
        status.close()
    return HandlerResultError(status)


class ProcessWatch:
    """Tells the hooks of one consumer of each call of its handler."""

    def __init__(
        self, hooks: Hooks | None = None, group: str | None = None, namespace: str | None = None
    ) -> None:
        """Tell of a consumer group by the name that the user calls it."""
        self._hooks = Hooks() if hooks is None else hooks
        self._group, self._namespace = group, namespace

    def processing(self, message: ReceivedMessage) -> RunningOperations:
        """Begin the call of a handler."""
        return self._hooks.operation(lambda: process_of(message, self._group, self._namespace))


def process_of(
    message: ReceivedMessage, group: str | None = None, namespace: str | None = None
) -> Operation:
    """Describe the call of a handler for hooks; a retry is described under its first topic."""
    return Operation(
        OperationName.PROCESS,
        message.origin_topic,
        message.message_id,
        message.transaction_id,
        group=group,
        namespace=namespace,
        context=context_of(message.properties),
    )


class HandlersByTopic:
    """The handlers of one consumer, by topic."""

    def __init__(
        self,
        topics: Collection[str],
        namespace: str | None = None,
        check: Callable[[str, object], None] = check_function,
    ) -> None:
        """Begin without a handler; `topics` are the stored names that the consumer reads."""
        self._topics, self._namespace, self._check = topics, namespace, check
        self._handlers: dict[str, Handler] = {}

    def on(self, topic: str, model: type[Any] | None) -> Callable[[Function], Function]:
        """Return the decorator of `PullConsumer.on`. Raises: InvalidNameError, ConfigError."""
        stored = topic_in_namespace(topic, self._namespace)
        check_reads(stored, self._topics)
        return lambda function: self._add(topic, stored, function, model)

    def _add(
        self, topic: str, stored: str, function: Function, model: type[Any] | None
    ) -> Function:
        count, names = (1, "the message") if model is None else (2, "the body and the message")
        self._check("a handler", function)
        if not _takes(function, count):
            problem = f"the handler of {topic} must take {count} arguments, {names}"
            raise ConfigError([f"{problem}, not {inspect.signature(function)}"])
        if stored in self._handlers:
            raise ConfigError([f"topic {shown(topic)} has a handler already; give it one function"])
        self._handlers[stored] = function if model is None else _of_model(function, model)
        return function

    def handler(self) -> Handler:
        """Return a handler for all topics. Raises: ConfigError if one of them has none."""
        missing = sorted(
            unwrapped(name, self._namespace) for name in {*self._topics} - {*self._handlers}
        )
        if missing:
            problem = f"no handler for {', '.join(missing)}"
            raise ConfigError([f"{problem}; pass one, or add one with consumer.on(topic)"])
        return self._handle

    def _handle(self, message: ReceivedMessage) -> ConsumeStatus | None:
        # A retry comes from the group's own topic.
        handler = self._handler_of(message.topic) or self._handler_of(message.origin_topic)
        if handler is None:
            problem = f"no handler for {shown(message.origin_topic)}, of which a retry has come"
            next_step = "read that topic again, with a handler, until none of its retries waits"
            raise ConfigError([f"{problem}; {next_step}"])
        return handler(message)

    def _handler_of(self, topic: str) -> Handler | None:
        return self._handlers.get(topic_in_namespace(topic, self._namespace))


def _of_model(function: Callable[..., Any], model: type[Any]) -> Handler:
    # What cannot be a model is refused now, and not at the first message.
    adapter_of(model)

    def handle(message: ReceivedMessage) -> ConsumeStatus | None:
        answer: ConsumeStatus | None = function(message.json(model), message)
        return answer

    return handle


def _takes(function: Callable[..., Any], count: int) -> bool:
    try:
        inspect.signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        # Built-in functions may have no signature.
        return True
    return True
