"""One round of checks: fold once more, ask, and make every outcome durable in one commit."""

from __future__ import annotations

import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from txmq.check_claims import Action, RoundResult, claim_of, late_claim, result_of
from txmq.check_lease import CheckLease
from txmq.check_rules import Ask, Decision, Drop, DueRow, Reason, decide
from txmq.check_standing import CheckStandings
from txmq.clock import Clock
from txmq.fail_points import FailPoint, reached
from txmq.half_heads import half_messages
from txmq.lifecycle import ClaimSource
from txmq.listener_threads import ListenerThreads, NotReached, Outcome
from txmq.listeners import TransactionListener
from txmq.op_log import OpRow
from txmq.store import Store

logger = logging.getLogger(__name__)

LEASE_POLL_S = 0.05
REOPEN_AFTER_COMMITS = 100


def _never() -> bool:
    return False


class CheckRound:
    """Asks about due transactions; one round at a time, whoever calls.

    The stream and the recheck of one service share one of these; other services are kept off by
    the check lease. What was asked is counted by a durable row before anybody can ask it again.
    """

    def __init__(
        self, store: Store, *, listeners: Mapping[str, TransactionListener], clock: Clock
    ) -> None:
        """`listeners` by producer group; no thread is started yet."""
        session, config = uuid.uuid4(), store.config
        self._config, self._clock = config, clock
        self._lock = threading.Lock()
        self._half = store.half_log()
        self._standings = CheckStandings(store)
        self._listeners = frozenset(listeners)
        self._threads = ListenerThreads(listeners, config.check_threads)
        self._lease = CheckLease(store.register("check_lease"), str(session), config.check_lease_s)
        self._app_id = f"txmq-check/{session}"
        self._numbers = itertools.count(1)
        self._queue_id = session.int % config.half_queues
        self._unwritten: list[OpRow] = []

    def run(
        self,
        dues: Sequence[DueRow],
        *,
        clock_ms: int,
        source: ClaimSource,
        may_wait: Callable[[], bool] = _never,
    ) -> RoundResult | None:
        """Take the lease, ask, write, give it back; None where another service holds it.

        Args:
            dues: whose deadline passed; beyond `check_queue_size` they are re-armed unasked.
            clock_ms: the clock value by which they are due.
            source: who found them; it is written into the claims.
            may_wait: looked at before each wait for another service's lease.

        Reads: settled, op, half (heads of those asked). Writes: op.
        Commits: one to op and two to the lease; without due rows none, or one for late answers.
        Raises: StorageError; rows that could not be written go first next time.
        Source: RocketMQ R61, R72, R75, R78, R81; differs: only a question that was asked counts.
        """
        with self._lock:
            self._write(self._late_claims())
            if not dues:
                return RoundResult()
            if not self._take_lease(may_wait):
                return None
            reached(FailPoint.LEASE_TAKEN)
            try:
                return self._round(dues, clock_ms, source)
            finally:
                self._lease.give_back(self._clock.now_ms())
                reached(FailPoint.LEASE_RETURNED)

    def close(self) -> None:
        """Write the answers that came late and end the threads that do not hang."""
        with self._lock:
            self._threads.close()
            self._write(self._late_claims())

    def _take_lease(self, may_wait: Callable[[], bool]) -> bool:
        while not self._lease.take(self._clock.now_ms()):
            if not may_wait():
                return False
            time.sleep(LEASE_POLL_S)
        return True

    def _round(self, dues: Sequence[DueRow], clock_ms: int, source: ClaimSource) -> RoundResult:
        decided = self._decided(dues, clock_ms)
        reached(FailPoint.CHECKS_DECIDED)
        actions = self._asked(decided)
        reached(FailPoint.CHECKS_ANSWERED)
        now_ms = self._clock.now_ms()
        self._write([claim_of(action, source, now_ms, self._config) for action in actions])
        reached(FailPoint.CHECKS_COMMITTED)
        result = result_of(actions, dropped=len(dues) - len(actions))
        _log(result)
        return result

    def _decided(self, dues: Sequence[DueRow], clock_ms: int) -> list[Action]:
        """One action for each transaction that needs one, in the order of the deadlines."""
        groups = {due.transaction_id: due.producer_group for due in dues}
        standings = self._standings.of(groups, self._clock.now_ms())
        actions: dict[str, Action] = {}
        for due in sorted(dues, key=lambda due: (due.deadline_ms, due.transaction_id)):
            now = standings[due.transaction_id]
            decision: Decision = decide(due, now, clock_ms, self._config)
            if not isinstance(decision, Drop):
                actions.setdefault(due.transaction_id, Action(due, now, decision))
        return list(actions.values())

    def _asked(self, actions: Sequence[Action]) -> list[Action]:
        """The same actions; where one was to ask, its outcome is in its place."""
        outcomes = self._outcomes([a for a in actions if isinstance(a.decision, Ask)])
        return [
            replace(action, decision=outcomes.get(action.due.transaction_id, action.decision))
            for action in actions
        ]

    def _outcomes(self, asks: Sequence[Action]) -> dict[str, Outcome]:
        """What came of each question; those beyond `check_queue_size` are left out."""
        outcomes: dict[str, Outcome] = {
            ask.due.transaction_id: NotReached(Reason.NO_LISTENER) for ask in asks
        }
        heard = [ask for ask in asks if ask.due.producer_group in self._listeners]
        for place, ask in enumerate(heard):
            queued = place < self._config.check_queue_size
            reason = Reason.UNREADABLE if queued else Reason.BUSY
            outcomes[ask.due.transaction_id] = NotReached(reason)
        outcomes.update(self._answers(heard[: self._config.check_queue_size]))
        return outcomes

    def _answers(self, asks: Sequence[Action]) -> dict[str, Outcome]:
        if not asks:
            return {}
        self._half.table.refresh()
        check_times = {ask.due.transaction_id: ask.now.standing.check_times for ask in asks}
        halves = half_messages(self._half, check_times)
        return self._threads.ask(list(halves.values()), self._config.listener_timeout_s)

    def _write(self, rows: Sequence[OpRow]) -> None:
        """One commit, none without rows; what could not be written is kept for the next call."""
        self._unwritten.extend(rows)
        if not self._unwritten:
            return
        number = next(self._numbers)
        op = self._standings.op
        op.append(self._unwritten, self._queue_id, app_id=self._app_id, number=number)
        self._unwritten.clear()
        if number % REOPEN_AFTER_COMMITS == 0:
            op.table.reopen()

    def _late_claims(self) -> list[OpRow]:
        now_ms = self._clock.now_ms()
        return [late_claim(answer, now_ms) for answer in self._threads.late_answers()]


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
