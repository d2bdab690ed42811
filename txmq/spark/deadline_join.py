"""The deadline join: a stream of the transactions whose deadline passes without an end.

Heads and re-armed transactions LEFT OUTER JOIN the claims that may end them, with watermarks:

    half ─► heads ──────┐ deadline = time of the commit + immunity
    op ───► re-armed ───┴─┐ deadline = next check
    clock ► ticks ────────┴─► left  ─┐ watermark: the next trigger
                                     ├─► LEFT OUTER JOIN ─► no end before the deadline ─► a check
    op ───► ends ─────────┬─► right ─┘ watermark: the next trigger
    clock ► ticks ────────┘

A watermark is used by the micro-batch after the one that moved it. So each micro-batch moves it to
the time of the next trigger, and a deadline comes out at the first trigger after it, not at the
second one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from txmq.check.standing import DUE, IMMUNITY_MAX_S, milliseconds_of
from txmq.delta.folder import spark_location
from txmq.ground.clock import AS_IT_IS, AffineClock, Clock, affine
from txmq.message.ids import HEAD_SEQUENCE
from txmq.message.lifecycle import ClaimKind
from txmq.spark.jars import local_checkpoint_files
from txmq.spark.queries import end_of_java_told
from txmq.store.config import Config
from txmq.store.store import Store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

KEYS = ("transaction_id", "producer_group")
TICK = "__tick__"
MAX_FILES_PER_TRIGGER = 1_000
# So many in the time between two triggers: without a new one the watermark would stand.
TICKS_PER_TRIGGER = 2
TICKS_PER_SECOND_MAX = 10
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
    # Each batch is small and is planned anew, as are Delta's reads of its logs for it: adaptive
    # execution costs planning time, and compiling costs more than compiled code saves.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
# The join keeps ends at least this long; deadlines farther ahead are left to the recheck.
LEAST_HORIZON_S = 120.0
_HEAD_VERSION = -1
_ARMING = [ClaimKind.UNKNOWN.value, ClaimKind.RESUME.value]
_ENDING = [
    kind.value
    for kind in (ClaimKind.COMMIT, ClaimKind.ROLLBACK, ClaimKind.DISCARD, ClaimKind.EXPIRE)
]
OnBatch = Callable[["DataFrame"], None]


def horizon_s(config: Config) -> float:
    """Return how far ahead a deadline may lie for the join to watch it, in any group."""
    longest_s = [
        2 * max(settings.transaction_check_interval_s, settings.transaction_timeout_s)
        for settings in config.check_settings().values()
    ]
    return max(LEAST_HORIZON_S, *longest_s)


def start_check_stream(
    spark: SparkSession, store: Store, *, clock: Clock, checkpoint: str, on_batch: OnBatch
) -> StreamingQuery:
    """Start the join over rows that are appended from now on; `checkpoint` must be new.

    Reads: half, op (change feeds). Writes: the checkpoint. `on_batch` gets the due rows of each
    micro-batch, often none. It must read them, or Spark ends the query, see `dues_of`.

    Raises: EnvironmentProblemError where Spark's Java process has ended, StorageError, and Spark's
        own errors.
    """
    begin = versions_now(store)
    with end_of_java_told():
        due = due_transactions(join_session(spark, checkpoint), store, affine(clock), begin)
        return (
            due.writeStream.foreachBatch(lambda batch, _: on_batch(batch))
            .queryName(f"txmq-check-{checkpoint.rsplit('-', 1)[-1]}")
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime=f"{trigger_ms(store.config)} milliseconds")
            .start()
        )


def trigger_ms(config: Config) -> int:
    """Return the time between two micro-batches; Spark begins at whole multiples of it."""
    return round(config.check_trigger_interval_s * 1000)


@dataclass(frozen=True, slots=True)
class LogVersions:
    """The first versions that the streams of a checkpoint read; they never change for it."""

    half: int
    op: int


def versions_now(store: Store) -> LogVersions:
    """Return the newest commits of half and op."""
    return LogVersions(store.tables.half_log().table.version, store.tables.op_log().table.version)


def due_transactions(
    session: SparkSession, store: Store, clock: AffineClock, begin: LogVersions
) -> DataFrame:
    """Stream transactions whose deadline passes without an end, from commits since `begin`."""
    halves = changes(session, store.tables.half_log().table.location, begin.half)
    claims = changes(session, store.tables.op_log().table.location, begin.op)
    armed = heads(halves, clock).unionByName(rearmed(claims, clock))
    config = store.config
    return overdue(
        armed, ends(claims),
        horizon_s=horizon_s(config), trigger_ms=trigger_ms(config), clock=clock,
    )  # fmt: skip


def heads(halves: DataFrame, clock: AffineClock) -> DataFrame:
    """Select the heads, which are due one immunity after the store received them."""
    from pyspark.sql import functions as sql

    immunity_s = sql.col("check_immunity_time_s")
    # An invalid immunity gives no deadline here; the recheck uses the timeout for it.
    valid_s = sql.when((immunity_s > 0) & (immunity_s < IMMUNITY_MAX_S), immunity_s)
    immunity = sql.make_dt_interval(secs=valid_s)
    return halves.where(sql.col("sequence") == HEAD_SEQUENCE).select(
        *KEYS,
        sql.lit(0).alias("check_times"),
        sql.lit(0).alias("life"),
        sql.col("ordinary"),
        sql.lit(_HEAD_VERSION).cast("bigint").alias("armed_version"),
        (shown_by(clock, sql.col("_commit_timestamp")) + immunity).alias("deadline"),
    )


def rearmed(claims: DataFrame, clock: AffineClock) -> DataFrame:
    """Select the UNKNOWN and RESUME claims; a claim without a time is due at once."""
    from pyspark.sql import functions as sql

    committed = shown_by(clock, sql.col("_commit_timestamp"))
    return claims.where(sql.col("kind").isin(_ARMING)).select(
        *KEYS,
        sql.coalesce(sql.col("check_times"), sql.lit(0)).alias("check_times"),
        sql.coalesce(sql.col("life"), sql.lit(0)).alias("life"),
        sql.lit(False).alias("ordinary"),  # noqa: FBT003 - a value, not a flag
        sql.col("_commit_version").alias("armed_version"),
        sql.coalesce(sql.col("next_check_timestamp"), committed).alias("deadline"),
    )


def ends(claims: DataFrame) -> DataFrame:
    """Select the claims that may end a transaction."""
    from pyspark.sql import functions as sql

    return claims.where(sql.col("kind").isin(_ENDING)).select(
        *KEYS, sql.col("_commit_version").alias("end_version")
    )


def dues_of(batch: DataFrame) -> tuple[pa.Table, int]:
    """Read DUE of a micro-batch, and the clock value by which the rows are due.

    It reads all rows, also without any, because a batch that is not read loses the query's state.
    """
    rows = batch.toArrow()
    columns = {
        **{name: rows[name] for name in DUE.names if name in rows.column_names},
        "deadline_ms": milliseconds_of(rows["deadline"]),
        "has_returned": pa.array([False] * rows.num_rows, pa.bool_()),
    }
    clock_ms = pc.max(milliseconds_of(rows["event_time"])).as_py()
    dues = pa.table({name: columns[name] for name in DUE.names}).cast(DUE)
    return dues, clock_ms or 0


def early_by_s(clock_ms: int, clock: AffineClock) -> float:
    """Return how long a micro-batch came before the trigger that the one before foresaw.

    After one that took too long Spark begins the next one at once, between two triggers.
    """
    return max(0.0, (clock_ms - clock.now_ms()) / clock.speed / 1000)


# --- The join ------------------------------------------------------------------------------------


def join_session(spark: SparkSession, checkpoint: str = "") -> SparkSession:
    """Make a session for the query, so that the caller's session keeps its settings."""
    session = spark.newSession()
    is_local = checkpoint and "://" not in checkpoint
    files = local_checkpoint_files(session.version) if is_local else {}
    for key, value in {**SESSION_SETTINGS, **files}.items():
        session.conf.set(key, value)
    return session


