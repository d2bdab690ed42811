"""The delay service: claims DELIVER for due messages of the schedule (R97-R103).

Its memory may be lost at any time: a claim that is written twice counts once, and a message without
a claim is found again in the schedule. It needs neither Spark nor a stream: nobody answers for a
delayed message before its deadline, so there is nothing to join (decision 0016).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.files import UnreadableFile
from txmq.errors import CommitRefusedError, TxmqError
from txmq.ground.clock import Clock, timestamp
from txmq.ground.columns import Flags, Groups, Integers, integers, times_ms
from txmq.ground.fail_points import FailPoint, reached
from txmq.ground.handles import OfOneProcess, ThreadHandle, is_survivable
from txmq.ground.histogram import NO_DURATIONS, Histogram
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.names import SCHEDULE_TOPIC
from txmq.publish.progress import RetryPauses
from txmq.publish.settle import are_ended
from txmq.store.claim_writer import ClaimWriter
from txmq.store.schemas import MICROSECONDS_UTC, OP, SCHEDULE
from txmq.store.settled import NOTHING, mark_id
from txmq.store.store import Store, check_store
from txmq.store.store_clock import StoreClock
from txmq.store.topic import TopicLog

logger = logging.getLogger(__name__)

CLAIMS_A_COMMIT = 10_000
PROGRESS_INTERVAL_S = 1.0
ERROR_PAUSE_S = 1.0
# The pause while the store has no delayed messages, and so no schedule.
SCHEDULE_POLL_S = 0.5
# Each `add` makes a part, which costs less than sorting all; above this number they are merged.
MAX_PARTS = 32
REGISTER = "delay"
# Says in state/delay that its time is the store's; a value without it is not believed.
PROGRESS_RULE = "store time"
WAITING_COLUMNS = (
    "transaction_id", "sequence", "producer_group", "op_version", "deliver_timestamp",
)  # fmt: skip
_EMPTY = pa.schema([SCHEDULE.columns.field(name) for name in WAITING_COLUMNS]).empty_table()


@dataclass(frozen=True, slots=True)
class DelayResult:
    """The counts of one call.

    Attributes:
        delivered: messages that DELIVER was claimed for.
        commits: commits to op.
        waiting: messages in memory that are due within `delay_horizon_s`.
        unreadable_files: files of the schedule that cannot be read; their messages wait.
        lateness: from the time a message was due to its DELIVER.
    """

    delivered: int = 0
    commits: int = 0
    waiting: int = 0
    unreadable_files: int = 0
    lateness: Histogram = field(default=NO_DURATIONS, compare=False, repr=False)

    def __add__(self, other: DelayResult) -> DelayResult:
        """Add the counts of two results; `waiting` and `unreadable_files` are the later one's."""
        counts = (self.delivered + other.delivered, self.commits + other.commits)
        lateness = self.lateness + other.lateness
        return DelayResult(*counts, other.waiting, other.unreadable_files, lateness)


