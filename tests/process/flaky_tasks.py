"""Spark tasks that fail: `python -m tests.process.flaky_tasks LOCATION FAILURES`.

A producer sends 20 rows of a DataFrame, and a publisher copies all messages by executors. Each task
fails at its first attempt, after it has written its files; Spark tries it again. It leaves a file
in FAILURES for each such failure.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txmq.producer.producer import TransactionProducer
from txmq.publish.publisher import Publisher
from txmq.spark import dataframe, payload_engine
from txmq.spark.executors import written_files
from txmq.spark.session import local_session
from txmq.store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

FRAME_TOPIC, FRAME_ROWS = "frames", 20


def main(location: str, failures: str) -> None:
    spark = local_session(master="local[2,4]", for_minutes=True)

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        for batch in batches:
            yield batch
            if task.attemptNumber() == 0:
                Path(failures, str(task.taskAttemptId())).touch()
                raise RuntimeError("this task fails once")

    def flaky(outcomes: Any, folder: Any) -> Any:
        return written_files(outcomes.mapInArrow(fail_once, outcomes.schema), folder)

    dataframe.written_files = payload_engine.written_files = flaky
    store = Store.open(location)
    store = store.with_settings(store.config.replace(payload_engine="spark"))
    producer = TransactionProducer(store, producer_group="frames")
    with producer, producer.begin_transaction() as transaction:
        rows = spark.range(FRAME_ROWS).selectExpr("cast(id as string) AS body")
        transaction.send_dataframe(rows, topic=FRAME_TOPIC)
        transaction.prepare()
        transaction.commit()
    Publisher(store, spark=spark).run_once()


if __name__ == "__main__":
    main(*sys.argv[1:])
