"""Errors about what the caller passed in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from txmq.errors.base import TxmqError, shown

if TYPE_CHECKING:
    from collections.abc import Sequence


class ConfigError(TxmqError, ValueError):
    """The settings cannot work; `faults` lists every one of them, by key."""

    def __init__(self, faults: Sequence[str]) -> None:
        """Keep all faults, so that one start shows all of them."""
        self.faults = tuple(faults)
        super().__init__("settings refused; correct this: " + "; ".join(self.faults))


class MessageError(TxmqError, ValueError):
    """A message or a name cannot be accepted; nothing was written."""


class InvalidNameError(MessageError):
    """A topic or group name is not allowed."""

    def __init__(self, kind: str, name: object, rule: str) -> None:
        """Say which rule `name` breaks; `kind` is topic, producer_group or consumer_group."""
        self.kind, self.name, self.rule = kind, name, rule
        super().__init__(f"{kind} {shown(name)} is refused: {rule}")


class InvalidNameTypeError(InvalidNameError, TypeError):
    """A name is not a string at all."""


class ReservedNameError(InvalidNameError):
    """The name belongs to txmq itself."""


class TopicConflictError(InvalidNameError):
    """Another topic has the same name but for upper and lower case."""


class InvalidMessageError(MessageError):
    """A field of a message cannot be stored as it is."""

    def __init__(self, field: str, problem: str) -> None:
        """`problem` says what to pass instead."""
        self.field, self.problem = field, problem
        super().__init__(f"message refused: {field} {problem}")


class InvalidMessageTypeError(InvalidMessageError, TypeError):
    """A field of a message has the wrong type."""


class InvalidPropertyError(InvalidMessageError):
    """A property's name or value cannot be stored."""


class ReservedPropertyError(InvalidPropertyError):
    """The property belongs to txmq itself."""


class InvalidDelayError(InvalidMessageError):
    """The delay cannot be kept."""


class InvalidDelayTypeError(InvalidDelayError, TypeError):
    """A delay is no number, or a time is no datetime."""


class InvalidQueueError(InvalidMessageError):
    """The topic has no queue of this number."""


class InvalidBodyError(InvalidMessageError):
    """A body does not have the schema of its topic."""


class BodyCodecError(TxmqError):
    """A body codec cannot encode or decode a body; it never shows a body or a key."""

    def __init__(self, message_id: str, key_id: str, what: str, problem: str) -> None:
        """`what` is "encoded" or "decoded"; `problem` says why not; "" is no key."""
        self.message_id, self.key_id, self.problem = message_id, key_id, problem
        by_key = f" by key {shown(key_id)}" if key_id else ""
        super().__init__(f"the body of {shown(message_id)} cannot be {what}{by_key}: {problem}")


class TopicExistsError(InvalidNameError):
    """The topic is there already."""


class TopicKindError(InvalidNameError):
    """The topic is of a kind that does not take this message."""


class TopicReadOnlyError(InvalidNameError):
    """An operator made the topic read-only: it takes no messages now."""


class TooLargeError(MessageError):
    """Something is larger than its limit; `size` and `limit` have the unit that `field` names."""

    def __init__(self, field: str, size: int, limit: int) -> None:
        """Show both numbers, so that the caller can split or raise the limit."""
        self.field, self.size, self.limit = field, size, limit
        super().__init__(
            f"{field} is {size:,}, the limit is {limit:,}: split it or raise the limit"
        )


class MessageTooLargeError(TooLargeError):
    """One message is larger than `max_message_size_bytes`."""


class BatchTooLargeError(TooLargeError):
    """The messages of one transaction are larger than `max_transaction_size_bytes`."""


class PropertyLimitError(TooLargeError):
    """The properties of one message are larger than `max_properties_size_bytes`."""


class BodySchemaError(TxmqError, ValueError):
    """The schema of a topic's bodies cannot be used; `faults` lists every one of them."""

    def __init__(self, faults: Sequence[str]) -> None:
        """List all faults at once."""
        self.faults = tuple(faults)
        super().__init__("body schema refused: " + "; ".join(self.faults))


class SchemaMismatchError(MessageError):
    """A DataFrame does not have the columns of a message; `faults` lists each difference."""

    def __init__(self, faults: Sequence[str]) -> None:
        """List all differences at once."""
        self.faults = tuple(faults)
        super().__init__("DataFrame refused: " + "; ".join(self.faults))


class InvalidReasonError(TxmqError, ValueError):
    """The reason of an operator cannot be kept; nothing was written."""

    def __init__(self, problem: str) -> None:
        """`problem` says what to pass instead."""
        super().__init__(f"reason refused: {problem}")
