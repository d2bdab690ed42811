"""What the logs still know of a transaction, and which transactions retention may have taken."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import pyarrow as pa

from txmq.errors import MessageNotFoundError, SourceRestoredError, TransactionNotFoundError
from txmq.ground.clock import milliseconds
from txmq.message.ids import message_address, transaction_time_ms
from txmq.message.lifecycle import FINAL_STATES, Halves, TransactionState
from txmq.message.names import SCHEDULE_TOPIC
from txmq.store.logs import EndReader, Logs, Resolution
from txmq.store.register import Registered
from txmq.store.settled import (
    FACT_COLUMNS,
    NOTHING,
    facts_among,
    last_facts,
    without_deliveries,
)
from txmq.store.shapes import Day

if TYPE_CHECKING:
    from txmq.store.store import Store
    from txmq.store.topic import TopicLog

_COLUMNS = (*FACT_COLUMNS, "producer_group")
FORGOTTEN_BEFORE = "forgotten_before_date"
SCHEDULE_FORGOTTEN_BEFORE = "schedule_forgotten_before_date"
TOPIC_BEGIN = "topic_begin"


@dataclass(frozen=True, slots=True)
class Known:
    """A transaction as the logs show it.

    Attributes:
        state: None if nobody can tell: its facts are gone, or it was never there.
        source: who wrote the claim that led to that state; None if the state is None, or is known
            by a visible message alone.
        producer_group: None if no half, fact or message is left.
        halves: None if no half message is left.
        op_version: the commit of the op log that led to the state; None if it is not settled.
    """

    transaction_id: str
    state: TransactionState | None = None
    source: str | None = None
    life: int = 0
    producer_group: str | None = None
    halves: Halves | None = None
    op_version: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether a half or a final fact is left."""
        return self.state is not None


class KnownReader:
    """Reads what is known of transactions. Not safe for several threads."""

    def __init__(self, logs: Logs) -> None:
        """Open nothing yet."""
        self._logs, self._ends = logs, EndReader(logs)

    def of(self, transaction_id: str) -> Known:
        """Read what is known of one transaction; 0 commits."""
        return self.of_all([transaction_id])[transaction_id]

    def of_all(self, transaction_ids: Sequence[str]) -> dict[str, Known]:
        """Read what is known of each transaction, by the newest versions of the logs; 0 commits."""
        transactions = self._read(transaction_ids)
        if any(each.halves is None and not each.is_known for each in transactions.values()):
            # Settled is read before half; the end may have come, and the half gone, in between.
            transactions = self._read(transaction_ids)
        return transactions

    def _read(self, transaction_ids: Sequence[str]) -> dict[str, Known]:
        ends = self._ends.ends_as_far_as_known(transaction_ids)
        ids = pa.array(transaction_ids, pa.string())
        halves = self._logs.half.halves_of(transaction_ids)
        rows = self._logs.settled.table.search.rows_of("transaction_id", ids, _COLUMNS)
        facts = {
            row["transaction_id"]: row
            for row in last_facts(without_deliveries(facts_among(rows))).to_pylist()
        }
        return {
            key: _by_halves(key, ends[key], halves[key], facts.get(key))
            if key in halves
            else _by_fact(key, facts.get(key))
            for key in transaction_ids
        }


def _by_halves(
    transaction_id: str, end: Resolution, halves: Halves, fact: Mapping[str, Any] | None
) -> Known:
    is_settled = fact is not None and fact["state"] == end.state.value
    return Known(
        transaction_id,
        end.state,
        end.source,
        end.life,
        halves.producer_group,
        halves,
        fact["op_version"] if fact is not None and is_settled else None,
    )


def _by_fact(transaction_id: str, fact: Mapping[str, Any] | None) -> Known:
    if fact is None:
        return Known(transaction_id)
    state, group = TransactionState(fact["state"]), fact["producer_group"]
    if state not in FINAL_STATES:
        return Known(transaction_id, producer_group=group)
    return Known(
        transaction_id,
        state,
        fact["source"],
        fact["life"],
        group,
        op_version=fact["op_version"],
    )


def known_by_message(known: Known, row: Mapping[str, Any]) -> Known:
    """Return `known`, or what a visible or scheduled message shows: only a COMMIT puts it there."""
    if known.is_known:
        return known
    return Known(
        known.transaction_id,
        TransactionState.COMMITTED,
        life=row["life"],
        producer_group=row["producer_group"],
    )


