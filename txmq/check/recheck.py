"""The recheck: a batch search of the logs for due transactions, without Spark.

It misses nothing that a stream may miss. Groups that could not be asked are asked at once when
somebody answers for them again.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.check.claims import RoundResult
from txmq.check.open_transactions import OpenTransactions, dues_of
from txmq.check.round import PATIENCE_S, CheckRound
from txmq.check.standing import DUE, rounds_of
from txmq.errors import InvalidNameError
from txmq.ground.clock import Clock
from txmq.ground.fail_points import FailPoint, reached
from txmq.ground.results import plain
from txmq.listeners.hooks import Hook, Hooks
from txmq.listeners.protocol import CheckListener, Reason, check_listener, load_listeners
from txmq.listeners.remote import RemoteRequests, remote_groups, requests_in
from txmq.message.lifecycle import ClaimSource, TransactionState
from txmq.message.names import stored_name
from txmq.store.config import Config
from txmq.store.store import Store, check_store
from txmq.store.store_clock import StoreClock

if TYPE_CHECKING:
    from txmq.ground.sessions import SparkSession

# Nobody was reached for one of these reasons.
_NOBODY = pa.array([Reason.NO_LISTENER.value, Reason.BUSY.value])
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecheckResult:
    """The result of one recheck.

    Attributes:
        checks: the counts of all rounds.
        open_transactions: transactions without an end at the last search.
        incomplete: ids of the open transactions with missing messages.
        is_complete: false if another service kept the lease, or the recheck was stopped.
        next_check: when the next one of them is asked again; None where none waits for that.
        unheard_groups: groups with open transactions whose last check found no listener, also
            those that this recheck did not try because their pause was not over.
    """

    checks: RoundResult
    open_transactions: int
    incomplete: tuple[str, ...]
    is_complete: bool
    next_check: datetime | None = None
    unheard_groups: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the result as plain values, for JSON."""
        values: dict[str, Any] = plain(self)
        values["checks"]["asked"] = self.checks.asked
        return values


