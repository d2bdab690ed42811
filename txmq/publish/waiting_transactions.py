"""Keep the publisher's transactions that are set aside, and try them again (decision 0027)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Container, Mapping
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.log_files import commit_fingerprint
from txmq.errors import CommitRefusedError, SourceRestoredError
from txmq.ground.clock import Clock
from txmq.ground.handles import is_survivable
from txmq.publish.plan import Plans, plans_of
from txmq.publish.progress import RetryPauses
from txmq.publish.settle import Settlement, Waiting, settle
from txmq.publish.topic_writer import NOBODYS_FAULT, Goal, PublishResult, TopicWriter, culprits
from txmq.store.logs import Logs
from txmq.store.set_aside import (
    SetAside,
    SetAsideTransactions,
    after_their_facts,
    read_set_aside,
    set_aside_register,
    waiting_claims,
)
from txmq.store.settled import NOTHING, last_facts

if TYPE_CHECKING:
    from txmq.store.store import Store

logger = logging.getLogger(__name__)

SHOWN_TRANSACTIONS = 5
_PAUSE = "transactions"
CURE = (
    "restore the file, or give this process the key (claim_keys), or give them up: "
    "txmq resolve ID --give-up"
)


class WaitingTransactions:
    """The transactions that are set aside, as one publisher knows them.

    `keep_problems` is safe for several threads; the rest is for the publisher's own.
    """

    def __init__(
        self, store: Store, logs: Logs, clock: Clock, check_half: Callable[[], None]
    ) -> None:
        """Read the register; `check_half` raises if the half log moved behind a removal."""
        self._check_half = check_half
        self._store, self._logs, self._clock = store, logs, clock
        self._half, self._op, self._schedule = logs.half, logs.op, logs.schedule
        self._settled = logs.settled
        self._pauses = RetryPauses(store.config.park_retry_interval_s)
        self._attempts = 0
        # Those whose operator has been heard already.
        self._given_up: set[str] = set()
        self._lock = threading.Lock()
        self._count = self._settled.set_aside_count
        self._value = self._read()

    @property
    def held(self) -> Collection[str]:
        """The transactions whose claims wait."""
        return self._value.transactions.keys()

    def follow(self) -> None:
        """Read the register again if another publisher set transactions aside or settled them.

        It is written before the commit that counts up, so it is never behind the settled log that
        is pinned when this returns.
        """
        while self._settled.set_aside_count != self._count:
            count = self._settled.set_aside_count
            self._value = self._read()
            self._settled.table.refresh()
            self._count = count

    def _read(self) -> SetAsideTransactions:
        """Read the register. Raises: SourceRestoredError if it is older than the settled log."""
        return read_set_aside(self._store.tables, self._settled.set_aside_count)

    # --- setting aside ----------------------------------------------------------------------------

    def keep(self, settlement: Settlement, after: int) -> int | None:
        """Register the claims that wait, before the commit that leaves them out.

        Returns: the count for that commit; None if the settled log has seen it already.
        """
        claims, problems = settlement.undecided, settlement.problems
        if claims.counted.num_rows or claims.unknown.num_rows:
            now_ms = self._clock.now_ms()
            self._change(lambda value: value.with_claims(claims, problems, after, now_ms), now_ms)
            self._tell(problems)
        count = self._value.count or 0
        return count if count > self._settled.set_aside_count else None

    def keep_problems(self, problems: Mapping[str, str], after: int) -> int:
        """Register transactions whose facts after this version cannot be published now.

        Returns: how many of them were not set aside before.
        """
        now_ms = self._clock.now_ms()
        count = self._change(lambda value: value.with_problems(problems, after, now_ms), now_ms)
        self._tell(problems)
        return count

    def _change(
        self, change: Callable[[SetAsideTransactions], SetAsideTransactions], now_ms: int
    ) -> int:
        """Change the register; return how many more transactions wait."""
        with self._lock:
            before = self._value.transactions.keys()
            register = set_aside_register(self._store.tables, create=True)
            self._value = register.change(partial(self._changed, change), now_ms)
            if not before:
                self._pauses.tried(_PAUSE, now_ms)
                self._attempts = 1
            return len(self._value.transactions.keys() - before)

    def _changed(
        self,
        change: Callable[[SetAsideTransactions], SetAsideTransactions],
        value: SetAsideTransactions,
    ) -> SetAsideTransactions:
        """Change a value that is not older than the settled log; count up if it differs."""
        # Where several threads come here, the publisher's own one waits for them.
        seen = self._settled.set_aside_count
        changed = change(value.check_count(seen))
        return value if changed == value else changed.counted(seen)

    def _tell(self, problems: Mapping[str, str]) -> None:
        """Log the transactions that are set aside now."""
        if problems:
            names, count = ", ".join([*problems][:SHOWN_TRANSACTIONS]), len(problems)
            problem = next(iter(problems.values()))
            text = "%d transactions are set aside (%s), first because of %s; %s"
            logger.error(text, count, names, problem, CURE)

    # --- trying again -----------------------------------------------------------------------------

    def retry(self, topics: TopicWriter, low: int, parked: Container[str]) -> PublishResult:
        """Settle and publish the transactions that can be read by now.

        The half log is pinned by the caller.

        Args:
            topics: writes the messages.
            low: every topic that is not parked has all other messages up to this version.
            parked: topics that are not written now.

        Commits: up to one to settled, one to each topic that gets messages, and one to the
        register. A retry after a crash does what is missing.

        Raises: StorageError, SourceRestoredError.
        """
        self._attempts += 1
        self._pauses.tried(_PAUSE, self._clock.now_ms())
        self._half.table.search.forget_unreadable()
        self._schedule.table.search.forget_unreadable()
        self._value = self._read()
        entries = dict(self._value.transactions)
        self._given_up |= given_up_by(entries).keys()
        try:
            settled, undecided = self._settle(entries)
        except CommitRefusedError:
            # Another publisher was faster; the next try sees what it did.
            self._settled.table.refresh()
            return PublishResult(refused=1)
        ready = {name: entry for name, entry in entries.items() if name not in undecided}
        published, waiting = self._publish(ready, topics, low, parked)
        self._end({name: entry for name, entry in ready.items() if name not in waiting})
        return settled + published

    def is_due(self) -> bool:
        """Tell whether to try now: after a pause, or because an operator gave some up."""
        if not self._value.transactions:
            return False
        now_ms = self._clock.now_ms()
        is_given_up = not given_up_by(self._value.transactions).keys() <= self._given_up
        return is_given_up or self._pauses.is_due(_PAUSE, self._attempts, now_ms)

    def _settle(self, entries: Mapping[str, SetAside]) -> tuple[PublishResult, Collection[str]]:
        """Append the facts of the claims that waited; return also who cannot be decided yet."""
        claims, unknown = waiting_claims(entries.values())
        if not claims.num_rows and not unknown.num_rows:
            return PublishResult(), ()
        facts = last_facts(self._settled.facts_of(pc.unique(claims["transaction_id"])))
        claims = after_their_facts(claims, facts)
        now_ms, waiting = self._clock.now_ms(), Waiting((), given_up_by(entries), unknown)
        received_ms = partial(self._op.received_ms, clock=self._clock)
        settlement = settle(
            claims, self._half, self._settled, now_ms, self._schedule, waiting,
            received_ms=received_ms,
        )  # fmt: skip
        self._check_half()
        undecided = {
            name for rows in settlement.undecided for name in rows["transaction_id"].to_pylist()
        }
        if not settlement.facts.num_rows:
            return PublishResult(), undecided
        count = self._count_up(now_ms)
        self._settled.add(settlement.facts, count)
        self._count = count
        return PublishResult(settled=settlement.facts.num_rows, settled_commits=1), undecided

    def _count_up(self, now_ms: int) -> int:
        """Count a commit to the settled log before it, so that the register is never behind."""
        seen = self._settled.set_aside_count
        register = set_aside_register(self._store.tables)
        self._value = register.change(lambda value: value.check_count(seen).counted(seen), now_ms)
        return self._value.count or 0

    def _publish(
        self,
        entries: Mapping[str, SetAside],
        topics: TopicWriter,
        low: int,
        parked: Container[str],
    ) -> tuple[PublishResult, Collection[str]]:
        """Append what their topics lack; return also whose messages are not all there yet."""
        given_up = given_up_by(entries)
        plans, strange = self._plans(entries, self._facts(entries, low))
        fingerprint = commit_fingerprint(self._op.table, low)
        self._check_half()
        result, waiting = PublishResult(), {*plans.missing, *strange}
        topics.expect(plans.topics())
        goal = Goal(plans, NOTHING, low, fingerprint)
        for name in plans.topics():
            if name in parked:
                waiting.update(plans.owners(name))
                continue
            try:
                result += topics.write_late(name, goal, given_up)
            except SourceRestoredError:
                raise
            except BaseException as error:
                if not is_survivable(error):
                    raise
                kind = type(error).__name__
                logger.warning("topic %s: set-aside messages cannot be written (%s)", name, kind)
                waiting.update(plans.owners(name))
        return result, waiting

    def _facts(self, entries: Mapping[str, SetAside], low: int) -> pa.Table:
        """Find the facts of these transactions that may not be published yet."""
        ids = pa.array(list(entries), pa.string())
        facts = self._settled.to_show_of(ids, low)
        after = pa.array([entry.from_version for entry in entries.values()], pa.int64())
        places = pc.index_in(facts["transaction_id"], value_set=ids)
        return facts.filter(pc.greater(facts["op_version"], after.take(places.combine_chunks())))

    def _plans(
        self, entries: Mapping[str, SetAside], facts: pa.Table
    ) -> tuple[Plans, Collection[str]]:
        """Plan these facts; transactions that make planning fail go on waiting.

        Returns: the plans, and the transactions that go on waiting.
        """
        given_up = given_up_by(entries)

        def planned(names: Collection[str]) -> Plans:
            some = facts_about(facts, names)
            return plans_of(self._half, some, self._schedule, given_up, rows, is_all=True)

        rows = self._store.config.publish_batch_rows
        try:
            return planned(entries), ()
        except NOBODYS_FAULT:
            raise
        except Exception:
            strange = culprits(list(entries), planned)
            if not strange:
                raise
            return planned(entries.keys() - strange.keys()), strange

    def _end(self, done: Mapping[str, SetAside]) -> None:
        """Take transactions out of the register."""
        if not done:
            return
        now_ms = self._clock.now_ms()
        self._change(lambda value: value.without(done), now_ms)
        logger.info("%d transactions are not set aside any more", len(done))


def given_up_by(entries: Mapping[str, SetAside]) -> dict[str, str]:
    """Find the transactions that an operator gave up, each with its producer group."""
    givers = {name: entry.giver_up for name, entry in entries.items()}
    return {name: group for name, group in givers.items() if group is not None}


def facts_about(facts: pa.Table, transaction_ids: Collection[str]) -> pa.Table:
    """Return the facts about some transactions."""
    value_set = pa.array(list(transaction_ids), pa.string())
    return facts.filter(pc.is_in(facts["transaction_id"], value_set=value_set))
