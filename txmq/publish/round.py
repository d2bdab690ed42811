"""One round of a publisher: settle new claims, then append the missing messages to each topic."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from txmq.delta.failures import problem_of
from txmq.delta.log_files import commit_fingerprint
from txmq.errors import (
    CommitConflictError,
    CommitRefusedError,
    SourceRestoredError,
    StorageError,
    TopicBehindError,
)
from txmq.ground.clock import Clock
from txmq.ground.fail_points import FailPoint, reached
from txmq.ground.handles import is_survivable
from txmq.message.names import SCHEDULE_TOPIC
from txmq.publish.announcement import PublishWatch
from txmq.publish.engines import EngineChoice
from txmq.publish.plan import Plans, plans_of
from txmq.publish.progress import (
    ParkedTopic,
    PublishProgress,
    RetryPauses,
    check_followed,
    check_half,
    end_latency,
    merged_progress,
    publish_latency,
)
from txmq.publish.removed_rows import RemovedRows
from txmq.publish.settle import Settlement, Waiting, reach_deliveries, settle, settle_all_others
from txmq.publish.topic_writer import NOBODYS_FAULT, Goal, PublishResult, TopicWriter, culprits
from txmq.publish.waiting_transactions import WaitingTransactions, facts_about
from txmq.store.set_aside import read_set_aside
from txmq.store.store_clock import StoreClock

if TYPE_CHECKING:
    from txmq.store.store import Store

logger = logging.getLogger(__name__)

FIRST_SPAN_VERSIONS = 64
MAX_SPAN_VERSIONS = 4096
LARGE_ROUND_ROWS = 100_000
PROGRESS_INTERVAL_S = 1.0
# After so long without a claim the op log is looked at less often.
QUIET_AFTER_S = 30.0
QUIET_FACTOR = 20
# The longest pause after a commit that another publisher's commit refused.
PAUSE_MAX_S = 0.1
# A start looks at so many idle topics; then one is looked at after each interval, in turns.
FIRST_TOPICS = 16
INTERVAL_S = 1.0
# On an object store a look costs some requests.
REMOTE_INTERVAL_S = 60.0


class PublishRound:
    """The table handles and the progress of one publisher. Not safe for several threads."""

    def __init__(
        self, store: Store, clock: Clock, engines: EngineChoice, watch: PublishWatch
    ) -> None:
        """Open the logs and read the progress."""
        self._store, self._engines = store, engines
        self._clock = StoreClock.of(store, clock)
        self._logs = store.tables.logs()
        self._half, self._op = self._logs.half, self._logs.op
        # The progress may refer to newer commits than an older handle of the op log would show.
        self._op.refresh()
        self._settled, self._schedule = self._logs.settled, self._logs.schedule
        for table in (self._half.table, self._settled.table):
            # A round reads the same small files several times.
            table.rows.keep_small_files()
        self._register = store.tables.register("publisher", PublishProgress)
        self._span = Span()
        self._writing: Writing | None = None
        self._rivals = Rivals(store.config.commit_attempts)
        self._published_s = 0.0
        self._kept = self._register.read()
        self._op.refresh()
        self._progress = PublishProgress.from_value(self._kept.value, self._op.table)
        self._kept_at_s = self._news_s = time.monotonic()
        self._half_due_s = -math.inf
        self._half_interval_s = REMOTE_INTERVAL_S if store.is_remote else INTERVAL_S
        self._pauses = RetryPauses(store.config.park_retry_interval_s)
        self._removed_rows = RemovedRows(store, self._logs)
        check_rows = self._removed_rows.check_half
        self._waiting = WaitingTransactions(store, self._logs, clock, check_rows)
        keep = self._waiting.keep_problems
        self._topics = TopicWriter(store, self._op, clock, engines, keep, watch=watch)
        self._topics.ends.update(self._progress.ends)
        self._idle_topics = IdleTopics(self._topics, is_remote=store.is_remote)

    def advance(self, stopping: threading.Event) -> PublishResult:
        """Settle and publish, one range of commits after the other, up to the newest claim."""
        self._logs.refresh_claims()
        self._progress.check_source(self._op.table)
        check_followed(self._op.table, self._settled)
        self._removed_rows.put_back_facts()
        self._settled.check_whole(self._progress.low_water_version)
        latest = self._op.table.version
        if self._op.table.log.has_news():
            # A newest commit that delta-rs cannot read must not look like the end of the log.
            self._op.check_commits(latest, latest + 1)
        if self._settled.mark < latest:
            self._news_s = time.monotonic()
        self._look_at_half()
        result = self._publish()
        while self._settled.mark < latest and not stopping.is_set():
            result += self._settle_beside(latest, stopping)
            result += self._publish(goes_on=self._settled.mark < latest)
        result += self._end_writing()
        if result.settled + result.published >= LARGE_ROUND_ROWS:
            # Arrow keeps freed memory, and a large round is rarely followed by another one.
            pa.default_memory_pool().release_unused()
        result += self._retry_parked()
        for name, error in self._idle_topics.behind(self._progress.parked):
            self._park(name, self._progress.low_water_version, error)
        return result + self._retry_waiting()

    def wait_for_news(self, stopping: threading.Event, deadline_s: float) -> None:
        """Wait for a new commit of the op log, until the deadline, or until `stopping`."""
        busy_s = self._store.config.publish_poll_interval_s
        interval_s = self._store.look_interval_s(busy_s)
        quiet_s = self._store.look_interval_s(busy_s * QUIET_FACTOR, is_idle=True)
        while not self._op.table.log.has_news() and (now_s := time.monotonic()) < deadline_s:
            if self._has_half_news():
                return
            is_quiet = now_s - self._news_s >= QUIET_AFTER_S
            if stopping.wait(quiet_s if is_quiet else interval_s):
                return

    def keep_progress(self) -> None:
        """Write the low-water mark and the parked topics: one commit, if they changed."""
        self._progress = self._progress.with_ends(self._topics.ends)
        value = self._progress.to_value()
        if value == self._kept.value:
            return
        try:
            self._kept = self._register.swap(self._kept, value, self._clock.now_ms())
        except CommitRefusedError:
            self._join_progress()
        reached(FailPoint.PROGRESS_KEPT)
        self._kept_at_s = time.monotonic()

    # --- settling ---------------------------------------------------------------------------------

    def _settle_beside(self, latest: int, stopping: threading.Event) -> PublishResult:
        """Settle the next range while the topics of the one before are written."""
        try:
            result = self._settle(latest)
            if result.refused:
                self._rivals.pause(self._published_s, stopping)
        except BaseException:
            if self._writing is not None:
                # What they have written is found again by their marks.
                self._writing.wait()
                self._writing = None
            raise
        return result + self._end_writing()

    def _settle(self, latest: int) -> PublishResult:
        """Settle the next range of commits, up to `latest`: one commit to settled, or none."""
        self._waiting.follow()
        after = self._settled.mark
        span = min(latest - after, self._span.versions)
        if span <= 0:
            return PublishResult()
        rows = self._store.config.publish_batch_rows
        claims, end = self._op.first_between(after, after + span, rows)
        reached(FailPoint.CLAIMS_READ)
        check_half(self._half.table.refresh(), self._settled)
        self._put_back_halves()
        settlement = self._decided(*claims)
        count = self._waiting.keep(settlement, after)
        self._span.adapt(end - after, is_full=claims.counted.num_rows >= rows)
        reached(FailPoint.FACTS_DECIDED)
        fingerprint = commit_fingerprint(self._op.table, end)
        half = self._removed_rows.half_seen()
        try:
            self._settled.swap(settlement.facts, end, fingerprint, count, half)
        except CommitRefusedError as error:
            self._settled.table.refresh()
            self._rivals.refused(error, has_moved=self._settled.mark > after)
            return PublishResult(refused=1)
        reached(FailPoint.FACTS_COMMITTED)
        return PublishResult(
            settled=settlement.facts.num_rows,
            settled_commits=1,
            set_aside=len(settlement.problems),
            end_latency=end_latency(settlement.facts),
        )

    def _put_back_halves(self) -> None:
        """Put back what open and unpublished transactions need of the half log that is pinned."""
        if not self._removed_rows.has_half_removals():
            return
        check_half(self._half.table, self._settled)
        seen = self._settled.set_aside_count
        aside = read_set_aside(self._store.tables, seen).transactions.keys() | self._waiting.held
        low, parked = self._progress.low_water_version, self._progress.parked.values()
        low = min([low, *(topic.from_version for topic in parked)])
        self._removed_rows.put_back_halves(low, aside)

    def _look_at_half(self) -> None:
        """Put halves back where nothing is settled meanwhile, and say so: up to one commit."""
        if time.monotonic() < self._half_due_s:
            return
        self._half_due_s = time.monotonic() + self._half_interval_s
        self._half.table.refresh()
        self._put_back_halves()
        if self._settled.half_removals(self._half.table):
            check_half(self._half.table, self._settled)
            with suppress(CommitRefusedError):
                self._settled.see_half(self._removed_rows.half_seen())

    def _has_half_news(self) -> bool:
        """Tell whether `_look_at_half` has something to look at; one lookup at a time."""
        if time.monotonic() < self._half_due_s:
            return False
        if self._half.table.log.has_news():
            return True
        self._half_due_s = time.monotonic() + self._half_interval_s
        return False

    def _decided(self, claims: pa.Table, unknown: pa.Table) -> Settlement:
        """Settle the claims; set transactions aside that make settling fail."""

        def decide(held: Collection[str]) -> Settlement:
            now_ms, waiting = self._clock.now_ms(), Waiting(held, unknown=unknown)
            tables = (claims, self._half, self._settled)
            received_ms = partial(self._op.received_ms, clock=self._clock)
            return settle(*tables, now_ms, self._schedule, waiting, received_ms=received_ms)

        return settle_all_others(decide, claims, self._waiting.held)

    # --- topics -----------------------------------------------------------------------------------

    def _publish(self, *, goes_on: bool = False) -> PublishResult:
        """Bring every topic from the low-water mark to the mark of the settled log.

        If it `goes_on`, the last step is still written when this returns: see `_end_writing`.
        """
        mark, low = self._settled.mark, self._progress.low_water_version
        result = PublishResult()
        if mark > low:
            for step in self._steps(low, mark):
                result += self._end_writing()
                while self._progress.low_water_version < step:
                    result += self._publish_step(step, goes_on=goes_on)
                    if self._writing is not None and self._writing.goal.mark < step:
                        result += self._end_writing()
                    elif self._writing is not None:
                        break
        return result if goes_on else result + self._end_writing()

    def _steps(self, after: int, through: int) -> Iterator[int]:
        """Split a range into op versions with about `publish_batch_rows` facts between two."""
        rows = self._store.config.publish_batch_rows
        while through - after > FIRST_SPAN_VERSIONS:
            after = self._settled.step(after, through, rows)
            yield after
        if after < through:
            yield through

    def _publish_step(self, mark: int, *, goes_on: bool = False) -> PublishResult:
        """Plan what is missing up to a mark, or up to where it is `publish_batch_rows` messages.

        Write it, or begin to: see `_end_writing`.
        """
        low = self._progress.low_water_version
        facts = self._settled.to_show(low, mark)
        if not facts.num_rows:
            self._advance_to(mark, urgent=False)
            return PublishResult()
        self._half.table.refresh()
        self._put_back_halves()
        reach_deliveries(self._clock, facts)
        begun_s = time.monotonic()
        goal = self._goal(facts, low, mark)
        if goal is None:
            return PublishResult()
        reached(FailPoint.PLAN_MADE)
        names = [name for name in goal.plans.topics() if name not in self._progress.parked]
        # With one thread a publisher does one thing after the other, and so it does while it plans
        # pieces, for which it needs the half log.
        beside = goes_on and self._store.config.publish_threads > 1 and goal.plans.is_whole
        write = self._topics.try_each if beside else self._topics.write_each
        self._writing = Writing(goal, begun_s, write(names, goal), may_try_again=beside)
        return PublishResult() if beside else self._end_writing()

    def _goal(
        self, facts: pa.Table, after: int, mark: int, parked: str | None = None
    ) -> Goal | None:
        """Plan these facts; set aside the transactions that cannot be read.

        Returns: the goal; None if messages are missing and another publisher was further. Retention
            may have taken what it has published, to all topics or to the one that is `parked`.
        """
        plans = self._plans(facts, after)
        self._removed_rows.check_half()
        if plans.missing:
            if self._join_progress() if parked is None else self._topics.mark(parked) > after:
                return None
            self._waiting.keep_problems(plans.missing, after)
        mark = mark if plans.through is None else plans.through
        fingerprint = (
            self._settled.fingerprint
            if mark == self._settled.mark
            else commit_fingerprint(self._op.table, mark)
        )
        return Goal(plans, after, mark, fingerprint)

    def _plans(self, facts: pa.Table, after: int) -> Plans:
        """Plan these facts; set aside the transactions that make planning fail."""
        rows = self._store.config.publish_batch_rows

        def plan_some(some_ids: Collection[str]) -> Plans:
            some = facts_about(facts, some_ids)
            return plans_of(self._half, some, self._schedule, piece_rows=rows)

        try:
            return plans_of(self._half, facts, self._schedule, piece_rows=rows)
        except NOBODYS_FAULT:
            raise
        except Exception:
            ids = set(pc.unique(facts["transaction_id"]).to_pylist())
            while problems := culprits(list(ids), plan_some):
                self._waiting.keep_problems(problems, after)
                ids -= problems.keys()
                try:
                    return plan_some(ids)
                except NOBODYS_FAULT:
                    raise
                except Exception:  # noqa: BLE001, S112 - others came to light in a later piece
                    continue
            raise

    def _end_writing(self) -> PublishResult:
        """Wait until the topics of the last step are written; then advance to its mark."""
        writing = self._writing
        if writing is None:
            return PublishResult()
        writing.wait()
        self._writing = None
        result = self._written(writing)
        latency = publish_latency(writing.goal.plans.facts, self._clock.now_ms())
        result += PublishResult(publish_latency=latency)
        self._published_s = time.monotonic() - writing.begun_s
        reached(FailPoint.TOPICS_DONE)
        self._advance_to(writing.goal.mark, urgent=result.parked > 0)
        return result

    def _written(self, writing: Writing) -> PublishResult:
        """Add up the results of the topics; park each that failed.

        Raises: SourceRestoredError, after all other topics.
        """
        goal = writing.goal
        result = PublishResult(set_aside=len(goal.plans.missing))
        restored: SourceRestoredError | None = None
        for name in writing.tasks:
            try:
                result += writing.result_of(name, self._topics.write)
            except SourceRestoredError as error:
                restored = error
            except BaseException as error:  # noqa: BLE001 - one topic must not stop the others
                self._park(name, goal.after, error)
                result += PublishResult(parked=1)
        if restored is not None:
            raise restored
        return result

    def _advance_to(self, mark: int, *, urgent: bool) -> None:
        """Raise the low-water mark; write the progress at most once a second, or if it is urgent.

        Progress that is written late costs reads after a restart.
        """
        self._progress = self._progress.advanced(mark, self._op.table)
        if urgent or time.monotonic() - self._kept_at_s >= PROGRESS_INTERVAL_S:
            self.keep_progress()

    # --- parked topics ----------------------------------------------------------------------------

    def _park(self, name: str, from_version: int, error: BaseException) -> None:
        """Park a topic that failed. Raises: the error, if the process cannot go on after it."""
        if not is_survivable(error):
            raise error
        earlier, now_ms = self._progress.parked.get(name), self._clock.now_ms()
        # An error of Arrow may quote a body; of that only its type is kept.
        parked = ParkedTopic.after(earlier, from_version, problem_of(error), now_ms)
        logger.error("topic %s is parked: %s", name, parked.reason)
        self._pauses.tried(name, now_ms)
        self._topics.forget(name)
        self._progress = self._progress.with_parked(name, parked)
        reached(FailPoint.TOPIC_PARKED)

    def _retry_parked(self) -> PublishResult:
        """Let parked topics catch up from the version at which they were parked."""
        now_ms, result = self._clock.now_ms(), PublishResult()
        for name, parked in list(self._progress.parked.items()):
            if self._pauses.is_due(name, parked.attempts, now_ms):
                result += self._catch_up(name, parked)
                self.keep_progress()
        return result

    def _catch_up(self, name: str, parked: ParkedTopic) -> PublishResult:
        """Write what a parked topic lacks, step by step; park it again if that fails."""
        mark, result = min(self._settled.mark, self._progress.low_water_version), PublishResult()
        try:
            self._topics.expect([name])
            for step in self._steps(parked.from_version, mark):
                while parked.from_version < step:
                    written, reached_version = self._catch_up_to(name, parked.from_version, step)
                    result += written
                    parked = replace(parked, from_version=reached_version)
                    self._progress = self._progress.with_parked(name, parked)
        except SourceRestoredError:
            raise
        except BaseException as error:  # noqa: BLE001 - one topic must not stop the others
            self._park(name, parked.from_version, error)
        else:
            self._end_parking(name, mark)
        return result

    def _catch_up_to(self, name: str, after: int, step: int) -> tuple[PublishResult, int]:
        """Write what a parked topic lacks up to one step, or a part of it.

        Returns: the result, and the version up to which the topic is complete.
        """
        # Another publisher may have caught up already, and retention taken what it has published.
        after = max(after, self._topics.mark(name))
        if after >= step:
            return PublishResult(), step
        facts = self._settled.to_show(after, step)
        self._half.table.refresh()
        self._put_back_halves()
        goal = self._goal(facts, after, step, name)
        if goal is None:
            return PublishResult(), after
        return self._topics.write(name, goal), goal.mark

    def _end_parking(self, name: str, mark: int) -> None:
        """Let the topic go on with the others, if it is where they are."""
        self._pauses.forget(name)
        if mark < self._progress.low_water_version:
            # Another publisher is further: between the two marks this topic still lacks messages.
            return
        logger.info("topic %s caught up and is not parked any more", name)
        self._progress = self._progress.without_parked(name)

    # --- transactions that are set aside ----------------------------------------------------------

    def _retry_waiting(self) -> PublishResult:
        """Settle and publish the transactions that were set aside and can be read again."""
        low = self._progress.low_water_version
        if self._settled.mark > low or not self._waiting.is_due():
            return PublishResult()
        check_half(self._half.table.refresh(), self._settled)
        self._put_back_halves()
        return self._waiting.retry(self._topics, low, self._progress.parked)

    # --- progress ---------------------------------------------------------------------------------

    def _join_progress(self) -> bool:
        """Join the progress with what was kept; tell whether another publisher was further."""
        low = self._progress.low_water_version
        self._kept = self._register.read()
        self._op.table.refresh()
        self._progress = merged_progress(self._progress, self._kept.value, self._op.table)
        self._topics.ends.update(self._progress.ends)
        return self._progress.low_water_version > low


@dataclass(slots=True)
class Span:
    """The number of commits of the next range; it follows how many make a full one."""

    versions: int = FIRST_SPAN_VERSIONS

    def adapt(self, versions: int, *, is_full: bool) -> None:
        """Learn from a range of so many commits whether it was full."""
        if is_full:
            self.versions = versions
        elif versions >= self.versions:
            self.versions = min(self.versions * 2, MAX_SPAN_VERSIONS)


@dataclass(slots=True)
class Rivals:
    """Counts the commits to the settled log that were refused in a row."""

    attempts: int
    _lost_in_a_row: int = 0

    def pause(self, published_s: float, stopping: threading.Event) -> None:
        """Pause for a random part of the last publish time: a faster publisher is at work."""
        stopping.wait(random.random() * min(published_s, PAUSE_MAX_S))  # noqa: S311

    def refused(self, refusal: CommitRefusedError, *, has_moved: bool) -> None:
        """Raise CommitConflictError after so many refusals without a moved mark.

        If the mark has not moved, no publisher won a race: the table cannot be appended to.
        """
        self._lost_in_a_row = 0 if has_moved else self._lost_in_a_row + 1
        if self._lost_in_a_row >= self.attempts:
            problem = f"refused {self._lost_in_a_row} commits in a row; check the table's log"
            self._lost_in_a_row = 0
            raise CommitConflictError("settled", problem) from refusal


@dataclass(frozen=True, slots=True, eq=False)
class Writing:
    """The step of a publisher whose topics are being written, or have been.

    Attributes:
        begun_s: when the step began, by `time.monotonic`.
        tasks: the result of each topic.
        may_try_again: whether `TopicWriter.write` is to be called for a topic whose task failed.
    """

    goal: Goal
    begun_s: float
    tasks: Mapping[str, Future[PublishResult]]
    may_try_again: bool

    def wait(self) -> None:
        """Wait until no topic is written any more."""
        wait(self.tasks.values())

    def result_of(self, name: str, write: Callable[[str, Goal], PublishResult]) -> PublishResult:
        """Return the result of a topic's task, or else of `write`. Raises: what they raise."""
        try:
            return self.tasks[name].result()
        except Exception:
            if not self.may_try_again:
                raise
            return write(name, self.goal)