def no_transaction(store: Store, transaction_id: str) -> TransactionNotFoundError:
    """Make the error for an id without rows, with what is known or may have been taken."""
    return TransactionNotFoundError(transaction_id, _problem(store, transaction_id))


def no_message(store: Store, message_id: str) -> MessageNotFoundError:
    """Make the error for the id of a message, as `no_transaction`."""
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


# --- what retention has taken ---------------------------------------------------------------------


class MaintenanceValue(TypedDict):
    """The value of the register `state/maintenance`: what retention and erasures have taken.

    Attributes:
        topic_begin: for each topic the op version up to which its messages may have been removed.
        erasures: the last erasures, for people.
    """

    forgotten_before_date: NotRequired[Day]
    schedule_forgotten_before_date: NotRequired[Day]
    topic_begin: NotRequired[Mapping[str, int]]
    erasures: NotRequired[Sequence[Mapping[str, Any]]]


class Forgotten:
    """What retention may have taken, as one reader follows it. Not safe for several threads.

    Retention writes to `state/maintenance` before it removes rows. So a log that was read before
    this was asked lacks no row of a transaction that is not forgotten, whatever any machine's clock
    says.
    """

    def __init__(self, store: Store) -> None:
        """Open nothing yet."""
        self._register = store.tables.register("maintenance", MaintenanceValue)
        self._seen: Registered | None = None

    @property
    def before(self) -> date | None:
        """The day before which transactions may be gone; None if retention has taken nothing."""
        if self._seen is None or self._register.table.log.has_news():
            self._seen = self._register.read()
        day = self._seen.value.get(FORGOTTEN_BEFORE)
        return None if day is None else date.fromisoformat(day)

    def among(self, transaction_ids: Collection[str]) -> set[str]:
        """Find those whose halves may be gone; 0 commits, and 0 reads without transactions."""
        day = self.before if transaction_ids else None
        if day is None:
            return set()
        begin_ms = _begin_ms(day)
        return {name for name in transaction_ids if transaction_time_ms(name) < begin_ms}

    def explained(self, transaction_id: str, end: Resolution) -> Resolution:
        """Return an end; one of which nothing is kept is in doubt, if retention took nothing."""
        if end.is_kept or self.among([transaction_id]):
            return end
        problem = (
            f"lacks the messages of transaction {transaction_id}, which retention has not taken: "
            "the store went back to an older copy; restore the newer one, or send them again"
        )
        return replace(end, doubt=SourceRestoredError("half", problem))


def may_be_forgotten(store: Store, transaction_id: str) -> bool:
    """Tell whether retention may have taken the halves of a transaction; 0 commits."""
    return bool(Forgotten(store).among([transaction_id]))


def begin_of(value: Mapping[str, Any], topic: str) -> int:
    """Return up to where rows of a topic may have been removed by txmq, by `state/maintenance`.

    Returns: an op version; of the schedule the ordinal of a day; NOTHING if none was removed.
    """
    if topic == SCHEDULE_TOPIC:
        day = value.get(SCHEDULE_FORGOTTEN_BEFORE)
        return NOTHING if day is None else date.fromisoformat(day).toordinal()
    return int(value.get(TOPIC_BEGIN, {}).get(topic, NOTHING))


def lost_by_others(store: Store, topic: TopicLog) -> int:
    """Count the messages that the pinned version lost by another program, as DELETE or RESTORE.

    Reads: `state/maintenance` where some are gone. Commits: 0. Raises: StorageError.
    """
    if not topic.may_have_lost:
        return 0
    return topic.lost(begin_of(maintenance_value(store), topic.name))


def problem_of_loss(count: int) -> str:
    """Say of a topic that `lost_by_others` counted so many messages."""
    return f"lacks {count:,} messages that another program removed (DELETE, RESTORE)"


def maintenance_value(store: Store) -> Mapping[str, Any]:
    """Read `state/maintenance`; 0 commits. Raises: StorageError."""
    return store.tables.register("maintenance", MaintenanceValue).read().value


def kept_since_ms(value: Mapping[str, Any]) -> int | None:
    """Return from when on all transactions are kept, by the value of `state/maintenance`.

    None if retention has taken nothing.
    """
    day = value.get(FORGOTTEN_BEFORE)
    return None if day is None else _begin_ms(date.fromisoformat(day))


def _begin_ms(day: date) -> int:
    return milliseconds(datetime.combine(day, time(), UTC))
