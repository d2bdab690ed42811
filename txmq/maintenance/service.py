"""Maintenance: keeps every table small while producers, brokers and consumers run.

A round does retention, compaction, checkpoints, log clean-up and, once an hour, the removal of
orphaned files. No other part of txmq cleans (decision 0011). Every step is safe beside readers and
writers, so several maintenances may run at once, and each finishes what a killed one left.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from txmq.check.open_set import KEEP_EVERY_ROWS, OpenSetReader
from txmq.delta.log_files import clean_log, log_files
from txmq.delta.table import Table
from txmq.errors import CommitRefusedError, UnsupportedTableError
from txmq.ground.clock import Clock, affine
from txmq.ground.handles import OfOneProcess, ThreadHandle, is_survivable
from txmq.ground.results import Sum, plain
from txmq.maintenance.compaction import Compacted, compact
from txmq.maintenance.orphans import IsOld, remove_checkpoints, remove_clock_files, sweep
from txmq.maintenance.retention import Retained, Retention, TopicRetention, published_up_to
from txmq.store.store import Store, check_store
from txmq.store.store_clock import StoreClock

logger = logging.getLogger(__name__)

SWEEP_INTERVAL_S = 3600.0
# A clock that is wrong for a shorter time removes nothing.
JUMP_HOLD_S = 3600.0
# A table where nothing was to do is looked at again after this time.
QUIET_MS = 60_000
_HOUR_MS = 3_600_000
_TOPICS = "topics/"


@dataclass(frozen=True, slots=True)
class MaintenanceResult(Sum):
    """What one round did.

    Attributes:
        leftovers_removed: orphaned files and checkpoints that killed processes left.
        failed: the tables and steps that failed, each with its error.
    """

    compacted: Compacted = field(default_factory=Compacted)
    checkpoints: int = 0
    commits_cleaned: int = 0
    data_files_removed: int = 0
    leftovers_removed: int = 0
    topic_files_removed: int = 0
    retained: Retained = field(default_factory=Retained)
    failed: Mapping[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        values = plain(self)
        compacted, retained, failed = (values.pop(n) for n in ("compacted", "retained", "failed"))
        return {**compacted, **values, **retained, "failed": failed}


class Maintenance(OfOneProcess):
    """Looks after all tables of a store; needs no Spark. Not safe for several threads.

    Args:
        store: the store to look after.
        clock: the clock of this machine. Files and transactions are old by the store's time,
            however wrong that clock is (decision 0031).

    Example:
        >>> Maintenance(store).run_once().commits_cleaned
        0
    """

    def __init__(self, store: Store, *, clock: Clock | None = None) -> None:
        """Read nothing yet."""
        check_store(store)
        self.store = store
        self._clock = StoreClock(store, clock, hold_s=JUMP_HOLD_S)
        self._retention: Retention | None = None
        self._topic_retention: TopicRetention | None = None
        self._open_set: OpenSetReader | None = None
        self._tables: dict[str, Table] = {}
        self._quiet_since_ms: dict[str, int] = {}
        self._swept_s = -math.inf

    def run_once(self) -> MaintenanceResult:
        """Do one round over all tables.

        What is open is written down first, for log clean-up takes away from where an older set
        could go on.

        Reads and writes: all tables. Commits: one for each table that has files to compact, those
        of `Retention.run` and one for each topic that loses old files; none where nothing is to
        do. A round that was killed is finished by the next one, of this process or of another.

        Returns:
            What the round did. A table or step that fails is logged and named in `failed`; the
            others are done all the same.

        Raises:
            StorageError: the folder of the store cannot be listed.
        """
        result = self._attempt("open transactions", self._keep_open_set)
        result += self._attempt("retention", self._retain)
        result += self._attempt("topic retention", self._retain_topics)
        for path, table in self._all_tables():
            result += self._attempt(path, partial(self._look_after, path, table))
        if time.monotonic() - self._swept_s >= SWEEP_INTERVAL_S:
            self._swept_s = time.monotonic()
            result += self._attempt("sweep", self._sweep)
        return result

    def start(self) -> MaintenanceHandle:
        """Do a round every `maintenance_interval_s` in a thread until `stop()`.

        The first round comes after one interval. Commits, retries: as `run_once`.
        """
        return MaintenanceHandle(self)

    # --- one table ------------------------------------------------------------------------------

    def _look_after(self, path: str, table: Table) -> MaintenanceResult:
        now_ms = self._clock.now_ms()
        # A time in the future comes from a clock that was ahead.
        is_quiet = 0 <= now_ms - self._quiet_since_ms.get(path, -QUIET_MS) < QUIET_MS
        if is_quiet and not table.log.has_news():
            return MaintenanceResult()
        result = self._looked_after(path, table)
        if result == MaintenanceResult():
            # A thousand idle topics then cost a thousand lookups of one file name.
            self._quiet_since_ms[path] = now_ms
        return result

    def _looked_after(self, path: str, table: Table) -> MaintenanceResult:
        """Make the log short first: a file that cannot be merged keeps nothing from that."""
        result = self._attempt(path, partial(_opened, table))
        if result.failed:
            return result
        for step in (self._checkpointed, partial(self._log_cleaned, path), self._compacted):
            result += self._attempt(path, partial(step, table))
        return result

    def _compacted(self, table: Table) -> MaintenanceResult:
        try:
            merged = compact(table, self.store.config.compact_target_bytes)
        except CommitRefusedError:
            # Another maintenance was faster.
            return MaintenanceResult()
        return MaintenanceResult(compacted=merged)

    def _checkpointed(self, table: Table) -> MaintenanceResult:
        """Make a checkpoint if it is due: writers make them too, but a killed writer does not."""
        table.refresh()
        if (
            log_files(table.folder).since_checkpoint(table.version)
            < self.store.config.checkpoint_interval
        ):
            return MaintenanceResult()
        table.writer.checkpoint()
        return MaintenanceResult(checkpoints=1)

    def _log_cleaned(self, path: str, table: Table) -> MaintenanceResult:
        cleaned = clean_log(table, self._keep_from(path, table))
        return MaintenanceResult(
            commits_cleaned=cleaned.commits, data_files_removed=cleaned.data_files
        )

    def _keep_from(self, path: str, table: Table) -> int:
        """Return the oldest commit that a reader may still need."""
        config = self.store.config
        is_topic = path.startswith(_TOPICS)
        reserved_ms = (
            config.topic_log_reserved_time_h * _HOUR_MS
            if is_topic
            else config.log_reserved_time_s * 1000
        )
        old = log_files(table.folder).newest_of(self._older_than(reserved_ms))
        if path == "op":
            return min(old, published_up_to(self.store))
        return min([old, *self._removals(path, table)])

    def _removals(self, path: str, table: Table) -> list[int]:
        """List the removals by other programs that no publisher has looked at yet."""
        if path not in {"half", "settled"}:
            return []
        tables = self.store.tables
        settled = tables.settled_log(tables.op_log().table.log.table_id)
        # By the handle that is kept: what it followed is not read again.
        seen = settled.half_seen.version if path == "half" else settled.whole_through
        return table.log.removals_after(seen)

    def _older_than(self, age_ms: float) -> Callable[[int], bool]:
        limit_ms, clock = self._clock.now_ms() - age_ms, affine(self._clock)
        return lambda wall_ms: clock.at(wall_ms) < limit_ms

    # --- all tables -----------------------------------------------------------------------------

    def _keep_open_set(self) -> MaintenanceResult:
        """Write down what is open, before the clean-up takes the commits that say it.

        Not in a small store: there a search of all halves is cheap.
        """
        if self._open_set is None:
            logs = self.store.tables.logs(believes_unknown=True)
            self._half = logs.half.table
            self._open_set = OpenSetReader(logs, self.store.tables)
        rows = sum(file.num_records for file in self._half.refresh().files.all())
        if rows >= KEEP_EVERY_ROWS:
            self._open_set.read()
            self._open_set.keep(before_clean_up=True)
        return MaintenanceResult()

    def _retain(self) -> MaintenanceResult:
        if self._retention is None:
            self._retention = Retention(self.store, self._clock)
        return MaintenanceResult(retained=self._retention.run())

    def _retain_topics(self) -> MaintenanceResult:
        if self._topic_retention is None:
            self._topic_retention = TopicRetention(self.store, self._clock)
        return MaintenanceResult(topic_files_removed=self._topic_retention.run())

    def _sweep(self) -> MaintenanceResult:
        is_old = self._older_than(self.store.config.orphan_reserved_time_h * _HOUR_MS)
        result = MaintenanceResult()
        for path, table in self._all_tables():
            result += self._attempt(path, partial(_swept, table, is_old))
        for name, remove in (("checkpoints", remove_checkpoints), ("clock", remove_clock_files)):
            result += self._attempt(name, partial(_without_leftovers, remove, self.store, is_old))
        return result

    def _all_tables(self) -> Iterator[tuple[str, Table]]:
        for path in self.store.tables.table_paths():
            if path not in self._tables:
                self._tables[path] = self.store.tables.table_at(path)
            yield path, self._tables[path]

    def _attempt(self, name: str, work: Callable[[], MaintenanceResult]) -> MaintenanceResult:
        try:
            return work()
        except BaseException as error:
            if not is_survivable(error):
                raise
            if isinstance(error, UnsupportedTableError):
                # It is known what it is; the doctor names it too.
                logger.error("maintenance of %s: %s", name, error)  # noqa: TRY400
            else:
                logger.exception("maintenance of %s failed", name)
            # The failure may be one of these handles, so the next round opens new ones.
            self._tables.pop(name, None)
            self._retention = self._topic_retention = self._open_set = None
            return MaintenanceResult(failed={name: f"{type(error).__name__}: {error}"})


class MaintenanceHandle(ThreadHandle):
    """Maintenance in a thread of its own; the first round comes after an interval."""

    def __init__(self, maintenance: Maintenance) -> None:
        """Start at once; `Maintenance.start()` makes it."""
        interval_s = maintenance.store.config.maintenance_interval_s
        super().__init__("maintenance", interval_s, first_s=interval_s)
        self._maintenance = maintenance
        self.total = MaintenanceResult()
        self.rounds = 0
        self.begin()

    def _turn(self) -> None:
        try:
            self.total += self._maintenance.run_once()
        except BaseException as error:
            if not is_survivable(error):
                raise
            # The next round comes after an interval, as after one whose tables all failed.
            logger.exception("a round of maintenance failed")
            self.total += MaintenanceResult(failed={"round": str(error)})
        self.rounds += 1


def _opened(table: Table) -> MaintenanceResult:
    table.log.open()
    return MaintenanceResult()


def _swept(table: Table, is_old: IsOld) -> MaintenanceResult:
    try:
        return MaintenanceResult(leftovers_removed=sweep(table, is_old))
    except CommitRefusedError:
        # A writer was faster; the next sweep removes them.
        return MaintenanceResult()


def _without_leftovers(
    remove: Callable[[Store, IsOld], int], store: Store, is_old: IsOld
) -> MaintenanceResult:
    return MaintenanceResult(leftovers_removed=remove(store, is_old))
