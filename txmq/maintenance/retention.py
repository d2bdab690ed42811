"""Retention: removes whole days of half, then op, schedule and settled, that nobody needs.

A day of half is removed when all its transactions have ended, every topic has their messages, and
both the day and the last write to its partition are older than `file_reserved_time_h` (RocketMQ
fileReservedTime, R43, R62). A transaction that is open for so long expires first; its messages
become dead letters. A topic may have a retention of its own: its old files are removed.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.check.open_transactions import OpenTransactions
from txmq.delta.files import DataFile, FileRange
from txmq.delta.reading import Shrink
from txmq.delta.table import Table
from txmq.errors import CommitRefusedError, StorageError, UnsupportedTableError
from txmq.ground.clock import Clock, affine, milliseconds
from txmq.ground.columns import flags, sound_rows, whole
from txmq.ground.fail_points import FailPoint, reached
from txmq.ground.results import Sum
from txmq.message.lifecycle import FINAL_STATES, ClaimKind, ClaimSource
from txmq.message.names import SCHEDULE_TOPIC
from txmq.publish.progress import PublishProgress
from txmq.publish.settle import are_ended
from txmq.store.claim_writer import ClaimWriter
from txmq.store.known import (
    FORGOTTEN_BEFORE,
    SCHEDULE_FORGOTTEN_BEFORE,
    TOPIC_BEGIN,
    MaintenanceValue,
    begin_of,
    maintenance_value,
)
from txmq.store.op import OpRow
from txmq.store.set_aside import read_set_aside
from txmq.store.settled import NOTHING, SettledLog, scheduled_among
from txmq.store.store import Store
from txmq.store.store_clock import StoreClock
from txmq.store.topic import remove_messages

logger = logging.getLogger(__name__)

CLAIMS_A_COMMIT = 50_000
# Ids that are held at once, of 40 bytes each.
IDS_AT_ONCE = 1_000_000
OLDER_THAN_RETENTION = "OLDER_THAN_RETENTION"
_HOUR_MS = 3_600_000
_FINAL = pa.array([state.value for state in FINAL_STATES])
_ID = "transaction_id"
_NO_IDS = pa.array([], pa.string())
# Before every file.
_NEVER_MS = 0


@dataclass(frozen=True, slots=True)
class Retained(Sum):
    """How many transactions expired, and which days of each log were removed."""

    expired: int = 0
    half_days: tuple[date, ...] = ()
    op_days: tuple[date, ...] = ()
    schedule_days: tuple[date, ...] = ()
    settled_days: tuple[date, ...] = ()


def is_over(day: date, newest_write_ms: int, now_ms: int, reserved_ms: float) -> bool:
    """Tell whether a day and the last write to its partition are both older than `reserved_ms`.

    The day alone is not enough: an id may carry a time long before it was written.
    """
    if day == date.max:
        # Written by hand; Python has no later day.
        return False
    end_of_day = datetime.combine(day + timedelta(days=1), time(), UTC)
    return max(milliseconds(end_of_day), newest_write_ms) + reserved_ms <= now_ms


def published_up_to(store: Store) -> int:
    """Return the version of op up to which every topic, a parked one too, has its messages."""
    value = store.tables.register("publisher", PublishProgress).read().value
    if not value:
        return NOTHING
    progress = PublishProgress.from_value(value, store.tables.op_log().table)
    parked = (topic.from_version for topic in progress.parked.values())
    return min([progress.low_water_version, *parked])


class Retention:
    """Removes days of the logs that are over. Not safe for several threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Open handles of its own. Days end by the store's time, however wrong `clock` is."""
        self._store, self._clock = store, StoreClock.of(store, clock)
        self._logs = store.tables.logs()
        self._half, self._op = self._logs.half.table, self._logs.op
        self._settled, self._schedule = self._logs.settled.table, self._logs.schedule
        self._reserved_ms = store.config.file_reserved_time_h * _HOUR_MS
        self._claims = ClaimWriter(self._op, "retention", store.config.half_queues)
        self._expired: set[tuple[str, int]] = set()

    def run(self) -> Retained:
        """Expire old open transactions and remove the days that nobody needs any more.

        Reads: half, op, schedule, settled (ids of the days in question), state/publisher. Writes:
        op (EXPIRE claims), half, op, schedule, settled (whole files), state/maintenance. Commits:
        none where no day is over; else one for each log that loses a day, one or two to
        state/maintenance, and one to op for 50,000 expired transactions. A run that was killed is
        finished by the next one.

        Raises: StorageError, SourceRestoredError.
        """
        self._logs.refresh()
        self._schedule.refresh()
        half_days, op_days = self._days(self._half), self._days(self._op.table)
        due_days, settled_days = self._due_days(), self._days(self._settled)
        if not (half_days or op_days or due_days or settled_days):
            return Retained()
        # Only rows that are published everywhere may be removed.
        version = published_up_to(self._store)
        if self._somebody_lags(version) or self._lacks_rows():
            return Retained()
        expired = self._expire(half_days)
        gone_half = self._remove_halves(half_days, version)
        gone_op = self._remove(self._op.table, op_days, [self._half])
        gone_due = self._remove_due_days(due_days, version)
        gone_settled = self._remove_facts(settled_days)
        return Retained(expired, gone_half, gone_op, gone_due, gone_settled)

    # --- days ---------------------------------------------------------------------------------

    def _due_days(self) -> dict[date, list[DataFile]]:
        return self._days(self._schedule.table, "due_date") if self._schedule.is_there else {}

    def _days(self, table: Table, column: str = "store_date") -> dict[date, list[DataFile]]:
        """Find the files of each day that is over."""
        now_ms = self._clock.now_ms()
        return {
            day: files
            for day, files in _by_day(table.files.all(), column).items()
            if self._is_over(table, day, files, now_ms)
        }

    def _is_over(self, table: Table, day: date, files: Sequence[DataFile], now_ms: int) -> bool:
        """Judge a day by its files in the storage: their writers' clocks may be wrong."""
        if not is_over(day, _NEVER_MS, now_ms, self._reserved_ms):
            return False
        written_ms = table.folder.written_ms([file.path for file in files]).values()
        newest_ms = affine(self._clock).at(max(written_ms, default=_NEVER_MS))
        return is_over(day, newest_ms, now_ms, self._reserved_ms)

    def _somebody_lags(self, version: int) -> bool:
        """Tell whether a claim older than half of the reserved time is not published everywhere."""
        received_ms = self._op.table.folder.commit_times_ms().get(version + 1)
        if received_ms is None:
            return version < self._op.table.version
        age_ms = self._clock.now_ms() - affine(self._clock).at(received_ms)
        return age_ms > self._reserved_ms / 2

    def _lacks_rows(self) -> bool:
        """Tell whether rows that another program removed may have to be put back first."""
        settled = self._logs.settled
        return bool(settled.half_removals(self._half) or settled.removals())

    # --- expiry -------------------------------------------------------------------------------

    def _expire(self, days: dict[date, list[DataFile]]) -> int:
        """Claim EXPIRE for open transactions of these days; the next run finds them ended."""
        if not days:
            return 0
        rows = OpenTransactions(self._store, self._clock).read()
        files = list(itertools.chain.from_iterable(days.values())) if rows.num_rows else []
        is_old = np.zeros(rows.num_rows, dtype=bool)
        for ids, _ in _ids_of(self._half, files):
            is_old |= flags(pc.is_in(rows["transaction_id"], value_set=ids))
        old = rows.filter(pa.array(is_old)).to_pylist()
        # A claim that had no effect must not be written again in every round.
        new = [row for row in old if (row["transaction_id"], row["life"]) not in self._expired]
        claims = [self._expiry(row) for row in new]
        for chunk in _chunks(claims):
            self._claims.append(chunk)
        reached(FailPoint.EXPIRY_CLAIMED)
        self._expired.update((row["transaction_id"], row["life"]) for row in new)
        if claims:
            logger.warning("%d transactions were open for too long and expire", len(claims))
        return len(claims)

    def _expiry(self, row: dict[str, object]) -> OpRow:
        return OpRow(
            str(row["transaction_id"]),
            ClaimKind.EXPIRE,
            str(row["producer_group"]),
            ClaimSource.MAINTENANCE,
            self._clock.now_ms(),
            life=int(str(row["life"])),
            reason=OLDER_THAN_RETENTION,
        )

    # --- removing -------------------------------------------------------------------------------

    def _remove_halves(self, days: dict[date, list[DataFile]], version: int) -> tuple[date, ...]:
        gone = [day for day, files in days.items() if self._all_ended(files, version)]
        if gone:
            # Recorded before rows are removed, so that verify never meets an unexplained gap.
            self._forget_before(max(gone) + timedelta(days=1))
            reached(FailPoint.DAYS_FORGOTTEN)
            self._half.writer.remove([file for day in gone for file in days[day]])
            reached(FailPoint.HALF_DAYS_REMOVED)
        return tuple(gone)

    def _all_ended(self, files: Sequence[DataFile], version: int) -> bool:
        """Tell whether all transactions of these files have a final end that is published."""
        waiting = _set_aside(self._store, self._logs.settled)
        return all(
            is_whole and self._are_ended(ids, version, waiting)
            for ids, is_whole in _ids_of(self._half, files)
        )

    def _are_ended(self, ids: pa.Array, version: int, waiting: pa.Array) -> bool:
        """Tell whether all these transactions have a final end that is published."""
        facts = self._settled.search.rows_of(
            "transaction_id", ids, ("transaction_id", "state", "op_version")
        )
        is_published = pc.and_(
            pc.is_in(facts["state"], value_set=_FINAL), pc.less_equal(facts["op_version"], version)
        )
        ended = facts.filter(is_published)["transaction_id"]
        ended = ended.filter(pc.invert(pc.is_in(ended, value_set=waiting)))
        return bool(pc.all(pc.is_in(ids, value_set=ended), min_count=0).as_py())

    def _remove_due_days(self, days: dict[date, list[DataFile]], version: int) -> tuple[date, ...]:
        """Remove due dates whose messages are all delivered or recalled, and published."""
        gone = [day for day, files in days.items() if self._all_delivered(files, version)]
        if gone:
            before = begin_of(maintenance_value(self._store), SCHEDULE_TOPIC)
            self._forget_before(max(gone) + timedelta(days=1), SCHEDULE_FORGOTTEN_BEFORE)
            begin = begin_of(maintenance_value(self._store), SCHEDULE_TOPIC)
            files_gone = [file for day in gone for file in days[day]]
            remove_messages(self._schedule.table, files_gone, before, begin)
            reached(FailPoint.DUE_DAYS_REMOVED)
        return tuple(gone)

    def _all_delivered(self, files: Sequence[DataFile], version: int) -> bool:
        waiting = _set_aside(self._store, self._logs.settled)
        for piece in self._schedule.table.rows.pieces(files, ("transaction_id", "sequence")):
            rows = scheduled_among(piece)
            is_set_aside = pc.is_in(rows["transaction_id"], value_set=waiting)
            if pc.any(is_set_aside, min_count=0).as_py():
                return False
            if not are_ended(rows, self._logs.settled, version).all():
                return False
        return True

    def _logs_before_settled(self) -> list[Table]:
        """Return the logs whose transactions still need their facts, with the schedule."""
        scheduled = [self._schedule.table] if self._schedule.is_there else []
        return [self._half, self._op.table, *scheduled]

    def _remove(
        self, table: Table, days: dict[date, list[DataFile]], before: Sequence[Table]
    ) -> tuple[date, ...]:
        """Remove days whose transactions are in none of the logs `before` this one."""
        gone = [day for day, files in days.items() if _is_free(table, files, before)]
        if gone:
            table.writer.remove([file for day in gone for file in days[day]])
        return tuple(gone)

    def _remove_facts(self, days: dict[date, list[DataFile]]) -> tuple[date, ...]:
        """Remove days of facts, but none while an earlier fact of one of its transactions stays.

        The last fact that is left would be taken for the state of its transaction.
        """
        files_by_day = _by_day(self._settled.files.all(), "store_date")
        gone: list[date] = []
        for day, files in days.items():
            earlier = [old for at, old in files_by_day.items() if at < day and at not in gone]
            if _is_free(self._settled, files, self._logs_before_settled()) and not _share_ids(
                self._settled, files, itertools.chain.from_iterable(earlier)
            ):
                gone.append(day)
        if gone:
            self._logs.settled.forget([file for day in gone for file in days[day]])
        return tuple(gone)

    def _forget_before(self, day: date, key: str = FORGOTTEN_BEFORE) -> None:
        register = self._store.tables.register("maintenance", MaintenanceValue)
        seen = register.read()
        if seen.value.get(key, "") < day.isoformat():
            value = {**seen.value, key: day.isoformat()}
            register.swap(seen, value, self._clock.now_ms())


