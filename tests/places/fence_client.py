"""A client of Spark Connect that dies by SIGKILL at one step: a writer, or who asks about it.

python -m tests.places.fence_client ADDRESS STORE TABLE STEP [TRANSACTION]
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.kit.asked import prepared
from txmq.check.recheck import RecheckJob
from txmq.ground.fail_points import FailPoint, arm
from txmq.listeners.delta import DeltaListener
from txmq.producer.producer import TransactionProducer
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GROUP = "orders"
WRITER_STEPS = ("prepared", "writing", "written", "committed")
ASKER_STEPS = (FailPoint.FENCE_COMMITTED.value, FailPoint.FENCE_RAISED.value)


def main(address: str, store: str, table: str, step: str) -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.remote(address).getOrCreate()
    if step in WRITER_STEPS:
        write(spark, Store.open(store), table, step)
    else:
        arm(lambda point: die() if point == step else None)
        listener = DeltaListener(table, spark=spark)
        job = RecheckJob(Store.open(store), listeners={GROUP: listener}, spark=spark)
        # One that was killed holds the lease for a while.
        while job.run_once().open_transactions:
            pass


def write(spark: SparkSession, store: Store, table: str, step: str) -> None:
    listener = DeltaListener(table, spark=spark)
    with TransactionProducer(store, producer_group=GROUP, listener=listener) as producer:
        transaction = prepared(producer)
        Path(f"{table}.{step}.id").write_text(transaction.id)
        if step == "prepared":
            die()
        rows = spark.range(1).selectExpr("id + 100 AS id", f"'{transaction.id}' AS status")
        if step == "writing":
            rows = held(rows, table)
        writer = rows.write.format("delta").mode("append")
        writer.options(**transaction.delta_options()).save(table)
        if step == "written":
            die()
        transaction.commit()
        die()


def held(rows: Any, table: str) -> Any:
    """Rows that begin a file, and come when there is another one."""
    import pyspark.sql.functions as F  # noqa: N812

    begun, free = f"{table}.begun", f"{table}.free"

    def hold(status):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202 - hints choose a kind
        import time
        from pathlib import Path

        Path(begun).touch()
        for _ in range(2_400):
            if Path(free).exists():
                break
            time.sleep(0.05)
        return status

    return rows.coalesce(1).withColumn("status", F.udf(hold, "string")("status"))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
