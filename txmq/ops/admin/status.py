"""What operators ask: the status of the store, and the life of one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.check.open_set import OpenSet, OpenSetReader
from txmq.check.standing import StandingReader
from txmq.consumer.arguments import check_max_messages
from txmq.errors import InvalidNameError, TxmqError, UnsupportedTableError
from txmq.ground.clock import Clock, SystemClock, milliseconds, timestamp
from txmq.ground.columns import Groups, Integers, python_rows, sound_rows, times_ms
from txmq.ground.results import Plain
from txmq.listeners.protocol import UNASKED_REASONS, Reason
from txmq.listeners.remote import remote_groups, requests_in
from txmq.message.ids import check_transaction_id, transaction_times_ms
from txmq.message.lifecycle import TransactionState
from txmq.message.names import SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from txmq.ops.admin.life import (
    NOT_VISIBLE,
    TransactionLife,
    check_times_of,
    claim_events,
    claims_about,
    claims_in_no_order,
    event_order,
    fact_events,
    half_events,
    shown_events,
    some_rows,
    topics_of,
)
from txmq.ops.brokers import BrokerStatus, broker_statuses
from txmq.publish.progress import PublishProgress
from txmq.publish.settle import are_ended, settle
from txmq.store.known import Known, KnownReader, known_by_message, no_transaction
from txmq.store.op import required_keys
from txmq.store.schemas import SETTLED
from txmq.store.set_aside import read_set_aside
from txmq.store.settled import NOTHING, last_facts, scheduled_among, without_deliveries
from txmq.store.store import Store, check_store
from txmq.verify import MarkerPlace, VerifyReport, verify

if TYPE_CHECKING:
    from txmq.delta.files import DataFile
    from txmq.delta.table import Table
    from txmq.store.logs import Logs
    from txmq.store.op import OpLog
    from txmq.store.settled import ScheduleLog, SettledLog


# Ages of open transactions, in seconds; of RocketMQ's finish_message_latency.
AGE_BOUNDS_S = (5, 60, 600, 3_600, 43_200, 86_400)


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
    """A transaction that waits because messages of it, or claims about it, cannot be read."""

    transaction_id: str
    problem: str
    since: datetime
    is_given_up: bool


@dataclass(frozen=True, slots=True)
class TableSize(Plain):
    """How large a table is now; maintenance merges its files."""

    files: int
    rows: int
    size_bytes: int

    @classmethod
    def of(cls, files: Iterable[DataFile]) -> TableSize:
        """Add up the sizes of these files."""
        files = list(files)
        rows, size = sum(file.num_records for file in files), sum(f.size_bytes for f in files)
        return cls(len(files), rows, size)


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
        older_than: how many transactions are open for longer than some bounds, in seconds.
        half_messages: how many messages of open transactions wait, by topic.
        delay_lag_s: how long the delayed message that was due first is overdue; 0 if none is.
        tables: the sizes of the logs and of the topics, by their paths.
        op_version: the newest commit of the op log.
        settled, published: how far settling and publishing are behind the op log.
        parked: the topics that could not be written.
        set_aside: the transactions that wait because messages of them cannot be read.
        unreadable: the files of half that cannot be read; the counts leave them out.
        members: how many live producers answer checks, by producer group.
        brokers: who serves the store, and who did until lately; by the last sign of life.
        brokers_problem: why `brokers` cannot be read and is empty; None where all is well.
        unusable: the topics that have a feature which txmq does not know, each with the reason.
            Their messages are not counted.
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
    older_than: Mapping[int, int]
    half_messages: Mapping[str, int]
    delay_lag_s: float
    tables: Mapping[str, TableSize]
    op_version: int
    settled: Lag
    published: Lag
    parked: tuple[ParkedTopicStatus, ...]
    set_aside: tuple[SetAsideStatus, ...]
    unreadable: tuple[str, ...]
    members: Mapping[str, int]
    brokers: tuple[BrokerStatus, ...]
    brokers_problem: str | None = None
    unusable: Mapping[str, str] = field(default_factory=dict)


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
        check_store(store)
        self._store = store
        self._clock = clock or SystemClock()

    def status(self) -> Status:
        """Count transactions and messages, and read the lags of the services.

        Reads: state/open_transactions, what half, op and settled appended since, state/publisher,
        the sizes of topics. Commits: 0.

        Raises: StoreNotFoundError, StorageError.
        """
        logs = self._store.tables.logs()
        return logs.consistent(lambda: self._status(logs))

    def _status(self, logs: Logs) -> Status:
        # Read before the logs: what is published was settled before.
        progress = self._store.tables.register("publisher", PublishProgress).read().value
        now_ms = self._clock.now_ms()
        open_set = OpenSetReader(logs, self._store.tables).read()
        op, settled = logs.op, logs.settled
        op_version, op_table_id = op.table.version, op.table.log.table_id
        states = states_of(open_set, logs, now_ms)
        halves = open_halves(open_set, states)
        owners, ages_ms = halves.owners, halves.ages_ms(now_ms)
        standings = StandingReader(logs, self._store.config)
        checks = standings.folded(owners, last_facts(open_set.facts), open_set.claims, now_ms)
        topics, unusable = self._topic_sizes(op_table_id)
        is_unknown = SCHEDULE_TOPIC in unusable
        waiting = Schedule(0, 0.0) if is_unknown else scheduled(logs.schedule, settled, now_ms)
        brokers, brokers_problem = broker_statuses(self._store, now_ms)
        return Status(
            location=self._store.location,
            at=timestamp(now_ms),
            open=owners.num_rows,
            unasked=unasked_of(checks),
            **counts_by_state(states, open_set.ended),
            messages={name: size.rows for name, size in topics.items() if name not in NOT_VISIBLE},
            scheduled=waiting.messages,
            dead_letters=topics[TRANS_CHECK_MAX_TIME_TOPIC].rows,
            oldest_open_half_age_s=float(ages_ms.max()) / 1000 if len(ages_ms) else None,
            older_than=older_than(ages_ms),
            half_messages=halves.messages,
            delay_lag_s=waiting.lag_s,
            tables=_sizes(logs, topics),
            op_version=op_version,
            settled=lag_of(op, settled.mark, now_ms),
            published=lag_of(op, progress.get("low_water_version", NOTHING), now_ms),
            parked=parked_topics(progress.get("parked", {})),
            set_aside=set_aside(self._store),
            unreadable=halves.unreadable,
            members=members_of(self._store, now_ms),
            brokers=brokers,
            brokers_problem=brokers_problem,
            unusable=unusable,
        )

    def transaction(
        self, transaction_id: str, *, max_messages: int | None = None
    ) -> TransactionLife:
        """Read all rows about one transaction, without message bodies.

        Reads: op (its whole change feed, which alone has the order of commits); of half, settled
        and the topics the files that may hold the id: of all topics where retention took the
        halves. Commits: 0.

        Args:
            transaction_id: the id that `begin_transaction` or a send gave.
            max_messages: a quick look: so many messages at most in each table, without the size
                and the hash of their bodies, and claims without their place in the op log. Reads
                of op too only the files that may hold the id.

        Raises: TransactionNotFoundError, StorageError; ConfigError for a wrong `max_messages`.
        """
        transaction_id = check_transaction_id(transaction_id)
        if max_messages is not None:
            check_max_messages(max_messages)
        ids, logs = pa.array([transaction_id]), self._store.tables.logs()
        known = KnownReader(logs).of(transaction_id)
        claims = (claims_about if max_messages is None else claims_in_no_order)(
            logs.op, transaction_id
        )
        facts = logs.settled.table.search.rows_of("transaction_id", ids, SETTLED.columns.names)
        halves = _rows_about(logs.half.table, ids, max_messages)
        shown = self._shown(ids, halves, logs.op.table.log.table_id, max_messages)
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
        self, ids: pa.Array, halves: pa.Table, op_table_id: str, max_messages: int | None
    ) -> dict[str, pa.Table]:
        """Read its rows in each topic; without halves it may have messages in any."""
        topics = topics_of(halves) if halves.num_rows else self._store.topics()
        tables: dict[str, Table] = {}
        for topic in topics:
            # A half that another program wrote may name anything.
            with suppress(InvalidNameError):
                tables[topic] = self._store.tables.topic_log(topic, op_table_id).table
        rows = {
            topic: _rows_about(table, ids, max_messages)
            for topic, table in tables.items()
            if table.exists()
        }
        return {topic: of_topic for topic, of_topic in rows.items() if of_topic.num_rows}

    def _topic_sizes(self, op_table_id: str) -> tuple[dict[str, TableSize], dict[str, str]]:
        """Return the sizes of all topics, and why some of them cannot be used."""
        sizes, unusable = dict[str, TableSize](), dict[str, str]()
        for name in sorted({*self._store.topics(), TRANS_CHECK_MAX_TIME_TOPIC}):
            try:
                sizes[name] = self._topic_size(name, op_table_id)
            except UnsupportedTableError as error:
                sizes[name], unusable[name] = TableSize.of(()), str(error)
        return sizes, unusable

    def _topic_size(self, topic: str, op_table_id: str) -> TableSize:
        table = self._store.tables.topic_log(topic, op_table_id).table
        return TableSize.of(table.files.all() if table.exists() else ())


# --- one transaction ------------------------------------------------------------------------------


def _rows_about(table: Table, ids: pa.Array, max_rows: int | None) -> pa.Table:
    names = table.schema.columns.names
    if max_rows is None:
        return table.search.rows_of("transaction_id", ids, names)
    return some_rows(table, ids, [name for name in names if name != "body"], max_rows)


def _known_by_messages(known: Known, shown: Mapping[str, pa.Table]) -> Known:
    for topic, rows in shown.items():
        row = python_rows(rows.slice(0, 1))[0]
        if topic != TRANS_CHECK_MAX_TIME_TOPIC:
            return known_by_message(known, row)
        # A dead letter may be of an earlier life, so it proves no end.
        known = replace(known, producer_group=known.producer_group or row["producer_group"])
    return known


# --- status ---------------------------------------------------------------------------------------


def states_of(open_set: OpenSet, logs: Logs, now_ms: int) -> pa.Table:
    """Read transaction_id and state of the open transactions that a claim changed, settled or not.

    Also of those that have just ended: by claims that settle has not folded.
    """
    columns = ["transaction_id", "state", "op_version", "ordinal"]
    waiting = logs.op.between(logs.settled.mark, logs.op.table.version)
    fresh = without_deliveries(settle(waiting, logs.half, logs.settled, now_ms).facts)
    parts = [rows.select(columns) for rows in (open_set.facts, fresh)]
    return last_facts(pa.concat_tables(parts))


@dataclass(frozen=True, slots=True)
class OpenHalves:
    """The halves of PENDING transactions.

    Attributes:
        owners: transaction_id and producer_group of each transaction once.
        messages: how many messages wait, by their real topic.
        unreadable: the problems of the files that were left out.
    """

    owners: pa.Table
    messages: Mapping[str, int]
    unreadable: tuple[str, ...]

    def ages_ms(self, now_ms: int) -> Integers:
        """Return the age of each transaction, by the time in its id."""
        return np.maximum(0, now_ms - transaction_times_ms(self.owners["transaction_id"]))


def open_halves(open_set: OpenSet, states: pa.Table) -> OpenHalves:
    """Return the halves of the PENDING transactions."""
    is_pending = pc.equal(states["state"], TransactionState.PENDING.value)
    ended = states.filter(pc.invert(is_pending))["transaction_id"]
    runs, topics = (
        rows.filter(pc.invert(pc.is_in(rows["transaction_id"], value_set=ended)))
        for rows in (open_set.runs, open_set.topics)
    )
    _, first = np.unique(Groups.of(runs["transaction_id"]).place, return_index=True)
    owners = runs.select(["transaction_id", "producer_group"]).take(pa.array(first))
    by_topic = topics.group_by("real_topic").aggregate([("messages", "sum")]).to_pylist()
    messages = {row["real_topic"]: row["messages_sum"] for row in by_topic}
    return OpenHalves(owners, messages, tuple(open_set.unread.values()))


def unasked_of(standings: pa.Table) -> dict[str, int]:
    """Count the transactions that were not asked about in their last check, by the reason."""
    rows = standings["reason"].value_counts().to_pylist()
    counts = {row["values"]: row["counts"] for row in rows}
    reasons = (*UNASKED_REASONS, Reason.PRODUCER_LIVES)
    return {reason.value: counts[reason] for reason in reasons if reason in counts}


def counts_by_state(states: pa.Table, ended: Mapping[str, int]) -> dict[str, int]:
    """Return the fields of Status that are named after a state; `open` is counted by halves."""
    counts = Counter(states["state"].to_pylist())
    counts.update(ended)
    names = [state.value for state in TransactionState if state is not TransactionState.PENDING]
    return {name.lower(): counts[name] for name in names}


def older_than(ages_ms: Integers) -> dict[int, int]:
    """Count those that are older than each of AGE_BOUNDS_S."""
    return {bound_s: int((ages_ms > bound_s * 1000).sum()) for bound_s in AGE_BOUNDS_S}


@dataclass(frozen=True, slots=True)
class Schedule:
    """The messages that are neither delivered nor recalled.

    Attributes:
        messages: how many there are.
        lag_s: how long the one that was due first is overdue; 0 if none is.
    """

    messages: int
    lag_s: float


def scheduled(schedule: ScheduleLog, settled: SettledLog, now_ms: int) -> Schedule:
    """Count the messages of the schedule that wait, or should have come."""
    if not schedule.refresh().is_there:
        return Schedule(0, 0.0)
    columns = ("transaction_id", "sequence", "deliver_timestamp")
    rows = scheduled_among(schedule.table.rows.read(schedule.table.files.all(), columns))
    due_ms = times_ms(rows["deliver_timestamp"])[~are_ended(rows, settled)]
    return Schedule(len(due_ms), max(0, now_ms - int(due_ms.min(initial=now_ms))) / 1000)


def lag_of(op: OpLog, done: int, now_ms: int) -> Lag:
    """Tell how far what is done up to this version is behind the op log."""
    latest = op.table.version
    columns = ("op_timestamp",)
    waiting = sound_rows(op.table.changes.read(done + 1, latest, columns), columns)
    oldest = pc.min(waiting["op_timestamp"]).as_py()
    if oldest is None:
        # Commits without rows, such as the creation of the table, are no lag.
        return Lag(done, 0, 0.0)
    return Lag(done, latest - done, max(0.0, (now_ms - milliseconds(oldest)) / 1000))


def parked_topics(parked: Mapping[str, Mapping[str, Any]]) -> tuple[ParkedTopicStatus, ...]:
    """Take the parked topics from the value of the register `publisher`."""
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


def set_aside(store: Store) -> tuple[SetAsideStatus, ...]:
    """Read which transactions are set aside; 0 commits. Raises: StorageError."""
    entries = read_set_aside(store.tables).transactions
    return tuple(
        SetAsideStatus(
            name, entry.problem, timestamp(entry.since_ms), is_given_up=entry.giver_up is not None
        )
        for name, entry in sorted(entries.items())
    )


def verify_opened(
    store: Store, *, drained: bool, business: Mapping[str, MarkerPlace] | None = None
) -> VerifyReport:
    """Run `verify` by the settings with which a store was opened. Raises: as `verify`."""
    groups = store.config.check_settings().items()
    return verify(
        store.location,
        drained=drained,
        check_limits={group: settings.transaction_check_max for group, settings in groups},
        storage_options=store.storage_options,
        business=business,
        claim_keys=required_keys(store.config),
    )


def _sizes(logs: Logs, topics: Mapping[str, TableSize]) -> dict[str, TableSize]:
    tables = {"half": logs.half.table, "op": logs.op.table, "settled": logs.settled.table}
    sizes = {name: TableSize.of(table.files.all()) for name, table in tables.items()}
    return sizes | {f"topics/{name}": size for name, size in topics.items() if size.files}


def members_of(store: Store, now_ms: int) -> dict[str, int]:
    """Count the live producers that answer checks, by producer group; those that can be read."""
    counts = {group: _members_in(store, group, now_ms) for group in remote_groups(store)}
    return {group: count for group, count in counts.items() if count}


def _members_in(store: Store, group: str, now_ms: int) -> int:
    try:
        return requests_in(store, group).read().member_count(now_ms)
    except TxmqError as error:
        if error.retryable:
            raise
        # The doctor tells of it; the figures of the others stay.
        return 0