class IdleTopics:
    """The turns of one publisher. An operator who restores a topic starts a publisher after it."""

    def __init__(self, topics: TopicWriter, *, is_remote: bool) -> None:
        """Look at once, and after each interval."""
        self._topics = topics
        self._interval_s = REMOTE_INTERVAL_S if is_remote else INTERVAL_S
        self._names: deque[str] = deque()
        self._count, self._next_s = FIRST_TOPICS, time.monotonic()

    def behind(self, parked: Container[str]) -> Iterator[tuple[str, TopicBehindError]]:
        """Yield the topics that were further before, of those whose turn it is.

        Raises: SourceRestoredError.
        """
        if time.monotonic() < self._next_s:
            return
        for name in self._next_names():
            try:
                if name not in parked:
                    self._topics.check(name)
            except TopicBehindError as error:
                yield name, error
            except SourceRestoredError:
                raise
            except StorageError as error:
                # Who writes it has to act; a look can wait.
                logger.warning("topic %s could not be looked at: %s", name, error)
        self._count, self._next_s = 1, time.monotonic() + self._interval_s

    def _next_names(self) -> list[str]:
        """Take the topics whose turn it is; begin again with all of them after the last."""
        if not self._names:
            # What waits in the schedule is missed by nobody until it is due.
            names = sorted(self._topics.ends, key=lambda name: (name != SCHEDULE_TOPIC, name))
            self._names.extend(names)
        return [self._names.popleft() for _ in range(min(self._count, len(self._names)))]
