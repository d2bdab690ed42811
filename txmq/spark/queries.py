"""Streaming queries that services run: started, stopped between two micro-batches, told apart.

Java may end under Python at any moment; what then fails is told by an error of txmq.
"""

from __future__ import annotations

import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from txmq.errors import EnvironmentProblemError
from txmq.ground.handles import TimedRounds, caused, ended
from txmq.store.store import Store, service_checkpoint_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STOP_WAIT_S = 120.0
STOP_POLL_S = 0.01
TIMER_ROWS_PER_S = 1


def start_timer(spark: SparkSession, store: Store, rounds: TimedRounds) -> StreamHandle:
    """Start a query without data whose micro-batches run the rounds of a publisher.

    The checkpoint is in the store's folder.
    Raises: EnvironmentProblemError where Spark's Java process has ended, and Spark's own errors.
    """
    # Nothing depends on the checkpoint of the timer, so each start has its own.
    checkpoint = service_checkpoint_location(store, f"{rounds.name}-{uuid.uuid4().hex[:8]}")

    def on_timer(batch: DataFrame, batch_id: int) -> None:  # noqa: ARG001 - Spark's names
        with batch_of_spark():
            rounds.run()

    # Not a stream over the op log: Spark would read its commits, which a round reads again.
    with end_of_java_told():
        timer = spark.readStream.format("rate").option("rowsPerSecond", TIMER_ROWS_PER_S).load()
        query = (
            timer.writeStream.foreachBatch(on_timer)
            .queryName(f"txmq-{rounds.name}")
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="0 seconds")
            .start()
        )
    return StreamHandle(
        query, rounds.stopping, rounds.in_run, lambda: forget_checkpoint(checkpoint)
    )


class StreamHandle:
    """A streaming query whose batches check a stop flag."""

    def __init__(
        self,
        query: Any,
        stopping: threading.Event,
        in_batch: threading.Lock,
        after: Callable[[], None],
    ) -> None:
        """Hold a query whose batches take `in_batch`; `after` is called when all has ended."""
        self._query = query
        self._stopping = stopping
        self._in_batch = in_batch
        self._after = after

    def stop(self) -> None:
        """Stop between two micro-batches; inside one, `query.stop()` can overflow and hang.

        Java may end meanwhile, by the signal that stops this process; then nothing is left to stop.
        """
        self._stopping.set()
        try:
            self._stop_query()
        except Exception as error:
            if not is_without_java(error):
                raise
        self.forget()

    def _stop_query(self) -> None:
        deadline_s = time.monotonic() + STOP_WAIT_S
        while self.is_alive and not self._is_pausing() and time.monotonic() < deadline_s:
            time.sleep(STOP_POLL_S)
        if self.is_alive:
            self._query.stop()

    def forget(self) -> None:
        """Wait for the last batch, then clean up after the ended query.

        The last batch may still run in Python, for example after Java was killed. If the process
        ended under it, the process would die by a signal.
        """
        if self._in_batch.acquire(timeout=STOP_WAIT_S):
            self._in_batch.release()
        self._after()

    @property
    def is_alive(self) -> bool:
        """Whether the query still runs; false where its Java process has ended."""
        try:
            return bool(self._query.isActive)
        except Exception as error:
            if is_without_java(error):
                return False
            raise

    @property
    def exception(self) -> BaseException | None:
        """The failure that ended the query; None if none did."""
        try:
            failure = self._query.exception()
        except Exception as error:
            if is_without_java(error):
                return without_java(error)
            raise
        return failure if isinstance(failure, BaseException) else None

    def _is_pausing(self) -> bool:
        """Tell whether the query waits for its next trigger."""
        return not self._query.status["isTriggerActive"]


@contextmanager
def batch_of_spark() -> Iterator[None]:
    """Turn what is no Exception into one: Spark would wait for ever for its micro-batch."""
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        raise ended("a micro-batch", error) from error


def forget_checkpoint(location: str) -> None:
    """Remove the checkpoint of one start; on an object store maintenance removes it."""
    if "://" not in location:
        shutil.rmtree(location, ignore_errors=True)


@contextmanager
def end_of_java_told() -> Iterator[None]:
    """Turn what a call to Spark raises into EnvironmentProblemError where Java has ended.

    The connection that Java refuses is an OSError, and must not pass for a fault of the storage.
    """
    try:
        yield
    except Exception as error:
        if is_without_java(error):
            raise without_java(error) from error
        raise


def check_java(spark: SparkSession) -> None:
    """Ask Java for a sign of life. Raises: EnvironmentProblemError where it has ended."""
    with end_of_java_told():
        _ = spark.streams.active


def is_without_java(error: Exception) -> bool:
    """Tell whether a call to Spark failed because its Java process has ended."""
    if isinstance(error, OSError) or find_spec("py4j") is None:
        return isinstance(error, OSError)
    from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

    return isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)


def without_java(cause: Exception) -> EnvironmentProblemError:
    """Return the error for a Java process that has ended."""
    problem = EnvironmentProblemError(
        "Spark's Java process has ended",
        "Start the service again; nothing is lost. Was it killed, or out of memory?",
    )
    return caused(problem, cause)
