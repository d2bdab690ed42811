"""What retention has taken: the transactions before a day, as `state/maintenance` says."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING

from txmq.clock import milliseconds
from txmq.errors import MessageNotFoundError, TransactionNotFoundError
from txmq.message.ids import message_address, transaction_time_ms
from txmq.store.known import KnownReader

if TYPE_CHECKING:
    from txmq.store.register import Register
    from txmq.store.store import Store

FORGOTTEN_BEFORE = "forgotten_before_date"
SCHEDULE_FORGOTTEN_BEFORE = "schedule_forgotten_before_date"


class Forgetting:
    """How far retention has gone. The day is kept before anything is taken, so no clock is needed.

    Not safe for several threads.
    """

    def __init__(self, store: Store) -> None:
        """Read nothing yet."""
        self._register = store.tables.register("maintenance")
        self._begin_ms: int | None = None
        self._is_read = False

    def may_have(self, transaction_id: str) -> bool:
        """Whether the halves of a transaction may be gone; one look where there are no news."""
        if not self._is_read or self._register.table.has_news():
            day = _day_of(self._register)
            self._begin_ms, self._is_read = None if day is None else _begin_ms(day), True
        return self._begin_ms is not None and transaction_time_ms(transaction_id) < self._begin_ms


def forgotten_before(store: Store) -> date | None:
    """The day before which transactions may be gone; None if retention has taken nothing yet."""
    return _day_of(store.tables.register("maintenance"))


def _day_of(register: Register) -> date | None:
    day = register.read().value.get(FORGOTTEN_BEFORE)
    return None if day is None else date.fromisoformat(day)


def may_be_forgotten(store: Store, transaction_id: str) -> bool:
    """Whether retention may have taken the halves of a transaction; 0 commits."""
    return Forgetting(store).may_have(transaction_id)


def no_transaction(store: Store, transaction_id: str) -> TransactionNotFoundError:
    """The error for an id without rows; with what is known, or may have been taken."""
    return TransactionNotFoundError(transaction_id, _problem(store, transaction_id))


def no_message(store: Store, message_id: str) -> MessageNotFoundError:
    """As `no_transaction`, for the id of a message."""
    transaction_id, _ = message_address(message_id)
    return MessageNotFoundError(message_id, _problem(store, transaction_id))


def _problem(store: Store, transaction_id: str) -> str | None:
    known = KnownReader(store.tables.logs()).of(transaction_id)
    if known.halves is not None:
        return None
    if known.state is not None:
        end = f"{known.state.value} (by {known.source})"
        return f"its transaction is {end}, and retention took its messages"
    if not may_be_forgotten(store, transaction_id):
        return None
    day = forgotten_before(store)
    return f"if it was ever there, retention took it: transactions before {day} may be gone"


def _begin_ms(day: date) -> int:
    return milliseconds(datetime.combine(day, time(), UTC))
