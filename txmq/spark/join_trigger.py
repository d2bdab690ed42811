"""Runs the deadline join where it pays: starts its query, replaces it, lets it rest.

The check service asks it, as it asks the trigger without Spark, when a recheck is needed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from txmq.check.service import LogTrigger, OnDue
from txmq.errors import StorageError
from txmq.ground.clock import Clock, affine
from txmq.ground.tasks import submitted
from txmq.spark.deadline_join import dues_of, early_by_s, horizon_s, start_check_stream
from txmq.spark.queries import (
    StreamHandle,
    batch_of_spark,
    check_java,
    forget_checkpoint,
    is_without_java,
)
from txmq.store.store import Store, service_checkpoint_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

QUERY_FAILURES_MAX = 10
RESTART_PAUSE_S = 0.5
RESTART_PAUSE_MAX_S = 60.0
STOP_PAUSE_S = 0.3
ENDING_BATCHES_MAX = 2
# Without a micro-batch for so long, searches take the place of the join.
TRIGGERS_MISSED = 2
LEAST_SILENCE_S = 1.0


class StreamTrigger:
    """With Spark: runs the query of the deadline join, and replaces it if it may be wrong.

    Each query begins with the rows that are appended from its start on, in a checkpoint of its own.
    So two services never share a checkpoint, a broken checkpoint does no harm, and no start reads
    the whole history. What was open before is searched for, at the pace of a service without
    Spark, until the last of its deadlines; and so is everything while micro-batches come late.

    Micro-batches cost a third of a core, also without rows. A query that `rests` is stopped while
    the logs are quiet and while searches cost less than it does; searches take its place.
    """

    def __init__(
        self,
        spark: SparkSession,
        store: Store,
        clock: Clock,
        by_logs: LogTrigger,
        *,
        rests: bool,
    ) -> None:
        """Start nothing yet; `by_logs` decides where the join does not see all that is open."""
        self._spark, self._store, self._clock = spark, store, clock
        self._by_logs, self._recheck, self._on_due = by_logs, by_logs.recheck, by_logs.on_due
        self._rests = self._is_resting = rests
        self._traffic = LogTraffic(store)
        self._horizon_ms = round(horizon_s(store.config) * 1000)
        self._recheck_interval_s = store.config.recheck_interval_s
        trigger_s = store.config.check_trigger_interval_s
        self._silence_s = max(TRIGGERS_MISSED * trigger_s, LEAST_SILENCE_S)
        # Until then something is open that the query does not see.
        self._unseen_until_ms = math.inf
        self._starter = ThreadPoolExecutor(1, "txmq-check-start")
        self._starting: Future[_Running] | None = None
        self._running: _Running | None = None
        self._failures = 0
        self._next_start_s = -math.inf

    def keep_running(self) -> bool:
        """Start the query when it pays, after a failure or late rows.

        Returns:
            Whether a query began or ended, so that a recheck must see what it does not.

        Raises: EnvironmentProblemError where Java has ended; the last of too many failures of the
            query.
        """
        if self._rests:
            self._traffic.look()
        if self._starting is not None and self._starting.done():
            return self._has_started(self._starting)
        if self._running is not None:
            return self._has_stopped(self._running)
        if self._starting is None and self._is_wanted():
            self._start()
        return self._by_logs.keep_running()

    def _is_wanted(self) -> bool:
        # No start helps where Java has ended, and nobody else hears of it while no query runs.
        check_java(self._spark)
        self._is_resting = self._is_resting and not self._join_pays
        return not self._is_resting and time.monotonic() >= self._next_start_s

    def _has_stopped(self, running: _Running) -> bool:
        """Stop a query that failed, shall rest, or may be wrong; return whether there was one."""
        if not running.is_alive:
            self._note_failure(running.exception)
        elif self._rests and self._traffic.is_quiet:
            self._is_resting = True
        elif running.has_dropped_rows():
            logger.error("rows were dropped as late: the clock was set back; restarting the query")
        else:
            self._failures = 0 if running.batches else self._failures
            return False
        self._stop_query()
        return True

    @property
    def _join_pays(self) -> bool:
        """Whether commits keep coming, and searches for them would come late."""
        traffic = self._traffic
        return self._by_logs.is_slow and (traffic.is_steady or traffic.is_lasting)

    def recheck_interval_s(self) -> float:
        """Return `recheck_interval_s` while the join sees all that is open, else as without it."""
        if self._join_sees_all:
            return self._recheck_interval_s
        interval_s = self._by_logs.recheck_interval_s()
        return interval_s if math.isinf(interval_s) else min(interval_s, self._recheck_interval_s)

    @property
    def _join_sees_all(self) -> bool:
        """Whether micro-batches come in time, and what was open at the start has been due."""
        running = self._running
        if running is None or not running.is_prompt(self._silence_s):
            return False
        now_ms, last_ms = self._clock.now_ms(), self._recheck.open_until_ms
        if self._unseen_until_ms == math.inf and last_ms < math.inf:
            # What lies beyond the horizon is left to the recheck anyway.
            self._unseen_until_ms = min(last_ms, now_ms + self._horizon_ms)
        return now_ms > self._unseen_until_ms

    def stop(self) -> None:
        """Stop the query between two micro-batches and remove its checkpoint."""
        self._starter.shutdown()
        if self._starting is not None and self._starting.exception() is None:
            self._running = self._starting.result()
        self._stop_query()

    def _stop_query(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            running.stop()

    def _start(self) -> None:
        """Start the query in a thread: it takes seconds, and searches go on meanwhile."""
        self._starting = submitted(
            self._starter, _Running, self._spark, self._store, self._clock, self._on_due
        )

    def _has_started(self, starting: Future[_Running]) -> bool:
        """Take what was started; return whether it runs. Raises: the last of too many failures."""
        self._starting = None
        if failure := starting.exception():
            self._note_failure(failure)
            return False
        self._running = starting.result()
        self._unseen_until_ms = math.inf
        self._recheck.forget()
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
        self._on_due, self._clock = on_due, clock
        self._ending, self._in_batch = threading.Event(), threading.Lock()
        self._trigger_s = store.config.check_trigger_interval_s
        self._last_batch_s = -math.inf
        self._ending_batches = 0
        self.batches = 0
        checkpoint = service_checkpoint_location(store, f"check-{uuid.uuid4().hex[:8]}")
        query = start_check_stream(
            spark, store, clock=clock, checkpoint=checkpoint, on_batch=self._batch
        )
        super().__init__(query, self._ending, self._in_batch, lambda: forget_checkpoint(checkpoint))

    def is_prompt(self, silence_s: float) -> bool:
        """Tell whether a micro-batch has ended within this time."""
        return time.monotonic() - self._last_batch_s <= silence_s

    def has_dropped_rows(self) -> bool:
        """Tell whether rows were dropped as late, which happens only if the clock was set back."""
        try:
            progress = self._query.lastProgress
        except Exception as error:
            if is_without_java(error):
                # The next look finds that the query has ended.
                return False
            raise
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
        early_s = early_by_s(clock_ms, affine(self._clock))
        self._ending.wait(min(early_s, self._trigger_s))
        self._on_due(dues, clock_ms)
        self.batches += 1
        self._last_batch_s = time.monotonic()

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
