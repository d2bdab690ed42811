"""The checker's look at the schedule: what waits for its time, and when that is.

A row of it also stands for a half that retention took: it holds all that was sent, and it is
evidence of the COMMIT.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.message.names import SCHEDULE_TOPIC
from txmq.verify.arrays import ABSENT, DIGEST, UNSAID, Integers, microseconds
from txmq.verify.fates import Fates
from txmq.verify.fold import COMMITTED
from txmq.verify.halves import Halves
from txmq.verify.store import PinnedStore, midnight_us
from txmq.verify.tables import SCHEDULE_COLUMNS

# Longer pauses are no txmq's, and would not fit into a time.
_MAX_PAUSE_S = 10**11
_COPIED = {"real_topic": "topic", "real_queue_id": "queue_id"}


def schedule_rows(pinned: PinnedStore) -> pa.Table:
    """Read SCHEDULE_COLUMNS and DIGEST of all rows; none if there is no schedule."""
    if SCHEDULE_TOPIC in pinned.topics:
        return pinned.topics[SCHEDULE_TOPIC].rows(SCHEDULE_COLUMNS, content=True)
    return pa.table({name: pa.nulls(0) for name in (*SCHEDULE_COLUMNS, *DIGEST)})


def stand_ins(schedule: pa.Table, halves: pa.Table, pinned: PinnedStore) -> pa.Table:
    """Make rows like those of `halves` for messages whose halves retention took, each once."""
    if not schedule.num_rows:
        return halves.slice(0, 0)
    rows = _without_half(schedule, halves, pinned)
    names = ("queue_offset", "queue_id")
    order = np.lexsort([pc.fill_null(rows[name], ABSENT).to_numpy() for name in names])
    rows = rows.take(pa.array(order))
    numbered = rows.append_column("row", pa.array(np.arange(rows.num_rows)))
    address = numbered.group_by(["transaction_id", "sequence"]).aggregate([("row", "min")])
    rows = rows.take(address["row_min"])
    columns = {
        field.name: _column(rows, _COPIED.get(field.name, field.name), field.type)
        for field in halves.schema
    }
    return pa.table(columns, schema=halves.schema)


def commits_of(schedule: pa.Table, halves: pa.Table, pinned: PinnedStore) -> pa.Table:
    """Return what the schedule says of their COMMITs: transaction_id, op_version, life."""
    if not schedule.num_rows:
        none = {"transaction_id": pa.string(), "op_version": pa.int64(), "life": pa.int64()}
        return pa.schema(list(none.items())).empty_table()
    rows = _without_half(schedule, halves, pinned)
    firsts = rows.group_by("transaction_id").aggregate([("op_version", "min"), ("life", "min")])
    numbers = [pc.fill_null(firsts[name], -1) for name in ("op_version_min", "life_min")]
    return pa.table(
        [firsts["transaction_id"], *numbers], names=["transaction_id", "op_version", "life"]
    )


def committed_us(settled: pa.Table, halves: Halves, fates: Fates) -> Integers:
    """Return when the COMMIT of each transaction was settled; UNSAID if nobody tells it."""
    return _of_commits(settled, settled["settled_timestamp"], halves, fates)


def begun_us(settled: pa.Table, halves: Halves, fates: Fates) -> Integers:
    """Return when the pauses of each transaction began: its COMMIT, as the settled log says."""
    moments = pc.coalesce(settled["op_timestamp"], settled["settled_timestamp"])
    return _of_commits(settled, moments, halves, fates)


def _of_commits(
    settled: pa.Table, times: pa.ChunkedArray, halves: Halves, fates: Fates
) -> Integers:
    """Return the first of these times for the COMMIT of each transaction; UNSAID without one."""
    is_commit = pc.equal(settled["state"], COMMITTED)
    rows = settled.append_column("moment", times).filter(is_commit)
    numbers = halves.numbers_of(rows["transaction_id"])
    same = pc.fill_null(rows["op_version"], -1).to_numpy() == fates.op_version[numbers]
    moments = microseconds(rows["moment"])
    same &= (numbers >= 0) & (moments != UNSAID)
    latest = np.iinfo(np.int64).max
    first_us = np.full(len(halves.ids) + 1, latest, dtype=np.int64)
    np.minimum.at(first_us, numbers[same], moments[same])
    return np.where(first_us == latest, UNSAID, first_us)


def asked_due_us(
    halves: Halves, begun: Integers, committed: Integers, schedule: pa.Table
) -> Integers:
    """Return when each message is due by what was sent; UNSAID if it is not delayed or not known.

    A pause begins with the COMMIT. Older versions began it when the COMMIT was settled; a row of
    the schedule that shows this is believed.
    """
    moment = microseconds(halves.rows["deliver_timestamp"])
    paused, before = _paused_until(halves, begun), _paused_until(halves, committed)
    is_of_before = (before != UNSAID) & (_scheduled_us(schedule, halves) == before)
    due = np.where(moment != UNSAID, moment, np.where(is_of_before, before, paused))
    return np.where(halves.delayed, due, UNSAID)


def _paused_until(halves: Halves, begun: Integers) -> Integers:
    """Return when the pause of each message ends; UNSAID if its begin is not known."""
    pause_s = pc.fill_null(halves.rows["delay_s"], 0).to_numpy()
    begin = begun[halves.transaction]
    has_end = (begin != UNSAID) & (pause_s <= _MAX_PAUSE_S)
    later = np.where(has_end, begin, 0) + np.where(has_end, pause_s, 0) * 1_000_000
    return np.where(has_end, later, UNSAID)


def _scheduled_us(schedule: pa.Table, halves: Halves) -> Integers:
    """Return the first time for which the schedule holds each message; UNSAID if it does not."""
    latest = np.iinfo(np.int64).max
    first_us = np.full(halves.rows.num_rows + 1, latest, dtype=np.int64)
    if schedule.num_rows:
        moments = microseconds(schedule["deliver_timestamp"])
        place = messages_of(schedule, halves)
        np.minimum.at(first_us, place, np.where(moments == UNSAID, latest, moments))
    return np.where(first_us == latest, UNSAID, first_us)[:-1]


def due_us(asked_due: Integers, schedule: pa.Table, halves: Halves) -> Integers:
    """Return when each message is due: `asked_due`, or by the schedule if unsaid."""
    unknown = (asked_due == UNSAID) & halves.delayed
    if not unknown.any():
        return asked_due
    return np.where(unknown, _scheduled_us(schedule, halves), asked_due)


def messages_of(rows: pa.Table, halves: Halves) -> Integers:
    """Return the number of the message that each row shows; ABSENT without a half of it."""
    sequences = pc.fill_null(rows["sequence"], ABSENT).to_numpy()
    return halves.find(halves.numbers_of(rows["transaction_id"]), sequences)


def _without_half(schedule: pa.Table, halves: pa.Table, pinned: PinnedStore) -> pa.Table:
    ids = schedule["transaction_id"]
    absent = pc.invert(pc.is_in(ids, value_set=pc.unique(halves["transaction_id"])))
    gone = pc.and_(pc.and_(absent, pinned.forgotten(ids)), pc.is_valid(schedule["sequence"]))
    due = microseconds(schedule["deliver_timestamp"])
    limit_us = midnight_us(pinned.schedule_forgotten_before_date)
    # Of days that may be gone, what became of their messages may be gone too.
    is_kept = pa.array((due != UNSAID) & (due >= limit_us))
    return schedule.filter(pc.and_(gone, is_kept))


def _column(rows: pa.Table, name: str, kind: pa.DataType) -> pa.ChunkedArray | pa.Array:
    """Take a column; what the schedule lacks is null, for its rows are no heads and have a time."""
    return rows[name] if name in rows.column_names else pa.nulls(rows.num_rows, kind)
