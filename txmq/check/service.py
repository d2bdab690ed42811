"""The check service: a streaming deadline join for low latency, and a recheck that misses nothing.

The recheck is a batch search of the logs for due transactions. Without Spark there is no join, and
the recheck runs whenever a transaction may be due.
"""

from __future__ import annotations

import logging
import math
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from txmq.check.claims import RoundResult
from txmq.check.recheck import Recheck, RecheckJob, RecheckResult, all_listeners
from txmq.check.round import PATIENCE_S, CheckRound
from txmq.check.standing import DUE, rounds_of
from txmq.errors import StorageError
from txmq.ground.clock import Clock
from txmq.ground.handles import (
    LOOK_INTERVAL_S,
    StreamHandle,
    ThreadHandle,
    batch_of_spark,
    forget_checkpoint,
    is_connect,
    is_survivable,
)
from txmq.listeners.hooks import Hook, Hooks
from txmq.listeners.protocol import CheckListener
from txmq.message.lifecycle import ClaimSource
from txmq.spark.deadline_join import dues_of, horizon_s, start_check_stream
from txmq.store.store import Store, check_store, service_checkpoint_location
from txmq.store.store_clock import StoreClock

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# --- traffic:

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
        """Whether there are commits; true also where nobody can tell."""
        try:
            news = [table for table in self._tables if table.has_news()]
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


# --- triggers:

logger = logging.getLogger(__name__)

QUERY_FAILURES_MAX = 10
RESTART_PAUSE_S = 0.5
RESTART_PAUSE_MAX_S = 60.0
STOP_PAUSE_S = 0.3
ENDING_BATCHES_MAX = 2
# A recheck without Spark reads the logs for at most a tenth of the time.
SEARCHES_IN_A_PAUSE = 10

OnDue = Callable[[pa.Table, int], None]


class Trigger(Protocol):
    """Decides when a recheck is needed; it may find due transactions itself."""

    def keep_running(self) -> bool:
        """Start or restart what it runs; return whether it may have missed due transactions."""
        ...

    def recheck_interval_s(self) -> float:
        """The time from the begin of the last recheck to the next one."""
        ...

    def stop(self) -> None:
        """End what it runs."""
        ...


class LogTrigger:
    """Without Spark: needs a recheck when a log has news or a deadline has passed."""

    def __init__(self, store: Store, recheck: Recheck, on_due: OnDue) -> None:
        """Look at nothing yet."""
        self._recheck, self._on_due = recheck, on_due
        self._trigger_s = store.config.check_trigger_interval_s

    def keep_running(self) -> bool:
        """Write late answers; return False, because a recheck reads all open transactions."""
        self._on_due(DUE.empty_table(), 0)
        return False

    def recheck_interval_s(self) -> float:
        """Infinite without news; else the trigger interval, or ten times the time of a search."""
        if not self._recheck.may_find_more():
            return math.inf
        return max(self._trigger_s, SEARCHES_IN_A_PAUSE * self._recheck.search_s)

    @property
    def is_slow(self) -> bool:
        """Whether searches take so long that they come less often than asked for."""
        return SEARCHES_IN_A_PAUSE * self._recheck.search_s > self._trigger_s

    def stop(self) -> None:
        """Do nothing: nothing runs."""


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
        """Start the query when it pays, after a failure, or after late rows; whether it did so."""
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
        """`recheck_interval_s` if the join has run for a horizon without a gap; else shorter."""
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
        """Whether rows were dropped as late, which happens only if the clock was set back."""
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
        """Whether there is time before the next micro-batch; Spark begins at whole intervals."""
        if self._query.status["isTriggerActive"]:
            return False
        trigger_s = self._trigger_s
        left_s = trigger_s - time.time() % trigger_s if trigger_s else 0.0
        has_begun = self.batches + self._ending_batches > 0
        return has_begun and left_s >= min(STOP_PAUSE_S, trigger_s / 2)


# --- service:

ROWS_A_ROUND = 100_000
# After a look that failed.
FAILED_LOOK_PAUSE_S = 1.0


