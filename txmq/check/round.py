"""One round of checks: read standings, ask listeners, write the claims.

The claims of a round are one commit. In a service, a group whose listener
needs longer than PATIENCE_S gets a commit of its own later, so that the other groups do not wait
for it (decision 0039).
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from txmq.check.claims import Actions, RoundResult, actions_of, claims_of, late_claims, result_of
from txmq.check.standing import StandingReader
from txmq.errors import CommitRefusedError, TxmqError
from txmq.ground.clock import Clock
from txmq.ground.columns import Groups
from txmq.ground.fail_points import FailPoint, reached
from txmq.listeners.askers import AskedRound, Askers
from txmq.listeners.hooks import EndContext, Hooks
from txmq.listeners.protocol import CheckListener
from txmq.listeners.remote import remote_asker
from txmq.message.lifecycle import ClaimKind, ClaimSource
from txmq.message.message import LocalTransactionState
from txmq.message.names import namespace_of, unwrapped
from txmq.store.claim_writer import ClaimWriter
from txmq.store.logs import EndReader, Resolution
from txmq.store.register import Register, Registered
from txmq.store.renewals import RenewalReader
from txmq.store.store import Store
from txmq.store.store_clock import StoreClock

if TYPE_CHECKING:
    from txmq.ground.sessions import SparkSession

logger = logging.getLogger(__name__)
_ASKED = {
    ClaimKind.COMMIT.value: LocalTransactionState.COMMIT,
    ClaimKind.ROLLBACK.value: LocalTransactionState.ROLLBACK,
    # All checks were answered UNKNOWN.
    ClaimKind.DISCARD.value: LocalTransactionState.UNKNOWN,
}
_COLUMNS = ["transaction_id", "kind", "producer_group", "source", "reason"]
_FOUND_BY = {ClaimSource.CHECK: "stream", ClaimSource.RECHECK: "recheck"}
_ASKING = "asking"
# A token: the holder, its revision, the time.
_TOKEN = re.compile(r"[^/]*/[^/]*/([0-9]{1,18})", re.ASCII)
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
        # Nobody is asked about what may have ended.
        logs = store.tables.logs(believes_unknown=True)
        self._half, self._standings = logs.half, StandingReader(logs, config)
        self._renewals = RenewalReader(store, StoreClock.of(store, clock))
        hooks = Hooks() if hooks is None else hooks
        self._hooks = CheckHooks(hooks, store)
        remote = partial(remote_asker, store, clock)
        self._listeners = Askers(listeners, config, spark, remote, hooks)
        self._claims = ClaimWriter(logs.op, "check", config.half_queues)
        register = store.tables.register("check_lease", LeaseValue)
        self._lease = CheckLease(register, str(self._claims.session), config.check_lease_s)
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
        """Return how many transactions of a group one round asks about."""
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
        """Run a round without the groups that this service still asks."""
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
        _log(result, source)
        return result

    def _claim(self, actions: Actions, source: ClaimSource) -> None:
        self._write(claims_of(actions, source, self._clock.now_ms(), self._config))
        reached(FailPoint.CHECKS_COMMITTED)

    def _decided(self, dues: pa.Table, clock_ms: int) -> Actions:
        """Read standings and decide; return the actions in the order of the deadlines."""
        of_transaction = Groups.of(dues["transaction_id"])
        _, first = np.unique(of_transaction.place, return_index=True)
        owners = dues.select(["transaction_id", "producer_group"]).take(pa.array(first))
        standings = self._standings.of(owners, self._clock.now_ms())
        of_dues = standings.take(pa.array(of_transaction.place))
        return actions_of(dues, of_dues, clock_ms, self._config, self._renewals.until_ms())

    def _asked(self, actions: Actions, source: ClaimSource) -> tuple[Actions, int]:
        """Ask; return the actions of groups that are done, and how many found no room."""
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
                _log(result, slow.source)
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
        """Take the actions about groups that are done by `until_s`, with their outcomes."""
        outcomes = self.asked.take(until_s)
        done = self.actions.only(outcomes["transaction_id"].combine_chunks())
        return done.answered(outcomes)


def _without_groups(dues: pa.Table, groups: Collection[str]) -> pa.Table:
    if not groups:
        return dues
    is_asked = pc.is_in(dues["producer_group"], value_set=pa.array(list(groups), pa.string()))
    return dues.filter(pc.invert(is_asked))


def _log(result: RoundResult, source: ClaimSource) -> None:
    """Say what a round did, and who found its transactions: the deadline join or a recheck."""
    is_news = result != RoundResult(dropped=result.dropped)
    logger.log(
        logging.INFO if is_news else logging.DEBUG,
        "asked %d, discarded %d, unasked %d, dropped %d; found by the %s",
        result.asked, result.discarded, result.unasked, result.dropped, _FOUND_BY[source],
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


# --- The lease -----------------------------------------------------------------------------------


class LeaseValue(TypedDict):
    """The value of the register: who may ask, and a token for each group that is still asked."""

    holder: NotRequired[str | None]
    renewed_ms: int
    asking: NotRequired[Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class _Silence:
    """The last renewal of another holder, and since when this observer has seen it."""

    revision: int
    since_ms: int


class CheckLease:
    """The right to ask. A round takes it, asks, makes the answers durable, and gives it back.

    A group whose listener is slow stays with the round that asked it, while the lease is free for
    the other groups: the value names these groups until their answers are durable, for the length
    of a lease at the longest.

    So a transaction is asked at most its maximum, plus once for each round that died before it
    wrote its claims. A holder whose clock is ahead cannot block other services for ever: to an
    observer no time of others is later than its own now.
    """

    def __init__(self, register: Register, holder: str, lease_s: float) -> None:
        """Open nothing yet; `holder` is the unique id of this object."""
        self._register = register
        self._holder = holder
        self._lease_ms = round(lease_s * 1000)
        self._held: Registered | None = None
        self._silence: _Silence | None = None
        self._asking: dict[str, str] = {}
        # The groups that the value names for this holder.
        self._named: set[str] = set()
        # Since when a group is asked by another service, as far as this observer knows.
        self._since_ms: dict[tuple[str, str], int] = {}

    def take(self, now_ms: int) -> bool:
        """Take the lease if it is free or its holder is silent: one commit. Never waits."""
        seen = self._register.read()
        if not self._may_take(seen, now_ms):
            return False
        try:
            value = self._value(self._holder, now_ms, self._of_others(seen, now_ms))
            self._held = self._register.swap(seen, value, now_ms)
        except CommitRefusedError:
            return False
        return True

    def busy_groups(self, now_ms: int) -> frozenset[str]:
        """Return the groups that other services still ask, as of the last `take`."""
        return frozenset(self._of_others(self._held, now_ms)) if self._held else frozenset()

    def finish(self, still_asked: Collection[str], now_ms: int) -> None:
        """Note that the answers of all but these groups are durable: one commit.

        No commit if nothing has changed, or while a round holds the lease; then call it again.
        """
        if self._named <= set(still_asked):
            return
        self._asking = {key: token for key, token in self._asking.items() if key in still_asked}
        seen = self._register.read()
        if seen.value.get("holder") is not None:
            return
        value = self._value(None, now_ms, self._of_others(seen, now_ms))
        try:
            self._register.swap(seen, value, now_ms)
        except CommitRefusedError:
            return
        self._named = set(self._asking)

    def give_back(self, now_ms: int, asking: Collection[str] = ()) -> None:
        """Free the lease, and name the groups that are still asked: one commit.

        No commit if another service has taken the lease over.
        """
        seen, held = self._register.read(), self._held
        self._held = None
        if held is None or seen.revision != held.revision:
            return
        self._asking |= dict.fromkeys(asking, f"{self._holder}/{held.revision}/{now_ms}")
        try:
            value = self._value(None, now_ms, self._of_others(seen, now_ms))
            self._register.swap(seen, value, now_ms)
        except CommitRefusedError:
            return
        self._named = set(self._asking)

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

    def _value(
        self, holder: str | None, now_ms: int, of_others: Mapping[str, str]
    ) -> dict[str, object]:
        asking = {**of_others, **self._asking}
        named: dict[str, object] = {_ASKING: asking} if asking else {}
        return {"holder": holder, "renewed_ms": now_ms, **named}

    def _of_others(self, seen: Registered, now_ms: int) -> dict[str, str]:
        """Return the groups that others ask, and have not asked for longer than a lease."""
        others = {pair for pair in _asking(seen).items() if not self._is_own(pair[1])}
        # A scheduled recheck looks once, so the time at which they were named counts from the
        # start. One in the future comes from another clock, or this clock was set back.
        self._since_ms = {
            pair: min(self._since_ms.get(pair, _named_ms(pair[1], seen)), now_ms) for pair in others
        }
        return {
            group: token
            for (group, token), since_ms in self._since_ms.items()
            if now_ms - since_ms < self._lease_ms
        }

    def _is_own(self, token: str) -> bool:
        return token.partition("/")[0] == self._holder


def _named_ms(token: str, seen: Registered) -> int:
    """Return when a group was named; where an earlier txmq wrote no time, the last change."""
    has_time = _TOKEN.fullmatch(token)
    return int(has_time[1] if has_time else seen.value["renewed_ms"])


def _asking(seen: Registered) -> dict[str, str]:
    groups = seen.value.get(_ASKING)
    return dict(groups) if isinstance(groups, dict) else {}


# --- Hooks ---------------------------------------------------------------------------------------


class CheckHooks:
    """Tells hooks of durable COMMIT, ROLLBACK and DISCARD claims of a check."""

    def __init__(self, hooks: Hooks, store: Store) -> None:
        """Open nothing yet."""
        self._hooks = hooks
        self._queue: deque[pa.Table] = deque()
        self._lock = threading.Lock()
        self._ends = EndReader(store.tables.logs())

    def written(self, claims: pa.Table) -> None:
        """Queue the ends among durable `claims`, as OP, until `tell`."""
        if self._hooks.hear_ends:
            is_end = pc.is_in(claims["kind"], value_set=pa.array(list(_ASKED)))
            self._queue.append(claims.select(_COLUMNS).filter(is_end))

    def tell(self) -> None:
        """Tell the hooks of each queued end, with the state that the transaction has now.

        Do not call it while the check lease is held: a slow hook would delay other services.

        Reads: op, settled, half; nothing without hooks for ends. Commits: 0.
        """
        with self._lock:
            while self._queue:
                self._tell(self._queue.popleft().to_pylist())

    def flush(self) -> None:
        """Tell the hooks of the queued ends, then flush the hooks."""
        self.tell()
        self._hooks.flush()

    def _tell(self, rows: Sequence[Mapping[str, Any]]) -> None:
        resolutions = self._resolutions([row["transaction_id"] for row in rows])
        for row in rows:
            self._hooks.ended(_context(row, resolutions.get(row["transaction_id"])))

    def _resolutions(self, transaction_ids: Sequence[str]) -> Mapping[str, Resolution]:
        try:
            return self._ends.ends_of(transaction_ids)
        except TxmqError as error:
            # The claims are written; an error for hooks must not stop the next round.
            logger.warning("hooks are told of ends without their state: %s", error)
            return {}


def _context(row: Mapping[str, Any], resolution: Resolution | None) -> EndContext:
    return EndContext(
        producer_group=unwrapped(row["producer_group"]),
        namespace=namespace_of(row["producer_group"]),
        transaction_id=row["transaction_id"],
        asked=_ASKED[row["kind"]],
        source=row["source"] if resolution is None else resolution.source,
        from_check=True,
        state=None if resolution is None else resolution.state,
        reason=row["reason"],
    )
