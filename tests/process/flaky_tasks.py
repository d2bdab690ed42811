"""A publisher whose Spark tasks fail: `python -m tests.process.flaky_tasks LOCATION FAILURES`.

Each task fails at its first attempt, after it has written its files; Spark tries it again. It
leaves a file in FAILURES for each such failure.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txmq.publish.publisher import Publisher
from txmq.spark.payload_engine import SparkEngine
from txmq.spark.session import local_session
from txmq.store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa


def main(location: str, failures: str) -> None:
    spark = local_session(master="local[2,4]", for_minutes=True)
    outcomes = SparkEngine._outcomes

    def fail_once(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        task = TaskContext.get()
        assert task is not None
        for batch in batches:
            yield batch
            if task.attemptNumber() == 0:
                Path(failures, str(task.taskAttemptId())).touch()
                raise RuntimeError("this task fails once")

    def flaky(self: SparkEngine, *arguments: Any) -> Any:
        rows = outcomes(self, *arguments)
        return rows.mapInArrow(fail_once, rows.schema)

    SparkEngine._outcomes = flaky  # type: ignore[method-assign]
    config = Store.open(location).config.replace(payload_engine="spark")
    Publisher(Store.open(location, config), spark=spark).run_once()


if __name__ == "__main__":
    main(*sys.argv[1:])
