"""Deletes a topic: removes its settings and messages once no transaction names it any more.

The log of its table, a few kilobytes, stays (decision 0018). So a publisher that still holds the
table keeps working, and a message that is committed later is published and not lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from txmq.clock import Clock
from txmq.columns import Groups, find_pairs, integers, list_items
from txmq.delta.log import delete_files, log_files, named_by
from txmq.delta.storage import Table
from txmq.errors import CommitConflictError, CommitRefusedError, TopicInUseError
from txmq.lifecycle import FINAL_STATES, TransactionState
from txmq.maintenance.topic_retention import tell_topic_begin
from txmq.message.names import SCHEDULE_TOPIC
from txmq.publish.progress import PublishProgress
from txmq.results import Plain
from txmq.store.settled import NOTHING, SettledLog, last_facts
from txmq.store.store import Store
from txmq.store.typed import set_body_schema

_AT_REST = pa.array([state.value for state in (*FINAL_STATES, TransactionState.DISCARDED)])


@dataclass(frozen=True, slots=True)
class TopicDeletion(Plain):
    """What a deletion removes, or has removed.

    Attributes:
        rows, size_bytes: the size of the topic.
        op_version: messages up to this version of the op log are removed.
        is_written: false in a dry run.
    """

    topic: str
    rows: int
    size_bytes: int
    op_version: int
    is_written: bool = False


def delete_topic(store: Store, topic: str, clock: Clock, *, apply: bool) -> TopicDeletion:
    """Remove the settings and messages of a topic; a dry run unless `apply`.

    Reads: half, settled, state/publisher, the topic's log. Writes: state/maintenance, state/topics,
    the topic. Commits: with `apply` one to each of them, else 0.

    Raises: TopicInUseError, CommitConflictError, StorageError.
    """
    for _ in range(store.config.commit_attempts):
        table = store.tables.table_at(f"topics/{topic}")
        plan = _planned(store, topic, table)
        if not apply:
            return plan
        try:
            _delete(store, table, plan, clock.now_ms())
        except CommitRefusedError:
            continue
        return replace(plan, is_written=True)
    raise CommitConflictError(topic, "other writers won every try to delete it; try again")


def _planned(store: Store, topic: str, table: Table) -> TopicDeletion:
    version = check_unused(store, topic)
    if not table.exists():
        return TopicDeletion(topic, 0, 0, NOTHING)
    ranges = table.ranges("op_version")
    if any(span.high is None or span.high > version for span in ranges):
        problem = "got messages a moment ago; stop its producers, then try again"
        raise TopicInUseError(topic, 0, problem)
    rows = sum(span.file.num_records for span in ranges)
    return TopicDeletion(topic, rows, sum(span.file.size_bytes for span in ranges), version)


def check_unused(store: Store, topic: str) -> int:
    """The op version up to which the topic has all messages.

    Raises: TopicInUseError if transactions that name it are open or not published everywhere.
    """
    version = _published(store, topic)
    ids = unfinished(store, topic, version)
    if len(ids):
        problem = (
            f"is named by {len(ids):,} transactions that are open or not published everywhere, "
            f"first {ids[0]}; end them, let the publisher catch up, then try again"
        )
        raise TopicInUseError(topic, len(ids), problem)
    return version


def _delete(store: Store, table: Table, plan: TopicDeletion, now_ms: int) -> None:
    """Remove settings and messages.

    Order matters: `topic_begin` is recorded before any file goes, so that verify never meets an
    unexplained gap. A deletion that was killed can simply be run again.
    """
    if plan.rows:
        tell_topic_begin(store, {plan.topic: plan.op_version}, now_ms)
    register = store.tables.topic_register(create=True)
    register.swap(register.read().with_deleted(plan.topic), now_ms)
    if plan.rows:
        _empty(table)
    if table.exists():
        # A new topic of this name may have another schema.
        set_body_schema(table, plan.topic, None)


def _empty(table: Table) -> None:
    table.remove(table.files())
    # Data files go at once; readers may still read the log, which maintenance cleans.
    named = named_by(table, log_files(table).commits_ms)
    delete_files(table, named - {file.path for file in table.refresh().files()})


# --- unfinished transactions --------------------------------------------------------------------


def unfinished(store: Store, topic: str, version: int) -> pa.Array:
    """Transactions that name the topic and may publish to it after an op version.

    Discarded transactions do not count: if one is resumed and committed later, it creates the topic
    again.
    """
    # Half and schedule are read first, so that an end that is written meanwhile is seen.
    ids, scheduled = _naming(store, topic), _scheduled(store, topic)
    settled = store.tables.logs().settled
    facts = last_facts(settled.facts_of(ids))
    at_rest = pc.and_(
        pc.is_in(facts["state"], value_set=_AT_REST), pc.less_equal(facts["op_version"], version)
    )
    ended = facts.filter(at_rest)["transaction_id"]
    open_ids = ids.filter(pc.invert(pc.is_in(ids, value_set=ended)))
    waiting = _waiting(scheduled, settled, version)
    return pc.unique(pa.concat_arrays([open_ids, waiting]))


def _scheduled(store: Store, topic: str) -> pa.Table:
    """transaction_id and sequence of the delayed messages to a topic."""
    schedule = store.tables.schedule_log().refresh()
    files = schedule.table.files() if schedule.is_there else []
    rows = schedule.table.read(files, ("transaction_id", "sequence", "topic"))
    return rows.filter(pc.equal(rows["topic"], topic)).select(["transaction_id", "sequence"])


def _waiting(scheduled: pa.Table, settled: SettledLog, version: int) -> pa.Array:
    """Transactions with a message that is neither recalled nor published."""
    ids = pc.unique(scheduled["transaction_id"])
    facts = settled.deliveries_of(ids)
    facts = facts.filter(pc.less_equal(facts["op_version"], version))
    fact, sequence = list_items(facts["sequences"])
    by_id = Groups.of(facts["transaction_id"])
    place = integers(pc.index_in(scheduled["transaction_id"], value_set=by_id.keys), NOTHING)
    messages = (place, integers(scheduled["sequence"], NOTHING))
    is_waiting = find_pairs(messages, (by_id.place[fact], sequence)) < 0
    return pc.unique(scheduled.filter(pa.array(is_waiting))["transaction_id"])


def _naming(store: Store, topic: str) -> pa.Array:
    """Transactions with a half message to the topic; reads one file at a time."""
    half = store.tables.half_log().table
    parts = [
        _ids(half.read([file], ("transaction_id", "real_topic")), topic)
        for file in half.files_holding("real_topic", pa.array([topic]))
    ]
    return pc.unique(pa.concat_arrays([pa.array([], pa.string()), *parts]))


def _ids(rows: pa.Table, topic: str) -> pa.Array:
    return pc.unique(rows.filter(pc.equal(rows["real_topic"], topic))["transaction_id"])


def _published(store: Store, topic: str) -> int:
    """The op version up to which this topic has its messages; other topics may be parked."""
    value = store.tables.register("publisher").read().value
    if not value:
        return NOTHING
    progress = PublishProgress.from_value(value, store.tables.op_log().table)
    # Delayed messages come through the schedule.
    behind = [progress.parked[name] for name in (topic, SCHEDULE_TOPIC) if name in progress.parked]
    return min([progress.low_water_version, *(parked.from_version for parked in behind)])
