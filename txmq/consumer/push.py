"""Pushes the messages of a member to a handler, and commits what was handled.

A thread pushes while it holds a lock, but for the calls of the handler. So another thread can give
up a call that hangs: it sends the message back and goes on with what is behind it.
"""

from __future__ import annotations

import enum
import inspect
import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from txmq.consumer.arguments import check_reads
from txmq.consumer.batch import Batch, ConsumeResult, QueueMessage
from txmq.consumer.exclusive_use import ProcessWatch
from txmq.consumer.group_reader import GroupReader
from txmq.errors import (
    ConfigError,
    ConsumerGroupConflictError,
    ConsumeTimeoutError,
    HandlerResultError,
    TxmqError,
    shown,
)
from txmq.ground.clock import Clock, elapsed_ms
from txmq.ground.handles import ThreadHandle, is_survivable
from txmq.message.json_body import adapter_of
from txmq.message.names import topic_in_namespace, unwrapped
from txmq.message.received import ReceivedMessage

# --- handler:

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


# --- push:

PUSH_MESSAGES = 256
PUSH_POLL_S = 0.2
FAILURE_PAUSE_S = 1.0
STOP_LOOK_S = 0.05
HANGING_LOOK_S = 0.2
# RocketMQ's consumeThreadMax: with so many calls that hang, the consumer ends.
HANGING_MAX = 20


class CallGivenUpError(Exception):
    """The handler came back after its call was given up; another thread pushes now."""


@dataclass(slots=True, eq=False)
class _Call:
    """One call of the handler."""

    batch: Batch
    message: ReceivedMessage
    begun_ms: int
    is_failed: bool = False


class MessagePush:
    """Gives the messages of a member to one handler, by one thread at a time.

    Args:
        reader: the messages of the member.
        handler: checked already.
        clock: measures how long a call takes.
        consume_timeout_s: a call that takes longer counts as a failure of its message.
    """

    def __init__(
        self, reader: GroupReader, handler: MessageHandler, clock: Clock, consume_timeout_s: float
    ) -> None:
        """Nothing is read yet."""
        self._reader, self._handler, self._clock = reader, handler, clock
        self._timeout_s = consume_timeout_s
        self._lock = threading.Lock()
        self._call: _Call | None = None
        self._hanging = 0
        self._given_up: Callable[[ConsumeResult], object] = self._leave
        self._watch: _HangingLook | None = None

    def drain(self) -> ConsumeResult:
        """Push all that is visible, then commit; see `PullConsumer.run_once`."""
        total = ConsumeResult()
        with self._lock:
            try:
                while messages := self._reader.poll(PUSH_MESSAGES, 0.0, is_all_handled=True):
                    total += self._drained(messages)
            finally:
                self.end()
                self._reader.commit()
        return total

    def _drained(self, messages: Sequence[QueueMessage]) -> ConsumeResult:
        batch = Batch(messages, self._reader.replays)
        try:
            self._push(batch, None)
        except CallGivenUpError:
            logger.info("a handler that took too long has come back; its message was sent back")
        return batch.result

    def turn(self, stopping: threading.Event) -> ConsumeResult:
        """Wait a moment for messages and push them, until `stopping` is set, also by the handler.

        Raises: CallGivenUpError where another thread has taken over.
        """
        with self._lock:
            messages = self._reader.poll(
                PUSH_MESSAGES, PUSH_POLL_S, stopping=stopping, is_all_handled=True
            )
            batch = Batch(messages, self._reader.replays)
            try:
                self._push(batch, stopping)
            except RunEndedError:
                # What was handled before counts.
                stopping.set()
            return batch.result

    def go_on_by(self, given_up: Callable[[ConsumeResult], object]) -> None:
        """Have this called after a call was given up; else the member leaves its group."""
        self._given_up = given_up

    def end(self) -> None:
        """No call is under way, or will be; stop looking for calls that hang."""
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.stop()

    # --- pushing ----------------------------------------------------------------------------

    def _push(self, batch: Batch, stopping: threading.Event | None) -> None:
        """Messages that were not handled, and cannot be sent back, are handed out again."""
        reader = self._reader
        try:
            while not (batch.is_done or (stopping is not None and stopping.is_set())):
                message = batch.next_message(reader.is_owned, reader.send_back)
                if message is not None:
                    self._serve(batch, message)
                if reader.is_commit_due:
                    batch.send_back(reader.send_back)
                    reader.commit(batch.unhandled())
            batch.send_back(reader.send_back)
        finally:
            # Who gave the call up has done this.
            if not batch.is_given_up:
                reader.give_again(batch.unhandled())

    def _serve(self, batch: Batch, message: ReceivedMessage) -> None:
        """Call the handler without the lock. Raises: CallGivenUpError."""
        reader = self._reader
        self._begin_watch()
        call = self._call = _Call(batch, message, elapsed_ms(self._clock))
        self._lock.release()
        try:
            failure = self._handler.failure_of(message)
        finally:
            self._lock.acquire()
            self._hanging -= batch.is_given_up
            self._call = self._call if batch.is_given_up else None
        if batch.is_given_up:
            raise CallGivenUpError
        # A message whose handler was interrupted is handed out again.
        if not call.is_failed:
            batch.finish(failure, reader.is_owned)

    # --- calls that hang --------------------------------------------------------------------

    def _begin_watch(self) -> None:
        if self._watch is None:
            self._watch = _HangingLook(self, min(HANGING_LOOK_S, self._timeout_s / 2))
            self._watch.begin()

    def give_up_hanging(self) -> None:
        """Give up the call that is under way, if it takes too long.

        Its message is sent back, offsets are committed up to it, and the rest is handed out again.
        """
        call = self._call
        if call is None or elapsed_ms(self._clock) - call.begun_ms < self._timeout_s * 1000:
            return
        # Where the lock is taken, the handler has come back meanwhile.
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._call is call:
                self._give_up(call)
        finally:
            self._lock.release()

    def _give_up(self, call: _Call) -> None:
        reader, batch = self._reader, call.batch
        if not call.is_failed:
            error = ConsumeTimeoutError(self._timeout_s)
            batch.finish(error, reader.is_owned)
            call.is_failed = True
            self._handler.report_aside(call.message, error)
        batch.send_back(reader.send_back)
        self._call, batch.is_given_up = None, True
        self._hanging += 1
        try:
            reader.commit(batch.unhandled())
        finally:
            reader.give_again(batch.unhandled())
            self._given_up(batch.result)

    def _leave(self, _: ConsumeResult) -> None:
        # The thread that hangs is the user's own: only other members can go on.
        self._reader.leave()

    @property
    def hangs_too_often(self) -> ConsumeTimeoutError | None:
        """The error that ends a consumer whose calls hang in too many threads."""
        return ConsumeTimeoutError(self._timeout_s) if self._hanging >= HANGING_MAX else None


