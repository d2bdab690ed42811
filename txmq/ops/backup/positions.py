"""Reads how far the tables of a store are, in an order that is right beside running services."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.consumer.group import GroupValue
from txmq.delta.log_files import commit_fingerprint, fingerprint_of
from txmq.delta.table import Table
from txmq.errors import StorageError, TxmqError
from txmq.message.ids import transaction_times_ms
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.ops.backup.order import LogSight, PublisherSight, SettledSight, StoreSight, TopicSight
from txmq.publish.progress import PublishProgress
from txmq.store.known import MaintenanceValue, kept_since_ms
from txmq.store.op import OpLog
from txmq.store.set_aside import REGISTER as SET_ASIDE
from txmq.store.set_aside import SetAsideTransactions
from txmq.store.settled import NOTHING
from txmq.store.tables import CONSUMER_GROUP, StoreTables
from txmq.store.topic import OFFSET_MARK, TopicEnd, queue_ends

# Only the newest claims can lack halves that a copy of half has not yet.
CLAIM_COMMITS_MAX = 1_000
# Each one that cannot be read is tried for half a second.
LOST_COMMITS_MAX = 10
_ENDS = pa.array([ClaimKind.COMMIT.value, ClaimKind.ROLLBACK.value])


def sight_of(tables: StoreTables) -> StoreSight:
    """Read how far the tables are; 0 commits. Whatever refers to another table is read before it.

    A group, or a progress, that cannot be read says nothing.

    Raises: StorageError where a log or a topic cannot be read.
    """
    groups = {name: _offsets(tables, name) for name in tables.groups_with(CONSUMER_GROUP)}
    publisher = _publisher(tables)
    op_id = tables.op_log().table_id
    topics = {name: _topic(tables, name, op_id) for name in tables.topic_names()}
    log = tables.settled_log(op_id)
    settled = SettledSight(log.mark, log.fingerprint, *log.half_seen[:2], log.set_aside_count)
    count = _set_aside_count(tables)
    op, half = tables.op_log(), tables.half_log().table
    lacking = _claims_without_halves(tables, settled.mark)
    return StoreSight(
        _log(op.refresh().table), _log(half.refresh()), settled, publisher, topics, groups,
        count, lacking,
    )  # fmt: skip


def _log(table: Table) -> LogSight:
    return LogSight(table.version, partial(_fingerprint, table))


def _fingerprint(table: Table, version: int) -> int | None:
    """Return the fingerprint of a commit with content; one that lost it is told elsewhere."""
    content = table.folder.commit_bytes(version)
    return commit_fingerprint(table, version) if (content or b"").strip() else None


def _topic(tables: StoreTables, name: str, op_id: str) -> TopicSight:
    topic = tables.topic_log(name, op_id)
    offsets = queue_ends(topic.table.log.marks(OFFSET_MARK))
    return TopicSight(topic.end, topic.fingerprint, offsets)


def _value(tables: StoreTables, name: str, form: Any) -> Mapping[str, Any]:
    """Read the value of a register; empty if there is none that can be read."""
    register = tables.register(name, form)
    try:
        return register.read().value if register.exists else {}
    except TxmqError:
        # Whoever needs it is told.
        return {}


def _publisher(tables: StoreTables) -> PublisherSight:
    value = _value(tables, "publisher", PublishProgress)
    if not value:
        return PublisherSight()
    sha256 = value["op_commit_sha256"]
    fingerprint = None if sha256 is None else fingerprint_of(sha256)
    ends = {topic: TopicEnd(*end) for topic, end in value.get("ends", {}).items()}
    return PublisherSight(value["low_water_version"], fingerprint, ends)


def _offsets(tables: StoreTables, group: str) -> dict[tuple[str, int], int]:
    """Read how far the readers of a group have been, by topic and queue."""
    value = _value(tables, CONSUMER_GROUP + group, GroupValue)
    # Behind an offset messages may be acknowledged one by one.
    ends = {
        topic: {queue: end for queue, (end, _) in by_queue.items()}
        for topic, by_queue in value.get("attempts", {}).items()
    }
    furthest: dict[tuple[str, int], int] = {}
    for by_topic in (*value.get("offsets", {}).values(), ends):
        for topic, by_queue in by_topic.items():
            for queue, offset in by_queue.items():
                place = (topic, int(queue))
                furthest[place] = max(furthest.get(place, 0), offset)
    return furthest


def _set_aside_count(tables: StoreTables) -> int | None:
    value = _value(tables, SET_ASIDE, SetAsideTransactions)
    count = value.get("count") if value else 0
    return None if count is None else int(count)


def _claims_without_halves(tables: StoreTables, mark: int) -> int:
    """Count the newest unsettled ends of producers that have no half."""
    op = tables.op_log().refresh()
    after = max(mark, op.table.version - CLAIM_COMMITS_MAX, NOTHING)
    claims = _readable_claims(op, after, op.table.version)
    is_end = pc.and_(
        pc.is_in(claims["kind"], value_set=_ENDS),
        pc.equal(claims["source"], ClaimSource.PRODUCER.value),
    )
    ids = pc.unique(claims.filter(is_end)["transaction_id"])
    half = tables.half_log().table
    there, unreadable = half.search.readable_rows_of("transaction_id", ids, ("transaction_id",))
    lacking = ids.filter(pc.invert(pc.is_in(ids, value_set=there["transaction_id"])))
    for file in unreadable:
        # Who looks into that file is told.
        lacking = lacking.filter(pa.array(~file.covers(lacking)))
    times_ms = transaction_times_ms(pa.chunked_array([lacking]))
    return int((times_ms >= _kept_since_ms(tables)).sum())


def _readable_claims(op: OpLog, after: int, through: int) -> pa.Table:
    """Read the claims of these commits; what cannot be read is left out: who needs it is told."""
    try:
        return op.between(after, through)
    except StorageError:
        claims, lost = [op.between(through, through)], 0
    # The newest first: they lack their halves before others do.
    for version in range(through, after, -1):
        try:
            claims.append(op.between(version - 1, version))
        except StorageError:
            lost += 1
        if lost == LOST_COMMITS_MAX:
            break
    return pa.concat_tables(claims)


def _kept_since_ms(tables: StoreTables) -> int:
    """Return from when on transactions are kept; retention may have taken older ones."""
    return kept_since_ms(_value(tables, "maintenance", MaintenanceValue)) or 0
