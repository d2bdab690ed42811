"""The publisher: turn claims into facts, and facts into visible messages, each exactly once.

`PublishRound.advance` does the work; a timer calls it: a streaming query, or a thread without
Spark. Nothing depends on a checkpoint: the mark of each table says how far it follows the op log.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import TYPE_CHECKING

from txmq.errors import (
    ConfigError,
    EnvironmentProblemError,
    SourceRestoredError,
    TxmqError,
    shown,
)
from txmq.ground.clock import Clock
from txmq.ground.fail_points import FailPoint, reached
from txmq.ground.handles import (
    OfOneProcess,
    Restarting,
    Running,
    TimedRounds,
    TurnHandle,
    stopping_start,
)
from txmq.ground.sessions import is_connect, spark_room
from txmq.listeners.hooks import Hooks
from txmq.publish.announcement import PublishWatch
from txmq.publish.engines import EngineChoice
from txmq.publish.round import PublishRound
from txmq.publish.topic_writer import PublishResult
from txmq.store.store import check_store
from txmq.store.store_clock import StoreClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from txmq.ground.sessions import SparkSession
    from txmq.listeners.hooks import Hook
    from txmq.store.store import Store

logger = logging.getLogger(__name__)

ERROR_PAUSE_S = 1.0


class Publisher(OfOneProcess):
    """Settles and publishes: it follows the op log of a store.

    Several publishers may run on one store: for each commit one of them wins, and the others go on
    from there. A crash or a second publisher publishes no message twice (R39).

    Args:
        store: the store to publish.
        spark: a session; with it `start()` runs on a streaming query, and Spark copies large
            rounds (`payload_engine`). Without it the publisher needs no Java.
        clock: the clock of this machine; facts and messages carry the store's time (decision
            0031).
        name: the name in logs, threads and Spark's query; a random one by default.
        hooks: are told of messages with a trace context that became visible.

    Raises: HookError for an object among `hooks` that is no hook; ConfigError for another name.

    Attributes:
        total: the sum of the results since this object was made.
        last_error: the error that a running publisher is trying to get past; None if all is well.

    Reads: op, half, settled, the schedule, state/publisher. Writes: settled, topics, the schedule,
    state/publisher.

    Example:
        >>> Publisher(store).run_once().published
        1
    """

    def __init__(
        self,
        store: Store,
        *,
        spark: SparkSession | None = None,
        clock: Clock | None = None,
        name: str | None = None,
        hooks: Iterable[Hook] = (),
    ) -> None:
        """Open nothing."""
        check_store(store)
        if name is not None and not isinstance(name, str):
            raise ConfigError([f"name must be a text, not {shown(name)}"])
        self.store = store
        self.name = name or f"publisher-{uuid.uuid4().hex[:8]}"
        self.total = PublishResult()
        self.last_error: TxmqError | None = None
        self._spark, self._watch = spark, PublishWatch(Hooks(hooks))
        # Its times are judged by others: it stamps them by the clock that all share.
        self._clock: Clock = StoreClock.of(store, clock)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._round: PublishRound | None = None
        self._final: SourceRestoredError | None = None

    def run_once(self) -> PublishResult:
        """Settle and publish all claims that are in the op log now, then return.

        Commits: for each range of claims one to settled and one to each topic that gets messages;
        one to state/publisher, if the progress changed. A topic is made by its first message. If
        there is nothing new, there is no commit. A retry goes on where the last call ended, also
        after a crash.

        A topic that cannot be written is parked, logged and counted in the result; a later call
        tries it again after `park_retry_interval_s`. So is a transaction that cannot be read, or
        that no file can take: it is set aside, and all others go on.

        Returns: what this call did.

        Raises:
            SourceRestoredError: the op log was restored or made anew, or what is set aside went
                back.
            CommitConflictError: the settled log refuses each commit, and no other publisher
                makes one.
            PayloadMissingError: more transactions cannot be read than are set aside.
            StorageError: a log cannot be read or written.
            EnvironmentProblemError: the setting `payload_engine` is spark, and there is no session.
        """
        # A stop() of the running service does not stop this call.
        return self._run_until(threading.Event())

    def start(self) -> Restarting:
        """Catch up as `run_once()`, then follow the op log until `stop()` of the handle.

        With a session the rounds run in the micro-batches of a streaming query, else in a thread;
        in a thread with Spark Connect too, which copies large rounds all the same.
        Commits: as `run_once`. An error that may go away is logged, kept in `last_error`, and tried
        again after a second. A query that breaks is started again. A restored op log, or the end of
        Spark's Java process, ends the service: see `is_alive` and `exception` of the handle.

        Returns: a handle with `stop()`, `is_alive` and `exception`; `stop()` returns after the
            round that is running.

        Raises: as `run_once`, and Spark's own error if the query cannot be started.
        """
        self._stopping.clear()
        self._final = None
        stopping = stopping_start()
        self._run_until(stopping)
        if stopping.is_set():
            self._stopping.set()
        has_batches = self._spark is not None and not is_connect(self._spark)
        timer = self._stream_timer if has_batches else self._thread_timer
        return Restarting(timer, self._stopping, self._is_final)

    def _run_until(self, stopping: threading.Event) -> PublishResult:
        """Run one round until `stopping`, and write the progress."""
        with self._lock:
            result = self._advance(stopping)
            self._rounds().keep_progress()
        return result

    def _is_final(self, failure: BaseException | None) -> bool:
        """Tell whether a new timer cannot repair it: the op log is another, or Java has ended."""
        return self._final is not None or isinstance(failure, EnvironmentProblemError)

    def _stream_timer(self) -> Running:
        timer: Running = spark_room().start_timer(self._spark, self.store, self._timed())
        return timer

    def _thread_timer(self) -> TurnHandle:
        timer = TurnHandle(self._timed())
        timer.begin()
        return timer

    def _timed(self) -> TimedRounds:
        return TimedRounds(self.name, self._run_rounds, self._stopping, self._lock)

    def _run_rounds(self) -> None:
        """Run rounds at a tick of the timer."""
        reached(FailPoint.TIMER_FIRED)
        with self._lock:
            self._drain()

    def _drain(self) -> None:
        """Run rounds for `publish_drain_s`: a look at the log costs less than a trigger."""
        deadline_s = time.monotonic() + self.store.config.publish_drain_s
        while not self._stopping.is_set():
            self._try(lambda: self._advance(self._stopping))
            if time.monotonic() >= deadline_s:
                break
            if self.last_error is None:
                self._try(lambda: self._rounds().wait_for_news(self._stopping, deadline_s))
        if self.last_error is None:
            self._try(lambda: self._rounds().keep_progress())

    def _try(self, work: Callable[[], object]) -> None:
        """Log an error that another round may get past; raise an error that ends the query."""
        try:
            work()
            self.last_error = None
        except SourceRestoredError as error:
            self._final = error
            raise
        except TxmqError as error:
            logger.exception("%s: a round failed; trying again", self.name)
            self.last_error = error
            self._round = None
            self._stopping.wait(ERROR_PAUSE_S)

    def _advance(self, stopping: threading.Event) -> PublishResult:
        """Run one round, and add its result to `total`."""
        result = self._rounds().advance(stopping)
        self.total = self.total + result
        return result

    def _rounds(self) -> PublishRound:
        """Return the round; open it anew after an error."""
        if self._round is None:
            engines = EngineChoice(self.store.config, self._spark)
            self._round = PublishRound(self.store, self._clock, engines, self._watch)
        return self._round
