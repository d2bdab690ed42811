"""What operators ask: the status of the store, and the life of one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.admin.life import (
    NOT_VISIBLE,
    TransactionLife,
    check_times_of,
    claim_events,
    claims_about,
    event_order,
    fact_events,
    half_events,
    shown_events,
    topics_of,
)
from txmq.check.standing import StandingReader
from txmq.clock import Clock, SystemClock, milliseconds, timestamp
from txmq.columns import Groups
from txmq.delta.schemas import SETTLED
from txmq.lifecycle import TransactionState
from txmq.listeners.outcomes import UNASKED_REASONS
from txmq.listeners.remote_requests import remote_groups, requests_in
from txmq.message.ids import check_transaction_id, transaction_time_ms
from txmq.message.names import TRANS_CHECK_MAX_TIME_TOPIC
from txmq.publish.deliveries import are_ended
from txmq.publish.settle import settle
from txmq.results import Plain
from txmq.store.forgotten import no_transaction
from txmq.store.known import Known, KnownReader, known_by_message
from txmq.store.set_aside import read_set_aside
from txmq.store.settled import NOTHING, SettledLog, last_facts, without_deliveries

if TYPE_CHECKING:
    from txmq.store.half import HalfLog
    from txmq.store.logs import Logs
    from txmq.store.op import OpLog
    from txmq.store.schedule import ScheduleLog
    from txmq.store.store import Store


@dataclass(frozen=True, slots=True)
class Lag:
    """How far settle or publish is behind the op log.

    Attributes:
        op_version: everything up to this version is done; -1 before the first.
        op_versions: how many commits of the op log are still to do.
        seconds: how long the oldest claim in them has been waiting.
    """

    op_version: int
    op_versions: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ParkedTopicStatus:
    """A topic that could not be written; the other topics are published without it."""

    topic: str
    from_version: int
    reason: str
    since: datetime
    attempts: int


@dataclass(frozen=True, slots=True)
class SetAsideStatus:
    """A transaction that waits because messages of it cannot be read."""

    transaction_id: str
    problem: str
    since: datetime
    is_given_up: bool


@dataclass(frozen=True, slots=True)
class Status(Plain):
    """A store at one moment.

    Attributes:
        open: how many transactions are prepared and have not ended (PENDING).
        unasked: how many of them were not asked about in their last check, by the reason.
        committed: how many COMMITs took effect, whether or not the messages are visible yet. Like
            `rolled_back` and `expired` it counts all that ever were, also those whose rows
            retention took.
        messages: how many messages are visible in each topic.
        scheduled: how many committed messages wait for their time.
        oldest_open_half_age_s: None if no transaction is open.
        op_version: the newest commit of the op log.
        settled, published: how far settling and publishing are behind the op log.
        parked: the topics that could not be written.
        set_aside: the transactions that wait because messages of them cannot be read.
        unreadable: the files of half that cannot be read; the counts leave them out.
        members: how many live producers answer checks, by producer group.
    """

    location: str
    at: datetime
    open: int
    unasked: Mapping[str, int]
    committed: int
    rolled_back: int
    discarded: int
    incomplete: int
    expired: int
    messages: Mapping[str, int]
    scheduled: int
    dead_letters: int
    oldest_open_half_age_s: float | None
    op_version: int
    settled: Lag
    published: Lag
    parked: tuple[ParkedTopicStatus, ...]
    set_aside: tuple[SetAsideStatus, ...]
    unreadable: tuple[str, ...]
    members: Mapping[str, int]


class Admin:
    """Reads how a store stands; needs no Spark and writes nothing.

    Args:
        store: the store to look at.
        clock: the time by which ages and lags are computed.

    Example:
        >>> Admin(store).status().open
        0
    """

    def __init__(self, store: Store, *, clock: Clock | None = None) -> None:
        """Read nothing yet."""
        self._store = store
        self._clock = clock or SystemClock()

    def status(self) -> Status:
        """The counts of transactions and messages, and the lags of the services.

        Reads: op, settled, half (ids and groups), state/publisher, the sizes of topics. Commits: 0.

        Raises: StoreNotFoundError, StorageError.
        """
        # Read before the logs: what is published was settled before.
        progress = self._store.tables.register("publisher").read().value
        logs, now_ms = self._store.tables.logs(), self._clock.now_ms()
        logs.refresh_after_half()
        op, settled = logs.op, logs.settled
        op_version, op_table_id = op.table.version, op.table.table_id
        states = _states(logs, now_ms)
        halves, unreadable = _open_halves(logs.half, states)
        checks = StandingReader(self._store.tables.logs(), self._store.config).of(halves, now_ms)
        published = progress.get("low_water_version", NOTHING)
        return Status(
            location=self._store.location,
            at=timestamp(now_ms),
            open=halves.num_rows,
            unasked=_unasked(checks),
            **_counts(states, logs),
            messages=self._messages(op_table_id),
            scheduled=_scheduled(logs.schedule, settled),
            dead_letters=self._row_count(TRANS_CHECK_MAX_TIME_TOPIC, op_table_id),
            oldest_open_half_age_s=_oldest_age_s(halves["transaction_id"], now_ms),
            op_version=op_version,
            settled=_lag(op, settled.mark, now_ms),
            published=_lag(op, published, now_ms),
            parked=_parked(progress.get("parked", {})),
            set_aside=_set_aside(self._store),
            unreadable=unreadable,
            members=_members(self._store, now_ms),
        )

    def transaction(self, transaction_id: str) -> TransactionLife:
        """All rows about one transaction, without message bodies.

        Reads: op (its whole change feed, which alone has the order of commits); of half, settled
        and the topics the files that may hold the id: of all topics where retention took the
        halves. Commits: 0.

        Args:
            transaction_id: the id that `begin_transaction` or a send gave.

        Raises: TransactionNotFoundError, StorageError.
        """
        transaction_id = check_transaction_id(transaction_id)
        ids, logs = pa.array([transaction_id]), self._store.tables.logs()
        known = KnownReader(logs).of(transaction_id)
        claims = claims_about(logs.op, transaction_id)
        facts = logs.settled.table.rows_of("transaction_id", ids, SETTLED.columns.names)
        halves = logs.half.rows(ids)
        shown = self._shown(transaction_id, halves, logs.op.table.table_id)
        if not any(rows.num_rows for rows in (claims, facts, halves, *shown.values())):
            raise no_transaction(self._store, transaction_id)
        known = _known_by_messages(known, shown)
        events = [*half_events(halves), *claim_events(claims), *fact_events(facts)]
        for topic, rows in shown.items():
            events += shown_events(topic, rows)
        return TransactionLife(
            transaction_id=transaction_id,
            producer_group=known.producer_group,
            state=known.state,
            life=known.life,
            check_times=check_times_of(claims, known),
            message_count=None if known.halves is None else known.halves.message_count,
            messages_found=0 if known.halves is None else known.halves.found,
            events=tuple(sorted(events, key=event_order)),
        )

    def _shown(
        self, transaction_id: str, halves: pa.Table, op_table_id: str
    ) -> dict[str, pa.Table]:
        """Its rows in each topic; without halves it may have messages in any."""
        topics = topics_of(halves) if halves.num_rows else self._store.topics()
        rows = {topic: self._rows_in(topic, transaction_id, op_table_id) for topic in topics}
        return {topic: of_topic for topic, of_topic in rows.items() if of_topic.num_rows}

    def _messages(self, op_table_id: str) -> dict[str, int]:
        topics = [name for name in self._store.topics() if name not in NOT_VISIBLE]
        return {name: self._row_count(name, op_table_id) for name in topics}

    def _row_count(self, topic: str, op_table_id: str) -> int:
        table = self._store.tables.topic_log(topic, op_table_id).table
        return sum(file.num_records for file in table.files()) if table.exists() else 0

    def _rows_in(self, topic: str, transaction_id: str, op_table_id: str) -> pa.Table:
        table = self._store.tables.topic_log(topic, op_table_id).table
        columns = table.schema.columns
        if not table.exists():
            return columns.empty_table()
        return table.rows_of("transaction_id", pa.array([transaction_id]), columns.names)


# --- one transaction ------------------------------------------------------------------------------


def _known_by_messages(known: Known, shown: Mapping[str, pa.Table]) -> Known:
    for topic, rows in shown.items():
        row = rows.slice(0, 1).to_pylist()[0]
        if topic != TRANS_CHECK_MAX_TIME_TOPIC:
            return known_by_message(known, row)
        # A dead letter may be of an earlier life, so it proves no end.
        known = replace(known, producer_group=known.producer_group or row["producer_group"])
    return known


# --- status --------------------------------------------------------------------------------------


def _states(logs: Logs, now_ms: int) -> pa.Table:
    """transaction_id and state of all transactions that a claim changed, settled or not."""
    settled, op = logs.settled, logs.op
    facts = settled.table.read(settled.table.files(), SETTLED.columns.names)
    waiting = op.between(settled.mark, op.table.version)
    columns = ["transaction_id", "state", "op_version", "ordinal"]
    fresh = settle(waiting, logs.half, settled, now_ms).facts
    all_facts = pa.concat_tables([facts.select(columns), fresh.select(columns)])
    return last_facts(without_deliveries(all_facts))


def _open_halves(half: HalfLog, states: pa.Table) -> tuple[pa.Table, tuple[str, ...]]:
    """transaction_id and producer_group of the PENDING transactions; the files left out."""
    columns = ("transaction_id", "producer_group")
    parts, problems = [half.table.read([], columns)], []
    for file in half.table.files():
        rows, problem = half.table.readable(file, partial(half.table.read, [file], columns))
        if rows is None:
            problems.append(problem)
        else:
            parts.append(rows)
    rows = pa.concat_tables(parts)
    is_pending = pc.equal(states["state"], TransactionState.PENDING.value)
    ended = states.filter(pc.invert(is_pending))["transaction_id"]
    rows = rows.filter(pc.invert(pc.is_in(rows["transaction_id"], value_set=ended)))
    _, first = np.unique(Groups.of(rows["transaction_id"]).place, return_index=True)
    return rows.take(pa.array(first)), tuple(problems)


def _unasked(standings: pa.Table) -> dict[str, int]:
    """How many transactions were not asked about in their last check, by the reason."""
    counted = standings["reason"].value_counts().to_pylist()
    counts = {row["values"]: row["counts"] for row in counted}
    return {reason.value: counts[reason] for reason in UNASKED_REASONS if reason in counts}


def _counts(states: pa.Table, logs: Logs) -> dict[str, int]:
    """The fields of Status that are named after a state; `open` is counted by halves instead."""
    counts = Counter(states["state"].to_pylist())
    counts.update(logs.settled.forgotten)
    ended = [state.value for state in TransactionState if state is not TransactionState.PENDING]
    return {name.lower(): counts[name] for name in ended}


def _oldest_age_s(open_ids: pa.ChunkedArray, now_ms: int) -> float | None:
    # Ids sort by time.
    oldest = pc.min(open_ids).as_py()
    return None if oldest is None else max(0.0, (now_ms - transaction_time_ms(oldest)) / 1000)


def _scheduled(schedule: ScheduleLog, settled: SettledLog) -> int:
    """How many messages of the schedule are neither delivered nor recalled."""
    if not schedule.refresh().is_there:
        return 0
    rows = schedule.table.read(schedule.table.files(), ("transaction_id", "sequence"))
    return int((~are_ended(rows, settled)).sum())


def _lag(op: OpLog, done: int, now_ms: int) -> Lag:
    latest = op.table.version
    waiting = op.table.changes(done + 1, latest, ("op_timestamp",))
    oldest = pc.min(waiting["op_timestamp"]).as_py()
    if oldest is None:
        # Commits without rows, such as the creation of the table, are no lag.
        return Lag(done, 0, 0.0)
    return Lag(done, latest - done, max(0.0, (now_ms - milliseconds(oldest)) / 1000))


def _members(store: Store, now_ms: int) -> dict[str, int]:
    counts = {
        group: requests_in(store, group).read().member_count(now_ms)
        for group in remote_groups(store)
    }
    return {group: count for group, count in counts.items() if count}


def _parked(parked: Mapping[str, Mapping[str, Any]]) -> tuple[ParkedTopicStatus, ...]:
    return tuple(
        ParkedTopicStatus(
            topic,
            entry["from_version"],
            entry["reason"],
            timestamp(entry["since_ms"]),
            entry["attempts"],
        )
        for topic, entry in sorted(parked.items())
    )


def _set_aside(store: Store) -> tuple[SetAsideStatus, ...]:
    entries = read_set_aside(store.tables).transactions
    return tuple(
        SetAsideStatus(
            name, entry.problem, timestamp(entry.since_ms), is_given_up=entry.giver_up is not None
        )
        for name, entry in sorted(entries.items())
    )
