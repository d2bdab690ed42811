"""What a status is counted from: the logs, the sizes of tables, the registers. Read-only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.clock import milliseconds
from txmq.columns import Groups, Integers, times_ms
from txmq.delta.schemas import SETTLED
from txmq.errors import TxmqError
from txmq.lifecycle import TransactionState
from txmq.listeners.outcomes import UNASKED_REASONS
from txmq.listeners.remote_requests import remote_groups, requests_in
from txmq.message.ids import transaction_times_ms
from txmq.publish.deliveries import are_ended
from txmq.publish.settle import settle
from txmq.results import Plain
from txmq.store.settled import last_facts, without_deliveries

if TYPE_CHECKING:
    from txmq.delta.files import DataFile
    from txmq.store.half import HalfLog
    from txmq.store.logs import Logs
    from txmq.store.op import OpLog
    from txmq.store.schedule import ScheduleLog
    from txmq.store.settled import SettledLog
    from txmq.store.store import Store

# Ages of open transactions, in seconds; of RocketMQ's finish_message_latency.
AGE_BOUNDS_S = (5, 60, 600, 3_600, 43_200, 86_400)
HALF_COLUMNS = ("transaction_id", "producer_group", "real_topic")


@dataclass(frozen=True, slots=True)
class TableSize(Plain):
    """How large a table is now; maintenance merges its files."""

    files: int
    rows: int
    size_bytes: int

    @classmethod
    def of(cls, files: Iterable[DataFile]) -> TableSize:
        """The size of these files."""
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
        """The age of each transaction by its id."""
        return np.maximum(0, now_ms - transaction_times_ms(self.owners["transaction_id"]))


@dataclass(frozen=True, slots=True)
class Schedule:
    """The messages that are neither delivered nor recalled.

    Attributes:
        messages: how many there are.
        lag_s: how long the one that was due first is overdue; 0 if none is.
    """

    messages: int
    lag_s: float


def states_of(logs: Logs, now_ms: int) -> pa.Table:
    """transaction_id and state of all transactions that a claim changed, settled or not."""
    settled, op = logs.settled, logs.op
    facts = settled.table.read(settled.table.files(), SETTLED.columns.names)
    waiting = op.between(settled.mark, op.table.version)
    columns = ["transaction_id", "state", "op_version", "ordinal"]
    fresh = settle(waiting, logs.half, settled, now_ms).facts
    all_facts = pa.concat_tables([facts.select(columns), fresh.select(columns)])
    return last_facts(without_deliveries(all_facts))


def open_halves(half: HalfLog, states: pa.Table) -> OpenHalves:
    """The halves of the PENDING transactions."""
    parts, problems = [half.table.read([], HALF_COLUMNS)], []
    for file in half.table.files():
        rows, problem = half.table.readable(file, partial(half.table.read, [file], HALF_COLUMNS))
        if rows is None:
            problems.append(problem)
        else:
            parts.append(rows)
    rows = pa.concat_tables(parts)
    is_pending = pc.equal(states["state"], TransactionState.PENDING.value)
    ended = states.filter(pc.invert(is_pending))["transaction_id"]
    rows = rows.filter(pc.invert(pc.is_in(rows["transaction_id"], value_set=ended)))
    _, first = np.unique(Groups.of(rows["transaction_id"]).place, return_index=True)
    topics = pc.value_counts(rows["real_topic"].drop_null()).to_pylist()
    messages = {row["values"]: row["counts"] for row in topics}
    owners = rows.select(["transaction_id", "producer_group"]).take(pa.array(first))
    return OpenHalves(owners, messages, tuple(problems))


def unasked_of(standings: pa.Table) -> dict[str, int]:
    """How many transactions were not asked about in their last check, by the reason."""
    counted = standings["reason"].value_counts().to_pylist()
    counts = {row["values"]: row["counts"] for row in counted}
    return {reason.value: counts[reason] for reason in UNASKED_REASONS if reason in counts}


def counts_by_state(states: pa.Table, logs: Logs) -> dict[str, int]:
    """The fields of Status that are named after a state; `open` is counted by halves instead."""
    counts = Counter(states["state"].to_pylist())
    counts.update(logs.settled.forgotten)
    ended = [state.value for state in TransactionState if state is not TransactionState.PENDING]
    return {name.lower(): counts[name] for name in ended}


def older_than(ages_ms: Integers) -> dict[int, int]:
    """How many are older than each of AGE_BOUNDS_S."""
    return {bound_s: int((ages_ms > bound_s * 1000).sum()) for bound_s in AGE_BOUNDS_S}


def scheduled(schedule: ScheduleLog, settled: SettledLog, now_ms: int) -> Schedule:
    """The messages of the schedule that wait, or should have come."""
    if not schedule.refresh().is_there:
        return Schedule(0, 0.0)
    columns = ("transaction_id", "sequence", "deliver_timestamp")
    rows = schedule.table.read(schedule.table.files(), columns)
    due_ms = times_ms(rows["deliver_timestamp"])[~are_ended(rows, settled)]
    return Schedule(len(due_ms), max(0, now_ms - int(due_ms.min(initial=now_ms))) / 1000)


def lag_of(op: OpLog, done: int, now_ms: int) -> Lag:
    """How far what is done up to this version is behind the op log."""
    latest = op.table.version
    waiting = op.table.changes(done + 1, latest, ("op_timestamp",))
    oldest = pc.min(waiting["op_timestamp"]).as_py()
    if oldest is None:
        # Commits without rows, such as the creation of the table, are no lag.
        return Lag(done, 0, 0.0)
    return Lag(done, latest - done, max(0.0, (now_ms - milliseconds(oldest)) / 1000))


def members_of(store: Store, now_ms: int) -> dict[str, int]:
    """How many live producers answer checks, by producer group; those that can be read."""
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