def _set_aside(store: Store, settled: SettledLog) -> pa.Array:
    """Read which transactions are set aside: not all of their messages may be visible yet."""
    value = read_set_aside(store.tables, settled.set_aside_count)
    return pa.array(list(value.transactions), pa.string())


def _by_day(files: Iterable[DataFile], column: str) -> dict[date, list[DataFile]]:
    """Group files by day, oldest first; a file without a day was written by hand, and stays."""
    by_day: dict[date, list[DataFile]] = {}
    for file in (file for file in files if file.partition[column] is not None):
        by_day.setdefault(file.partition[column], []).append(file)
    return dict(sorted(by_day.items()))


def _share_ids(table: Table, files: Iterable[DataFile], others: Iterable[DataFile]) -> bool:
    """Tell whether a transaction may have rows in files of both."""
    spans, others = {span.file.path: span for span in table.files.ranges(_ID)}, list(others)
    for ids, is_whole in _ids_of(table, files):
        ends = pc.min_max(ids)
        low, high = ends["min"].as_py(), ends["max"].as_py()
        near = [other for other in others if _may_reach(spans[other.path], low, high)]
        for other_ids, others_are_whole in _ids_of(table, near):
            shared = pc.any(pc.is_in(ids, value_set=other_ids), min_count=0).as_py()
            if shared or not others_are_whole:
                return True
        if not is_whole:
            return True
    return False


