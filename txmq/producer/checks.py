"""What a message must keep to by the settings of its store, whichever way it is sent."""

from __future__ import annotations

from datetime import timedelta

from txmq.clock import timestamp
from txmq.errors import InvalidDelayError, InvalidMessageTypeError, InvalidPropertyError
from txmq.message.message import CHECK_IMMUNITY_TIME_IN_SECONDS, Message
from txmq.store.config import Config


def check_message(message: object, config: Config, now_ms: int) -> Message:
    """The message as given.

    Raises: InvalidMessageTypeError, MessageTooLargeError, PropertyLimitError,
        InvalidPropertyError, InvalidDelayError.
    """
    if not isinstance(message, Message):
        problem = f"must be a Message, not {type(message).__name__}"
        raise InvalidMessageTypeError("message", problem)
    message.check_sizes(
        max_message_size_bytes=config.max_message_size_bytes,
        max_properties_size_bytes=config.max_properties_size_bytes,
    )
    _check_immunity(message, config)
    _check_delay(message, config, now_ms)
    return message


def _check_immunity(message: Message, config: Config) -> None:
    if CHECK_IMMUNITY_TIME_IN_SECONDS not in message.properties:
        return
    reserved_s = config.file_reserved_time_h * 3600
    if message.immunity_time_s(0.0) > reserved_s:
        problem = f"{CHECK_IMMUNITY_TIME_IN_SECONDS} is above file_reserved_time_h"
        raise InvalidPropertyError("property", f"{problem} ({reserved_s:,.0f} s)")


def _check_delay(message: Message, config: Config, now_ms: int) -> None:
    if not message.is_delayed:
        return
    max_s = config.timer_max_delay_s
    limit = f"above timer_max_delay_s ({max_s:,.0f} s)"
    if (message.delay_s or 0) > max_s:
        raise InvalidDelayError("delay_s", f"is {message.delay_s:,}, {limit}")
    due = message.deliver_timestamp
    if due is not None and due > timestamp(now_ms) + timedelta(seconds=max_s):
        raise InvalidDelayError("deliver_timestamp", f"is {due.isoformat()}, {limit} from now")
