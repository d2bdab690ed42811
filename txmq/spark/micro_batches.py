"""Runs each micro-batch of a stream as one transaction: a change and its messages, exactly once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from txmq.errors import (
    EnvironmentProblemError,
    LocalTransactionDoneError,
    LocalTransactionFencedError,
)
from txmq.ground.clock import timestamp
from txmq.ground.sessions import is_connect
from txmq.message.lifecycle import TransactionState
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction
from txmq.spark.queries import batch_of_spark

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter


BATCH_TIME_MS = "__txmq_batch_time_ms"
TRIES = 3
BatchStep = Callable[["DataFrame", Transaction], None]


class BatchTransactions:
    """Makes each micro-batch one transaction: `send`, `prepare()`, `change`, `commit()`.

    Retry: a batch that Spark replays after a crash continues its transaction. Halves that are
    durable are used, a change that was made is not made again, and a committed batch is skipped. If
    the check rolled the transaction back, the replay begins the next attempt. A new checkpoint
    counts as new work.

    Commits for each batch: those of `prepare()`, of `change` and of `commit()`.

    With Spark Connect batches run in another process than the producer: call `run` in a loop there.

    Args:
        producer: its listener answers checks about `change`.
        query_name: names the work; keep it as long as the checkpoint, and give it to no other
            query: a batch with the same name, number and time is the same work.
        send: adds the messages of a batch: at least one, and the same in every run.
        change: makes the local transaction. It must carry the marker
            (`transaction.delta_options()`, `delta_sql()`, `delta_rs()` or `database()`), or a
            replay makes it twice.

    Example:
        >>> booking = BatchTransactions(producer, query_name="booking", send=tell, change=book)
        >>> booking.write_stream(payments).option("checkpointLocation", folder).start()
    """

    def __init__(
        self, producer: TransactionProducer, *, query_name: str, send: BatchStep, change: BatchStep
    ) -> None:
        """Read and write nothing yet."""
        self._producer = producer
        self._query_name = query_name
        self._send, self._change = send, change

    def write_stream(self, stream: DataFrame) -> DataStreamWriter:
        """Return a stream writer that runs each micro-batch as a transaction.

        Give it a checkpoint and a trigger, then start it. Batches without rows are skipped. A batch
        that fails stops the query; start the query again, and Spark replays the batch.

        Raises:
            EnvironmentProblemError: the stream is one of Spark Connect.
        """
        if is_connect(stream):
            problem = "Spark Connect runs batches in another process than the producer"
            step = (
                "Read the changes batch by batch, and call run(batch, number, timestamp) for each"
            )
            raise EnvironmentProblemError(problem, step)
        import pyspark.sql.functions as F  # noqa: N812

        # Spark keeps a batch's current time beside its offsets, so every replay has the same time.
        # A clock would give another id; the time of the first start would become too old.
        timed = stream.withColumn(BATCH_TIME_MS, F.unix_millis(F.current_timestamp()))
        return timed.writeStream.foreachBatch(self._on_batch)

    def run(self, batch: DataFrame, batch_id: int, batch_timestamp: datetime) -> None:
        """Run one micro-batch as a transaction; use it in a foreachBatch function of your own.

        Commits: those of `prepare()`, of `change` and of `commit()`. Retry: call it again with the
        same `batch_id` and `batch_timestamp`.

        Args:
            batch: the rows.
            batch_id: as Spark counts it.
            batch_timestamp: with a time zone; the same in every replay of this batch.

        Raises:
            InvalidMessageError: there is no message, or `batch_timestamp` is older than
                `file_reserved_time_h`. For an old batch look whether the change was made; if not,
                run it once with a higher setting.
            AlreadyResolvedError: the transaction was discarded, or rolled back after its change.
            Exception: any error of `send` or `change`.
        """
        key = f"{self._query_name} {batch_id}"
        for tries_left in reversed(range(TRIES)):
            transaction = self._producer.begin_transaction(
                idempotency_key=key, key_timestamp=batch_timestamp
            )
            # A DataFrame is not computed again for a batch that is done.
            if transaction.state is TransactionState.COMMITTED:
                return
            try:
                # Spark holds the error of a batch, and with it the transaction.
                with transaction:
                    self._try(batch, transaction)
            except LocalTransactionFencedError:
                # The fence excludes the change for good, so end the attempt without the check.
                transaction.rollback()
                if not tries_left:
                    raise
            else:
                return

    def _on_batch(self, batch: DataFrame, batch_id: int) -> None:
        with batch_of_spark():
            self._run(batch, batch_id)

    def _run(self, batch: DataFrame, batch_id: int) -> None:
        """Run a batch for Spark; `send` and `change` use the same rows, which are read once."""
        import pyspark.sql.functions as F  # noqa: N812

        batch.persist()
        try:
            # This reads every partition, as a stateful query requires.
            time_ms = batch.agg(F.max(BATCH_TIME_MS)).collect()[0][0]
            if time_ms is not None:
                self.run(batch.drop(BATCH_TIME_MS), batch_id, timestamp(time_ms))
        finally:
            batch.unpersist()

    def _try(self, batch: DataFrame, transaction: Transaction) -> None:
        self._send(batch, transaction)
        transaction.prepare()
        with suppress(LocalTransactionDoneError):
            self._change(batch, transaction)
        transaction.commit()