class DelayService(OfOneProcess):
    """Delivers delayed messages when they are due (R97-R103).

    It claims DELIVER; the publisher then copies the message to its topic. Several services may run
    on one store: the first claim counts.

    Attributes:
        total: the sum of all results.
        last_error: the error of the last call of a started service; None after a success.

    Args:
        store: the store whose schedule it reads.
        clock: the clock of this machine. A message is due by the store's time, however wrong that
            clock is (decision 0031).

    Reads: the schedule (due dates up to the horizon); settled after a start. Writes: op,
    state/delay. Commits: one to op for up to 10,000 claims, at most one a second to state/delay.

    Example:
        >>> DelayService(store).run_once().delivered
        0
    """

    def __init__(self, store: Store, *, clock: Clock | None = None) -> None:
        """Read nothing yet."""
        check_store(store)
        self.store = store
        self.total = DelayResult()
        self.last_error: BaseException | None = None
        self._clock = StoreClock.of(store, clock)
        self._round: _DelayRound | None = None

    def run_once(self) -> DelayResult:
        """Claim DELIVER for every message that is due now.

        Commits: one to op for up to 10,000 claims, and one to state/delay if the last was a second
        ago; none if nothing is due. Retry: call it again; a second equal claim has no effect.

        Raises:
            StorageError: a table cannot be read or written; some claims may have landed.
        """
        return self._tick()

    def start(self) -> DelayHandle:
        """Start a thread that claims due messages until `stop()`; return its handle.

        The thread searches every `delay_trigger_interval_s`. Commits: as `run_once`, for each
        search with due messages. Retry: after an error of txmq the thread pauses for a second and
        goes on; `last_error` shows the error. After a crash start it again: it finds every message
        without a claim.
        """
        return DelayHandle(self)

    def _tick(self, *, looks_always: bool = True) -> DelayResult:
        """Run one search, and add its result to `total`."""
        if self._round is None:
            self._round = _DelayRound(self.store, self._clock)
        try:
            result = self._round.tick(looks_always=looks_always)
        except BaseException:
            # Start again from the tables: messages that left the memory are found there.
            self._round = None
            raise
        self.total = self.total + result
        return result

    def _tick_or_wait(self) -> float:
        """Search once; log an error of it and do not raise it. Return the pause until the next."""
        try:
            self._tick(looks_always=False)
        except BaseException as error:
            if not is_survivable(error):
                raise
            logger.exception("a search of the delay service failed; it tries again")
            self.last_error = error
            return ERROR_PAUSE_S
        self.last_error = None
        interval_s = self.store.config.delay_trigger_interval_s
        has_schedule = self._round is not None and self._round.has_schedule
        return interval_s if has_schedule else max(interval_s, SCHEDULE_POLL_S)

    def _keep_progress(self) -> None:
        if self._round is not None:
            self._round.keep_progress()


class DelayHandle(ThreadHandle):
    """A delay service that runs in a thread of its own."""

    def __init__(self, service: DelayService) -> None:
        """Call `DelayService.start()` instead."""
        super().__init__("delay", service.store.config.delay_trigger_interval_s)
        self._service = service
        self.begin()

    def _turn(self) -> None:
        self._interval_s = self._service._tick_or_wait()  # noqa: SLF001 - its own handle

    def _end(self) -> None:
        try:
            self._service._keep_progress()  # noqa: SLF001 - its own handle
        except TxmqError:
            logger.exception("the progress of the delay service was not written")


class DelayValue(TypedDict):
    """The value of the register: up to where all messages are claimed."""

    op_table_id: str
    op_version: int
    due_ms: int
    rule: NotRequired[str]
    late_writes: NotRequired[int]