class RecheckJob:
    """Asks about every transaction that is due, including those that the deadline join missed.

    Schedule it as a job, or run a CheckService, which rechecks regularly.

    Args:
        store: the store to check.
        listeners: by producer group; the listeners of the settings are added for other groups.
        clock: the clock of this machine. A transaction is due by the store's time, however wrong
            that clock is (decision 0031).
        spark: a session, for listeners that answer with a DataFrame (SetListener).
        hooks: are told of the ends that the job writes (R89).

    Raises:
        ListenerError: a listener cannot answer checks, or one of the settings cannot be loaded.
        HookError: an element of `hooks` is no hook.

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
        """Check the listeners and the hooks; read nothing and ask nobody yet."""
        check_store(store)
        self._store = store
        self._hooks = Hooks(hooks)
        self._spark = spark
        self._clock = StoreClock.of(store, clock)
        self._listeners = all_listeners(store.config, listeners)

    def run_once(self) -> RecheckResult:
        """Ask about every transaction that is due at the start, each at most once.

        A round takes `check_queue_size` due transactions of each group, or `check_set_size` if the
        group's listener answers sets.

        Commits: for each round one to op and two to the lease; none if nothing is due.

        Retry: call it again. A question counts only by its durable claim, so a transaction is asked
        at most `transaction_check_max` times, plus one for each round that died.

        Returns:
            The answers, and the transactions that are still open.

        Raises:
            StorageError: a log cannot be read or written.
            ListenerError: a listener cannot be used.
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
    """A recheck that shares its CheckRound, for example with the stream of the same service."""

    def __init__(self, store: Store, checks: CheckRound, clock: Clock) -> None:
        """Open nothing yet; `checks` asks about the transactions that this finds."""
        config = store.config
        # Another service's round may have died, or takes as long as the slowest listener.
        slowest_s = max(group.listener_timeout_s for group in config.check_settings().values())
        self._patience_s = config.check_lease_s + slowest_s
        self._checks = checks
        self._clock = clock
        self._open = OpenTransactions(store, clock)
        self._returning = ReturningGroups(store, checks.groups_here)
        self._quiet_until_ms = -math.inf
        self._open_until_ms = math.inf
        self.search_s = 0.0

    def may_find_more(self) -> bool:
        """Tell whether half or op has news since the last search, or a deadline has passed."""
        # Before the first search nothing may ask for the time, which may fail.
        is_first = self._quiet_until_ms == -math.inf
        return is_first or self._open.has_news() or self._clock.now_ms() >= self._quiet_until_ms

    @property
    def open_until_ms(self) -> float:
        """The last deadline of what was open when the last recheck ended; infinity if none did."""
        return self._open_until_ms

    def forget(self) -> None:
        """Know nothing of deadlines until the next recheck."""
        self._quiet_until_ms, self._open_until_ms = -math.inf, math.inf

    def has_returned(self) -> bool:
        """Tell whether a group has a listener again that could not be asked."""
        return self._returning.look()

    def run_once(
        self, is_stopping: Callable[[], bool] = lambda: False, *, waits: bool = True
    ) -> RecheckResult:
        """Ask about all transactions that are due at the start, or until `is_stopping`.

        `waits` says whether it waits for slow groups too; else their answers come to a later round.
        """
        clock_ms = self._clock.now_ms()
        total = RoundResult()
        # First: after a search that fails, the next call must search again.
        self.forget()
        while True:
            begun_s = time.monotonic()
            transactions = self._open.read(clock_ms)
            self.search_s = time.monotonic() - begun_s
            self._open.open_set.keep()
            self._returning.await_(transactions)
            back = self._returning.due()
            dues = pa.concat_tables(
                [dues_of(transactions, clock_ms), returned(transactions, back, clock_ms)]
            )
            self._quiet_until_ms = _next_deadline_ms(transactions, dues)
            reached(FailPoint.DUE_FOUND)
            result, is_complete = self._rounds(dues, clock_ms, is_stopping)
            total += result
            if is_complete:
                self._returning.done(back)
            # If all were dropped, the next search would find the same.
            if not is_complete or result == RoundResult(dropped=dues.num_rows):
                self._open_until_ms = _last_deadline_ms(transactions) if is_complete else math.inf
                if not (is_complete and waits and self._checks.is_asking):
                    return _result(total, transactions, is_complete=is_complete)
                total += self._checks.finish()

    def _rounds(
        self, dues: pa.Table, clock_ms: int, is_stopping: Callable[[], bool]
    ) -> tuple[RoundResult, bool]:
        total = RoundResult()
        for of_round in rounds_of(dues, self._checks.limit_of):
            result = self._round(of_round, clock_ms, is_stopping)
            if result is None:
                return total, False
            total += result
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
            patience_s=PATIENCE_S,
        )


def all_listeners(
    config: Config, listeners: Mapping[str, CheckListener] | None
) -> dict[str, CheckListener]:
    """Join the listeners of the arguments with those of the settings for other groups.

    Raises: ListenerError.
    """
    from_arguments = {
        stored_name(group): check_listener(group, listener)
        for group, listener in (listeners or {}).items()
    }
    references = {
        group: reference
        for group, reference in config.listeners.items()
        if group not in from_arguments
    }
    return {**load_listeners(references), **from_arguments}


def _next_deadline_ms(transactions: pa.Table, dues: pa.Table) -> float:
    """Return the next deadline of OPEN_TRANSACTIONS; minus infinity if any is due already."""
    if dues.num_rows:
        return -math.inf
    next_us = pc.min(transactions["deadline"].cast(pa.int64())).as_py()
    return math.inf if next_us is None else next_us / 1000


def _last_deadline_ms(transactions: pa.Table) -> float:
    """Return the last deadline of OPEN_TRANSACTIONS; minus infinity if there is none."""
    last_us = pc.max(transactions["deadline"].cast(pa.int64())).as_py()
    return -math.inf if last_us is None else last_us / 1000


def _result(checks: RoundResult, transactions: pa.Table, *, is_complete: bool) -> RecheckResult:
    is_incomplete = pc.is_valid(transactions["problem"])
    incomplete = transactions.filter(is_incomplete)["transaction_id"].to_pylist()
    if incomplete:
        shown = ", ".join(incomplete[:5])
        logger.warning("%d open transactions miss messages: %s", len(incomplete), shown)
    return RecheckResult(
        checks,
        transactions.num_rows,
        tuple(incomplete),
        is_complete,
        _next_check(transactions),
        _unheard(transactions),
    )


