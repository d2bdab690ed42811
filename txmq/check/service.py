"""The check service: a deadline join that sees at once, and a recheck that misses nothing.

Without Spark the recheck is all there is: it looks at the logs whenever something may be due.
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
from txmq.check.due import DUE, rounds_of
from txmq.check.recheck import Recheck, RecheckJob, RecheckResult, all_listeners
from txmq.check.round import CheckRound
from txmq.check.stream import dues_of, horizon_s, start_check_stream
from txmq.clock import Clock, SystemClock
from txmq.errors import TxmqError
from txmq.handles import LOOK_INTERVAL_S, StreamHandle, ThreadHandle, forget_checkpoint
from txmq.hooks import Hook, Hooks
from txmq.lifecycle import ClaimSource
from txmq.listeners.protocol import CheckListener
from txmq.store.store import Store, service_checkpoint_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger(__name__)

QUERY_FAILURES_MAX = 10
ROWS_A_ROUND = 100_000
RESTART_PAUSE_S = 0.5
RESTART_PAUSE_MAX_S = 60.0
STOP_PAUSE_S = 0.3
ENDING_BATCHES_MAX = 2
LOOKS_IN_A_PAUSE = 10

OnDue = Callable[[pa.Table, int], None]


class CheckService:
    """Asks producer groups what became of transactions that they did not end (R52 to R81).

    Several services may serve one store; the check lease keeps them from asking twice.

    Args:
        store: whose transactions.
        spark: what the deadline join runs on; without it `start()` rechecks again and again.
            Needed by listeners that answer with a DataFrame; its settings are left as they are.
        listeners: by producer group; those that the settings name are added.
        clock: what "due" means.
        hooks: told of the ends that it writes (R89).

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
        """Check the listeners; nothing is read or asked yet. Raises: ListenerError, HookError."""
        self._hooks = Hooks(hooks)
        self.store = store
        self._spark = spark
        self._clock: Clock = clock or SystemClock()
        self._listeners = all_listeners(store.config, listeners)

    def run_once(self) -> RecheckResult:
        """A recheck: ask until nothing is left that was due at the start; starts no stream."""
        return RecheckJob(
            self.store, listeners=self._listeners, clock=self._clock, spark=self._spark,
            hooks=self._hooks,
        ).run_once()  # fmt: skip

    def start(self) -> CheckHandle:
        """Run until `stop()`; a recheck begins at once, and without Spark there is nothing else."""
        checks = CheckRound(
            self.store, listeners=self._listeners, clock=self._clock, spark=self._spark,
            hooks=self._hooks,
        )  # fmt: skip
        return CheckHandle(self.store, self._spark, checks, self._clock)


class CheckHandle(ThreadHandle):
    """A check service that runs: one thread looks after the join and does the rechecks."""

    def __init__(
        self, store: Store, spark: SparkSession | None, checks: CheckRound, clock: Clock
    ) -> None:
        """Made by `CheckService.start()`."""
        super().__init__("check", LOOK_INTERVAL_S)
        self._checks = checks
        self._recheck = Recheck(store, checks, clock)
        self._scout: _Scout = (
            _Logs(store, clock, self._recheck, self._on_due)
            if spark is None
            else _Stream(spark, store, clock, self._on_due)
        )
        self._recheck_wanted = threading.Event()
        self._rechecked_s = -math.inf
        self.checked = RoundResult()
        self.last_error: TxmqError | None = None
        self.begin()

    def _turn(self) -> None:
        if self._scout.keep_running():
            # What the join missed meanwhile, it will not see any more.
            self._recheck_wanted.set()
        since_s = time.monotonic() - self._rechecked_s
        if self._recheck_wanted.is_set() or since_s >= self._scout.recheck_interval_s():
            self._recheck_wanted.clear()
            self._rechecked_s = time.monotonic()
            self._try_recheck()

    def _try_recheck(self) -> None:
        try:
            result = self._recheck.run_once(self._stopping.is_set)
        except TxmqError as error:
            self._failed(error)
        else:
            self.checked += result.checks

    def _on_due(self, dues: pa.Table, clock_ms: int) -> None:
        """One micro-batch; a call without rows writes the answers that came late."""
        try:
            for each in [*rounds_of(dues, lambda _: ROWS_A_ROUND)] or [dues]:
                self._round(each, clock_ms)
        except TxmqError as error:
            # What left the join does not come back, so the recheck goes on with it.
            self._failed(error)
            self._recheck_wanted.set()

    def _round(self, dues: pa.Table, clock_ms: int) -> None:
        done = self._checks.run(
            dues,
            clock_ms=clock_ms,
            source=ClaimSource.CHECK,
            may_wait=lambda: not self._stopping.is_set(),
        )
        if done is not None:
            self.checked += done

    def _failed(self, error: TxmqError) -> None:
        logger.error("a round could not go on: %s", error)
        self.last_error = error

    def _end(self) -> None:
        self._scout.stop()
        try:
            self._checks.close()
        except TxmqError as error:
            self._failed(error)