class _DelayRound:
    """The table handles of one delay service, and the messages that are due within its horizon."""

    def __init__(self, store: Store, clock: StoreClock) -> None:
        self._store, self._clock = store, clock
        self._logs = store.tables.logs()
        self._op, self._schedule = self._logs.op, self._logs.schedule
        self._topic = TopicLog(
            SCHEDULE_TOPIC, self._schedule.table, mark_id(self._op.table.log.table_id)
        )
        self._horizon_ms = round(store.config.delay_horizon_s * 1000)
        self._claims = ClaimWriter(self._op, "delay", store.config.half_queues)
        self._waiting = WaitingMessages()
        # The version of the op log and the late writes that the schedule was read up to.
        self._seen, self._late_writes = NOTHING, 0
        self._is_begun, self._end_ms = False, 0
        self._claimed, self._kept = _Claimed(), _Claimed()
        self._unreadable = UnreadableSchedule(store.config.park_retry_interval_s)
        self._kept_at_s = self._next_look_s = time.monotonic()
        self._has_new_claims = False

    @property
    def has_schedule(self) -> bool:
        """Whether the store has ever had a delayed message."""
        return self._schedule.is_there

    def tick(self, *, looks_always: bool) -> DelayResult:
        """Read new messages and claim the due ones.

        With `looks_always` each tick looks for new messages; else, on an object store, not each.
        """
        if not self._is_begun and not self._schedule.refresh().is_there:
            return DelayResult()
        now_ms = self._clock.now_ms()
        if self._unreadable.is_due(now_ms):
            # What became readable is anywhere in the schedule.
            self._schedule.table.search.forget_unreadable()
            self._is_begun = False
        if self._is_begun and (looks_always or self._is_look_due()):
            self._read_new()
        if not self._is_begun:
            result = self._begin(now_ms)
        else:
            if now_ms + self._horizon_ms // 2 >= self._end_ms:
                self._move_horizon(now_ms + self._horizon_ms)
            result = self._deliver(now_ms)
        if not self._unreadable:
            # Not the latest time so far: what came after a clock that was ahead still waits.
            self._claimed = _Claimed(self._seen, now_ms)
        if time.monotonic() - self._kept_at_s >= PROGRESS_INTERVAL_S:
            self.keep_progress()
        return replace(result, unreadable_files=len(self._unreadable))

    # --- reading --------------------------------------------------------------------------------

    def _begin(self, now_ms: int) -> DelayResult:
        """Read the schedule up to the horizon; deliver each day before the next one is read."""
        result, self._waiting = DelayResult(), WaitingMessages()
        self._unreadable.begin(now_ms)
        self._claimed = self._kept = self._read_progress(now_ms)
        self._is_begun = True
        self._seen, self._late_writes = self._topic.mark, self._topic.late_writes
        self._end_ms = now_ms + self._horizon_ms
        for day in self._days(self._end_ms):
            is_over = day < timestamp(self._claimed.due_ms).date()
            after = self._claimed.op_version if is_over else NOTHING
            rows = self._due_before(self._read(day, after), self._end_ms)
            rows = rows.filter(pc.invert(_is_claimed(rows, self._claimed)))
            self._waiting.add(self._without_ended(rows, now_ms))
            result = result + self._deliver(now_ms)
        return result

    def _read_new(self) -> None:
        """Read new messages that are due within the horizon, or have all of them read again."""
        if not self._schedule.has_news():
            return
        self._schedule.refresh()
        if self._topic.late_writes != self._late_writes:
            # Messages came whose claims lie before what was seen, so no version tells them.
            self._is_begun = False
            return
        after, self._seen = self._seen, self._topic.mark
        for day in self._days(self._end_ms):
            rows = self._read(day, after)
            rows = rows.filter(pc.greater(rows["op_version"], after))
            self._waiting.add(self._due_before(rows, self._end_ms))

    def _is_look_due(self) -> bool:
        """Tell whether to look for new messages now; if so, set the time of the next look."""
        now_s = time.monotonic()
        if now_s < self._next_look_s:
            return False
        self._next_look_s = now_s + self._store.look_interval_s(0.0, is_idle=True)
        return True

    def _move_horizon(self, end_ms: int) -> None:
        """Read the messages that are due between the old horizon and the new one."""
        first, self._end_ms = self._end_ms, end_ms
        for day in self._days(end_ms):
            if day >= timestamp(first).date():
                rows = self._due_before(self._read(day, NOTHING), end_ms)
                is_new = pc.greater_equal(rows["deliver_timestamp"], _moment(first))
                is_seen = pc.less_equal(rows["op_version"], self._seen)
                self._waiting.add(rows.filter(pc.and_(is_new, is_seen)))

    def _days(self, end_ms: int) -> list[date]:
        """Return the due dates in the schedule up to the horizon, the oldest first."""
        last = timestamp(end_ms).date()
        return sorted(day for day in self._schedule.due_dates() if day <= last)

    def _read(self, day: date, after: int) -> pa.Table:
        """Read the messages of a due date, at least those claimed after this op version."""
        rows, unreadable = self._schedule.readable(day, after, WAITING_COLUMNS)
        self._unreadable.add(unreadable)
        return rows

    def _due_before(self, rows: pa.Table, end_ms: int) -> pa.Table:
        return rows.filter(pc.less(rows["deliver_timestamp"], _moment(end_ms)))

    def _without_ended(self, rows: pa.Table, now_ms: int) -> pa.Table:
        """Drop due messages that were delivered or recalled; messages that are not due stay."""
        is_due = pc.less_equal(rows["deliver_timestamp"], _moment(now_ms))
        due = rows.filter(is_due)
        if not due.num_rows:
            return rows
        self._logs.settled.table.refresh()
        open_rows = due.filter(pa.array(~are_ended(due, self._logs.settled)))
        return pa.concat_tables([rows.filter(pc.invert(is_due)), open_rows])

    # --- delivering -----------------------------------------------------------------------------

    def _deliver(self, now_ms: int) -> DelayResult:
        """Claim DELIVER for all messages in memory that are due."""
        if not self._waiting.has_due(now_ms):
            return DelayResult(waiting=len(self._waiting))
        due = self._waiting.take_due(now_ms)
        commits = 0
        reached(FailPoint.DUE_MESSAGES_FOUND)
        for claims in chunks(deliver_claims(due, self._clock.now_ms()), CLAIMS_A_COMMIT):
            self._claims.append_table(claims)
            self._has_new_claims = True
            commits += 1
            reached(FailPoint.DELIVERIES_CLAIMED)
        lateness = Histogram.of(now_ms - times_ms(due["deliver_timestamp"]))
        return DelayResult(due.num_rows, commits, len(self._waiting), lateness=lateness)

    # --- progress -------------------------------------------------------------------------------

    def _read_progress(self, now_ms: int) -> _Claimed:
        """Read the progress that an earlier start has written, if it can be believed."""
        register = self._store.tables.register(REGISTER, DelayValue)
        value: dict[str, Any] = register.read().value if register.exists else {}
        if value.get("op_table_id") != self._op.table.log.table_id:
            return _Claimed()
        # Older versions kept the latest time that any clock had shown.
        is_by_store = value.get("rule") == PROGRESS_RULE and value["due_ms"] <= now_ms
        # What came late was not there when this was written.
        is_true = is_by_store and value.get("late_writes") == self._topic.late_writes
        return _Claimed(value["op_version"], value["due_ms"]) if is_true else _Claimed()

    def keep_progress(self) -> None:
        """Write up to where all messages are claimed, so that the next start reads less.

        One commit; none without new claims.
        """
        if not self._has_new_claims or not self._claimed.covers(self._kept):
            return
        register = self._store.tables.register(REGISTER, DelayValue, create=True)
        value = {
            "op_table_id": self._op.table.log.table_id,
            "op_version": self._claimed.op_version,
            "due_ms": self._claimed.due_ms,
            "rule": PROGRESS_RULE,
            "late_writes": self._late_writes,
        }
        try:
            register.swap(register.read(), value, self._clock.now_ms())
        except CommitRefusedError:
            # Another delay service has written its progress, which is as good.
            return
        reached(FailPoint.DELAY_PROGRESS_KEPT)
        self._kept, self._has_new_claims = self._claimed, False
        self._kept_at_s = time.monotonic()


