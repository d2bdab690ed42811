"""Deleting a topic: its settings and its messages go, once nothing is on its way to it.

The log of its table stays, a few kilobytes: a publisher that still holds the table appends to it
and not to nothing, so a message that comes after all is shown and not lost.
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
    """What a deletion takes away, or has taken.

    Attributes:
        rows, size_bytes: of the topic.
        op_version: what the topic showed up to here is gone.
        is_written: false in a dry run.
    """

    topic: str
    rows: int
    size_bytes: int
    op_version: int
    is_written: bool = False


def delete_topic(store: Store, topic: str, clock: Clock, *, apply: bool) -> TopicDeletion:
    """Take a topic's settings and messages away; dry unless `apply`.

    Reads: half, settled, state/publisher, the topic's log. Writes: state/maintenance, state/topics,
    the topic. Commits: with `apply` one to each of them, else 0.

    Raises: TopicInUseError, CommitConflictError, StorageError.
    """
    for _ in range(store.config.commit_attempts):
        table = store.table_at(f"topics/{topic}")
        found = _planned(store, topic, table)
        if not apply:
            return found
        try:
            _delete(store, topic, table, found, clock.now_ms())
        except CommitRefusedError:
            continue
        return replace(found, is_written=True)
    raise CommitConflictError(topic, "other writers won every try to delete it")


def _planned(store: Store, topic: str, table: Table) -> TopicDeletion:
    version = _published(store, topic)
    _check_unused(topic, unfinished(store, topic, version))
    if not table.exists():
        return TopicDeletion(topic, 0, 0, NOTHING)
    ranges = table.ranges("op_version")
    if any(one.high is None or one.high > version for one in ranges):
        problem = "got messages a moment ago; stop its producers, then try again"
        raise TopicInUseError(topic, 0, problem)
    rows = sum(one.file.num_records for one in ranges)
    return TopicDeletion(topic, rows, sum(one.file.size_bytes for one in ranges), version)


def _check_unused(topic: str, ids: pa.Array) -> None:
    if len(ids):
        problem = (
            f"is named by {len(ids):,} transactions that are open or not published everywhere, "
            f"first {ids[0]}; end them, let the publisher catch up, then try again"
        )
        raise TopicInUseError(topic, len(ids), problem)


def _delete(store: Store, topic: str, table: Table, found: TopicDeletion, now_ms: int) -> None:
    """In this order: what is missing was said to be, and a killed deletion is done again."""
    if found.rows:
        tell_topic_begin(store, {topic: found.op_version}, now_ms)
    register = store.topic_register(create=True)
    register.swap(register.read().with_deleted(topic), now_ms)
    if found.rows:
        _empty(table)
    if table.exists():
        # Who makes it anew may choose other bodies.
        set_body_schema(table, topic, None)


def _empty(table: Table) -> None:
    table.remove(table.files())
    # The messages are to be gone now; the log, which readers may be reading, goes by maintenance.
    named = named_by(table, log_files(table).commits_ms)
    delete_files(table, named - {file.path for file in table.refresh().files()})


# --- what is on its way ------------------------------------------------------------------------


def unfinished(store: Store, topic: str, version: int) -> pa.Array:
    """Transactions that name the topic and may show something in it after an op version.

    Not those that were discarded: resumed and committed later, they make the topic anew.
    """
    # Half and schedule first: an end that comes between the two looks is then known.
    ids, scheduled = _naming(store, topic), _scheduled(store, topic)
    settled = store.logs().settled
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
    schedule = store.schedule_log().refresh()
    files = schedule.table.files() if schedule.is_there else []
    rows = schedule.table.read(files, ("transaction_id", "sequence", "topic"))
    return rows.filter(pc.equal(rows["topic"], topic)).select(["transaction_id", "sequence"])


def _waiting(scheduled: pa.Table, settled: SettledLog, version: int) -> pa.Array:
    """Transactions with a message that is neither recalled nor shown."""
    ids = pc.unique(scheduled["transaction_id"])
    facts = settled.deliveries_of(ids)
    facts = facts.filter(pc.less_equal(facts["op_version"], version))
    fact, sequence = list_items(facts["sequences"])
    by_id = Groups.of(facts["transaction_id"])
    place = integers(pc.index_in(scheduled["transaction_id"], value_set=by_id.keys), NOTHING)
    wanted = (place, integers(scheduled["sequence"], NOTHING))
    is_waiting = find_pairs(wanted, (by_id.place[fact], sequence)) < 0
    return pc.unique(scheduled.filter(pa.array(is_waiting))["transaction_id"])


def _naming(store: Store, topic: str) -> pa.Array:
    half = store.half_log().table
    wanted = pa.array([topic])
    parts = [
        _ids(half.read([file], ("transaction_id", "real_topic")), topic)
        for file in half.files_holding("real_topic", wanted)
    ]
    return pc.unique(pa.concat_arrays([pa.array([], pa.string()), *parts]))


def _ids(rows: pa.Table, topic: str) -> pa.Array:
    found = rows.filter(pc.equal(rows["real_topic"], topic))["transaction_id"]
    return pc.unique(found)


def _published(store: Store, topic: str) -> int:
    """This topic has its messages up to this version; others may be parked."""
    value = store.register("publisher").read().value
    if not value:
        return NOTHING
    progress = PublishProgress.from_value(value, store.op_log().table)
    # A delayed message comes by way of the schedule.
    behind = [progress.parked[name] for name in (topic, SCHEDULE_TOPIC) if name in progress.parked]
    return min([progress.low_water_version, *(parked.from_version for parked in behind)])