class _Scout(Protocol):
    """What says when a recheck is wanted; it may find due transactions by itself."""

    def keep_running(self) -> bool:
        """Look after it; whether it may have missed something."""
        ...

    def recheck_interval_s(self) -> float:
        """How long after the begin of the last recheck the next one may come."""
        ...

    def stop(self) -> None:
        """End it."""
        ...


class _Logs:
    """Without Spark: the logs' own news, and the deadlines that the last recheck has seen."""

    def __init__(self, store: Store, clock: Clock, recheck: Recheck, on_due: OnDue) -> None:
        self._clock, self._recheck, self._on_due = clock, recheck, on_due
        self._trigger_s = store.config.check_trigger_interval_s

    def keep_running(self) -> bool:
        """Write what listeners answered late; nothing is missed, for all is read each time."""
        self._on_due(DUE.empty_table(), self._clock.now_ms())
        return False

    def recheck_interval_s(self) -> float:
        """Often, but reading a tenth of the time at most, and never what would be as it was."""
        if not self._recheck.may_find_more():
            return math.inf
        return max(self._trigger_s, LOOKS_IN_A_PAUSE * self._recheck.look_s)

    def stop(self) -> None:
        """Nothing runs."""


class _Stream:
    """The join's query and its checkpoint, which are made anew whenever they are in doubt.

    Each query begins with what is appended from now on, in a checkpoint of its own: two services
    cannot meet in one, a broken one harms nobody, and no start reads the whole history.
    """

    def __init__(self, spark: SparkSession, store: Store, clock: Clock, on_due: OnDue) -> None:
        self._spark, self._store, self._clock, self._on_due = spark, store, clock, on_due
        self._horizon_s = horizon_s(store.config)
        self._recheck_interval_s = store.config.recheck_interval_s
        self._check_interval_s = min(
            each.transaction_check_interval_s for each in store.config.check_settings().values()
        )
        self._running: _Running | None = None
        self._failures = 0
        self._next_start_s = -math.inf

    def keep_running(self) -> bool:
        """Whether the query was started now: at first, after a failure, or after late rows."""
        running = self._running
        if running is not None and running.is_alive:
            self._failures = 0 if running.batches else self._failures
            if not running.has_dropped_rows():
                return False
            logger.error("rows were dropped as late: the clock was set back; starting anew")
        elif running is not None:
            self._note_failure(running.exception)
        self.stop()
        return time.monotonic() >= self._next_start_s and self._start()

    def recheck_interval_s(self) -> float:
        """Seldom where the join has run for a horizon and its last micro-batch is not long ago."""
        running, silence_s = self._running, self._check_interval_s
        if running is not None and running.is_steady(self._horizon_s, silence_s):
            return self._recheck_interval_s
        return min(silence_s, self._recheck_interval_s)

    def stop(self) -> None:
        """Stop between two micro-batches and throw the checkpoint away."""
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
        """Try again after a pause that grows; the recheck goes on meanwhile."""
        self._failures += 1
        logger.error("the deadline join failed: %s", failure)
        if self._failures >= QUERY_FAILURES_MAX and failure is not None:
            raise failure
        pause_s = min(RESTART_PAUSE_S * 2**self._failures, RESTART_PAUSE_MAX_S)
        self._next_start_s = time.monotonic() + pause_s


class _Running(StreamHandle):
    """One query from its start to its end."""

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
        """Nothing is late unless the clock goes back: the guards see to that."""
        progress = self._query.lastProgress
        operators = [] if progress is None else progress.stateOperators
        return any(operator.numRowsDroppedByWatermark > 0 for operator in operators)

    def _batch(self, batch: DataFrame) -> None:
        with self._in_batch:
            self._take(batch)

    def _take(self, batch: DataFrame) -> None:
        if self._ending_batches >= ENDING_BATCHES_MAX:
            # Batches without a pause between them: state that is not written ends the query.
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
        """Whether the next micro-batch is some way off; Spark begins them at whole intervals."""
        if self._query.status["isTriggerActive"]:
            return False
        trigger_s = self._trigger_s
        left_s = trigger_s - time.time() % trigger_s if trigger_s else 0.0
        has_begun = self.batches + self._ending_batches > 0
        return has_begun and left_s >= min(STOP_PAUSE_S, trigger_s / 2)
