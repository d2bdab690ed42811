"""One round of checks: fold once more, ask, and make every outcome durable in one commit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from txmq.check.claims import Actions, RoundResult, actions_of, claims_of, late_claims, result_of
from txmq.check.contexts import CheckHooks
from txmq.check.standing import StandingReader
from txmq.clock import Clock
from txmq.columns import Groups
from txmq.fail_points import FailPoint, reached
from txmq.hooks import Hooks
from txmq.lifecycle import ClaimSource
from txmq.listeners.askers import Askers
from txmq.listeners.protocol import CheckListener
from txmq.listeners.remote_asker import remote_asker
from txmq.store.claim_writer import ClaimWriter
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
from dataclasses import dataclass

from txmq.errors import CommitRefusedError
from txmq.store.register import Register, Registered

logger = logging.getLogger(__name__)

LEASE_POLL_S = 0.05


def _never() -> bool:
    return False


class CheckRound:
    """Asks about due transactions; one round at a time, whoever calls.

    The stream and the recheck of one service share one of these; other services are kept off by
    the check lease. What was asked is counted by a durable row before anybody can ask it again.
    """

    def __init__(
        self,
        store: Store,
        *,
        listeners: Mapping[str, CheckListener],
        clock: Clock,
        spark: SparkSession | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """`listeners` by producer group; no thread is started yet. Raises: ListenerError."""
        config = store.config
        self._config, self._clock = config, clock
        self._lock = threading.Lock()
        logs = store.tables.logs()
        self._half, self._standings = logs.half, StandingReader(logs, config)
        self._hooks = CheckHooks(hooks or Hooks(), store)
        remote = partial(remote_asker, store, clock)
        self._listeners = Askers(listeners, config, spark, remote)
        self._claims = ClaimWriter(logs.op, "check", config.half_queues)
        holder, register = str(self._claims.session), store.tables.register("check_lease")
        self._lease = CheckLease(register, holder, config.check_lease_s)
        self._unwritten: list[pa.Table] = []

    def limit_of(self, producer_group: str) -> int:
        """How many transactions of a group are asked about in one round."""
        return self._listeners.limit_of(producer_group)

    def run(
        self,
        dues: pa.Table,
        *,
        clock_ms: int,
        source: ClaimSource,
        may_wait: Callable[[], bool] = _never,
    ) -> RoundResult | None:
        """Take the lease, ask, write, give it back; None where another service holds it.

        Args:
            dues: DUE, whose deadline passed; of each group those beyond `limit_of` are re-armed
                unasked.
            clock_ms: the clock value by which they are due.
            source: who found them; it is written into the claims.
            may_wait: looked at before each wait for another service's lease.

        Reads: settled, op, half (heads of those asked). Writes: op.
        Commits: one to op and two to the lease; without due rows none, or one for late answers.
        Raises: StorageError; rows that could not be written go first next time, in a commit of
        their own.
        Source: RocketMQ R61, R72, R75, R78, R81; differs: only a question that was asked counts.
        """
        with self._lock:
            self._write(self._late_claims())
            done = (
                self._leased(dues, clock_ms, source, may_wait) if dues.num_rows else RoundResult()
            )
        self._hooks.tell()
        return done

    def close(self) -> None:
        """Write the answers that came late and end the threads that do not hang."""
        with self._lock:
            self._listeners.close()
            self._write(self._late_claims())
        self._hooks.flush()

    def _leased(
        self, dues: pa.Table, clock_ms: int, source: ClaimSource, may_wait: Callable[[], bool]
    ) -> RoundResult | None:
        if not self._take_lease(may_wait):
            return None
        reached(FailPoint.LEASE_TAKEN)
        try:
            return self._round(dues, clock_ms, source)
        finally:
            self._lease.give_back(self._clock.now_ms())
            reached(FailPoint.LEASE_RETURNED)

    def _take_lease(self, may_wait: Callable[[], bool]) -> bool:
        while not self._lease.take(self._clock.now_ms()):
            if not may_wait():
                return False
            time.sleep(LEASE_POLL_S)
        return True

    def _round(self, dues: pa.Table, clock_ms: int, source: ClaimSource) -> RoundResult:
        actions = self._decided(dues, clock_ms)
        reached(FailPoint.CHECKS_DECIDED)
        actions = self._asked(actions)
        reached(FailPoint.CHECKS_ANSWERED)
        now_ms = self._clock.now_ms()
        self._write(claims_of(actions, source, now_ms, self._config))
        reached(FailPoint.CHECKS_COMMITTED)
        result = result_of(actions, dropped=dues.num_rows - actions.rows.num_rows)
        _log(result)
        return result

    def _decided(self, dues: pa.Table, clock_ms: int) -> Actions:
        """One action for each transaction that needs one, in the order of the deadlines."""
        of_transaction = Groups.of(dues["transaction_id"])
        _, first = np.unique(of_transaction.place, return_index=True)
        owners = dues.select(["transaction_id", "producer_group"]).take(pa.array(first))
        standings = self._standings.of(owners, self._clock.now_ms())
        own = standings.take(pa.array(of_transaction.place))
        return actions_of(dues, own, clock_ms, self._config)

    def _asked(self, actions: Actions) -> Actions:
        """The same actions; where one was to ask, its outcome is in its place."""
        asks = actions.asks
        if not asks.num_rows:
            return actions
        self._half.table.refresh()
        return actions.answered(self._listeners.ask(self._half, asks))

    def _write(self, claims: pa.Table) -> None:
        """One commit, none without rows; what could not be written is kept for the next call."""
        self._unwritten += [claims] if claims.num_rows else []
        while self._unwritten:
            # Each table as it was: the writer knows it again if its commit landed unseen.
            rows = self._unwritten[0]
            self._claims.append_table(rows)
            del self._unwritten[0]
            self._hooks.written(rows)

    def _late_claims(self) -> pa.Table:
        return late_claims(self._listeners.late_answers(), self._clock.now_ms())


def _log(result: RoundResult) -> None:
    logger.info(
        "asked %d, discarded %d, unasked %d, dropped %d",
        result.asked, result.discarded, result.unasked, result.dropped,
    )  # fmt: skip
    for group in sorted(result.unheard_groups):
        logger.warning("group %s has no listener here; its transactions wait unasked", group)
    if result.unreadable:
        shown = result.unreadable[:5]
        logger.error("%d halves cannot be read, first %s", len(result.unreadable), shown)


@dataclass(frozen=True, slots=True)
class _Silence:
    """A holder's last sign of life as this observer knows it."""

    revision: int
    since_ms: int


