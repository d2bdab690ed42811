"""The life of one transaction: every row that any table holds about it, in order of time."""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.log_files import log_files
from txmq.errors import StorageError
from txmq.ground.columns import python_rows, python_values
from txmq.ground.results import Plain
from txmq.message.lifecycle import ClaimKind, TransactionState
from txmq.message.names import SCHEDULE_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC
from txmq.store.known import Known
from txmq.store.op import CLAIM_COLUMNS, claims_of_table
from txmq.store.settled import NOTHING

if TYPE_CHECKING:
    from txmq.delta.table import Table
    from txmq.store.op import OpLog


SHOWN_HASH_CHARACTERS = 12
NOT_VISIBLE = (TRANS_CHECK_MAX_TIME_TOPIC, SCHEDULE_TOPIC)


class LifeStage(enum.StrEnum):
    """The table of an event, in the order in which a message passes the tables."""

    HALF = "half"
    CLAIM = "claim"
    FACT = "fact"
    SCHEDULED = "scheduled"
    MESSAGE = "message"
    DEAD_LETTER = "dead letter"


@dataclass(frozen=True, slots=True)
class LifeEvent(Plain):
    """One row about a transaction; `at` is the clock of its writer."""

    at: datetime
    stage: LifeStage
    title: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransactionLife(Plain):
    """All rows about one transaction, in order of time.

    Attributes:
        producer_group: None where no half, fact or message is left.
        state: None where nobody can tell: no half and no final fact is left, and no message.
        message_count: how many messages its head promises; None without a head.
        messages_found: how many half messages there are; retention takes them after the end.
        life: how often it was resumed.
        check_times: how many checks were counted in this life.
    """

    transaction_id: str
    producer_group: str | None
    state: TransactionState | None
    life: int
    check_times: int
    message_count: int | None
    messages_found: int
    events: tuple[LifeEvent, ...]


# --- rows -----------------------------------------------------------------------------------------


def claims_about(op: OpLog, transaction_id: str) -> pa.Table:
    """Read all claims about a transaction; without its commit a claim has version NOTHING."""
    first = _first_commit(op)
    try:
        rows = op.between(first - 1, op.table.version)
    except StorageError:
        if _first_commit(op) == first:
            raise
        # The log was cleaned between the two looks.
        return claims_about(op, transaction_id)
    recent = rows.filter(pc.equal(rows["transaction_id"], transaction_id))
    if first == 0:
        return recent
    recent_keys = {_claim_key(row) for row in recent.to_pylist()}
    live = op.rows_about(pa.array([transaction_id]))
    is_old = pa.array([_claim_key(row) not in recent_keys for row in live.to_pylist()], pa.bool_())
    old = live.filter(is_old)
    version = pa.array([NOTHING] * old.num_rows, pa.int64())
    return pa.concat_tables([old.append_column("_commit_version", version), recent])


def _first_commit(op: OpLog) -> int:
    return min(log_files(op.table.folder).commits_ms, default=0)


def _claim_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in CLAIM_COLUMNS)


def claims_in_no_order(op: OpLog, transaction_id: str) -> pa.Table:
    """Read claims as `claims_about`, all with version NOTHING, of files that may hold them."""
    rows = op.rows_about(pa.array([transaction_id]))
    return rows.append_column("_commit_version", pa.array([NOTHING] * rows.num_rows, pa.int64()))


def some_rows(
    table: Table, transaction_ids: pa.Array, columns: Sequence[str], max_rows: int
) -> pa.Table:
    """Read at most so many rows of transactions; no more files are read than it takes."""
    rows = table.rows.read([], columns)
    for file in table.files.holding("transaction_id", transaction_ids):
        of_file = table.rows.read([file], columns)
        is_about = pc.is_in(of_file["transaction_id"], value_set=transaction_ids)
        rows = pa.concat_tables([rows, of_file.filter(is_about)])
        if rows.num_rows >= max_rows:
            break
    return rows.slice(0, max_rows)


def check_times_of(claims: pa.Table, known: Known) -> int:
    """Count the checks of the current life."""
    return max(
        (
            claim.check_times or 0
            for claim in claims_of_table(claims)
            if claim.kind is ClaimKind.UNKNOWN
            and claim.producer_group == known.producer_group
            and claim.life == known.life
        ),
        default=0,
    )