def _may_reach(span: FileRange, low: str | None, high: str | None) -> bool:
    """Tell whether a file may hold a transaction between two; None if there is none at all."""
    if low is None or high is None:
        return False
    has_bounds = isinstance(span.low, str) and isinstance(span.high, str)
    return not has_bounds or (span.low <= high and span.high >= low)


def _ids_of(table: Table, files: Iterable[DataFile]) -> Iterator[tuple[pa.Array, bool]]:
    """Yield the distinct transaction ids of files, IDS_AT_ONCE or so together.

    Each piece comes with whether its files can be read; a day with one that cannot is kept. Ids
    begin with a time, so a piece is of files of the same hours. Reads one column.
    """
    lows = {span.file.path: str(span.low or "") for span in table.files.ranges(_ID)}
    ids, is_whole = _NO_IDS, True
    for file in sorted(files, key=lambda file: lows.get(file.path, "")):
        found, problem = table.search.readable(file, partial(_ids_in, table, file))
        if found is None:
            logger.warning("%s: a day is kept, because of %s", table.name, problem)
            is_whole = False
        else:
            ids = pc.unique(pa.concat_arrays([ids, whole(found[_ID])]))
        if len(ids) >= IDS_AT_ONCE:
            yield ids, is_whole
            ids, is_whole = _NO_IDS, True
    if len(ids) or not is_whole:
        yield ids, is_whole


