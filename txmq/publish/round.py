"""One round of a publisher: settles new claims, then appends the missing messages to each topic."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from txmq.clock import Clock
from txmq.delta.storage import Table
from txmq.errors import CommitConflictError, CommitRefusedError, TopicConflictError, TxmqError
from txmq.fail_points import FailPoint, reached
from txmq.lifecycle import DeliveryState
from txmq.publish.arrow_engine import ArrowEngine
from txmq.publish.plan import PayloadEngine, Plan, make_plan
from txmq.publish.progress import ParkedTopic, PublishProgress, check_followed, commit_fingerprint
from txmq.publish.settle import settle
from txmq.publish.spark_engine import SparkEngine, suits_spark
from txmq.results import Sum
from txmq.store.store_clock import StoreClock
from txmq.store.topic import TopicLog, offsets_in_order
from txmq.store.typed import body_schema_in

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txmq.store.store import Store

logger = logging.getLogger(__name__)

FIRST_SPAN_VERSIONS = 64
MAX_SPAN_VERSIONS = 4096
PROGRESS_INTERVAL_S = 1.0
RIVAL_PAUSE_MAX_S = 0.1
LARGE_ROUND_ROWS = 100_000


@dataclass(frozen=True, slots=True)
class PublishResult(Sum):
    """The counts of one call.

    Attributes:
        settled: new facts.
        published: messages that were appended to topics, the schedule or the dead letters.
        settled_commits: commits to the settled log.
        topic_commits: commits to topics.
        refused: commits that were refused because another publisher was faster.
        parked: topics that could not be written.
    """

    settled: int = 0
    published: int = 0
    settled_commits: int = 0
    topic_commits: int = 0
    refused: int = 0
    parked: int = 0


class EngineChoice:
    """Chooses the engine that copies a plan."""

    def __init__(self, setting: str, spark_bytes: int, spark: SparkSession | None) -> None:
        """`setting` is `payload_engine`; with auto, Spark copies plans of `spark_bytes` or more."""
        self._arrow = ArrowEngine()
        self._spark = None if spark is None and setting != "spark" else SparkEngine(spark)
        self._setting, self._spark_bytes = setting, spark_bytes

    def engine_for(self, plan: Plan, topic: Table) -> PayloadEngine:
        """The engine for the rows of one topic."""
        # Only the Arrow engine can turn bodies into columns.
        suits = suits_spark(plan) and body_schema_in(topic) is None
        if self._spark is None or self._setting == "arrow" or not suits:
            return self._arrow
        if self._setting == "spark" or plan.size_bytes() >= self._spark_bytes:
            return self._spark
        return self._arrow


class PublishRound:
    """The table handles and the progress of one publisher. Not safe for several threads."""

    def __init__(self, store: Store, clock: Clock, engines: EngineChoice, name: str) -> None:
        """Open the logs and read the progress; `name` is part of the names of its threads."""
        self._store, self._engines, self._name = store, engines, name
        self._clock = StoreClock.of(store, clock)
        self._logs = store.tables.logs()
        self._half, self._op = self._logs.half, self._logs.op
        self._settled, self._schedule = self._logs.settled, self._logs.schedule
        self._register = store.tables.register("publisher")
        self._topics: dict[str, TopicLog] = {}
        self._span = FIRST_SPAN_VERSIONS
        self._lost_in_a_row = 0
        self._published_s = 0.0
        self._kept = self._register.read()
        # The progress may refer to newer commits than this handle of the op log shows.
        self._op.table.refresh()
        self._progress = PublishProgress.from_value(self._kept.value, self._op.table)
        self._kept_at_s = time.monotonic()
        self._writers = ThreadPoolExecutor(store.config.publish_threads, f"txmq-topic-{name}")

    # --- the op log ---------------------------------------------------------------------------

    def wait_for_news(self, stopping: threading.Event, deadline_s: float) -> None:
        """Wait for a new commit of the op log, until the deadline, or until `stopping`."""
        interval_s = self._store.config.publish_poll_interval_s
        while not self._op.table.has_news() and time.monotonic() < deadline_s:
            if stopping.wait(interval_s):
                return

    def advance(self, stopping: threading.Event) -> PublishResult:
        """Settle and publish, one range of commits after the other, up to the newest claim."""
        self._logs.refresh_claims()
        self._progress.check_source(self._op.table)
        check_followed(self._op.table, self._settled)
        latest = self._op.table.version
        result = self._publish()
        while self._settled.mark < latest and not stopping.is_set():
            settled = self._settle(latest)
            if settled.refused:
                self._pause_after_refusal(stopping)
            result = result + settled + self._publish()
        self._retry_parked()
        return result

    def _settle(self, latest: int) -> PublishResult:
        after = self._settled.mark
        end = min(latest, after + self._span)
        claims = self._op.between(after, end)
        reached(FailPoint.CLAIMS_READ)
        self._half.table.refresh()
        now_ms = self._clock.now_ms()
        received_ms = partial(self._op.received_ms, clock=self._clock)
        settlement = settle(
            claims, self._half, self._settled, now_ms, self._schedule, received_ms=received_ms
        )
        self._adapt_span(claims.num_rows, end - after)
        reached(FailPoint.FACTS_DECIDED)
        try:
            self._settled.swap(settlement.facts, end, commit_fingerprint(self._op.table, end))
        except CommitRefusedError as error:
            self._settled.table.refresh()
            self._check_that_mark_moves(after, error)
            return PublishResult(refused=1)
        reached(FailPoint.FACTS_COMMITTED)
        return PublishResult(settled=settlement.facts.num_rows, settled_commits=1)

    def _pause_after_refusal(self, stopping: threading.Event) -> None:
        """Pause for a random part of the last publish time.

        Work in parallel with a faster publisher would only be refused.
        """
        pause_s = random.random() * min(self._published_s, RIVAL_PAUSE_MAX_S)  # noqa: S311
        stopping.wait(pause_s)

    def _check_that_mark_moves(self, after: int, refusal: CommitRefusedError) -> None:
        """Raise CommitConflictError after `commit_attempts` refusals without a moved mark.

        If the mark has not moved, no publisher won a race: the table cannot be appended to.
        """
        self._lost_in_a_row = 0 if self._settled.mark > after else self._lost_in_a_row + 1
        if self._lost_in_a_row >= self._store.config.commit_attempts:
            problem = f"refused {self._lost_in_a_row} commits in a row; check the table's log"
            self._lost_in_a_row = 0
            raise CommitConflictError("settled", problem) from refusal

    def _adapt_span(self, rows: int, versions: int) -> None:
        """Adapt the next range to about `publish_batch_rows`, so that memory stays bounded."""
        if rows > self._store.config.publish_batch_rows:
            self._span = max(1, versions // 2)
        elif versions >= self._span:
            self._span = min(self._span * 2, MAX_SPAN_VERSIONS)

    # --- topics -------------------------------------------------------------------------------

    def _publish(self) -> PublishResult:
        """Bring every topic from the low-water mark to the mark of the settled log."""
        mark, low = self._settled.mark, self._progress.low_water_version
        if mark <= low:
            return PublishResult()
        facts = self._settled.to_show(low, mark)
        result = PublishResult()
        if facts.num_rows:
            self._half.table.refresh()
            _reach_deliveries(self._clock, facts)
            begun_s = time.monotonic()
            plan = make_plan(self._half, facts, self._schedule)
            reached(FailPoint.PLAN_MADE)
            names = [name for name in plan.topics() if name not in self._progress.parked]
            result = self._write_topics(names, plan, mark)
            self._published_s = time.monotonic() - begun_s
            reached(FailPoint.TOPICS_DONE)
        if facts.num_rows + result.published >= LARGE_ROUND_ROWS:
            # Arrow keeps freed memory, and a large round is rarely followed by another one.
            pa.default_memory_pool().release_unused()
        self._progress = self._progress.advanced(mark, self._op.table)
        self._keep_progress_sometimes(urgent=result.parked > 0)
        return result

    def _write_topics(self, names: Iterable[str], plan: Plan, mark: int) -> PublishResult:
        low = self._progress.low_water_version
        tasks = {
            name: self._writers.submit(self._write_topic, name, plan, low, mark) for name in names
        }
        result = PublishResult()
        for name, task in tasks.items():
            try:
                result = result + task.result()
            except (TxmqError, OSError, pa.ArrowException) as error:
                self._park(name, low, error)
                result = result + PublishResult(parked=1)
        return result

    def _write_topic(self, name: str, plan: Plan, after: int, mark: int) -> PublishResult:
        """Append the missing messages to a topic exactly once, also beside other publishers."""
        topic = self._topic(name)
        refused = 0
        for _ in range(self._store.config.commit_attempts):
            topic.table.refresh()
            missing = plan.of_topic(name, max(after, topic.mark))
            if mark <= topic.mark or missing.rows.num_rows == 0:
                return PublishResult(refused=refused)
            try:
                self._append(topic, missing, mark)
            except CommitRefusedError:
                refused += 1
            else:
                count = missing.rows.num_rows
                return PublishResult(published=count, topic_commits=1, refused=refused)
        raise CommitConflictError(name, f"other publishers were faster {refused} times")

    def _append(self, topic: TopicLog, missing: Plan, mark: int) -> None:
        queues = missing.rows["queue_id"]
        begin = topic.next_offsets(pa.compute.unique(queues).to_pylist())
        offsets, next_offsets = offsets_in_order(queues, begin)
        engine = self._engines.engine_for(missing, topic.table)
        files = engine.write(topic.table, missing, pa.array(offsets), self._clock.now_ms())
        reached(FailPoint.PAYLOAD_WRITTEN)
        topic.swap_files(files, mark, next_offsets)
        reached(FailPoint.TOPIC_COMMITTED)

    def _topic(self, name: str) -> TopicLog:
        if name not in self._topics:
            self._check_case(name)
            topic = self._store.tables.topic_log(name, self._op.table.table_id)
            if not topic.table.exists():
                self._store.tables.create_topic(name)
                reached(FailPoint.TOPIC_CREATED)
            self._topics[name] = topic
        return self._topics[name]

    def _check_case(self, name: str) -> None:
        for other in self._store.topics():
            if other != name and other.lower() == name.lower():
                raise TopicConflictError("topic", name, f"the topic {other} differs only in case")

    # --- parked topics ------------------------------------------------------------------------

    def _park(self, name: str, from_version: int, error: Exception) -> None:
        before = self._progress.parked.get(name)
        parked = ParkedTopic(
            before.from_version if before else from_version,
            f"{type(error).__name__}: {error}"[:500],
            self._clock.now_ms(),
            before.attempts + 1 if before else 1,
        )
        logger.error("topic %s is parked: %s", name, parked.reason)
        self._topics.pop(name, None)
        self._progress = self._progress.with_parked(name, parked)
        reached(FailPoint.TOPIC_PARKED)

    def _retry_parked(self) -> None:
        """Let parked topics catch up from the version at which they were parked."""
        now_ms, interval_s = self._clock.now_ms(), self._store.config.park_retry_interval_s
        for name, parked in list(self._progress.parked.items()):
            if parked.is_due(now_ms, interval_s):
                self._catch_up(name, parked)
                self.keep_progress()

    def _catch_up(self, name: str, parked: ParkedTopic) -> None:
        mark = min(self._settled.mark, self._progress.low_water_version)
        try:
            facts = self._settled.to_show(parked.from_version, mark)
            self._half.table.refresh()
            plan = make_plan(self._half, facts, self._schedule)
            self._write_topic(name, plan, parked.from_version, mark)
        except (TxmqError, OSError, pa.ArrowException) as error:
            self._park(name, parked.from_version, error)
        else:
            logger.info("topic %s caught up and is not parked any more", name)
            self._progress = self._progress.without_parked(name)

    # --- progress -----------------------------------------------------------------------------

    def _keep_progress_sometimes(self, *, urgent: bool) -> None:
        """Write the progress at most once a second; a late one costs reads after a restart."""
        if urgent or time.monotonic() - self._kept_at_s >= PROGRESS_INTERVAL_S:
            self.keep_progress()

    def keep_progress(self) -> None:
        """Write the low-water mark and the parked topics: one commit, if they changed."""
        value = self._progress.to_value()
        if value == self._kept.value:
            return
        try:
            self._kept = self._register.swap(self._kept, value, self._clock.now_ms())
        except CommitRefusedError:
            self._kept = self._register.read()
            self._op.table.refresh()
            self._progress = merged_progress(self._progress, self._kept.value, self._op.table)
        reached(FailPoint.PROGRESS_KEPT)
        self._kept_at_s = time.monotonic()


def _reach_deliveries(clock: StoreClock, facts: pa.Table) -> None:
    """Let the clock reach the times of deliveries: that of their service may be a little ahead."""
    is_delivered = pc.equal(facts["state"], DeliveryState.DELIVERED.value)
    newest_us = pc.max(facts.filter(is_delivered)["op_timestamp"].cast(pa.int64())).as_py()
    if newest_us is not None:
        clock.not_beyond(-(-newest_us // 1000))


def merged_progress(progress: PublishProgress, value: dict[str, Any], op: Any) -> PublishProgress:
    """Join this publisher's progress with another one's.

    Both are true, so the higher low-water mark counts, and the parked topics of both.
    """
    other = PublishProgress.from_value(value, op)
    further = progress if progress.low_water_version >= other.low_water_version else other
    return replace(further, parked={**other.parked, **progress.parked})
