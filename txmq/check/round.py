"""One round of checks: read standings, ask listeners, write all claims in one commit."""

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
    """Asks about due transactions, one round at a time. Safe for several threads.

    The stream and the recheck of one service share a CheckRound; the check lease excludes other
    services. A durable claim counts each question before the transaction can be asked again.
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
        """Start no thread yet; `listeners` by producer group. Raises: ListenerError."""
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
        """The number of transactions of a group that one round asks about."""
        return self._listeners.limit_of(producer_group)

    def run(
        self,
        dues: pa.Table,
        *,
        clock_ms: int,
        source: ClaimSource,
        may_wait: Callable[[], bool] = _never,
    ) -> RoundResult | None:
        """Take the lease, ask listeners, write the claims, give the lease back.

        Args:
            dues: DUE; of each group only `limit_of` transactions are asked about, and the others
                are re-armed.
            clock_ms: the clock value by which they are due.
            source: the service that found them; the claims carry it.
            may_wait: is called before each wait for another service's lease.

        Returns:
            The counts; None if another service holds the lease.

        Reads: settled, op, half (heads of the transactions to ask about). Writes: op.
        Commits: one to op and two to the lease; without due rows none, or one for late answers.
        Raises: StorageError. Claims that could not be written are written first in the next call,
        in a commit of their own.
        Source: RocketMQ R61, R72, R75, R78, R81; differs: only a question that was asked counts.
        """
        with self._lock:
            self._write(self._late_claims())
            result = (
                self._leased(dues, clock_ms, source, may_wait) if dues.num_rows else RoundResult()
            )
        self._hooks.tell()
        return result

    def close(self) -> None:
        """Write late answers and end all threads that do not hang. Raises: StorageError."""
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
        of_dues = standings.take(pa.array(of_transaction.place))
        return actions_of(dues, of_dues, clock_ms, self._config)

    def _asked(self, actions: Actions) -> Actions:
        """The actions with the listeners' outcomes in place of the questions."""
        asks = actions.asks
        if not asks.num_rows:
            return actions
        self._half.table.refresh()
        return actions.answered(self._listeners.ask(self._half, asks))

    def _write(self, claims: pa.Table) -> None:
        """Write claims in one commit; keep them for the next call if that fails."""
        self._unwritten += [claims] if claims.num_rows else []
        while self._unwritten:
            # The same table object: the writer recognises it if its commit landed unseen.
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
        logger.warning("group %s has no listener here; its transactions are not asked", group)
    if result.unreadable:
        shown = result.unreadable[:5]
        logger.error("%d halves cannot be read, first %s", len(result.unreadable), shown)


@dataclass(frozen=True, slots=True)
class _Silence:
    """The last renewal of another holder, and since when this observer has seen it."""

    revision: int
    since_ms: int


class CheckLease:
    """The right to ask. A round takes it, asks, makes the answers durable, and gives it back.

    So a transaction is asked at most its maximum, plus once for each round that died before it
    wrote its claims. Only the observer's clock counts, so that a holder whose clock is ahead cannot
    block other services for ever.
    """

    def __init__(self, register: Register, holder: str, lease_s: float) -> None:
        """`holder` is the unique id of this object."""
        self._register = register
        self._holder = holder
        self._lease_ms = round(lease_s * 1000)
        self._held: Registered | None = None
        self._silence: _Silence | None = None

    def take(self, now_ms: int) -> bool:
        """Take the lease if it is free or its holder is silent: one commit. Never waits."""
        seen = self._register.read()
        if not self._may_take(seen, now_ms):
            return False
        try:
            self._held = self._register.swap(seen, self._value(self._holder, now_ms), now_ms)
        except CommitRefusedError:
            return False
        return True

    def give_back(self, now_ms: int) -> None:
        """Free the lease: one commit, or none if another service has taken it over."""
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
        silence = self._silence
        if silence is None or silence.revision != seen.revision:
            silence = _Silence(seen.revision, int(seen.value["renewed_ms"]))
        # A time in the future comes from another clock, or this clock was set back.
        self._silence = _Silence(silence.revision, min(silence.since_ms, now_ms))
        return self._silence.since_ms

    def _value(self, holder: str | None, now_ms: int) -> dict[str, object]:
        return {"holder": holder, "renewed_ms": now_ms}
