"""One round of checks: read standings, ask listeners, write the claims.

The claims of a round are one commit. In a service, a group whose listener
needs longer than PATIENCE_S gets a commit of its own later, so that the other groups do not wait
for it (decision 0039).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.check.claims import Actions, RoundResult, actions_of, claims_of, late_claims, result_of
from txmq.check.contexts import CheckHooks
from txmq.check.lease import CheckLease
from txmq.check.standing import StandingReader
from txmq.clock import Clock
from txmq.columns import Groups
from txmq.fail_points import FailPoint, reached
from txmq.hooks import Hooks
from txmq.lifecycle import ClaimSource
from txmq.listeners.askers import AskedRound, Askers
from txmq.listeners.protocol import CheckListener
from txmq.listeners.remote_asker import remote_asker
from txmq.store.claim_writer import ClaimWriter
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

logger = logging.getLogger(__name__)

LEASE_POLL_S = 0.05
# After this time a service goes on without the groups whose listeners have not answered.
PATIENCE_S = 1.0


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
        hooks = Hooks() if hooks is None else hooks
        self._hooks = CheckHooks(hooks, store)
        remote = partial(remote_asker, store, clock)
        self._listeners = Askers(listeners, config, spark, remote, hooks)
        self._claims = ClaimWriter(logs.op, "check", config.half_queues)
        holder, register = str(self._claims.session), store.tables.register("check_lease")
        self._lease = CheckLease(register, holder, config.check_lease_s)
        self._unwritten: list[pa.Table] = []
        self._slow: list[_SlowRound] = []
        self._patience_s = math.inf

    @property
    def groups_here(self) -> frozenset[str]:
        """The groups that have a listener in this process."""
        return self._listeners.groups

    @property
    def is_asking(self) -> bool:
        """Whether a listener has time left to answer; `finish` waits for it."""
        return bool(self._slow)

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
        patience_s: float = math.inf,
    ) -> RoundResult | None:
        """Take the lease, ask listeners, write the claims, give the lease back.

        Args:
            dues: DUE; of each group only `limit_of` transactions are asked about, and the others
                are re-armed.
            clock_ms: the clock value by which they are due.
            source: the service that found them; the claims carry it.
            may_wait: is called before each wait for another service's lease.
            patience_s: how long all groups together are waited for; by default until the last
                timeout.

        Returns:
            The counts, and those of slow groups of earlier rounds that have answered meanwhile;
            None if another service holds the lease. Groups that are not done after `patience_s`
            are counted by a later call, or by `finish`; until then nobody asks them again.

        Reads: settled, op, half (heads of the transactions to ask about). Writes: op.
        Commits: one to op and two to the lease; without due rows none, or one for late answers.
        Raises: StorageError. Claims that could not be written are written first in the next call,
        in a commit of their own.
        Source: RocketMQ R61, R72, R75, R78, R81; differs: only a question that was asked counts.
        """
        with self._lock:
            self._write(self._late_claims())
            answered = self._finish(time.monotonic())
            self._patience_s = patience_s
            result = self._run(dues, clock_ms, source, may_wait)
        self._hooks.tell()
        return None if result is None else answered + result

    def finish(self) -> RoundResult:
        """Wait for the groups that are still asked, at most for their timeouts; write their claims.

        Commits: one to op for each earlier round that had slow groups, one to the lease.
        Raises: StorageError.
        """
        with self._lock:
            result = self._finish(math.inf)
        self._hooks.tell()
        return result

    def close(self) -> None:
        """Write late answers and end all threads that do not hang. Raises: StorageError."""
        with self._lock:
            self._finish(math.inf)
            self._listeners.close()
            self._write(self._late_claims())
        self._hooks.flush()

    def _run(
        self, dues: pa.Table, clock_ms: int, source: ClaimSource, may_wait: Callable[[], bool]
    ) -> RoundResult | None:
        """A round without the groups that this service still asks."""
        free = _without_groups(dues, self._asked_groups)
        is_asked = RoundResult(dropped=dues.num_rows - free.num_rows)
        if not free.num_rows:
            return is_asked
        result = self._leased(free, clock_ms, source, may_wait)
        return None if result is None else is_asked + result

    def _leased(
        self, dues: pa.Table, clock_ms: int, source: ClaimSource, may_wait: Callable[[], bool]
    ) -> RoundResult | None:
        if not self._take_lease(may_wait):
            return None
        reached(FailPoint.LEASE_TAKEN)
        try:
            return self._round(dues, clock_ms, source)
        finally:
            self._lease.give_back(self._clock.now_ms(), self._asked_groups)
            reached(FailPoint.LEASE_RETURNED)

    def _take_lease(self, may_wait: Callable[[], bool]) -> bool:
        while not self._lease.take(self._clock.now_ms()):
            if not may_wait():
                return False
            time.sleep(LEASE_POLL_S)
        return True

    def _round(self, dues: pa.Table, clock_ms: int, source: ClaimSource) -> RoundResult:
        free = _without_groups(dues, self._lease.busy_groups(self._clock.now_ms()))
        actions = self._decided(free, clock_ms)
        reached(FailPoint.CHECKS_DECIDED)
        done, left = self._asked(actions, source)
        reached(FailPoint.CHECKS_ANSWERED)
        self._claim(done, source)
        result = result_of(done, dropped=dues.num_rows - actions.rows.num_rows, left=left)
        _log(result)
        return result

    def _claim(self, actions: Actions, source: ClaimSource) -> None:
        self._write(claims_of(actions, source, self._clock.now_ms(), self._config))
        reached(FailPoint.CHECKS_COMMITTED)

    def _decided(self, dues: pa.Table, clock_ms: int) -> Actions:
        """One action for each transaction that needs one, in the order of the deadlines."""
        of_transaction = Groups.of(dues["transaction_id"])
        _, first = np.unique(of_transaction.place, return_index=True)
        owners = dues.select(["transaction_id", "producer_group"]).take(pa.array(first))
        standings = self._standings.of(owners, self._clock.now_ms())
        of_dues = standings.take(pa.array(of_transaction.place))
        return actions_of(dues, of_dues, clock_ms, self._config)

    def _asked(self, actions: Actions, source: ClaimSource) -> tuple[Actions, int]:
        """The actions with the outcomes of groups that are done, and how many found no room."""
        asks = actions.asks
        if not asks.num_rows:
            return actions, 0
        self._half.table.refresh()
        asked = self._listeners.ask(self._half, asks)
        outcomes = asked.take(time.monotonic() + self._patience_s)
        if asked.open_groups:
            self._slow.append(_SlowRound(actions.only(asked.waiting), asked, source))
        done = actions.without(asked.waiting).without(asked.left)
        return done.answered(outcomes), len(asked.left)

    def _finish(self, until_s: float) -> RoundResult:
        """Write the claims of slow groups that are done by `until_s`, each round in one commit."""
        result = RoundResult()
        for slow in self._slow:
            done = slow.take(until_s)
            if done.rows.num_rows:
                self._claim(done, slow.source)
                result += result_of(done)
                _log(result)
        self._slow = [slow for slow in self._slow if slow.groups]
        self._lease.finish(self._asked_groups, self._clock.now_ms())
        return result

    @property
    def _asked_groups(self) -> set[str]:
        """The groups whose listeners have time left."""
        return {group for slow in self._slow for group in slow.groups}

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


@dataclass(slots=True)
class _SlowRound:
    """The part of a round whose listeners have time left, with its decisions."""

    actions: Actions
    asked: AskedRound
    source: ClaimSource

    @property
    def groups(self) -> frozenset[str]:
        return self.asked.open_groups

    def take(self, until_s: float) -> Actions:
        """The actions about groups that are done by `until_s`, with their outcomes."""
        outcomes = self.asked.take(until_s)
        done = self.actions.only(outcomes["transaction_id"].combine_chunks())
        return done.answered(outcomes)


def _without_groups(dues: pa.Table, groups: Collection[str]) -> pa.Table:
    if not groups:
        return dues
    is_asked = pc.is_in(dues["producer_group"], value_set=pa.array(list(groups), pa.string()))
    return dues.filter(pc.invert(is_asked))


def _log(result: RoundResult) -> None:
    logger.info(
        "asked %d, discarded %d, unasked %d, dropped %d",
        result.asked, result.discarded, result.unasked, result.dropped,
    )  # fmt: skip
    for group in sorted(result.unheard_groups):
        logger.warning(
            "group %s has no listener here; its transactions are not asked; name one by the "
            "setting listeners (--config, TXMQ_LISTENERS)",
            group,
        )
    if result.unreadable:
        shown = result.unreadable[:5]
        logger.error("%d halves cannot be read, first %s", len(result.unreadable), shown)