def _next_check(transactions: pa.Table) -> datetime | None:
    """Return the first deadline among those that are asked again."""
    is_pending = pc.equal(transactions["state"], TransactionState.PENDING.value)
    first: datetime | None = pc.min(transactions.filter(is_pending)["deadline"]).as_py()
    return first


def _unheard(transactions: pa.Table) -> tuple[str, ...]:
    is_unheard = pc.equal(transactions["reason"], Reason.NO_LISTENER.value)
    groups = pc.unique(transactions.filter(is_unheard)["producer_group"])
    return tuple(sorted(groups.to_pylist()))


# --- Groups that come back -----------------------------------------------------------------------


class ReturningGroups:
    """The groups whose questions are due because somebody has come who may answer.

    It compares what it sees with what it saw before, and no times of others. Not safe for several
    threads.
    """

    def __init__(self, store: Store, groups_here: Iterable[str]) -> None:
        """Read nothing yet; the groups with a listener in this process are due at the start."""
        self._store = store
        self._here = frozenset(groups_here)
        self._due = set(self._here)
        self._awaited: dict[str, RemoteRequests | None] = {}
        self._members: dict[str, frozenset[tuple[str, int]]] = {}

    def due(self) -> frozenset[str]:
        """Return the groups that are due now; `done` says that they were asked."""
        return frozenset(self._due)

    def done(self, groups: Collection[str]) -> None:
        """Note that these groups were asked; they are due again when somebody new comes."""
        self._due -= frozenset(groups)

    def await_(self, transactions: pa.Table) -> None:
        """Watch the groups of OPEN_TRANSACTIONS, also those that will be asked for the first time.

        So the members that are there when a question is put are not new afterwards.
        """
        groups = set(pc.unique(transactions["producer_group"]).to_pylist()) - self._here
        self._awaited = {group: self._awaited.get(group) for group in groups}
        self.look()

    def look(self) -> bool:
        """Look for members that are new since the last look; return whether any group is due."""
        if self._awaited:
            # One listing, and not a look for each group that never had a member.
            for group in self._awaited.keys() & set(remote_groups(self._store)):
                if self._has_new_member(group):
                    self._due.add(group)
        return bool(self._due)

    def _has_new_member(self, group: str) -> bool:
        requests = self._awaited[group] = self._awaited[group] or self._requests(group)
        if requests is None or not requests.exists:
            return False
        if group in self._members and not requests.has_news():
            return False
        before = self._members.get(group, frozenset())
        # A sign of life is news too: the member may have been suspended.
        members = frozenset(requests.read().members.items())
        self._members[group] = members
        return not members <= before

    def _requests(self, group: str) -> RemoteRequests | None:
        try:
            return requests_in(self._store, group)
        except InvalidNameError:
            # A half written by hand may name any group.
            return None


def returned(transactions: pa.Table, groups: Collection[str], clock_ms: int) -> pa.Table:
    """Select OPEN_TRANSACTIONS that wait for nothing but one of these groups, as DUE."""
    names = pa.array(list(groups), pa.string())
    is_back = pc.is_in(transactions["producer_group"], value_set=names)
    is_pause = pc.invert(pc.fill_null(transactions["is_due"], False))  # noqa: FBT003
    rows = transactions.filter(pc.and_(pc.and_(is_back, is_pause), _waits(transactions)))
    columns = {
        **{name: rows[name] for name in DUE.names if name in rows.column_names},
        "deadline_ms": pa.array([clock_ms] * rows.num_rows, pa.int64()),
        "has_returned": pa.array([True] * rows.num_rows, pa.bool_()),
    }
    return pa.table({name: columns[name] for name in DUE.names}).cast(DUE)


def _waits(transactions: pa.Table) -> pa.ChunkedArray:
    is_pending = pc.equal(transactions["state"], TransactionState.PENDING.value)
    return pc.and_(is_pending, pc.is_in(transactions["reason"], value_set=_NOBODY))