class _HangingLook(ThreadHandle):
    """Looks for calls that hang, in a thread of its own."""

    def __init__(self, push: MessagePush, interval_s: float) -> None:
        super().__init__("consumer-hanging", interval_s, first_s=interval_s)
        self._push = push

    def _turn(self) -> None:
        try:
            self._push.give_up_hanging()
        except BaseException as error:
            if not is_survivable(error):
                raise
            logger.exception("a message whose handler hangs could not be sent back; trying again")


class ConsumerHandle(ThreadHandle):
    """A handler that is given messages until `stop()`.

    `stop()` returns after the call of the handler on its way: messages that were handled are
    committed (one commit), the others come again, and other threads may use the consumer.
    `is_alive` says whether the thread runs, `exception` which error ended it.

    Attributes:
        total: the messages that it was given so far.
    """

    def __init__(
        self, consumer_group: str, push: MessagePush, finish: Callable[[bool], object]
    ) -> None:
        """`PullConsumer.start` makes it: `finish` commits, and leaves the group after a failure."""
        self._stop_is_asked = threading.Event()
        super().__init__(f"consumer-{consumer_group}", 0.0, stopping=self._stop_is_asked)
        self._group, self._push, self._finish = consumer_group, push, finish
        self._taking_over = threading.Lock()
        self.total = ConsumeResult()
        push.go_on_by(self._go_on)

    def stop(self) -> None:
        """Stop after the call of the handler on its way, or after its consume timeout."""
        self._stopping.set()
        # Another thread may take over from one that hangs.
        while (thread := self._pushing()).is_alive():
            thread.join(STOP_LOOK_S)

    def stop_when(self, stopping: threading.Event) -> None:
        """Wait until `stopping` is set or the consumer has ended by itself, then `stop`."""
        while self.is_alive and not stopping.wait(HANGING_LOOK_S):
            pass
        self.stop()

    @property
    def is_alive(self) -> bool:
        """Whether a thread pushes messages."""
        return self._pushing().is_alive()

    def _pushing(self) -> threading.Thread:
        # One that takes over is alive once it has been started.
        with self._taking_over:
            return self._thread

    def _go_on(self, result: ConsumeResult) -> None:
        """Another thread takes over from one whose handler hangs."""
        self.total += result
        self._failure = self._push.hangs_too_often
        if self._failure is not None:
            self._stopping.set()
        with self._taking_over:
            self._thread = self._new_thread()
            self._thread.start()

    def _turns(self) -> None:
        try:
            super()._turns()
        except BaseException as error:
            # Another thread has taken over: this one has nothing to say any more.
            if threading.current_thread() is self._thread:
                raise
            logger.info("group %s: a call that was given up has ended: %r", self._group, error)

    def _turn(self) -> None:
        try:
            self.total += self._push.turn(self._stop_is_asked)
        except ConsumerGroupConflictError:
            raise
        except (TxmqError, OSError) as error:
            logger.error("group %s goes on after: %s", self._group, error)  # noqa: TRY400 - it says all
            self._stop_is_asked.wait(FAILURE_PAUSE_S)

    def _end(self) -> None:
        if threading.current_thread() is not self._thread:
            return
        self._push.end()
        try:
            self._finish(self._failure is not None)
        except (TxmqError, OSError) as error:
            logger.warning("the last messages come again: %s", error)


# --- handlers_by_topic:

Function = TypeVar("Function", bound=Callable[..., Any])


class HandlersByTopic:
    """Which function handles which topic of one consumer."""

    def __init__(
        self,
        topics: Collection[str],
        namespace: str | None = None,
        check: Callable[[str, object], None] = check_function,
    ) -> None:
        """No topic has a handler yet; `topics` are the stored names that the consumer reads."""
        self._topics, self._namespace, self._check = topics, namespace, check
        self._handlers: dict[str, Handler] = {}

    def on(self, topic: str, model: type[Any] | None) -> Callable[[Function], Function]:
        """See `PullConsumer.on`. Raises: InvalidNameError, ConfigError."""
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
        """A handler for all topics. Raises: ConfigError if one of them has none."""
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
