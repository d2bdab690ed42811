"""Handlers of single topics, one function each."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from txmq.consumer.arguments import check_reads
from txmq.consumer.handler import ConsumeStatus, Handler, check_function
from txmq.errors import ConfigError, shown
from txmq.message.json_body import adapter_of
from txmq.message.names import topic_in_namespace, unwrapped
from txmq.message.received import ReceivedMessage

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