def changes(session: SparkSession, location: str, from_version: int) -> DataFrame:
    """Stream the rows that `from_version` and all later commits append to a Delta table.

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
    armed: DataFrame,
    ends: DataFrame,
    *,
    horizon_s: float,
    trigger_ms: int = 0,
    clock: AffineClock = AS_IT_IS,
) -> DataFrame:
    """Join: rows of `armed` whose deadline passed before a row of `ends` for the same keys.

    Args:
        armed: KEYS, `deadline`, `armed_version` and more. Rows with a deadline beyond the horizon
            are left to the recheck, because the state keeps ends only for the horizon.
        ends: KEYS and `end_version`; an end applies to rows that an earlier version armed.
        horizon_s: how far ahead a deadline may lie.
        trigger_ms: the time between two micro-batches; 0: one follows the other.
        clock: the clock of the deadlines, as a function of the machine's clock.

    Returns:
        The columns of `armed`, and `event_time`: the clock value at which the row is overdue.
    """
    from pyspark.sql import functions as sql

    ticks = ticks_of(armed.sparkSession, trigger_ms)
    now, seen = clock_column(clock), next_trigger(clock, trigger_ms)
    horizon = sql.lit(timedelta(seconds=horizon_s))
    left = armed.where(sql.col("deadline") <= now + horizon).withColumn(
        "event_time", sql.greatest(sql.col("deadline"), seen)
    )
    right = ends.select(
        *(sql.col(key).alias(f"end_{key}") for key in KEYS), "end_version", seen.alias("end_time")
    )
    left = with_ticks(left, ticks, seen).withWatermark("event_time", "0 seconds")
    right = with_ticks(right, ticks, seen).withWatermark("end_time", "0 seconds")
    # Spark takes each comparison by order for one of times, and logs what it cannot make of it.
    matches = sql.expr(
        "transaction_id = end_transaction_id AND producer_group = end_producer_group"
        " AND greatest(end_version, armed_version + 1) = end_version AND end_time <= event_time"
    ) & (sql.col("end_time") + horizon >= sql.col("event_time"))
    joined = left.join(right, matches, "leftOuter")
    # The event time in this filter keeps it above the watermark, so that ticks still move it.
    is_row = ~sql.col("transaction_id").startswith(TICK) | (sql.col("event_time") < sql.lit(_NEVER))
    return joined.where(sql.col("end_transaction_id").isNull() & is_row).select(left.columns)


def clock_column(clock: AffineClock) -> Column:
    """Return the time of the clock, as a column that is constant within a micro-batch."""
    from pyspark.sql import functions as sql

    return shown_by(clock, sql.current_timestamp())


def next_trigger(clock: AffineClock, trigger_ms: int) -> Column:
    """Return the time by which the next micro-batch begins at the earliest; now without a trigger.

    It is the watermark of that micro-batch, and what is read in this one is never behind it.
    """
    from pyspark.sql import functions as sql

    if not trigger_ms:
        return clock_column(clock)
    wall_ms, interval_ms = sql.unix_millis(sql.current_timestamp()), sql.lit(trigger_ms)
    return shown_by(clock, sql.timestamp_millis(wall_ms - wall_ms % interval_ms + interval_ms))


def shown_by(clock: AffineClock, wall_time: Column) -> Column:
    """Convert a time of the machine or the store to the time of the clock."""
    from pyspark.sql import functions as sql

    if clock == AS_IT_IS:
        return wall_time
    passed_us = sql.unix_micros(wall_time) - clock.wall_start_ms * 1000
    shown_us = passed_us * sql.lit(clock.speed) + clock.start_ms * 1000
    return sql.timestamp_micros(shown_us.cast("bigint"))


def ticks_of(session: SparkSession, trigger_ms: int) -> DataFrame:
    """Stream rows of Spark's own source, so that each micro-batch has some."""
    per_s = math.ceil(TICKS_PER_TRIGGER * 1000 / max(trigger_ms, 1))
    rows_per_s = min(per_s, TICKS_PER_SECOND_MAX)
    return session.readStream.format("rate").option("rowsPerSecond", rows_per_s).load()


def with_ticks(rows: DataFrame, ticks: DataFrame, seen: Column) -> DataFrame:
    """Add ticks to the rows, so that the watermark moves without rows."""
    from pyspark.sql import functions as sql

    # Spark pushes a filter on a NULL or constant key below the watermark, or drops rows by it.
    tick = ticks.select(
        sql.concat(sql.lit(TICK), sql.col("value").cast("string")).alias(rows.columns[0]),
        seen.alias(rows.columns[-1]),
    )
    return rows.unionByName(tick, allowMissingColumns=True)
