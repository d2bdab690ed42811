"""The check service: a streaming deadline join for low latency, and a recheck that misses nothing.

The recheck is a batch search of the logs for due transactions. Without Spark there is no join, and
the recheck runs whenever a transaction may be due.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from txmq.check.claims import RoundResult
from txmq.check.recheck import Recheck, RecheckJob, RecheckResult, all_listeners
from txmq.check.round import PATIENCE_S, CheckRound
from txmq.check.standing import DUE, rounds_of
from txmq.errors import StorageError
from txmq.ground.clock import Clock
from txmq.ground.handles import LOOK_INTERVAL_S, OfOneProcess, ThreadHandle, is_survivable
from txmq.ground.sessions import is_connect, spark_room
from txmq.listeners.hooks import Hook, Hooks
from txmq.listeners.protocol import CheckListener
from txmq.message.lifecycle import ClaimSource
from txmq.store.store import Store, check_store
from txmq.store.store_clock import StoreClock

if TYPE_CHECKING:
    from txmq.ground.sessions import SparkSession


logger = logging.getLogger(__name__)

# A recheck without Spark reads the logs for at most a tenth of the time.
SEARCHES_IN_A_PAUSE = 10

OnDue = Callable[[pa.Table, int], None]


class Trigger(Protocol):
    """Decides when a recheck is needed; it may find due transactions itself."""

    def keep_running(self) -> bool:
        """Start or restart what it runs; return whether it may have missed due transactions."""
        ...

    def recheck_interval_s(self) -> float:
        """Return the time from the begin of the last recheck to the next one."""
        ...

    def stop(self) -> None:
        """End what it runs."""
        ...


class LogTrigger:
    """Without Spark: needs a recheck when a log has news or a deadline has passed."""

    def __init__(self, store: Store, recheck: Recheck, on_due: OnDue) -> None:
        """Look at nothing yet."""
        self.recheck, self.on_due = recheck, on_due
        self._trigger_s = store.config.check_trigger_interval_s

    def keep_running(self) -> bool:
        """Write late answers; return False, because a recheck reads all open transactions."""
        self.on_due(DUE.empty_table(), 0)
        return False

    def recheck_interval_s(self) -> float:
        """Return infinity without news, else the trigger interval or ten times a search."""
        if not self.recheck.may_find_more():
            return math.inf
        return max(self._trigger_s, SEARCHES_IN_A_PAUSE * self.recheck.search_s)

    @property
    def is_slow(self) -> bool:
        """Whether searches take so long that they come less often than asked for."""
        return SEARCHES_IN_A_PAUSE * self.recheck.search_s > self._trigger_s

    def stop(self) -> None:
        """Do nothing: nothing runs."""


ROWS_A_ROUND = 100_000
# After a look that failed.
FAILED_LOOK_PAUSE_S = 1.0


class CheckService(OfOneProcess):
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

    def start(self, *, rests: bool = False) -> CheckHandle:
        """Start a thread that checks until `stop()`; return its handle.

        With Spark the thread runs the deadline join as a stream, starts it again after a failure,
        and rechecks at least every `recheck_interval_s`. It rechecks when a log has news or a
        deadline has passed while the join comes late, or something is open that it did not see
        begin; without Spark always.

        Args:
            rests: let the join rest while rechecks are cheaper, as in a broker that does more than
                checks (decision 0047); by default its query runs from start to stop.

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
        return CheckHandle(self.store, self._spark, checks, self._clock, rests=rests)


class CheckHandle(ThreadHandle):
    """A running check service: its thread supervises the deadline join and runs the rechecks.

    Attributes:
        checked: the results of all rounds.
        last_error: the last error of a round.
    """

    def __init__(
        self,
        store: Store,
        spark: SparkSession | None,
        checks: CheckRound,
        clock: StoreClock,
        *,
        rests: bool,
    ) -> None:
        """Call `CheckService.start()` instead."""
        super().__init__("check", store.look_interval_s(LOOK_INTERVAL_S, is_idle=True))
        self._checks, self._clock = checks, clock
        self._recheck = Recheck(store, checks, clock)
        by_logs = LogTrigger(store, self._recheck, self._on_due)
        self._trigger: Trigger = (
            by_logs
            if spark is None or is_connect(spark)
            else spark_room().join_trigger(spark, store, clock, by_logs, rests=rests)
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
        """Tell whether producers came back; looked at once per trigger interval."""
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
        try:
            self._trigger.stop()
        finally:
            self._close_checks()

    def _close_checks(self) -> None:
        """Write late answers, which no failure before keeps from being written."""
        try:
            self._checks.close()
        except BaseException as error:  # noqa: BLE001 - `_failed` raises what ends the service
            self._failed(error)
