"""What retention has taken: the transactions before a day, as `state/maintenance` says."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any

from txmq.clock import milliseconds
from txmq.errors import MessageNotFoundError, TransactionNotFoundError
from txmq.message.ids import message_address, transaction_time_ms
from txmq.store.known import KnownReader
from txmq.store.register import Registered

if TYPE_CHECKING:
    from txmq.store.store import Store

FORGOTTEN_BEFORE = "forgotten_before_date"
SCHEDULE_FORGOTTEN_BEFORE = "schedule_forgotten_before_date"


def kept_since_ms(value: Mapping[str, Any]) -> int | None:
    """From when on all transactions are kept, by the value of `state/maintenance`.

    None where retention has taken nothing.
    """
    day = value.get(FORGOTTEN_BEFORE)
    return None if day is None else _begin_ms(date.fromisoformat(day))


def _begin_ms(day: date) -> int:
    return milliseconds(datetime.combine(day, time(), UTC))


class Forgotten:
    """What retention may have taken, as one reader follows it. Not safe for several threads.

    Retention says so before it removes rows. So a log that was read before this was asked lacks
    no row of a transaction that is not forgotten, whatever any machine's clock says.
    """

    def __init__(self, store: Store) -> None:
        """Open nothing yet."""
        self._register = store.tables.register("maintenance")
        self._seen: Registered | None = None

    @property
    def before(self) -> date | None:
        """The day before which transactions may be gone; None if retention has taken nothing."""
        if self._seen is None or self._register.table.has_news():
            self._seen = self._register.read()
        day = self._seen.value.get(FORGOTTEN_BEFORE)
        return None if day is None else date.fromisoformat(day)

    def among(self, transaction_ids: Collection[str]) -> set[str]:
        """Those whose halves may be gone; 0 commits, and 0 reads without transactions."""
        day = self.before if transaction_ids else None
        if day is None:
            return set()
        begin_ms = _begin_ms(day)
        return {name for name in transaction_ids if transaction_time_ms(name) < begin_ms}


def may_be_forgotten(store: Store, transaction_id: str) -> bool:
    """Whether retention may have taken the halves of a transaction; 0 commits."""
    return bool(Forgotten(store).among([transaction_id]))


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
    day = Forgotten(store).before
    return f"if it was ever there, retention took it: transactions before {day} may be gone"