def topics_of(halves: pa.Table) -> list[str]:
    """List the topics that may hold messages of these halves."""
    names = sorted(name for name in python_values(pc.unique(halves["real_topic"])) if name)
    return [*names, TRANS_CHECK_MAX_TIME_TOPIC, SCHEDULE_TOPIC]


# --- events ---------------------------------------------------------------------------------------


def event_order(event: LifeEvent) -> tuple[datetime, int, int, int, str]:
    """Return the sort key of an event: its time, then the order of the tables."""
    details = event.details
    place = details.get("op_version") or NOTHING, details.get("ordinal") or 0
    stage = list(LifeStage).index(event.stage)
    return event.at, stage, *place, details.get("message_id") or ""


def _at(time: datetime | None) -> datetime:
    """Return the time of a row; a row by hand may have none."""
    return time or datetime.min.replace(tzinfo=UTC)


def half_events(rows: pa.Table) -> Iterator[LifeEvent]:
    """Yield an event for each half."""
    for row in python_rows(rows):
        title = "head without payload" if row["real_topic"] is None else f"to {row['real_topic']}"
        details = {
            "message_id": row["message_id"],
            "producer_group": row["producer_group"],
            "queue_id": row["real_queue_id"],
            "message_count": row["message_count"],
            "check_immunity_time_s": row["check_immunity_time_s"],
            "delay_s": row["delay_s"],
            "deliver_timestamp": row["deliver_timestamp"],
            "ordinary": row["ordinary"] or None,
            **_content(row),
        }
        yield LifeEvent(_at(row["born_timestamp"]), LifeStage.HALF, title, _without_nulls(details))


def claim_events(claims: pa.Table) -> Iterator[LifeEvent]:
    """Yield an event for each claim."""
    for row in python_rows(claims):
        details = {
            "source": row["source"],
            "producer_group": row["producer_group"],
            "op_version": row["_commit_version"] if row["_commit_version"] >= 0 else None,
            "ordinal": row["ordinal"],
            "life": row["life"],
            "check_times": row["check_times"],
            "next_check_timestamp": row["next_check_timestamp"],
            "sequences": row["sequences"],
            "reason": row["reason"],
        }
        yield LifeEvent(
            _at(row["op_timestamp"]), LifeStage.CLAIM, row["kind"], _without_nulls(details)
        )


def fact_events(facts: pa.Table) -> Iterator[LifeEvent]:
    """Yield an event for each settled row."""
    for row in python_rows(facts):
        names = ("source", "op_version", "ordinal", "life", "sequences", "reason")
        details = {name: row[name] for name in names}
        yield LifeEvent(
            _at(row["settled_timestamp"]), LifeStage.FACT, row["state"], _without_nulls(details)
        )


def shown_events(topic: str, rows: pa.Table) -> Iterator[LifeEvent]:
    """Yield an event for each row in a topic or in the schedule."""
    if topic == SCHEDULE_TOPIC:
        yield from _scheduled_events(rows)
        return
    is_dead = topic == TRANS_CHECK_MAX_TIME_TOPIC
    stage = LifeStage.DEAD_LETTER if is_dead else LifeStage.MESSAGE
    for row in python_rows(rows):
        details = {
            "message_id": row["message_id"],
            "queue_id": row["queue_id"],
            "queue_offset": row["queue_offset"],
            "op_version": row["op_version"],
            "life": row["life"],
            **_content(row),
        }
        yield LifeEvent(_at(row["store_timestamp"]), stage, f"in {topic}", _without_nulls(details))


def _scheduled_events(rows: pa.Table) -> Iterator[LifeEvent]:
    for row in python_rows(rows):
        names = ("message_id", "op_version", "life", "deliver_timestamp")
        title = f"to {row['topic']}, in the schedule"
        details = {name: row[name] for name in names}
        yield LifeEvent(_at(row["store_timestamp"]), LifeStage.SCHEDULED, title, details)


def _content(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the details that may be shown: size and start of the hash, never the body."""
    details = {"tags": row["tags"], "keys": row["keys"], "sharding_key": row["sharding_key"]}
    body = row.get("body")
    if body is None:
        return details
    sha256 = hashlib.sha256(body).hexdigest()[:SHOWN_HASH_CHARACTERS]
    return {**details, "body_size_bytes": len(body), "body_sha256": sha256}


def _without_nulls(details: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in details.items() if value is not None}
