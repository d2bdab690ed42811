"""Calls a user's handler: what it may be, what it may return, and who hears of its failures."""

from __future__ import annotations

import enum
import inspect
import logging
import threading
from collections.abc import Callable

from txmq.consumer.process_watch import ProcessWatch
from txmq.errors import ConfigError, HandlerResultError, shown
from txmq.message.received import ReceivedMessage

logger = logging.getLogger(__name__)


class ConsumeStatus(enum.Enum):
    """What a handler returns for a message; RECONSUME_LATER sends it back (R107)."""

    SUCCESS = "SUCCESS"
    RECONSUME_LATER = "RECONSUME_LATER"


Handler = Callable[[ReceivedMessage], "ConsumeStatus | None"]
ErrorHook = Callable[[ReceivedMessage, BaseException], object]


class RunEndedError(BaseException):
    """Somebody ends the run: the message has not failed, and comes again."""


# Somebody ends the process or the thread with them; a Rust panic is no Exception either.
ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit, RunEndedError)
_LAZY = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)


def check_function(name: str, function: object) -> None:
    """Refuse what cannot be called, or does nothing when it is called. Raises: ConfigError."""
    check_callable(name, function)
    called = (function, type(function).__call__)
    if any(is_lazy(part) for is_lazy in _LAZY for part in called):
        problem = "is async or a generator, so a call of it does nothing; pass a plain function"
        advice = "or use AsyncPullConsumer"
        raise ConfigError([f"{name} {problem}, {advice}"])


def check_callable(name: str, function: object) -> None:
    """Refuse what cannot be called. Raises: ConfigError."""
    if not callable(function):
        raise ConfigError([f"{name} must be a function, not {shown(function)}"])


def checked_on_error(on_error: ErrorHook | None) -> ErrorHook | None:
    """The hook of failures, or None. Raises: ConfigError."""
    if on_error is not None:
        check_function("on_error", on_error)
    return on_error


class MessageHandler:
    """A handler of single messages with its hook for failures.

    A failure is logged with its traceback and the id of the message; txmq logs no body.
    """

    def __init__(
        self, handler: Handler, on_error: ErrorHook | None = None, watch: ProcessWatch | None = None
    ) -> None:
        """Check the handler; `watch` hears of each call. Raises: ConfigError."""
        check_function("handler", handler)
        self._handler, self._on_error = handler, on_error
        self._watch = watch or ProcessWatch()

    def failure_of(self, message: ReceivedMessage) -> str | BaseException | None:
        """Call the handler; why it failed on the message, None where it handled it.

        Raises: KeyboardInterrupt, SystemExit, GeneratorExit of the handler.
        """
        try:
            with self._watch.processing(message) as running:
                status: object = self._handler(message)
                if status is not None and status is not ConsumeStatus.SUCCESS:
                    running.answered(ConsumeStatus.RECONSUME_LATER.value)
        except ENDS:
            raise
        except BaseException as error:  # noqa: BLE001 - a handler may fail in any way
            self.report(message, error)
            return error
        if status is ConsumeStatus.RECONSUME_LATER:
            logger.info("%r comes again later", message)
            return ConsumeStatus.RECONSUME_LATER.value
        wrong = wrong_result(status)
        if wrong is None:
            return None
        self.report(message, wrong, logging.ERROR)
        return str(wrong)

    def report(
        self, message: ReceivedMessage, error: BaseException, level: int = logging.WARNING
    ) -> None:
        """Write a failure into the log, and hand it to the hook."""
        logger.log(level, "%r is sent back", message, exc_info=error)
        hand_out(self._on_error, message, error)

    def report_aside(self, message: ReceivedMessage, error: BaseException) -> None:
        """As `report`, but the hook has a thread of its own, so it may hang or exit."""
        arguments = (message, error, logging.ERROR)
        name = "txmq-consumer-on-error"
        threading.Thread(target=self._report_all, args=arguments, name=name, daemon=True).start()

    def _report_all(self, message: ReceivedMessage, error: BaseException, level: int) -> None:
        try:
            self.report(message, error, level)
        except ENDS:
            logger.exception("on_error ended its thread for %r", message)


def hand_out(on_error: ErrorHook | None, message: ReceivedMessage, error: BaseException) -> None:
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
    """The error for a result that is neither None nor a ConsumeStatus; None where it is right."""
    if status is None or isinstance(status, ConsumeStatus):
        return None
    if inspect.iscoroutine(status):
        # Else Python warns that nobody has awaited it.
        status.close()
    return HandlerResultError(status)
