"""What the commands `lag`, `open` and `transaction` show, as tables in the SQL of a notebook."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from txmq.consumer.lag import ConsumerLag
from txmq.ground.sessions import is_connect
from txmq.ops.admin.operator import Operator
from txmq.ops.admin.status import Admin
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class LagTable:
    """How far consumer groups are behind, one row for each queue."""

    COLUMNS = (
        "consumer_group STRING, topic STRING, queue_id INT, reader STRING, owner STRING, "
        "next_offset BIGINT, end_offset BIGINT, lag BIGINT"
    )

    def eval(self, location: str, consumer_group: str | None = None) -> Iterator[tuple[Any, ...]]:
        """Read the lag of one group, or of all."""
        look = ConsumerLag(Store.open(location))
        lags = look.of_all() if consumer_group is None else look.of_group(consumer_group)
        for at in lags:
            yield (
                at.group, at.topic, at.queue_id, at.reader or None, at.owner, at.next_offset,
                at.end_offset, at.lag,
            )  # fmt: skip


class OpenTable:
    """Transactions without a final end, the oldest first."""

    COLUMNS = (
        "transaction_id STRING, producer_group STRING, state STRING, life INT, age_s DOUBLE, "
        "check_times INT, next_check TIMESTAMP, is_due BOOLEAN, reason STRING, problem STRING"
    )

    def eval(self, location: str, producer_group: str | None = None) -> Iterator[tuple[Any, ...]]:
        """List the open transactions of one group, or of all."""
        operator = Operator(Store.open(location))
        for each in operator.open_transactions(producer_group=producer_group):
            yield (
                each.transaction_id, each.producer_group, each.state.value, each.life, each.age_s,
                each.check_times, each.next_check, each.is_due, each.reason, each.problem,
            )  # fmt: skip


class TransactionTable:
    """Every row that any table has about a transaction, in order of time; no bodies."""

    COLUMNS = "at TIMESTAMP, stage STRING, title STRING, details STRING"

    def eval(self, location: str, transaction_id: str) -> Iterator[tuple[Any, ...]]:
        """Read the life of a transaction; the details are JSON."""
        for event in Admin(Store.open(location)).transaction(transaction_id).events:
            details = json.dumps(event.to_dict()["details"], ensure_ascii=False)
            yield event.at, event.stage.value, event.title, details


TABLE_FUNCTIONS: Mapping[str, tuple[type, str]] = {
    "txmq_lag": (LagTable, LagTable.COLUMNS),
    "txmq_open": (OpenTable, OpenTable.COLUMNS),
    "txmq_transaction": (TransactionTable, TransactionTable.COLUMNS),
}


def register_table_functions(spark: SparkSession) -> None:
    """Let the SQL of a session know `txmq_lag`, `txmq_open` and `txmq_transaction`; 0 commits.

    They run in a task, so that executors need txmq and a way to the store.

    Args:
        spark: the session, of Spark 4.0 or newer; also one of Spark Connect.

    Example:
        >>> register_table_functions(spark)
        >>> spark.sql("SELECT topic, sum(lag) FROM txmq_lag('/lake/store') GROUP BY topic").show()
    """
    # Each kind of session takes functions of its own kind.
    from pyspark.sql import functions

    of_session: Any = functions
    if is_connect(spark):
        from pyspark.sql.connect import functions as of_session
    for name, (table, columns) in TABLE_FUNCTIONS.items():
        spark.udtf.register(name, of_session.udtf(table, returnType=columns))