@dataclass(frozen=True, slots=True)
class _Claimed:
    """All messages that were committed up to `op_version` and due up to `due_ms` are claimed."""

    op_version: int = NOTHING
    due_ms: int = 0

    def covers(self, other: _Claimed) -> bool:
        return self.op_version >= other.op_version and self.due_ms >= other.due_ms


def _is_claimed(rows: pa.Table, claimed: _Claimed) -> pa.ChunkedArray:
    return pc.and_(
        pc.less_equal(rows["op_version"], claimed.op_version),
        pc.less_equal(rows["deliver_timestamp"], _moment(claimed.due_ms)),
    )


def _moment(time_ms: int) -> pa.Scalar:
    return pa.scalar(timestamp(time_ms), MICROSECONDS_UTC)


def deliver_claims(due: pa.Table, now_ms: int) -> pa.Table:
    """Make DELIVER claims: one row of the op log for each run of messages of one transaction.

    Within a run the sequence rises. So the claims keep the order of the due times, and publishing
    keeps the order of the claims.
    """
    place = Groups.of(due["transaction_id"]).place
    sequence = integers(due["sequence"], 0)
    begins = np.flatnonzero(_begins_a_run(place, sequence))
    ends = np.append(begins, due.num_rows)
    first = due.take(pa.array(begins))
    now = timestamp(now_ms)
    values = {
        "transaction_id": first["transaction_id"],
        "kind": _repeated(ClaimKind.DELIVER.value, len(begins)),
        "sequences": pa.ListArray.from_arrays(pa.array(ends, pa.int32()), pa.array(sequence)),
        "source": _repeated(ClaimSource.DELAY.value, len(begins)),
        "producer_group": first["producer_group"],
        "op_timestamp": pa.repeat(pa.scalar(now, MICROSECONDS_UTC), len(begins)),
        "store_date": pa.repeat(pa.scalar(now.date()), len(begins)),
    }
    columns = [values.get(field.name, pa.nulls(len(begins), field.type)) for field in OP.columns]
    return pa.table(columns, schema=OP.columns)


