"""The safety net of the check and its scheduled form: a batch look through the logs, no Spark."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.check.claims import RoundResult
from txmq.check.due import rounds_of
from txmq.check.open_transactions import OpenTransactions, dues_of
from txmq.check.round import CheckRound
from txmq.clock import Clock, SystemClock
from txmq.fail_points import FailPoint, reached
from txmq.hooks import Hook, Hooks
from txmq.lifecycle import ClaimSource
from txmq.listeners.protocol import CheckListener, check_listener, load_listeners
from txmq.message.names import stored_name
from txmq.store.config import Config
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecheckResult:
    """What one recheck came to.

    `open_transactions` had no end at the last look, and of `incomplete` messages are missing.
    `is_complete` is false where another service kept the lease, or it was told to stop.
    """

    checks: RoundResult
    open_transactions: int
    incomplete: tuple[str, ...]
    is_complete: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        checks = asdict(self.checks) | {"asked": self.checks.asked}
        checks["unheard_groups"] = sorted(self.checks.unheard_groups)
        return asdict(self) | {"checks": checks}


class RecheckJob:
    """Asks about every transaction that is due, whatever a stream may have missed.

    Args:
        store: whose transactions.
        listeners: by producer group; those that the settings name are added.
        clock: what "due" means.
        spark: needed only by listeners that answer with a DataFrame (SetListener).
        hooks: told of the ends that it writes (R89).

    Example:
        >>> RecheckJob(store, listeners={"orders": listener}).run_once().checks.asked
        0
    """

    def __init__(
        self,
        store: Store,
        *,
        listeners: Mapping[str, CheckListener] | None = None,
        clock: Clock | None = None,
        spark: SparkSession | None = None,
        hooks: Iterable[Hook] = (),
    ) -> None:
        """Check the listeners; nothing is asked yet. Raises: ListenerError, HookError."""
        self._store = store
        self._hooks = Hooks(hooks)
        self._spark = spark
        self._clock: Clock = clock or SystemClock()
        self._listeners = all_listeners(store.config, listeners)

    def run_once(self) -> RecheckResult:
        """Ask until nothing is left that was due at the start.

        A transaction is asked at most once a call. Commits: three a round, none if nothing is due;
        a round takes of each group `check_queue_size` due transactions, or `check_set_size` where
        its listener answers for a set. Raises: StorageError, ListenerError.
        """
        checks = CheckRound(
            self._store, listeners=self._listeners, clock=self._clock, spark=self._spark,
            hooks=self._hooks,
        )  # fmt: skip
        try:
            return Recheck(self._store, checks, self._clock).run_once()
        finally:
            checks.close()


class Recheck:
    """A recheck whose rounds are shared with others, such as the stream of the same service."""

    def __init__(self, store: Store, checks: CheckRound, clock: Clock) -> None:
        """`checks` asks; this finds about whom."""
        config = store.config
        # Another service's round may have died, or lasts as long as the slowest listener.
        slowest_s = max(each.listener_timeout_s for each in config.check_settings().values())
        self._patience_s = config.check_lease_s + slowest_s
        self._checks = checks
        self._clock = clock
        self._open = OpenTransactions(store, clock)
        self._quiet_until_ms = -math.inf
        self.look_s = 0.0

    def may_find_more(self) -> bool:
        """Whether halves or claims came since the last look, or a deadline that it saw is past."""
        return self._clock.now_ms() >= self._quiet_until_ms or self._open.has_news()

    def run_once(self, is_stopping: Callable[[], bool] = lambda: False) -> RecheckResult:
        """Ask until nothing is left that was due at the start, or until `is_stopping`."""
        clock_ms = self._clock.now_ms()
        total = RoundResult()
        # A look that fails has seen nothing.
        self._quiet_until_ms = -math.inf
        while True:
            begun_s = time.monotonic()
            found = self._open.read(clock_ms)
            self.look_s = time.monotonic() - begun_s
            dues = dues_of(found, clock_ms)
            self._quiet_until_ms = _next_deadline_ms(found, dues)
            reached(FailPoint.DUE_FOUND)
            done, is_complete = self._rounds(dues, clock_ms, is_stopping)
            total += done
            # If all were dropped, the next look would find the same.
            if not is_complete or done.dropped == dues.num_rows:
                return _result(total, found, is_complete=is_complete)

    def _rounds(
        self, dues: pa.Table, clock_ms: int, is_stopping: Callable[[], bool]
    ) -> tuple[RoundResult, bool]:
        total = RoundResult()
        for each in rounds_of(dues, self._checks.limit_of):
            done = self._round(each, clock_ms, is_stopping)
            if done is None:
                return total, False
            total += done
        return total, True

    def _round(
        self, dues: pa.Table, clock_ms: int, is_stopping: Callable[[], bool]
    ) -> RoundResult | None:
        deadline_s = time.monotonic() + self._patience_s
        if is_stopping():
            return None
        return self._checks.run(
            dues,
            clock_ms=clock_ms,
            source=ClaimSource.RECHECK,
            may_wait=lambda: time.monotonic() < deadline_s and not is_stopping(),
        )


def all_listeners(
    config: Config, listeners: Mapping[str, CheckListener] | None
) -> dict[str, CheckListener]:
    """Those passed in, and those of the settings for other groups, by their stored names.

    Raises: ListenerError.
    """
    given = {
        stored_name(group): check_listener(group, it) for group, it in (listeners or {}).items()
    }
    named = {group: name for group, name in config.listeners.items() if group not in given}
    return {**load_listeners(named), **given}


def _next_deadline_ms(found: pa.Table, dues: pa.Table) -> float:
    """When the next of OPEN_TRANSACTIONS will be due; those that are due are so already."""
    if dues.num_rows:
        return -math.inf
    next_us = pc.min(found["deadline"].cast(pa.int64())).as_py()
    return math.inf if next_us is None else next_us / 1000


def _result(checks: RoundResult, found: pa.Table, *, is_complete: bool) -> RecheckResult:
    incomplete = found.filter(pc.is_valid(found["problem"]))["transaction_id"].to_pylist()
    if incomplete:
        shown = ", ".join(incomplete[:5])
        logger.warning("%d open transactions miss messages: %s", len(incomplete), shown)
    return RecheckResult(checks, found.num_rows, tuple(incomplete), is_complete)