class CheckLease:
    """A round takes it, asks, makes the answers durable and gives it back.

    So a transaction is asked at most its maximum, plus one for each take-over from a round that
    died. Only the observer's clock is read: a holder whose clock is ahead cannot block for ever.
    """

    def __init__(self, register: Register, holder: str, lease_s: float) -> None:
        """`holder` names this object alone."""
        self._register = register
        self._holder = holder
        self._lease_ms = round(lease_s * 1000)
        self._held: Registered | None = None
        self._silence: _Silence | None = None

    def take(self, now_ms: int) -> bool:
        """Whether it is ours now; one commit if so. Never waits."""
        seen = self._register.read()
        if not self._may_take(seen, now_ms):
            return False
        try:
            self._held = self._register.swap(seen, self._value(self._holder, now_ms), now_ms)
        except CommitRefusedError:
            return False
        return True

    def give_back(self, now_ms: int) -> None:
        """Let others go on at once; one commit, or none where another took over meanwhile."""
        seen, held = self._register.read(), self._held
        self._held = None
        if held is None or seen.revision != held.revision:
            return
        try:
            self._register.swap(seen, self._value(None, now_ms), now_ms)
        except CommitRefusedError:
            return

    def _may_take(self, seen: Registered, now_ms: int) -> bool:
        if seen.value.get("holder") in (None, self._holder):
            return True
        return now_ms - self._silent_since_ms(seen, now_ms) >= self._lease_ms

    def _silent_since_ms(self, seen: Registered, now_ms: int) -> int:
        known = self._silence
        if known is None or known.revision != seen.revision:
            known = _Silence(seen.revision, int(seen.value["renewed_ms"]))
        # A time in the future is another clock, or ours was set back.
        self._silence = _Silence(known.revision, min(known.since_ms, now_ms))
        return self._silence.since_ms

    def _value(self, holder: str | None, now_ms: int) -> dict[str, object]:
        return {"holder": holder, "renewed_ms": now_ms}
