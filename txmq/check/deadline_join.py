"""The deadline join: emits a row when its deadline passes without an end (decision 0007).

It is one left outer stream-stream join on Spark Structured Streaming, with the guards that tests
showed to be necessary. It does not know about checks. Its result is fast but not exact: who gets a
row reads the logs again before it acts, and a recheck finds rows that the stream has missed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from txmq.clock import AS_IT_IS, AffineClock
from txmq.delta.object_store import spark_location

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

KEYS = ("transaction_id", "producer_group")
TICK = "__tick__"
MAX_FILES_PER_TRIGGER = 1_000
TICKS_PER_SECOND = 1
_NEVER = "1900-01-01"

SESSION_SETTINGS: Mapping[str, str] = {
    # Without it the filter on ticks is applied to the other side, whose watermark then stops.
    "spark.sql.constraintPropagation.enabled": "false",
    # The slower side decides what is late: deadlines on the left lie in the future.
    "spark.sql.streaming.multipleWatermarkPolicy": "min",
    "spark.sql.streaming.noDataMicroBatches.enabled": "true",
    # The number of state stores. A checkpoint fixes it, and each store writes files in each batch.
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    # Each batch is small and is planned anew, so adaptive execution only costs planning time.
    "spark.sql.adaptive.enabled": "false",
}


def join_session(spark: SparkSession) -> SparkSession:
    """A new session for the query, so that the caller's session keeps its settings."""
    session = spark.newSession()
    for key, value in SESSION_SETTINGS.items():
        session.conf.set(key, value)
    return session


def changes(session: SparkSession, location: str, from_version: int) -> DataFrame:
    """The rows appended to a Delta table by `from_version` and all later commits, as a stream.

    Use it with a new checkpoint and the newest version: an old version may have been removed.
    `_commit_timestamp` is the modification time of the commit file, by the store's clock.
    """
    from pyspark.sql import functions as sql

    return (
        session.readStream.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", from_version)
        .option("maxFilesPerTrigger", MAX_FILES_PER_TRIGGER)
        .load(spark_location(location))
        # Retention appears as deletes.
        .where(sql.col("_change_type") == "insert")
    )


def overdue(
    armed: DataFrame, ends: DataFrame, *, horizon_s: float, clock: AffineClock = AS_IT_IS
) -> DataFrame:
    """The rows of `armed` whose deadline passed before a row of `ends` for the same keys.

    Args:
        armed: KEYS, `deadline`, `armed_version` and more. Rows with a deadline beyond the horizon
            are left to the recheck, because the state keeps ends only for the horizon.
        ends: KEYS and `end_version`; an end applies to rows that an earlier version armed.
        horizon_s: how far ahead a deadline may lie.
        clock: the clock of the deadlines, as a function of the machine's clock.

    Returns:
        The columns of `armed`, and `event_time`: the clock value at which the row is overdue.
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
    # The event time in this filter keeps it above the watermark, so that ticks still move it.
    is_row = ~sql.col("transaction_id").startswith(TICK) | (sql.col("event_time") < sql.lit(_NEVER))
    return joined.where(sql.col("end_transaction_id").isNull() & is_row).select(left.columns)


def clock_column(clock: AffineClock) -> Column:
    """The time of the clock, as a column that is constant within a micro-batch."""
    from pyspark.sql import functions as sql

    return shown_by(clock, sql.current_timestamp())


def shown_by(clock: AffineClock, wall_time: Column) -> Column:
    """The time of the clock at a time of the machine or the store."""
    from pyspark.sql import functions as sql

    if clock == AS_IT_IS:
        return wall_time
    passed_us = sql.unix_micros(wall_time) - clock.wall_start_ms * 1000
    shown_us = passed_us * sql.lit(clock.speed) + clock.start_ms * 1000
    return sql.timestamp_micros(shown_us.cast("bigint"))


def with_ticks(rows: DataFrame, session: SparkSession, now: Column) -> DataFrame:
    """The rows and one tick each second, so that the watermark moves without rows."""
    from pyspark.sql import functions as sql

    time_column = rows.columns[-1]
    ticks = session.readStream.format("rate").option("rowsPerSecond", TICKS_PER_SECOND).load()
    # Spark pushes a filter on a NULL or constant key below the watermark, or drops rows by it.
    tick = ticks.select(
        sql.concat(sql.lit(TICK), sql.col("value").cast("string")).alias(rows.columns[0]),
        now.alias(time_column),
    )
    return rows.unionByName(tick, allowMissingColumns=True)
