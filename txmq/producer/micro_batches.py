"""Micro-batches of a stream as transactions: each changes its data and publishes, exactly once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from txmq.clock import timestamp
from txmq.errors import AlreadyResolvedError, LocalTransactionDoneError, LocalTransactionFencedError
from txmq.lifecycle import TransactionState
from txmq.producer.producer import TransactionProducer
from txmq.producer.transaction import Transaction

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter

BATCH_TIME_MS = "__txmq_batch_time_ms"
TRIES = 3
BatchStep = Callable[["DataFrame", Transaction], None]


class BatchTransactions:
    """Makes each micro-batch one transaction: `send`, `prepare()`, `change`, `commit()`.

    A batch that Spark runs again after a crash is the same transaction: halves that are there are
    used, a change that is there is not made again, and what was committed is done. Where the check
    rolled it back meanwhile, the batch is the next attempt. A new checkpoint is new work.

    Args:
        producer: its listener answers for `change`.
        query_name: names the work; keep it as long as the checkpoint.
        send: adds the messages of a batch, at least one, and the same in every run.
        change: the local transaction. It carries the marker (`transaction.delta_options()`,
            `delta_sql()`, `delta_rs()` or `database()`), or a replay would make it twice.

    Not for Spark Connect: its batches run in another process than the producer.

    Example:
        >>> booking = BatchTransactions(producer, query_name="booking", send=tell, change=book)
        >>> booking.write_stream(payments).option("checkpointLocation", folder).start()
    """

    def __init__(
        self, producer: TransactionProducer, *, query_name: str, send: BatchStep, change: BatchStep
    ) -> None:
        """Nothing is read or written yet."""
        self._producer = producer
        self._query_name = query_name
        self._send, self._change = send, change

    def write_stream(self, stream: DataFrame) -> DataStreamWriter:
        """A writer whose foreachBatch is this; give it a checkpoint and a trigger, then start it.

        Batches without rows are left out. A batch that failed stops the query, as any other does;
        start it again.
        """
        import pyspark.sql.functions as F  # noqa: N812

        # Spark keeps a batch's current time beside its offsets, so every replay has the same one.
        # A clock would give another id, and a time kept since the first start becomes too old.
        timed = stream.withColumn(BATCH_TIME_MS, F.unix_millis(F.current_timestamp()))
        return timed.writeStream.foreachBatch(self._run)

    def run(self, batch: DataFrame, batch_id: int, batch_timestamp: datetime) -> None:
        """One micro-batch, by a time that is known from elsewhere and the same in every replay.

        Raises: InvalidMessageError, also for a time older than `file_reserved_time_h`: see whether
            the change is there, then run it once with a higher setting; AlreadyResolvedError where
            it was discarded, or rolled back after its change; what `send` and `change` raise.
        """
        key = f"{self._query_name} {batch_id}"
        for tries_left in reversed(range(TRIES)):
            transaction = self._producer.begin_transaction(
                idempotency_key=key, key_timestamp=batch_timestamp
            )
            try:
                self._try(batch, transaction)
            except LocalTransactionFencedError:
                # Nothing of it is there, nor ever will be: it is over, whoever says so first.
                transaction.rollback()
                if not tries_left:
                    raise
            else:
                return

    def _run(self, batch: DataFrame, batch_id: int) -> None:
        """What Spark calls. Messages and change are made of the same rows, which are read once."""
        import pyspark.sql.functions as F  # noqa: N812

        batch.persist()
        try:
            # Reads every partition: a stateful query must not be left half read.
            time_ms = batch.agg(F.max(BATCH_TIME_MS)).collect()[0][0]
            if time_ms is not None:
                self.run(batch.drop(BATCH_TIME_MS), batch_id, timestamp(time_ms))
        finally:
            batch.unpersist()

    def _try(self, batch: DataFrame, transaction: Transaction) -> None:
        self._send(batch, transaction)
        try:
            transaction.prepare()
        except AlreadyResolvedError as error:
            if error.resolution != TransactionState.COMMITTED.value:
                raise
            return
        with suppress(LocalTransactionDoneError):
            self._change(batch, transaction)
        transaction.commit()
