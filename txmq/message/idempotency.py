"""Idempotency keys: a retried job finds the transaction of its first try (DESIGN section 7)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from txmq.clock import milliseconds
from txmq.errors import InvalidMessageError, InvalidMessageTypeError
from txmq.message.message import MAX_FIELD_BYTES, keyed_transaction_id

MAX_AHEAD_S = 3600.0


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A name for a piece of work, and the time that belongs to it, the same in every retry."""

    key: str
    time_ms: int

    def transaction_id(self, producer_group: str, attempt: int) -> str:
        """The id of one attempt; there is a next one only after a rollback."""
        return keyed_transaction_id(producer_group, self.key, self.time_ms, attempt)


def checked_key(key: object, moment: object, *, now_ms: int, reserved_s: float) -> IdempotencyKey:
    """The key as given by a user.

    Raises: InvalidMessageTypeError, InvalidMessageError. A time that retention has passed is
        refused, for what became of that transaction may have been cleaned away.
    """
    return IdempotencyKey(_checked_name(key), _checked_time_ms(moment, now_ms, reserved_s))


def _checked_name(key: object) -> str:
    if not isinstance(key, str):
        problem = f"must be a str, not {type(key).__name__}"
        raise InvalidMessageTypeError("idempotency_key", problem)
    if not key.strip() or len(key.encode("utf-8", "replace")) > MAX_FIELD_BYTES:
        problem = f"must not be blank, nor above {MAX_FIELD_BYTES:,} bytes"
        raise InvalidMessageError("idempotency_key", problem)
    return key


def _checked_time_ms(moment: object, now_ms: int, reserved_s: float) -> int:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        problem = (
            "must be a datetime with a time zone that a retry gives again, such as the hour that"
            " a batch is for"
        )
        raise InvalidMessageTypeError("key_timestamp", problem)
    time_ms = milliseconds(moment)
    if time_ms > now_ms + MAX_AHEAD_S * 1000:
        raise InvalidMessageError("key_timestamp", "is in the future; give the time of the work")
    if time_ms < now_ms - reserved_s * 1000:
        problem = f"is older than file_reserved_time_h ({reserved_s:,.0f} s)"
        raise InvalidMessageError("key_timestamp", f"{problem}; nobody knows what became of it")
    return time_ms
