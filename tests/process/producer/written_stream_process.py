"""A stream into `format("txmq")` that is killed: its module is run as a program."""

from __future__ import annotations

import os
import signal
import sys
import threading

from tests.kit.written_stream import ArmedSource
from txmq.spark.session import local_session

TOPIC = "payment-booked"
SCHEMA = "payment string, file string"


def main(location: str, folder: str, dies_after_s: str = "") -> None:
    """Send payments, one file a micro-batch, until all are sent; or die so long after the start."""
    spark = local_session(for_minutes=True)
    spark.dataSource.register(ArmedSource)
    payments = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    messages = payments.json(f"{folder}/payments").selectExpr(
        "payment AS keys", "file AS tags", "payment AS body"
    )
    writer = messages.writeStream.format("txmq").option("topic", TOPIC).option("path", location)
    query = writer.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    running = query.start()
    if dies_after_s:
        threading.Timer(float(dies_after_s), os.killpg, (0, signal.SIGKILL)).start()
    running.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
