"""Runs the deadline join where it pays: starts its query, replaces it, lets it rest.

The check service asks it, as it asks the trigger without Spark, when a recheck is needed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from typing import TYPE_CHECKING

from txmq.check.recheck import Recheck
from txmq.check.service import LogTrigger, OnDue
from txmq.errors import StorageError
from txmq.ground.clock import Clock
from txmq.spark.deadline_join import dues_of, horizon_s, start_check_stream
from txmq.spark.queries import StreamHandle, batch_of_spark, forget_checkpoint
from txmq.store.store import Store, service_checkpoint_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

QUERY_FAILURES_MAX = 10
RESTART_PAUSE_S = 0.5
RESTART_PAUSE_MAX_S = 60.0
STOP_PAUSE_S = 0.3
ENDING_BATCHES_MAX = 2


class StreamTrigger:
    """With Spark: runs the query of the deadline join, and replaces it if it may be wrong.

    Its micro-batches cost a third of a core, also without rows. So the query is stopped while the
    logs are quiet; rechecks by the logs, as without Spark, take its place until there is traffic.
    With the setting `deadline_join: auto` they also do so while they cost less than the query.

    Each query begins with the rows that are appended from its start on, in a checkpoint of its own.
    So two services never share a checkpoint, a broken checkpoint does no harm, and no start reads
    the whole history.
    """

    def __init__(
        self, spark: SparkSession, store: Store, clock: Clock, recheck: Recheck, on_due: OnDue
    ) -> None:
        """Start nothing yet."""
        self._spark, self._store, self._clock, self._on_due = spark, store, clock, on_due
        self._by_logs = LogTrigger(store, recheck, on_due)
        self._always_joins = store.config.deadline_join == "always"
        self._traffic, self._is_resting = LogTraffic(store), not self._always_joins
        self._horizon_s = horizon_s(store.config)
        self._recheck_interval_s = store.config.recheck_interval_s
        self._check_interval_s = min(
            settings.transaction_check_interval_s
            for settings in store.config.check_settings().values()
        )
        self._running: _Running | None = None
        self._failures = 0
        self._next_start_s = -math.inf

    def keep_running(self) -> bool:
        """Start the query when it pays, after a failure or late rows. Return whether it did."""
        running = self._running
        self._traffic.look()
        if self._is_resting:
            return self._end_rest() if self._join_pays else self._by_logs.keep_running()
        if running is not None and running.is_alive:
            self._failures = 0 if running.batches else self._failures
            if self._traffic.is_quiet:
                self.stop()
                self._is_resting = True
                return True
            if not running.has_dropped_rows():
                return False
            logger.error("rows were dropped as late: the clock was set back; restarting the query")
        elif running is not None:
            self._note_failure(running.exception)
        self.stop()
        return time.monotonic() >= self._next_start_s and self._start()

    @property
    def _join_pays(self) -> bool:
        """Whether commits keep coming, and searches for them would come late."""
        if self._always_joins:
            return self._traffic.is_steady
        traffic = self._traffic
        return self._by_logs.is_slow and (traffic.is_steady or traffic.is_lasting)

    def _end_rest(self) -> bool:
        self._is_resting = False
        return self._start()

    def recheck_interval_s(self) -> float:
        """Return `recheck_interval_s` if the join ran for a horizon without a gap, or less."""
        if self._is_resting:
            interval_s = self._by_logs.recheck_interval_s()
            return (
                interval_s if math.isinf(interval_s) else min(interval_s, self._recheck_interval_s)
            )
        running, silence_s = self._running, self._check_interval_s
        if running is not None and running.is_steady(self._horizon_s, silence_s):
            return self._recheck_interval_s
        return min(silence_s, self._recheck_interval_s)

    def stop(self) -> None:
        """Stop the query between two micro-batches and remove its checkpoint."""
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def _start(self) -> bool:
        try:
            self._running = _Running(self._spark, self._store, self._clock, self._on_due)
        except Exception as error:  # noqa: BLE001 - Spark's errors have no common root
            self._note_failure(error)
            return False
        return True

    def _note_failure(self, failure: BaseException | None) -> None:
        """Try again after a growing pause; rechecks continue during it."""
        self._failures += 1
        logger.error("the deadline join failed: %s", failure)
        if self._failures >= QUERY_FAILURES_MAX and failure is not None:
            raise failure
        pause_s = min(RESTART_PAUSE_S * 2**self._failures, RESTART_PAUSE_MAX_S)
        self._next_start_s = time.monotonic() + pause_s


class _Running(StreamHandle):
    """One running query of the deadline join."""

    def __init__(self, spark: SparkSession, store: Store, clock: Clock, on_due: OnDue) -> None:
        self._on_due = on_due
        self._ending, self._in_batch = threading.Event(), threading.Lock()
        self._trigger_s = store.config.check_trigger_interval_s
        self._first_batch_s: float | None = None
        self._last_batch_s = -math.inf
        self._ending_batches = 0
        self.batches = 0
        checkpoint = service_checkpoint_location(store, f"check-{uuid.uuid4().hex[:8]}")
        query = start_check_stream(
            spark, store, clock=clock, checkpoint=checkpoint, on_batch=self._batch
        )
        super().__init__(query, self._ending, self._in_batch, lambda: forget_checkpoint(checkpoint))

    def is_steady(self, horizon_s: float, silence_s: float) -> bool:
        now_s, first_s = time.monotonic(), self._first_batch_s
        runs_long = first_s is not None and now_s - first_s >= horizon_s
        return runs_long and now_s - self._last_batch_s <= silence_s

    def has_dropped_rows(self) -> bool:
        """Tell whether rows were dropped as late, which happens only if the clock was set back."""
        progress = self._query.lastProgress
        operators = [] if progress is None else progress.stateOperators
        return any(operator.numRowsDroppedByWatermark > 0 for operator in operators)

    def _batch(self, batch: DataFrame) -> None:
        with self._in_batch, batch_of_spark():
            self._take(batch)

    def _take(self, batch: DataFrame) -> None:
        if self._ending_batches >= ENDING_BATCHES_MAX:
            # The batches leave no pause to stop in; an unread batch makes Spark end the query.
            return
        dues, clock_ms = dues_of(batch)
        if self._ending.is_set():
            # The next start's recheck finds these rows.
            self._ending_batches += 1
            return
        self._on_due(dues, clock_ms)
        self.batches += 1
        self._last_batch_s = time.monotonic()
        self._first_batch_s = self._first_batch_s or self._last_batch_s

    def _is_pausing(self) -> bool:
        """Tell whether the next micro-batch leaves time; Spark begins at whole intervals."""
        if self._query.status["isTriggerActive"]:
            return False
        trigger_s = self._trigger_s
        left_s = trigger_s - time.time() % trigger_s if trigger_s else 0.0
        has_begun = self.batches + self._ending_batches > 0
        return has_begun and left_s >= min(STOP_PAUSE_S, trigger_s / 2)


QUIET_AFTER_S = 30.0
# So many looks in a row with news are traffic; a single transaction is not.
STEADY_LOOKS = 5


class LogTraffic:
    """The traffic of the half and op logs. Not safe for several threads."""

    def __init__(self, store: Store) -> None:
        """Open nothing yet."""
        self._tables = [store.tables.half_log().table, store.tables.op_log().table]
        self._interval_s = store.config.check_trigger_interval_s
        self._looked_s = self._busy_s = self._begun_s = time.monotonic()
        self._looks_with_news = 0

    def look(self) -> None:
        """Look for commits, once per `check_trigger_interval_s`."""
        now_s = time.monotonic()
        if now_s - self._looked_s < self._interval_s:
            return
        was_quiet = self.is_quiet
        self._looked_s = now_s
        has_news = self._has_news()
        if has_news and was_quiet:
            self._begun_s = now_s
        self._looks_with_news = self._looks_with_news + 1 if has_news else 0
        self._busy_s = now_s if has_news else self._busy_s

    def _has_news(self) -> bool:
        """Tell whether there are commits; true also where nobody can tell."""
        try:
            news = [table for table in self._tables if table.log.has_news()]
            for table in news:
                table.refresh()
        except StorageError:
            return True
        return bool(news)

    @property
    def is_quiet(self) -> bool:
        """Whether there was no commit for QUIET_AFTER_S."""
        return self._looked_s - self._busy_s >= QUIET_AFTER_S

    @property
    def is_steady(self) -> bool:
        """Whether commits keep coming."""
        return self._looks_with_news >= STEADY_LOOKS

    @property
    def is_lasting(self) -> bool:
        """Whether commits have come for QUIET_AFTER_S, without a pause of that length."""
        return not self.is_quiet and self._busy_s - self._begun_s >= QUIET_AFTER_S
