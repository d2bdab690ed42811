"""The broker of the demo: `python -m txmq.ops.demo.broker FOLDER` serves and counts carriers.

It may be killed at any moment, Python and Java together, and started again.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from txmq.ops.broker import Broker, BrokerHandle, run_until_signal
from txmq.ops.demo.books import DepartureListener
from txmq.ops.demo.crew import watch_parent
from txmq.ops.demo.folder import CONSUMER_GROUP, GROUP, DemoFolder, write_json
from txmq.ops.demo.plan import DEPARTED
from txmq.spark.session import local_session
from txmq.spark.streams import Consumer
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


logger = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.5
COUNT_INTERVAL = "2 seconds"


class CarrierCount:
    """A consumer as a user writes it: Structured Streaming over one topic."""

    def __init__(self, folder: DemoFolder, store: Store, spark: SparkSession) -> None:
        """Start nothing yet."""
        self._folder, self._store, self._spark = folder, store, spark
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="txmq-demo-count", daemon=True)

    def start(self) -> None:
        """Count as soon as the topic has its first message."""
        self._thread.start()

    def stop(self) -> None:
        """Return when the counting thread has ended."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_INTERVAL_S):
            if DEPARTED in self._store.topics():
                self._follow(self._query())

    def _follow(self, query: StreamingQuery) -> None:
        while query.isActive and not self._stopping.wait(LOOK_INTERVAL_S):
            pass
        if not query.isActive:
            logger.error("the count per carrier ended and starts again: %s", query.exception())
        query.stop()

    def _query(self) -> StreamingQuery:
        consumer = Consumer(self._store, consumer_group=CONSUMER_GROUP)
        counts = consumer.read_stream(DEPARTED, spark=self._spark).groupBy("tags").count()
        return (
            counts.writeStream.outputMode("complete")
            .foreachBatch(self._keep)
            .option("checkpointLocation", consumer.checkpoint_location(DEPARTED))
            .queryName("txmq-demo-count")
            .trigger(processingTime=COUNT_INTERVAL)
            .start()
        )

    def _keep(self, counts: DataFrame, _batch_id: int) -> None:
        """Write the whole result each time, so that a repeated batch changes nothing."""
        write_json(
            self._folder.carriers_file, {row["tags"]: row["count"] for row in counts.collect()}
        )


def serve(folder: DemoFolder) -> None:
    """Run until SIGTERM or SIGINT."""
    spark = local_session("txmq demo", for_minutes=True)
    store = Store.open(folder.store)
    broker = Broker(store, spark=spark, listeners={GROUP: DepartureListener(folder)})
    count = CarrierCount(folder, store, spark)

    def start() -> BrokerHandle:
        running = broker.start()
        count.start()
        folder.ready_file.write_text(str(os.getpid()), encoding="utf-8")
        return running

    try:
        run_until_signal(start)
    finally:
        count.stop()
        spark.stop()


def main(arguments: Sequence[str]) -> int:
    """Run the process; return exit code 0 after a signal."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("txmq").setLevel(logging.INFO)
    watch_parent(threading.Event())
    serve(DemoFolder(Path(arguments[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