class CheckService:
    """Asks listeners whether local transactions without an end took place (R52 to R81).

    Several services may serve one store; a lease ensures that only one asks at a time.

    Args:
        store: the store to check.
        spark: the session that the deadline join runs on, and that a SetListener needs. Its
            settings are not changed. Without it `start()` repeats the recheck.
        listeners: by producer group; the listeners of the settings are added for other groups.
        clock: the clock of this machine. A transaction is due by the store's time, however wrong
            that clock is (decision 0031).
        hooks: are told of the ends that the service writes (R89).

    Raises:
        ListenerError: a listener cannot answer checks, or one of the settings cannot be loaded.
        HookError: an element of `hooks` is no hook.

    Example:
        >>> CheckService(store, listeners={"orders": listener}).run_once().checks.asked
        0
    """

    def __init__(
        self,
        store: Store,
        *,
        spark: SparkSession | None = None,
        listeners: Mapping[str, CheckListener] | None = None,
        clock: Clock | None = None,
        hooks: Iterable[Hook] = (),
    ) -> None:
        """Check the listeners and the hooks; read nothing and ask nobody yet."""
        check_store(store)
        self._hooks = Hooks(hooks)
        self.store = store
        self._spark = spark
        self._clock = StoreClock.of(store, clock)
        self.listeners = all_listeners(store.config, listeners)

    def run_once(self) -> RecheckResult:
        """Run one recheck: ask about every transaction that is due now; start no stream.

        Commits: for each round one to op and two to the lease; none if nothing is due.

        Retry: call it again. A question counts only by its durable claim, so a transaction is asked
        at most `transaction_check_max` times, plus one for each round that died.

        Returns:
            The answers, and the transactions that are still open.

        Raises:
            StorageError: a log cannot be read or written.
            ListenerError: a listener cannot be used.
        """
        return RecheckJob(
            self.store, listeners=self.listeners, clock=self._clock, spark=self._spark,
            hooks=self._hooks,
        ).run_once()  # fmt: skip

    def start(self) -> CheckHandle:
        """Start a thread that checks until `stop()`; return its handle.

        The thread runs a recheck at once. With Spark it then runs the deadline join as a stream,
        starts it again after a failure, and rechecks at least every `recheck_interval_s`. Without
        Spark it rechecks when a log has news or a deadline has passed.

        Commits: for each round one to op and two to the lease; none if nothing is due.

        Retry: the thread goes on after an error of a round; `last_error` of the handle shows it.
        After a crash start it again: the recheck finds every transaction that is due.

        Returns:
            The handle; call `stop()` before the process ends.

        Raises:
            ListenerError: a listener cannot be used.
        """
        checks = CheckRound(
            self.store, listeners=self.listeners, clock=self._clock, spark=self._spark,
            hooks=self._hooks,
        )  # fmt: skip
        return CheckHandle(self.store, self._spark, checks, self._clock)


class CheckHandle(ThreadHandle):
    """A running check service: its thread supervises the deadline join and runs the rechecks.

    Attributes:
        checked: the results of all rounds.
        last_error: the last error of a round.
    """

    def __init__(
        self, store: Store, spark: SparkSession | None, checks: CheckRound, clock: StoreClock
    ) -> None:
        """Call `CheckService.start()` instead."""
        super().__init__("check", store.look_interval_s(LOOK_INTERVAL_S, is_idle=True))
        self._checks, self._clock = checks, clock
        self._recheck = Recheck(store, checks, clock)
        self._trigger: Trigger = (
            LogTrigger(store, self._recheck, self._on_due)
            if spark is None or is_connect(spark)
            else StreamTrigger(spark, store, clock, self._recheck, self._on_due)
        )
        self._needs_recheck = threading.Event()
        self._rechecked_s, self._looked_s = -math.inf, -math.inf
        self._look_s = store.config.check_trigger_interval_s
        self.checked = RoundResult()
        self.last_error: BaseException | None = None
        self.begin()

    def _turn(self) -> None:
        try:
            self._look()
        except (StorageError, OSError) as error:
            # The storage may be back; a join that fails for ever ends the service.
            self._failed(error)
            self._stopping.wait(FAILED_LOOK_PAUSE_S)

    def _look(self) -> None:
        if self._trigger.keep_running() or self._has_returned():
            # A new join does not see deadlines that passed before its start.
            self._needs_recheck.set()
        since_s = time.monotonic() - self._rechecked_s
        if self._needs_recheck.is_set() or since_s >= self._trigger.recheck_interval_s():
            self._needs_recheck.clear()
            self._rechecked_s = time.monotonic()
            self._try_recheck()

    def _has_returned(self) -> bool:
        """Whether producers came back; looked at once per trigger interval."""
        if time.monotonic() - self._looked_s < self._look_s:
            return False
        self._looked_s = time.monotonic()
        try:
            return self._recheck.has_returned()
        except BaseException as error:  # noqa: BLE001 - `_failed` raises what ends the service
            self._failed(error)
            return False

    def _try_recheck(self) -> None:
        try:
            result = self._recheck.run_once(self._stopping.is_set, waits=False)
        except BaseException as error:  # noqa: BLE001 - `_failed` raises what ends the service
            self._failed(error)
        else:
            self.checked += result.checks

    def _on_due(self, dues: pa.Table, clock_ms: int) -> None:
        """Check the due rows of one micro-batch; without rows only write late answers."""
        try:
            # The join goes by this machine's clock.
            clock_ms = self._clock.not_beyond(clock_ms) if dues.num_rows else clock_ms
            for of_round in [*rounds_of(dues, lambda _: ROWS_A_ROUND)] or [dues]:
                self._round(of_round, clock_ms)
        except BaseException as error:  # noqa: BLE001 - `_failed` raises what ends the service
            # The join emits a row only once, so the recheck must find it again.
            self._failed(error)
            self._needs_recheck.set()

    def _round(self, dues: pa.Table, clock_ms: int) -> None:
        result = self._checks.run(
            dues,
            clock_ms=clock_ms,
            source=ClaimSource.CHECK,
            may_wait=lambda: not self._stopping.is_set(),
            patience_s=PATIENCE_S,
        )
        if result is not None:
            self.checked += result
        if result is None or result.left:
            # The join emits a row only once.
            self._needs_recheck.set()

    def _failed(self, error: BaseException) -> None:
        """Keep the error of a round and go on; what is no error of the round ends the service."""
        if not is_survivable(error):
            raise error
        logger.error("a round of checks failed: %s", error, exc_info=error)
        self.last_error = error

    def _end(self) -> None:
        self._trigger.stop()
        try:
            self._checks.close()
        except BaseException as error:  # noqa: BLE001 - `_failed` raises what ends the service
            self._failed(error)