def _begins_a_run(place: Integers, sequence: Integers) -> Flags:
    """Tell whether each row begins a run: another transaction, or no higher sequence."""
    begins = np.ones(len(place), dtype=bool)
    begins[1:] = (place[1:] != place[:-1]) | (sequence[1:] <= sequence[:-1])
    return begins


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text), count)


def chunks(rows: pa.Table, size: int) -> Iterator[pa.Table]:
    """Yield the rows in slices of `size`."""
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)


class WaitingMessages:
    """WAITING_COLUMNS of messages that are not delivered yet. Not safe for several threads."""

    def __init__(self) -> None:
        """Hold no message."""
        self._parts: list[_Part] = []

    def __len__(self) -> int:
        """Count the waiting messages."""
        return sum(part.rows.num_rows - part.taken for part in self._parts)

    def add(self, rows: pa.Table) -> None:
        """Add messages, in any order."""
        if rows.num_rows:
            self._parts.append(_part(rows))
        if len(self._parts) > MAX_PARTS:
            self._parts = [_part(pa.concat_tables([part.remaining for part in self._parts]))]

    def has_due(self, now_ms: int) -> bool:
        """Tell whether any message is due."""
        return any(part.due_us[part.taken] <= now_ms * 1000 for part in self._parts)

    def take_due(self, now_ms: int) -> pa.Table:
        """Remove and return the messages that are due, in the order of their due times."""
        due = [self._taken(part, now_ms * 1000) for part in self._parts]
        self._parts = [part for part in self._parts if part.taken < part.rows.num_rows]
        return ordered(pa.concat_tables([_EMPTY, *due]))

    def _taken(self, part: _Part, now_us: int) -> pa.Table:
        """Take the messages that are due from one part."""
        first, last = part.taken, int(np.searchsorted(part.due_us, now_us, side="right"))
        part.taken = max(first, last)
        return part.rows.slice(first, part.taken - first)


@dataclass(slots=True)
class _Part:
    """Rows sorted by their due time; the first `taken` of them do not wait any more."""

    rows: pa.Table
    due_us: Integers
    taken: int = 0

    @property
    def remaining(self) -> pa.Table:
        return self.rows.slice(self.taken)


def _part(rows: pa.Table) -> _Part:
    """Sort messages by their due time."""
    rows = rows.select(list(WAITING_COLUMNS))
    due_us = integers(rows["deliver_timestamp"].cast(pa.int64()), 0)
    order = np.argsort(due_us, kind="stable")
    return _Part(rows.take(pa.array(order)).combine_chunks(), due_us[order])


def ordered(rows: pa.Table) -> pa.Table:
    """Sort messages by due time; messages with the same due time by their commits."""
    keys = ("deliver_timestamp", "op_version", "transaction_id", "sequence")
    return rows.sort_by([(name, "ascending") for name in keys])


class UnreadableSchedule:
    """The unreadable files that one delay service met since it last read the whole schedule."""

    def __init__(self, retry_interval_s: float) -> None:
        """Know of no file yet."""
        self._pauses = RetryPauses(retry_interval_s)
        self._paths: set[str] = set()
        self._told: set[str] = set()
        self._attempts = 0

    def __len__(self) -> int:
        """Count the files."""
        return len(self._paths)

    def is_due(self, now_ms: int) -> bool:
        """Tell whether there are any, and it is time to read the schedule again."""
        return bool(self._paths) and self._pauses.is_due(SCHEDULE.name, self._attempts, now_ms)

    def begin(self, now_ms: int) -> None:
        """Forget the files: the whole schedule is read from now on."""
        self._attempts = self._attempts + 1 if self._paths else 0
        self._told &= self._paths
        self._paths.clear()
        self._pauses.tried(SCHEDULE.name, now_ms)

    def add(self, files: Iterable[UnreadableFile]) -> None:
        """Add files that were met; log each once for as long as it cannot be read."""
        for unreadable in files:
            self._paths.add(unreadable.file.path)
            if unreadable.file.path not in self._told:
                self._told.add(unreadable.file.path)
                text = "the schedule has a file that cannot be read, its messages wait: %s; %s"
                logger.error(text, unreadable.problem, "restore it")