def _ids_in(table: Table, file: DataFile) -> pa.Table:
    """Read the distinct transaction ids of a file."""
    pieces = (sound_rows(rows, (_ID,)) for rows in table.rows.pieces([file], (_ID,)))
    parts = [pc.unique(rows[_ID]) for rows in pieces]
    return pa.table({_ID: pc.unique(pa.chunked_array([_NO_IDS, *parts]))})


def _is_free(table: Table, files: Sequence[DataFile], before: Sequence[Table]) -> bool:
    """Tell whether none of the logs `before` has a transaction of these files."""
    return all(
        is_whole and not any(_may_hold_any(other, ids) for other in before)
        for ids, is_whole in _ids_of(table, files)
    )


def _may_hold_any(table: Table, ids: pa.Array) -> bool:
    # One row is enough.
    one = Shrink(lambda rows: rows.slice(0, 1))
    rows, unreadable = table.search.readable_rows_of(_ID, ids, (_ID,), one)
    return rows.num_rows > 0 or any(file.covers(ids).any() for file in unreadable)


def _chunks(rows: Sequence[OpRow]) -> Iterator[Sequence[OpRow]]:
    for start in range(0, len(rows), CLAIMS_A_COMMIT):
        yield rows[start : start + CLAIMS_A_COMMIT]


