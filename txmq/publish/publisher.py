"""Settle and publish: claims become facts, facts become visible messages, each exactly once.

`PublishRound.advance` does it all; the streaming query is only the bell that calls it. Nothing
depends on a checkpoint: every table says by itself how far it follows the op log.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

from txmq.clock import Clock, SystemClock
from txmq.errors import EnvironmentProblemError, SourceRestoredError, TxmqError
from txmq.fail_points import FailPoint, reached
from txmq.handles import Restarting, StreamHandle, TurnHandle, forget_checkpoint
from txmq.publish.round import EngineChoice, PublishResult, PublishRound
from txmq.store.store import service_checkpoint_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txmq.store.store import Store

logger = logging.getLogger(__name__)

BELLS_PER_S = 1
ERROR_PAUSE_S = 1.0


class Publisher:
    """Follows the op log. Several may run on one store: one of them is always first.

    Args:
        store: where the logs are.
        spark: needed by the spark engine; with it `start()` runs on a streaming query.
        name: in the commits that it makes, so that people can tell publishers apart.

    Reads: op, half, settled. Writes: settled, topics, state/publisher.
    """

    def __init__(
        self,
        store: Store,
        *,
        spark: SparkSession | None = None,
        clock: Clock | None = None,
        name: str | None = None,
    ) -> None:
        """Open nothing yet."""
        self.store = store
        self.name = name or f"publisher-{uuid.uuid4().hex[:8]}"
        self.total = PublishResult()
        self.last_error: TxmqError | None = None
        self._spark = spark
        self._clock: Clock = clock or SystemClock()
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._round: PublishRound | None = None
        self._final: SourceRestoredError | None = None

    def run_once(self) -> PublishResult:
        """Settle and publish all that is in the op log now, then return."""
        with self._lock:
            # An earlier stop() of the service is not meant for this call.
            result = self._advance(threading.Event())
            self._rounds().keep_progress()
        return result

    def start(self) -> Restarting:
        """Follow the op log until `stop()`, without Spark in a thread of its own.

        It catches up before it returns.
        """
        self._stopping.clear()
        self._final = None
        self.run_once()
        bell = self._thread_bell if self._spark is None else self._bell
        return Restarting(bell, self._stopping, self._is_final)

    def _is_final(self, failure: BaseException | None) -> bool:
        """Whether no new bell can help: the op log is another, or Java has ended."""
        return self._final is not None or isinstance(failure, EnvironmentProblemError)

    def _bell(self) -> StreamHandle:
        # The bell keeps no promise, so each start has a checkpoint of its own.
        checkpoint = service_checkpoint_location(self.store, f"{self.name}-{uuid.uuid4().hex[:8]}")
        # A stream over the op log itself would plan its commits a second time for nothing.
        spark: Any = self._spark
        bell = spark.readStream.format("rate").option("rowsPerSecond", BELLS_PER_S).load()
        query = (
            bell.writeStream.foreachBatch(self._on_bell)
            .queryName(f"txmq-{self.name}")
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="0 seconds")
            .start()
        )
        return StreamHandle(
            query, self._stopping, self._lock, lambda: forget_checkpoint(checkpoint)
        )

    def _thread_bell(self) -> TurnHandle:
        bell = TurnHandle(self.name, self._ring, self._stopping)
        bell.begin()
        return bell

    def _on_bell(self, batch: DataFrame, batch_id: int) -> None:  # noqa: ARG002 - only the bell
        self._ring()

    def _ring(self) -> None:
        """Go on for a while, for Spark's next trigger costs more than our next look."""
        reached(FailPoint.BELL_RUNG)
        with self._lock:
            self._drain()

    def _drain(self) -> None:
        config = self.store.config
        deadline_s = time.monotonic() + config.publish_drain_s
        while not self._stopping.is_set():
            self._advance_or_wait()
            if time.monotonic() >= deadline_s:
                break
            if self.last_error is None:
                self._rounds().wait_for_news(self._stopping, deadline_s)
        self._rounds().keep_progress()

    def _advance_or_wait(self) -> None:
        """What another look may heal is logged and tried again; the rest ends the query."""
        try:
            self._advance(self._stopping)
            self.last_error = None
        except SourceRestoredError as error:
            self._final = error
            raise
        except TxmqError as error:
            logger.exception("%s could not go on", self.name)
            self.last_error = error
            self._round = None
            self._stopping.wait(ERROR_PAUSE_S)

    def _advance(self, stopping: threading.Event) -> PublishResult:
        result = self._rounds().advance(stopping)
        self.total = self.total + result
        return result

    def _rounds(self) -> PublishRound:
        if self._round is None:
            self._round = PublishRound(self.store, self._clock, self._engines(), self.name)
        return self._round

    def _engines(self) -> EngineChoice:
        return EngineChoice(
            self.store.config.payload_engine,
            self.store.config.payload_engine_spark_bytes,
            self._spark,
        )
