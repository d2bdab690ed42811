"""The deadline join: a row comes out when its deadline passes unanswered (decision 0007).

One left outer stream-stream join on Spark Structured Streaming, with every guard that was seen
to be needed. It knows nothing of checks; a delay service can use it too. It is a fast eye, not the
truth: who gets a row looks again before acting, and a recheck finds what the stream has missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from txmq.clock import AS_IT_IS, AffineClock

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KEYS = ("transaction_id", "producer_group")
TICK = "__tick__"
MAX_FILES_PER_TRIGGER = 1_000
TICKS_PER_SECOND = 1
_NEVER = "1900-01-01"

SESSION_SETTINGS: Mapping[str, str] = {
    # Else the predicate that drops ticks reaches the other side and its watermark stands still.
    "spark.sql.constraintPropagation.enabled": "false",
    # The slower side decides what is late: deadlines of the left lie in the future.
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    # The number of state stores; it is fixed in a checkpoint, and each costs files a batch.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # A batch of a few rows is planned again every time; these only cost planning time here.
    "spark.sql.adaptive.enabled": "false",
}


def join_session(spark: SparkSession) -> SparkSession:
    """A session of its own for the query, so that the caller's keeps its settings."""
    session = spark.newSession()
    for key, value in SESSION_SETTINGS.items():
        session.conf.set(key, value)
    return session


def changes(session: SparkSession, location: str, from_version: int) -> DataFrame:
    """The rows appended to a Delta table by `from_version` and all later commits, as a stream.

    Only for new checkpoints, and with a version of now: an old one may be cleaned.
    `_commit_timestamp` is the modification time of the commit file: the store's clock.
    """
    from pyspark.sql import functions as sql

    return (
        session.readStream.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", from_version)
        .option("maxFilesPerTrigger", MAX_FILES_PER_TRIGGER)
        .load(location)
        # Retention shows as deletes.
        .where(sql.col("_change_type") == "insert")
    )


def overdue(
    armed: DataFrame, ends: DataFrame, *, horizon_s: float, clock: AffineClock = AS_IT_IS
) -> DataFrame:
    """The rows of `armed` whose deadline passed before a row of `ends` answered them.

    Args:
        armed: KEYS, `deadline`, `armed_version` and more; a deadline beyond the horizon is left
            to the recheck, for the state holds answers that long.
        ends: KEYS and `end_version`; it answers what was armed by an earlier version.
        horizon_s: how far ahead a deadline may lie.
        clock: the clock of the deadlines, as a function of the machine's.

    Returns the columns of `armed` and `event_time`, the clock value that was passed.
    """
    from pyspark.sql import functions as sql

    session, now = armed.sparkSession, clock_column(clock)
    horizon = sql.make_dt_interval(secs=sql.lit(horizon_s))
    left = armed.where(sql.col("deadline") <= now + horizon).withColumn(
        "event_time", sql.greatest(sql.col("deadline"), now)
    )
    right = ends.select(
        *(sql.col(key).alias(f"end_{key}") for key in KEYS), "end_version", now.alias("end_time")
    )
    left = with_ticks(left, session, now).withWatermark("event_time", "0 seconds")
    right = with_ticks(right, session, now).withWatermark("end_time", "0 seconds")
    matches = sql.expr(
        "transaction_id = end_transaction_id AND producer_group = end_producer_group"
        " AND end_version > armed_version AND end_time <= event_time"
    ) & (sql.col("end_time") >= sql.col("event_time") - horizon)
    joined = left.join(right, matches, "leftOuter")
    # Naming the event time keeps this above the watermark, which the ticks are there to move.
    is_row = ~sql.col("transaction_id").startswith(TICK) | (sql.col("event_time") < sql.lit(_NEVER))
    return joined.where(sql.col("end_transaction_id").isNull() & is_row).select(left.columns)


def clock_column(clock: AffineClock) -> Column:
    """What the clock shows, as a column that is the same in a whole micro-batch."""
    from pyspark.sql import functions as sql

    return shown_by(clock, sql.current_timestamp())


def shown_by(clock: AffineClock, wall_time: Column) -> Column:
    """What the clock shows at a time of the machine or the store."""
    from pyspark.sql import functions as sql

    if clock == AS_IT_IS:
        return wall_time
    passed_us = sql.unix_micros(wall_time) - clock.wall_start_ms * 1000
    shown_us = passed_us * sql.lit(clock.speed) + clock.start_ms * 1000
    return sql.timestamp_micros(shown_us.cast("bigint"))


def with_ticks(rows: DataFrame, session: SparkSession, now: Column) -> DataFrame:
    """Rows and one tick a second, so that the watermark moves without rows."""
    from pyspark.sql import functions as sql

    time_column = rows.columns[-1]
    ticks = session.readStream.format("rate").option("rowsPerSecond", TICKS_PER_SECOND).load()
    # A key that is NULL or a constant is pushed below the watermark, or deletes rows.
    tick = ticks.select(
        sql.concat(sql.lit(TICK), sql.col("value").cast("string")).alias(rows.columns[0]),
        now.alias(time_column),
    )
    return rows.unionByName(tick, allowMissingColumns=True)
