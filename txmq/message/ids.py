"""Ids of transactions and messages: UUIDv7, so that they sort by time. Keyed ids serve retries."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txmq.errors import InvalidMessageError, MessageIdError, TransactionNotFoundError
from txmq.ground.clock import milliseconds, moment_problem
from txmq.ground.random_names import random_bits
from txmq.message.message import MAX_FIELD_BYTES

_TRANSACTION_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_MESSAGE_ID = re.compile(rf"({_TRANSACTION_ID.pattern}):(0|[1-9][0-9]{{0,18}})", re.ASCII)

# Of the message that is the head of its transaction.
HEAD_SEQUENCE = 0
_RANDOM_BITS = 74

MAX_AHEAD_S = 3600.0
# How the keys begin of what txmq sends once: what a consumer group sends back, or replays.
SEND_BACK, REPLAY = "send-back\n", "replay\n"
_ID_BYTES = 36
# The hexadecimal digits of an id that tell its time.
_TIME_PLACES = [*range(8), *range(9, 13)]
_TIME_WEIGHTS = 16 ** np.arange(11, -1, -1, dtype=np.int64)
_HEX_VALUES = np.zeros(256, np.int64)
_HEX_VALUES[np.frombuffer(b"0123456789abcdef", np.uint8)] = range(16)


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """The name of a piece of work, and a time of that work; both are the same in every retry."""

    key: str
    time_ms: int

    def transaction_id(self, producer_group: str, attempt: int) -> str:
        """Return the id of one attempt; the next attempt begins only after a rollback."""
        return self.transaction_ids(producer_group, attempt)[0]

    def transaction_ids(self, producer_group: str, attempt: int) -> tuple[str, ...]:
        """Return all ids under which one attempt may have been made, that of today first.

        A key that begins as those of a consumer group has ids of a space of its own: a group may
        have the name of the producer group. An earlier txmq did not keep them apart.
        """
        plain = keyed_transaction_id(producer_group, self.key, self.time_ms, attempt)
        if not self.key.startswith((SEND_BACK, REPLAY)):
            return (plain,)
        # No name of a group begins so.
        own = keyed_transaction_id(f"\n{producer_group}", self.key, self.time_ms, attempt)
        return own, plain


def checked_key(key: object, moment: object, *, now_ms: int, reserved_s: float) -> IdempotencyKey:
    """Check the key of a user.

    Args:
        key: not blank, at most MAX_FIELD_BYTES in UTF-8.
        moment: a datetime with a time zone, at most MAX_AHEAD_S in the future, and not older than
            `reserved_s`: retention may have removed the transaction of an older key.
        now_ms: the time of the producer's clock.
        reserved_s: the retention of the store, `file_reserved_time_h`.

    Raises: InvalidMessageError.
    """
    return IdempotencyKey(_checked_name(key), _checked_time_ms(moment, now_ms, reserved_s))


def _checked_name(key: object) -> str:
    if not isinstance(key, str):
        problem = f"must be a str, not {type(key).__name__}"
        raise InvalidMessageError("idempotency_key", problem)
    if not key.strip() or len(key.encode("utf-8", "replace")) > MAX_FIELD_BYTES:
        problem = f"must not be blank, and not longer than {MAX_FIELD_BYTES:,} bytes"
        raise InvalidMessageError("idempotency_key", problem)
    if not key.isascii() and any("\ud800" <= letter <= "\udfff" for letter in key):
        raise InvalidMessageError("idempotency_key", "is not valid Unicode (a lone surrogate)")
    return key


def _checked_time_ms(moment: object, now_ms: int, reserved_s: float) -> int:
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        problem = (
            "must be a datetime with a time zone, the same in every retry, such as the hour of a"
            " batch"
        )
        raise InvalidMessageError("key_timestamp", problem)
    time_problem = moment_problem(moment)
    if time_problem is not None:
        raise InvalidMessageError("key_timestamp", time_problem)
    time_ms = milliseconds(moment)
    if time_ms > now_ms + MAX_AHEAD_S * 1000:
        raise InvalidMessageError("key_timestamp", "is in the future; give the time of the work")
    if time_ms < now_ms - reserved_s * 1000:
        problem = f"is older than file_reserved_time_h ({reserved_s:,.0f} s)"
        next_step = "retention may have removed its transaction; give the time of newer work"
        raise InvalidMessageError("key_timestamp", f"{problem}; {next_step}")
    return time_ms


def new_transaction_id(now_ms: int) -> str:
    """Make a new UUIDv7; it sorts by time, so file statistics prune."""
    return _uuid7(now_ms, random_bits(_RANDOM_BITS))


def first_transaction_id(time_ms: int) -> str:
    """Return the smallest id of a time; the ids of earlier times are smaller."""
    return _uuid7(max(time_ms, 0), 0)


def keyed_transaction_id(producer_group: str, key: str, key_time_ms: int, attempt: int) -> str:
    """Compute the id of every retry of a job: the key's time, then a hash of the arguments."""
    digest = hashlib.sha256("\n".join([producer_group, key, str(attempt)]).encode()).digest()
    return _uuid7(key_time_ms, int.from_bytes(digest[:10], "big") >> (80 - _RANDOM_BITS))


def _uuid7(time_ms: int, random: int) -> str:
    value = time_ms << 80 | 0x7 << 76 | (random >> 62) << 64 | 0b10 << 62 | random & (1 << 62) - 1
    # uuid.UUID gives the same text in three times the time.
    text = f"{value:032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def is_transaction_id(text: object) -> bool:
    """Tell whether this has the form of the id of a transaction."""
    return isinstance(text, str) and _TRANSACTION_ID.fullmatch(text) is not None


def check_transaction_id(transaction_id: object) -> str:
    """Return the id. Raises: TransactionNotFoundError if it cannot be the id of a transaction."""
    if not isinstance(transaction_id, str) or not is_transaction_id(transaction_id):
        raise TransactionNotFoundError(transaction_id)
    return transaction_id


def transaction_time_ms(transaction_id: str) -> int:
    """Return the time of an id, in milliseconds since 1970-01-01 UTC."""
    return int(transaction_id[:8] + transaction_id[9:13], 16)


def transaction_times_ms(transaction_ids: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """Return `transaction_time_ms` of many ids; 0 for a text that cannot be one."""
    texts = pc.cast(transaction_ids.combine_chunks(), pa.binary())
    is_id = pc.equal(pc.binary_length(texts), _ID_BYTES)
    fixed = pc.cast(pc.if_else(is_id, texts, bytes(_ID_BYTES)), pa.binary(_ID_BYTES))
    content = np.frombuffer(fixed.buffers()[1], np.uint8, len(fixed) * _ID_BYTES)
    digits = _HEX_VALUES[content.reshape(-1, _ID_BYTES)[:, _TIME_PLACES]]
    return digits @ _TIME_WEIGHTS


def message_id(transaction_id: str, sequence: int) -> str:
    """Return the id of a message: its transaction and its sequence in the transaction."""
    return f"{transaction_id}:{sequence}"


def message_address(message_id: object) -> tuple[str, int]:
    """Return the transaction and the sequence of a message_id.

    Raises: MessageIdError if it cannot be the id of a message.
    """
    match = _MESSAGE_ID.fullmatch(message_id) if isinstance(message_id, str) else None
    if match is None:
        raise MessageIdError(message_id)
    return match[1], int(match[2])