# --- topics -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Old:
    """The files of a topic to remove, and the newest op version among their rows."""

    table: Table
    files: Sequence[DataFile]
    op_version: int


class TopicRetention:
    """Removes files of topics that are too old. Not safe for several threads."""

    def __init__(self, store: Store, clock: Clock) -> None:
        """Read nothing yet. Files are old by the store's time, however wrong `clock` is."""
        self._store, self._clock = store, StoreClock.of(store, clock)
        self._register = store.tables.topic_register()
        # By topic and file. A file never changes, so it is read once.
        self._newest_ms: dict[str, dict[str, float]] = {}

    def run(self) -> int:
        """Remove old files of the topics that have a `reserved_time_h`; return how many.

        Reads: state/topics, state/publisher, store_timestamp of these topics. Writes:
        state/maintenance, topics. Commits: none where no file is too old; else one to
        state/maintenance and one for each topic that loses files.

        Raises: StorageError, SourceRestoredError.
        """
        settings = self._register.read().settings
        hours = {
            name: topic.reserved_time_h for name, topic in settings.items() if topic.reserved_time_h
        }
        if not hours:
            return 0
        version = published_up_to(self._store)
        # Read after the version: what is set aside up to it was registered before.
        waiting = _set_aside(self._store, self._store.tables.logs().settled)
        looks = {
            name: self._old_of_usable(name, reserved_h, version, waiting)
            for name, reserved_h in hours.items()
        }
        old = {name: files for name, files in looks.items() if files is not None}
        if not old:
            return 0
        # Recorded before files are removed, so that verify never meets an unexplained gap.
        begins = {name: files.op_version for name, files in old.items()}
        told = tell_topic_begin(self._store, begins, self._clock.now_ms())
        reached(FailPoint.DAYS_FORGOTTEN)
        return sum(_removed(name, files, told[name]) for name, files in old.items())

    def _old_of_usable(
        self, topic: str, reserved_time_h: float, version: int, waiting: pa.Array
    ) -> _Old | None:
        """Do as `_old`; a topic that cannot be used keeps its files, and the others go on."""
        try:
            return self._old(topic, reserved_time_h, version, waiting)
        except UnsupportedTableError as error:
            logger.error("retention of topic %s: %s", topic, error)  # noqa: TRY400
            return None

    def _old(
        self, topic: str, reserved_time_h: float, version: int, waiting: pa.Array
    ) -> _Old | None:
        """Find the files that are too old; none from the first that may show one of `waiting`.

        Who publishes the rest of such a transaction later looks here for what is shown already.
        """
        table = self._store.tables.table_at(f"topics/{topic}")
        if not table.exists():
            return None
        shown = {file.path for file in table.files.holding("transaction_id", waiting)}
        limit_ms = self._clock.now_ms() - reserved_time_h * _HOUR_MS
        # A file without statistics is kept, since its newest op version is unknown.
        spans = table.files.ranges("op_version")
        lows = (NOTHING if s.low is None else s.low for s in spans if s.file.path in shown)
        end = min([version, *lows])
        published = [span for span in spans if span.high is not None and span.high < end]
        files = [span.file for span in published]
        newest_ms = self._newest_ms_of(topic, table, files)
        old = [span for span in published if newest_ms[span.file.path] <= limit_ms]
        if not old:
            return None
        return _Old(table, [span.file for span in old], max(span.high for span in old))

    def _newest_ms_of(
        self, topic: str, table: Table, files: Sequence[DataFile]
    ) -> dict[str, float]:
        """Read when the newest message of each file was stored; remember it."""
        before_ms = self._newest_ms.get(topic, {})
        newest_ms = {
            file.path: (
                before_ms[file.path] if file.path in before_ms else self._stored_ms(table, file)
            )
            for file in files
        }
        # Only of the files that are there, so that it does not grow for ever.
        self._newest_ms[topic] = newest_ms
        return newest_ms

    def _stored_ms(self, table: Table, file: DataFile) -> float:
        """Read the time of the newest message of a file, or of the file, if that is later.

        Publishers of older versions stamped their own time, which may be wrong.
        """
        try:
            column = table.rows.read([file], ("store_timestamp",))["store_timestamp"]
        except (StorageError, OSError) as error:
            # It stays; the files beside it and other topics go on.
            logger.warning("%s: %s cannot be read (%s)", table.name, file.path, error)
            return math.inf
        written_ms = table.folder.written_ms([file.path]).get(file.path)
        # Another program may have written a time that Python has not.
        newest_us = pc.max(column.cast(pa.int64())).as_py()
        if newest_us is None or written_ms is None:
            return math.inf
        return max(float(newest_us // 1000), affine(self._clock).at(written_ms))


def _removed(topic: str, old: _Old, told: Told) -> int:
    try:
        remove_messages(old.table, old.files, told.before, told.begin)
    except CommitRefusedError:
        # Another maintenance was faster or merged some of the files; the next round sees the rest.
        return 0
    logger.info("topic %s: %d old files were removed", topic, len(old.files))
    return len(old.files)


def topic_begins(store: Store) -> dict[str, int]:
    """Read, for each topic, the op version up to which its messages may have been removed."""
    return dict(maintenance_value(store).get(TOPIC_BEGIN, {}))


class Told(NamedTuple):
    """What `state/maintenance` said of a topic before, and says now: `begin_of`."""

    before: int
    begin: int


def tell_topic_begin(store: Store, begins: Mapping[str, int], now_ms: int) -> dict[str, Told]:
    """Record up to which op version messages of topics may be removed: one commit, or none.

    Raises: CommitRefusedError.
    """
    register = store.tables.register("maintenance", MaintenanceValue)
    seen = register.read()
    before = seen.value.get(TOPIC_BEGIN, {})
    newer = {name: max(begin, before.get(name, begin)) for name, begin in begins.items()}
    after = {**before, **newer}
    if after != before:
        register.swap(seen, {**seen.value, TOPIC_BEGIN: after}, now_ms)
    return {name: Told(begin_of(seen.value, name), begin) for name, begin in newer.items()}
